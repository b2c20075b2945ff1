"""TLS of the receiver: its own certificate, and which senders' certificates are believed.

`http_server` asks `TlsContexts` for every new connection, so that a renewed certificate is used without a restart.
"""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable
from pathlib import Path

from fleet.errors import Misconfigured

CHECK_SECONDS = 10.0
"""How often the files are looked at for a change."""


class TlsContexts:
    """The context for new connections.

    Args:
        certificate_file: chain of the receiver's certificate, PEM (`receiver.tls_certificate_file`).
        key_file: its key, PEM (`receiver.tls_key_file`).
        client_ca_file: authorities whose certificates of senders are believed, PEM (`receiver.client_ca_file`); None
            where senders show none.
        now_seconds: a clock that never goes back.

    Raises:
        Misconfigured: a file can't be used.
    """

    def __init__(
        self, certificate_file: Path, key_file: Path, client_ca_file: Path | None, *, now_seconds: Callable[[], float]
    ) -> None:
        self._files = (certificate_file, key_file, client_ca_file)
        self._now_seconds = now_seconds
        self._lock = threading.Lock()
        self._checked_at = now_seconds()
        self._stamps = self._stamps_now()
        self._context = self._loaded()

    def context(self) -> ssl.SSLContext:
        """The context of the files as they are now; the last good one while they are being replaced."""
        with self._lock:
            now = self._now_seconds()
            if now - self._checked_at >= CHECK_SECONDS:
                self._checked_at = now
                stamps = self._stamps_now()
                if stamps != self._stamps:
                    try:
                        self._context, self._stamps = self._loaded(), stamps
                    except Misconfigured:
                        return self._context  # half replaced: tried again at the next look
            return self._context

    def _loaded(self) -> ssl.SSLContext:
        certificate_file, key_file, client_ca_file = self._files
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        try:
            context.load_cert_chain(certificate_file, key_file)
            if client_ca_file is not None:
                context.load_verify_locations(client_ca_file)
                # A sender with a token needs no certificate, and neither does a probe of /healthz; a wrong one is
                # refused by the handshake, and `Senders` refuses who shows neither.
                context.verify_mode = ssl.CERT_OPTIONAL
        except OSError as exc:
            raise Misconfigured(
                f"cannot use receiver.tls_certificate_file={certificate_file} with receiver.tls_key_file={key_file} "
                f"and receiver.client_ca_file={client_ca_file}: {exc}"
            ) from exc
        return context

    def _stamps_now(self) -> list[tuple[int, int] | None]:
        stamps: list[tuple[int, int] | None] = []
        for path in self._files:
            try:
                found = path.stat() if path is not None else None
            except OSError:
                found = None
            stamps.append(None if found is None else (found.st_mtime_ns, found.st_size))
        return stamps
