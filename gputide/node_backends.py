"""Which GPU-sharing backends the nodes of a cluster run, against the one that is chosen: a part of `gputide doctor`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from enforcer.backends.detect import DetectedBackend, conflicts, detect_backends
from enforcer.cluster import ClusterReader


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeBackends:
    """What nodes run.

    Attributes:
        found: backends with their numbers of nodes, as text.
        trouble: what stands against changing this cluster with the chosen backend, one sentence; None where nothing
            does.
    """

    found: str
    trouble: str | None


def read_node_backends(reader: ClusterReader, chosen: str) -> NodeBackends:
    """Look at the nodes.

    Args:
        reader: the cluster.
        chosen: backend of the settings.

    Raises:
        Unavailable: the cluster can't be reached.
    """
    seen = detect_backends(
        reader.list_objects("Node"), reader.list_objects("Pod"), reader.list_objects("ResourceSlice")
    )
    return judged(seen, chosen)


def judged(seen: Sequence[DetectedBackend], chosen: str) -> NodeBackends:
    """What was detected, in words.

    EffectiveGPU has HAMi's signs, and both kinds of claims have the same slices: neither can be told from the outside.
    """
    counted = Counter(entry.backend for entry in seen)
    told = ", ".join(f"{name} on {count} nodes" for name, count in sorted(counted.items())) or "no node with cards"
    disputed = conflicts(seen)
    if disputed:
        more = f" (and {len(disputed) - 1} more)" if len(disputed) > 1 else ""
        return NodeBackends(found=told, trouble=disputed[0] + more)
    sign = {"effectivegpu": "hami", "dra_mig": "dra_shared"}.get(chosen, chosen)
    # Cards that nobody shares yet are where time-slicing, MPS, MIG and KAI begin.
    starts = {sign, "whole_cards"} if chosen in _ON_WHOLE_CARDS else {sign}
    if counted and not starts & counted.keys():
        return NodeBackends(
            found=told, trouble=f"applying: no node runs {chosen}; set enforcer.backend to one of {sorted(counted)}"
        )
    return NodeBackends(found=told, trouble=None)


_ON_WHOLE_CARDS = frozenset({"nvidia_time_slicing", "nvidia_mps", "mig", "kai", "whole_cards"})
