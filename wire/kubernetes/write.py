"""Changes a cluster through the Kubernetes API: only the enforcer may import this, and import-linter checks it.

A request that changes something is sent once: an answer that is lost is no reason to send it again.

Sources: kubernetes/website:content/en/docs/reference/using-api/api-concepts.md (patch, dry run, field validation),
content/en/docs/reference/access-authn-authz/authentication.md (impersonation, SelfSubjectReview).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fleet.errors import Refused, Unavailable
from wire.http_client import Request
from wire.kubernetes.read import OBJECT_BYTES_MAX, KubernetesApi, decoded
from wire.kubernetes.refusals import Deed

FIELD_MANAGER = "gputide"
"""Under this name the server keeps which fields were written by us."""
JSON_PATCH = "application/json-patch+json"

MERGE_PATCH = "application/merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"
"""Server-side apply; JSON is YAML too."""

_ANSWER_SECONDS = 60.0
_IMPERSONATE = "Impersonate-User"


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A request that changes something.

    Attributes:
        deed: what it does, for roles and messages.
        path: path, quoted.
        method: HTTP method: POST creates, PUT and PATCH change.
        impersonated: in whose name it is sent, by the right `impersonate`; None for our own.
    """

    deed: Deed
    path: str
    method: str
    body: object
    query: Mapping[str, str] | None = None
    content_type: str = "application/json"
    impersonated: str | None = None


class WritingApi(KubernetesApi):
    """A `KubernetesApi` that changes objects too."""

    def send(self, call: Call) -> dict[str, Any] | None:
        """Makes a change; returns the answered object, None where there is nothing at this path (404).

        Raises:
            Refused: the server will not do it (`Conflict` where it depends on another version).
        """
        asked = Request(
            path=call.path,
            query=call.query,
            seconds_max=_ANSWER_SECONDS,
            method=call.method,
            body=json.dumps(call.body).encode(),
            content_type=call.content_type,
            headers=None if call.impersonated is None else {_IMPERSONATE: _header_text(call.impersonated)},
        )
        body = self.exchange(call.deed, asked, OBJECT_BYTES_MAX)
        return None if body is None else decoded(body, call.deed)

    def user(self) -> str:
        """Whom the server takes us for.

        Raises:
            Unavailable: the server does not say.
        """
        deed = Deed(verb="create", resource="selfsubjectreviews.authentication.k8s.io")
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
        asked = Request(
            path="/apis/authentication.k8s.io/v1/selfsubjectreviews", method="POST", is_read=True,
            body=json.dumps(body).encode(), seconds_max=_ANSWER_SECONDS,
        )  # fmt: skip
        answer = self.exchange(deed, asked, OBJECT_BYTES_MAX)
        status = {} if answer is None else decoded(answer, deed).get("status") or {}
        name = (status.get("userInfo") or {}).get("username")
        if not isinstance(name, str) or not name:
            raise Unavailable(f"cannot {deed}: {self.server} does not say whom it takes us for (Kubernetes 1.28 does)")
        return name


def _header_text(name: str) -> str:
    """A name as a header may carry it.

    Raises:
        Refused: it has a letter that no header may carry.
    """
    if not name.isascii() or not name.isprintable():
        raise Refused(
            f"cannot act in the name of {name[:64]!r}: a name that Kubernetes impersonates is printable ASCII"
        )
    return name
