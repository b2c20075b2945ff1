"""The guard says no before anything is changed, and names value, limit and setting."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from enforcer.cluster import FieldChange
from enforcer.record.journal import Journal, StageRecord
from enforcer.record.ledger import Ledger
from enforcer.record.plan_store import Approval
from enforcer.rollout.intents import object_intents
from enforcer.safety.change_window import ChangeWindow
from enforcer.safety.gitops import gitops_manager
from enforcer.safety.guard import Guard, GuardPolicy
from enforcer.safety.stage_checks import check_quotas
from enforcer.simulated.cluster import SimulatedCluster
from enforcer.snapshot import take_snapshot
from fleet.decisions import Plan, RecommendationKind
from fleet.documents import seal_plan
from fleet.durable import FolderLock
from fleet.errors import Misconfigured, Refused
from fleet.settings.guard import hours_of
from fleet.settings.settings import load_settings
from tests.enforcer.builders import (
    HALF,
    NOW,
    OpenGuard,
    a_cluster,
    a_grant,
    a_plan,
    a_recommendation,
    a_rollout,
    a_slice,
    card_id,
    some_tools,
    standard_plan,
    undo_all,
    where,
)
from tests.enforcer.kin_cluster import VOLCANO, a_kin_cluster, a_kin_owner

OFFICE = ChangeWindow(days=frozenset(range(5)), begin=time(9), end=time(17), time_zone=ZoneInfo("Asia/Shanghai"))
NIGHT = ChangeWindow(days=frozenset({4}), begin=time(22), end=time(6), holidays=frozenset({date(2026, 1, 16)}))


def refused(folder: Path, match: str, policy: GuardPolicy | None = None, **how: object) -> None:
    """Applying the standard plan (or `plan`) is refused, and nothing is changed."""
    cluster = how.get("cluster") or a_cluster(folder)
    assert isinstance(cluster, SimulatedCluster)
    plan = how.get("plan") or standard_plan()
    assert isinstance(plan, Plan)
    before = where(cluster), cluster.list_objects("Deployment")
    kind = Guard if "approved" in how else OpenGuard
    tools = some_tools(cluster, folder, guard=kind(policy or GuardPolicy(gaps_allowed=True)))
    with pytest.raises(Refused, match=match):
        a_rollout(tools).apply(plan, by="ann", approved=lambda: how.get("approved", ()))  # type: ignore[arg-type, return-value]
    assert (where(cluster), cluster.list_objects("Deployment")) == before
    assert not any(run.is_open for run in tools.journal.runs())


@pytest.mark.parametrize(
    ("window", "moment", "is_open"),
    [
        (OFFICE, datetime(2026, 1, 12, 1, 0, tzinfo=UTC), True),
        (OFFICE, datetime(2026, 1, 12, 0, 59, tzinfo=UTC), False),
        (OFFICE, datetime(2026, 1, 12, 9, 0, tzinfo=UTC), False),
        (OFFICE, datetime(2026, 1, 17, 3, 0, tzinfo=UTC), False),
        (NIGHT, datetime(2026, 1, 9, 23, 0, tzinfo=UTC), True),
        (NIGHT, datetime(2026, 1, 10, 5, 59, tzinfo=UTC), True),
        (NIGHT, datetime(2026, 1, 10, 6, 0, tzinfo=UTC), False),
        (NIGHT, datetime(2026, 1, 10, 23, 0, tzinfo=UTC), False),
        (NIGHT, datetime(2026, 1, 16, 23, 0, tzinfo=UTC), False),
        (NIGHT, datetime(2026, 1, 17, 1, 0, tzinfo=UTC), False),
        (ChangeWindow(), datetime(2026, 1, 16, 23, 0, tzinfo=UTC), True),
    ],
)
def test_window_is_open_by_the_clusters_own_clock(window: ChangeWindow, moment: datetime, is_open: bool) -> None:
    assert window.is_open(moment) is is_open


def test_change_outside_its_window_is_refused_naming_hours_and_zone(tmp_path: Path) -> None:
    policy = GuardPolicy(gaps_allowed=True, window=OFFICE)
    refused(tmp_path, r"mon 08:00 in Asia/Shanghai.*guard\.change_hours=09:00-17:00", policy)


def test_change_on_a_holiday_is_refused_naming_it(tmp_path: Path) -> None:
    policy = GuardPolicy(gaps_allowed=True, window=ChangeWindow(holidays=frozenset({NOW.date()})))
    refused(tmp_path, "2026-01-12 is among guard.change_holidays", policy)


def test_history_that_ended_long_ago_is_refused(tmp_path: Path) -> None:
    plan = standard_plan()
    old = seal_plan(replace(plan, history=replace(plan.history, until=NOW - timedelta(days=3))))
    refused(tmp_path, r"guard\.history_age_max_seconds=172800", plan=old)


def test_plan_that_counts_on_relief_is_refused_while_none_runs(tmp_path: Path) -> None:
    plan = standard_plan()
    counting = seal_plan(replace(plan, totals=replace(plan.totals, unrelieved_violation_ratio=0.0114)))
    guard = OpenGuard(GuardPolicy(relief_lock=tmp_path / "relief.lock"))
    with pytest.raises(Refused, match=r"counts on relief.*without it 1\.1 % .*run relief run"):
        guard.check_plan(counting, [1], (), NOW)
    guard.check_plan(plan, [1], (), NOW)
    with FolderLock(tmp_path, "relief"):
        guard.check_plan(counting, [1], (), NOW)


def test_saving_beyond_the_limit_of_one_apply_is_refused(tmp_path: Path) -> None:
    policy = GuardPolicy(gaps_allowed=True, saving_max=Decimal(250))
    refused(tmp_path, r"300 USD a week at once, limit guard\.saving_per_apply_max=250", policy)


def approval(by: str, *stages: int) -> Approval:
    return Approval(plan_id=standard_plan().plan_id, stages=stages, by=by, at=NOW)


def test_large_plan_needs_two_different_people_for_each_stage(tmp_path: Path) -> None:
    policy = GuardPolicy(two_approvals_cards_min=4)
    for number, approved in enumerate(
        [
            [approval("ann", 1, 2)],
            [approval("ann", 1, 2), approval("Ann ", 1, 2)],
            [approval("ann", 1, 2), approval("bob", 1)],
        ]
    ):
        (tmp_path / str(number)).mkdir()
        refused(tmp_path / str(number), r"guard\.two_approvals_cards_min=4", policy, approved=approved)
    both = [approval("ann", 1, 2), approval("bob", 1, 2)]
    Guard(policy).check_plan(standard_plan(), (1, 2), both, NOW)
    Guard(policy).check_plan(standard_plan(), (2,), [approval("ann", 2)], NOW)


def test_cards_that_a_plan_frees_are_counted_in_the_cluster_whatever_the_plan_claims(tmp_path: Path) -> None:
    plan = standard_plan()
    nothing = tuple(replace(one, cards_freed=0, freed=()) for one in plan.recommendations)
    stages = tuple(replace(stage, cards_freed=0) for stage in plan.stages)
    unknown = replace(plan.placement[0], card=card_id(6), node="node-1", slices=(a_slice("nobody-0"),))
    claimed = seal_plan(
        replace(
            plan, recommendations=nothing, stages=stages, placement=(*plan.placement, unknown),
            totals=replace(plan.totals, cards_freed=0),
        )
    )  # fmt: skip
    for name, policy, match in (
        ("limit", GuardPolicy(cards_max=3), r"frees 4 cards.*cards_per_apply_max=3"),
        ("two", GuardPolicy(two_approvals_cards_min=4), r"4 cards.*guard\.two_approvals_cards_min=4"),
    ):
        (tmp_path / name).mkdir()
        approved = [Approval(plan_id=claimed.plan_id, stages=(1, 2), by="mallory", at=NOW)]
        refused(tmp_path / name, match, policy, plan=claimed, approved=approved)


@pytest.mark.parametrize(
    ("part", "key", "tool"),
    [
        ("annotations", "argocd.argoproj.io/tracking-id", "Argo CD"),
        ("labels", "argocd.argoproj.io/instance", "Argo CD"),
        ("labels", "kustomize.toolkit.fluxcd.io/name", "Flux"),
        ("labels", "helm.toolkit.fluxcd.io/name", "Flux"),
    ],
)
def test_owner_that_a_repository_keeps_is_not_fought_over(tmp_path: Path, part: str, key: str, tool: str) -> None:
    cluster = a_cluster(tmp_path)
    patch(cluster, "a", **{f"metadata.{part}[{key}]": "shop"})
    assert gitops_manager(cluster.get("Deployment", "team", "a") or {}) == f"{tool} ({key}=shop)"
    refused(tmp_path, rf"{tool} \({key}=shop\) keeps it.*--emit", cluster=cluster)


def test_label_of_helm_alone_is_no_repository() -> None:
    assert gitops_manager({"metadata": {"labels": {"app.kubernetes.io/managed-by": "Helm"}}}) is None


def patch(cluster: SimulatedCluster, name: str, **fields: str | None) -> None:
    found = cluster.get("Deployment", "team", name)
    assert found is not None
    changes = [FieldChange(field=path, value=value) for path, value in fields.items()]
    cluster.patch("Deployment", "team", name, changes, found["metadata"]["resourceVersion"])


def test_neighbour_that_wants_its_card_alone_since_the_plan_is_refused(tmp_path: Path) -> None:
    cluster = a_cluster(tmp_path)
    patch(cluster, "b", **{"metadata.annotations[gputide.io/isolation]": "hard"})
    refused(tmp_path, r"team/Deployment/b has gputide.io/isolation=hard", cluster=cluster)


def test_paused_deployment_is_refused(tmp_path: Path) -> None:
    cluster = a_cluster(tmp_path)
    patch(cluster, "a", **{"spec.paused": "true"})
    refused(tmp_path, "spec.paused=true", cluster=cluster)


def test_rollout_in_progress_is_refused(tmp_path: Path) -> None:
    cluster = a_cluster(tmp_path)
    patch(
        cluster,
        "a",
        **{
            "spec.template.spec.containers[server].env[MODEL]": "next",
            "spec.strategy.rollingUpdate.maxSurge": "0",
            "spec.strategy.rollingUpdate.maxUnavailable": "1",
        },
    )
    refused(tmp_path, "team/Deployment/a: a rollout of its own is in progress", cluster=cluster)


def test_stateful_set_whose_own_rollout_stands_at_a_partition_is_refused(tmp_path: Path) -> None:
    cluster = a_cluster(tmp_path, [a_grant("s", number, number, kind="StatefulSet") for number in range(2)])
    found = cluster.get("StatefulSet", "team", "s")
    assert found is not None
    change = FieldChange(field="spec.updateStrategy.rollingUpdate.partition", value="1")
    cluster.patch("StatefulSet", "team", "s", [change], found["metadata"]["resourceVersion"])
    refused(tmp_path, "rollingUpdate.partition=1", cluster=cluster, plan=plan_of("s", "StatefulSet"))


def plan_of(name: str, kind: str) -> Plan:
    pods = [f"{name}-0", f"{name}-1"]
    return a_plan(
        {0: [a_slice(pod, kind=kind) for pod in pods]},
        [[a_recommendation("x", RecommendationKind.SLICE, pods, [f"{kind}/{name}"], 1)]],
    )


def test_quota_that_the_stage_would_exceed_is_named(tmp_path: Path) -> None:
    cluster = a_cluster(tmp_path)
    quota = {"limits.nvidia.com/gpumem": "30000"}
    cluster.create(
        {
            "apiVersion": "v1",
            "kind": "ResourceQuota",
            "metadata": {"namespace": "team", "name": "gpus"},
            "spec": {"hard": quota},
            "status": {"hard": quota, "used": {"limits.nvidia.com/gpumem": "8000"}},
        }
    )
    plan = a_plan(
        {4: [a_slice("c-0"), a_slice("c-1")]},
        [[a_recommendation("s", RecommendationKind.SLICE, ["c-0", "c-1"], ["Deployment/c"], 1)]],
    )
    # Two pods that asked for no MiB ask for half a card each.
    assert 8000 + 2 * HALF // 2**20 == 32576
    refused(
        tmp_path, r"limits.nvidia.com/gpumem=32576 of ResourceQuota team/gpus, limit 30000", cluster=cluster, plan=plan
    )


@pytest.mark.parametrize(
    ("capability", "queue", "says"),
    [
        ({"volcano.sh/vgpu-memory": "30000"}, "nlp", "volcano.sh/vgpu-memory=32576 of Queue research, limit 30000"),
        ({"volcano.sh/vgpu-memory": "30000"}, "vision", None),
        ({"volcano.sh/vgpu-memory": "33000"}, "nlp", None),
        ({"volcano.sh/vgpu-number": "2"}, "nlp", None),
    ],
    ids=["beyond the queue above", "another queue", "within it", "not limited in this resource"],
)
def test_queue_of_volcano_that_the_stage_would_exceed_is_named(
    capability: dict[str, str], queue: str, says: str | None
) -> None:
    cluster, owner = a_kin_cluster(VOLCANO), a_kin_owner(VOLCANO, "c")
    owner["spec"]["template"]["metadata"]["annotations"] = {"scheduling.volcano.sh/queue-name": queue}
    cluster.put(owner)
    held = {"volcano.sh/vgpu-memory": "8000", "volcano.sh/vgpu-number": "2"}
    above = {"spec": {"capability": capability}, "status": {"allocated": held}}
    for name, said in (("research", above), ("nlp", {"spec": {"parent": "research"}}), ("vision", {})):
        cluster.put({"kind": "Queue", "metadata": {"namespace": "", "name": name}, **said})
    snapshot = take_snapshot(cluster, VOLCANO.backend.dialect)
    plan = a_plan(
        {4: [a_slice("c-0"), a_slice("c-1")]},
        [[a_recommendation("s", RecommendationKind.SLICE, ["c-0", "c-1"], ["Deployment/c"], 1)]],
    )
    objects = object_intents(VOLCANO.backend.render(plan, 1, snapshot))
    stage = StageRecord(plan_id=plan.plan_id, stage=1, objects=objects)
    with nullcontext() if says is None else pytest.raises(Refused, match=says):
        check_quotas(stage, snapshot, cluster)


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("guard.change_days", "mon,holiday", "days of the week"),
        ("guard.change_hours", "nine to five", "09:00-17:00"),
        ("guard.change_hours", "09:00-25:00", "09:00-17:00"),
        ("guard.change_holidays", "2026-02-30", "2026-12-24"),
        ("guard.harm_ratio_max", "0", "expected more than 0"),
    ],
)
def test_setting_that_means_nothing_is_refused_by_name(name: str, text: str, why: str) -> None:
    with pytest.raises(Misconfigured, match=why) as refusal:
        load_settings(None, {name: text}, {})
    assert name in str(refusal.value)


def test_hours_may_reach_midnight() -> None:
    assert hours_of("00:00-24:00") == (time(0), time(0))
    assert hours_of("22:00 - 06:00") == (time(22), time(6))


def test_plan_of_another_cluster_is_refused_naming_both(tmp_path: Path) -> None:
    policy = GuardPolicy(gaps_allowed=True, cluster="west")
    refused(tmp_path, rf"is of cluster {standard_plan().cluster!r}, and this enforcer changes 'west'", policy)


def test_runs_in_another_cluster_are_neither_told_nor_undone(tmp_path: Path) -> None:
    tools = some_tools(a_cluster(tmp_path), tmp_path)
    a_rollout(tools).apply(standard_plan(), by="ann")
    other = Journal(Ledger(tmp_path / "ledger.jsonl"), cluster="west")
    assert (other.runs(), other.open_undos()) == ([], {})
    own = Journal(Ledger(tmp_path / "ledger.jsonl"), cluster=standard_plan().cluster)
    assert [run.cluster for run in own.runs()] == [standard_plan().cluster]
    with pytest.raises(Refused, match="nothing is applied"):
        undo_all(some_tools(a_cluster(tmp_path), tmp_path, journal=other), tmp_path)
