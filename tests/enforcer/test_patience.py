"""A run outlasts an API server that is away for hours, says what it waits for, and can still be ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from bench.faulty_cluster import Faults, FaultyCluster
from enforcer.record.journal import Journal, StageState
from enforcer.record.ledger import Entry, Ledger
from enforcer.rollout.abort import open_run
from enforcer.rollout.patience import Patience
from enforcer.rollout.progress import Progress
from fleet.errors import Unavailable
from tests.enforcer.builders import HOLD_SECONDS, a_cluster, a_rollout, an_undo, some_tools, standard_plan, where
from tests.enforcer.test_abort import NOTHING, wanted
from tests.enforcer.test_rollout import AFTER, BEFORE, owners
from wire.kubernetes.refusals import Forbidden

PLAN = standard_plan().plan_id
HOURS_AWAY = 2


class LedgerInCluster(Ledger):
    """A ledger that a cluster keeps: while that is away nothing of it is read or written."""

    def __init__(self, path: Path, cluster: FaultyCluster) -> None:
        super().__init__(path)
        self._cluster = cluster

    def append(self, events: Sequence[tuple[str, Mapping[str, Any]]], *, plan_id: str, at: datetime) -> None:
        self._cluster.reach()
        super().append(events, plan_id=plan_id, at=at)
        self._cluster.answer()

    def entries(self, plan_id: str | None = None) -> tuple[Entry, ...]:
        self._cluster.reach()
        return super().entries(plan_id)


def journal_in(cluster: FaultyCluster, folder: Path) -> Journal:
    return Journal(LedgerInCluster(folder / "ledger.jsonl", cluster))


def a_faulty_cluster(folder: Path) -> FaultyCluster:
    a_cluster(folder).close()
    return FaultyCluster(folder / "cluster.sqlite", Faults())


class Absence:
    """The API server goes away at a step and is back after some hours of pauses."""

    def __init__(self, cluster: FaultyCluster, at: str, *, hours: float = HOURS_AWAY) -> None:
        self.cluster, self.at, self.hours = cluster, at, hours
        self.spent = 0.0
        self.has_been = False

    def step(self, name: str) -> None:
        if name.startswith(self.at) and not self.has_been:
            self.has_been = self.cluster.is_away = True

    def pause(self, seconds: float) -> None:
        self.cluster.pause(seconds)
        if self.cluster.is_away:
            self.spent += seconds
            self.cluster.is_away = self.spent < self.hours * 3600


@pytest.mark.parametrize(
    "at", ["patch team/Notebook/book", "patch team/Deployment/a", "patch team/Deployment/b", "watched rest", "promote"]
)
def test_run_goes_on_when_the_api_server_is_back_after_hours(tmp_path: Path, at: str) -> None:
    cluster = a_faulty_cluster(tmp_path)
    absence = Absence(cluster, at)
    news: list[Progress] = []
    tools = some_tools(
        cluster, tmp_path, step=absence.step, pause=absence.pause, on_progress=news.append,
        journal=journal_in(cluster, tmp_path),
    )  # fmt: skip
    results = a_rollout(tools).apply(standard_plan(), by="ann")
    assert absence.spent >= HOURS_AWAY * 3600
    assert [result.state for result in results] == [StageState.PROMOTED, StageState.PROMOTED]
    assert where(cluster) == AFTER
    said = [dict(entry.said.values) for entry in news if entry.said.code == "progress.waiting"]
    assert "connection refused" in str(said[-1]["why"])
    assert any(float(str(values["seconds"])) > 3600 for values in said)


def test_canary_that_nobody_could_judge_while_its_owner_waited_is_taken_back(tmp_path: Path) -> None:
    cluster = a_faulty_cluster(tmp_path)
    before = owners(cluster)
    spent = [0.0]
    phases: list[str] = []

    def pause(seconds: float) -> None:
        cluster.pause(seconds)
        if phases and phases[-1] == "progress.watching canary" and not spent[0]:
            cluster.is_away = True
        if cluster.is_away:
            spent[0] += seconds
            cluster.is_away = spent[0] < 1800

    tools = some_tools(
        cluster,
        tmp_path,
        pause=pause,
        on_progress=lambda news: phases.append(f"{news.said.code} {dict(news.said.values).get('batch')}"),
    )
    (result,) = a_rollout(tools).apply(standard_plan(), [2], by="ann")
    assert result.state is StageState.RESTORED
    assert f"could not be judged within the {HOLD_SECONDS} s" in str(result.reason)
    assert owners(cluster) == before


def test_undo_goes_on_when_the_api_server_is_back_after_hours(tmp_path: Path) -> None:
    cluster = a_faulty_cluster(tmp_path)
    a_rollout(some_tools(cluster, tmp_path)).apply(standard_plan(), by="ann")
    absence = Absence(cluster, "restore team/Deployment/a")
    journal = journal_in(cluster, tmp_path)
    an_undo(some_tools(cluster, tmp_path, step=absence.step, pause=absence.pause, journal=journal)).undo(PLAN)
    assert absence.spent >= HOURS_AWAY * 3600
    assert where(cluster) == BEFORE


def test_run_that_waits_for_the_api_server_can_be_ended(tmp_path: Path) -> None:
    cluster, plans = a_faulty_cluster(tmp_path), wanted(tmp_path)
    absence = Absence(cluster, "patch team/Deployment/a")

    def pause(seconds: float) -> None:
        absence.pause(seconds)
        if 600 < absence.spent < 610:
            plans.change_wish(PLAN, NOTHING)

    tools = some_tools(cluster, tmp_path, step=absence.step, pause=pause, wishes=plans)
    results = a_rollout(tools).apply(standard_plan(), by="ann")
    assert (results[-1].state, str(results[-1].reason)) == (StageState.RESTORED, "aborted by bob")
    assert open_run(tools.journal) is None
    assert where(cluster)["a-0"] == BEFORE["a-0"]


def test_who_waited_for_the_api_server_goes_on_only_while_the_lease_is_its_own(tmp_path: Path) -> None:
    cluster = a_faulty_cluster(tmp_path)
    absence = Absence(cluster, "patch team/Deployment/b")

    def pause(seconds: float) -> None:
        was_away = cluster.is_away
        absence.pause(seconds)
        if was_away and not cluster.is_away:
            assert cluster.acquire("rival", 3600.0)

    tools = some_tools(cluster, tmp_path, step=absence.step, pause=pause)
    held = cluster.get("Deployment", "team", "b")
    with pytest.raises(Exception, match="somebody else holds the lease"):
        a_rollout(tools).apply(standard_plan(), by="ann")
    assert cluster.get("Deployment", "team", "b") == held


@pytest.mark.parametrize("at", ["patch team/Notebook/book", "promote 1", "promote 2"])
def test_entry_of_the_ledger_whose_answer_was_lost_is_written_once(tmp_path: Path, at: str) -> None:
    cluster = a_faulty_cluster(tmp_path)

    def step(name: str) -> None:
        cluster.lost_answers = int(name.startswith(at))

    tools = some_tools(cluster, tmp_path, step=step, journal=journal_in(cluster, tmp_path))
    a_rollout(tools).apply(standard_plan(), by="ann")
    assert where(cluster) == AFTER
    events = [entry.event for entry in Ledger(tmp_path / "ledger.jsonl").entries()]
    assert (events.count("promoted"), events.count("end")) == (2, 1)


@pytest.mark.parametrize("at", ["patch team/Deployment/a", "watched canary", "promote 2"])
def test_server_that_has_just_started_and_knows_no_roles_yet_is_asked_again(tmp_path: Path, at: str) -> None:
    cluster = a_faulty_cluster(tmp_path)
    spent = [0.0]

    def step(name: str) -> None:
        cluster.is_starting |= name.startswith(at) and not spent[0]

    def pause(seconds: float) -> None:
        cluster.pause(seconds)
        if cluster.is_starting:
            spent[0] += seconds
            cluster.is_starting = spent[0] < 20.0

    tools = some_tools(cluster, tmp_path, step=step, pause=pause, journal=journal_in(cluster, tmp_path))
    a_rollout(tools).apply(standard_plan(), by="ann")
    assert 20.0 <= spent[0] <= 60.0
    assert where(cluster) == AFTER


def test_right_that_is_missing_from_the_start_is_said_at_once_and_one_that_is_taken_after_a_minute() -> None:
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)

    def call() -> None:
        raise Forbidden("no right")

    with pytest.raises(Forbidden):
        Patience(pause)(call)
    assert pauses == []
    with pytest.raises(Forbidden):
        Patience(pause, rights_seconds_max=60.0)(call)
    assert sum(pauses) == pytest.approx(60.0)


def test_pauses_grow_to_a_minute_and_the_waiting_ends() -> None:
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)

    def call() -> None:
        raise Unavailable("away")

    with pytest.raises(Unavailable, match="away"):
        Patience(pause, seconds_max=3600.0)(call)
    assert pauses[0] <= 2.0
    assert 30.0 <= max(pauses) <= 60.0
    assert sum(pauses) == pytest.approx(3600.0)
