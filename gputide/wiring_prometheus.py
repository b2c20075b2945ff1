"""The Prometheus that is asked at run time, as the settings say: while changes are watched, and cards relieved."""

from __future__ import annotations

from datetime import datetime

from enforcer.instant_query_prometheus import PrometheusQuery
from fleet.settings.prometheus import PrometheusSettings
from wire.credentials import TokenFile
from wire.tls import Tls


def instant_query(url: str, setting: str, way: PrometheusSettings, *, at: datetime | None = None) -> PrometheusQuery:
    """What asks it.

    Args:
        url: its address.
        setting: dotted name of the setting that gives the address, for messages.
        way: how it is checked and signed on to.
        at: the moment that is asked for, UTC; None for now.
    """
    return PrometheusQuery(
        url,
        setting=setting,
        at=at,
        tls=Tls(authority_file=way.ca_file, certificate_file=way.certificate_file, key_file=way.key_file),
        credentials=None if way.bearer_token_file is None else TokenFile(way.bearer_token_file),
    )
