"""Addresses as people write them: `HOST:PORT` on the command line and in settings, and hosts of this machine alone."""

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
    """Whether an address, with or without brackets, or a name means this machine alone."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
