"""The synthetic fleet is the same every time, and holds what it says it holds."""

import hashlib
import re
from collections.abc import Callable, Collection
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from exporter.replay.reader import ReplayReader
from exporter.synthetic.mix import (
    BIDDERS,
    DAY_SERVICES,
    EMBEDDERS,
    LANGUAGE_MODELS,
    NEWCOMERS,
    NIGHT_SERVICES,
    NOTEBOOKS,
    RETIRED_SERVICES,
    TRAINING_JOBS,
    TRANSCODERS,
    UNUSED_SERVICES,
    WIDE_SERVICES,
)
from exporter.synthetic.writer import CARDS_MIN, TRAPS, write_synthetic_fleet
from exporter.trace.trace import Trace, open_trace
from exporter.trace.writer import label_workload
from fleet.errors import Misconfigured
from fleet.inventory import OPT_OUT_LABEL, CardId, Grant, WorkloadId
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


Column = Callable[[str | Collection[str], Measure], "np.ndarray[tuple[int], np.dtype[np.float64]]"]


@pytest.fixture(scope="module")
def column(trace: Trace) -> Column:
    """Values that slices of these workloads showed, over all the days."""
    blocks = list(ReplayReader(trace).blocks())
    name_of = {grant.pod_id: f"{grant.namespace}/{grant.workload}" for grant in trace.grants_at(trace.until)}

    def values(workloads: str | Collection[str], measure: Measure) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
        wanted = {workloads} if isinstance(workloads, str) else workloads
        found = [np.empty(0)]
        for block in blocks:
            named = [row for row, key in enumerate(block.slices) if name_of[key.pod_id] in wanted]
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
    assert set(TRAPS.values()) <= {f"{grant.namespace}/{grant.workload}" for grant in grants}


def test_names_are_those_of_a_company_and_not_of_a_test(grants: tuple[Grant, ...]) -> None:
    names = [name for grant in grants for name in (grant.namespace, grant.workload, grant.pod, grant.node)]
    assert [name for name in names if re.search("trap|liar|greedy|forgotten|retired", name)] == []
    assert [grant.workload for grant in grants if re.fullmatch("[a-z]+-[0-9]+", grant.workload)] == []
    assert {grant.namespace for grant in grants} == {
        "search", "ads", "vision", "speech", "research", "support", "payments",
    }  # fmt: skip
    assert {re.sub("[0-9]+$", "", grant.node) for grant in grants} == {
        "gpu-a10g-", "gpu-a100-", "gpu-h100-", "gpu-b200-", "gpu-l20-", "gpu-l40s-",
    }  # fmt: skip


def test_a_large_fleet_gives_no_name_twice(tmp_path: Path) -> None:
    write_synthetic_fleet(tmp_path / "fleet", cards=900, days=2, step_seconds=3600)
    trace = open_trace(tmp_path / "fleet")
    kinds: dict[str, set[str]] = {}
    pods: dict[str, set[str]] = {}
    for grant in trace.grants_at(trace.until):
        name = f"{grant.namespace}/{grant.workload}"
        kinds.setdefault(name, set()).add(f"{grant.workload_kind} {grant.labels}")
        pods.setdefault(grant.pod_id, set()).add(name)
    assert [found for found in (*kinds.values(), *pods.values()) if len(found) > 1] == []


def test_no_card_is_granted_beyond_its_framebuffer(trace: Trace) -> None:
    held: dict[CardId, int] = {}
    for grant in trace.inventory_at(trace.until).live_grants():
        held[grant.card] = held.get(grant.card, 0) + grant.framebuffer_granted_bytes
    size = {card.card: card.framebuffer_bytes for card in trace.cards}
    assert all(total <= size[card] for card, total in held.items())


def test_there_is_something_for_every_rule(grants: tuple[Grant, ...], trace: Trace) -> None:
    workloads = {f"{grant.namespace}/{grant.workload}" for grant in grants}
    for family in (
        DAY_SERVICES, NIGHT_SERVICES, LANGUAGE_MODELS, EMBEDDERS, TRAINING_JOBS, NOTEBOOKS, RETIRED_SERVICES,
        WIDE_SERVICES, TRANSCODERS, BIDDERS, UNUSED_SERVICES,
    ):  # fmt: skip
        assert not workloads.isdisjoint(family)
    assert len({card.card for card in trace.cards} - {grant.card for grant in grants}) > 0
    assert {"gputide.io/opt-out", "gputide.io/isolation", "gputide.io/latency-critical"} <= {
        key for grant in grants for key, _ in grant.labels
    }


def test_counters_of_the_traps_show_what_the_table_says(column: Column) -> None:
    assert column(TRAPS["tiny-kernels"], Measure.DUTY_CYCLE).min() >= 0.97
    assert column(TRAPS["tiny-kernels"], Measure.SM_ACTIVE).max() < 0.06
    assert column(TRAPS["nccl-spin"], Measure.DUTY_CYCLE).min() == 1.0
    assert column(TRAPS["preallocated"], Measure.KV_CACHE_USAGE).max() < 0.1
    assert column(TRAPS["blackwell-zero"], Measure.SM_ACTIVE).max() == 0.0
    assert np.isnan(column(TRAPS["mig-no-duty"], Measure.DUTY_CYCLE)).all()
    assert np.isnan(column(TRAPS["no-prof-counters"], Measure.SM_ACTIVE)).all()
    assert column(TRAPS["transcoder"], Measure.SM_ACTIVE).max() < 0.01
    assert column(TRAPS["transcoder"], Measure.ENCODER).max() > 0.4
    assert column(TRAPS["warm-standby"], Measure.SM_ACTIVE).max() == 0.0
    assert len(column(TRAPS["never-touched-cuda"], Measure.DUTY_CYCLE)) == 0
    vanished = column(TRAPS["counter-vanished"], Measure.SM_ACTIVE)
    assert np.isnan(vanished[-100:]).all()
    assert (vanished[:100] > 0).all()


def test_day_and_night_complement_each_other(trace: Trace, column: Column) -> None:
    day, night = column(DAY_SERVICES, Measure.SM_ACTIVE), column(NIGHT_SERVICES, Measure.SM_ACTIVE)
    assert (day < 0.1).mean() > 0.4
    assert (night < 0.1).mean() > 0.4
    assert day.max() > 0.3


def test_a_lying_counter_is_contradicted_by_its_card(trace: Trace, grants: tuple[Grant, ...]) -> None:
    card = next(grant.card for grant in grants if grant.workload == TRAPS["blackwell-zero"].split("/")[1])
    block = next(ReplayReader(trace).blocks())
    rows = [row for row, key in enumerate(block.cards) if key.card == card]
    shown = block.card_samples.values[Measure.SM_ACTIVE][np.isin(block.card_samples.rows, rows)]
    assert shown.min() > 0.3


def test_a_dead_card_falls_silent(trace: Trace, grants: tuple[Grant, ...]) -> None:
    card = next(grant.card for grant in grants if grant.workload == TRAPS["dead-card"].split("/")[1])
    silent = [
        not any(block.cards[row].card == card for row in np.unique(block.card_samples.rows))
        for block in ReplayReader(trace).blocks(24)
    ]
    assert not silent[0]
    assert silent[-1]


def test_a_larger_fleet_is_computed_in_parts_of_the_same_days(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("exporter.synthetic.writer.PART_VALUES", 5000)
    write_synthetic_fleet(tmp_path / "fleet", cards=60, days=2)
    trace = open_trace(tmp_path / "fleet")
    assert trace.step_seconds == 600
    assert (trace.until - trace.since).total_seconds() == 2 * 86400


def test_newcomers_take_whole_cards_that_nobody_had(tmp_path: Path) -> None:
    write_synthetic_fleet(tmp_path / "fleet", cards=60, days=4, newcomers_days=2.5)
    trace = open_trace(tmp_path / "fleet")
    late = [grant for grant in trace.grants_at(trace.until) if f"{grant.namespace}/{grant.workload}" in NEWCOMERS]
    assert {f"{grant.namespace}/{grant.workload}" for grant in late} == set(NEWCOMERS)
    assert {grant.started_at for grant in late} == {trace.since + timedelta(days=2.5)}
    assert len({grant.card for grant in late}) == len(late)
    before = trace.inventory_at(trace.since + timedelta(days=2)).live_grants()
    assert {grant.card for grant in before}.isdisjoint(grant.card for grant in late)
    assert len(trace.cards) == 60


def test_a_team_can_label_its_workload_in_a_trace(tmp_path: Path) -> None:
    write_synthetic_fleet(tmp_path / "fleet", cards=60, days=2, step_seconds=3600)
    before = open_trace(tmp_path / "fleet")
    wanted = WorkloadId("research/Notebook/jupyter-anna")
    label_workload(tmp_path / "fleet", wanted, OPT_OUT_LABEL, "true")
    trace = open_trace(tmp_path / "fleet")
    old, new = before.grants_at(before.until), trace.grants_at(trace.until)
    changed = [(one, other) for one, other in zip(old, new, strict=True) if one != other]
    assert {grant.workload_id for pair in changed for grant in pair} == {wanted}
    assert [(grant.label(OPT_OUT_LABEL), grant.label("app")) for _, grant in changed] == [("true", "jupyter-anna")]
