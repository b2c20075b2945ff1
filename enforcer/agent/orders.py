"""What the control plane wants of one node: a signed-off document with a date after which it no longer counts.

It stands in a ConfigMap of gputide's own namespace, one key per node, so that no tenant can write it; the agent keeps
the last one it read, for the time when the API server is away. Format (`gputide.orders/v1`): JSON with `schema`,
`issued_at`, `expires_at` (UTC ISO 8601), `give_way` (`off`, `pressure` or `strict`), `limits` (list of `pod_uid`,
`container`, `card`, `framebuffer_bytes`) and `paused` (list of `pod_uid`, `container`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from enforcer.agent.live_limits import WantedLimit
from enforcer.agent.node_view import ContainerKey
from fleet.errors import Corrupt, Misconfigured
from fleet.settings.agent import GiveWayManner
from fleet.units import MIB, format_time, parse_time

ORDERS_SCHEMA = "gputide.orders/v1"
ORDERS_BYTES_MAX = 1 << 20
"""Size of a whole ConfigMap."""
ENTRIES_MAX = 4096
"""Limits, and pauses, of one node; a kubelet runs some hundred pods."""

_UID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{32}", re.ASCII)
_CONTAINER = re.compile(r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?", re.ASCII)
_CARD = re.compile(r"(?:GPU|MIG)-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Orders:
    """What is wanted of a node.

    Attributes:
        give_way: when low priority sleeps; None for what the node's own settings say.
        paused: containers that sleep until an order says otherwise.
    """

    issued_at: datetime
    expires_at: datetime
    give_way: GiveWayManner | None = None
    limits: tuple[WantedLimit, ...] = ()
    paused: tuple[ContainerKey, ...] = ()


def parse_orders(text: str) -> Orders:
    """Read orders.

    Raises:
        Corrupt: not the format; the message names the field and what was expected.
    """
    size = len(text.encode(errors="replace"))
    if size > ORDERS_BYTES_MAX:
        raise Corrupt(f"cannot read orders of {size} bytes: expected at most {ORDERS_BYTES_MAX}")
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise Corrupt(f"cannot read orders: no JSON ({exc})") from exc
    if not isinstance(content, Mapping) or content.get("schema") != ORDERS_SCHEMA:
        raise Corrupt(f"cannot read orders: expected an object with schema {ORDERS_SCHEMA}")
    issued_at, expires_at = _time(content, "issued_at"), _time(content, "expires_at")
    if expires_at <= issued_at:
        raise Corrupt(f"cannot read orders: expires_at {content['expires_at']} is not after issued_at")
    manner = content.get("give_way")
    if manner is not None and manner not in list(GiveWayManner):
        raise Corrupt(f"cannot read orders: give_way {str(manner)[:80]!r}: expected {', '.join(GiveWayManner)}")
    return Orders(
        issued_at=issued_at,
        expires_at=expires_at,
        give_way=None if manner is None else GiveWayManner(manner),
        limits=tuple(_limit(entry) for entry in _list(content, "limits")),
        paused=tuple(_container(entry) for entry in _list(content, "paused")),
    )


def orders_text(orders: Orders) -> str:
    """Orders as the format says, the same text for the same orders."""
    content: dict[str, Any] = {
        "schema": ORDERS_SCHEMA,
        "issued_at": format_time(orders.issued_at),
        "expires_at": format_time(orders.expires_at),
        "limits": [
            {**asdict(entry.container), "card": entry.card, "framebuffer_bytes": entry.framebuffer_bytes}
            for entry in orders.limits
        ],
        "paused": [asdict(entry) for entry in orders.paused],
    }
    if orders.give_way is not None:
        content["give_way"] = orders.give_way.value
    return json.dumps(content, sort_keys=True, separators=(",", ":"))


def _list(content: Mapping[str, Any], field: str) -> list[Mapping[str, Any]]:
    found = content.get(field, [])
    if not isinstance(found, list) or not all(isinstance(entry, Mapping) for entry in found):
        raise Corrupt(f"cannot read orders: {field}: expected a list of objects")
    if len(found) > ENTRIES_MAX:
        raise Corrupt(f"cannot read orders: {field} has {len(found)} entries, at most {ENTRIES_MAX} are taken")
    return found


def _limit(entry: Mapping[str, Any]) -> WantedLimit:
    amount = entry.get("framebuffer_bytes")
    if not isinstance(amount, int) or isinstance(amount, bool) or not 0 < amount < 2**44 or amount % MIB:
        raise Corrupt(
            f"cannot read orders: framebuffer_bytes {repr(amount)[:80]}: expected a multiple of {MIB} below 2^44"
        )
    return WantedLimit(container=_container(entry), card=_text(entry, "card", _CARD), framebuffer_bytes=amount)


def _container(entry: Mapping[str, Any]) -> ContainerKey:
    return ContainerKey(pod_uid=_text(entry, "pod_uid", _UID), container=_text(entry, "container", _CONTAINER))


def _text(entry: Mapping[str, Any], field: str, pattern: re.Pattern[str]) -> str:
    found = entry.get(field)
    if not isinstance(found, str) or pattern.fullmatch(found) is None:
        raise Corrupt(f"cannot read orders: {field} {str(found)[:80]!r}: expected {pattern.pattern}")
    return found


def _time(content: Mapping[str, Any], field: str) -> datetime:
    try:
        return parse_time(str(content[field]))
    except (KeyError, Misconfigured) as exc:
        raise Corrupt(f"cannot read orders: {field} is no time: {str(content.get(field))[:80]!r}") from exc
