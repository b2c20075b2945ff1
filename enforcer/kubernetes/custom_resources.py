"""What the objects of group `gputide.io` have in common: how they are served, written and refused.

Called by the stores of changes and of plans.
"""

from __future__ import annotations

from collections.abc import Iterator

from enforcer.manifest import Manifest
from fleet.errors import Refused
from wire.kubernetes.read import KubernetesApi
from wire.kubernetes.refusals import Deed
from wire.kubernetes.resource import ApiResource
from wire.kubernetes.write import FIELD_MANAGER, Call

CUSTOM_RESOURCES_FILE = "docs/custom-resources.yaml"
"""What makes the cluster serve the kinds."""
GROUP, VERSION = "gputide.io", "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
OBJECT_BYTES_MAX = 900_000
"""Most bytes that an object carries: the API server takes a mebibyte and a half, other tools read one."""
AS_MANAGER = {"fieldManager": FIELD_MANAGER}

_LIST_LIMIT = 500


def kind_of(kind: str, *, metadata_only: bool = False) -> ApiResource:
    """How the API serves a kind of ours: `GpuPlan` as `gpuplans`."""
    return ApiResource(
        kind=kind, group=GROUP, versions=(VERSION,), plural=f"{kind.lower()}s", is_namespaced=False,
        metadata_only=metadata_only,
    )  # fmt: skip


def listed(api: KubernetesApi, kind: ApiResource) -> Iterator[Manifest]:
    """Every object of a kind.

    Raises:
        Misconfigured: a right is missing.
        Refused: the cluster does not know the kind, with what makes it known.
        Unavailable: the cluster can't be reached.
    """
    token: str | None = None
    while True:
        page = api.page(kind, VERSION, limit=_LIST_LIMIT, token=token)
        if page is None:
            raise unserved(kind)
        yield from (dict(one) for one in page.manifests)
        token = page.next_token
        if token is None:
            return


def got(api: KubernetesApi, kind: ApiResource, name: str, *, metadata_only: bool = False) -> Manifest | None:
    """One object of ours; None where there is none. Raises as `listed`."""
    deed = Deed(verb="get", resource=kind.resource, name=name)
    return api.get(deed, kind.path(VERSION, None, name), metadata_only=metadata_only)


def making(kind: ApiResource, metadata: Manifest, content: Manifest, *, impersonated: str | None = None) -> Call:
    """The call that makes an object of ours of its metadata and the rest of its content."""
    deed = Deed(verb="create", resource=kind.resource, name=str(metadata.get("name", "")))
    body = {"apiVersion": API_VERSION, "kind": kind.kind, "metadata": metadata, **content}
    return Call(deed=deed, path=kind.path(VERSION, None), method="POST", query=AS_MANAGER, body=body,
                impersonated=impersonated)  # fmt: skip


def unserved(kind: ApiResource) -> Refused:
    """The refusal where a cluster does not know a kind."""
    return Refused(
        f"cannot keep plans and changes in the cluster: it does not know {kind.resource}; "
        f"kubectl apply -f {CUSTOM_RESOURCES_FILE}, or helm upgrade --set enforcer.enabled=true …"
    )
