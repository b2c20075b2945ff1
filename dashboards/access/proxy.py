"""People known by a header of a proxy in front of us, such as oauth2-proxy or an ingress with authentication.

Believed only from the proxy's own address: a header that anybody else sends is as good as none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from ipaddress import ip_address, ip_network

from dashboards.access.sessions import Identity
from fleet.errors import Refused

NAME_LENGTH_MAX = 253
GROUPS_MAX = 1000


class TrustedProxy:
    """The proxy.

    Args:
        networks: its addresses, such as `10.0.0.0/8`.
        user_header: header that names somebody.
        groups_header: header that lists their groups, divided by commas.
    """

    def __init__(self, networks: Sequence[str], *, user_header: str, groups_header: str) -> None:
        self._networks = [ip_network(text) for text in networks]
        self._user, self._groups = user_header, groups_header

    def identity(self, header: Callable[[str], str | None], peer: str | None) -> Identity | None:
        """Who the proxy says that somebody is; None where it is not the proxy that asks, or it names nobody.

        Args:
            header: a header of the request by its name, in any case; None where it has none.
            peer: address that the connection comes from.

        Raises:
            Refused: the name can't be one: several (a client's own header that the proxy let through), too long, or
                not printable.
        """
        if peer is None or not self._is_proxy(peer):
            return None
        name = (header(self._user) or "").strip()
        if not name:
            return None
        if "," in name or len(name) > NAME_LENGTH_MAX or not name.isprintable():
            raise Refused(
                f"cannot believe {self._user}: expected one printable name of at most {NAME_LENGTH_MAX} characters; "
                "the proxy must replace the header, not add to it"
            )
        groups = [part.strip() for part in (header(self._groups) or "").split(",")][:GROUPS_MAX]
        return Identity(name=name, groups=frozenset(group for group in groups if group))

    def _is_proxy(self, peer: str) -> bool:
        try:
            address = ip_address(peer.partition("%")[0])
        except ValueError:
            return False
        mapped = getattr(address, "ipv4_mapped", None) or address
        return any(mapped.version == network.version and mapped in network for network in self._networks)
