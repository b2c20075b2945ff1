"""The synthetic fleet is the same every time, and holds what it says it holds."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from exporter.reader_replay import ReplayReader
from exporter.synthetic import CARDS_MIN, TRAPS, write_synthetic_fleet
from exporter.trace import Trace, open_trace
from fleet.errors import Misconfigured
from fleet.inventory import CardId, Grant
from fleet.schema import Measure

DAYS = 4


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    folder = tmp_path_factory.mktemp("fleet") / "synthetic"
    write_synthetic_fleet(folder, cards=160, days=DAYS)
    return open_trace(folder)


@pytest.fixture(scope="module")
def grants(trace: Trace) -> tuple[Grant, ...]:
    return trace.grants_at(trace.until)


Column = Callable[[str, Measure], "np.ndarray[tuple[int], np.dtype[np.float64]]"]


@pytest.fixture(scope="module")
def column(trace: Trace) -> Column:
    """Values that slices of a workload showed, over all the days."""
    blocks = list(ReplayReader(trace).blocks())

    def values(workload: str, measure: Measure) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
        found = [np.empty(0)]
        for block in blocks:
            named = [row for row, key in enumerate(block.slices) if key.pod.startswith(f"{workload}-")]
            chosen = np.isin(block.slice_samples.rows, named)
            found.append(block.slice_samples.values[measure][chosen])
        return np.concatenate(found)

    return values


def digests(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}


def test_the_same_seed_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_synthetic_fleet(tmp_path / name, cards=60, days=2)
    write_synthetic_fleet(tmp_path / "other", cards=60, days=2, seed=8)
    assert digests(tmp_path / "one") == digests(tmp_path / "two")
    assert digests(tmp_path / "one")["usage.parquet"] != digests(tmp_path / "other")["usage.parquet"]


@pytest.mark.parametrize("cards", [CARDS_MIN, 61, 160])
def test_the_fleet_has_exactly_the_cards_asked_for(tmp_path: Path, cards: int) -> None:
    write_synthetic_fleet(tmp_path / "fleet", cards=cards, days=2, step_seconds=1800)
    assert len(open_trace(tmp_path / "fleet").cards) == cards


@pytest.mark.parametrize(
    ("changes", "knob"), [({"cards": 10}, "cards"), ({"days": 1}, "days"), ({"step_seconds": 7}, "step_seconds")]
)
def test_an_impossible_fleet_is_refused(tmp_path: Path, changes: dict[str, Any], knob: str) -> None:
    with pytest.raises(Misconfigured, match=knob):
        write_synthetic_fleet(tmp_path / "fleet", **changes)
    assert not (tmp_path / "fleet").exists()


def test_a_folder_that_holds_something_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(Misconfigured, match="holds something"):
        write_synthetic_fleet(tmp_path, cards=60, days=2)
    assert (tmp_path / "mine.txt").read_text() == "mine"


def test_every_trap_is_in_the_fleet(grants: tuple[Grant, ...]) -> None:
    assert set(TRAPS) <= {grant.workload for grant in grants}


def test_no_card_is_granted_beyond_its_framebuffer(trace: Trace) -> None:
    held: dict[CardId, int] = {}
    for grant in trace.inventory_at(trace.until).live_grants():
        held[grant.card] = held.get(grant.card, 0) + grant.framebuffer_granted_bytes
    size = {card.card: card.framebuffer_bytes for card in trace.cards}
    assert all(total <= size[card] for card, total in held.items())


def test_there_is_something_for_every_rule(grants: tuple[Grant, ...], trace: Trace) -> None:
    workloads = {grant.workload.rsplit("-", 1)[0] for grant in grants}
    families = {
        "web",
        "nightly",
        "llm",
        "embed",
        "train",
        "notebook",
        "retired",
        "greedy",
        "transcode",
        "bidder",
        "forgotten",
    }
    assert families <= workloads
    assert len({card.card for card in trace.cards} - {grant.card for grant in grants}) > 0
    assert {"gputide.io/opt-out", "gputide.io/isolation", "gputide.io/latency-critical"} <= {
        key for grant in grants for key, _ in grant.labels
    }


def test_counters_of_the_traps_show_what_the_table_says(column: Column) -> None:
    assert column("trap-tiny-kernels", Measure.DUTY_CYCLE).min() >= 0.97
    assert column("trap-tiny-kernels", Measure.SM_ACTIVE).max() < 0.06
    assert column("trap-nccl-spin", Measure.DUTY_CYCLE).min() == 1.0
    assert column("trap-preallocated", Measure.KV_CACHE_USAGE).max() < 0.1
    assert column("trap-blackwell-zero", Measure.SM_ACTIVE).max() == 0.0
    assert np.isnan(column("trap-mig-no-duty", Measure.DUTY_CYCLE)).all()
    assert np.isnan(column("trap-no-prof-counters", Measure.SM_ACTIVE)).all()
    assert column("trap-transcoder", Measure.SM_ACTIVE).max() < 0.01
    assert column("trap-transcoder", Measure.ENCODER).max() > 0.4
    assert column("trap-warm-standby", Measure.SM_ACTIVE).max() == 0.0
    assert len(column("trap-never-touched-cuda", Measure.DUTY_CYCLE)) == 0
    vanished = column("trap-counter-vanished", Measure.SM_ACTIVE)
    assert np.isnan(vanished[-100:]).all()
    assert (vanished[:100] > 0).all()


def test_day_and_night_complement_each_other(trace: Trace, column: Column) -> None:
    day, night = column("web", Measure.SM_ACTIVE), column("nightly", Measure.SM_ACTIVE)
    assert (day < 0.1).mean() > 0.4
    assert (night < 0.1).mean() > 0.4
    assert day.max() > 0.3


def test_a_lying_counter_is_contradicted_by_its_card(trace: Trace, grants: tuple[Grant, ...]) -> None:
    card = next(grant.card for grant in grants if grant.workload == "trap-blackwell-zero")
    block = next(ReplayReader(trace).blocks())
    rows = [row for row, key in enumerate(block.cards) if key.card == card]
    shown = block.card_samples.values[Measure.SM_ACTIVE][np.isin(block.card_samples.rows, rows)]
    assert shown.min() > 0.3


def test_a_dead_card_falls_silent(trace: Trace, grants: tuple[Grant, ...]) -> None:
    card = next(grant.card for grant in grants if grant.workload == "trap-dead-card")
    silent = [
        not any(block.cards[row].card == card for row in np.unique(block.card_samples.rows))
        for block in ReplayReader(trace).blocks(24)
    ]
    assert not silent[0]
    assert silent[-1]


def test_a_larger_fleet_is_computed_in_parts_of_the_same_days(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("exporter.synthetic.PART_VALUES", 5000)
    write_synthetic_fleet(tmp_path / "fleet", cards=60, days=2)
    trace = open_trace(tmp_path / "fleet")
    assert trace.step_seconds == 600
    assert (trace.until - trace.since).total_seconds() == 2 * 86400
