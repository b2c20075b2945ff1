"""By which versions a cluster serves and keeps our kinds, and the way from one version to the next.

A version is served beside the older one with `conversion: None`: the API server changes `apiVersion` and nothing else,
so a newer version holds every field of the older one, by the same name and type. Once the newer one is stored, what
lies in etcd in the older is written anew, and the older is taken off `status.storedVersions`; only then does the server
let a release stop serving it. Called by `gputide admin kinds`.

Source: kubernetes/website:content/en/docs/tasks/extend-kubernetes/custom-resources (Versions in
CustomResourceDefinitions, Upgrade existing objects to a new stored version).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from enforcer.kubernetes.custom_resources import AS_MANAGER, CUSTOM_RESOURCES_FILE, VERSION, kind_of
from enforcer.kubernetes.kinds import kind_named
from enforcer.manifest import Manifest
from enforcer.wishes import POLICY_KINDS
from fleet.errors import Refused
from wire.kubernetes.page import Page, pages_of
from wire.kubernetes.refusals import Conflict, Deed
from wire.kubernetes.resource import ApiResource
from wire.kubernetes.write import MERGE_PATCH, Call, WritingApi

_DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_LIST_LIMIT = 500
_TRIES = 5

OURS = tuple(
    replace(kind, metadata_only=True)
    for kind in (
        *(kind_named(policy) for policy in POLICY_KINDS),
        *(kind_of(name) for name in ("GpuPlan", "GpuPlanPart", "GpuApproval", "GpuChange")),
    )
)
"""Our kinds; of their lists only names are read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KindVersions:
    """By which versions a cluster has one of our kinds.

    Attributes:
        resource: as roles name it: `gpuplans.gputide.io`.
        served: versions that it answers, in the definition's order; empty where it does not know the kind.
        storage: version in which it stores what is written; empty where it does not know the kind.
        stored: versions in which objects may lie in etcd.
    """

    resource: str
    served: tuple[str, ...]
    storage: str
    stored: tuple[str, ...]

    @property
    def is_spoken(self) -> bool:
        """Whether this program can read and write it."""
        return VERSION in self.served

    @property
    def is_migrated(self) -> bool:
        """Whether nothing may lie in an older version."""
        return self.stored in ((), (self.storage,))


def kind_versions(api: WritingApi) -> tuple[KindVersions, ...]:
    """All our kinds, as the cluster has them.

    Raises:
        Misconfigured: a right is missing.
        Unavailable: it can't be reached.
    """
    return tuple(_versions_of(kind.resource, _definition(api, kind.resource)) for kind in OURS)


def migrate(api: WritingApi, resource: str, tick: Callable[[int, int], None]) -> int:
    """Write all objects of a kind anew in the version that is stored, and take older ones off the list of stored ones.

    Each object is written as it was read, on the condition that nobody changed it meanwhile: a write of somebody else
    stores it in the new version too. Stopped at any place it may be called again.

    Args:
        tick: called with how many objects are done, and of how many.

    Returns:
        How many objects were written.

    Raises:
        Refused: the cluster does not know the kind, an object can't be written, or the kind was changed meanwhile.
    """
    kind = next(one for one in OURS if one.resource == resource)
    before = _definition(api, resource)
    versions = _versions_of(resource, before)
    if before is None:
        raise Refused(
            f"cannot migrate {resource}: the cluster does not know it; kubectl apply -f {CUSTOM_RESOURCES_FILE}"
        )
    names: list[tuple[str, str]] = []
    for page in pages_of(partial(_page, api, kind, versions.storage), objects_max=_LIST_LIMIT):
        for one in page.manifests:
            metadata: Any = one["metadata"]
            names.append((str(metadata.get("namespace", "")), str(metadata["name"])))
    for done, (namespace, name) in enumerate(names, start=1):
        _write_anew(api, kind, versions.storage, namespace, name)
        tick(done, len(names))
    deed = Deed(verb="patch", resource="customresourcedefinitions/status.apiextensions.k8s.io", name=resource)
    body = {
        # Of another version of the definition another version may be the one that is stored.
        "metadata": {"resourceVersion": before["metadata"]["resourceVersion"]},
        "status": {"storedVersions": [versions.storage]},
    }
    path = f"{_DEFINITIONS}/{resource}/status"
    api.send(Call(deed=deed, path=path, method="PATCH", query=AS_MANAGER, body=body, content_type=MERGE_PATCH))
    return len(names)


def _page(api: WritingApi, kind: ApiResource, version: str, limit: int, token: str | None) -> Page:
    found = api.page(kind, version, limit=limit, token=token)
    if found is None:
        raise Refused(f"cannot migrate {kind.resource}: the cluster serves no {version} of it any more; call again")
    return found


def _definition(api: WritingApi, resource: str) -> Manifest | None:
    deed = Deed(verb="get", resource="customresourcedefinitions.apiextensions.k8s.io", name=resource)
    return api.get(deed, f"{_DEFINITIONS}/{resource}")


def _versions_of(resource: str, definition: Manifest | None) -> KindVersions:
    if definition is None:
        return KindVersions(resource=resource, served=(), storage="", stored=())
    versions = definition["spec"]["versions"]
    return KindVersions(
        resource=resource,
        served=tuple(str(one["name"]) for one in versions if one.get("served")),
        storage=next(str(one["name"]) for one in versions if one.get("storage")),
        stored=tuple(map(str, (definition.get("status") or {}).get("storedVersions") or ())),
    )


def _write_anew(api: WritingApi, kind: ApiResource, version: str, namespace: str, name: str) -> None:
    path = kind.path(version, namespace or None, name)
    for _ in range(_TRIES):
        found = api.get(Deed(verb="get", resource=kind.resource, namespace=namespace, name=name), path)
        if found is None:
            return  # deleted meanwhile
        deed = Deed(verb="update", resource=kind.resource, namespace=namespace, name=name)
        try:
            api.send(Call(deed=deed, path=path, method="PUT", query=AS_MANAGER, body=found))
            return
        except Conflict:
            continue
    raise Refused(f"cannot write {kind.resource} {name} anew: somebody changed it {_TRIES} times; call again")
