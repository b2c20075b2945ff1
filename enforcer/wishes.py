"""What the owners of workloads ask for: by a label or annotation, or by a `GpuPolicy` of their namespace.

Labels and annotations of a pod, of its owner and of the owner's templates count alike, and win over policies. Read from
the API server, never from what agents report. Called by guard, relief and tide before they change anything.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from enforcer.cluster import ClusterReader
from enforcer.kinds.register import pod_templates
from enforcer.manifest import Manifest
from fleet.gpu_policy import POLICIES_MAX, GpuPolicy, gpu_policy, most_careful, policy_wishes
from fleet.selectors import selects_labels

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
            manifests: a pod and its owner, or either of them; None for one that there is not.

        Returns:
            The first value that stands on one of them, else the most careful one that policies ask for; None where
            nobody asks.
        """
        there = [manifest for manifest in manifests if manifest is not None]
        own = next((value for manifest in there for value in _own(key, manifest)), None)
        if own is not None:
            return own
        asked = [value for manifest in there for value in self._by_policy(key, manifest)]
        return most_careful(asked) if asked else None

    def policies_asking(self, key: str, value: str, manifest: Manifest) -> tuple[str, ...]:
        """Names of the policies that ask for a value; none where the object itself says what it asks for."""
        if any(_own(key, manifest)):
            return ()
        return tuple(
            policy.name
            for policy in self._policies_of(manifest)
            if (key, value) in policy.wishes
            and any(selects_labels(policy.selector, labels) for labels in _selected(manifest))
        )

    def _policies_of(self, manifest: Manifest) -> Sequence[GpuPolicy]:
        return self._policies.get(str(manifest["metadata"].get("namespace", "")), ())

    def _by_policy(self, key: str, manifest: Manifest) -> Iterator[str]:
        policies = self._policies_of(manifest)
        for labels in _selected(manifest) if policies else ():
            value = policy_wishes(policies, policies[0].namespace, labels).get(key)
            if value is not None:
                yield value


def wishes_in(reader: ClusterReader, namespace: str | None = None) -> Wishes:
    """The wishes of a cluster, or of one namespace, as they are now.

    Raises:
        Unavailable: the cluster can't be reached.
    """
    return Wishes(gpu_policy(manifest) for manifest in reader.list_objects(POLICY_KIND, namespace))


def _own(key: str, manifest: Manifest) -> Iterator[str]:
    """What stands on an object or its templates, the object first."""
    for holder in _holders(manifest):
        for part in ("annotations", "labels"):
            value = (holder.get(part) or {}).get(key)
            if value is not None:
                yield str(value)


def _selected(manifest: Manifest) -> Iterator[Mapping[str, str]]:
    """Labels that policies select by: those of a pod, or of an owner's templates; an owner's own are no pod's."""
    is_pod = manifest.get("kind") == "Pod"
    templates = (template.body.get("metadata") or {} for template in pod_templates(manifest))
    for holder in [manifest["metadata"]] if is_pod else templates:
        yield holder.get("labels") or {}


def _holders(manifest: Manifest) -> Iterator[Mapping[str, Any]]:
    yield manifest["metadata"]
    for template in pod_templates(manifest):
        yield template.body.get("metadata") or {}
