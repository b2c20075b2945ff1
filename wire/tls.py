"""How a server's certificate is checked, and the certificate that a client shows; both may change while we run.

Called by `wire.http_client` for each new connection.
"""

from __future__ import annotations

import ssl
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from fleet.errors import Misconfigured
from wire.replaced_files import ReplacedFiles


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """What is checked and shown.

    Attributes:
        authority_file: certificates that the server's is checked by; None for `authority_pem`.
        authority_pem: the same as text; with neither, those that this machine trusts.
        is_unchecked: the server's certificate is not checked at all; counts where no authority is given.
        server_name: name that it must have; None for the host's.
        certificate_file: what the client shows; None for `certificate_pem`, or nothing.
        key_file: its key; None where it stands in the same file.
        certificate_pem: certificate and key as text.
    """

    authority_file: Path | None = None
    authority_pem: str | None = None
    is_unchecked: bool = False
    server_name: str | None = None
    certificate_file: Path | None = None
    key_file: Path | None = None
    certificate_pem: bytes | None = field(default=None, repr=False)


class TlsContexts:
    """Makes contexts, and makes them anew where a file has changed. For several threads."""

    def __init__(self, tls: Tls) -> None:
        self._tls = tls
        files = (tls.authority_file, tls.certificate_file, tls.key_file)
        self._files = tuple(file for file in files if file is not None)
        self._context = ReplacedFiles(self._files, self._made)

    def context(self) -> ssl.SSLContext:
        """The context for a connection that is made now.

        Raises:
            Misconfigured: a file can't be read, or is no certificate or key.
        """
        return self._context.now()

    def _made(self) -> ssl.SSLContext:
        try:
            return self._make()
        except (OSError, ValueError) as exc:
            # A wrong certificate is an SSLError, which is an OSError; one without any PEM a ValueError.
            shown = ", ".join(map(str, self._files)) or "of the kubeconfig"
            raise Misconfigured(f"cannot use certificates {shown}: {exc}") from exc

    def _make(self) -> ssl.SSLContext:
        tls = self._tls
        authority = None if tls.authority_file is None else str(tls.authority_file)
        context = ssl.create_default_context(cafile=authority, cadata=tls.authority_pem)
        # From Python 3.13 on it is strict about the form of certificates, in which those of many clusters, whose
        # authority has no key identifier, fail. Names, times and signatures are checked as ever.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        if tls.is_unchecked and authority is None and tls.authority_pem is None:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        # An empty password: the library would ask the terminal for that of an encrypted key.
        if tls.certificate_file is not None:
            context.load_cert_chain(tls.certificate_file, tls.key_file, password="")
        elif tls.certificate_pem is not None:
            # The library takes files only; this one is for its owner's eyes, and gone at once.
            with tempfile.NamedTemporaryFile() as file:
                file.write(tls.certificate_pem)
                file.flush()
                context.load_cert_chain(file.name, password="")
        return context


def why_untrusted(exc: BaseException) -> str | None:
    """Why a handshake failed on the server's certificate; None for any other error."""
    return exc.verify_message if isinstance(exc, ssl.SSLCertVerificationError) else None


def der_of(pem: str) -> bytes:
    """A certificate as bytes (DER).

    Raises:
        ValueError: it is no PEM of a certificate.
    """
    return ssl.PEM_cert_to_DER_cert(pem)
