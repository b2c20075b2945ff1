"""Addresses as people write them."""

import pytest

from fleet.addresses import host_and_port, is_loopback
from fleet.errors import Misconfigured


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [("127.0.0.1:9009", "127.0.0.1", 9009), ("[::]:9478", "::", 9478), ("gateway.example:0", "gateway.example", 0)],
)
def test_host_and_port_are_parted_at_the_last_colon(text: str, host: str, port: int) -> None:
    assert host_and_port(text) == (host, port)


@pytest.mark.parametrize("text", ["0.0.0.0:65536", ":9009", "0.0.0.0", "0.0.0.0:", "0.0.0.0:x"])
def test_what_is_no_address_to_listen_on_is_refused(text: str) -> None:
    with pytest.raises(Misconfigured, match="expected HOST:PORT"):
        host_and_port(text)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.8.0.1", "::1", "[::1]"])
def test_an_address_of_this_machine_is_known_in_every_writing(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "localhost.example", ""])
def test_an_address_that_others_reach_is_no_loopback(host: str) -> None:
    assert not is_loopback(host)
