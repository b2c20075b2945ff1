"""Settings of what the program says of itself by OpenTelemetry's protocol. A section of `fleet.settings.settings`."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from fleet.settings.kinds import Ratio, Seconds, Section


class TelemetrySettings(Section):
    """Own metrics and traces, sent to an OpenTelemetry collector; nothing is sent without an address."""

    endpoint: str | None = Field(default=None, pattern=r"^https?://[^\s?#@]+$", max_length=2048)
    """Address of a collector's OTLP over HTTP, such as `https://collector:4318`: metrics go to `/v1/metrics` below it,
    traces to `/v1/traces`. None sends nothing."""
    headers_file: Path | None = None
    """File with headers of every request, one `NAME: VALUE` a line, such as a token; read anew when it changes."""
    ca_file: Path | None = None
    """Authorities (PEM) that the collector's certificate is checked with; none for those of the machine."""
    sample_ratio: Ratio = 0.05
    """Share of bodies, requests of the web app and steps of the roll-up that are traced. Verbs always are, and so is
    what comes with a `traceparent` that says so."""
    metrics_seconds: Seconds = 60
    """How often own metrics are sent."""
