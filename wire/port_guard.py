"""Who may read a port's metrics or views: holders of a token, or of a certificate that TLS has verified.

Servers ask it for every request that shows figures; a port without tokens and client certificates is open to everybody.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from fleet.listener_files import ListenerFiles
from wire.http_head import Refusal
from wire.http_server import Exchange
from wire.tokens import CHALLENGE, BearerTokens


class PortGuard:
    """Says who may.

    Args:
        tokens_setting: last part of the setting's name that gives `files.tokens_file`, such as `scrape_tokens_file`.

    Raises:
        Misconfigured: the file of tokens can't be used.
    """

    def __init__(self, files: ListenerFiles, *, tokens_setting: str, now_seconds: Callable[[], float]) -> None:
        self._takes_certificates = files.client_ca_file is not None
        self._is_open = not files.are_clients_asked
        self._section, self._tokens_setting = files.section, f"{files.section}.{tokens_setting}"
        self._tokens: BearerTokens | None = None
        if files.tokens_file is not None:
            path = Path(files.tokens_file)
            self._tokens = BearerTokens(path, setting=self._tokens_setting, now_seconds=now_seconds)

    def check(self, exchange: Exchange) -> None:
        """Raises `Refusal` with status 401 where a request may not be answered."""
        if not self.may(exchange.authorization, exchange.certificate):
            raise Refusal(
                401,
                f"cannot show this to somebody unknown: show a token of {self._tokens_setting} or a certificate of "
                f"{self._section}.client_ca_file",
                fields=CHALLENGE,
            )

    def may(self, authorization: str | None, certificate: Mapping[str, object] | None) -> bool:
        """Whether a request is answered.

        Args:
            certificate: verified certificate, as `ssl.SSLSocket.getpeercert` gives it; None where none was shown.
        """
        if self._is_open or (certificate and self._takes_certificates):
            return True
        return self._tokens is not None and self._tokens.name_of(authorization) is not None
