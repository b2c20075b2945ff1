"""The Prometheus that is asked at run time, as the settings say: while changes are watched, and cards relieved."""

from __future__ import annotations

from datetime import datetime

from enforcer.instant_query import InstantQueryPrometheus
from fleet.settings.prometheus import PrometheusSettings
from wire.credentials import TokenFile
from wire.http_client import HttpClient, endpoint_of
from wire.prometheus_query import PrometheusQuery, QueryOptions
from wire.tls import Tls

ANSWER_BYTES_MAX = 4 << 20
"""Longest answer that is read."""
_OPTIONS = QueryOptions(
    bytes_max=ANSWER_BYTES_MAX, seconds_max=5.0, sign_in="name a token by prometheus.bearer_token_file"
)


def instant_query(
    url: str, setting: str, way: PrometheusSettings, *, at: datetime | None = None
) -> InstantQueryPrometheus:
    """What asks it.

    Args:
        url: its address.
        setting: dotted name of the setting that gives the address, for messages.
        way: how it is checked and signed on to.
        at: the moment that is asked for, UTC; None for now.

    Raises:
        Misconfigured: the address is none.
    """
    endpoint = endpoint_of(
        url,
        setting=setting,
        tls=Tls(authority_file=way.ca_file, certificate_file=way.certificate_file, key_file=way.key_file),
        credentials=None if way.bearer_token_file is None else TokenFile(way.bearer_token_file),
    )
    prometheus = PrometheusQuery(HttpClient(endpoint, "gputide"), _OPTIONS)
    return InstantQueryPrometheus(prometheus, setting=setting, at=at)
