"""A proxy is believed from its own address, and only what can be a name."""

from __future__ import annotations

import pytest

from dashboards.access.proxy import TrustedProxy
from dashboards.access.sessions import Identity
from fleet.errors import Refused

PROXY = TrustedProxy(("10.1.0.0/16", "::1/128"), user_header="X-User", groups_header="X-Groups")
MEI = {"X-User": "mei", "X-Groups": "gpu, ops,"}


@pytest.mark.parametrize("peer", ["10.1.2.3", "::1", "::ffff:10.1.2.3"])
def test_proxy_says_who_somebody_is(peer: str) -> None:
    assert PROXY.identity(MEI.get, peer) == Identity(name="mei", groups=frozenset({"gpu", "ops"}))


@pytest.mark.parametrize("peer", ["10.2.0.1", "::2", "::ffff:10.2.0.1", "", "unix:", None, "fe80::1%eth0"])
def test_header_of_anybody_else_is_no_name(peer: str | None) -> None:
    assert PROXY.identity(MEI.get, peer) is None


def test_proxy_that_names_nobody_says_nothing() -> None:
    assert PROXY.identity({"X-Groups": "gpu"}.get, "::1") is None
    assert PROXY.identity({"X-User": "  "}.get, "::1") is None


@pytest.mark.parametrize("name", ["mei,admin", "me\x07i", "m" * 254, "mei\u202e"])
def test_name_that_can_be_none_is_refused(name: str) -> None:
    with pytest.raises(Refused, match="cannot believe X-User"):
        PROXY.identity({"X-User": name}.get, "::1")
