"""What the objects of group `gputide.io` have in common: how they are served, written and refused.

The API server holds them to the schemas of `docs/custom-resources.yaml`, as long as nobody changed those; an object
that does not hold what is read of it is left out of lists, and asked for by its name it is an error. Called by the
stores of changes and of plans.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from functools import lru_cache
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from enforcer.manifest import Manifest
from enforcer.record.entry_shapes import Moment
from fleet.errors import Corrupt, Refused
from fleet.logs import logger
from fleet.settings.faults import fault_words
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
_VERSION = re.compile(r"v(\d{1,9})(?:(alpha|beta)(\d{1,9}))?", re.ASCII)
_STEPS = ("alpha", "beta", "")
_MESSAGE_LENGTH_MAX = 4096
_log = logger("enforcer.kubernetes.custom_resources")


def _is_unicode(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("expected text in UTF-8") from None
    return text


_Text = Annotated[str, AfterValidator(_is_unicode)]
_Count = Annotated[int, Field(ge=0, le=10**12)]


class _Read(BaseModel):
    """What is read of an object; there is more."""

    model_config = ConfigDict(strict=True, defer_build=True)


class _Name(_Read):
    name: _Text
    resourceVersion: _Text  # noqa: N815 - the API's word


class _Metadata(_Name):
    creationTimestamp: Moment  # noqa: N815 - the API's word
    generation: _Count | None = None
    annotations: dict[str, Any] | None = None


class _Condition(_Read):
    type: str = ""
    status: str = ""
    reason: str = ""
    message: _Text = ""
    observedGeneration: _Count | None = None  # noqa: N815 - the API's word


class _Status(_Read):
    conditions: list[_Condition] | None = None


class _PlanSpec(_Read):
    plan: _Text
    parts: _Count = 0
    sha256: str = ""
    apply: list[_Count] | None = None


class _PartSpec(_Read):
    data: _Text


class _ApprovalSpec(_Read):
    plan: _Text
    stages: list[_Count]
    approvedBy: _Text  # noqa: N815 - the API's word


class _ChangeSpec(_Read):
    plan: _Text
    page: _Count


class _Named(_Read):
    metadata: _Name


class _Plan(_Read):
    metadata: _Metadata
    spec: _PlanSpec
    status: _Status | None = None


class _Part(_Named):
    spec: _PartSpec


class _Approval(_Read):
    metadata: _Metadata
    spec: _ApprovalSpec


class _Change(_Named):
    spec: _ChangeSpec


_SHAPES: Mapping[str, type[_Read]] = {
    "GpuPlan": _Plan, "GpuPlanPart": _Part, "GpuApproval": _Approval, "GpuChange": _Change,
}  # fmt: skip


def kind_of(kind: str, *, metadata_only: bool = False) -> ApiResource:
    """How the API serves a kind of ours: `GpuPlan` as `gpuplans`."""
    return ApiResource(
        kind=kind, group=GROUP, versions=(VERSION,), plural=f"{kind.lower()}s", is_namespaced=False,
        metadata_only=metadata_only,
    )  # fmt: skip


def listed(api: KubernetesApi, kind: ApiResource) -> Iterator[Manifest]:
    """Every object of a kind that holds what is read of it.

    Raises:
        Misconfigured: a right is missing.
        Refused: the cluster does not know the kind, with what makes it known.
        Unavailable: the cluster can't be reached.
    """
    token: str | None = None
    while True:
        page = api.page(kind, VERSION, limit=_LIST_LIMIT, token=token)
        if page is None:
            raise unserved(api, kind)
        for one in page.manifests:
            why = _fault_of(kind, one, metadata_only=kind.metadata_only)
            if why is None:
                yield dict(one)
            else:
                warn_left_out(kind.kind, why)
        token = page.next_token
        if token is None:
            return


def got(api: KubernetesApi, kind: ApiResource, name: str, *, metadata_only: bool = False) -> Manifest | None:
    """One object of ours; None where there is none. Raises as `listed`.

    Raises:
        Corrupt: it does not hold what is read of it.
    """
    deed = Deed(verb="get", resource=kind.resource, name=name)
    found = api.get(deed, kind.path(VERSION, None, name), metadata_only=metadata_only)
    why = None if found is None else _fault_of(kind, found, metadata_only=metadata_only)
    if why is not None:
        raise Corrupt(f"cannot read {kind.kind} {name}: {why}")
    return found


def _fault_of(kind: ApiResource, found: Mapping[str, Any], *, metadata_only: bool) -> str | None:
    shape = _Named if metadata_only else _SHAPES[kind.kind]
    try:
        shape.model_validate(found)
    except ValidationError as exc:
        return fault_words(exc, shape)
    return None


@lru_cache(maxsize=256)
def warn_left_out(kind: str, why: str) -> None:
    """Say that an object counts for nothing, once for each fault: lists are read every few seconds."""
    _log.warning("an object of ours is left out", kind=kind, why=why)


def making(kind: ApiResource, metadata: Manifest, content: Manifest, *, impersonated: str | None = None) -> Call:
    """The call that makes an object of ours of its metadata and the rest of its content."""
    deed = Deed(verb="create", resource=kind.resource, name=str(metadata.get("name", "")))
    body = {"apiVersion": API_VERSION, "kind": kind.kind, "metadata": metadata, **content}
    return Call(deed=deed, path=kind.path(VERSION, None), method="POST", query=AS_MANAGER, body=body,
                impersonated=impersonated)  # fmt: skip


def condition_body(
    kind: str, reason: str, message: str, *, is_true: bool, generation: int, before: Manifest | None, now: datetime
) -> Manifest:
    """A condition as a status holds it; the time of its last change stays where its status does."""
    is_old = before is not None and before.get("status") == str(is_true)
    return {
        "type": kind,
        "status": str(is_true),
        "reason": reason,
        "message": message[:_MESSAGE_LENGTH_MAX],
        "observedGeneration": generation,
        "lastTransitionTime": before["lastTransitionTime"] if before and is_old else now.strftime("%Y-%m-%dT%H:%M:%SZ"),
    }


def unserved(api: KubernetesApi, kind: ApiResource) -> Refused:
    """The refusal where a cluster does not know a kind, or knows it in versions alone that this program does not."""
    return other_versions(api, kind) or Refused(
        f"cannot keep plans and changes in the cluster: it does not know {kind.resource}; "
        f"kubectl apply -f {CUSTOM_RESOURCES_FILE}, or helm upgrade --set enforcer.enabled=true …"
    )


def other_versions(api: KubernetesApi, kind: ApiResource) -> Refused | None:
    """The refusal where a cluster serves a kind of ours in other versions alone; None where it serves none at all."""
    group = api.get(Deed(verb="get", resource=GROUP, word="discover"), f"/apis/{GROUP}")
    listed: Any = (group or {}).get("versions")
    names = [str(one.get("version")) for one in listed or () if isinstance(one, dict)]
    others = sorted((name for name in names if name != VERSION and api.serves(kind, name)), key=version_order)
    if not others:
        return None
    is_older = version_order(others[-1]) < version_order(VERSION)
    mends = (
        f"older: helm upgrade, or kubectl apply -f {CUSTOM_RESOURCES_FILE}, then `gputide admin kinds`"
        if is_older
        else "newer: use the gputide that brought them"
    )
    return Refused(
        f"cannot use {kind.resource}: this cluster serves it in {', '.join(others)} alone, and this program speaks "
        f"{VERSION}; the cluster's kinds are {mends}"
    )


def version_order(version: str) -> tuple[int, int, int]:
    """What versions of an API are sorted by: alpha before beta before general; what is no version comes first.

    Source: kubernetes/apimachinery:pkg/version/helpers.go (CompareKubeAwareVersionStrings).
    """
    match = _VERSION.fullmatch(version)
    if match is None:
        return (-1, 0, 0)
    return (_STEPS.index(match[2] or ""), int(match[1]), int(match[3] or 0))
