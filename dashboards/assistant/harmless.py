"""Makes an answer safe for an assistant to read: what others wrote is marked, cleaned and cut, and lists are cut.

People who deploy a pod choose its name, namespace and labels, and may write into them what an assistant would take for
an order. So every text of an answer counts as written by tenants, unless its key is one of `OWN_WORDS` and its value
looks like a word of ours; sentences of ours count as well, since they quote names. Pure. Called by
`dashboards.assistant.answers`.
"""

from __future__ import annotations

import json
import math
import re
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

LIST_MAX = 50
"""Items of any list; rows that a tool was asked for are at most as many."""
HOURS_MAX = 168
"""Numbers of a list without texts: one for each hour of a week."""
NAME_CHARS_MAX = 400
"""Characters of a text; `namespace/Kind/name` has at most 380 in Kubernetes."""
SENTENCE_CHARS_MAX = 1_000
DRAFT_CHARS_MAX = 8_000
ANSWER_BYTES_MAX = 60_000
"""Bytes of the content; beyond them the longest lists are halved until it fits."""

OWN_WORDS = frozenset(
    {
        "applied_at", "as_of", "at", "backend", "basis", "cause", "check", "code", "counter", "created_at", "currency",
        "expires_at", "history_since", "history_until", "id", "idle_since", "kind", "measured_by", "month", "newest_at",
        "phase", "plan_id", "preset", "priority", "recommendation", "risk", "risk_level", "rule", "schema",
        "shifted_at", "silent_since", "since", "standing", "state", "undone_at", "unit", "until", "workload_class",
    }
)  # fmt: skip
"""Keys whose values are codes, ids or times that gputide itself wrote."""
_OWN_VALUE = re.compile(r"[A-Za-z0-9_.:+-]{0,80}")
_KEY = re.compile(r"[a-z0-9_]{1,80}")
_SENTENCES = frozenset(
    {"change_of_mind", "detail", "error", "fault", "headline", "no_data", "reason", "refusal", "text", "title", "why"}
)
_DRAFTS = frozenset({"manifest", "proposal"})
_HARMFUL = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""Unicode categories of what a reader can't see, or what changes what they see: controls, formats, unassigned."""


class Harmless:
    """Content that is safe to hand out; mutable: collects what was marked and cut while it reads.

    Attributes:
        content: the same content, cleaned and cut.
        by_tenants: paths of texts that tenants wrote or that may quote them, such as `workloads[].workload`, sorted.
        left_out: items that were cut from lists, by path.
    """

    def __init__(self, content: Mapping[str, Any]) -> None:
        self._marked: set[str] = set()
        self.left_out: dict[str, int] = {}
        self.content: dict[str, Any] = self._read(content, "", "")
        while len(json.dumps(self.content)) > ANSWER_BYTES_MAX and self._halve():
            pass
        self.by_tenants = sorted(self._marked)

    def _read(self, value: Any, path: str, key: str) -> Any:
        if isinstance(value, Mapping):
            return {name: self._read(part, f"{path}.{name}".lstrip("."), name) for name, part in _named(value)}
        if isinstance(value, list | tuple):
            limit = HOURS_MAX if all(isinstance(item, int | float | None) for item in value) else LIST_MAX
            if len(value) > limit:
                self.left_out[path] = self.left_out.get(path, 0) + len(value) - limit
            return [self._read(item, f"{path}[]", key) for item in value[:limit]]
        if isinstance(value, str):
            if key not in OWN_WORDS or not _OWN_VALUE.fullmatch(value):
                self._marked.add(path)
            return cleaned(value, key)
        if isinstance(value, float) and not math.isfinite(value):
            return None
        return value

    def _halve(self) -> bool:
        """Halve the list that takes most room; False where no list is left to cut."""
        found = max(_lists(self.content, ""), key=lambda one: len(json.dumps(one[1])), default=None)
        if found is None:
            return False
        path, items = found
        kept = len(items) // 2
        self.left_out[path] = self.left_out.get(path, 0) + len(items) - kept
        del items[kept:]
        return True


def cleaned(text: str, key: str = "") -> str:
    """A text without characters that can't be seen or act on a screen, cut at the limit of its key.

    Args:
        key: of the object that holds it; drafts keep their line ends.
    """
    ends = "\n" if key in _DRAFTS else ""
    if not text.isprintable():
        text = "".join(
            letter if letter in ends or unicodedata.category(letter) not in _HARMFUL else "\ufffd" for letter in text
        )
    limit = DRAFT_CHARS_MAX if key in _DRAFTS else SENTENCE_CHARS_MAX if key in _SENTENCES else NAME_CHARS_MAX
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text) - limit} more characters left out)"


def _named(value: Mapping[str, Any]) -> Sequence[tuple[str, Any]]:
    """Pairs of an object; its keys are ours."""
    foreign = next((name for name in value if not _KEY.fullmatch(name)), None)
    if foreign is not None:
        raise TypeError(f"a key of an answer is no name of ours: {foreign[:80]!r}")
    return list(value.items())


def _lists(value: Any, path: str) -> list[tuple[str, list[Any]]]:
    """Lists of more than one item that stand in objects alone, with their paths."""
    if not isinstance(value, dict):
        return []
    found: list[tuple[str, list[Any]]] = []
    for name, part in value.items():
        inner = f"{path}.{name}".lstrip(".")
        found += [(inner, part)] if isinstance(part, list) and len(part) > 1 else _lists(part, inner)
    return found
