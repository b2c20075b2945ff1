"""An administrator's hand on the API server: makes, changes and deletes objects, by plain HTTP."""

from __future__ import annotations

import json
import ssl
import threading
import urllib.error
import urllib.request
from collections.abc import Sequence
from contextlib import suppress
from email.message import Message
from http.client import BadStatusLine, HTTPSConnection
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

Manifest = dict[str, Any]


_SECONDS_MAX = 30


class Api:
    """Speaks to an API server by a kubeconfig's token.

    What is read goes over one connection per thread: judges look many times a second, and a handshake costs the server
    more than the answer.

    Args:
        url: its address.
        ca: what its certificate is checked by.
        kubeconfig: path.
    """

    def __init__(self, url: str, ca: Path, kubeconfig: Path) -> None:
        self._url = url
        self._context = ssl.create_default_context(cafile=str(ca))
        self._kept = threading.local()
        self._token = json.loads(kubeconfig.read_text(encoding="utf-8"))["users"][0]["user"]["token"]

    def create(self, path: str, manifest: Manifest) -> Manifest:
        """Make an object in a list's path; one that is there already is no matter."""
        try:
            return self.ask("POST", path, manifest)
        except urllib.error.HTTPError as refused:
            if refused.code != 409:
                raise
            return manifest

    def apply(self, manifest: Manifest, query: str = "") -> Manifest:
        """Make an object of any of the kinds that the tests make, where its own group, kind and namespace say."""
        group, kind = manifest["apiVersion"], manifest["kind"]
        namespace = manifest["metadata"].get("namespace")
        plural = f"{kind.lower().removesuffix('y')}ies" if kind.endswith("Policy") else f"{kind.lower()}s"
        prefix = f"/apis/{group}" if "/" in group else f"/api/{group}"
        return self.create(f"{prefix}{f'/namespaces/{namespace}' if namespace else ''}/{plural}{query}", manifest)

    def patch(self, path: str, change: Manifest) -> Manifest:
        """Merge a change into an object."""
        return self.ask("PATCH", path, change, content_type="application/merge-patch+json")

    def delete(self, path: str) -> None:
        """Delete an object at once."""
        self.ask("DELETE", path, {"gracePeriodSeconds": 0})

    def has(self, path: str) -> bool:
        """Say whether there is an object at this path."""
        try:
            self.ask("GET", path)
        except urllib.error.HTTPError as refused:
            if refused.code != 404:
                raise
            return False
        return True

    def status(self, method: str, path: str) -> int:
        """Return the status of the answer to an empty request of any kind."""
        content_type = "application/merge-patch+json" if method == "PATCH" else "application/json"
        body: Manifest | None = None if method in ("GET", "DELETE") else {}
        try:
            self.ask(method, path, body, content_type=content_type)
        except urllib.error.HTTPError as refused:
            return refused.code
        return 200

    def pod(self, namespace: str, name: str, **spec: Any) -> Manifest:
        """Make a pod that asks for one card."""
        metadata = {"name": name, "annotations": spec.pop("annotations", {}), "labels": spec.pop("labels", {})}
        limits = {"nvidia.com/gpu": "1"}
        container = {"name": "main", "image": "registry/none:1", "resources": {"limits": limits, "requests": limits}}
        return self.create(
            f"/api/v1/namespaces/{namespace}/pods",
            {
                "metadata": metadata,
                "spec": {"containers": [container], "tolerations": [{"operator": "Exists"}], **spec},
            },
        )

    def node(self, name: str, *, cards: int = 1, **metadata: Any) -> None:
        """Make a node that kwok plays, with devices to grant."""
        annotations = {"kwok.x-k8s.io/node": "fake", **metadata.pop("annotations", {})}
        self.create("/api/v1/nodes", {"metadata": {"name": name, "annotations": annotations, **metadata}})
        offered = {"nvidia.com/gpu": str(cards), "cpu": "64", "memory": "512Gi", "pods": "110"}
        status = {"status": {"capacity": offered, "allocatable": offered}}
        self.patch(f"/api/v1/nodes/{name}/status", status)

    def token(self, namespace: str, account: str) -> str:
        """Return a token of a service account, good for a day: a run of many cases takes hours."""
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
        made = self.ask("POST", path, {"spec": {"expirationSeconds": 86_400}})
        return str(made["status"]["token"])

    def ask(
        self,
        method: str,
        path: str,
        body: Manifest | Sequence[Manifest] | None = None,
        *,
        content_type: str = "application/json",
        accept: str = "application/json",
        token: str | None = None,
    ) -> Manifest:
        """Ask anything, as whoever holds a token, by default the administrator."""
        bearer = f"Bearer {self._token if token is None else token}"
        headers = {"Authorization": bearer, "Content-Type": content_type, "Accept": accept}
        if method == "GET":
            return self._read(path, headers)
        request = urllib.request.Request(
            self._url + path, method=method, data=None if body is None else json.dumps(body).encode(), headers=headers
        )
        try:
            with urllib.request.urlopen(request, context=self._context, timeout=_SECONDS_MAX) as answer:
                found: Manifest = json.load(answer)
                return found
        except urllib.error.HTTPError as refused:
            raise _refusal(request.full_url, refused.code, refused.reason, refused.headers, refused.read()) from None

    def _read(self, path: str, headers: dict[str, str]) -> Manifest:
        """Read over this thread's connection; one that the server closed meanwhile is opened once more."""
        kept: HTTPSConnection | None = getattr(self._kept, "connection", None)
        if kept is not None:
            with suppress(ConnectionError, BadStatusLine):
                return self._answer(kept, path, headers)
        fresh = HTTPSConnection(urlsplit(self._url).netloc, context=self._context, timeout=_SECONDS_MAX)
        return self._answer(fresh, path, headers)

    def _answer(self, connection: HTTPSConnection, path: str, headers: dict[str, str]) -> Manifest:
        """The answer over a connection, which is kept where it can serve again."""
        self._kept.connection = None
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        content = answer.read()
        if not answer.will_close:
            self._kept.connection = connection
        if answer.status >= 400:
            raise _refusal(self._url + path, answer.status, answer.reason, answer.headers, content)
        found: Manifest = json.loads(content)
        return found


def _refusal(url: str, status: int, reason: str, headers: Message, content: bytes) -> urllib.error.HTTPError:
    """An error that says what the server says, and can be read by who catches it."""
    words = f"{reason}: {content[:500].decode(errors='replace')}"
    return urllib.error.HTTPError(url, status, words, headers, BytesIO(content))
