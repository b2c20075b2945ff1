"""One call to a forge's API: signed, bounded, its errors known by its status.

The token goes to the address of the settings and nowhere else: a redirect is an answer (`wire.http_client`), plain
http is for this machine alone, and an address of a metadata service is refused. What comes back is looked at field by
field, for a forge is another party.

Sources: docs.github.com/rest, docs.gitlab.com/api/rest, RFC 9110.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from fleet.addresses import is_loopback
from fleet.errors import Corrupt, Misconfigured, Refused, Unavailable
from fleet.json_text import json_value
from fleet.settings.forge import ForgeSettings
from wire.credentials import TokenFile
from wire.http_answer import TooLarge, read_body, unavailable
from wire.http_client import HttpClient, Request, endpoint_of
from wire.own_network import is_metadata
from wire.tls import Tls

ANSWER_BYTES_MAX = 16 * 2**20
"""Longest answer that is read: a tree of some 60,000 files."""
FILE_BYTES_MAX = 2**20
"""Longest manifest that is read."""
PAGES_MAX = 50
"""Most pages of a list that are read."""
_SECONDS_MAX = 30.0
_SAID_MAX = 300


def is_plain_path(path: str) -> bool:
    """Whether a path of a repository stays within it, on every system, and in no folder that Git keeps."""
    parts = path.split("/")
    return (
        path.isprintable()
        and "\\" not in path
        and ":" not in path
        and all(part not in ("", ".", "..") and part.lower() != ".git" for part in parts)
    )


class Rest:
    """A forge's API.

    Args:
        headers: of every request, beside the token.

    Raises:
        Misconfigured: there is no forge, or its address can't be used.
    """

    def __init__(self, settings: ForgeSettings, headers: Mapping[str, str]) -> None:
        if settings.kind is None or settings.token_file is None:
            raise Misconfigured("cannot ask a forge: none is set; set forge.kind, forge.repository, forge.token_file")
        # An authority that the operator trusts signed what it is shown, so these two settings alone decide it.
        endpoint = endpoint_of(
            settings.address, setting="forge.url", tls=Tls(authority_file=settings.ca_file),
            credentials=TokenFile(settings.token_file), sign_in="put a token into forge.token_file",
        )  # fmt: skip
        if is_metadata(endpoint.host):
            raise Misconfigured(f"cannot use forge.url={settings.address}: it is a machine's metadata service")
        if endpoint.tls is None and not is_loopback(endpoint.host):
            raise Misconfigured(f"cannot use forge.url={settings.address}: http would show the token; use https")
        self._client = HttpClient(endpoint, "gputide")
        self._headers = dict(headers)
        self._name = f"{settings.kind.value} at {endpoint.server}"

    def get(self, *path: str, query: Mapping[str, str] | None = None) -> Any:
        """A value.

        Args:
            *path: parts of the path, each quoted as one.
        """
        return self._call("GET", path, query=query)

    def find(self, *path: str, query: Mapping[str, str] | None = None) -> Any:
        """As `get`; None where there is no such thing (404)."""
        return self._call("GET", path, query=query, is_optional=True)

    def send(self, method: str, *path: str, content: Mapping[str, Any]) -> Any:
        """What comes of a change.

        Raises:
            Refused: what is there is not as it was read (409, 422, or 400 as GitLab says it).
        """
        return self._call(method, path, content=content)

    def _call(
        self,
        method: str,
        path: tuple[str, ...],
        *,
        query: Mapping[str, str] | None = None,
        content: Mapping[str, Any] | None = None,
        is_optional: bool = False,
    ) -> Any:
        where = "".join(f"/{quote(part, safe='')}" for part in path)
        body = None if content is None else json.dumps(content, ensure_ascii=False).encode()
        asked = Request(
            path=where, seconds_max=_SECONDS_MAX, query=query, method=method, body=body, headers=self._headers
        )  # fmt: skip
        with self._client.ask(asked) as answer:
            try:
                found = bytes(read_body(answer, ANSWER_BYTES_MAX, is_cut=answer.status >= 300))
            except TooLarge as exc:
                raise Corrupt(f"cannot read {where} of {self._name}: more than {ANSWER_BYTES_MAX} bytes") from exc
        status, what = answer.status, f"cannot {method} {where} of {self._name}"
        if 200 <= status < 300:
            try:
                return json_value(found)
            except ValueError as exc:
                raise Corrupt(f"{what}: the answer is no JSON: is forge.url the address of the API?") from exc
        if status == 404 and is_optional:
            return None
        said = " ".join(found[:_SAID_MAX].decode(errors="replace").split())
        if 300 <= status < 400:
            raise Misconfigured(
                f"{what}: it answered {status}, and redirects are not followed: name the place itself in forge.url and "
                "forge.repository"
            )
        if status in (400, 409, 422):
            raise Refused(f"{what}: {status}: {said}")
        if status in (401, 403, 404):
            raise Misconfigured(f"{what}: {status}: {said}; is forge.token_file a token with the rights, for this one?")
        raise unavailable(f"{what}: {status}: {said}", answer.retry_after)


def field(value: object, *names: str, kind: type = str) -> Any:
    """What stands at a place of an answer.

    Raises:
        Corrupt: nothing of that kind.
    """
    for name in names:
        value = value.get(name) if isinstance(value, Mapping) else None
    if not isinstance(value, kind) or isinstance(value, bool) is not (kind is bool):
        raise Corrupt(f"cannot read the forge's answer: no {kind.__name__} at {'.'.join(names)}")
    return value


def rows(value: object) -> list[Any]:
    """A list of an answer.

    Raises:
        Corrupt: it is none.
    """
    if not isinstance(value, list):
        raise Corrupt("cannot read the forge's answer: expected a list")
    return value


def content_of(blob: object) -> bytes:
    """A file's bytes out of an answer that holds them in base64.

    Raises:
        Corrupt: they are not there, or more than `FILE_BYTES_MAX`.
    """
    try:
        found = base64.b64decode(field(blob, "content"), validate=False)
    except (binascii.Error, ValueError) as exc:
        raise Corrupt("cannot read the forge's answer: a file's content is no base64") from exc
    if len(found) > FILE_BYTES_MAX:
        raise Corrupt(f"cannot read a file of {len(found)} bytes: larger than {FILE_BYTES_MAX}")
    return found


def too_many(what: str) -> Unavailable:
    """The error of a list with too many pages."""
    return Unavailable(f"cannot read all {what}: more than {PAGES_MAX} pages; narrow forge.path")
