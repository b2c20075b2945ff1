"""TLS of a port: its own certificate, and which clients' certificates are believed.

Every server asks `ListenerContexts` for each new connection, so that a renewed certificate is used without a restart,
while connections that are open go on with the one they began with.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from pathlib import Path

from fleet.errors import Misconfigured
from fleet.listener_files import ListenerFiles
from wire.replaced_files import ReplacedFiles

CHECK_SECONDS = 10.0
"""How often the files are looked at for a change."""

_VERSIONS = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}


class ListenerContexts:
    """The context for new connections; for several threads.

    Args:
        files: of the port; with certificate and key.
        needs_client: True where the handshake fails without a client's certificate; False where a client may be known
            by something else, such as a token, so that a wrong certificate alone is refused.
        check_seconds: how often the files are looked at for a change.

    Raises:
        Misconfigured: a file can't be used.
    """

    def __init__(
        self,
        files: ListenerFiles,
        *,
        needs_client: bool,
        now_seconds: Callable[[], float],
        check_seconds: float = CHECK_SECONDS,
    ) -> None:
        self._files = files
        self._needs_client = needs_client
        paths = (files.certificate_file, files.key_file, files.client_ca_file)
        self._context = ReplacedFiles(
            [Path(path) for path in paths if path is not None],
            self._loaded,
            check_seconds=check_seconds,
            keeps_last=True,
            now_seconds=now_seconds,
        )
        self._context.now()

    def context(self) -> ssl.SSLContext:
        """The context of the files as they are now; the last good one while they are being replaced."""
        return self._context.now()

    def _loaded(self) -> ssl.SSLContext:
        files = self._files
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = _VERSIONS[files.version_min]
        context.options |= ssl.OP_NO_RENEGOTIATION  # a handshake is asked for once, not as often as a client likes
        context.set_alpn_protocols(["http/1.1"])
        if files.certificate_file is None or files.key_file is None:
            raise ValueError("a port without certificate and key is plain")
        try:
            # An empty password: the library would ask the terminal for that of an encrypted key.
            context.load_cert_chain(files.certificate_file, files.key_file, password="")
            if files.client_ca_file is not None:
                context.load_verify_locations(files.client_ca_file)
                context.verify_mode = ssl.CERT_REQUIRED if self._needs_client else ssl.CERT_OPTIONAL
        except OSError as exc:
            raise Misconfigured(
                f"cannot use {files.section}.tls_certificate_file={files.certificate_file} with "
                f"{files.section}.tls_key_file={files.key_file} and "
                f"{files.section}.client_ca_file={files.client_ca_file}: {exc}"
            ) from exc
        return context
