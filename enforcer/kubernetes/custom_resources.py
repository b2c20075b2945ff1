"""What the objects of group `gputide.io` have in common: how they are served, written and refused.

Called by the stores of changes and of plans.
"""

from __future__ import annotations

from collections.abc import Iterator

from enforcer.manifest import Manifest
from fleet.errors import Refused
from wire.kubernetes.read import KubernetesApi
from wire.kubernetes.resource import ApiResource
from wire.kubernetes.write import FIELD_MANAGER

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


def unserved(kind: ApiResource) -> Refused:
    """The refusal where a cluster does not know a kind."""
    return Refused(
        f"cannot keep plans and changes in the cluster: it does not know {kind.resource}; "
        f"kubectl apply -f {CUSTOM_RESOURCES_FILE}, or helm upgrade --set enforcer.enabled=true …"
    )
