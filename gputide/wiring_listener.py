"""Which files make a port speak TLS and say who may ask there, as the settings name them."""

from __future__ import annotations

from pathlib import Path

from fleet.listener_files import ListenerFiles
from fleet.settings.listener import ListenerSettings


def listener_files(section: str, settings: ListenerSettings, tokens_file: Path | None) -> ListenerFiles:
    """The files of a port.

    Args:
        section: name of the section.
        settings: the section.
        tokens_file: who may ask by a token; None for nobody.
    """
    return ListenerFiles(
        section=section,
        certificate_file=_text(settings.tls_certificate_file),
        key_file=_text(settings.tls_key_file),
        client_ca_file=_text(settings.client_ca_file),
        version_min=settings.tls_version_min.value,
        tokens_file=_text(tokens_file),
    )


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)
