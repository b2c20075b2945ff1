"""What the owners of workloads ask for: by a label or annotation, or by a `GpuPolicy` of their namespace.

Labels and annotations of a pod, of its owner and of the owner's templates count alike, and win over policies. Read from
the API server, never from what agents report. Called by guard, relief and tide before they change anything.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from enforcer.cluster import ClusterReader
from enforcer.kinds.register import pod_templates
from enforcer.manifest import Manifest
from fleet.gpu_policy import POLICIES_MAX, GpuPolicy, gpu_policy, most_careful, policy_wishes

POLICY_KIND = "GpuPolicy"


class Wishes:
    """The wishes of a cluster's tenants.

    Args:
        policies: those that may speak of the objects that are asked about.
    """

    def __init__(self, policies: Iterable[GpuPolicy] = ()) -> None:
        self._policies: dict[str, list[GpuPolicy]] = defaultdict(list)
        for policy in policies:
            # One more than are read says that there are more.
            if len(self._policies[policy.namespace]) <= POLICIES_MAX:
                self._policies[policy.namespace].append(policy)

    def of(self, key: str, *manifests: Manifest | None) -> str | None:
        """What is asked for by a label.

        Args:
            key: the label.
            manifests: a pod and its owner, or either of them; None for one that there is not.

        Returns:
            The first value that stands on one of them, else the most careful one that policies ask for; None where
            nobody asks.
        """
        there = [manifest for manifest in manifests if manifest is not None]
        for manifest in there:
            for holder in _holders(manifest):
                for part in ("annotations", "labels"):
                    value = (holder.get(part) or {}).get(key)
                    if value is not None:
                        return str(value)
        asked = [value for manifest in there for value in self._by_policy(key, manifest)]
        return most_careful(asked) if asked else None

    def _by_policy(self, key: str, manifest: Manifest) -> Iterator[str]:
        namespace = str(manifest["metadata"].get("namespace", ""))
        policies = self._policies.get(namespace)
        if not policies:
            return
        templates = [template.body.get("metadata") or {} for template in pod_templates(manifest)]
        # An owner's own labels are not those of its pods, which policies select.
        for holder in [manifest["metadata"]] if manifest.get("kind") == "Pod" else templates:
            value = policy_wishes(policies, namespace, holder.get("labels") or {}).get(key)
            if value is not None:
                yield value


def wishes_in(reader: ClusterReader, namespace: str | None = None) -> Wishes:
    """The wishes of a cluster, or of one namespace, as they are now.

    Raises:
        Unavailable: the cluster can't be reached.
    """
    return Wishes(gpu_policy(manifest) for manifest in reader.list_objects(POLICY_KIND, namespace))


def _holders(manifest: Manifest) -> Iterator[Mapping[str, Any]]:
    yield manifest["metadata"]
    for template in pod_templates(manifest):
        yield template.body.get("metadata") or {}
