"""Which files make a port speak TLS and say who may ask there: what settings name, without the means to read them.

Apart from `wire.listener_tls`, so that a process whose port is plain never loads the TLS library.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerFiles:
    """The files of one port.

    Attributes:
        section: section of the settings that names them, such as `receiver`; for messages.
        certificate_file: chain of the port's certificate, PEM; None where the port is plain.
        key_file: its key, PEM.
        client_ca_file: authorities whose certificates of clients are believed, PEM; None where clients show none.
        version_min: oldest version of TLS, `1.2` or `1.3`.
        tokens_file: lines of `TOKEN NAME`, who may ask by a bearer token (`wire.tokens`); None for nobody.
    """

    section: str
    certificate_file: str | None = None
    key_file: str | None = None
    client_ca_file: str | None = None
    version_min: str = "1.2"
    tokens_file: str | None = None

    @property
    def are_clients_asked(self) -> bool:
        """True where a client must say who it is."""
        return self.client_ca_file is not None or self.tokens_file is not None
