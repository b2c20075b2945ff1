"""The folder of plans fulfils the contract of every store of plans."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from enforcer.record.plan_store import PlanStore
from fleet.decisions import Plan
from fleet.errors import Corrupt
from tests.contracts.plans import PlanStoreContract
from tests.enforcer.builders import standard_plan


class TestPlanStore(PlanStoreContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> PlanStore:
        return PlanStore(tmp_path / "plans")

    @pytest.fixture
    def reopened(self, tmp_path: Path) -> Callable[[], PlanStore]:
        return lambda: PlanStore(tmp_path / "plans")

    @pytest.fixture
    def plan(self) -> Plan:
        return standard_plan()


def test_damaged_wish_is_no_wish_of_nothing(tmp_path: Path) -> None:
    store, plan = PlanStore(tmp_path), standard_plan()
    store.add(plan)
    (tmp_path / f"{plan.plan_id}.wish.json").write_text('{"stages": [')
    with pytest.raises(Corrupt, match="it holds no wish"):
        store.wish(plan.plan_id)
    assert store.newest() == plan
