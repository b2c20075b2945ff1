"""A node's view as one line of JSON: what an agent reports to relief, and how relief reads it.

Format `gputide.node-view/v1`: an object with `schema`, `node`, `at_seconds`, `trouble` (a digest of the cards that are
in trouble), `cards` (the fields of `CardView`) and `slices` (the fields of `SliceView`). What nobody knows is null. An
answer from an agent's address is believed only as far as this goes: sizes, names and ratios are checked, and every deed
is held against the API server first.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from enforcer.agent.node_view import CardView, NodeView, SliceView
from fleet.errors import Corrupt
from fleet.inventory import Priority

VIEW_SCHEMA = "gputide.node-view/v1"
VIEW_BYTES_MAX = 4 << 20
"""Longest view that is read; a node of 16 cards and 1,000 slices has less than half a MiB."""
CARDS_MAX = 64
SLICES_MAX = 4096
_BYTES_MAX = 1 << 44
_SECONDS_MAX = 1e11
_NAME = re.compile(r"[A-Za-z0-9](?:[-._:/A-Za-z0-9]{0,251}[A-Za-z0-9])?", re.ASCII)
_UID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{32}", re.ASCII)
_PRIORITIES: Mapping[str, Priority] = {word.value: word for word in Priority}


@dataclass(frozen=True, slots=True, kw_only=True)
class ToldView:
    """What one agent reported.

    Attributes:
        trouble: digest of the cards that it calls troubled.
    """

    node: str
    view: NodeView
    trouble: str


def view_text(told: ToldView) -> bytes:
    """A view as the format says."""
    view = told.view
    content = {
        "schema": VIEW_SCHEMA,
        "node": told.node,
        "at_seconds": round(view.at_seconds, 3),
        "trouble": told.trouble,
        "cards": [asdict(card) for card in view.cards],
        "slices": [asdict(part) for part in view.slices],
    }
    return json.dumps(content, separators=(",", ":")).encode()


def parse_view(text: bytes) -> ToldView:
    """Read a view.

    Raises:
        Corrupt: not the format; the message names the field and what was expected.
    """
    if len(text) > VIEW_BYTES_MAX:
        raise Corrupt(f"cannot read a node's view of {len(text)} bytes: expected at most {VIEW_BYTES_MAX}")
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise Corrupt(f"cannot read a node's view: no JSON ({str(exc)[:120]})") from exc
    if not isinstance(content, Mapping) or content.get("schema") != VIEW_SCHEMA:
        raise Corrupt(f"cannot read a node's view: expected an object with schema {VIEW_SCHEMA}")
    at_seconds = _number(content.get("at_seconds"))
    if at_seconds is None or not 0 < at_seconds < _SECONDS_MAX:
        raise Corrupt(
            f"cannot read a node's view: at_seconds {str(content.get('at_seconds'))[:40]!r}: expected Unix seconds"
        )
    return ToldView(
        node=_name(content, "node"),
        trouble=str(content.get("trouble"))[:64],
        view=NodeView(
            at_seconds=at_seconds,
            cards=tuple(_card(entry) for entry in _list(content, "cards", CARDS_MAX)),
            slices=tuple(_slice(entry) for entry in _list(content, "slices", SLICES_MAX)),
        ),
    )


def _card(entry: Mapping[str, Any]) -> CardView:
    size = _bytes(entry, "framebuffer_bytes")
    if size is None:
        raise Corrupt("cannot read a node's view: framebuffer_bytes of a card is null")
    return CardView(
        card=_name(entry, "card"),
        framebuffer_bytes=size,
        framebuffer_free_bytes=_bytes(entry, "framebuffer_free_bytes"),
        duty_cycle_ratio=_ratio(entry, "duty_cycle_ratio"),
    )


def _slice(entry: Mapping[str, Any]) -> SliceView:
    uid, word = entry.get("pod_uid"), entry.get("priority")
    if uid is not None and (not isinstance(uid, str) or _UID.fullmatch(uid) is None):
        raise Corrupt(f"cannot read a node's view: pod_uid {str(uid)[:80]!r}: expected {_UID.pattern}")
    if not isinstance(word, str) or word not in _PRIORITIES:
        raise Corrupt(f"cannot read a node's view: priority {str(word)[:80]!r}: expected {', '.join(_PRIORITIES)}")
    return SliceView(
        namespace=_name(entry, "namespace"),
        pod=_name(entry, "pod"),
        pod_uid=uid,
        container=_name(entry, "container"),
        card=_name(entry, "card"),
        priority=_PRIORITIES[word],
        framebuffer_used_bytes=_bytes(entry, "framebuffer_used_bytes"),
        framebuffer_granted_bytes=_bytes(entry, "framebuffer_granted_bytes") or 0,
        framebuffer_limit_bytes=_bytes(entry, "framebuffer_limit_bytes"),
        duty_cycle_ratio=_ratio(entry, "duty_cycle_ratio"),
    )


def _list(content: Mapping[str, Any], field: str, most: int) -> list[Mapping[str, Any]]:
    found = content.get(field)
    if not isinstance(found, list) or not all(isinstance(entry, Mapping) for entry in found):
        raise Corrupt(f"cannot read a node's view: {field}: expected a list of objects")
    if len(found) > most:
        raise Corrupt(f"cannot read a node's view: {field} has {len(found)} entries, at most {most} are taken")
    return found


def _name(entry: Mapping[str, Any], field: str) -> str:
    found = entry.get(field)
    if not isinstance(found, str) or _NAME.fullmatch(found) is None:
        raise Corrupt(f"cannot read a node's view: {field} {str(found)[:80]!r}: expected {_NAME.pattern}")
    return found


def _bytes(entry: Mapping[str, Any], field: str) -> int | None:
    found = entry.get(field)
    if found is None:
        return None
    if not isinstance(found, int) or isinstance(found, bool) or not 0 <= found < _BYTES_MAX:
        raise Corrupt(f"cannot read a node's view: {field} {str(found)[:40]!r}: expected 0 to {_BYTES_MAX}")
    return found


def _ratio(entry: Mapping[str, Any], field: str) -> float | None:
    found = entry.get(field)
    if found is None:
        return None
    ratio = _number(found)
    if ratio is None or not 0.0 <= ratio <= 1.0 + 1e-6:
        raise Corrupt(f"cannot read a node's view: {field} {str(found)[:40]!r}: expected 0 to 1")
    return min(1.0, ratio)


def _number(value: Any) -> float | None:
    if not isinstance(value, (int, float)) or isinstance(value, bool) or abs(value) > _BYTES_MAX:
        return None
    return float(value) if math.isfinite(value) else None
