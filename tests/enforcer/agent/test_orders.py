"""Orders: what was written is read again, and what is no order is refused by its field's name."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from enforcer.agent.live_limits import WantedLimit
from enforcer.agent.orders import ENTRIES_MAX, ORDERS_BYTES_MAX, Orders, orders_text, parse_orders
from fleet.errors import Corrupt
from fleet.settings.agent import GiveWayManner
from fleet.units import MIB
from tests.enforcer.agent.nodes import CARD, key_of

ORDERS = Orders(
    issued_at=datetime(2026, 3, 4, 12, tzinfo=UTC),
    expires_at=datetime(2026, 3, 4, 13, tzinfo=UTC),
    give_way=GiveWayManner.STRICT,
    limits=(WantedLimit(container=key_of(1), card=CARD, framebuffer_bytes=4000 * MIB),),
    paused=(key_of(2),),
)


def test_orders_come_back_as_they_were_written() -> None:
    assert parse_orders(orders_text(ORDERS)) == ORDERS
    bare = Orders(issued_at=ORDERS.issued_at, expires_at=ORDERS.expires_at)
    assert parse_orders(orders_text(bare)) == bare


def changed(**fields: Any) -> str:
    content = json.loads(orders_text(ORDERS))
    return json.dumps({**content, **fields})


def limit(**fields: Any) -> list[Any]:
    return [{**json.loads(orders_text(ORDERS))["limits"][0], **fields}]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[]", "named fields"),
        (changed(schema="gputide.orders/v2"), "gputide.orders/v1"),
        (changed(issued_at="yesterday"), "issued_at"),
        (changed(issued_at=1772625600), "issued_at"),
        (changed(issued_at="2026-03-04T12:00:00"), "issued_at"),
        (changed(expires_at="2026-03-04T12:00:00Z"), "not after issued_at"),
        (changed(give_way="gladly"), "'off', 'pressure' or 'strict'"),
        (changed(limits={}), "limits={}: expected a list"),
        (changed(limits=[1]), "limits.0=1: expected a table of named fields"),
        (changed(limits=limit(framebuffer_bytes=0)), "framebuffer_bytes=0: expected a multiple"),
        (changed(limits=limit(framebuffer_bytes=-MIB)), "framebuffer_bytes"),
        (changed(limits=limit(framebuffer_bytes=MIB + 1)), "multiple of 1048576"),
        (changed(limits=limit(framebuffer_bytes=2**60)), "below 2\\^44"),
        (changed(limits=limit(framebuffer_bytes=True)), "framebuffer_bytes=true: expected a whole number"),
        (changed(limits=limit(framebuffer_bytes="4000")), "framebuffer_bytes='4000': expected a whole number"),
        (changed(limits=limit(card="GPU-../../etc")), "card='GPU-../../etc': expected text that matches"),
        (changed(limits=limit(pod_uid="../../root")), "pod_uid"),
        (changed(limits=limit(container="a/b")), "container"),
        (changed(paused=[{"pod_uid": key_of(1).pod_uid}]), "container: is missing"),
        (changed(paused=[{"pod_uid": key_of(1).pod_uid, "container": "a"}] * (ENTRIES_MAX + 1)), str(ENTRIES_MAX)),
        (" " * (ORDERS_BYTES_MAX + 1), str(ORDERS_BYTES_MAX)),
    ],
)
def test_what_is_no_order_is_refused(text: str, said: str) -> None:
    with pytest.raises(Corrupt, match=said):
        parse_orders(text)
