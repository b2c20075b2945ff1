"""Which hosts mean this machine or its cloud's own services: where a request of ours must not be led by others.

A metadata service at a link-local address hands out the machine's credentials to anybody who asks from it; so an
address that a document or a person of another role gives is not followed there (server-side request forgery).

Source: RFC 3927, RFC 4291 §2.5.3, §2.5.5 and §2.5.6, RFC 6052 §2.1, RFC 8215, RFC 3056 §2;
docs.aws.amazon.com/AWSEC2/latest/UserGuide
(instancedata-data-retrieval: 169.254.169.254, fd00:ec2::254), cloud.google.com/compute/docs/metadata
(querying-metadata: metadata.google.internal), alibabacloud.com/help/en/ecs (instance metadata: 100.100.100.200);
inet(3) (`inet_aton`: addresses of fewer than four numbers, octal and hexadecimal ones).
"""

from __future__ import annotations

import ipaddress
import socket
import unicodedata

_NAMES = frozenset({"localhost", "metadata", "metadata.google.internal", "instance-data", "instance-data.ec2.internal"})
_ADDRESSES = frozenset({ipaddress.ip_address("fd00:ec2::254"), ipaddress.ip_address("100.100.100.200")})
"""Amazon's metadata over IPv6, Alibaba Cloud's."""
_TRANSLATED = tuple(map(ipaddress.IPv6Network, ("::ffff:0:0/96", "64:ff9b::/96", "64:ff9b:1::/48", "::/96")))
"""IPv6 addresses whose last 32 bits are one of IPv4: mapped, NAT64's, and the deprecated compatible ones."""
_6TO4 = ipaddress.IPv6Network("2002::/16")
_IPV4 = 2**32


def is_metadata(host: str) -> bool:
    """Whether a host is a cloud's metadata service or any link-local address; those of a name are not looked up."""
    name = _name_of(host)
    address = _address_of(name)
    if address is None:
        return name in _NAMES and name != "localhost"
    return address.is_link_local or address in _ADDRESSES


def is_own_network(host: str) -> bool:
    """Whether a host is this machine, or as `is_metadata`."""
    name = _name_of(host)
    address = _address_of(name)
    if address is None:
        return name in _NAMES or name.endswith(".localhost")
    return address.is_loopback or address.is_unspecified or is_metadata(str(address))


def _name_of(host: str) -> str:
    # Some clients take wide letters, digits and dots for the narrow ones (RFC 3490 §3.1, NFKC).
    return unicodedata.normalize("NFKC", host).replace("\u3002", ".").strip("[]").rstrip(".").lower()


def _address_of(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """The address that a host is; None for a name."""
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        try:
            # What the resolver takes too: 2852039166, 0xa9fea9fe, 0251.0376.0251.0376, 127.1.
            return ipaddress.IPv4Address(socket.inet_aton(name))
        except (OSError, ValueError):
            return None
    return address if isinstance(address, ipaddress.IPv4Address) else _inner(address)


def _inner(address: ipaddress.IPv6Address) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """The IPv4 address that an IPv6 one is translated to on its way; itself where it is none of those."""
    if address in _6TO4:
        return ipaddress.IPv4Address((int(address) >> 80) % _IPV4)
    # `::` and `::1` are what they say, and no compatible ones.
    if int(address) > 1 and any(address in network for network in _TRANSLATED):
        return ipaddress.IPv4Address(int(address) % _IPV4)
    return address
