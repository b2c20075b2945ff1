"""A plan follows every edit of a policy, also after a restart; a tenant that edits without end waits alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from enforcer.policy_follower import (
    PLANS_PER_HOUR_MAX,
    FollowerMetrics,
    Planned,
    PolicyFollower,
    PolicyStatus,
    StoredPolicy,
)
from fleet.errors import NotEnoughData, Unavailable
from fleet.gpu_policy import POLICIES_MAX, gpu_policy
from wire.own_metrics import OwnMetrics

HOUR = 3600.0


class Policies:
    """A `PolicyStore` in memory; mutable."""

    def __init__(self) -> None:
        self.there: dict[tuple[str, str], tuple[dict[str, Any], int]] = {}
        self.statuses: Mapping[str, PolicyStatus] = {}

    def put(self, name: str, namespace: str = "team", **spec: Any) -> None:
        generation = self.there[namespace, name][1] + 1 if (namespace, name) in self.there else 1
        self.there[namespace, name] = spec, generation

    def listed(self) -> Sequence[StoredPolicy]:
        return [
            StoredPolicy(
                policy=gpu_policy({"metadata": {"name": name, "namespace": namespace}, "spec": spec}),
                generation=generation,
            )
            for (namespace, name), (spec, generation) in self.there.items()
        ]

    def report(self, statuses: Mapping[str, PolicyStatus]) -> None:
        self.statuses = statuses

    def planned(self, title: str) -> tuple[bool, str]:
        (found,) = [one for one in self.statuses[title].conditions if one.type == "Planned"]
        return found.is_true, found.message


class World:
    """A follower whose plans are counted; mutable: time goes on."""

    def __init__(self, folder: Path, policies: Policies) -> None:
        self.now, self.plans, self.refusal, self.standing = 0.0, 0, None, None
        self.follower = PolicyFollower(
            policies, tuple, self._plan, lambda _: [f"{one:064x}" for one in self.standing or range(self.plans + 1)],
            Planned(folder / "policies.json"), FollowerMetrics(OwnMetrics("planner")), lambda: self.now,
        )  # fmt: skip

    now: float
    plans: int
    tries: int = 0
    refusal: Exception | None
    standing: list[int] | None

    def _plan(self) -> str:
        self.tries += 1
        if self.refusal is not None:
            raise self.refusal
        self.plans += 1
        return f"{self.plans:064x}"

    def looks(self, times: int = 3) -> int:
        before = self.plans
        for _ in range(times):
            self.now += 5.0
            self.follower.look()
        return self.plans - before


def test_each_edit_leads_to_one_plan_and_rest_to_none(tmp_path: Path) -> None:
    policies = Policies()
    world = World(tmp_path, policies)
    assert world.looks() == 0
    policies.put("web", optOut=True)
    assert world.looks() == 1
    policies.put("web", optOut=False)
    assert world.looks() == 1
    policies.put("base", namespace="", minReplicasWarm=1)
    assert world.looks() == 1
    policies.there.clear()
    assert world.looks() == 1
    assert world.looks(100) == 0


def test_edit_while_nobody_looked_is_followed_and_a_restart_alone_makes_no_plan(tmp_path: Path) -> None:
    policies = Policies()
    policies.put("web", optOut=True)
    assert World(tmp_path, policies).looks() == 1
    assert World(tmp_path, policies).looks() == 0
    policies.there.clear()
    assert World(tmp_path, policies).looks() == 1, "it was deleted meanwhile"
    (tmp_path / "policies.json").write_text('{"GpuPolicy team/web": 7}')
    policies.put("web", optOut=True)
    assert World(tmp_path, policies).looks() == 1, "a file that can't be read costs a plan"


def test_policy_whose_plan_is_gone_names_the_newest_which_follows_it_too(tmp_path: Path) -> None:
    policies = Policies()
    world = World(tmp_path, policies)
    for name in ("first", "second"):
        policies.put(name, optOut=True)
        assert world.looks() == 1
    assert policies.statuses["GpuPolicy team/first"].plan == f"plan-{1:064x}"
    policies.put("third", optOut=True)
    world.standing = [2, 3]
    assert world.looks() == 1
    assert [policies.statuses[f"GpuPolicy team/{name}"].plan for name in ("first", "second", "third")] == [
        f"plan-{number:064x}" for number in (3, 2, 3)
    ]
    assert World(tmp_path, policies).looks() == 0, "a restart knows it"


def test_tenant_that_edits_without_end_waits_and_holds_up_nobody_else(tmp_path: Path) -> None:
    policies = Policies()
    world = World(tmp_path, policies)
    made = 0
    for warm in range(100):
        policies.put("web", minReplicasWarm=warm + 1)
        made += world.looks(1)
    assert made == PLANS_PER_HOUR_MAX
    is_planned, why = policies.planned("GpuPolicy team/web")
    assert (is_planned, f"{PLANS_PER_HOUR_MAX} plans within an hour" in why) == (False, True)
    policies.put("web", namespace="other", optOut=True)
    assert world.looks() == 1
    assert policies.planned("GpuPolicy other/web")[0]
    policies.put("web", minReplicasWarm=1000)
    assert world.looks() == 0
    world.now += HOUR
    assert world.looks() == 1


def test_cluster_policy_that_cannot_be_read_stops_plans_and_each_status_says_so(tmp_path: Path) -> None:
    policies = Policies()
    world = World(tmp_path, policies)
    policies.put("base", namespace="", optOut="yes")
    policies.put("web", optOut=True)
    assert world.looks() == 0
    is_planned, why = policies.planned("GpuPolicy team/web")
    assert not is_planned
    assert why.endswith("ClusterGpuPolicy base can't be read: spec.optOut='yes': expected true or false")
    policies.put("base", namespace="", optOut=False)
    assert world.looks() == 1


def test_plan_that_cannot_be_made_is_tried_with_pauses_and_at_once_after_another_edit(tmp_path: Path) -> None:
    policies = Policies()
    world = World(tmp_path, policies)
    world.refusal = NotEnoughData("no history")
    policies.put("web", optOut=True)
    assert world.looks() == 0
    world.refusal = None
    assert world.looks(1) == 0
    policies.put("web", optOut=True, latencyCritical=True)
    assert world.looks(1) == 1


def test_cluster_that_is_away_is_the_callers_matter(tmp_path: Path) -> None:
    policies = Policies()
    world = World(tmp_path, policies)
    world.refusal = Unavailable("away")
    policies.put("web", optOut=True)
    with pytest.raises(Unavailable):
        world.looks()
    world.refusal = None
    assert world.looks(1) == 1


def test_edits_while_no_plan_can_be_made_are_tried_no_more_often_than_plans_are_made(tmp_path: Path) -> None:
    policies = Policies()
    world = World(tmp_path, policies)
    world.refusal = NotEnoughData("no history")
    for warm in range(100):
        policies.put("web", minReplicasWarm=warm + 1)
        world.looks(1)
    assert world.tries <= PLANS_PER_HOUR_MAX + 1


def test_statuses_of_a_namespace_with_too_many_policies_stay_as_few_and_as_they_are(tmp_path: Path) -> None:
    policies = Policies()
    world = World(tmp_path, policies)
    for number in range(POLICIES_MAX + 200):
        policies.put(f"p{number}", optOut=True)
    world.looks(1)
    assert len(policies.statuses) == POLICIES_MAX + 1
    before = policies.statuses["GpuPolicy team/p0"].standing
    policies.put("one-more", optOut=True)
    world.looks(1)
    assert policies.statuses["GpuPolicy team/p0"].standing == before
