"""What the control plane wants of one node: a signed-off document with a date after which it no longer counts.

It stands in a ConfigMap of gputide's own namespace, one key per node, so that no tenant can write it; the agent keeps
the last one it read, for the time when the API server is away. Format (`gputide.orders/v1`): JSON with `schema`,
`issued_at`, `expires_at` (UTC ISO 8601), `give_way` (`off`, `pressure` or `strict`), `limits` (list of `pod_uid`,
`container`, `card`, `framebuffer_bytes`) and `paused` (list of `pod_uid`, `container`).
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, AwareDatetime, Field, TypeAdapter, ValidationError

from enforcer.agent.live_limits import WantedLimit
from enforcer.agent.node_view import ContainerKey, at_most
from fleet.errors import Corrupt
from fleet.settings.agent import GiveWayManner
from fleet.settings.faults import fault_words
from fleet.units import MIB, format_time

ORDERS_BYTES_MAX = 1 << 20
"""Size of a whole ConfigMap."""
ENTRIES_MAX = 4096
"""Limits, and pauses, of one node; a kubelet runs some hundred pods."""


def _whole_mib(amount: int) -> int:
    if amount % MIB or not 0 < amount < 2**44:
        raise ValueError(f"expected a multiple of {MIB} below 2^44")
    return amount


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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Limit(ContainerKey):
    card: Annotated[str, Field(pattern=r"^(GPU|MIG)-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")]
    framebuffer_bytes: Annotated[int, AfterValidator(_whole_mib)]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Document:
    schema: Literal["gputide.orders/v1"]
    issued_at: AwareDatetime
    expires_at: AwareDatetime
    give_way: GiveWayManner | None = None
    limits: Annotated[tuple[_Limit, ...], AfterValidator(at_most(ENTRIES_MAX))] = ()
    paused: Annotated[tuple[ContainerKey, ...], AfterValidator(at_most(ENTRIES_MAX))] = ()


_DOCUMENT = TypeAdapter(_Document)


def parse_orders(text: str) -> Orders:
    """Read orders.

    Raises:
        Corrupt: not the format; the message names the field and what was expected.
    """
    size = len(text.encode(errors="replace"))
    if size > ORDERS_BYTES_MAX:
        raise Corrupt(f"cannot read orders of {size} bytes: expected at most {ORDERS_BYTES_MAX}")
    try:
        found = _DOCUMENT.validate_json(text, strict=True)
    except ValidationError as exc:
        raise Corrupt(f"cannot read orders: {fault_words(exc)}") from exc
    if found.expires_at <= found.issued_at:
        raise Corrupt(f"cannot read orders: expires_at {found.expires_at} is not after issued_at")
    return Orders(
        issued_at=found.issued_at.astimezone(UTC),
        expires_at=found.expires_at.astimezone(UTC),
        give_way=found.give_way,
        limits=tuple(
            WantedLimit(
                container=ContainerKey(pod_uid=one.pod_uid, container=one.container),
                card=one.card,
                framebuffer_bytes=one.framebuffer_bytes,
            )
            for one in found.limits
        ),
        paused=found.paused,
    )


def orders_text(orders: Orders) -> str:
    """Orders as the format says, the same text for the same orders."""
    content: dict[str, Any] = {
        "schema": "gputide.orders/v1",
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
