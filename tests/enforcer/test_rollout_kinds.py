"""Every kind of owner rolls under the rollout's hold, one pod first, and is set as before when the stage is over."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from bench.faulty_cluster import Faults
from enforcer.cluster import FieldChange
from enforcer.manifest import Manifest, field_of
from enforcer.record.journal import StageState
from enforcer.simulated.cluster import SimulatedCluster
from fleet.decisions import Plan, RecommendationKind
from tests.enforcer.builders import (
    HALF,
    HOLD_SECONDS,
    a_cluster,
    a_grant,
    a_plan,
    a_recommendation,
    a_rollout,
    a_slice,
    an_undo,
    let_all_go,
    some_tools,
    where,
    whole,
)

COUNT = 3


class Killed(BaseException):
    """The process is gone."""


def a_fleet(folder: Path, kind: str, faults: Faults | None = None) -> SimulatedCluster:
    """Three pods; a StatefulSet says that all may go, for its last pod waits until its first has shrunk."""
    grants = [a_grant("w", number, number, kind=kind) for number in range(COUNT)]
    cluster = a_cluster(folder, grants, cards=4, faults=faults)
    return let_all_go(cluster, "StatefulSet/w") if kind == "StatefulSet" else cluster


def halves(kind: str) -> Plan:
    """Every pod gets half a card; the first two share card 0, so the first must shrink before the second can come."""
    pods = [f"w-{number}" for number in range(COUNT)]
    return a_plan(
        {0: [a_slice(pods[0], kind=kind), a_slice(pods[1], kind=kind)], 2: [a_slice(pods[2], kind=kind)]},
        [[a_recommendation("x", RecommendationKind.SLICE, pods, [f"{kind}/w"], 1)]],
    )


def owner(cluster: SimulatedCluster, kind: str) -> Manifest:
    found = cluster.get(kind, "team", "w")
    assert found is not None
    return found


def as_set(cluster: SimulatedCluster, kind: str) -> Manifest:
    """The owner as its user set it."""
    found = owner(cluster, kind)
    found.pop("status", None)
    for key in ("resourceVersion", "generation"):
        found["metadata"].pop(key, None)
    return found


def spread(cluster: SimulatedCluster) -> list[str]:
    return sorted(map(str, where(cluster).values()))


def made_anew(cluster: SimulatedCluster) -> int:
    return sum(seat.is_remade for seat in cluster.seats())


AFTER = ["(0, 12)", "(0, 12)", "(2, 12)"]
BEFORE = ["(0, 24)", "(1, 24)", "(2, 24)"]
KINDS = ("Deployment", "StatefulSet", "DaemonSet", "Job")


@pytest.mark.parametrize("kind", KINDS)
def test_kind_is_rolled_one_pod_first_and_set_as_before(tmp_path: Path, kind: str) -> None:
    cluster = a_fleet(tmp_path, kind)
    seen: list[tuple[int, Manifest]] = []

    def look(step: str) -> None:
        if step == "watched canary":
            seen.append((made_anew(cluster), owner(cluster, kind)))

    before = as_set(cluster, kind)
    (result,) = a_rollout(some_tools(cluster, tmp_path, step=look)).apply(halves(kind), by="ann")
    assert (result.state, result.reason) == (StageState.PROMOTED, None)
    assert spread(cluster) == AFTER
    ((count, held),) = seen
    assert count == 1
    if kind == "Deployment":
        assert held["spec"]["minReadySeconds"] == HOLD_SECONDS
        assert held["spec"]["progressDeadlineSeconds"] > HOLD_SECONDS
        assert held["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 0, "maxUnavailable": 1}
    after = as_set(cluster, kind)
    for key in ("strategy", "updateStrategy", "minReadySeconds", "progressDeadlineSeconds", "paused"):
        assert after["spec"].get(key) == before["spec"].get(key), key


@pytest.mark.parametrize("kind", KINDS)
def test_kind_is_taken_back_as_it_was(tmp_path: Path, kind: str) -> None:
    cluster = a_fleet(tmp_path, kind)
    before = as_set(cluster, kind)
    tools = some_tools(cluster, tmp_path)
    a_rollout(tools).apply(halves(kind), by="ann")
    assert an_undo(tools).undo(halves(kind).plan_id).kept == ()
    assert spread(cluster) == BEFORE
    assert as_set(cluster, kind) == before


@pytest.mark.parametrize("kind", KINDS)
def test_pod_that_is_never_ready_takes_its_kind_back(tmp_path: Path, kind: str) -> None:
    faults = Faults(never_ready=frozenset(f"team/w-{number}" for number in range(COUNT)))
    cluster = a_fleet(tmp_path, kind, faults)
    before = as_set(cluster, kind)

    def heal(step: str) -> None:
        # What was wrong with the new pods is wrong with the new template only.
        if step.startswith("restoring"):
            faults.never_ready = frozenset()

    (result,) = a_rollout(some_tools(cluster, tmp_path, step=heal)).apply(halves(kind), by="ann")
    assert result.state is StageState.RESTORED
    assert "was not ready" in str(result.reason)
    assert spread(cluster) == BEFORE
    assert as_set(cluster, kind) == before


def steps(cluster: SimulatedCluster, folder: Path, plan: Plan) -> list[str]:
    seen: list[str] = []
    a_rollout(some_tools(cluster, folder, step=seen.append)).apply(plan, by="ann")
    return seen


@pytest.mark.parametrize("kind", ["Deployment", "StatefulSet"])
def test_kill_before_any_step_ends_fully_applied(tmp_path: Path, kind: str) -> None:
    plan = halves(kind)
    (tmp_path / "count").mkdir()
    names = steps(a_fleet(tmp_path / "count", kind), tmp_path / "count", plan)
    for number in range(1, len(names) + 1):
        folder = tmp_path / str(number)
        folder.mkdir()
        cluster = a_fleet(folder, kind)
        before = as_set(cluster, kind)
        with pytest.raises(Killed):
            a_rollout(some_tools(cluster, folder, step=killing(number))).apply(plan, by="ann")
        tools = some_tools(cluster, folder)
        a_rollout(tools).apply(plan, by="ann")
        assert spread(cluster) == AFTER, names[number - 1]
        an_undo(tools).undo(plan.plan_id)
        assert as_set(cluster, kind) == before, names[number - 1]
        cluster.close()
    assert {"intend 1", f"patch team/{kind}/w", "watched canary", "watched rest", "promote 1"} <= set(names)


def killing(number: int) -> Callable[[str], None]:
    seen: list[str] = []

    def step(name: str) -> None:
        seen.append(name)
        if len(seen) == number:
            raise Killed

    return step


def test_pods_of_a_deployment_go_in_the_order_in_which_they_find_room(tmp_path: Path) -> None:
    """w-1 would go first by its name, and would wait for ever for the card that w-0 holds whole."""
    cluster = a_fleet(tmp_path, "Deployment")
    gone: list[list[str]] = []

    def look(step: str) -> None:
        gone.append([seat.pod for seat in cluster.seats() if seat.name != seat.pod])

    a_rollout(some_tools(cluster, tmp_path, step=look)).apply(halves("Deployment"), by="ann")
    first = next(names for names in gone if names)
    assert "w-1" not in first
    assert spread(cluster) == AFTER


def test_pods_that_exchange_cards_with_another_owner_go_one_after_the_other(tmp_path: Path) -> None:
    """Two whole cards of one workload, exchanged with a slice of it each: nobody finds room before the other went."""
    grants = [a_grant("w", 0, 0, framebuffer_bytes=HALF), a_grant("w", 1, 0, framebuffer_bytes=HALF),
              a_grant("v", 0, 1)]  # fmt: skip
    cluster = a_cluster(tmp_path, grants, cards=2)
    before = owner(cluster, "Deployment")["spec"]["strategy"]
    plan = a_plan(
        {0: [whole("v-0")], 1: [a_slice("w-0"), a_slice("w-1")]},
        [
            [
                a_recommendation(
                    "x", RecommendationKind.REHOME, ["w-0", "w-1", "v-0"], ["Deployment/w", "Deployment/v"], 0
                )
            ]
        ],
        cards_before=2,
    )
    (result,) = a_rollout(some_tools(cluster, tmp_path)).apply(plan, by="ann")
    assert (result.state, result.reason) == (StageState.PROMOTED, None)
    assert where(cluster) == {"v-0": (0, 24), "w-0": (1, 12), "w-1": (1, 12)}
    assert owner(cluster, "Deployment")["spec"]["strategy"] == before


def set_field_of(cluster: SimulatedCluster, kind: str, **fields: str | None) -> None:
    changes = [FieldChange(field=path, value=value) for path, value in fields.items()]
    cluster.patch(kind, "team", "w", changes, owner(cluster, kind)["metadata"]["resourceVersion"])


def test_deployment_that_ends_its_pods_first_is_left_to_its_own_way(tmp_path: Path) -> None:
    cluster = a_fleet(tmp_path, "Deployment")
    set_field_of(cluster, "Deployment", **{"spec.strategy.rollingUpdate": None, "spec.strategy.type": "Recreate"})
    (result,) = a_rollout(some_tools(cluster, tmp_path)).apply(halves("Deployment"), by="ann")
    assert (result.state, result.reason) == (StageState.PROMOTED, None)
    assert spread(cluster) == AFTER
    assert owner(cluster, "Deployment")["spec"]["strategy"] == {"type": "Recreate"}


def test_strategy_that_somebody_set_since_stays_as_they_set_it(tmp_path: Path) -> None:
    cluster = a_fleet(tmp_path, "Deployment")
    set_field_of(cluster, "Deployment", **{"spec.strategy.rollingUpdate.maxSurge": "25%"})

    def meddle(step: str) -> None:
        if step == "watched rest":
            set_field_of(cluster, "Deployment", **{"spec.strategy.rollingUpdate.maxUnavailable": "40%"})

    (result,) = a_rollout(some_tools(cluster, tmp_path, step=meddle)).apply(halves("Deployment"), by="ann")
    assert result.state is StageState.PROMOTED
    assert field_of(owner(cluster, "Deployment"), "spec.strategy.rollingUpdate.maxUnavailable") == "40%"
    assert field_of(owner(cluster, "Deployment"), "spec.strategy.rollingUpdate.maxSurge") == "25%"


def test_eviction_waits_for_its_disruption_budget_and_gives_up_in_time(tmp_path: Path) -> None:
    cluster = a_fleet(tmp_path, "Job")
    spec = {"minAvailable": "100%", "selector": {"matchLabels": {"app": "w"}}}
    budget = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "spec": spec,
              "metadata": {"namespace": "team", "name": "w"}}  # fmt: skip
    evicted: list[str] = []

    def forbid(step: str) -> None:
        evicted.append(step)
        if step.startswith("intend"):
            return
        if step.startswith("evict") and cluster.get("PodDisruptionBudget", "team", "w") is None and len(evicted) < 6:
            cluster.create(budget)

    (result,) = a_rollout(some_tools(cluster, tmp_path, step=forbid)).apply(halves("Job"), by="ann")
    assert result.state is StageState.RESTORED
    assert "its disruption budget left no room within" in str(result.reason)
    assert spread(cluster) == BEFORE


def test_rollout_changes_as_many_owners_as_it_may_at_once(tmp_path: Path) -> None:
    names = [f"w{number}" for number in range(4)]
    cluster = a_cluster(tmp_path, [a_grant(name, 0, number) for number, name in enumerate(names)], cards=4)
    plan = a_plan(
        {number: [a_slice(f"{name}-0")] for number, name in enumerate(names)},
        [
            [
                a_recommendation(
                    "x", RecommendationKind.SLICE, [f"{n}-0" for n in names], [f"Deployment/{n}" for n in names], 0
                )
            ]
        ],
        cards_before=4,
    )
    tools = some_tools(cluster, tmp_path)
    (result,) = a_rollout(tools).apply(plan, by="ann")
    assert result.state is StageState.PROMOTED
    waves: Sequence[Sequence[str]] = [
        entry.content["pods"] for entry in tools.journal._ledger.entries() if entry.event == "evict"
    ]
    assert [len(wave) for wave in waves] == [1, 3]
