"""What a forge answers, and manifests of a repository that are edited."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

from enforcer.emit.manifest_edit import desired, documents, edited, holds
from enforcer.forge import forge_github, forge_gitlab
from enforcer.forge.rest import content_of, is_plain_path
from fleet.errors import Corrupt
from fleet.json_text import json_value
from tests.enforcer.forge.test_pull_request import RANKER, a_patch
from tests.fuzz.parsers import Parser, text_of

_GITHUB = {
    "number": 7, "html_url": "https://git.example.org/7", "state": "closed", "merged_at": "2026-01-12T08:00:00Z",
    "title": "t", "body": "b",
}  # fmt: skip
_GITLAB = {"iid": 7, "web_url": "https://git.example.org/7", "state": "merged", "title": "t", "description": "b"}
_PATCH = a_patch()


def _answer(read: Callable[[object], Any]) -> Callable[[bytes], object]:
    def parsed(data: bytes) -> object:
        try:
            found = json_value(data)
        except ValueError as exc:
            raise Corrupt(str(exc)) from exc
        return read(found)

    return parsed


def _manifest(data: bytes) -> object:
    found = documents(data)
    texts = []
    for number, (_, value) in enumerate(found):
        if holds(value, _PATCH):
            wanted, conflicts = desired(value, _PATCH)
            # An edit that is given is the one that was asked for: it reads itself again.
            texts.append((edited(data.decode(), number, wanted), conflicts))
    return texts


def forge_parsers() -> tuple[Parser, ...]:
    """Of a forge and its files."""
    blob = {"content": base64.encodebytes(RANKER.encode()).decode()}
    return (
        Parser(
            name="forge-github", seeds=(json.dumps(_GITHUB).encode(),), read=_answer(forge_github.request_of)
        ),
        Parser(name="forge-gitlab", seeds=(json.dumps(_GITLAB).encode(),), read=_answer(forge_gitlab.request_of)),
        Parser(name="forge-blob", seeds=(json.dumps(blob).encode(),), read=_answer(content_of)),
        Parser(name="forge-path", seeds=(b"clusters/a/b.yaml",), read=lambda data: is_plain_path(text_of(data))),
        Parser(name="forge-manifest", seeds=(RANKER.encode(),), read=_manifest, cost=20),
    )  # fmt: skip
