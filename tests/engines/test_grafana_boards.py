"""A real Prometheus holds a day of a fleet and evaluates the rules: every panel and every alert finds rows in it."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator

import pytest

from dashboards.grafana.derived import STEP_SECONDS as LONG_STEP_SECONDS
from dashboards.grafana.rule import AlertRule, RecordingRule
from dashboards.grafana.shipped import boards, rule_groups
from fleet.settings.settings import Settings
from tests.engines.go_peers import GoPeers
from tests.engines.grafana_fleet import (
    CARDS,
    MODEL,
    STEP_SECONDS,
    Series,
    gputide_words,
    other_words,
    own_processes,
    savings_words,
    server_words,
)
from tests.engines.prometheus_parts import answer_of, chosen, evaluating
from tests.waiting import text_of, until

pytestmark = pytest.mark.engines

SETTINGS = Settings()
HOURS = 2
"""Of the raw series; of what the rules look back a day on, there is a day."""
LAST = ("gputide:namespace:cards", "gputide:workload:activity_ratio:max5m", "gputide:workload:off_peak_limit_ratio")
"""Recorded series that build on others' and so come last."""


@pytest.fixture(scope="module")
def prometheus(go_peers: GoPeers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Start a Prometheus with the fleet's history and the shipped rules, evaluated every second."""
    folder = tmp_path_factory.mktemp("prometheus")
    now = int(time.time())
    (folder / "history.om").write_text("\n".join([*lines_until(now), "# EOF", ""]), encoding="utf-8")
    made = [str(go_peers.promtool), "tsdb", "create-blocks-from", "openmetrics", "history.om", "tsdb"]
    subprocess.run(made, cwd=folder, check=True, capture_output=True, timeout=120)
    with evaluating(go_peers, folder, SETTINGS) as url:
        until(lambda: all(answer_of(url, name) for name in LAST), seconds_max=60)
        yield url


def lines_until(now: int) -> Iterator[str]:
    """Yield the fleet's history: raw series of the last hours, and a day of what the rules look back on."""
    times = range(now - HOURS * 3600, now, STEP_SECONDS)
    for series in (*gputide_words(), *other_words(), *server_words(), *own_processes(), *savings_words()):
        yield from series.lines(times)
    day = range(now - SETTINGS.analyzer.idle_seconds, now, LONG_STEP_SECONDS)
    for card in CARDS:
        labels = {"cluster": "c1", "node": card.node, "card": card.uuid, "card_model": MODEL}
        yield from Series(name="gputide:card:activity_ratio:max5m", labels=labels, value=card.duty).lines(day)


def test_every_panel_finds_rows(prometheus: str) -> None:
    asked, empty = 0, []
    for name, text in boards().items():
        for panel in json.loads(text)["panels"]:
            found = []
            for target in panel["targets"]:
                asked += 1
                found.append(answer_of(prometheus, chosen(target["expr"])))
            # A panel may ask two sources of one figure; a fleet has one of them.
            if not (all(found) or (panel["title"] == "KV cache in use" and any(found))):
                empty.append((name, panel["title"], panel["targets"]))
    assert asked > 60
    assert not empty


def test_every_choice_offers_something(prometheus: str) -> None:
    for text in boards().values():
        for variable in json.loads(text)["templating"]["list"]:
            if variable["type"] == "query":
                series, label = variable["query"]["query"].removeprefix("label_values(").rstrip(")").rsplit(", ", 1)
                rows = answer_of(prometheus, chosen(series))
                assert any(row["metric"].get(label) for row in rows), variable["name"]


def test_every_rule_gives_rows(prometheus: str) -> None:
    empty = []
    for group in rule_groups(SETTINGS):
        for rule in group.rules:
            name = rule.record if isinstance(rule, RecordingRule) else rule.expression
            if not answer_of(prometheus, name):
                empty.append(rule.record if isinstance(rule, RecordingRule) else rule.alert)
    assert not empty


def test_prometheus_finds_nothing_wrong_with_a_rule(prometheus: str) -> None:
    rules = json.loads(text_of(f"{prometheus}/api/v1/rules"))
    told = [rule for group in rules["data"]["groups"] for rule in group["rules"]]
    assert {rule["health"] for rule in told} == {"ok"}, [rule for rule in told if rule["health"] != "ok"]
    alerts = [rule for group in rule_groups(SETTINGS) for rule in group.rules if isinstance(rule, AlertRule)]
    assert len([rule for rule in told if rule["type"] == "alerting"]) == len(alerts)
