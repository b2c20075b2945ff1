"""Settings of the Prometheus that is asked at run time: how it is checked, and what it is shown.

For `enforcer.watch_prometheus_url` and `relief.prometheus_url`, which name the same server as a rule; a scan of history
has its own (`scan`). A section of `fleet.settings.settings`.
"""

from __future__ import annotations

from pathlib import Path

from fleet.settings.kinds import Section


class PrometheusSettings(Section):
    """How a Prometheus is asked while changes are watched and cards relieved."""

    ca_file: Path | None = None
    """Authorities (PEM) that the server's certificate is checked with; none for those of the machine."""
    certificate_file: Path | None = None
    """Certificate that is shown to the server (mutual TLS)."""
    key_file: Path | None = None
    """Its key; none where it stands in the same file."""
    bearer_token_file: Path | None = None
    """File with a bearer token; read anew when it changes."""
