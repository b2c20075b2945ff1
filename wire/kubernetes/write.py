"""Changes a cluster through the Kubernetes API: only the enforcer may import this, and import-linter checks it.

A request that changes something is sent once: an answer that is lost is no reason to send it again.

Source: kubernetes/website:content/en/docs/reference/using-api/api-concepts.md (patch, dry run, field validation).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from wire.http_client import Request
from wire.kubernetes.read import OBJECT_BYTES_MAX, KubernetesApi, decoded
from wire.kubernetes.refusals import Deed

FIELD_MANAGER = "gputide"
"""Under this name the server keeps which fields were written by us."""
JSON_PATCH = "application/json-patch+json"

_ANSWER_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A request that changes something.

    Attributes:
        deed: what it does, for roles and messages.
        path: path, quoted.
        method: HTTP method: POST creates, PUT and PATCH change.
        body: JSON.
        query: what follows the question mark.
        content_type: what the body is.
    """

    deed: Deed
    path: str
    method: str
    body: object
    query: Mapping[str, str] | None = None
    content_type: str = "application/json"


class WritingApi(KubernetesApi):
    """A `KubernetesApi` that changes objects too."""

    def send(self, call: Call) -> dict[str, Any] | None:
        """Makes a change.

        Returns:
            The object that was answered; None where there is nothing at this path (404).

        Raises:
            Misconfigured: credentials or a right are missing.
            Refused: the server will not do it (`Conflict` where it depends on another version).
            Unavailable: the server can't be reached, or not now.
        """
        asked = Request(
            path=call.path,
            query=call.query,
            seconds_max=_ANSWER_SECONDS,
            method=call.method,
            body=json.dumps(call.body).encode(),
            content_type=call.content_type,
        )
        body = self.exchange(call.deed, asked, OBJECT_BYTES_MAX)
        return None if body is None else decoded(body, call.deed)
