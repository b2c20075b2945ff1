"""What a request or a token costs: only where somebody counted, asked of a server that answers as Prometheus does."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import ClassVar
from urllib.parse import parse_qs

import pytest

from fleet.errors import Misconfigured
from fleet.inventory import WorkloadId
from fleet.money.charged_day import ServedUnit
from fleet.money.charges import Amounts, Charge, Served
from fleet.money.unit_costs import UnitCount, unit_costs
from fleet.settings.money import PricesSettings
from gputide.container.prometheus import unit_counts

SINCE = datetime(2026, 1, 5, tzinfo=UTC)
UNTIL = SINCE + timedelta(days=7)
CHAT = WorkloadId("chat/Deployment/llm")


def charge(name: str, cost: str | None, requests: float | None = None) -> Charge:
    """What a workload costs."""
    amount = None if cost is None else Decimal(cost)
    return Charge(
        name=name, card_hours=10.0, cost=Amounts(allocation=amount, use=amount, blended=amount), measures={},
        unpriced_card_hours=0.0, unmeasured_card_hours=0.0, unallocated=None, stranded=None, kwh=None,
        unknown_kwh_card_hours=0.0,
        served={} if requests is None else {ServedUnit.REQUESTS: Served(count=requests, cost=amount)},
    )  # fmt: skip


class _Answers(BaseHTTPRequestHandler):
    """Answers each query by its name, and remembers what was asked."""

    asked: ClassVar[list[dict[str, list[str]]]] = []

    def do_POST(self) -> None:
        body = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
        self.asked.append(body)
        values = {"many": ["1", "2"], "tokens": ["2000000000"], "lie": ["-5"], "endless": ["+Inf"]}
        found = values.get(body["query"][0].split("[")[0], [])
        result = [{"metric": {}, "value": [0, value]} for value in found]
        answer = json.dumps({"status": "success", "data": {"resultType": "vector", "result": result}}).encode()
        self.send_response(200)
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: object) -> None:
        """Nothing is printed."""


@pytest.fixture
def url() -> Iterator[str]:
    _Answers.asked.clear()
    server = HTTPServer(("127.0.0.1", 0), _Answers)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def prices(url: str | None, *queries: str) -> PricesSettings:
    units = [{"workload": CHAT, "unit": query.split("[")[0], "query": query} for query in queries]
    return PricesSettings.model_validate({"units": units, "units_prometheus_url": url})


def test_units_are_asked_of_the_period_and_at_its_end(url: str) -> None:
    (found,) = unit_counts(prices(url, "tokens[$range]"), cluster="c1", since=SINCE, until=UNTIL)
    assert (found.count, found.fault) == (2e9, None)
    assert _Answers.asked[0]["query"] == ["tokens[604800s]"]
    assert float(_Answers.asked[0]["time"][0]) == UNTIL.timestamp()


def test_each_cluster_is_asked_for_its_own_workloads_alone(url: str) -> None:
    query = 'tokens[$range]{cluster="$cluster"}'
    units = [{"workload": CHAT, "unit": "tokens", "query": query, "cluster": name} for name in ('a"b', "c2")]
    settings = PricesSettings.model_validate({"units": units, "units_prometheus_url": url})
    assert len(unit_counts(settings, cluster='a"b', since=SINCE, until=UNTIL)) == 1
    assert [body["query"] for body in _Answers.asked] == [['tokens[604800s]{cluster="a\\"b"}']]
    assert unit_counts(settings, cluster="c3", since=SINCE, until=UNTIL) == ()


def test_what_can_not_be_told_is_unknown_with_its_reason_and_never_zero(url: str) -> None:
    found = unit_counts(prices(url, "nothing", "many", "lie", "endless"), cluster="c1", since=SINCE, until=UNTIL)
    assert [one.count for one in found] == [None] * 4
    assert ["no series" in (found[0].fault or ""), "sum()" in (found[1].fault or "")] == [True, True]
    (gone,) = unit_counts(prices("http://127.0.0.1:9", "tokens"), cluster="c1", since=SINCE, until=UNTIL)
    assert gone.count is None
    assert "prices.units_prometheus_url" in (gone.fault or "")
    with pytest.raises(Misconfigured, match="units_prometheus_url"):
        unit_counts(prices(None, "tokens"), cluster="c1", since=SINCE, until=UNTIL)


def test_cost_of_a_million_is_cost_over_count_and_absent_where_either_is() -> None:
    charges = [charge(CHAT, "300", 1000.0), charge("a/Deployment/quiet", "5"), charge("a/Deployment/free", None, 10.0)]
    counts = [UnitCount(workload=CHAT, unit="tokens", count=2e9)]
    found = {(one.workload, one.unit): one for one in unit_costs(charges, counts)}
    assert found[CHAT, "tokens"].per_million == Decimal("0.15")
    assert found[CHAT, "requests"].per_million == Decimal(300_000)
    assert found[WorkloadId("a/Deployment/free"), "requests"].per_million is None
    assert not [key for key in found if key[0] == "a/Deployment/quiet"]
    half = replace(charge(CHAT, "300"), served={ServedUnit.REQUESTS: Served(count=1000.0, cost=Decimal(150))})
    assert [one.per_million for one in unit_costs([half], counts)] == [Decimal("0.15"), Decimal(150_000)]
    none = replace(found[CHAT, "tokens"], count=0.0)
    assert none.per_million is None
    (gone,) = unit_costs([], counts)
    assert (gone.cost, gone.fault) == (None, "it held no card in this time")


@pytest.mark.parametrize("workload", ["chat", "chat/llm", "a b/Deployment/x", "/Deployment/x"])
def test_workload_of_a_unit_is_written_in_full(workload: str) -> None:
    with pytest.raises(ValueError, match="workload"):
        PricesSettings.model_validate({"units": [{"workload": workload, "unit": "tokens", "query": "x"}]})
