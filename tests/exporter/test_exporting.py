"""The exporter as a scraper sees it: fresh or honest about its age, and never waiting for a device."""

import gzip
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_prometheus

from exporter.collector import Collector, CollectorState, Snapshot
from exporter.exposition.rendering import Exposition, TextFormat
from exporter.reader import DeviceReader, Reading
from exporter.replay.reader import ReplayReader
from exporter.server import MetricsServer
from exporter.serving import serve
from exporter.trace.trace import open_trace
from fleet.errors import Unavailable
from fleet.inventory import CardId, CardModelName
from fleet.schema import Measure
from fleet.usage import SliceKey
from tests.exporter.builders import T0, TraceFiles, at, pod

KEY = SliceKey(
    cluster="c1",
    namespace="team",
    pod="web-0",
    container="server",
    node="node-a",
    card=CardId("GPU-a"),
    card_model=CardModelName("NVIDIA A10"),
)


class Hanging:
    """A reader whose device library hangs until it is let go."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.release = threading.Event()
        self.readings = 0

    def read(self, deadline_seconds: float) -> Reading | None:
        self.readings += 1
        if self.readings == 1:
            return Reading(at=T0, slices=(KEY,), slice_values={Measure.DUTY_CYCLE: np.array([0.25])})
        self.entered.set()
        self.release.wait()
        return None

    def close(self) -> None:
        self.release.set()


class Failing:
    """A reader that can't be reached."""

    def read(self, deadline_seconds: float) -> Reading | None:
        raise Unavailable(f"cannot read the driver within {deadline_seconds} s")

    def close(self) -> None:
        pass


class Broken:
    """A reader with a bug."""

    def __init__(self) -> None:
        self.is_closed = False

    def read(self, deadline_seconds: float) -> Reading | None:
        raise ZeroDivisionError("a bug")

    def close(self) -> None:
        self.is_closed = True


class Clock:
    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


def collector(reader: DeviceReader, clock: Callable[[], float] | None = None) -> Collector:
    return Collector(reader, interval_seconds=0.0, deadline_seconds=1.0, clock=clock or Clock())


def of_trace(folder: Path) -> Collector:
    files = TraceFiles(pods=[pod("web-0", "GPU-a", ended_at=at(20)), pod("web-1", "GPU-b", labels={"app": "x"})])
    return collector(ReplayReader(open_trace(files.write(folder))))


@contextmanager
def serving(of: Collector, **options: float) -> Iterator[str]:
    server = MetricsServer(of, host="127.0.0.1", port=0, age_seconds_max=options.get("age_seconds_max", 60.0))
    thread = threading.Thread(target=server.serve, daemon=True)
    thread.start()
    try:
        yield "http://{}:{}".format(*server.address)
    finally:
        server.stop()
        thread.join()


def fetch(url: str, **headers: str) -> tuple[int, dict[str, str], bytes]:
    request = urllib.request.Request(url, headers={name.replace("_", "-"): value for name, value in headers.items()})
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, dict(answer.headers), answer.read()
    except urllib.error.HTTPError as refusal:
        return refusal.code, dict(refusal.headers), refusal.read()


def parsed(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in parse_prometheus(text)
        for sample in family.samples
    }


def test_a_snapshot_holds_what_lives_now(tmp_path: Path) -> None:
    collects = of_trace(tmp_path)
    lives = []
    while collects.collect():
        snapshot = collects.state().snapshot
        assert snapshot is not None
        lives.append(sorted(grant.pod for grant in snapshot.grants))
    assert lives[0] == ["web-0", "web-1"]
    assert lives[-1] == ["web-1"]


def test_both_formats_say_the_same(tmp_path: Path) -> None:
    collects = of_trace(tmp_path)
    collects.collect()
    exposition = Exposition()
    plain = exposition.render(collects.state()).decode()
    open_text = exposition.render(collects.state(), TextFormat.OPENMETRICS).decode()
    assert open_text.endswith("# EOF\n")
    both = {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in parse_openmetrics(open_text)
        for sample in family.samples
    }
    assert both == parsed(plain)
    names = {name for name, _ in both}
    assert {"gputide_slice_sm_active_ratio", "gputide_card_duty_cycle_ratio", "gputide_slice_info"} <= names


def test_a_lost_card_is_absent_from_the_next_scrape(tmp_path: Path) -> None:
    files = TraceFiles()
    files.usage = [entry for entry in files.usage if entry["pod"] == "web-1" or entry["ts"] < at(15)]
    collects = collector(ReplayReader(open_trace(files.write(tmp_path))))
    exposition = Exposition()
    texts = []
    for _ in range(2):
        collects.collect()
        texts.append(exposition.render(collects.state()).decode())
    measured = [line for line in texts[1].splitlines() if "GPU-a" in line and "_info{" not in line]
    assert 'card="GPU-a"' in texts[0]
    assert measured == []


@given(st.text(max_size=40))
def test_any_text_in_a_label_reads_back(text: str) -> None:
    reading = Reading(at=T0, slices=(replace(KEY, pod=text),), slice_values={Measure.DUTY_CYCLE: np.array([0.25])})
    snapshot = Snapshot(number=1, reading=reading, cards=(), nodes=(), grants=(), taken_at_seconds=0.0)
    state = CollectorState(snapshot=snapshot, age_seconds=0.0, readings=1, failures=0)
    rendered = Exposition().render(state).decode()
    line = next(line for line in rendered.split("\n") if line.startswith("gputide_slice_duty"))
    (family,) = parse_prometheus(line)
    assert family.samples[0].labels.get("pod", "") == text
    assert family.samples[0].value == 0.25


def test_a_hung_device_blocks_no_scrape_and_its_figures_grow_old() -> None:
    reader, clock = Hanging(), Clock()
    collects = collector(reader, clock)
    collects.start()
    assert reader.entered.wait(10)
    clock.seconds += 500.0
    with serving(collects) as url:
        status, _, body = fetch(f"{url}/metrics")
        assert status == 200
        found = parsed(body.decode())
        assert found["gputide_exporter_data_age_seconds", frozenset()] == 500.0
        assert any(name == "gputide_slice_duty_cycle_ratio" for name, _ in found)
        assert fetch(f"{url}/healthz")[0] == 503
    reader.close()
    collects.stop()


def test_failures_are_counted_and_health_says_so() -> None:
    collects = collector(Failing())
    assert collects.collect()
    assert collects.collect()
    with serving(collects) as url:
        found = parsed(fetch(f"{url}/metrics")[2].decode())
        status, _, body = fetch(f"{url}/healthz")
    assert found["gputide_exporter_reading_failures_total", frozenset()] == 2.0
    assert (status, body) == (503, b"no reading yet, 2 failed\n")


def test_a_bug_in_a_reading_ends_the_exporter_and_is_not_served_for_ever_as_old_figures() -> None:
    reader, ended = Broken(), threading.Event()
    collects = collector(reader)
    collects.start(on_crash=ended.set)
    assert ended.wait(5.0)
    with pytest.raises(ZeroDivisionError):
        collects.stop()
    assert reader.is_closed


def test_a_process_whose_readings_ended_by_a_bug_ends_with_it() -> None:
    reader = Broken()
    with pytest.raises(ZeroDivisionError):
        serve(reader, host="127.0.0.1", port=0, interval_seconds=0.1)
    assert reader.is_closed


def test_a_scraper_gets_the_format_and_encoding_it_asks_for(tmp_path: Path) -> None:
    collects = of_trace(tmp_path)
    collects.collect()
    with serving(collects) as url:
        _, plain_headers, plain = fetch(f"{url}/metrics")
        _, headers, packed = fetch(
            f"{url}/metrics", Accept="application/openmetrics-text;version=1.0.0", Accept_Encoding="gzip"
        )
        assert fetch(f"{url}/healthz")[0] == 200
        assert fetch(f"{url}/elsewhere")[0] == 404
    assert plain_headers["Content-Type"] == TextFormat.PROMETHEUS.value
    assert headers["Content-Type"] == TextFormat.OPENMETRICS.value
    assert b"gputide_slice_sm_active_ratio" in plain
    assert gzip.decompress(packed).endswith(b"# EOF\n")


def test_an_address_in_use_is_refused_with_the_knob() -> None:
    first = MetricsServer(collector(Failing()), host="127.0.0.1", port=0, age_seconds_max=1.0)
    with pytest.raises(Unavailable, match="--listen"):
        MetricsServer(collector(Failing()), host="127.0.0.1", port=first.address[1], age_seconds_max=1.0)
    threading.Thread(target=first.serve, daemon=True).start()
    first.stop()
