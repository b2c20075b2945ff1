"""What servers do reaches a history by the names of the recording rules, and a scan computes it where none is loaded.

`tests/engines/test_server_rates_prometheus.py` has a real Prometheus compute it.
"""

from __future__ import annotations

from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from dashboards.money.hourly_usage import idle_grants
from fleet.data_folder import open_data_folder
from fleet.schema import Measure
from fleet.server_series import SERVER_READINGS, recorded_name
from fleet.settings.scan import ScanSettings
from fleet.settings.settings import AnalyzerSettings, ClusterSettings, Settings
from gputide.container.history import load_history, profiled
from gputide.scanning.answer import misses_of
from gputide.scanning.scan import scan
from pipeline.remote_write.decode import Version
from pipeline.remote_write.encode import LabelSets
from pipeline.warehouse.warehouse_duckdb import DuckdbWarehouse
from tests.fleet.money.builders import a_card, a_grant, settled
from tests.pipeline.builders import file_bus, intake_of, roll_up
from tests.pipeline.history.scripted_server import COMPUTED, ScriptedServer, api_error, serving

pytestmark = pytest.mark.long

MINUTE_MS, HOUR_MS = 60_000, 3_600_000
UNTIL = datetime(2026, 1, 6, 6, tzinfo=UTC)
UNTIL_MS = round(UNTIL.timestamp() * 1000)
SINCE_MS = UNTIL_MS - 6 * HOUR_MS
TIMES = range(SINCE_MS + MINUTE_MS, UNTIL_MS + 1, MINUTE_MS)
TARGET = {"namespace": "team", "pod": "svc", "job": "servers", "instance": "10.0.0.1:8000"}
SETTINGS = Settings(cluster=ClusterSettings(name="default"))
RECORDED = {
    Measure.REQUEST_RATE: 2.0,
    Measure.PROMPT_TOKEN_RATE: 200.0,
    Measure.GENERATED_TOKEN_RATE: 400.0,
    Measure.LATENCY_P99: 2.5,
    Measure.REQUESTS_RUNNING: 3.0,
}


def series(name, labels, value):
    return {"__name__": name, **labels}, [(ts, float(value(ts))) for ts in TIMES]


def cards(*numbers, duty=0):
    """Cards that one pod holds, at rest unless a duty cycle in % is given."""
    found = []
    for number in numbers:
        own = {"UUID": f"GPU-{number}", "modelName": "NVIDIA A10", "Hostname": "n1"}
        own |= {"namespace": "team", "pod": "svc", "container": "main"}
        found += [
            series("DCGM_FI_DEV_GPU_UTIL", own, lambda _: duty),
            series("DCGM_FI_DEV_FB_USED", own, lambda _: 20_000),
            series("DCGM_FI_DEV_FB_FREE", own, lambda _: 3_028),
        ]
    return found


def recorded():
    return [
        series(recorded_name(measure), {"namespace": "team", "pod": "svc"}, lambda _, value=value: value)
        for measure, value in RECORDED.items()
    ]


def counted():
    """What vLLM itself writes: two requests a second, three in work."""
    own = {**TARGET, "model_name": "llama", "engine": "0", "exported_pod": "another"}
    return [
        series("vllm:request_success_total", {**own, "finished_reason": "stop"}, lambda ts: 2 * ts / 1000),
        series("vllm:num_requests_running", own, lambda _: 3),
    ]


@contextmanager
def scanned(tmp_path, world, **behaviour):
    script = ScriptedServer(world, **behaviour)
    with serving(script):
        asked = ScanSettings(url=script.url, since_seconds=6 * 3600, attempts_max=1)
        data = open_data_folder(tmp_path / "data", create=True)
        found = scan(data, Settings(scan=asked), now=UNTIL, tick=lambda done, total: None)
    history = load_history(data, SETTINGS, UNTIL)
    yield found, history, script


def received(tmp_path, world):
    bus, kept = file_bus(tmp_path / "bus", bytes_max=1 << 28), DuckdbWarehouse(tmp_path / "warehouse")
    taking = intake_of(bus)
    sets: list[dict[str, str]] = []
    number, ts_ms, values = [], [], []
    for labels, points in world:
        number += [len(sets)] * len(points)
        ts_ms += [ts for ts, _ in points]
        values += [value for _, value in points]
        sets.append({**labels, "cluster": "default"})
    body = LabelSets(sets).encode(Version.V2, np.array(number), np.array(ts_ms), np.array(values))
    assert taking.take(body, Version.V2).status == 204
    assert not taking.counts["samples_of_dropped_series"]
    roll_up(bus, kept)
    return kept


def means(history):
    """Mean of each measure of servers, of every slice."""
    return {
        measure: np.nanmean(history.slices.mean[measure], axis=1).tolist()
        for measure in SERVER_READINGS
        if measure in history.slices.mean
    }


def test_recorded_names_are_received(tmp_path):
    kept = received(tmp_path, [*cards(1, 2), *recorded()])
    found = means(kept.history("default", since=UNTIL - timedelta(days=1), until=UNTIL))
    assert found == {measure: pytest.approx([value, value]) for measure, value in RECORDED.items()}


def test_recorded_names_are_scanned_and_nothing_is_computed(tmp_path):
    with scanned(tmp_path, [*cards(1), *recorded(), *counted()]) as (found, history, script):
        assert means(history) == {measure: pytest.approx([value]) for measure, value in RECORDED.items()}
        assert not any(asked.get("query", "").endswith(COMPUTED) for _, asked in script.asked)
        assert not found.reading.refused


def test_what_no_rule_records_is_computed_of_the_names_that_are_there(tmp_path):
    with scanned(tmp_path, [*cards(1), *counted()]) as (_, history, script):
        found = means(history)
        asked = {asked["query"] for _, asked in script.asked if asked.get("query", "").endswith(COMPUTED)}
    assert found == {Measure.REQUEST_RATE: pytest.approx([2.0]), Measure.REQUESTS_RUNNING: pytest.approx([3.0])}
    assert asked
    assert not any("kserve_vllm" in query or "sglang" in query or "tokens" in query for query in asked)


def test_a_source_that_does_not_compute_goes_on_without_and_the_answer_says_so(tmp_path):
    refusal = api_error(422, "execution", "query processing would load too many samples into memory")

    def refuse(path, asked, headers):
        del path, headers
        return refusal if asked.get("query", "").endswith(COMPUTED) else None

    with scanned(tmp_path, [*cards(1), *counted()], refuse=refuse) as (found, history, script):
        refused = sum(asked.get("query", "").endswith(COMPUTED) for _, asked in script.asked)
    assert means(history) == {}
    assert found.reading.samples["DCGM_FI_DEV_GPU_UTIL"] == len(TIMES)
    misses = misses_of(found, history, profiled(history, SETTINGS, UNTIL), SETTINGS)
    (said,) = [one.costs for one in misses if one.what == recorded_name(Measure.REQUEST_RATE)]
    assert "too many samples" in said
    assert "recording rules" in said
    assert refused < 50


def test_a_pods_rate_counts_once_however_many_cards_it_holds(tmp_path):
    with scanned(tmp_path, [*cards(1, 2), *recorded()]) as (_, history, _):
        (profile,) = profiled(history, SETTINGS, UNTIL).workloads
    assert profile.request_rate is not None
    assert profile.request_rate.max == pytest.approx(2.0)


def idle_hours_of(kept, *numbers):
    """Of the six hours, which were idle for the pod on each of its cards."""
    began = UNTIL - timedelta(hours=6)
    grants = [
        a_grant(card, "svc", cluster="default", node="n1", started_at=began - timedelta(days=2)) for card in numbers
    ]
    return idle_grants(
        kept,
        settled([a_card(card, node="n1") for card in numbers], grants, until=UNTIL),
        cluster="default",
        since=began,
        until=UNTIL,
        days_at_once=1,
        settings=AnalyzerSettings(idle_seconds=7200),
    ).tolist()


@pytest.mark.parametrize("measure", [Measure.REQUEST_RATE, Measure.REQUESTS_RUNNING])
def test_hours_in_which_a_live_server_works_are_not_idle_for_any_card_of_its_pod(tmp_path, measure):
    labels = {"namespace": "team", "pod": "svc"}
    served = series(recorded_name(measure), labels, lambda ts: ts > UNTIL_MS - 2 * HOUR_MS)
    kept = received(tmp_path, [*cards(1, 2), served])
    assert idle_hours_of(kept, 1, 2) == [[True, True, True, True, False, False]] * 2


@pytest.mark.parametrize("running_too", [True, False])
def test_hours_in_which_a_live_server_serves_nobody_are_idle_whatever_its_cards_duty_cycle_says(tmp_path, running_too):
    labels = {"namespace": "team", "pod": "svc"}
    zeros = [series(recorded_name(Measure.REQUEST_RATE), labels, lambda ts: 0)]
    if running_too:
        zeros.append(series(recorded_name(Measure.REQUESTS_RUNNING), labels, lambda ts: ts > UNTIL_MS - HOUR_MS))
    kept = received(tmp_path, [*cards(1, 2, duty=100), *zeros])
    assert idle_hours_of(kept, 1, 2) == [[running_too] * 5 + [False]] * 2
