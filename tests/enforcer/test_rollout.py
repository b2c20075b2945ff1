"""A plan is applied in stages, watched, kept or taken back, and a kill at any moment leaves nothing half done."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from bench.faulty_cluster import Faults, MisbehavingCluster
from enforcer.backends.hami import HamiBackend
from enforcer.cluster import FieldChange
from enforcer.manifest import Manifest
from enforcer.preview import preview
from enforcer.record.fingerprint import fingerprint_of
from enforcer.record.journal import StageState
from enforcer.rollout.progress import Progress
from enforcer.rollout.run_context import RunContext
from enforcer.rollout.watch import PodHealth
from enforcer.safety.guard import Guard, GuardPolicy
from enforcer.simulated.cluster import SimulatedCluster
from enforcer.snapshot import Snapshot, take_snapshot
from fleet.decisions import POOL_ESTIMATED, Plan, RecommendationKind
from fleet.documents import seal_plan
from fleet.errors import Refused, Unavailable
from fleet.inventory import Priority, WorkloadId
from fleet.sentences import Sentence
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
    an_inventory,
    an_undo,
    some_tools,
    standard_grants,
    standard_plan,
    undo_all,
    where,
)

BEFORE = {
    "a-0": (0, 24), "a-1": (1, 24), "b-0": (2, 24), "b-1": (3, 24), "book-0": (6, 24), "c-0": (4, 24), "c-1": (5, 24),
    "train-0": (7, 24),
}  # fmt: skip
AFTER = {
    "a-0": (0, 12), "a-1": (1, 12), "b-0": (0, 12), "b-1": (1, 12), "book-0": "stopped", "c-0": (4, 12), "c-1": (4, 12),
    "train-0": (7, 24),
}  # fmt: skip
STAGE_1 = {**BEFORE, "book-0": "stopped"}


class Killed(BaseException):
    """The process is gone."""


def owners(cluster: SimulatedCluster) -> list[Manifest]:
    """Owners as their users wrote them: without what the API server counts, and what the conflicting somebody wrote."""
    found = []
    for kind in ("Deployment", "Job", "Notebook", "StatefulSet", "DaemonSet"):
        for owner in cluster.list_objects(kind):
            owner["metadata"].pop("resourceVersion")
            owner["metadata"].pop("generation", None)
            owner["spec"].pop("revisionHistoryLimit", None)
            owner.pop("status", None)
            found.append(owner)
    return found


def test_plan_is_applied_as_placed(tmp_path: Path) -> None:
    cluster = a_cluster(tmp_path)
    results = a_rollout(some_tools(cluster, tmp_path)).apply(standard_plan(), by="ann")
    assert [result.state for result in results] == [StageState.PROMOTED, StageState.PROMOTED]
    assert where(cluster) == AFTER


def test_one_snapshot_at_a_time_is_held_while_a_plan_is_applied(tmp_path: Path) -> None:
    def alive() -> int:
        gc.collect()
        return sum(isinstance(one, Snapshot) for one in gc.get_objects())

    held: list[int] = []
    tools = some_tools(a_cluster(tmp_path), tmp_path, step=lambda _: held.append(alive()))
    gc.freeze()  # what is there now is neither collected nor looked through, step by step
    try:
        a_rollout(tools).apply(standard_plan(), by="ann")
    finally:
        gc.unfreeze()
    assert max(held) == 1


def test_applying_again_changes_nothing(tmp_path: Path) -> None:
    cluster = a_cluster(tmp_path)
    rollout = a_rollout(some_tools(cluster, tmp_path))
    rollout.apply(standard_plan(), by="ann")
    before = cluster.list_objects("Pod"), owners(cluster)
    results = rollout.apply(standard_plan(), by="ann")
    assert [result.state for result in results] == [StageState.PROMOTED, StageState.PROMOTED]
    assert (cluster.list_objects("Pod"), owners(cluster)) == before


def test_one_stage_can_be_applied_alone(tmp_path: Path) -> None:
    cluster = a_cluster(tmp_path)
    a_rollout(some_tools(cluster, tmp_path)).apply(standard_plan(), [1], by="ann")
    assert where(cluster) == STAGE_1


def test_canary_goes_first_and_news_name_it(tmp_path: Path) -> None:
    cluster = a_cluster(tmp_path)
    news: list[Progress] = []
    tools = some_tools(cluster, tmp_path, on_progress=news.append)
    a_rollout(tools).apply(standard_plan(), [2], by="ann")
    assert [entry.phase.value for entry in news if ("batch", "canary") in entry.said.values][-1] == "watching"
    assert news[-1].phase.value == "promoted"
    batches = [entry.content["batch"] for entry in tools.journal._ledger.entries() if entry.event == "watched"]
    assert batches == ["canary", "rest"]


def test_canary_is_one_pod_of_one_workload(tmp_path: Path) -> None:
    cluster = a_cluster(tmp_path)
    seen: list[dict[str, str]] = []

    def look(step: str) -> None:
        if step == "watched canary":
            seen.append({seat.pod: seat.name for seat in cluster.seats() if seat.name != seat.pod})

    a_rollout(some_tools(cluster, tmp_path, step=look)).apply(standard_plan(), [2], by="ann")
    ((pod,),) = (list(found) for found in seen)
    assert pod.startswith("a-")


def doubtful(plan: Plan) -> Plan:
    """A plan whose slices rest on estimated KV caches."""
    doubt = Sentence(code=POOL_ESTIMATED, values=(("least_bytes", 1), ("most_bytes", 2)))
    advice = tuple(replace(one, why=(doubt,)) if one.id == "slice-1" else one for one in plan.recommendations)
    return seal_plan(replace(plan, recommendations=advice))


def test_a_workload_whose_cache_is_estimated_tries_one_pod_too(tmp_path: Path) -> None:
    cluster = a_cluster(tmp_path)
    doubted, seen = doubtful(standard_plan()), list[set[str]]()

    def look(step: str) -> None:
        if step == "watched canary":
            seen.append({seat.pod for seat in cluster.seats() if seat.name != seat.pod})

    a_rollout(some_tools(cluster, tmp_path, step=look)).apply(doubted, [2], by="ann")
    ((pod,),) = seen
    assert pod.startswith("c-")


def a_swap(folder: Path) -> tuple[SimulatedCluster, Plan]:
    """Two pods that want each other's cards: neither can go alone."""
    grants = [a_grant("a", 0, 0, framebuffer_bytes=2 * HALF), a_grant("b", 0, 1, framebuffer_bytes=2 * HALF)]
    plan = a_plan(
        {
            0: [a_slice("b-0", framebuffer_bytes=2 * HALF - 2**21)],
            1: [a_slice("a-0", framebuffer_bytes=2 * HALF - 2**21)],
        },
        [[a_recommendation("slice-1", RecommendationKind.SLICE, ["a-0", "b-0"], ["Deployment/a", "Deployment/b"], 0)]],
    )
    return a_cluster(folder, grants, cards=2), plan


def test_a_workload_whose_cache_is_estimated_is_not_cut_where_no_pod_can_try_it(tmp_path: Path) -> None:
    cluster, plan = a_swap(tmp_path)
    before = where(cluster)
    with pytest.raises(Refused) as found:
        a_rollout(some_tools(cluster, tmp_path)).apply(doubtful(plan), by="ann")
    assert "none of its pods can try" in str(found.value)
    assert where(cluster) == before


def test_pods_that_want_each_others_cards_are_swapped(tmp_path: Path) -> None:
    cluster, plan = a_swap(tmp_path)
    (result,) = a_rollout(some_tools(cluster, tmp_path)).apply(plan, by="ann")
    assert result.state is StageState.PROMOTED
    assert where(cluster) == {"a-0": (1, 23), "b-0": (0, 23)}


@pytest.mark.parametrize(
    ("faults", "reason"),
    [
        (Faults(never_ready=frozenset({"team/b-0"})), "not ready"),
        (Faults(out_of_memory=frozenset({"team/a-1"})), "want of memory"),
        (Faults(conflict_on_writes=frozenset({6})), "changed since it was read"),
    ],
)
def test_stage_that_goes_wrong_is_taken_back_and_the_one_before_stays(
    tmp_path: Path, faults: Faults, reason: str
) -> None:
    cluster = a_cluster(tmp_path, faults=faults)
    before = [owner for owner in owners(cluster) if owner["kind"] != "Notebook"]
    results = a_rollout(some_tools(cluster, tmp_path)).apply(standard_plan(), by="ann")
    assert [result.state for result in results] == [StageState.PROMOTED, StageState.RESTORED]
    assert reason in str(results[1].reason)
    assert [owner for owner in owners(cluster) if owner["kind"] != "Notebook"] == before
    assert {pod: seat for pod, seat in where(cluster).items() if seat != "pending"} == STAGE_1


class Deaf(SimulatedCluster):
    """A cluster whose admission goes away once it was asked."""

    def why_unseated(self, namespaces: Sequence[str]) -> Sentence | None:
        del namespaces
        return None


def test_stage_is_refused_while_nobody_gives_pods_their_seats(tmp_path: Path) -> None:
    a_cluster(tmp_path).close()
    cluster = SimulatedCluster(tmp_path / "cluster.sqlite", with_admission=False)
    before = owners(cluster)
    with pytest.raises(Refused, match="webhook gives pods their planned cards and nodes, and it does not run"):
        a_rollout(some_tools(cluster, tmp_path)).apply(standard_plan(), [2], by="ann")
    assert owners(cluster) == before
    (_, shown) = preview(standard_plan(), cluster, HamiBackend(NOW))
    assert "docs/admission.yaml" in str(shown.refusal)


def test_landing_elsewhere_is_taken_back(tmp_path: Path) -> None:
    a_cluster(tmp_path).close()
    cluster = Deaf(tmp_path / "cluster.sqlite", with_admission=False)
    # Without the admission step the template's grant reaches both pods, and the plan wants another one for a-1.
    plan = a_plan(
        {0: [a_slice("a-0")], 1: [a_slice("a-1", framebuffer_bytes=HALF // 2)]},
        [[a_recommendation("x", RecommendationKind.SLICE, ["a-0", "a-1"], ["Deployment/a"], 0)]],
    )
    (result,) = a_rollout(some_tools(cluster, tmp_path)).apply(plan, by="ann")
    assert result.state is StageState.RESTORED
    assert "landed on" in str(result.reason)
    assert where(cluster) == BEFORE


def test_complaint_of_a_signal_takes_the_stage_back(tmp_path: Path) -> None:
    class Loud:
        def health(self, pods: list[str]) -> tuple[PodHealth, ...]:
            return tuple(
                PodHealth(pod_id=pod, is_ready=True, restarts=0, is_oom_killed=False, framebuffer_used_ratio=1.0)
                for pod in pods
            )

    cluster = a_cluster(tmp_path)
    results = a_rollout(some_tools(cluster, tmp_path, signals=Loud())).apply(standard_plan(), [2], by="ann")
    assert "framebuffer" in str(results[0].reason)
    assert where(cluster) == BEFORE


def test_busy_api_server_is_waited_for(tmp_path: Path) -> None:
    faults = Faults(fail_on_writes={2: 429, 3: 500, 7: 429})
    cluster = a_cluster(tmp_path, faults=faults)
    a_rollout(some_tools(cluster, tmp_path)).apply(standard_plan(), by="ann")
    assert where(cluster) == AFTER


def test_run_that_could_not_reach_the_cluster_for_too_long_goes_on_later(tmp_path: Path) -> None:
    faults = Faults(fail_on_writes=dict.fromkeys(range(5, 10_000), 500))
    cluster = a_cluster(tmp_path, faults=faults)
    rollout = a_rollout(some_tools(cluster, tmp_path))
    with pytest.raises(Unavailable):
        rollout.apply(standard_plan(), by="ann")
    faults.fail_on_writes = None
    rollout.resume(standard_plan())
    assert where(cluster) == AFTER


def test_frozen_cluster_is_left_alone_and_thawed_it_goes_on(tmp_path: Path) -> None:
    cluster = a_cluster(tmp_path)
    tools = some_tools(cluster, tmp_path)

    def freeze_after_canary(step: str) -> None:
        if step == "watched canary":
            name = {"namespace": "gputide", "name": "gputide-freeze"}
            cluster.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": name})

    tools.step = freeze_after_canary
    rollout = a_rollout(tools)
    with pytest.raises(Refused, match="freezes"):
        rollout.apply(standard_plan(), [2], by="ann")
    held = where(cluster)
    assert held not in (BEFORE, AFTER)
    with pytest.raises(Refused, match="freezes"):
        rollout.resume(standard_plan())
    assert where(cluster) == held
    cluster.delete("ConfigMap", "gputide", "gputide-freeze")
    tools.step = lambda _: None
    rollout.resume(standard_plan())
    assert where(cluster) == {**AFTER, "book-0": (6, 24)}


def test_lease_of_another_holder_keeps_us_out(tmp_path: Path) -> None:
    cluster = a_cluster(tmp_path)
    cluster.acquire("somebody", 3600.0)
    with pytest.raises(Refused, match="lease"):
        a_rollout(some_tools(cluster, tmp_path)).apply(standard_plan(), by="ann")
    assert where(cluster) == BEFORE


# --- kills ---


def killing(tools: RunContext, number: int) -> RunContext:
    """RunContext that end the process before their n-th write."""
    seen = 0

    def step(_: str) -> None:
        nonlocal seen
        seen += 1
        if seen == number:
            raise Killed

    tools.step = step
    return tools


def steps_of(folder: Path, *, fails: bool) -> int:
    seen: list[str] = []
    folder.mkdir()
    faults = Faults(never_ready=frozenset({"team/b-0"})) if fails else None
    tools = some_tools(a_cluster(folder, faults=faults), folder, step=seen.append)
    a_rollout(tools).apply(standard_plan(), by="ann")
    return len(seen)


@pytest.mark.parametrize("fails", [False, True])
def test_kill_before_any_write_ends_fully_applied_or_fully_restored(tmp_path: Path, fails: bool) -> None:
    plan = standard_plan()
    for number in range(1, steps_of(tmp_path / "count", fails=fails) + 1):
        folder = tmp_path / f"kill-{number}"
        folder.mkdir()
        faults = Faults(never_ready=frozenset({"team/b-0"})) if fails else None
        cluster = a_cluster(folder, faults=faults)
        before = owners(cluster)
        with pytest.raises(Killed):
            a_rollout(killing(some_tools(cluster, folder), number)).apply(plan, by="ann")
        cluster.close()
        again = MisbehavingCluster(folder / "cluster.sqlite", faults or Faults())
        tools = some_tools(again, folder)
        a_rollout(tools).apply(plan, by="ann")
        tools.journal._ledger.verify()
        if fails:
            assert where(again) in (STAGE_1, {**STAGE_1, "b-0": "pending"}), number
            assert [entry for entry in owners(again) if entry["kind"] != "Notebook"] == [
                entry for entry in before if entry["kind"] != "Notebook"
            ], number
        else:
            assert where(again) == AFTER, number
        again.close()


def test_kill_at_any_moment_of_undo_ends_restored(tmp_path: Path) -> None:
    plan = standard_plan()
    applied = tmp_path / "applied"
    applied.mkdir()
    cluster = a_cluster(applied)
    before = owners(cluster)
    a_rollout(some_tools(cluster, applied)).apply(plan, by="ann")
    cluster.close()
    number = 0
    while True:
        number += 1
        folder = shutil.copytree(applied, tmp_path / f"kill-{number}")
        cluster = SimulatedCluster(folder / "cluster.sqlite")
        try:
            an_undo(killing(some_tools(cluster, folder), number)).undo(plan.plan_id)
            break
        except Killed:
            pass
        cluster.close()
        again = SimulatedCluster(folder / "cluster.sqlite")
        an_undo(some_tools(again, folder)).undo(plan.plan_id)
        assert where(again) == BEFORE, number
        assert owners(again) == before, number
        again.close()
    assert number > 5


def test_line_that_the_kill_cut_is_dropped(tmp_path: Path) -> None:
    plan = standard_plan()
    cluster = a_cluster(tmp_path)
    with pytest.raises(Killed):
        a_rollout(killing(some_tools(cluster, tmp_path), 8)).apply(plan, by="ann")
    with (tmp_path / "ledger.jsonl").open("ab") as file:
        file.write(b'{"number":99,"at":"2026-01-')
    a_rollout(some_tools(cluster, tmp_path)).apply(plan, by="ann")
    assert where(cluster) == AFTER


@pytest.mark.parametrize("number", [3, 9])
def test_real_kill_of_the_process_is_survived(tmp_path: Path, number: int, repository: Path) -> None:
    script = f"""
import os, signal, sys
from pathlib import Path
from tests.enforcer.builders import *
folder = Path({str(tmp_path)!r})
seen = []
def step(name):
    seen.append(name)
    if len(seen) == {number}:
        os.kill(os.getpid(), signal.SIGKILL)
a_rollout(some_tools(a_cluster(folder), folder, step=step)).apply(standard_plan(), by="ann")
"""
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=repository, env={**os.environ, "PYTHONPATH": str(repository)}, check=False
    )
    assert done.returncode == -signal.SIGKILL
    cluster = SimulatedCluster.open(tmp_path / "cluster.sqlite")
    a_rollout(some_tools(cluster, tmp_path)).apply(standard_plan(), by="ann")
    assert where(cluster) == AFTER


# --- guard ---


def refused(
    folder: Path, plan: Plan, match: str, *, cluster: SimulatedCluster | None = None, **changes: object
) -> None:
    cluster = cluster or a_cluster(folder)
    before = where(cluster), owners(cluster)
    with pytest.raises(Refused, match=match):
        a_rollout(some_tools(cluster, folder, **changes)).apply(plan, by="ann")
    assert (where(cluster), owners(cluster)) == before


def test_expired_plan_is_refused(tmp_path: Path) -> None:
    cluster = a_cluster(tmp_path)
    cluster.advance(NOW + timedelta(days=2))
    refused(tmp_path, standard_plan(), "expired", cluster=cluster)


def test_edited_plan_is_refused(tmp_path: Path) -> None:
    refused(tmp_path, replace(standard_plan(), cluster="c2"), "edited")


def test_plan_of_little_coverage_is_refused(tmp_path: Path) -> None:
    plan = a_plan({}, [[a_recommendation("r", RecommendationKind.RECLAIM, ["book-0"], ["Notebook/book"], 1)]],
                  coverage_ratio=0.5)  # fmt: skip
    refused(tmp_path, plan, "coverage 0.500")


def test_unapproved_stage_is_refused(tmp_path: Path) -> None:
    refused(tmp_path, standard_plan(), "nobody approved", guard=Guard(GuardPolicy()))


def test_plan_that_frees_too_many_cards_at_once_is_refused(tmp_path: Path) -> None:
    guard = OpenGuard(GuardPolicy(gaps_allowed=True, cards_max=3))
    refused(tmp_path, standard_plan(), "cards_per_apply_max=3", guard=guard)


def test_freeze_file_refuses_everything(tmp_path: Path) -> None:
    (tmp_path / "freeze").write_text("ann\n")
    guard = OpenGuard(GuardPolicy(gaps_allowed=True, freeze_file=tmp_path / "freeze"))
    refused(tmp_path, standard_plan(), "frozen by ann", guard=guard)


def wish(cluster: SimulatedCluster, kind: str, name: str, label: str, value: str = "true") -> None:
    found = cluster.get(kind, "team", name)
    assert found is not None
    change = FieldChange(field=f"metadata.annotations[{label}]", value=value)
    cluster.patch(kind, "team", name, [change], found["metadata"]["resourceVersion"])


def test_workload_that_opted_out_since_is_refused(tmp_path: Path) -> None:
    cluster = a_cluster(tmp_path)
    wish(cluster, "Deployment", "a", "gputide.io/opt-out")
    refused(tmp_path, standard_plan(), "gputide.io/opt-out is set for team/Deployment/a", cluster=cluster)


def test_workload_whose_policy_opts_out_is_refused_but_where_its_own_mark_says_otherwise(tmp_path: Path) -> None:
    cluster = a_cluster(tmp_path)
    found = cluster.get("Deployment", "team", "a")
    assert found is not None
    labels = found["spec"]["template"]["metadata"]["labels"]
    spec = {"optOut": True, "selector": {"matchLabels": labels}}
    cluster.create({"kind": "GpuPolicy", "metadata": {"namespace": "other", "name": "p"}, "spec": spec})
    guard = OpenGuard(GuardPolicy(gaps_allowed=True))
    guard.check_cluster(standard_plan(), (1, 2), take_snapshot(cluster), None, [])
    cluster.create({"kind": "GpuPolicy", "metadata": {"namespace": "team", "name": "p"}, "spec": spec})
    why = "team/Deployment/a has gputide.io/opt-out=true by GpuPolicy team/p"
    refused(tmp_path, standard_plan(), why, cluster=cluster)
    wish(cluster, "Deployment", "a", "gputide.io/opt-out", "false")
    guard.check_cluster(standard_plan(), (1, 2), take_snapshot(cluster), None, [])


def test_latency_critical_workload_may_be_sliced_but_never_stopped(tmp_path: Path) -> None:
    for name in ("sliced", "stopped"):
        (tmp_path / name).mkdir()
    sliced = a_cluster(tmp_path / "sliced")
    wish(sliced, "Deployment", "a", "gputide.io/latency-critical")
    snapshot = take_snapshot(sliced)
    OpenGuard(GuardPolicy(gaps_allowed=True)).check_cluster(standard_plan(), (1, 2), snapshot, None, [])
    stopped = a_cluster(tmp_path / "stopped")
    wish(stopped, "Notebook", "book", "gputide.io/latency-critical")
    refused(tmp_path, standard_plan(), "gputide.io/latency-critical", cluster=stopped)


def test_pods_that_came_since_refuse_the_plan(tmp_path: Path) -> None:
    cluster = a_cluster(tmp_path)
    cluster.sync(an_inventory([*standard_grants(), a_grant("a", 2, 8)], cards=12), NOW + timedelta(minutes=1))
    refused(tmp_path, standard_plan(), r"does not know: team/a-2", cluster=cluster)


def test_cards_that_are_gone_refuse_the_plan(tmp_path: Path) -> None:
    cluster = a_cluster(tmp_path)
    cluster.sync(an_inventory(standard_grants(), cards=6), NOW + timedelta(minutes=1))
    refused(tmp_path, standard_plan(), "cards changed", cluster=cluster)


@pytest.mark.parametrize(
    ("field", "value", "what"),
    [
        ("spec.template.spec.containers[server].env[MODEL]", "other", "the template of team/Deployment/a"),
        ("spec.template.spec.containers[server].resources.limits[nvidia.com/gpumem]", "9000", "the grants"),
    ],
)
def test_owner_that_changed_since_the_plan_refuses_it(tmp_path: Path, field: str, value: str, what: str) -> None:
    cluster = a_cluster(tmp_path)
    fingerprint = fingerprint_of(take_snapshot(cluster))
    version = cluster.get("Deployment", "team", "a")["metadata"]["resourceVersion"]  # type: ignore[index]
    cluster.patch("Deployment", "team", "a", [FieldChange(field=field, value=value)], version)
    before = where(cluster)
    with pytest.raises(Refused, match=what):
        a_rollout(some_tools(cluster, tmp_path)).apply(standard_plan(), by="ann", fingerprint=fingerprint)
    assert where(cluster) == before


def test_own_changes_of_earlier_stages_are_no_change_of_inputs(tmp_path: Path) -> None:
    cluster = a_cluster(tmp_path)
    fingerprint = fingerprint_of(take_snapshot(cluster))
    rollout = a_rollout(some_tools(cluster, tmp_path))
    rollout.apply(standard_plan(), [1], by="ann", fingerprint=fingerprint)
    rollout.apply(standard_plan(), by="ann", fingerprint=fingerprint)
    assert where(cluster) == AFTER


# --- undo ---


def test_undo_of_a_stage_keeps_the_others(tmp_path: Path) -> None:
    cluster = a_cluster(tmp_path)
    tools = some_tools(cluster, tmp_path)
    a_rollout(tools).apply(standard_plan(), by="ann")
    result = an_undo(tools).undo(standard_plan().plan_id, stages=[2])
    assert result.kept == ()
    assert where(cluster) == STAGE_1


def test_undo_of_one_recommendation_keeps_the_others(tmp_path: Path) -> None:
    cluster = a_cluster(tmp_path)
    tools = some_tools(cluster, tmp_path)
    a_rollout(tools).apply(standard_plan(), by="ann")
    result = an_undo(tools).undo(standard_plan().plan_id, recommendation="slice-1")
    assert result.workloads == ("team/Deployment/c",)
    assert where(cluster) == {**AFTER, "c-0": (4, 24), "c-1": (5, 24)}
    an_undo(tools).undo(standard_plan().plan_id)
    assert where(cluster) == BEFORE


def test_undo_keeps_what_somebody_changed_since_and_says_so(tmp_path: Path) -> None:
    cluster = a_cluster(tmp_path)
    tools = some_tools(cluster, tmp_path)
    a_rollout(tools).apply(standard_plan(), by="ann")
    field = "spec.template.spec.containers[server].resources.limits[nvidia.com/gpumem]"
    version = cluster.get("Deployment", "team", "c")["metadata"]["resourceVersion"]  # type: ignore[index]
    cluster.patch("Deployment", "team", "c", [FieldChange(field=field, value="9000")], version)
    result = an_undo(tools).undo(standard_plan().plan_id)
    assert any("9000" in str(left) and "team/Deployment/c" in str(left) for left in result.kept)
    limits = cluster.get("Deployment", "team", "c")["spec"]["template"]["spec"]["containers"][0]["resources"]  # type: ignore[index]
    assert limits["limits"]["nvidia.com/gpumem"] == "9000"
    assert where(cluster)["a-0"] == (0, 24)


def test_quantity_that_the_server_rewrote_is_still_ours(tmp_path: Path) -> None:
    cluster = a_cluster(tmp_path)
    tools = some_tools(cluster, tmp_path)
    plan = a_plan(
        {4: [a_slice("c-0", framebuffer_bytes=4000 * 2**20), a_slice("c-1", framebuffer_bytes=4000 * 2**20)]},
        [[a_recommendation("s", RecommendationKind.SLICE, ["c-0", "c-1"], ["Deployment/c"], 1)]],
    )
    a_rollout(tools).apply(plan, by="ann")
    field = "spec.template.spec.containers[server].resources.limits[nvidia.com/gpumem]"
    version = cluster.get("Deployment", "team", "c")["metadata"]["resourceVersion"]  # type: ignore[index]
    cluster.patch("Deployment", "team", "c", [FieldChange(field=field, value="4k")], version)
    assert an_undo(tools).undo(plan.plan_id).kept == ()


def test_undo_of_what_was_never_applied_is_refused(tmp_path: Path) -> None:
    tools = some_tools(a_cluster(tmp_path), tmp_path)
    with pytest.raises(Refused, match="nothing of it is applied"):
        an_undo(tools).undo(standard_plan().plan_id)


def test_second_undo_says_that_it_was_undone(tmp_path: Path) -> None:
    tools = some_tools(a_cluster(tmp_path), tmp_path)
    plan = standard_plan()
    a_rollout(tools).apply(plan, by="ann")
    an_undo(tools).undo(plan.plan_id)
    with pytest.raises(Refused, match="it was undone already"):
        an_undo(tools).undo(plan.plan_id)


def test_undone_plan_can_be_applied_again(tmp_path: Path) -> None:
    cluster = a_cluster(tmp_path)
    tools = some_tools(cluster, tmp_path)
    for _ in range(2):
        a_rollout(tools).apply(standard_plan(), by="ann")
        assert where(cluster) == AFTER
        an_undo(tools).undo(standard_plan().plan_id)
        assert where(cluster) == BEFORE


def test_workload_that_two_stages_changed_goes_back_to_the_very_first(tmp_path: Path) -> None:
    grants = [a_grant("a", number, number) for number in range(4)]
    plan = a_plan(
        {0: [a_slice("a-0"), a_slice("a-1")], 2: [a_slice("a-2"), a_slice("a-3")]},
        [
            [a_recommendation("s1", RecommendationKind.SLICE, ["a-0", "a-1"], ["Deployment/a"], 1)],
            [a_recommendation("s2", RecommendationKind.SLICE, ["a-2", "a-3"], ["Deployment/a"], 1)],
        ],
        cards_before=4,
    )
    cluster = a_cluster(tmp_path, grants, cards=4)
    before = owners(cluster)
    tools = some_tools(cluster, tmp_path)
    a_rollout(tools).apply(plan, [1], by="ann")
    assert where(cluster) == {"a-0": (0, 12), "a-1": (0, 12), "a-2": (2, 24), "a-3": (3, 24)}
    a_rollout(tools).apply(plan, by="ann")
    assert where(cluster) == {"a-0": (0, 12), "a-1": (0, 12), "a-2": (2, 12), "a-3": (2, 12)}
    an_undo(tools).undo(plan.plan_id)
    assert where(cluster) == {f"a-{number}": (number, 24) for number in range(4)}
    assert owners(cluster) == before


def second_plan(cluster: SimulatedCluster) -> Plan:
    """Made after the standard plan was applied: a's pods, as they are called by now, get a quarter of a card each."""
    names = {seat.pod: seat.name for seat in cluster.seats()}
    a, b = [names["a-0"], names["a-1"]], [names["b-0"], names["b-1"]]
    parts = [replace(a_slice(pod, framebuffer_bytes=HALF // 2), workload=WorkloadId("team/Deployment/a")) for pod in a]
    others = [replace(a_slice(pod, priority=Priority.HIGH), workload=WorkloadId("team/Deployment/b")) for pod in b]
    return a_plan(
        {0: [parts[0], others[0]], 1: [parts[1], others[1]]},
        [[a_recommendation("later", RecommendationKind.SLICE, a, ["Deployment/a"], 0)]],
    )


def test_plan_made_after_another_was_applied_knows_the_pods_by_their_new_names(tmp_path: Path) -> None:
    cluster = a_cluster(tmp_path)
    tools = some_tools(cluster, tmp_path)
    a_rollout(tools).apply(standard_plan(), by="ann")
    (result,) = a_rollout(tools).apply(second_plan(cluster), by="ann")
    assert (result.state, result.reason) == (StageState.PROMOTED, None)
    assert where(cluster) == {**AFTER, "a-0": (0, 6), "a-1": (1, 6)}


def test_undo_of_all_takes_the_last_plan_off_first_weeks_later_and_after_a_restart(tmp_path: Path) -> None:
    cluster = a_cluster(tmp_path)
    before = owners(cluster)
    tools = some_tools(cluster, tmp_path)
    a_rollout(tools).apply(standard_plan(), by="ann")
    later = second_plan(cluster)
    a_rollout(tools).apply(later, by="ann")
    cluster.close()
    again = SimulatedCluster.open(tmp_path / "cluster.sqlite")
    again.advance(NOW + timedelta(days=30))
    tools = some_tools(again, tmp_path)
    assert an_undo(tools).applied_plans() == (later.plan_id, standard_plan().plan_id)
    assert [result.plan_id for result in undo_all(tools, tmp_path)] == [later.plan_id, standard_plan().plan_id]
    # Replicas are alike: which of a's pods sits on which of its two cards does not matter.
    assert {seat: pod[0] for pod, seat in where(again).items()} == {seat: pod[0] for pod, seat in BEFORE.items()}
    assert owners(again) == before
    with pytest.raises(Refused, match="nothing is applied"):
        undo_all(tools, tmp_path)


def test_undo_says_before_it_begins_what_a_later_plan_or_somebody_set_since(tmp_path: Path) -> None:
    cluster = a_cluster(tmp_path)
    tools = some_tools(cluster, tmp_path)
    a_rollout(tools).apply(standard_plan(), by="ann")
    undo = an_undo(tools)
    first = standard_plan().plan_id
    assert undo.kept_now(undo.preview(first)) == ()
    later = second_plan(cluster)
    a_rollout(tools).apply(later, by="ann")
    kept = undo.kept_now(undo.preview(first))
    assert kept
    assert all(f"plan {later.short_id} set it to" in str(left) and "team/Deployment/a" in str(left) for left in kept)
    version = cluster.get("Deployment", "team", "c")["metadata"]["resourceVersion"]  # type: ignore[index]
    field = "spec.template.spec.containers[server].resources.limits[nvidia.com/gpumem]"
    cluster.patch("Deployment", "team", "c", [FieldChange(field=field, value="9000")], version)
    assert any("somebody set it to '9000' since" in str(left) for left in undo.kept_now(undo.preview(first)))


def test_status_that_moves_on_is_no_conflict(tmp_path: Path) -> None:
    """A real API server gives an object another version with each look of its controller at its pods."""
    cluster = a_cluster(tmp_path)

    def look_at_it(step: str) -> None:
        if step.startswith("patch team/Deployment"):
            name = step.rpartition("/")[2]
            found = cluster.get("Deployment", "team", name)
            assert found is not None
            change = FieldChange(field="metadata.annotations[deployment.kubernetes.io/revision]", value=str(len(step)))
            cluster.patch("Deployment", "team", name, [change], found["metadata"]["resourceVersion"])

    seen: list[str] = []

    def once(step: str) -> None:
        if step not in seen:
            seen.append(step)
            look_at_it(step)

    results = a_rollout(some_tools(cluster, tmp_path, step=once)).apply(standard_plan(), by="ann")
    assert [result.state for result in results] == [StageState.PROMOTED, StageState.PROMOTED]
    assert where(cluster) == AFTER


def test_preview_of_a_later_stage_knows_pods_that_an_earlier_one_made_anew(tmp_path: Path) -> None:
    grants = [a_grant("a", number, number) for number in range(4)]
    plan = a_plan(
        {0: [a_slice("a-0"), a_slice("a-1")], 2: [a_slice("a-2"), a_slice("a-3")]},
        [
            [a_recommendation("s1", RecommendationKind.SLICE, ["a-0", "a-1"], ["Deployment/a"], 1)],
            [a_recommendation("s2", RecommendationKind.SLICE, ["a-2", "a-3"], ["Deployment/a"], 1)],
        ],
        cards_before=4,
    )
    cluster = a_cluster(tmp_path, grants, cards=4)
    tools = some_tools(cluster, tmp_path)
    (first, _) = preview(plan, cluster, HamiBackend(NOW))
    assert any(
        "pods that stay are made anew too, for their owners roll as a whole: 2, such as team/a-2" in warning
        for warning in first.warnings
    )
    a_rollout(tools).apply(plan, [1], by="ann")
    found = preview(plan, cluster, HamiBackend(NOW), None, tools.journal.runs(plan.plan_id))
    assert [stage.refusal for stage in found] == [None, None]
    assert [len(stage.moves) for stage in found] == [0, 2]
    assert [stage.cards_freed for stage in found] == [0, 1]


def test_lease_is_never_let_go_while_a_stage_waits_and_watches(tmp_path: Path) -> None:
    cluster = a_cluster(tmp_path)
    got_in: list[float] = []

    def pause(seconds: float) -> None:
        cluster.pause(seconds)
        if cluster.acquire("rival", 30.0):
            got_in.append(seconds)
            cluster.release("rival")

    a_rollout(some_tools(cluster, tmp_path, pause=pause)).apply(standard_plan(), by="ann")
    assert got_in == []
    assert cluster.acquire("rival", 30.0)
