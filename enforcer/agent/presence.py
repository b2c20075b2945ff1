"""On which nodes an agent runs that lets low priority give way, by its pods. Called where plans are made and applied.

Only pods of gputide's own namespace are asked about, where tenants make none: a promise to others rests on them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from enforcer.manifest import Manifest
from fleet.settings.agent import GiveWayManner

_WORD = "agent.give_way="
_ENV = "GPUTIDE_AGENT__GIVE_WAY"


def nodes_with_agents(pods: Iterable[Manifest], *, strict_only: bool = False) -> frozenset[str]:
    """Nodes with a ready pod of a DaemonSet that runs `gputide run agent` and is not told to let nobody sleep.

    Args:
        pods: pods of gputide's own namespace.
        strict_only: only those that are told to let it sleep whenever somebody above it works; what a file of settings
            says is not seen.
    """
    return frozenset(str(pod["spec"]["nodeName"]) for pod in pods if _is_at_work(pod, strict_only=strict_only))


def _is_at_work(pod: Manifest, *, strict_only: bool) -> bool:
    metadata, status = pod["metadata"], pod.get("status") or {}
    is_ready = any(
        entry.get("type") == "Ready" and entry.get("status") == "True" for entry in status.get("conditions") or ()
    )
    is_daemon = any(owner.get("kind") == "DaemonSet" for owner in metadata.get("ownerReferences") or ())
    if not (is_ready and is_daemon and pod["spec"].get("nodeName")) or metadata.get("deletionTimestamp"):
        return False
    manners = [_manner(container) for container in pod["spec"].get("containers") or ()]
    return any(one is GiveWayManner.STRICT if strict_only else one not in (None, GiveWayManner.OFF) for one in manners)


def _manner(container: Mapping[str, Any]) -> GiveWayManner | None:
    """How an agent lets low priority give way, flags before variables; None where the container runs none."""
    words: Sequence[str] = [str(word) for word in (*(container.get("command") or ()), *(container.get("args") or ()))]
    if ("run", "agent") not in pairwise(words) or "check" in words:
        return None
    said = [str(one.get("value")) for one in container.get("env") or () if one.get("name") == _ENV]
    said += [word.rpartition(_WORD)[2] for word in words if _WORD in word]
    if GiveWayManner.OFF in said:
        return GiveWayManner.OFF
    return GiveWayManner.STRICT if said and said[-1] == GiveWayManner.STRICT else GiveWayManner.PRESSURE
