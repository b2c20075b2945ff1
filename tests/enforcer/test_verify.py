"""Promised against realised: freed cards, give-backs, harm as a real cluster shows it, and the control."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest

from analyzer.survey import as_believed
from dashboards.words.advice import verdict_words
from enforcer.dialect import SeatSlice
from enforcer.lent_turns import turns
from enforcer.record.journal import Journal, RunRecord, StageState
from enforcer.record.verdict import Level, Standing, standing_of, verdict_of
from enforcer.suffered import HarmQuestion, PartHarm
from enforcer.verify import verify
from fleet.decisions import Need, Plan, RecommendationKind
from fleet.documents import outcome_document, outcome_of
from fleet.errors import NotEnoughData, Refused
from fleet.inventory import Grant, Inventory, Priority, WorkloadId
from fleet.outcomes import Outcome, WorkloadOutcome
from fleet.priority_holds import Holders
from fleet.schema import Measure
from fleet.sentences import sentence
from fleet.settings.settings import Settings
from fleet.usage import History, SliceKey, UsageGrid
from fleet.words import Language
from tests.enforcer.builders import (
    CARD_BYTES,
    HALF,
    NOW,
    a_cluster,
    a_grant,
    a_rollout,
    an_inventory,
    an_undo,
    card_id,
    some_tools,
    standard_plan,
)

STEPS = 6
A10_AT_HALF = Settings.model_validate({"prices": {"overrides": {"NVIDIA A10": "0.5"}}})
"""A card saves 84.00 a week."""


@dataclass
class Measured:
    """Grants and usage as somebody collected them."""

    grants: list[Grant]
    use: Mapping[str, float]
    framebuffer: Mapping[str, float]
    cache: Mapping[str, float]

    def inventory(self, since: datetime, until: datetime) -> Inventory:
        return self.history(since, until).inventory

    def harm(self, since: datetime, until: datetime, question: HarmQuestion) -> tuple[Inventory, list[PartHarm]]:
        found = self.history(since, until)
        return found.inventory, [question(as_believed(found, Settings().analyzer))]

    def history(self, since: datetime, until: datetime) -> History:
        live = [grant for grant in self.grants if grant.ended_at is None]
        keys = tuple(
            SliceKey(
                cluster="c1", namespace="team", pod=grant.pod, container="server", node=grant.node, card=grant.card,
                card_model=grant.card_model,
            )
            for grant in live
        )  # fmt: skip

        def rows(values: Mapping[str, float], default: float) -> np.ndarray:
            return np.array([[values.get(key.pod, default)] * STEPS for key in keys], np.float32)

        mean = {
            Measure.SM_ACTIVE: rows(self.use, 0.1),
            Measure.FRAMEBUFFER_USED: rows(self.framebuffer, 2.0**30),
            Measure.KV_CACHE_USAGE: rows(self.cache, np.nan),
        }
        grid = UsageGrid(
            keys=keys,
            since=since,
            step_seconds=int((until - since).total_seconds()) // STEPS,
            steps=STEPS,
            mean=mean,
            peak=mean,
        )
        return History(inventory=replace(an_inventory(self.grants), as_of=until), slices=grid)


def grants_after(moment: datetime, c_on: int = 4) -> list[Grant]:
    """Every pod's old grant up to a moment and its new one from then on, as `standard_plan` places them."""
    places = {"a-0": 0, "b-0": 0, "a-1": 1, "b-1": 1, "c-0": c_on, "c-1": c_on}
    old = {"a-0": 0, "a-1": 1, "b-0": 2, "b-1": 3, "c-0": 4, "c-1": 5}
    found = [replace(a_grant("book", 0, 6, kind="Notebook"), ended_at=moment), a_grant("train", 0, 7, kind="Job")]
    for pod, card in places.items():
        priority = Priority.LOW if pod.startswith("c") else Priority.HIGH
        name, number = pod.split("-")
        found.append(replace(a_grant(name, int(number), old[pod], priority=priority), ended_at=moment))
        found.append(a_grant(name, int(number), card, priority=priority, framebuffer_bytes=HALF, started_at=moment))
    return found


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Journal:
    folder = tmp_path_factory.mktemp("applied")
    tools = some_tools(a_cluster(folder), folder)
    a_rollout(tools).apply(standard_plan(), by="ann")
    return tools.journal


@pytest.fixture
def applied(journal: Journal) -> list[RunRecord]:
    return journal.runs()


def judged(
    runs: list[RunRecord],
    *,
    days: float = 7.5,
    more: tuple[Grant, ...] = (),
    c_on: int = 4,
    ended: str | None = None,
    plan: Plan | None = None,
    settings: Settings = A10_AT_HALF,
    holders: Holders | None = None,
    **measured: Mapping[str, float],
) -> Outcome:
    moment = max(record.applied_at for run in runs for record in run.records.values() if record.applied_at)
    measurements = Measured(
        grants=[
            replace(grant, ended_at=moment + timedelta(days=1)) if grant.workload == ended else grant
            for grant in (*grants_after(moment, c_on), *more)
        ],
        use=measured.get("use", {}),
        framebuffer=measured.get("framebuffer", {}),
        cache=measured.get("cache", {}),
    )
    now = NOW + timedelta(days=days)
    return verify(plan or standard_plan(), runs, measurements, now=now, settings=settings, holders=holders)


def test_promise_that_holds_is_realised(applied: list[RunRecord]) -> None:
    outcome = judged(applied)
    assert (outcome.promised_cards_freed, outcome.realised_cards_freed, outcome.given_back) == (4, 4, 0)
    assert {one.violation_ratio for one in outcome.workloads if one.active_steps} == {0.0}
    assert {one.workload for one in outcome.workloads if one.is_low_priority} == {WorkloadId("team/Deployment/c")}
    assert outcome.realised_saving_per_week.amortised == Decimal("336.00")
    assert outcome.is_final
    assert (outcome.harm_budget_ratio, outcome.restored) == (None, ())
    assert outcome.coverage_ratio == 1.0


def test_verdict_before_its_days_is_interim(applied: list[RunRecord]) -> None:
    outcome = judged(applied, days=2.0)
    assert not outcome.is_final
    assert "Interim: measured over 2 days so far." in verdict_words(verdict_of(outcome), Language.EN)


def test_card_that_its_owner_took_back_is_no_saving(applied: list[RunRecord]) -> None:
    back = a_grant("book", 0, 6, kind="Notebook", started_at=NOW + timedelta(days=3))
    outcome = judged(applied, more=(back,))
    assert (outcome.realised_cards_freed, outcome.given_back) == (3, 1)
    assert outcome.realised_saving_per_week.amortised == Decimal("252.00")
    verdict = verdict_of(outcome_of(outcome_document(outcome), name="kept"))
    assert (verdict.woken, verdict.reclaimed) == ((WorkloadId("team/Notebook/book"),), 1)
    words = verdict_words(verdict, Language.EN)
    assert words.startswith("1 of 1 reclaimed workload was needed again and started by somebody")
    assert "1 个已回收的工作负载中有 1 个又被需要" in verdict_words(verdict, Language.ZH)


def test_reclaim_that_nobody_needed_is_said_to_have_held(applied: list[RunRecord]) -> None:
    verdict = verdict_of(judged(applied))
    assert (verdict.woken, verdict.reclaimed) == ((), 1)
    assert "1 reclaimed workload was not started again" in verdict_words(verdict, Language.EN)


def test_services_of_the_tide_are_no_control(applied: list[RunRecord]) -> None:
    """Card 6 is full of two services that no stage moves, and nights of the tide take replicas of one of them away."""
    beside = tuple(a_grant(name, 0, 6, framebuffer_bytes=HALF, started_at=NOW - timedelta(days=1)) for name in "xy")
    plan = standard_plan()
    tide = replace(plan.recommendations[0], id="tide-1", kind=RecommendationKind.TIDE)
    names = (WorkloadId("team/Deployment/x"), WorkloadId("team/Deployment/y"))
    nightly = replace(plan, recommendations=(*plan.recommendations, replace(tide, workloads=names)))
    full = {"x-0": 0.5, "y-0": 0.5}
    assert judged(applied, more=beside, use=full).control_violation_ratio
    assert judged(applied, more=beside, use=full, plan=nightly).control_violation_ratio == 0.0


def test_freed_card_that_new_work_found_is_a_saving(applied: list[RunRecord]) -> None:
    new = a_grant("train-new", 0, 6, kind="Job", started_at=NOW + timedelta(days=3))
    assert judged(applied, more=(new,)).realised_cards_freed == 4


def test_full_shared_card_is_contention_of_those_on_it(applied: list[RunRecord]) -> None:
    outcome = judged(applied, use={"a-0": 0.5, "b-0": 0.5})
    served = [one for one in outcome.workloads if one.active_steps and not one.is_low_priority]
    assert [one.violation_ratio for one in served] == [0.5, 0.5]
    assert outcome.workloads[0].cause == "contention"
    assert {entry.workload: entry.violation_ratio for entry in outcome.workloads}[
        WorkloadId("team/Deployment/c")
    ] == 0.0


def test_low_priority_on_a_full_card_is_no_harm(applied: list[RunRecord]) -> None:
    outcome = judged(applied, use={"c-0": 0.6, "c-1": 0.4})
    assert {one.violation_ratio for one in outcome.workloads if one.active_steps} == {0.0}
    assert outcome.control_violation_ratio == 0.0


def test_low_priority_that_nothing_was_to_hold_back_is_judged_as_an_equal(applied: list[RunRecord]) -> None:
    plan = standard_plan()
    joined = replace(plan.recommendations[-1], kind=RecommendationKind.COLOCATE, needs=())
    equals = replace(plan, recommendations=(*plan.recommendations[:-1], joined))
    found = {one.workload: one for one in judged(applied, plan=equals, use={"c-0": 0.6, "c-1": 0.4}).workloads}
    harmed = found[WorkloadId("team/Deployment/c")]
    assert (harmed.violation_ratio, harmed.is_low_priority) == (1.0, False)


@pytest.mark.parametrize(
    ("holders", "is_equal"),
    [(None, False), (Holders(agents=frozenset({"node-0", "node-1"})), False), (Holders(), True)],
)
def test_low_priority_whose_agent_is_gone_is_judged_as_an_equal(
    applied: list[RunRecord], holders: Holders | None, is_equal: bool
) -> None:
    plan = standard_plan()
    item = replace(plan.recommendations[-1], kind=RecommendationKind.COLOCATE, needs=(Need.PRIORITY, Need.AGENT))
    promised = replace(plan, recommendations=(*plan.recommendations[:-1], item))
    found = judged(applied, plan=promised, use={"c-0": 0.6, "c-1": 0.4}, holders=holders).workloads
    harmed = next(one for one in found if one.workload == "team/Deployment/c")
    assert (harmed.violation_ratio, harmed.is_low_priority) == ((1.0, False) if is_equal else (0.0, True))


BOTH = frozenset({"node-0", "node-1"})


def counting_on_strict_agents() -> Plan:
    plan = standard_plan()
    needs = (Need.PRIORITY, Need.AGENT, Need.STRICT_AGENT)
    item = replace(plan.recommendations[-1], kind=RecommendationKind.COLOCATE, needs=needs)
    cards = tuple(
        replace(card, slices=(replace(card.slices[0], priority=Priority.HIGH), *card.slices[1:]))
        for card in plan.placement
    )
    return replace(plan, recommendations=(*plan.recommendations[:-1], item), placement=cards)


@pytest.mark.parametrize(
    ("holders", "says", "is_equal"),
    [
        (None, None, False),
        (Holders(agents=BOTH, strict=BOTH), None, False),
        (Holders(agents=BOTH), "lets low priority work until the card is full", False),
        (Holders(), "no agent that lets low priority sleep is ready on node", True),
    ],
)
def test_agent_that_holds_less_back_than_the_plan_counts_on_is_a_broken_condition(
    applied: list[RunRecord], holders: Holders | None, says: str | None, is_equal: bool
) -> None:
    outcome = judged(applied, plan=counting_on_strict_agents(), use={"c-0": 0.6, "c-1": 0.4}, holders=holders)
    verdict = verdict_of(outcome_of(outcome_document(outcome), name="kept"))
    assert bool(verdict.broken) is verdict.needs_hands is (says is not None)
    said = verdict_words(verdict, Language.EN)
    assert (says or "Measured over") in said
    assert ("judged as an equal" in said) is is_equal
    assert ("按平等争用评判" in verdict_words(verdict, Language.ZH)) is is_equal


@pytest.mark.parametrize(("gone_on_day", "is_broken"), [(None, True), (3.0, False), (20.0, False)])
def test_condition_counts_no_more_once_the_low_priority_is_gone(
    applied: list[RunRecord], gone_on_day: float | None, is_broken: bool
) -> None:
    """Also where it went long after the days that the verdict is about."""
    plan = counting_on_strict_agents()
    low = {part.workload for card in plan.placement for part in card.slices if part.priority is Priority.LOW}
    assert low

    class Going(Measured):
        def history(self, since: datetime, until: datetime) -> History:
            found = Measured.history(self, since, until)
            gone = None if gone_on_day is None else NOW + timedelta(days=gone_on_day)
            grants = [
                replace(grant, ended_at=gone)
                if grant.workload_id in low and grant.ended_at is None and gone is not None and gone < until
                else grant
                for grant in found.inventory.grants
            ]
            return replace(found, inventory=replace(found.inventory, grants=tuple(grants)))

    moment = max(record.applied_at for run in applied for record in run.records.values() if record.applied_at)
    outcome = verify(
        plan, applied, Going(grants=grants_after(moment), use={}, framebuffer={}, cache={}),
        now=NOW + timedelta(days=30), settings=A10_AT_HALF, holders=Holders(),
    )  # fmt: skip
    assert bool(outcome.broken) is is_broken


def test_busy_pod_that_is_alone_is_no_contention_but_counts_as_control(applied: list[RunRecord]) -> None:
    outcome = judged(applied, use={"train-0": 1.0})
    assert outcome.control_violation_ratio == 0.0


def test_filled_grant_is_short(applied: list[RunRecord]) -> None:
    outcome = judged(applied, framebuffer={"a-0": float(HALF)})
    assert outcome.workloads[0].cause == "short"
    assert outcome.workloads[0].violation_ratio == 0.5


def test_control_shows_harm_that_is_not_ours(applied: list[RunRecord]) -> None:
    beside = a_grant("lone", 0, 7)
    outcome = judged(applied, more=(beside,), use={"train-0": 0.5, "lone-0": 0.5})
    assert {one.violation_ratio for one in outcome.workloads if one.active_steps} == {0.0}
    assert outcome.control_violation_ratio == 1.0


def test_pod_with_a_card_to_itself_is_never_harmed(applied: list[RunRecord]) -> None:
    outcome = judged(applied, use={"train-0": 1.0}, framebuffer={"train-0": float(CARD_BYTES)})
    assert outcome.control_violation_ratio == 0.0


def test_pod_whose_grant_changed_is_not_its_own_neighbour(applied: list[RunRecord]) -> None:
    before = a_grant("solo", 0, 6, started_at=NOW + timedelta(days=1), ended_at=NOW + timedelta(days=6))
    after = a_grant("solo", 0, 6, started_at=NOW + timedelta(days=2))
    outcome = judged(applied, more=(before, after), use={"solo-0": 0.5}, framebuffer={"solo-0": float(CARD_BYTES)})
    assert outcome.control_violation_ratio == 0.0


def test_pod_that_fills_a_card_alone_does_not_contend_with_idle_neighbours(applied: list[RunRecord]) -> None:
    assert judged(applied, use={"a-0": 1.0, "b-0": 0.003}).workloads[0].violation_ratio == 0.0
    assert judged(applied, use={"a-0": 0.9, "b-0": 0.1}).workloads[0].violation_ratio == 0.5


def test_stage_that_found_its_pods_in_place_is_part_of_the_promise(applied: list[RunRecord]) -> None:
    (run,) = applied
    at_once = replace(run.records[2], stage=1, moves=[*run.records[1].moves, *run.records[2].moves])
    outcome = judged([replace(run, records={1: at_once})])
    assert outcome.promised_cards_freed == outcome.realised_cards_freed == standard_plan().totals.cards_freed


def test_stage_that_was_not_applied_was_not_promised(applied: list[RunRecord]) -> None:
    (run,) = applied
    outcome = judged([replace(run, records={1: run.records[1]})])
    assert outcome.promised_cards_freed == standard_plan().stages[0].cards_freed


def test_spare_cards_are_told_apart_from_the_promise(applied: list[RunRecord]) -> None:
    plan = standard_plan()
    advice = tuple(
        replace(item, freed=tuple(replace(card, is_spare=card.card == card_id(2)) for card in item.freed))
        for item in plan.recommendations
    )
    plan = replace(plan, recommendations=advice)
    outcome = judged(applied, plan=plan)
    assert (outcome.promised_cards_freed, outcome.realised_cards_freed) == (3, 3)
    assert outcome.spare_cards == 1
    assert [card.card for card in outcome.realised] == [card_id(number) for number in (3, 5, 6)]


def test_freed_cards_are_worth_their_own_price_of_the_measured_hours(applied: list[RunRecord]) -> None:
    source = {"source": "contract", "date": "2026-01"}
    rules = [
        {"node": "node-1", "per_card_hour": "3", "since": "2026-01-15", **source},
        {"node": "node-1", "per_card_hour": "1", **source},
        {"per_card_hour": "0.5", **source},
    ]
    outcome = judged(applied, settings=Settings.model_validate({"prices": {"rules": rules}}))
    by_card = {card.card: card.saving_per_week.amortised for card in outcome.realised}
    cheap = Decimal((datetime(2026, 1, 15, tzinfo=UTC) - outcome.since) / (outcome.until - outcome.since))
    dear = (168 * (cheap + 3 * (1 - cheap))).quantize(Decimal("0.01"))
    assert by_card == {card_id(2): Decimal("84.00"), card_id(3): Decimal("84.00"), card_id(5): dear, card_id(6): dear}
    assert outcome.realised_saving_per_week.amortised == 168 + 2 * dear


def test_cards_freed_by_two_runs_of_one_plan_are_all_realised(applied: list[RunRecord]) -> None:
    (run,) = applied
    first = replace(run, records={1: run.records[1]})
    second = replace(run, records={2: run.records[2]}, cards_granted=run.cards_granted - {card_id(6)})
    assert judged([first, second]).realised_cards_freed == 4


def without_names(applied: list[RunRecord]) -> list[RunRecord]:
    """The run as an API records it that names no cards."""
    (run,) = applied

    def unnamed(slices: tuple[SeatSlice, ...]) -> tuple[SeatSlice, ...]:
        return tuple(replace(part, card=None, node="node-0", resource="nvidia.com/gpu") for part in slices)

    records = {
        number: replace(
            record, moves=[replace(move, old=unnamed(move.old), new=unnamed(move.new)) for move in record.moves]
        )
        for number, record in run.records.items()
    }
    return [replace(run, records=records)]


def test_cards_are_realised_by_the_plans_names_where_the_api_names_none(applied: list[RunRecord]) -> None:
    outcome = judged(without_names(applied))
    assert (outcome.promised_cards_freed, outcome.realised_cards_freed) == (4, 4)
    held = a_grant("b", 7, 2, started_at=NOW - timedelta(days=1))
    assert judged(without_names(applied), more=(held,)).realised_cards_freed == 3


@pytest.mark.parametrize("spare", [None, 5], ids=["counted", "spare"])
def test_card_that_the_scheduler_emptied_instead_stands_in_for_the_plans(
    spare: int | None, applied: list[RunRecord]
) -> None:
    """The plan keeps card 4 and frees 5; the scheduler did it the other way round."""
    plan = standard_plan()
    items = tuple(
        replace(item, freed=tuple(replace(card, is_spare=card.card == card_id(spare or 99)) for card in item.freed))
        for item in plan.recommendations
    )
    outcome = judged(without_names(applied), c_on=5, plan=replace(plan, recommendations=items))
    assert (outcome.realised_cards_freed, outcome.spare_cards) == ((4, 0) if spare is None else (3, 1))
    assert outcome.given_back == 0
    assert (card_id(4) in {card.card for card in outcome.realised}) is (spare is None)


def test_card_that_the_plan_did_not_empty_stands_in_for_none(applied: list[RunRecord]) -> None:
    """Cards 4 and 5 are both held still; the Job on card 7, which the plan left alone, has ended by itself."""
    held = a_grant("c", 9, 5, started_at=NOW - timedelta(days=1))
    outcome = judged(without_names(applied), more=(held,), ended="train")
    assert (outcome.realised_cards_freed, outcome.given_back) == (3, 1)


def test_services_that_were_taken_back_are_counted_and_the_harm_budget_is_kept_beside(applied: list[RunRecord]) -> None:
    (run,) = applied
    restored = replace(run.records[2], state=StageState.RESTORED)
    moment = run.records[1].applied_at
    assert moment is not None
    plan = standard_plan()
    taken_back = next(one for one in plan.recommendations if one.id in plan.stages[0].recommendations)
    outcome = verify(
        plan,
        [replace(run, records={1: run.records[1], 2: restored})],
        Measured(grants=grants_after(moment), use={}, framebuffer={}, cache={}),
        now=NOW + timedelta(days=2),
        settings=Settings(),
        harm_ratio_max=0.02,
        undone=frozenset({taken_back.id}),
    )
    assert outcome.harm_budget_ratio == 0.02
    assert restored.moves
    assert set(outcome.restored) == {*(move.workload for move in restored.moves), *taken_back.workloads}


def test_plan_that_is_not_applied_cannot_be_verified() -> None:
    measured = Measured(grants=[], use={}, framebuffer={}, cache={})
    with pytest.raises(Refused, match="no stage"):
        verify(standard_plan(), [], measured, now=NOW, settings=Settings())


def test_undone_plan_cannot_be_verified(tmp_path: Path) -> None:
    tools = some_tools(a_cluster(tmp_path), tmp_path)
    a_rollout(tools).apply(standard_plan(), by="ann")
    an_undo(tools).undo(standard_plan().plan_id)
    measured = Measured(grants=[], use={}, framebuffer={}, cache={})
    with pytest.raises(Refused, match="no stage"):
        verify(standard_plan(), tools.journal.runs(), measured, now=NOW + timedelta(days=1), settings=Settings())


def test_moment_of_apply_is_too_early(applied: list[RunRecord]) -> None:
    with pytest.raises(NotEnoughData):
        judged(applied, days=0.0)


def test_card_ids_are_those_of_the_cluster(applied: list[RunRecord]) -> None:
    assert card_id(6) in applied[0].cards_granted


@pytest.mark.parametrize(
    ("works", "starts", "held", "count"),
    [
        (("1100", "0011"), (0, 2), (20, 20), 0),
        (("1100110011", "0011001100"), (0, 2), (20, 20), 3),
        (("0011", "0000"), (0, 0), (20, 20), 1),
        (("0011", "0000"), (1, 0), (20, 20), 0),
        (("101", "010"), (0, 0), (16, 16), 0),
        (("111", "111"), (0, 0), (20, 20), 4),
        (("1001", "0100", "0010"), (0, 1, 2), (15, 15, 15), 1),
        (("1010", "0101", "0000"), (0, 1, 4), (15, 15, 15), 0),
        (("1001", "0000"), (0, 4), (30, 30), 0),
    ],
    ids=[
        "what starts comes to the card anyhow", "by turns", "pushed out at the start", "started last", "both fit",
        "both at once", "two others", "third is not there", "alone",
    ],
)  # fmt: skip
def test_framebuffer_comes_back_where_others_that_worked_since_leave_no_room(
    works: tuple[str, ...], starts: tuple[int, ...], held: tuple[int, ...], count: int
) -> None:
    table = np.array([[step == "1" for step in row] for row in works])
    begins = np.arange(table.shape[1]) == np.array(starts)[:, None]
    assert turns(table, begins, np.array(held, float), 32.0) == count


LENT_DAYS = 7


def lent_plan(switches_per_day: float) -> Plan:
    """The first stage's two services lend, as a plan says it."""
    plan = standard_plan()
    clause = sentence("lend", cards=2, scaling=2.0, switches_per_day=switches_per_day, switch_seconds=1.0, host_bytes=9)
    changed = [
        replace(item, why=(clause, *item.why))
        if {"team/Deployment/a", "team/Deployment/b"} & set(item.workloads)
        else item
        for item in plan.recommendations
    ]
    return replace(plan, recommendations=tuple(changed))


def lent_outcome(
    runs: list[RunRecord], switches_per_day: float, *, turns_per_day: int = 2, measure: Measure = Measure.SM_ACTIVE,
    granted: int = CARD_BYTES * 3 // 4, days: float = LENT_DAYS, has_gap: bool = False, held: float = 2.0**30,
    is_granted_anew: bool = False,
) -> Outcome:  # fmt: skip
    """Two services on each of two cards take turns; both are granted three quarters of it."""
    moment = max(record.applied_at for run in runs for record in run.records.values() if record.applied_at)
    grants = [
        replace(grant, framebuffer_granted_bytes=granted) if grant.ended_at is None and grant.pod[0] in "ab" else grant
        for grant in grants_after(moment)
    ]
    if is_granted_anew:
        half = moment + timedelta(days=days / 2)
        grants = [
            part
            for grant in grants
            for part in (
                (replace(grant, ended_at=half), replace(grant, started_at=half))
                if grant.ended_at is None and grant.pod[0] == "a"
                else (grant,)
            )
        ]

    class Turning(Measured):
        def history(self, since: datetime, until: datetime) -> History:
            found = super().history(since, until)
            steps = int((until - since).total_seconds()) // 600
            turn = np.arange(steps) * turns_per_day // 144 % 2
            shown = [turn == (key.pod[0] == "b") for key in found.slices.keys]
            level = 0.5 + 0.001 * (np.arange(steps, dtype=np.float32) % 7)
            use = np.array(shown, np.float32) * level
            if measure is Measure.DUTY_CYCLE:
                use[:] = level
            if has_gap:
                use[:, ::2] = np.nan
            values = {measure: use, Measure.FRAMEBUFFER_USED: np.full(use.shape, held, np.float32)}
            grid = replace(found.slices, step_seconds=600, steps=steps, mean=values, peak=values)
            return replace(found, slices=grid)

    measured = Turning(grants=grants, use={}, framebuffer={}, cache={})
    return verify(lent_plan(switches_per_day), runs, measured, now=moment + timedelta(days=days), settings=A10_AT_HALF)


def said_of_lending(outcome: Outcome) -> str:
    return verdict_words(verdict_of(outcome), Language.EN)


def test_switches_of_lent_framebuffer_are_counted_beside_the_plans(applied: list[RunRecord]) -> None:
    outcome = lent_outcome(applied, 2.0)
    assert [one.card for one in outcome.lent] == [card_id(0), card_id(1)]
    for one in outcome.lent:
        assert one.switches_per_day == pytest.approx(2.0, abs=0.15)
        assert (one.predicted_switches_per_day, one.days, one.is_over) == (2.0, LENT_DAYS, False)
    assert "came back 2.0 times per card and day, by who worked when (predicted 2.0)" in said_of_lending(outcome)
    assert outcome_of(outcome_document(outcome), name="outcome") == outcome


@pytest.mark.parametrize("is_granted_anew", [False, True])
def test_pods_that_fit_change_no_hands_and_one_that_is_granted_anew_holds_its_framebuffer_once(
    applied: list[RunRecord], *, is_granted_anew: bool
) -> None:
    outcome = lent_outcome(applied, 2.0, held=CARD_BYTES * 0.45, is_granted_anew=is_granted_anew)
    assert [one.switches_per_day for one in outcome.lent] == [0.0, 0.0]


def test_card_that_changes_hands_over_a_fifth_more_often_than_predicted_is_named(applied: list[RunRecord]) -> None:
    outcome = lent_outcome(applied, 2.0, turns_per_day=4)
    assert all(one.is_over for one in outcome.lent)
    said = said_of_lending(outcome)
    assert (
        f"over a fifth more often than predicted on 2 of 2 cards, most on {card_id(0)}: 4.0 times a day instead of 2.0"
        in said
    )
    assert not verdict_of(outcome).needs_hands, "what waits is harm, and harm is judged by itself"


@pytest.mark.parametrize(
    "how",
    [
        {"measure": Measure.DUTY_CYCLE},
        {"days": 0.9},
        {"days": 1.5, "has_gap": True},
    ],
    ids=["the card's figure alone", "less than a day", "half of it not collected"],
)
def test_switches_that_nothing_shows_are_said_to_be_unmeasured(
    applied: list[RunRecord], how: dict[str, object]
) -> None:
    outcome = lent_outcome(applied, 2.0, **how)  # type: ignore[arg-type]
    assert [one.switches_per_day for one in outcome.lent] == [None, None]
    assert "is not measured here on 2 cards" in said_of_lending(outcome)


def test_workloads_that_share_no_card_too_small_for_them_are_no_cards(applied: list[RunRecord]) -> None:
    outcome = lent_outcome(applied, 2.0, granted=HALF)
    assert [one.card for one in outcome.lent] == [None, None]
    said = said_of_lending(outcome)
    assert "2 workloads that the plan lets lend framebuffer share no card that is too small" in said
    assert "not measured here on" not in said


def test_plan_that_lends_nothing_says_nothing_of_lending(applied: list[RunRecord]) -> None:
    outcome = judged(applied)
    assert outcome.lent == ()
    assert "framebuffer" not in said_of_lending(outcome)


class Serving(Measured):
    """Windows in which every pod answers requests, so that a zero proves nothing."""

    def history(self, since: datetime, until: datetime) -> History:
        found = super().history(since, until)
        mean = {**found.slices.mean, Measure.REQUEST_RATE: np.full((len(found.slices.keys), STEPS), 2.0, np.float32)}
        return replace(found, slices=replace(found.slices, mean=mean, peak=mean))


def outcome_after(runs: list[RunRecord], use: Mapping[str, float]) -> Outcome:
    """What `verify` makes of six windows; two pods share a card, and a pod that is not named reads 0.1."""
    moment = max(record.applied_at for run in runs for record in run.records.values() if record.applied_at)
    measured = Serving(grants=grants_after(moment), use=use, framebuffer={}, cache={})
    return verify(standard_plan(), runs, measured, now=NOW + timedelta(days=7.5), settings=A10_AT_HALF)


def service_of(outcome: Outcome, name: str) -> WorkloadOutcome:
    return next(one for one in outcome.workloads if one.workload == f"team/Deployment/{name}")


def test_zero_of_a_pod_that_serves_is_not_measured_and_neither_is_its_neighbour(applied: list[RunRecord]) -> None:
    outcome = outcome_after(applied, {"b-0": 0.0, "b-1": 0.0})
    for name in "ab":
        found = service_of(outcome, name)
        assert (found.violation_ratio, found.active_steps, found.unjudged_pods) == (None, 0, (f"{name}-0", f"{name}-1"))
        assert standing_of(found, 0.01) is Standing.UNMEASURED
    verdict = verdict_of(outcome)
    assert (verdict.level, verdict.observed_ratio, verdict.pods) == (Level.UNMEASURED, None, 6)
    words = verdict_words(verdict, Language.EN)
    assert "No more harm than predicted" not in words
    assert "Harm of 4 of 6 pods can't be judged" in words
    assert "team/a-0, team/a-1, team/b-0" in words
    assert "6 个 Pod 中有 4 个" in verdict_words(verdict, Language.ZH)


def test_missing_counters_after_a_plan_are_no_quiet_days(applied: list[RunRecord]) -> None:
    outcome = outcome_after(applied, dict.fromkeys(("a-0", "a-1", "b-0", "b-1", "c-0", "c-1", "train-0"), float("nan")))
    assert {one.violation_ratio for one in outcome.workloads if one.pods} == {None}
    assert outcome.control_violation_ratio is None
    assert verdict_of(outcome).level is Level.UNMEASURED


def test_low_priority_with_lying_counters_hides_nobody_elses_harm(applied: list[RunRecord]) -> None:
    low = {grant.pod for grant in grants_after(NOW) if grant.priority is Priority.LOW}
    outcome = outcome_after(applied, dict.fromkeys(low, 0.0))
    assert {one.workload for one in outcome.workloads if one.unjudged_pods} == {WorkloadId("team/Deployment/c")}


def test_one_pod_that_is_judged_speaks_for_no_majority_but_its_harm_counts(applied: list[RunRecord]) -> None:
    """Card 0 is full and honest, of card 1 a tenant's counters lie."""
    outcome = outcome_after(applied, {"a-0": 0.5, "b-0": 0.5, "b-1": 0.0})
    assert service_of(outcome, "a").violation_ratio == service_of(outcome, "b").violation_ratio == 1.0
    assert service_of(outcome, "a").unjudged_pods == ("a-1",)


def test_harm_that_is_sure_counts_though_a_neighbour_is_not_measured(applied: list[RunRecord]) -> None:
    full = dict.fromkeys(("a-0", "b-0"), float(HALF))
    moment = max(record.applied_at for run in applied for record in run.records.values() if record.applied_at)
    measured = Serving(grants=grants_after(moment), use={"b-0": 0.0}, framebuffer=full, cache={})
    outcome = verify(standard_plan(), applied, measured, now=NOW + timedelta(days=7.5), settings=A10_AT_HALF)
    assert service_of(outcome, "a").violation_ratio == 0.5
    assert service_of(outcome, "a").cause == "short"
