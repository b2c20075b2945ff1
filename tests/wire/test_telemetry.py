"""Own telemetry: what is sent, that it is off unless asked for, and that a collector that is away slows nothing."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
import time
from contextlib import closing

import pytest

from fleet.errors import Misconfigured
from fleet.logs import LogFormat, set_up_logs
from fleet.schema import Measure
from fleet.settings.settings import load_settings
from gputide.container.telemetry import open_telemetry, traced_verb
from pipeline.receiver.counts import SharedCounts
from pipeline.rollup.rollup import CountedRollup, RollupMetrics, RollupStep
from tests.otlp_collector import attributes, collecting
from tests.pipeline.builders import START_MS, Sample, body_of, file_bus, intake_of
from tests.pipeline.receiving import V2, served
from wire import telemetry
from wire.own_metrics import OwnMetrics

TRACE = "0af7651916cd43dd8448eb211c80319c"
SAMPLED = f"00-{TRACE}-b7ad6b7169203331-01"
AWAY = "http://127.0.0.1:1"


def settings_of(url, **more):
    given = {"telemetry.endpoint": url, **{f"telemetry.{name}": str(value) for name, value in more.items()}}
    return load_settings(None, given, {})


def test_a_verb_is_a_trace_with_its_parts_below_what_the_environment_names(monkeypatch):
    monkeypatch.setenv("TRACEPARENT", SAMPLED)
    with (
        collecting() as collected,
        traced_verb(settings_of(collected.url, sample_ratio=0), ("plan", "make")),
        telemetry.span("gputide.plan.decide", cards=3),
    ):
        pass
    inner, outer = collected.spans
    assert (outer.name, outer.trace_id.hex(), outer.parent_span_id.hex()) == (
        "gputide plan make", TRACE, "b7ad6b7169203331"
    )  # fmt: skip
    assert (inner.name, inner.parent_span_id, attributes(inner)) == ("gputide.plan.decide", outer.span_id, {"cards": 3})
    assert collected.services == {"gputide-cli"}


def test_a_verb_is_traced_whatever_the_share_and_its_error_is_a_kind_and_no_text():
    settings = None
    with collecting() as collected:
        settings = settings_of(collected.url, sample_ratio=0)
        with pytest.raises(Misconfigured), traced_verb(settings, ("apply",)):
            raise Misconfigured("cannot move team/secret-pod")
    (span,) = collected.spans
    assert (span.name, span.status.code, attributes(span)) == ("gputide apply", 2, {"error.type": "Misconfigured"})
    assert b"secret-pod" not in span.SerializeToString()


def test_a_share_of_bodies_is_traced_and_each_that_a_sender_traces(tmp_path):
    bodies = [body_of([Sample(0, Measure.DUTY_CYCLE, START_MS + step, 0.5)]) for step in range(3)]
    with (
        collecting() as collected,
        open_telemetry(settings_of(collected.url, sample_ratio=0), "receiver"),
        served(lambda _sender: intake_of(file_bus(tmp_path))) as receiver,
    ):
        for number, body in enumerate(bodies):
            with closing(http.client.HTTPConnection(*receiver.address, timeout=10)) as connection:
                headers = V2 if number else {**V2, "traceparent": SAMPLED}
                connection.request("POST", "/api/v1/write", body=body, headers=headers)
                assert connection.getresponse().status == 204
    (span,) = collected.spans
    assert (span.name, span.trace_id.hex()) == ("gputide.receive", TRACE)
    said = attributes(span)
    assert (said["status"], said["samples"], said["bytes"], said["message"]) == (204, 1, len(bodies[0]), "V2")
    assert span.end_time_unix_nano > span.start_time_unix_nano


def test_what_is_no_traceparent_counts_for_nothing():
    with collecting() as collected, open_telemetry(settings_of(collected.url, sample_ratio=1), "receiver"):
        for parent in ("", "x" * 5000, "00-" + "0" * 32 + "-" + "0" * 16 + "-01", "é"):
            telemetry.record("gputide.receive", 0.1, parent)
    assert [span.parent_span_id for span in collected.spans] == [b""] * 4


def test_own_metrics_are_sent_as_a_scrape_shows_them():
    own = OwnMetrics("rollup")
    metrics = RollupMetrics(own)
    step = RollupStep(records=1, corrupt=0, samples=7, repeats=0, late=0, rows=3)

    class Steps:
        def step(self):
            return step

    counts = SharedCounts(("edge",))
    counts.of_process(0).add("requests_total", 3, label="204")
    with collecting() as collected, open_telemetry(settings_of(collected.url, sample_ratio=1), "rollup"):
        telemetry.show(own)
        telemetry.show(counts)
        CountedRollup(Steps(), metrics).step()
    found = collected.metrics
    (samples,) = found["gputide_rollup_samples_total"].sum.data_points
    assert (samples.as_double, found["gputide_rollup_samples_total"].sum.is_monotonic) == (7.0, True)
    assert found["gputide_rollup_samples_total"].sum.aggregation_temporality == 2
    (seconds,) = found["gputide_rollup_step_seconds"].histogram.data_points
    assert (seconds.count, sum(seconds.bucket_counts), len(seconds.bucket_counts)) == (
        1,
        1,
        len(seconds.explicit_bounds) + 1,
    )
    (requests,) = found["gputide_receiver_requests_total"].sum.data_points
    assert (requests.as_double, [pair.value.string_value for pair in requests.attributes]) == (3.0, ["204"])
    shown = {line.split("{")[0].split(" ")[0] for line in own.text().decode().splitlines() if not line.startswith("#")}
    sums = {"_bucket", "_sum", "_count"}
    plain = {name for name in shown if not any(name.endswith(part) for part in sums)}
    assert plain <= set(found)
    (span,) = collected.spans
    assert (span.name, attributes(span)) == ("gputide.rollup.step", {"samples": 7, "rows": 3})


def test_requests_carry_the_headers_of_the_file_as_it_is_now(tmp_path):
    path = tmp_path / "headers"
    path.write_text("Authorization: Bearer first\n")
    with collecting() as collected, open_telemetry(settings_of(collected.url, headers_file=path), "web"):
        telemetry.show(OwnMetrics("web"))
        path.write_text("Authorization: Bearer second\nX-Scope-OrgID: team\n")
    (headers,) = collected.headers
    assert (headers["Authorization"], headers["X-Scope-OrgID"]) == ("Bearer second", "team")


@pytest.mark.parametrize("status", [302, 307])
def test_headers_of_the_file_follow_no_redirect(tmp_path, status):
    path = tmp_path / "headers"
    path.write_text("X-Api-Key: secret\n")
    with (
        collecting() as other,
        collecting(status=status, location=f"{other.url}/v1/metrics") as collected,
        open_telemetry(settings_of(collected.url, headers_file=path), "web"),
    ):
        telemetry.show(OwnMetrics("web"))
        telemetry.record("gputide status", 0.1)
    assert {headers["X-Api-Key"] for headers in collected.headers} == {"secret"}
    assert other.headers == []


def test_a_file_of_headers_that_is_none_is_refused_at_once(tmp_path):
    path = tmp_path / "headers"
    path.write_text("no colon\n")
    settings = settings_of(AWAY, headers_file=path)
    with pytest.raises(Misconfigured, match=r"telemetry\.headers_file"), open_telemetry(settings, "web"):
        pass


@pytest.mark.parametrize("url", ["ftp://collector", "http://user:pass@collector", "http://collector/?x=1", "collector"])
def test_an_address_that_is_none_is_refused(url):
    with pytest.raises(Misconfigured, match=r"telemetry\.endpoint"):
        settings_of(url)


@pytest.mark.long
@pytest.mark.parametrize("status", [None, 503])
def test_a_collector_that_is_away_or_ill_slows_nothing_and_is_said_once(status, capsys):
    set_up_logs(level="warning", log_format=LogFormat.JSON)
    with collecting(status=status or 200) as collected:
        settings = settings_of(AWAY if status is None else collected.url, sample_ratio=1, metrics_seconds=1)
        began = time.monotonic()
        with open_telemetry(settings, "receiver"):
            telemetry.show(OwnMetrics("web"))
            cost = time.process_time()
            for _ in range(5000):
                telemetry.record("gputide.receive", 0.001)
            cost = time.process_time() - cost
            time.sleep(1.5)
        took = time.monotonic() - began
    # Bounds that a slow machine keeps: two seconds at the end, and processor time that no wait for a network has.
    assert took < 30
    assert cost < 5000 * 0.002
    assert capsys.readouterr().err.count("telemetry could not be sent") == 1


def test_without_an_endpoint_nothing_of_opentelemetry_is_loaded_and_a_call_costs_next_to_nothing(tmp_path):
    program = (
        "import sys, json, time; from contextlib import suppress; from gputide.cli import main;"
        f"sys.argv = ['gputide', '--data-dir', {str(tmp_path)!r}, 'plan', 'list'];\n"
        "with suppress(SystemExit): main()\n"
        "from wire.telemetry import record, span\n"
        "began = time.process_time()\n"
        "for _ in range(100000): record('x', 0.1)\n"
        "cost = (time.process_time() - began) / 100000\n"
        "print(json.dumps([[name for name in sys.modules if name.startswith(('opentelemetry', 'requests'))], cost]))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    loaded, cost = json.loads(done.stdout.splitlines()[-1])
    assert loaded == []
    assert cost < 20e-6


def test_without_the_extra_an_endpoint_says_what_it_lacks():
    program = (
        "import sys; sys.modules['opentelemetry.exporter'] = None; from gputide.cli import main;"
        f"sys.argv = ['gputide', '--set', 'telemetry.endpoint={AWAY}', 'plan', 'list']; main()"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "pip install 'gputide[telemetry]' brings it, or leave out telemetry.endpoint" in done.stderr
    assert done.stderr.count("\n") == 1
