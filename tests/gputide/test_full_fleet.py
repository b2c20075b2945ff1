"""Plans of fleets whose cards are all allocated pass the guard of availability and free the cards that they promise."""

from __future__ import annotations

from pathlib import Path

import pytest

from analyzer.profile import profile_fleet
from enforcer.backends.hami import HamiBackend
from enforcer.record.journal import StageState
from enforcer.rollout.stages import Rollout
from enforcer.safety.guard import GuardPolicy
from enforcer.simulated.cluster import SimulatedCluster
from enforcer.snapshot import take_snapshot
from fleet.capabilities.register import HAMI
from fleet.decisions import Plan
from fleet.documents import seal_plan
from fleet.settings.settings import Settings
from fleet.usage import History
from recommender.planner import make_plan
from tests.enforcer.builders import OpenGuard, some_tools
from tests.recommender.builders import ANY_CONFIDENCE, NOW, Service, cluster, full_services_of


def planned(history: History) -> Plan:
    """The plan where nobody said yes to a gap."""
    settings = Settings.model_validate(
        {
            **ANY_CONFIDENCE, "risk": {"preset": "high"}, "plan": {"spare_card_ratio": 0.0},
            "guard": {"gaps_allowed": False},
        }
    )  # fmt: skip
    profiles = profile_fleet(history, settings=settings.analyzer, now=NOW)
    return seal_plan(make_plan(history, profiles, settings=settings, capability=HAMI, now=NOW))


def cards_in_use(found: SimulatedCluster) -> set[str]:
    return {card for seat in take_snapshot(found).seats.values() for card in seat.cards}


@pytest.mark.parametrize("seed", [2, 7, 16])
def test_every_stage_of_a_full_fleets_plan_is_let_through_and_frees_its_cards(seed: int, tmp_path: Path) -> None:
    history = cluster(*full_services_of(seed))
    plan = planned(history)
    assert plan.totals.cards_freed > 1
    found = SimulatedCluster(tmp_path / "cluster.sqlite")
    found.sync(history.inventory, NOW)
    before = cards_in_use(found)
    assert len(before) == len(history.inventory.cards)
    tools = some_tools(found, tmp_path, guard=OpenGuard(GuardPolicy()))
    results = Rollout(tools, HamiBackend(NOW)).apply(plan, by="test")
    assert [result.reason for result in results if result.state is not StageState.PROMOTED] == []
    assert len(before) - len(cards_in_use(found)) == plan.totals.cards_freed
    found.close()


def test_no_workload_is_made_anew_twice_by_one_plan() -> None:
    notebook = Service(name="notebook", kind="Notebook", level=0.05, used_gib=2.0)
    ordered = Service(name="ordered", kind="StatefulSet", replicas=3, level=0.1, used_gib=3.0)
    pair = Service(name="pair", replicas=2, level=0.3, used_gib=5.0)
    singles = [Service(name=f"single-{number}", level=0.1, used_gib=3.0) for number in range(3)]
    plan = planned(cluster(Service(name="idle", kind="Notebook", level=0.0), notebook, ordered, pair, *singles))
    stages_of: dict[str, set[int]] = {}
    for stage in plan.stages[: len(plan.rollout_stages)]:
        for item in plan.recommendations:
            if item.id in stage.recommendations:
                for workload in item.workloads:
                    stages_of.setdefault(str(workload), set()).add(stage.stage)
    assert {name: stages for name, stages in stages_of.items() if len(stages) > 1} == {}
