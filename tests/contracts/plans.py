"""What every store of plans does: keeps plans as they were made, who approved them, and which stages are wanted."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest

from enforcer.record.plan_store import PlanStore, WishChange
from fleet.decisions import Plan
from fleet.errors import Refused
from tests.enforcer.builders import NOW


class PlanStoreContract:
    """Needs fixtures `store` and `reopened`, a maker of further stores of the same plans, and an unexpired `plan`.

    `user` is the name under which `store` approves.
    """

    user = "ann"

    def test_plan_is_read_as_it_was_made(self, store: PlanStore, reopened: Callable[[], PlanStore], plan: Plan) -> None:
        store.add(plan)
        store.add(plan)
        assert reopened().get(plan.plan_id[:8]) == plan

    def test_approvals_are_those_that_were_given(
        self, store: PlanStore, reopened: Callable[[], PlanStore], plan: Plan
    ) -> None:
        store.add(plan)
        assert store.approvals(plan.plan_id) == ()
        given = store.approve(plan, [1], by=self.user, at=NOW)
        assert (given.stages, given.by) == ((1,), self.user)
        again = reopened()
        assert [(found.stages, found.by) for found in again.approvals(plan.plan_id)] == [((1,), self.user)]
        with pytest.raises(Refused, match="9"):
            again.approve(plan, [9], by=self.user, at=NOW)
        with pytest.raises(Refused, match="expired"):
            again.approve(plan, [1], by=self.user, at=plan.expires_at + timedelta(days=1))
        assert len(store.approvals(plan.plan_id)) == 1

    def test_nobody_wants_anything_of_a_plan_until_somebody_says_so(self, store: PlanStore, plan: Plan) -> None:
        store.add(plan)
        assert store.wish(plan.plan_id).stages is None

    def test_wishes_of_two_people_add_up_and_are_taken_back_one_by_one(
        self, store: PlanStore, reopened: Callable[[], PlanStore], plan: Plan
    ) -> None:
        store.add(plan)
        first = store.change_wish(plan.plan_id, WishChange(add=frozenset({2}), by="ann", in_force=frozenset({1})))
        assert (first.stages, first.by) == (frozenset({1, 2}), "ann")
        again = reopened()
        second = again.change_wish(plan.plan_id, WishChange(remove=frozenset({1}), by="bob", in_force=frozenset({1})))
        assert (second.stages, second.by) == (frozenset({2}), "bob")
        assert second.generation > first.generation
        assert store.wish(plan.plan_id) == second

    def test_wish_that_changes_nothing_is_no_new_generation(self, store: PlanStore, plan: Plan) -> None:
        store.add(plan)
        first = store.change_wish(plan.plan_id, WishChange(add=frozenset({1}), by="ann"))
        assert store.change_wish(plan.plan_id, WishChange(add=frozenset({1}), by="bob")) == first
