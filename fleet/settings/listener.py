"""Settings of whatever listens: certificate, key, which clients' certificates are believed, least version of TLS.

The same names in every section that listens (`receiver`, `exporter`, `dashboard`, `agent`); a section adds what it
alone needs.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Self

from pydantic import Field, model_validator

from fleet.listener_files import ListenerFiles
from fleet.settings.kinds import Section


class TlsVersion(StrEnum):
    """Versions of TLS that are still safe (RFC 8996 forbids older ones)."""

    V1_2 = "1.2"
    V1_3 = "1.3"


class ListenerSettings(Section):
    """TLS of a port; without a certificate it speaks plain HTTP. Changed files are used without a restart."""

    tls_certificate_file: Path | None = None
    """Certificate chain of the port (PEM); with it the port speaks HTTPS only."""
    tls_key_file: Path | None = None
    """Key of the certificate (PEM)."""
    client_ca_file: Path | None = None
    """Authorities (PEM) whose certificates say who a client is (mutual TLS)."""
    tls_version_min: TlsVersion = Field(default=TlsVersion.V1_2)
    """Oldest version of TLS that is spoken: 1.2 or 1.3."""

    @model_validator(mode="after")
    def _tls_is_whole(self) -> Self:
        if (self.tls_certificate_file is None) != (self.tls_key_file is None):
            raise ValueError("tls_certificate_file and tls_key_file go together")
        if self.client_ca_file is not None and self.tls_certificate_file is None:
            raise ValueError("client_ca_file needs tls_certificate_file: certificates are shown over TLS only")
        return self

    def files(self, section: str, tokens_file: Path | None) -> ListenerFiles:
        """The files of the port, without the means to check them.

        Args:
            section: name of the section, for messages.
            tokens_file: who may ask by a token; None for nobody.
        """
        return ListenerFiles(
            section=section,
            certificate_file=_text(self.tls_certificate_file),
            key_file=_text(self.tls_key_file),
            client_ca_file=_text(self.client_ca_file),
            version_min=self.tls_version_min.value,
            tokens_file=_text(tokens_file),
        )


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)
