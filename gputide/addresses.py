"""Reads `HOST:PORT` as people write it on the command line."""

from __future__ import annotations

import ipaddress

from fleet.errors import Misconfigured

PORT_MAX = 65535


def host_and_port(text: str) -> tuple[str, int]:
    """Host and port of `HOST:PORT`; an IPv6 host stands in brackets.

    Raises:
        Misconfigured: it is neither.
    """
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or int(port) > PORT_MAX:
        raise Misconfigured(f"cannot listen on {text!r}: expected HOST:PORT, such as 127.0.0.1:9009")
    return host.strip("[]"), int(port)


def is_loopback(host: str) -> bool:
    """True where only this machine can reach an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
