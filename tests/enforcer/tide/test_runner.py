"""The tide on the simulated cluster: out, in, home, in time; and what happens when something goes wrong on the way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, time, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from enforcer.cluster import FieldChange
from enforcer.dialect import SeatSlice
from enforcer.manifest import field_of
from enforcer.record.ledger import Ledger
from enforcer.record.plan_store import PlanStore
from enforcer.rollout.run_context import RunContext
from enforcer.safety.guard import Guard, GuardPolicy
from enforcer.seat import PodSeat
from enforcer.simulated.cluster import SimulatedCluster
from enforcer.tide.calendar import TideCalendar
from enforcer.tide.early_home import Busy, in_need
from enforcer.tide.homecoming import SAVE_BY_ANNOTATION, Homecoming, TidePolicy, TideStep
from enforcer.tide.letting_in import RUNS_UNTIL_ANNOTATION, TIDE_LABEL
from enforcer.tide.runner import TideMetrics, TideRunner
from enforcer.tide.tide_journal import TideJournal, evictions_of
from fleet.decisions import Plan, ScheduledReplicas
from fleet.documents import seal_plan
from fleet.errors import GputideError, Refused, Unavailable
from fleet.inventory import TIER_LABEL, WorkloadId
from fleet.tiers import Guarantee, Tier
from tests.enforcer.builders import NOW, a_cluster, a_grant, a_yes, card_id, some_tools, standard_plan, where, with_tide
from tests.scraping import scraped
from wire.kubernetes.refusals import Forbidden
from wire.own_metrics import OwnMetrics, own_port

CALENDAR = TideCalendar(start=time(22, 30), end=time(7, 30), time_zone=ZoneInfo("UTC"))
"""The cluster's clock begins at midnight: in the middle of a night."""
SCHEDULE = tuple(
    ScheduledReplicas(
        workload=WorkloadId(f"team/Deployment/{name}"), replicas=1, start="22:30", end="07:30", time_zone="UTC",
        frees=(card_id(card),),
    )
    for name, card in (("a", 1), ("b", 3))
)  # fmt: skip
PLAN = with_tide(standard_plan(), SCHEDULE)
TIDE = 3
"""Its stage."""
GUARANTEES = {
    Tier.MID: Guarantee(hours_min=4.0, notice_seconds=300.0, evictions_per_hour_max=0.02),
    Tier.BATCH: Guarantee(hours_min=1.0, notice_seconds=60.0, evictions_per_hour_max=0.05),
    Tier.FREE: Guarantee(),
}
SAVE_BY = f"metadata.annotations[{SAVE_BY_ANNOTATION}]"
QUEUE = {
    "apiVersion": "kueue.x-k8s.io/v1beta1",
    "kind": "ClusterQueue",
    "metadata": {"name": "night", "namespace": ""},
    "spec": {"stopPolicy": "Hold"},
}


class Crash(Exception):
    """The process was killed here."""


@dataclass
class World:
    """A cluster and its tide."""

    cluster: SimulatedCluster
    tools: RunContext
    journal: TideJournal
    plans: PlanStore
    folder: Path

    def runner(self, plan: Plan = PLAN, busy: Callable[[], Busy] = Busy) -> TideRunner:
        policy = TidePolicy(
            guarantees=GUARANTEES, stop_seconds_max=60.0, home_seconds_max=600.0, queues=("night", "other")
        )  # fmt: skip
        return TideRunner(
            self.tools,
            self.journal,
            plan,
            CALENDAR,
            policy,
            lambda: self.plans.approvals(plan.plan_id),
            busy=busy,
        )

    def value(self, kind: str, name: str, field: str, namespace: str = "team") -> str | None:
        manifest = self.cluster.get(kind, namespace, name)
        return None if manifest is None else field_of(manifest, field)

    def replicas(self) -> tuple[str | None, str | None]:
        return self.value("Deployment", "a", "spec.replicas"), self.value("Deployment", "b", "spec.replicas")

    def night(self) -> None:
        """Go out, all the way."""
        for _ in range(5):
            if self.runner().step().step is TideStep.ADMITTED:
                return
            self.cluster.pause(60.0)
        raise AssertionError("low priority was never let in")

    def until(self, hours: float) -> None:
        self.cluster.pause(hours * 3600.0)


@pytest.fixture
def world(tmp_path: Path) -> World:
    cluster = a_cluster(tmp_path)
    cluster.create(dict(QUEUE))
    tools = some_tools(cluster, tmp_path, guard=Guard(GuardPolicy()))
    plans = PlanStore(tmp_path / "plans")
    plans.add(PLAN)
    plans.approve(PLAN, [TIDE], by="ada", at=NOW)
    journal = TideJournal(Ledger(tmp_path / "tide.jsonl"))
    return World(cluster=cluster, tools=tools, journal=journal, plans=plans, folder=tmp_path)


def test_services_step_back_low_priority_comes_in_and_all_is_given_back_in_time(world: World) -> None:
    world.night()
    assert world.replicas() == ("1", "1")
    sitting = {pod for pod, place in where(world.cluster).items() if isinstance(place, tuple)}
    assert sitting >= {"book-0", "train-0"}
    assert len([pod for pod in sitting if pod.startswith(("a-", "b-"))]) == 2
    (night,) = world.journal.nights()
    assert set(night.freed) == {card_id(1), card_id(3)}
    assert world.value("ClusterQueue", "night", "spec.stopPolicy", "") == "None"
    assert world.runner().step().step is TideStep.NOTHING
    world.until(6.6)
    home = world.runner().step()
    assert home.step is TideStep.CAME_HOME
    assert "in time" in home.said[-1]
    assert world.replicas() == ("2", "2")
    assert world.value("ClusterQueue", "night", "spec.stopPolicy", "") == "Hold"
    assert len([place for place in where(world.cluster).values() if isinstance(place, tuple)]) == 8
    world.until(1.0)
    assert world.runner().step().step is TideStep.NOTHING


def test_marked_job_works_at_night_and_is_asked_to_save(world: World) -> None:
    a_night_job(world)
    world.night()
    assert world.value("Job", "train", "spec.suspend") == "false"
    world.until(6.6)
    asked = asked_to_save(world, "train")
    assert world.runner().step().step is TideStep.CAME_HOME
    assert world.value("Job", "train", "spec.suspend") == "true"
    assert (asked["train"] or "").startswith("2026-01-12T06:")
    assert world.value("Job", "train", SAVE_BY) is None, "the next night would begin with it"
    assert any(event[4] == "GputideTide" for event in world.cluster.events())


def asked_to_save(world: World, *jobs: str) -> dict[str, str | None]:
    """By when Jobs read that they are to save, while they do; filled by the steps that come."""
    found: dict[str, str | None] = dict.fromkeys(jobs)

    def look(_: str) -> None:
        found.update({name: found[name] or world.value("Job", name, SAVE_BY) for name in jobs})

    world.tools.step = look
    return found


def test_autoscaler_is_lowered_and_never_fought(world: World) -> None:
    world.cluster.create(autoscaler("a", low=2, wanted=1))
    world.cluster.create(autoscaler("b", low=2, wanted=2))
    result = world.runner().step()
    assert world.value("HorizontalPodAutoscaler", "a", "spec.minReplicas") == "1"
    # Its replicas are the autoscaler's business.
    assert world.value("Deployment", "a", "spec.replicas") == "2"
    # b is asked for more than the night's forecast.
    assert world.value("HorizontalPodAutoscaler", "b", "spec.minReplicas") == "2"
    assert any("wants 2 now" in text for text in result.said)
    world.until(6.6)
    world.runner().step()
    assert world.value("HorizontalPodAutoscaler", "a", "spec.minReplicas") == "2"


def autoscaler(name: str, *, low: int, wanted: int) -> dict[str, Any]:
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": name, "namespace": "team"},
        "spec": {"minReplicas": low, "scaleTargetRef": {"kind": "Deployment", "name": name}},
        "status": {"desiredReplicas": wanted},
    }


@pytest.mark.parametrize(
    ("mark", "said"),
    [({"gputide.io/opt-out": "true"}, "opted out"), ({"gputide.io/min-replicas-warm": "2"}, "warm")],
)
def test_service_that_says_no_keeps_what_it_has(world: World, mark: dict[str, str], said: str) -> None:
    owner = world.cluster.get("Deployment", "team", "a")
    assert owner is not None
    owner["metadata"].setdefault("annotations", {}).update(mark)
    world.cluster.create(owner)
    result = world.runner().step()
    assert any(said in text for text in result.said)
    assert world.value("Deployment", "a", "spec.replicas") == "2"


def test_service_whose_policy_keeps_replicas_warm_keeps_what_it_has(world: World) -> None:
    spec = {"minReplicasWarm": 2}
    world.cluster.create({"kind": "GpuPolicy", "metadata": {"namespace": "team", "name": "warm"}, "spec": spec})
    assert any("keeps more than 1 replicas warm" in text for text in world.runner().step().said)
    assert world.value("Deployment", "a", "spec.replicas") == "2"


def test_abort_gives_everything_back_at_once_and_the_night_is_over(world: World) -> None:
    world.night()
    assert world.runner().abort("ada").step is TideStep.CAME_HOME
    assert world.replicas() == ("2", "2")
    world.cluster.pause(60.0)
    assert world.runner().step().said == ("this night is over",)
    with pytest.raises(Refused, match="no night is under way"):
        world.runner().abort("ada")


@pytest.mark.parametrize("place", range(12))
def test_crash_at_any_step_is_gone_on_from(world: World, place: int) -> None:
    steps = 0

    def crash(_: str) -> None:
        nonlocal steps
        steps += 1
        if steps == place + 1:
            raise Crash

    world.tools.step = crash
    for hours in (0.0, 0.1, 6.6, 0.0):
        world.until(hours)
        for _ in range(3):
            try:
                world.runner().step()
            except Crash:
                world.tools.lease.release(world.tools.holder)
    assert world.replicas() == ("2", "2")
    assert world.value("ClusterQueue", "night", "spec.stopPolicy", "") == "Hold"
    assert not any(night.is_open for night in world.journal.nights())
    assert len([place for place in where(world.cluster).values() if isinstance(place, tuple)]) == 8


def test_frozen_cluster_does_not_go_out_and_comes_home_nevertheless(world: World) -> None:
    freeze = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "gputide-freeze", "namespace": "gputide"}}
    world.cluster.create({**freeze})
    assert "freezes it" in why_no_night(world)
    assert world.replicas() == ("2", "2")
    world.cluster.delete("ConfigMap", "gputide", "gputide-freeze")
    world.night()
    world.cluster.create({**freeze})
    world.until(6.6)
    assert world.runner().step().step is TideStep.CAME_HOME
    assert world.replicas() == ("2", "2")


def test_what_somebody_changed_in_the_night_is_kept_and_told(world: World) -> None:
    world.night()
    owner = world.cluster.get("Deployment", "team", "a")
    assert owner is not None
    owner["spec"]["replicas"] = 3
    world.cluster.create(owner)
    world.until(6.6)
    home = world.runner().step()
    assert world.value("Deployment", "a", "spec.replicas") == "3"
    assert any("team/Deployment/a" in text for text in home.said)


def test_lead_grows_with_what_giving_back_took(world: World) -> None:
    least = timedelta(minutes=10)
    assert world.journal.lead(least) == least
    world.night()
    world.until(6.6)
    world.runner().step()
    (night,) = world.journal.nights()
    assert night.gave_back_after_seconds is not None
    world.journal.end("p", world.cluster.now(), seconds=4000.0, is_late=True, kept=())
    assert world.journal.lead(least) == timedelta(seconds=5000)


def test_bound_of_a_scaled_object_is_lowered_and_not_the_one_that_keda_keeps(world: World) -> None:
    scaled = {
        "apiVersion": "keda.sh/v1alpha1",
        "kind": "ScaledObject",
        "metadata": {"name": "a", "namespace": "team"},
        "spec": {"minReplicaCount": 2, "scaleTargetRef": {"name": "a"}},
    }
    world.cluster.create(scaled)
    kept = autoscaler("a", low=2, wanted=1)
    kept["metadata"]["name"] = "keda-hpa-a"
    world.cluster.create(kept)
    world.runner().step()
    assert world.value("ScaledObject", "a", "spec.minReplicaCount") == "1"
    assert world.value("HorizontalPodAutoscaler", "keda-hpa-a", "spec.minReplicas") == "2"


def test_demand_that_keda_sees_keeps_a_service_as_it_is(world: World) -> None:
    scaled = {
        "apiVersion": "keda.sh/v1alpha1",
        "kind": "ScaledObject",
        "metadata": {"name": "a", "namespace": "team"},
        "spec": {"minReplicaCount": 2, "scaleTargetRef": {"name": "a"}},
    }
    world.cluster.create(scaled)
    kept = autoscaler("a", low=2, wanted=2)
    kept["metadata"]["name"] = "keda-hpa-a"
    world.cluster.create(kept)
    assert any("wants 2 now" in text for text in world.runner().step().said)
    assert world.value("ScaledObject", "a", "spec.minReplicaCount") == "2"


def test_service_is_short_until_it_has_what_its_autoscaler_must_give_it(world: World) -> None:
    world.cluster.create(autoscaler("a", low=3, wanted=3))
    assert world.runner().short() == {WorkloadId("team/Deployment/a"): "2 of 3 replicas are ready"}


def test_number_beyond_all_bounds_on_a_service_keeps_it_as_it_is(world: World) -> None:
    owner = world.cluster.get("Deployment", "team", "a")
    assert owner is not None
    owner["metadata"].setdefault("annotations", {})["gputide.io/min-replicas-warm"] = "9" * 5000
    world.cluster.create(owner)
    assert any("warm" in text for text in world.runner().step().said)


@dataclass
class Denying:
    """A cluster that does not take changes of some objects, nor events on them."""

    cluster: SimulatedCluster
    denied: set[str]
    error: GputideError = field(default_factory=lambda: Refused("admission denied it"))

    def patch(self, kind: str, namespace: str, name: str, fields: Any, resource_version: str) -> str:
        if f"{kind}/{name}" in self.denied:
            raise self.error
        return self.cluster.patch(kind, namespace, name, fields, resource_version)

    def record_event(self, kind: str, namespace: str, name: str, reason: str, message: str) -> None:
        if f"{kind}/{name}" in self.denied:
            raise self.error
        self.cluster.record_event(kind, namespace, name, reason, message)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.cluster, name)


@dataclass
class Hiding:
    """A cluster that does not show some objects."""

    cluster: SimulatedCluster
    hidden: set[str]

    def get(self, kind: str, namespace: str, name: str) -> Any:
        if f"{kind}/{name}" in self.hidden:
            raise Forbidden(f"cannot get {kind} {name}: a right is missing")
        return self.cluster.get(kind, namespace, name)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.cluster, name)


def a_night_job(world: World, name: str = "train", tier: str | None = None) -> None:
    job = world.cluster.get("Job", "team", "train")
    assert job is not None
    job["metadata"]["name"] = name
    job["metadata"].setdefault("labels", {})[TIDE_LABEL] = "night"
    if tier is not None:
        job["metadata"]["labels"][TIER_LABEL] = tier
    job["spec"]["suspend"] = True
    world.cluster.create(job)


@pytest.mark.parametrize(
    "error",
    [
        Refused("admission denied it"),
        Unavailable("a webhook failed: admission denied it"),
        Forbidden("a right is missing: admission denied it"),
    ],
)
def test_object_that_nobody_may_change_keeps_no_other_from_coming_home(world: World, error: GputideError) -> None:
    a_night_job(world)
    world.night()
    denying = Denying(cluster=world.cluster, denied={"Job/train", "Deployment/a"}, error=error)
    world.tools.writer = denying
    world.until(6.6)
    result = world.runner().step()
    assert world.replicas() == ("1", "2")
    assert world.value("ClusterQueue", "night", "spec.stopPolicy", "") == "Hold"
    # What could not be given back is not given up.
    assert result.step is TideStep.WAITS
    assert any("admission denied it" in text for text in result.said)
    denying.denied.clear()
    assert world.runner().step().step is TideStep.CAME_HOME
    assert world.replicas() == ("2", "2")
    assert world.value("Job", "train", "spec.suspend") == "true"


def test_service_that_nobody_may_lower_keeps_no_other_from_its_night(world: World) -> None:
    world.tools.writer = Denying(cluster=world.cluster, denied={"Deployment/a"}, error=Unavailable("a webhook failed"))
    world.night()
    assert world.replicas() == ("2", "1")
    assert world.value("ClusterQueue", "night", "spec.stopPolicy", "") == "None"


@pytest.mark.parametrize("is_aborted", [False, True])
def test_job_that_takes_no_event_keeps_no_service_from_coming_home(world: World, is_aborted: bool) -> None:
    """As one in a namespace that terminates: it takes no new object, and so no event."""
    a_night_job(world)
    world.night()

    class NoEvents(Denying):
        def patch(self, kind: str, namespace: str, name: str, fields: Any, resource_version: str) -> str:
            return self.cluster.patch(kind, namespace, name, fields, resource_version)

    world.tools.writer = NoEvents(cluster=world.cluster, denied={"Job/train"})
    world.until(1.0 if is_aborted else 6.6)
    home = world.runner().abort("ada") if is_aborted else world.runner().step()
    assert home.step is TideStep.CAME_HOME
    assert any("could not be asked to save: admission denied it" in text for text in home.said)
    assert world.replicas() == ("2", "2")
    assert world.value("Job", "train", "spec.suspend") == "true"


@pytest.mark.parametrize("hidden", ["Job/train", "Deployment/a"])
def test_object_that_nobody_may_read_keeps_no_other_from_coming_home(world: World, hidden: str) -> None:
    a_night_job(world)
    world.night()
    world.until(6.6)
    reader = world.tools.reader
    world.tools.reader = Hiding(cluster=world.cluster, hidden={hidden})
    result = world.runner().step()
    assert result.step is TideStep.WAITS
    assert any("a right is missing" in text for text in result.said)
    assert world.replicas() == ("1" if hidden == "Deployment/a" else "2", "2")
    world.tools.reader = reader
    assert world.runner().step().step is TideStep.CAME_HOME
    assert world.replicas() == ("2", "2")


def test_night_does_not_end_while_an_object_changes_all_the_time(world: World) -> None:
    world.night()

    @dataclass
    class Restless(Denying):
        def patch(self, kind: str, namespace: str, name: str, fields: Any, resource_version: str) -> str:
            if f"{kind}/{name}" in self.denied:
                owner = self.cluster.get(kind, namespace, name)
                assert owner is not None
                seen = FieldChange(field="metadata.annotations[seen]", value=owner["metadata"]["resourceVersion"])
                self.cluster.patch(kind, namespace, name, [seen], resource_version)
            return self.cluster.patch(kind, namespace, name, fields, resource_version)

    restless = Restless(cluster=world.cluster, denied={"Deployment/a"})
    world.tools.writer = restless
    world.until(6.6)
    result = world.runner().step()
    assert result.step is TideStep.WAITS
    assert world.replicas() == ("1", "2")
    restless.denied.clear()
    assert world.runner().step().step is TideStep.CAME_HOME
    assert world.replicas() == ("2", "2")


def test_jobs_whose_changes_take_long_are_stopped_after_services_came_home(world: World) -> None:
    for name in ("train", "train-2", "train-3"):
        a_night_job(world, name)
    world.night()
    steps: list[str] = []

    def slow(what: str) -> None:
        steps.append(what)
        if what.startswith("restore team/Job/"):
            world.cluster.pause(61.0)

    world.tools.step = slow
    world.until(6.6)
    assert world.runner().step().step is TideStep.CAME_HOME
    homes = [step.rpartition("/")[2] for step in steps if step.startswith("restore team/")]
    assert homes == ["train", "a", "b", "train-2", "train-3"]


def test_work_of_the_lowest_tier_is_stopped_first_in_the_morning(world: World) -> None:
    for tier in ("mid", "free", "batch"):
        a_night_job(world, tier, tier)
    world.night()
    steps: list[str] = []
    world.tools.step = steps.append
    world.until(6.6)
    assert world.runner().step().step is TideStep.CAME_HOME
    stopped = [step.rpartition("/")[2] for step in steps if step.startswith("restore team/Job/")]
    assert stopped == ["free", "batch", "mid"]


def test_services_come_home_whoever_holds_the_lease_and_go_out_by_it_alone(world: World) -> None:
    """A rollout holds it for hours."""
    world.tools.lease.acquire("a rollout", 1e6)
    assert "somebody else holds the lease" in why_no_night(world)
    world.tools.lease.release("a rollout")
    world.night()
    world.tools.lease.acquire("a rollout", 1e6)
    world.until(6.6)
    assert world.runner().step().step is TideStep.CAME_HOME
    assert world.replicas() == ("2", "2")
    assert not world.tools.lease.acquire("another", 30.0), "coming home left the lease to who holds it"


def half_a_night(world: World) -> None:
    """The process is killed after the first service."""

    def crash(what: str) -> None:
        if what.startswith("patch") and world.replicas() == ("1", "2"):
            raise Crash

    world.tools.step = crash
    with pytest.raises(Crash):
        world.runner().step()
    world.tools.lease.release(world.tools.holder)
    world.tools.step = lambda _: None
    assert world.replicas() == ("1", "2")


def test_half_a_night_goes_on_by_what_services_say_now(world: World) -> None:
    half_a_night(world)
    for name in ("a", "b"):
        owner = world.cluster.get("Deployment", "team", name)
        assert owner is not None
        owner["metadata"].setdefault("labels", {})["gputide.io/opt-out"] = "true"
        world.cluster.create(owner)
    result = world.runner().step()
    assert world.replicas() == ("1", "2"), "what is lowered stays so until the morning"
    assert any("team/Deployment/b stays as it is: its owner opted out" in text for text in result.said)
    world.until(6.6)
    assert world.runner().step().step is TideStep.CAME_HOME
    assert world.replicas() == ("2", "2")


def test_job_that_nobody_may_change_keeps_no_queue_closed(world: World) -> None:
    a_night_job(world)
    world.tools.writer = Denying(cluster=world.cluster, denied={"Job/train"})
    world.night()
    assert world.value("ClusterQueue", "night", "spec.stopPolicy", "") == "None"


def test_night_does_not_begin_by_an_old_forecast_and_comes_home_by_it(world: World) -> None:
    old = seal_plan(replace(PLAN, created_at=NOW - timedelta(days=15)))
    world.plans.add(old)
    world.plans.approve(old, [TIDE], by="ada", at=NOW)
    assert "15 days old, tide.plan_age_days_max=14" in why_no_night(world, old)
    assert world.journal.nights() == ()
    world.night()
    world.until(6.6)
    assert world.runner(old).step().step is TideStep.CAME_HOME


def test_service_whose_repository_keeps_it_stays_as_it_is(world: World) -> None:
    owner = world.cluster.get("Deployment", "team", "a")
    assert owner is not None
    owner["metadata"].setdefault("labels", {})["argocd.argoproj.io/instance"] = "shop"
    world.cluster.create(owner)
    (left,) = world.runner().would_scale().left
    assert left[0] == "team/Deployment/a"
    assert "Argo CD" in left[1]
    world.night()
    assert world.replicas() == ("2", "1")


def test_guard_is_asked_before_a_night_and_not_on_the_way_home(world: World) -> None:
    def with_policy(**policy: Any) -> World:
        world.tools.guard = Guard(GuardPolicy(**policy))
        return world

    assert "frees 2 cards at once, limit guard.cards_per_apply_max=1" in why_no_night(with_policy(cards_max=1))
    assert "guard.history_coverage_min=1.1" in why_no_night(with_policy(coverage_ratio_min=1.1))
    assert world.replicas() == ("2", "2")
    with_policy().night()
    world.until(6.6)
    assert with_policy(coverage_ratio_min=1.1).runner().step().step is TideStep.CAME_HOME


def test_a_scraper_sees_the_night_and_whether_it_ended_in_time(world: World) -> None:
    own = OwnMetrics("tide")
    metrics = TideMetrics(own)

    def step() -> TideStep:
        with metrics.steps.one():
            result = world.runner().step()
        metrics.take(result)
        return result.step

    with own_port(own.text, "127.0.0.1", 0, setting="exporter.own_listen") as (host, port):
        url = f"http://{host}:{port}/metrics"
        while step() is not TideStep.ADMITTED:
            world.cluster.pause(60.0)
        night = scraped(url)
        world.until(7.0)
        world.tools.writer.make(
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"namespace": "gputide", "name": "gputide-freeze"}}
        )
        while step() is not TideStep.CAME_HOME:
            world.cluster.pause(60.0)
        morning = scraped(url)
        world.until(20.0)
        assert step() is TideStep.NOTHING
        frozen = scraped(url)
    assert (night["gputide_tide_is_night"], night["gputide_tide_freed_cards"]) == (1, 2)
    assert (morning["gputide_tide_is_night"], morning["gputide_tide_freed_cards"]) == (0, 0)
    assert morning['gputide_tide_nights_total{result="in_time"}'] == 1
    # A night that may not begin is no failure: nobody is called for it.
    assert not [name for name in frozen if name.startswith("gputide_tide_step_failures_total")]
    assert (
        frozen["gputide_tide_last_success_timestamp_seconds"] > morning["gputide_tide_last_success_timestamp_seconds"]
    )


@pytest.mark.parametrize(("bound", "scaled"), [({"minAvailable": 2}, False), ({"minAvailable": "50%"}, True)])
def test_service_does_not_step_back_below_what_its_disruption_budget_names(
    world: World, bound: dict[str, Any], scaled: bool
) -> None:
    spec = {"selector": {"matchLabels": {"app": "a"}}, **bound}
    metadata = {"namespace": "team", "name": "a"}
    world.cluster.create({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": metadata, "spec": spec})
    found = world.runner().would_scale()
    assert any(intent.name == "a" for intent in found.intents) is scaled
    why = "scaling in would leave 1 pods, and PodDisruptionBudget team/a (minAvailable=2) wants 2"
    assert [reason for workload, reason in found.left if workload.endswith("/a")] == ([] if scaled else [why])


def why_no_night(world: World, plan: Plan = PLAN) -> str:
    """Why a step does nothing at night, which is no failure."""
    result = world.runner(plan).step()
    assert result.step is TideStep.NOTHING
    assert world.journal.nights() == ()
    (why,) = result.said
    return why


def nothing(_: World, plan: Plan) -> None:
    """Nobody said anything."""


def withdrawn(world: World, plan: Plan) -> None:
    world.plans.approve(plan, [TIDE], by="ada", at=NOW)
    world.plans.keep_approvals(plan.plan_id, ())


def other_stages(world: World, plan: Plan) -> None:
    world.plans.approve(plan, [1, 2], by="ada", at=NOW)


def too_late(world: World, plan: Plan) -> None:
    """As the object of an approval that somebody makes by hand."""
    (yes,) = a_yes(plan, TIDE)
    world.plans.keep_approvals(plan.plan_id, (replace(yes, at=plan.expires_at),))


@pytest.mark.parametrize("given", [nothing, withdrawn, other_stages, too_late])
def test_night_begins_by_no_tide_that_nobody_approved_in_time(
    world: World, given: Callable[[World, Plan], None]
) -> None:
    """The same tide stands approved in another plan, which does not count."""
    plan = seal_plan(replace(PLAN, created_at=PLAN.created_at + timedelta(minutes=1)))
    world.plans.add(plan)
    given(world, plan)
    assert "nobody approved" in (world.runner(plan).why_not() or "")
    assert "nobody approved" in why_no_night(world, plan)
    assert world.replicas() == ("2", "2")
    world.plans.approve(plan, [TIDE], by="bob", at=NOW)
    world.runner(plan).step()
    assert world.replicas() == ("1", "1")


def test_approval_counts_for_its_own_plan_alone(world: World) -> None:
    other = seal_plan(replace(PLAN, created_at=PLAN.created_at + timedelta(minutes=1)))
    guard = Guard(GuardPolicy())
    guard.check_tide_approved(PLAN, a_yes(PLAN, TIDE))
    with pytest.raises(Refused, match="nobody approved"):
        guard.check_tide_approved(PLAN, a_yes(other, TIDE))


def unstaged() -> Plan:
    return seal_plan(replace(standard_plan(), schedule=SCHEDULE))


def one_unstaged() -> Plan:
    return seal_plan(replace(with_tide(standard_plan(), SCHEDULE[:1]), schedule=SCHEDULE))


def other_hours() -> Plan:
    return with_tide(standard_plan(), (SCHEDULE[0], replace(SCHEDULE[1], start="02:00", end="04:00")))


def twice() -> Plan:
    return seal_plan(replace(PLAN, schedule=(*SCHEDULE, SCHEDULE[0])))


def shown_twice() -> Plan:
    more = replace(next(one for one in PLAN.recommendations if one.id == "tide-1"), id="tide-9")
    last = replace(PLAN.stages[-1], recommendations=(*PLAN.stages[-1].recommendations, "tide-9"))
    return seal_plan(replace(PLAN, recommendations=(*PLAN.recommendations, more), stages=(*PLAN.stages[:-1], last)))


def other_than_shown(**changes: Any) -> Callable[[], Plan]:
    return lambda: seal_plan(replace(PLAN, schedule=tuple(replace(entry, **changes) for entry in SCHEDULE)))


def of_tomorrow() -> Plan:
    return seal_plan(replace(PLAN, created_at=NOW + timedelta(days=1)))


def of_an_old_history() -> Plan:
    history = replace(PLAN.history, until=PLAN.created_at - timedelta(days=2, seconds=1))
    return seal_plan(replace(PLAN, history=history))


def edited() -> Plan:
    return replace(PLAN, schedule=tuple(replace(entry, replicas=0) for entry in SCHEDULE))


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (unstaged, "no stage for its tide"),
        (one_unstaged, "no stage for its tide"),
        (other_hours, "a night has one window"),
        (edited, "was edited"),
        (twice, "or a service twice (team/Deployment/a)"),
        (shown_twice, "or a service twice (team/Deployment/a)"),
        (other_than_shown(start="21:30"), "other hours or replicas than its stage shows"),
        (other_than_shown(end="08:30"), "other hours or replicas than its stage shows"),
        (other_than_shown(time_zone="Etc/UTC"), "other hours or replicas than its stage shows"),
        (other_than_shown(replicas=0), "other hours or replicas than its stage shows"),
        (of_tomorrow, "made at 2026-01-13T00:00:00Z, and it is 2026-01-12T00:00:00Z"),
        (of_an_old_history, "172801 s before it was made, limit guard.history_age_max_seconds=172800"),
    ],
)
def test_tide_that_is_not_what_was_shown_is_refused_whatever_is_approved(
    world: World, make: Callable[[], Plan], why: str
) -> None:
    plan = make()
    world.plans.keep_approvals(plan.plan_id, a_yes(plan, 1, 2, TIDE))
    assert why in why_no_night(world, plan)
    assert world.replicas() == ("2", "2")


@pytest.mark.parametrize("claimed", [True, False])
def test_night_of_many_cards_wants_two_people_whatever_the_schedule_claims(world: World, claimed: bool) -> None:
    plan = PLAN if claimed else with_tide(standard_plan(), [replace(entry, frees=()) for entry in SCHEDULE])
    world.plans.keep_approvals(plan.plan_id, a_yes(plan, TIDE, by="ann"))
    world.tools.guard = Guard(GuardPolicy(two_approvals_cards_min=2))
    assert "two different people" in why_no_night(world, plan)
    assert world.replicas() == ("2", "2")
    world.plans.keep_approvals(plan.plan_id, (*a_yes(plan, TIDE, by="ann"), *a_yes(plan, TIDE, by="bob")))
    world.runner(plan).step()
    assert world.replicas() == ("1", "1")
    # One of the two takes it back.
    world.plans.keep_approvals(plan.plan_id, a_yes(plan, TIDE, by="bob"))
    home = world.runner(plan).step()
    assert home.step is TideStep.CAME_HOME
    assert "two different people" in home.said[0]
    assert world.replicas() == ("2", "2")


def test_night_ends_once_its_approval_is_withdrawn_and_does_not_begin_again(world: World) -> None:
    world.night()
    world.plans.keep_approvals(PLAN.plan_id, ())
    home = world.runner().step()
    assert home.step is TideStep.CAME_HOME
    assert "nobody approved" in home.said[0]
    assert world.replicas() == ("2", "2")
    assert world.value("ClusterQueue", "night", "spec.stopPolicy", "") == "Hold"
    world.plans.approve(PLAN, [TIDE], by="ada", at=NOW)
    assert world.runner().step().said == ("this night is over",)
    assert world.replicas() == ("2", "2")


def test_half_a_night_whose_approval_is_withdrawn_lowers_nobody_more(world: World) -> None:
    half_a_night(world)
    world.plans.keep_approvals(PLAN.plan_id, ())
    assert world.runner().step().step is TideStep.CAME_HOME
    assert world.replicas() == ("2", "2")


@pytest.mark.parametrize("ends", ["withdrawn", "unreadable", "expired"])
def test_services_come_home_in_the_morning_whatever_became_of_the_approval(world: World, ends: str) -> None:
    world.night()
    world.until(6.6)
    plan = PLAN
    if ends == "withdrawn":
        world.plans.keep_approvals(PLAN.plan_id, ())
    elif ends == "unreadable":
        (world.folder / "plans" / f"{PLAN.plan_id}.approvals.jsonl").write_text("no approval\n")
    else:
        plan = seal_plan(replace(PLAN, created_at=NOW - timedelta(days=99), expires_at=NOW - timedelta(days=98)))
    home = world.runner(plan).step()
    assert home.step is TideStep.CAME_HOME
    assert "in time" in home.said[-1]
    assert world.replicas() == ("2", "2")


def test_night_that_began_before_its_schedule_expired_lasts_until_its_morning(world: World) -> None:
    last = seal_plan(replace(PLAN, created_at=NOW - timedelta(days=14)))
    world.plans.add(last)
    world.plans.approve(last, [TIDE], by="ada", at=NOW)
    while world.runner(last).step().step is not TideStep.ADMITTED:
        world.cluster.pause(60.0)
    world.until(2.0)
    assert world.runner(last).step().step is TideStep.NOTHING
    assert world.replicas() == ("1", "1")
    world.until(4.6)
    assert world.runner(last).step().step is TideStep.CAME_HOME
    world.until(16.0)
    assert "14 days old" in world.runner(last).step().said[0]
    assert world.replicas() == ("2", "2")


def test_night_leaves_each_service_a_replica_whatever_was_approved(world: World) -> None:
    plan = with_tide(standard_plan(), [replace(entry, replicas=0) for entry in SCHEDULE])
    world.plans.keep_approvals(plan.plan_id, a_yes(plan, TIDE))
    assert any("a replica at least" in text for text in world.runner(plan).step().said)
    assert world.replicas() == ("2", "2")


def test_services_with_planned_cards_come_home_before_those_that_would_take_any(world: World) -> None:
    owner = world.cluster.get("Deployment", "team", "a")
    assert owner is not None
    owner["metadata"].setdefault("annotations", {})["gputide.io/seats"] = "{}"
    world.cluster.create(owner)
    world.night()
    world.until(6.6)
    steps: list[str] = []
    world.tools.step = steps.append
    assert world.runner().step().step is TideStep.CAME_HOME
    homes = [step.rpartition("/")[2] for step in steps if "Deployment" in step]
    assert homes == ["a", "b"]


def test_work_is_let_in_by_tier_and_reads_until_when_it_may_run(world: World) -> None:
    for name, tier in (("a-free", "free"), ("b-batch", "whatever"), ("c-mid", "mid")):
        a_night_job(world, name, tier)
    world.night()
    (night,) = world.journal.nights()
    assert [intent.name for intent in night.admission] == ["c-mid", "b-batch", "night", "a-free"]
    assert night.tiers == (Tier.MID, Tier.BATCH, Tier.BATCH, Tier.FREE)
    until = f"metadata.annotations[{RUNS_UNTIL_ANNOTATION}]"
    for kind, name, namespace in (("Job", "c-mid", "team"), ("Job", "a-free", "team"), ("ClusterQueue", "night", "")):
        assert world.value(kind, name, until, namespace) == "2026-01-12T06:30:00Z"
    world.until(6.6)
    said = asked_to_save(world, "c-mid", "b-batch", "a-free")
    world.runner().step()
    assert said["a-free"] is None
    assert said["b-batch"] is not None
    assert said["c-mid"] is not None
    assert (datetime.fromisoformat(said["c-mid"]) - datetime.fromisoformat(said["b-batch"])).total_seconds() == 240.0
    for name in said:
        assert (world.value("Job", name, "spec.suspend"), world.value("Job", name, until)) == ("true", None)
    (night,) = world.journal.nights()
    assert not night.is_cut_short
    assert night.work_hours == pytest.approx(6.6, abs=0.1)


def test_machine_that_holds_nobody_any_more_is_whole(world: World, tmp_path: Path) -> None:
    (tmp_path / "apart").mkdir()
    # Replicas of a sit on two machines of four cards.
    world.cluster = a_cluster(tmp_path / "apart", [a_grant("a", 0, 0), a_grant("a", 1, 4), a_grant("b", 0, 1)])
    world.tools = some_tools(world.cluster, tmp_path, guard=Guard(GuardPolicy()))
    world.night()
    (night,) = world.journal.nights()
    assert (night.freed, night.machines) == ((card_id(4),), ("node-1",))


def test_night_that_an_earlier_version_began_comes_home(world: World) -> None:
    world.night()
    (night,) = world.journal.nights()
    content = {entry.event: dict(entry.content) for entry in Ledger(world.folder / "tide.jsonl").entries()}
    for key in ("marks", "frees"):
        del content["tide_begin"][key]
    for key in ("tiers", "until", "machines"):
        del content["tide_admit"][key]
    older = Ledger(world.folder / "older.jsonl")
    older.append(list(content.items()), plan_id=PLAN.plan_id, at=night.began_at)
    world.journal = TideJournal(older)
    assert world.runner().abort("ada").step is TideStep.CAME_HOME
    assert world.replicas() == ("2", "2")
    assert world.value("ClusterQueue", "night", "spec.stopPolicy", "") == "Hold"


def test_work_waits_for_a_night_that_is_long_enough_for_its_tier(world: World) -> None:
    for name, tier in (("mid", "mid"), ("batch", "batch")):
        a_night_job(world, name, tier)
    world.until(3.0)
    said = " ".join(world.runner().step().said)
    assert "team/Job/mid is not let in: tier mid: 3.5 h are left, 4 h are promised" in said
    assert (world.value("Job", "mid", "spec.suspend"), world.value("Job", "batch", "spec.suspend")) == ("true", "false")


def test_work_waits_where_nights_ended_early_more_often_than_its_tier_is_promised(world: World) -> None:
    a_night_job(world, "batch", "batch")
    a_night_job(world, "free", "free")
    assert world.journal.evictions_per_hour(world.cluster.now()) is None
    for _ in range(3):
        world.night()
        world.until(2.0)
        world.runner().abort("ada")
        world.until(21.9)
    now = world.cluster.now()
    assert world.journal.evictions_per_hour(now) == pytest.approx(0.5, abs=0.05)
    assert world.journal.evictions_per_hour(now + timedelta(days=14)) is None
    assert world.journal.evictions_per_hour(now - timedelta(days=4)) is None, "a clock that was ahead judges nobody"
    said = " ".join(world.runner().step().said)
    assert "tier batch: nights ended early 0.5" in said
    assert (world.value("Job", "batch", "spec.suspend"), world.value("Job", "free", "spec.suspend")) == (
        "true", "false"
    )  # fmt: skip


@pytest.mark.parametrize("is_crashed", [False, True])
def test_work_of_a_queue_that_evicts_gets_the_notice_of_its_tier(world: World, is_crashed: bool) -> None:
    world.cluster.delete("ClusterQueue", "", "night")
    world.cluster.create({**QUEUE, "spec": {"stopPolicy": "HoldAndDrain"}})
    world.night()
    seen: list[tuple[datetime, str | None, str | None]] = []

    def look(step: str) -> None:
        stop, asked = (world.value("ClusterQueue", "night", name, "") for name in ("spec.stopPolicy", SAVE_BY))
        seen.append((world.cluster.now(), stop, asked))
        if is_crashed and step.startswith("restore") and len([entry for entry in seen if entry[1] == "Hold"]) == 1:
            raise Crash

    world.tools.step = look
    began = world.cluster.now()
    if is_crashed:
        with pytest.raises(Crash):
            world.runner().abort("ada")
        world.tools.lease.release(world.tools.holder)
        world.runner().step()
    else:
        world.runner().abort("ada")
    (held_at, _, until), *_ = [entry for entry in seen if entry[1] == "Hold"]
    assert until is not None
    assert (held_at - began).total_seconds() >= 60.0
    assert datetime.fromisoformat(until) <= held_at
    assert world.value("ClusterQueue", "night", "spec.stopPolicy", "") == "HoldAndDrain"
    for name in (SAVE_BY_ANNOTATION, RUNS_UNTIL_ANNOTATION):
        assert world.value("ClusterQueue", "night", f"metadata.annotations[{name}]", "") is None
    assert world.replicas() == ("2", "2")


def full(*pods: str) -> Callable[[], Busy]:
    return lambda: Busy(crowded={f"team/{pod}": "it is full" for pod in pods})


def test_service_that_is_busier_now_than_its_night_was_predicted_keeps_what_it_has(world: World) -> None:
    uses = {"team/a-0": 0.5, "team/a-1": 0.3, "team/b-0": 0.3}

    def busy() -> Busy:
        return Busy(demand_ratio=uses, full_ratio=0.8)

    said: list[str] = []
    while (result := world.runner(busy=busy).step()).step is not TideStep.ADMITTED:
        said += result.said
        world.cluster.pause(60.0)
    assert world.replicas() == ("2", "1")
    assert "team/Deployment/a stays as it is: it needs 0.8 replicas' cards now, the night's forecast was 1" in [
        *said, *result.said
    ]  # fmt: skip


def test_service_whose_replicas_fill_up_comes_home_alone_at_once_and_stays(world: World) -> None:
    world.night()
    world.until(2.0)
    early = world.runner(busy=full("a-0")).step()
    assert early.step is TideStep.HOME_EARLY
    assert "team/Deployment/a comes home early: 1 of the 1 replicas that it left are full: it is full" in early.said
    assert world.replicas() == ("2", "1")
    assert world.value("ClusterQueue", "night", "spec.stopPolicy", "") == "None"
    # It was full before the others came; that it is no longer does not send it out again.
    assert world.runner().step().step is TideStep.NOTHING
    assert world.replicas() == ("2", "1")
    (night,) = world.journal.nights()
    (away,) = world.journal.absences()[WorkloadId("team/Deployment/a")]
    assert away[1] == night.home_early[WorkloadId("team/Deployment/a")] < night.ends_at
    assert night.taken_back == {}, "an empty card is taken, and nobody goes"
    world.until(4.6)
    assert world.runner().step().step is TideStep.CAME_HOME
    assert world.replicas() == ("2", "2")


@pytest.mark.parametrize("why", ["frozen", "lease", "half"])
def test_service_in_need_comes_home_whatever_keeps_others_from_going_out(world: World, why: str) -> None:
    if why == "half":
        half_a_night(world)
    else:
        world.night()
    if why == "lease":
        assert world.cluster.acquire("another", 30.0)
    else:
        freeze = {"kind": "ConfigMap", "metadata": {"name": "gputide-freeze", "namespace": "gputide"}}
        world.cluster.create(freeze)
    assert world.runner(busy=full("a-0", "b-0")).step().step is TideStep.HOME_EARLY
    assert world.replicas() == ("2", "2")


def test_half_a_night_does_not_lower_a_service_that_came_home(world: World) -> None:
    half_a_night(world)
    (night,) = world.journal.nights()
    world.journal.home_early(night.plan_id, world.cluster.now(), {WorkloadId("team/Deployment/b"): "it is full"})
    world.night()
    assert world.replicas() == ("1", "2")


def test_night_of_which_nobody_says_how_busy_services_are_goes_on_and_says_so(world: World) -> None:
    def unknown() -> Busy:
        raise Unavailable("no node says how busy its cards are")

    world.night()
    result = world.runner(busy=unknown).step()
    assert result.step is TideStep.NOTHING
    assert result.said == ("nobody says how busy the services are: no node says how busy its cards are",)
    assert world.replicas() == ("1", "1")


def test_service_that_nobody_may_change_keeps_no_other_from_coming_home_early(world: World) -> None:
    world.night()
    missing = Forbidden("a right is missing")
    world.tools.writer = Denying(cluster=world.cluster, denied={"Deployment/a"}, error=missing)
    early = world.runner(busy=full("a-0", "b-0")).step()
    assert any("a right is missing" in text for text in early.said)
    assert world.replicas() == ("1", "2")
    world.tools.writer = world.cluster
    world.runner(busy=full("a-0")).step()
    assert world.replicas() == ("2", "2")


WORKLOAD = {
    "apiVersion": "kueue.x-k8s.io/v1beta1",
    "kind": "Workload",
    "metadata": {
        "name": "job-train", "namespace": "team", "labels": {TIDE_LABEL: "night"},
        "ownerReferences": [{"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "u", "controller": True}],
    },
    "spec": {"active": False},
}  # fmt: skip


def a_crowded_night(
    world: World, folder: Path, *, tier: str = "batch", queued: bool = False, alone: bool = False,
    queues: Sequence[str] = ("night",),
) -> None:  # fmt: skip
    """Work sits on the only cards that services left: its own machine is gone.

    Args:
        queued: Kueue lets it in by its queue.
        alone: Kueue lets it in by its Workload.
        queues: that are open at night, those after the first of tier free.
    """
    folder.mkdir()
    owners = [
        a_grant(name, number, card) for name, number, card in (("a", 0, 0), ("a", 1, 1), ("b", 0, 2), ("b", 1, 3))
    ]
    world.cluster = a_cluster(folder, [*owners, a_grant("train", 0, 4, kind="Job"), a_grant("train", 1, 5, kind="Job")])
    world.tools = some_tools(world.cluster, folder, guard=Guard(GuardPolicy()))
    for name in queues:
        labels = {} if name == queues[0] else {TIER_LABEL: "free"}
        metadata = {"name": name, "namespace": "", "labels": labels}
        world.cluster.create({**QUEUE, "metadata": metadata, "spec": {"stopPolicy": "HoldAndDrain"}})
    if alone:
        world.cluster.create(dict(WORKLOAD))
    elif queued:
        set_of_job(world, "metadata.labels[kueue.x-k8s.io/queue-name]", "team")
    else:
        set_of_job(world, f"metadata.labels[{TIDE_LABEL}]", "night")
        set_of_job(world, f"metadata.labels[{TIER_LABEL}]", tier)
    set_of_job(world, "spec.suspend", "true")
    world.cluster.delete("Node", "", "node-1")
    world.night()
    if queued or (alone and world.value("Workload", "job-train", "spec.active") == "true"):
        set_of_job(world, "spec.suspend", "false")
    world.cluster.pause(60.0)
    assert {where(world.cluster)["train-0"], where(world.cluster)["train-1"]} == {(1, 24), (3, 24)}


def set_of_job(world: World, name: str, value: str) -> None:
    job = world.cluster.get("Job", "team", "train")
    assert job is not None
    version = job["metadata"]["resourceVersion"]
    world.cluster.patch("Job", "team", "train", [FieldChange(field=name, value=value)], version)


@pytest.mark.parametrize("is_crashed", [False, True])
def test_work_on_the_cards_of_a_service_in_need_gets_its_notice_and_goes(
    world: World, tmp_path: Path, is_crashed: bool
) -> None:
    a_crowded_night(world, tmp_path / "crowded")
    began = world.cluster.now()
    if is_crashed:

        def crash(step: str) -> None:
            if step == "restore team/Job/train":
                raise Crash

        world.tools.step = crash
        with pytest.raises(Crash):
            world.runner(busy=full("a-0")).step()
        world.tools.step = lambda _: None
    world.runner(busy=full("a-0")).step()
    assert (world.value("Job", "train", "spec.suspend"), world.replicas()) == ("true", ("2", "1"))
    assert (world.cluster.now() - began).total_seconds() >= 60.0
    assert world.value("Job", "train", SAVE_BY) is None
    assert any(event[4] == "GputideTide" for event in world.cluster.events())
    world.cluster.pause(60.0)
    assert where(world.cluster)["a-1"] in {(1, 24), (3, 24)}
    assert world.value("ClusterQueue", "night", "spec.stopPolicy", "") == "None"
    (night,) = world.journal.nights()
    assert set(night.taken_back) == {card_id(1), card_id(3)}
    world.until(6.5)
    world.runner().step()
    (night,) = world.journal.nights()
    assert not night.is_cut_short
    assert (evictions_of([night]) or 0.0) > 1.0, "work ran for minutes and had to go"
    assert world.value("Job", "train", "spec.suspend") == "true"


def test_queue_whose_work_holds_the_cards_of_a_service_in_need_is_drained(world: World, tmp_path: Path) -> None:
    a_crowded_night(world, tmp_path / "crowded", queued=True)
    early = world.runner(busy=full("a-0")).step()
    assert any("ClusterQueue/night goes early: services need 2 cards" in text for text in early.said)
    assert world.value("ClusterQueue", "night", "spec.stopPolicy", "") == "HoldAndDrain"
    assert world.runner(busy=full("a-0")).step().step is TideStep.NOTHING, "nobody is left who could go"


def test_queue_that_let_nothing_in_the_way_in_stays_open(world: World, tmp_path: Path) -> None:
    a_crowded_night(world, tmp_path / "crowded", queued=True, queues=("night", "other"))
    admitted = {"status": {"admission": {"clusterQueue": "night"}}, "spec": {"active": True}}
    world.cluster.create({**WORKLOAD, **admitted})
    world.runner(busy=full("a-0")).step()
    assert world.value("ClusterQueue", "night", "spec.stopPolicy", "") == "HoldAndDrain"
    assert world.value("ClusterQueue", "other", "spec.stopPolicy", "") == "None", "its tier is lower"


def test_workload_of_kueue_is_let_in_and_evicted_alone_where_a_service_needs_its_cards(
    world: World, tmp_path: Path
) -> None:
    a_crowded_night(world, tmp_path / "crowded", alone=True)
    asked = f"metadata.annotations[{SAVE_BY_ANNOTATION}]"
    assert world.value("Workload", "job-train", asked) is None
    early = world.runner(busy=full("a-0")).step()
    assert any("team/Workload/job-train goes early: services need 2 cards" in text for text in early.said)
    assert world.value("Workload", "job-train", "spec.active") == "false"
    assert world.value("Workload", "job-train", asked) is None, "the next night would begin with it"
    assert any(event[1:5] == ("Workload", "team", "job-train", "GputideTide") for event in world.cluster.events())
    assert world.value("ClusterQueue", "night", "spec.stopPolicy", "") == "None", "its queue stays open"


def test_workload_of_kueue_is_inactive_again_in_the_morning(world: World) -> None:
    world.cluster.create(dict(WORKLOAD))
    other = {**WORKLOAD, "metadata": {**WORKLOAD["metadata"], "name": "by-day", "labels": {}}}  # type: ignore[dict-item]
    world.cluster.create(other)
    world.night()
    assert world.value("Workload", "job-train", "spec.active") == "true"
    assert world.value("Workload", "job-train", f"metadata.annotations[{RUNS_UNTIL_ANNOTATION}]") is not None
    assert world.value("Workload", "by-day", "spec.active") == "false"
    world.until(6.6)
    assert world.runner().step().step is TideStep.CAME_HOME
    assert world.value("Workload", "job-train", "spec.active") == "false"


def test_marked_job_that_kueue_keeps_suspended_is_left_to_it(world: World) -> None:
    a_night_job(world)
    world.cluster.create({**WORKLOAD, "metadata": {**WORKLOAD["metadata"], "labels": {}}})  # type: ignore[dict-item]
    said: list[str] = []
    while (result := world.runner().step()).step is TideStep.WAITS:
        said += result.said
        world.cluster.pause(60.0)
    assert any("team/Job/train is not let in: Kueue starts and stops it" in text for text in (*said, *result.said))
    assert world.value("Job", "train", "spec.suspend") == "true"


def test_pods_that_no_queue_let_in_close_no_queue(world: World, tmp_path: Path) -> None:
    a_crowded_night(world, tmp_path / "crowded", queued=True)
    job = world.cluster.get("Job", "team", "train")
    assert job is not None
    del job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"]
    world.cluster.create(job)
    world.runner(busy=full("a-0")).step()
    assert world.value("ClusterQueue", "night", "spec.stopPolicy", "") == "None"
    (night,) = world.journal.nights()
    assert night.taken_back == {}


def test_half_of_its_replicas_must_be_full_or_one_wait_before_a_service_is_in_need() -> None:
    def pod(number: int, *, is_waiting: bool = False) -> PodSeat:
        part = SeatSlice(container="main", card=None, framebuffer_mib=1, core_percent=100)
        return PodSeat(
            namespace="team", pod=f"a-{number}", workload=service, node=None if is_waiting else "node-0",
            slices=() if is_waiting else (part,), is_ready=True, restarts=0, is_oom_killed=False,
            resource_version="1", deletion_cost=None,
        )  # fmt: skip

    service = WorkloadId("team/Deployment/a")
    three = [pod(number) for number in range(3)]
    assert in_need([service], {service: three}, full("a-0")().crowded) == {}
    assert "2 of the 3 replicas" in in_need([service], {service: three}, full("a-0", "a-1")().crowded)[service]
    assert (
        in_need([service], {service: [*three, pod(3, is_waiting=True)]}, {})[service] == "1 pods of it wait for a card"
    )
    assert in_need([service], {}, full("a-0")().crowded) == {}


def test_night_that_began_to_come_home_is_not_sent_out_again_and_counts_as_cut_short(world: World) -> None:
    """Such as one whose plan could not be read for a while, and a service that takes long."""
    world.night()
    world.until(1.0)
    world.tools.writer = Denying(cluster=world.cluster, denied={"Deployment/a"})
    policy = TidePolicy(guarantees=GUARANTEES, stop_seconds_max=60.0, home_seconds_max=60.0, queues=("night",))
    alone = Homecoming(world.cluster, world.tools.writer, world.cluster.pause, world.journal, policy)
    assert alone.step().step is TideStep.WAITS
    world.tools.writer = world.cluster
    world.until(1.0)
    assert world.runner().step().step is TideStep.CAME_HOME
    assert world.replicas() == ("2", "2")
    (night,) = world.journal.nights()
    assert night.is_cut_short
    assert night.work_hours == pytest.approx(1.0, abs=0.1)


def test_job_that_says_more_of_itself_than_a_time_waits_and_is_not_written_down(world: World) -> None:
    a_night_job(world)
    a_night_job(world, "polite")
    set_of_job(world, f"metadata.annotations[{RUNS_UNTIL_ANNOTATION}]", "x" * 200_000)
    said: list[str] = []
    while (result := world.runner().step()).step is TideStep.WAITS:
        said += result.said
        world.cluster.pause(60.0)
    said += result.said
    assert any("team/Job/train is not let in" in text and len(text) < 300 for text in said)
    (night,) = world.journal.nights()
    assert {intent.name for intent in night.admission} == {"polite", "night"}
    assert (world.folder / "tide.jsonl").stat().st_size < 20_000


def test_what_a_tenant_writes_on_its_job_in_the_night_does_not_fill_the_audit_log(world: World) -> None:
    a_night_job(world)
    world.night()
    set_of_job(world, f"metadata.annotations[{RUNS_UNTIL_ANNOTATION}]", "x" * 200_000)
    assert all(len(text) < 1000 for text in world.runner().abort("ada").said)
    assert world.value("Job", "train", "spec.suspend") == "true"
    assert (world.folder / "tide.jsonl").stat().st_size < 20_000


def test_a_queue_of_no_namespace_that_let_nobody_in_is_none_in_the_way(world: World, tmp_path: Path) -> None:
    """An API server gives a ClusterQueue no namespace; one that is open and has no pod here keeps nobody waiting."""
    a_crowded_night(world, tmp_path / "crowded", queued=True, queues=("night", "other"))
    world.cluster.create({**WORKLOAD, "status": {"admission": {"clusterQueue": "night"}}, "spec": {"active": True}})
    read = world.cluster.get

    def as_served(kind: str, namespace: str, name: str) -> Any:
        found = read(kind, namespace, name)
        if found is not None and kind == "ClusterQueue":
            found["metadata"].pop("namespace", None)
        return found

    world.cluster.get = as_served  # type: ignore[method-assign]
    found = world.runner(busy=full("a-0")).step()
    assert any("night goes early" in line for line in found.said), found.said
    # Kueue takes back what it let in, and its pods still end: the other queue keeps its work meanwhile.
    world.cluster.create({**WORKLOAD, "status": {}, "spec": {"active": True}})
    world.runner(busy=full("a-0")).step()
    assert world.value("ClusterQueue", "other", "spec.stopPolicy", "") == "None"


def test_a_job_of_a_cron_job_makes_room_like_any_other(world: World, tmp_path: Path) -> None:
    a_crowded_night(world, tmp_path / "crowded", tier="free")
    job = world.cluster.get("Job", "team", "train")
    assert job is not None
    owner = {"apiVersion": "batch/v1", "kind": "CronJob", "name": "nightly", "uid": "u", "controller": True}
    job["metadata"]["ownerReferences"] = [owner]
    world.cluster.create(job)
    found = world.runner(busy=full("a-0")).step()
    assert any("train goes early" in line for line in found.said), found.said
