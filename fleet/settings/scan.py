"""Settings of the scan: which server's history is read, how one gets in, and how much is asked for at once.

Part of `fleet.settings.settings`. Secrets come from files alone: what stands in a flag is seen by everybody on the
machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from pydantic import Field, field_validator

from fleet.settings.kinds import Bytes, Count, Seconds, Section
from fleet.units import MIB


class ScanSettings(Section):
    """What `gputide scan` reads from a server that speaks Prometheus' query API."""

    url: str | None = Field(default=None, min_length=1, max_length=2048)
    """Address up to the part before `/api/v1`: `https://prometheus.example:9090`, `https://mimir.example/prometheus`."""
    since_seconds: Seconds = 7 * 86400
    """How much history is read; whole days, in UTC, are read and kept."""
    step_seconds: Seconds | None = None
    """Length of the windows that samples are kept in, a divisor of 900 and at least 60; none chooses 60, 300 or 900 by
    the size of the fleet."""
    cluster_label: str = Field(default="cluster", pattern=r"^[a-zA-Z_][a-zA-Z0-9_]*$")
    """Label by which a server that holds several clusters tells them apart."""
    cluster: str | None = Field(default=None, min_length=1, max_length=253)
    """Value of that label to read; none where the server holds one cluster only."""
    matchers: tuple[str, ...] = ()
    """Further label matchers that every series must satisfy, such as `job="dcgm-exporter"`."""
    bearer_token_file: Path | None = None
    """File with a bearer token; read anew when it changes."""
    user: str | None = Field(default=None, min_length=1, max_length=1024)
    """User for basic authentication, with `scan.password_file`."""
    password_file: Path | None = None
    """File with the password; its first line counts."""
    ca_file: Path | None = None
    """Certificates that the server's is checked by; none for those that this machine trusts."""
    certificate_file: Path | None = None
    """Certificate that is shown to the server (mutual TLS)."""
    key_file: Path | None = None
    """Its key; none where it stands in the same file."""
    server_name: str | None = Field(default=None, min_length=1, max_length=253)
    """Name that the server's certificate must have; none for the host of `scan.url`."""
    unchecked_tls: bool = False
    """Take any certificate of the server: everyone in between may read and change everything."""
    headers: Mapping[str, str] = {}
    """Further headers of every request, such as `X-Scope-OrgID`; no secrets (`scan.headers_file`)."""
    headers_file: Path | None = None
    """File with further headers, one `Name: value` a line."""
    query_bytes_max: Bytes = 64 * MIB
    """Largest answer that is read; a query whose answer is larger is halved in time."""
    query_seconds: Annotated[float, Field(ge=1.0, le=3600.0)] = 120.0
    """Longest time for one answer; a query that takes longer is halved in time."""
    samples_per_append_max: Count = 2_000_000
    """Samples that are held at once and then kept together: bounds the memory of a scan."""
    attempts_max: int = Field(default=4, ge=1, le=20)
    """How often a query is tried where the server is busy, breaks off or answers in part."""
    take_partial: bool = False
    """Go on where a server can answer in part only (a store of it is down): what is missing counts as not collected."""

    @field_validator("step_seconds")
    @classmethod
    def _step_fits_its_levels(cls, value: int | None) -> int | None:
        if value is not None and (value < 60 or 900 % value):
            raise ValueError("is no divisor of 900 of 60 or more, such as 60, 300 or 900")
        return value
