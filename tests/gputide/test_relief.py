"""`gputide run relief` as a user meets it, and what it teaches `plan simulate`."""

from __future__ import annotations

import os
import signal
from contextlib import closing
from pathlib import Path

import pytest

from enforcer.backends.hami_dialect import HAMI_DIALECT
from enforcer.record.ledger import Ledger
from enforcer.relief.relief_journal import ASSUMED_REACTION_SECONDS, ReliefJournal, TimingSource, relief_timing
from enforcer.simulated.cluster import SimulatedCluster
from fleet.data_folder import open_data_folder
from fleet.relief.rules import LOAD_BYTES_PER_SECOND
from fleet.settings.relief import ReliefSettings
from fleet.settings.settings import Settings
from fleet.units import GIB
from gputide.container.cluster import open_cluster_to_change
from gputide.container.relief import busy_pods
from tests.enforcer.relief.test_squeeze import an_order, carry_out
from tests.gputide.conftest import Program
from tests.scraping import OWN_PORT, own_url, scraped
from tests.waiting import until

EVERYTHING = ("--set", "relief.full_ratio=0.01", "--set", "relief.relieved_ratio=0.01")
"""Whoever works overloads his card."""


@pytest.fixture
def moved(tmp_path: Path) -> Path:
    """Return a data folder whose relief made five moves."""
    folder = open_data_folder(tmp_path / "data", create=True)
    journal = ReliefJournal(Ledger(folder.relief))
    for number in range(5):
        carry_out(journal, an_order(number))
    return folder.path


def test_recorded_overloads_are_shown_and_nothing_is_changed_without_yes(replayed: Path, program: Program) -> None:
    quiet = program(replayed, "run", "relief", "once", "--format", "json")
    assert (quiet.status, quiet.document["overloads"]) == (0, [])
    found = program(replayed, *EVERYTHING, "run", "relief", "once", "--format", "json")
    assert found.status == 1, found.err
    assert found.document["nodes"] > 0
    assert {entry["cause"] for entry in found.document["overloads"]} == {"demand"}
    assert not (replayed / "relief.jsonl").exists()
    done = program(replayed, *EVERYTHING, "run", "relief", "once", "--yes")
    assert done.status == 1, done.err
    assert "cards are overloaded" in done.out


def test_tide_reads_the_pods_whose_cards_fill_up_from_what_relief_sees(replayed: Path) -> None:
    folder = open_data_folder(replayed, create=False)
    with closing(SimulatedCluster.open(replayed / "cluster.sqlite")) as recorded:
        now = recorded.now()

    def crowded(**relief: float) -> dict[str, str]:
        settings = Settings(relief=ReliefSettings(**relief))  # type: ignore[arg-type]
        with open_cluster_to_change(folder, settings, now) as cluster:
            return dict(busy_pods(folder, settings, cluster, HAMI_DIALECT).crowded)

    most, some = crowded(full_ratio=0.01), crowded()
    assert some.keys() < most.keys()
    assert set(some.values()) <= {"80% of its card or more"}
    # What is measured of no pod says nothing of it, and a later limit of relief is no later one of the tide.
    assert crowded(full_ratio=1.0) == some


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (("run", "relief", "run"), 4, "--yes"),
        (("--set", "relief.agents=ftp://host:1", "run", "relief", "show"), 2, "relief.agents"),
        (("--set", "relief.full_ratio=97", "run", "relief", "show"), 2, "relief.full_ratio"),
        (("--set", "relief.slo_queries=up == 0", "run", "relief", "once"), 2, "relief.prometheus_url=none"),
    ],
)
def test_wrong_use_is_said(arguments: tuple[str, ...], status: int, words: str, moved: Path, program: Program) -> None:
    said = program(moved, *arguments)
    assert (said.status, words in said.err) == (status, True), said.err


def test_moves_are_shown_with_what_they_took(moved: Path, program: Program) -> None:
    document = program(moved, "run", "relief", "show", "--format", "json").document
    assert document["measured"]["reaction_seconds"] == 4.0
    assert [entry["state"] for entry in document["moves"]] == ["done"] * 5
    assert "began 4.0 s after the overload was seen" in program(moved, "run", "relief", "show").out


def test_simulation_goes_by_what_was_measured_and_says_so(moved: Path, small_fleet: Path, program: Program) -> None:
    call = ("plan", "simulate", str(small_fleet), "--policy", "maxima", "--format", "json")
    timing = program(moved, *call).document["timing"]
    assert (timing["reaction_seconds"], timing["reaction_source"], timing["moves"]) == (4.0, "measured", 5)
    given = program(moved, *call, "--reaction", "1m").document["timing"]
    assert (given["reaction_seconds"], given["reaction_source"], given["load_source"]) == (60.0, "given", "measured")


def test_without_moves_the_table_counts() -> None:
    timing = relief_timing(None)
    assert timing.reaction_source is timing.load_source is TimingSource.ASSUMED
    assert (timing.reaction_seconds, timing.load_bytes_per_second) == (ASSUMED_REACTION_SECONDS, LOAD_BYTES_PER_SECOND)
    assert relief_timing(None, load_bytes_per_second=2.0 * GIB).load_source is TimingSource.GIVEN


def test_relief_that_runs_shows_a_scraper_what_is_overloaded(replayed: Path, program: Program) -> None:
    relief = program.start(replayed, *EVERYTHING, *OWN_PORT, "run", "relief", "run", "--yes")
    try:
        url = own_url(relief.err)
        until(lambda: scraped(url)["gputide_relief_overloaded_cards"] > 0)
        found = scraped(url)
    finally:
        os.kill(relief.pid, signal.SIGTERM)
    assert relief.wait().status == 0
    assert found["gputide_relief_nodes"] > 0
    assert found["gputide_relief_look_seconds_count"] >= 1
    assert found["gputide_relief_last_success_timestamp_seconds"] > found["process_start_time_seconds"]
