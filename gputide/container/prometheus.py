"""Asks a Prometheus for single values, as the settings say: while changes are watched, cards relieved, units counted.

Units are the requests or tokens of `prices.units`, each by a PromQL query of its own.
"""

from __future__ import annotations

import math
from contextlib import closing
from datetime import datetime

from enforcer.instant_query import InstantQuery, InstantQueryPrometheus
from fleet.errors import Misconfigured, Unavailable
from fleet.inventory import WorkloadId
from fleet.money.unit_costs import UnitCount
from fleet.settings.money import PricesSettings, UnitRate
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
        setting: dotted name of the setting that gives the address, for messages.
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


_USUAL_WAY = PrometheusSettings()
RANGE = "$range"
"""What in a query stands for the length of the period."""
CLUSTER = "$cluster"
"""What in a query stands for the cluster's name, within quotes."""


def unit_counts(
    prices: PricesSettings, *, cluster: str, since: datetime, until: datetime, way: PrometheusSettings = _USUAL_WAY
) -> tuple[UnitCount, ...]:
    """How many units were made in a period; where that can't be told, why.

    Raises:
        Misconfigured: there are units, and nobody to ask.
    """
    rates = [rate for rate in prices.units if rate.cluster in (None, cluster)]
    if not rates:
        return ()
    if prices.units_prometheus_url is None:
        raise Misconfigured(
            f"cannot count {rates[0].unit} of {rates[0].workload}: prices.units_prometheus_url=none; "
            "name your Prometheus"
        )
    seconds = round((until - since).total_seconds())
    url, setting = prices.units_prometheus_url, "prices.units_prometheus_url"
    with closing(instant_query(url, setting, way, at=until)) as asked:
        return tuple(_counted(rate, asked, seconds, cluster) for rate in rates)


def _counted(rate: UnitRate, asked: InstantQuery, seconds: int, cluster: str) -> UnitCount:
    count, fault = None, None
    try:
        samples = asked.vector(rate.query.replace(RANGE, f"{seconds}s").replace(CLUSTER, _quotable(cluster)))
    except Unavailable as exc:
        fault = str(exc)
    else:
        if len(samples) == 1 and math.isfinite(samples[0].value) and samples[0].value >= 0:
            count = samples[0].value
        elif not samples:
            fault = f"no series answers {rate.query!r}"
        else:
            told = f"{len(samples)} series" if len(samples) > 1 else f"{samples[0].value}"
            fault = f"{told} instead of one number of 0 or more answers {rate.query!r}; sum() makes one of several"
    return UnitCount(workload=WorkloadId(rate.workload), unit=rate.unit, count=count, fault=fault)


def _quotable(name: str) -> str:
    """A name as it stands between double quotes in PromQL."""
    return name.replace("\\", "\\\\").replace('"', '\\"')
