"""What the owners of workloads and of the cluster ask for: by a label or annotation, or by a policy.

Labels and annotations of a pod, of its owner and of the owner's templates count alike; who wins is the rule of
`fleet.gpu_policy`. Read from the API server, never from what agents report. Called by guard, relief and tide before
they change anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from enforcer.cluster import ClusterReader
from enforcer.kinds.register import pod_templates
from enforcer.manifest import Manifest
from fleet.gpu_policy import Decision, GpuPolicy, by_namespace, carefulness, decisions, gpu_policy
from fleet.inventory import WISH_LABELS

POLICY_KINDS = ("ClusterGpuPolicy", "GpuPolicy")


class Wishes:
    """The wishes of a cluster and its tenants.

    Args:
        policies: those that may speak of the objects that are asked about.
    """

    def __init__(self, policies: Iterable[GpuPolicy] = ()) -> None:
        self._policies = by_namespace(policies)

    def of(self, key: str, *manifests: Manifest | None) -> str | None:
        """What is asked for by a label.

        Args:
            manifests: a pod and its owner, or either of them; None for one that there is not.

        Returns:
            By the rule of `fleet.gpu_policy`, where the first value that stands on one of them is their own, and the
            most careful one of all templates' counts; None where nobody asks.
        """
        found = self._decided(key, *manifests)
        return None if found is None else found.value

    def asking(self, key: str, manifest: Manifest) -> str:
        """The policy that decided what a label of an object asks for; empty where the object itself did, or nobody."""
        found = self._decided(key, manifest)
        return "" if found is None else found.by

    def _decided(self, key: str, *manifests: Manifest | None) -> Decision | None:
        there = [manifest for manifest in manifests if manifest is not None]
        own = next((value for manifest in there for value in _own(key, manifest)), None)
        if key not in WISH_LABELS or not any(self._policies.get(space) for space in ("", *map(_namespace, there))):
            return None if own is None else Decision(value=own, by="")
        said = {} if own is None else {key: own}
        found = [one for manifest in there if (one := self._by_policy(key, manifest, said)) is not None]
        return max(found, key=lambda one: carefulness(key, one.value), default=None)

    def _by_policy(self, key: str, manifest: Manifest, own: Mapping[str, str]) -> Decision | None:
        namespace, of_cluster = _namespace(manifest), self._policies.get("", [])
        policies = [*of_cluster, *(self._policies.get(namespace, []) if namespace else [])]
        labels = list(_selected(manifest))
        # Who has no template is selected by nobody, and spoken of by the cluster's policies all the same.
        found = (
            [decisions(policies, namespace, one, own) for one in labels]
            if labels
            else [decisions(of_cluster, namespace, {}, own)]
        )
        return max(
            (said[key] for said in found if key in said), key=lambda one: carefulness(key, one.value), default=None
        )


def wishes_in(reader: ClusterReader, namespace: str | None = None) -> Wishes:
    """The wishes of a cluster, or of one namespace and what the cluster asks of all, as they are now.

    Raises:
        Unavailable: the cluster can't be reached.
    """
    return Wishes(policies_in(reader.list_objects, namespace))


def policies_in(
    list_objects: Callable[[str, str | None], Iterable[Manifest]], namespace: str | None = None
) -> Iterator[GpuPolicy]:
    """The cluster's policies, and those of a namespace, or of all."""
    for kind, space in zip(POLICY_KINDS, (None, namespace), strict=True):
        yield from (gpu_policy(manifest) for manifest in list_objects(kind, space))


def _namespace(manifest: Manifest) -> str:
    return str(manifest["metadata"].get("namespace", ""))


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
