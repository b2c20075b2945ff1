"""A scan of a real Prometheus gives every sample once, whatever that server refuses to answer at once."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from bench.measured_run import GPUTIDE
from bench.scanned_prometheus import STEP_SECONDS, ScannedFleet, prometheus_with
from fleet.data_folder import open_data_folder
from fleet.schema import CARD_USAGE, POD_USAGE
from fleet.settings.settings import Settings
from fleet.units import epoch_ms, format_time
from gputide.container.warehouse import warehouse
from tests.engines.go_peers import GoPeers

pytestmark = pytest.mark.engines

UNTIL = datetime(2023, 11, 14, tzinfo=UTC)
CARDS, DAYS = 100, 7
FLEET = ScannedFleet(cards=CARDS, days=DAYS, until_ms=epoch_ms(UNTIL))


@pytest.fixture(scope="module")
def prometheus(go_peers: GoPeers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with prometheus_with(go_peers.prometheus, tmp_path_factory.mktemp("prometheus"), [FLEET]) as url:
        yield url


def scan(data: Path, url: str, *options: str, status: int = 0, settings: tuple[str, ...] = ()) -> dict:
    command = [str(GPUTIDE), "--data-dir", str(data), *(part for text in settings for part in ("--set", text)), "scan"]
    done = subprocess.run(
        [*command, url, "--until", format_time(UNTIL), "--format", "json", *options],
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == status, done.stderr
    return json.loads(done.stdout) if status == 0 else {"said": done.stderr}


def test_a_week_of_a_hundred_cards_is_what_was_put_in(prometheus, tmp_path):
    said = scan(tmp_path / "data", prometheus)
    steps = DAYS * 86_400 // STEP_SECONDS
    assert said["read"]["samples"] == 3 * CARDS * steps
    assert said["read"]["copies"] == 0
    assert said["coverage_ratio"] == 1.0
    assert said["cards"] == {"all": 100, "busy": 45, "idle_held": 25, "low_use": 20, "free": 10, "untrusted": 0}
    stored = warehouse(open_data_folder(tmp_path / "data", create=False), Settings())
    days = stored.windows(
        CARD_USAGE, cluster="default", level_seconds=86_400, since=datetime(2023, 11, 7, tzinfo=UTC), until=UNTIL
    )
    assert days.num_rows == CARDS * DAYS
    assert set(days.column("duty_cycle_ratio_count").to_pylist()) == {86_400 // STEP_SECONDS}
    pods = {name for recommendation in said["plan"]["recommendations"] for name in recommendation["workloads"]}
    assert pods <= {f"team/Deployment/{FLEET.pod(card).rsplit('-', 2)[0]}" for card in FLEET.held()}


def test_a_server_with_small_limits_gives_the_same(go_peers, prometheus, tmp_path):
    fleet = ScannedFleet(cards=8, days=1, until_ms=epoch_ms(UNTIL))
    limits = ("--query.max-samples=5000", "--query.max-concurrency=1")
    with prometheus_with(go_peers.prometheus, tmp_path / "small", [fleet], *limits) as url:
        small = scan(tmp_path / "halved", url, "--since", "1d")
        refused = scan(tmp_path / "tiny", url, "--since", "1d", settings=("scan.query_bytes_max=200",), status=5)
    with prometheus_with(go_peers.prometheus, tmp_path / "large", [fleet]) as url:
        large = scan(tmp_path / "whole", url, "--since", "1d")
    assert small["read"]["halved"] > 0
    assert large["read"]["halved"] == 0
    assert small["cards"] == large["cards"]
    assert "scan.query_bytes_max" in refused["said"]
    tables = [
        warehouse(open_data_folder(tmp_path / name, create=False), Settings())
        .windows(POD_USAGE, cluster="default", level_seconds=60, since=datetime(2023, 11, 13, tzinfo=UTC), until=UNTIL)
        .to_pylist()
        for name in ("halved", "whole")
    ]
    assert tables[0] == tables[1]
    assert tables[0]


def test_a_scrape_counts_once_whatever_number_of_replicas_made_it(go_peers, tmp_path):
    late = (0, 7_000, 11_000)
    replicas = [
        ScannedFleet(
            cards=8, days=1, until_ms=epoch_ms(UNTIL), offset_ms=late_ms, extra=(("prometheus_replica", str(late_ms)),)
        )
        for late_ms in late
    ]
    with prometheus_with(go_peers.prometheus, tmp_path / "server", replicas) as url:
        said = scan(tmp_path / "data", url, "--since", "1d")
    steps = 86_400 // STEP_SECONDS
    assert said["read"]["samples"] == 3 * 8 * steps
    assert said["read"]["copies"] == 3 * 8 * (len(late) - 1) * (steps - 1)


def test_two_clusters_in_one_server_are_told_apart(go_peers, tmp_path):
    fleets = [
        ScannedFleet(cards=cards, days=1, until_ms=epoch_ms(UNTIL), extra=(("cluster", name),))
        for name, cards in (("east", 8), ("west", 16))
    ]
    with prometheus_with(go_peers.prometheus, tmp_path / "server", fleets) as url:
        said = scan(tmp_path / "none", url, "--since", "1d", status=2)["said"]
        west = scan(tmp_path / "west", url, "--since", "1d", "--cluster", "west")
    assert "'east', 'west'" in said
    assert (west["cluster"], west["cards"]["all"]) == ("west", 16)
