"""Plans of a data folder as the pages list them, and rollouts that run beside the pages."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from dashboards.pages.plan_rollout import standing_words
from dashboards.queries import RolloutPhase
from dashboards.stored.plans import BackgroundRollouts, StoredPlans
from enforcer.backend import Move
from enforcer.dialect import SeatSlice
from enforcer.forge.forge import ForgeRequest, RequestState
from enforcer.record.journal import Journal, StageRecord
from enforcer.record.ledger import Ledger
from enforcer.record.plan_cache import PlanCache
from enforcer.record.plan_store import PlanStore
from enforcer.record.request_log import RequestLog
from enforcer.rollout.progress import Progress
from enforcer.rollout.reconciler import Reconciler
from enforcer.safety.guard import Guard
from fleet.data_folder import DataFolder, open_data_folder
from fleet.decisions import Plan
from fleet.documents import seal_plan
from fleet.durable import FolderLock
from fleet.sentences import sentence
from tests.dashboards.embedded import CLUSTER, NOW, make_plan, make_profiles
from tests.waiting import until

WHOLE = make_plan(make_profiles())
PLAN = seal_plan(replace(WHOLE, plan_id="", refused=()))
NEWER = seal_plan(replace(PLAN, plan_id="", created_at=NOW + timedelta(hours=1)))


@pytest.fixture
def folder(tmp_path: Path) -> DataFolder:
    return open_data_folder(tmp_path / "data", create=True)


def no_guard() -> Guard:
    raise AssertionError("a plan without approvals asks no guard")


def promoted(folder: DataFolder, plan: Plan, stage: int) -> None:
    """The ledger of a stage that brought each of its pods to the cards that the plan names."""
    names = plan.stages[stage - 1].recommendations
    pods = {pod: item for item in plan.recommendations if item.id in names for pod in item.pods}
    cards: dict[str, list[str]] = {pod: [] for pod in pods}
    for place in plan.placement:
        for part in place.slices:
            if part.pod_id in cards:
                cards[part.pod_id].append(place.card)
    record = StageRecord(plan_id=plan.plan_id, stage=stage)
    for pod, item in pods.items():
        namespace, _, name = pod.partition("/")
        new = tuple(
            SeatSlice(container="main", card=card, framebuffer_mib=1024, core_percent=50, priority=None)
            for card in cards[pod]
        )
        record.moves.append(
            Move(namespace=namespace, pod=name, workload=item.workloads[0], recommendation=item.id, old=(), new=new)
        )
    journal = Journal(Ledger(folder.ledger))
    journal.write(plan.plan_id, NOW, "begin", stages=[stage], by="mei", cards_granted=[], cluster=CLUSTER)
    journal.begin_stage(record, NOW)
    journal.write(plan.plan_id, NOW, "promoted", stage=stage)


def test_list_reads_no_plan_again_that_was_dropped_from_memory(folder: DataFolder) -> None:
    store = PlanStore(folder.plans)
    store.add(PLAN)
    file = folder.plans / f"{PLAN.plan_id}.json"
    os.utime(file, (1, 1))
    store.add(NEWER)
    promoted(folder, PLAN, 2)
    plans = StoredPlans(
        folder, PlanCache(folder.plans, items_max=1), lambda: NOW, guard=no_guard, preview=lambda *_: (),
        open_plans=lambda: nullcontext(store),
    )  # fmt: skip
    plans.plans(CLUSTER)
    first = plans.plans(CLUSTER)
    assert [entry.applied_stages for entry in first] == [(), (2,)]
    assert first[1].plan.placement == ()
    # The same file by its time, size and place: who reads it again finds no plan.
    file.write_bytes(b" " * file.stat().st_size)
    os.utime(file, (1, 1))
    assert plans.plans(CLUSTER) == first


def test_rollout_that_a_bug_ends_is_shown_as_failed_and_the_log_has_its_traceback(folder: DataFolder) -> None:
    @contextmanager
    def open_reconciler(_: Callable[[Progress], None]) -> Iterator[Reconciler]:
        raise ZeroDivisionError("no batch")
        yield

    store = PlanStore(folder.plans)
    store.add(PLAN)
    rollouts = BackgroundRollouts(
        folder, check=lambda _: None, open_reconciler=open_reconciler, open_plans=lambda: nullcontext(store)
    )
    with capture_logs() as logged:
        rollouts.apply(PLAN.plan_id, (1,), "mei")
        until(lambda: not rollouts.progress(PLAN.plan_id).is_running)
    found = rollouts.progress(PLAN.plan_id)
    assert found.phase is RolloutPhase.FAILED
    assert found.said == sentence("progress.bug", fault="ZeroDivisionError: no batch")
    assert [(one["event"], one["exc_info"]) for one in logged] == [("rollout ended by a bug", True)]


def test_applied_plan_that_counts_on_relief_says_so_while_none_runs(folder: DataFolder) -> None:
    counting = seal_plan(replace(PLAN, totals=replace(PLAN.totals, unrelieved_violation_ratio=0.0114)))
    store = PlanStore(folder.plans)
    store.add(counting)
    promoted(folder, counting, 2)
    plans = StoredPlans(
        folder, PlanCache(folder.plans), lambda: NOW, guard=no_guard, preview=lambda *_: (),
        open_plans=lambda: nullcontext(store),
    )  # fmt: skip

    def reason() -> str:
        entry = plans.plan(counting.plan_id)
        assert entry is not None
        return str(entry.apply_refusal)

    assert "without it 1.1 % of the active time" in reason()
    with FolderLock(folder.path, "relief"):
        assert "relief" not in reason()


def test_plan_shows_its_pull_request_as_it_was_seen_last(folder: DataFolder) -> None:
    PlanStore(folder.plans).add(PLAN)
    plans = StoredPlans(
        folder, PlanCache(folder.plans), lambda: NOW, guard=no_guard, preview=lambda *_: (),
        open_plans=lambda: nullcontext(PlanStore(folder.plans)),
    )  # fmt: skip
    entry = plans.plan(PLAN.plan_id)
    assert entry is not None
    assert (entry.request, standing_words(entry, None)) == (None, "")
    seen = ForgeRequest(number=7, url="https://git.example.org/7", state=RequestState.OPEN, title="t", body="b")
    log = RequestLog(folder)
    log.see(PLAN.plan_id, seen, NOW)
    log.see(PLAN.plan_id, seen, NOW + timedelta(hours=1))
    log.see(NEWER.plan_id, replace(seen, number=8), NOW)
    log.see(PLAN.plan_id, replace(seen, state=RequestState.MERGED), NOW + timedelta(hours=2))
    entry = plans.plan(PLAN.plan_id)
    assert entry is not None
    assert entry.request is not None
    assert (entry.request.state, entry.request.seen_at) == (RequestState.MERGED, NOW + timedelta(hours=2))
    assert standing_words(entry, "expired") == "◂ expired · pull request https://git.example.org/7: merged"
    assert len(Ledger(folder.requests).entries()) == 3
