"""Plans are known by whole digests: a second plan that begins like an approved one is another plan.

`golden/one_short_id` holds two sealed plans, one of one stage and one of two, whose digests begin with the same twelve
digits: two minutes of trying notes in `settings` found them.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest

from enforcer.record.plan_store import PlanStore, id_meant
from enforcer.rollout.reconciler import Reconciler
from enforcer.safety.guard import Guard, GuardPolicy
from fleet.documents import plan_from_json, plan_to_json
from fleet.errors import Misconfigured, Refused
from fleet.sentences import sentence
from fleet.units import format_plan_id
from tests.enforcer.builders import NOW, a_cluster, a_rollout, some_tools, standard_plan, where

GOLDEN = Path(__file__).parent / "golden" / "one_short_id"
SMALL, LARGE = ((GOLDEN / name).read_bytes() for name in ("small.json", "large.json"))
GUARD = Guard(GuardPolicy(gaps_allowed=True))


def test_id_is_the_digest_of_all_else() -> None:
    raw = json.loads(plan_to_json(standard_plan()))
    plan_id = raw.pop("plan_id")
    content = json.dumps(raw, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    assert plan_id == hashlib.sha256(content.encode()).hexdigest()


def test_approval_of_a_plan_is_none_of_another_that_begins_like_it(tmp_path: Path) -> None:
    store, small, large = PlanStore(tmp_path / "plans"), plan_from_json(SMALL), plan_from_json(LARGE)
    assert small.short_id == large.short_id
    assert small.stages != large.stages
    store.add(small)
    store.approve(small, [1], by="ann", at=NOW)
    # Somebody puts the other plan where the approved one lies.
    (tmp_path / "plans" / f"{large.plan_id}.json").write_bytes(LARGE)
    cluster = a_cluster(tmp_path)
    before = where(cluster)
    hands = Reconciler(a_rollout(some_tools(cluster, tmp_path, guard=GUARD)), store, lambda _plan, _status: None)
    found = store.get(large.plan_id)
    assert found == large
    with pytest.raises(Refused, match="nobody approved"):
        hands.apply(found, [1], by="bob")
    assert where(cluster) == before
    hands.apply(store.get(small.plan_id), [1], by="bob")
    assert where(cluster)["book-0"] == "stopped"


@pytest.mark.parametrize("name", ["an\ud800n", "ann\n", "\x1b[2J"])
def test_name_that_can_not_be_written_down_approves_nothing(tmp_path: Path, name: str) -> None:
    store, plan = PlanStore(tmp_path), plan_from_json(SMALL)
    store.add(plan)
    with pytest.raises(Misconfigured, match="cannot approve as"):
        store.approve(plan, [1], by=name, at=NOW)
    assert store.approvals(plan.plan_id) == ()


def test_short_id_that_two_plans_have_is_refused_with_both(tmp_path: Path) -> None:
    store = PlanStore(tmp_path)
    for content in (SMALL, LARGE):
        store.add(plan_from_json(content))
    small, large = plan_from_json(SMALL), plan_from_json(LARGE)
    with pytest.raises(Misconfigured, match=f"2 plans have ids that begin so, {large.plan_id}, {small.plan_id}"):
        store.get(small.short_id)
    assert store.get(small.plan_id[:16]) == small
    assert store.get(large.plan_id) == large


def test_plan_under_the_name_of_another_is_refused(tmp_path: Path) -> None:
    store, small = PlanStore(tmp_path), plan_from_json(SMALL)
    store.add(small)
    (tmp_path / f"{small.plan_id}.json").write_bytes(LARGE)
    with pytest.raises(Refused, match="it holds plan"):
        store.get(small.plan_id)


@pytest.mark.parametrize(
    ("given", "why"),
    [("", "give at least 8 digits"), ("cb30024", "give at least 8 digits"), ("cb300246", "no plan has that id")],
)
def test_what_names_no_plan_is_refused(given: str, why: str) -> None:
    with pytest.raises(Misconfigured, match=why):
        id_meant(given, [plan_from_json(SMALL).plan_id])


def test_plan_with_an_id_of_few_digits_is_read_but_neither_approved_nor_applied(tmp_path: Path) -> None:
    old = json.loads(SMALL)
    old["plan_id"] = old["plan_id"][:12]
    plan = plan_from_json(json.dumps(old).encode())
    assert replace(plan, plan_id="") == replace(plan_from_json(SMALL), plan_id="")
    store = PlanStore(tmp_path)
    store.add(plan)
    assert store.get(plan.plan_id) == plan
    with pytest.raises(Refused, match="an id of few digits"):
        store.approve(plan, [1], by="ann", at=NOW)
    with pytest.raises(Refused, match="an id of few digits"):
        GUARD.check_plan(plan, [1], [], NOW)
    for digits in (8, 13, 63):
        with pytest.raises(Refused, match="edited"):
            plan_from_json(json.dumps({**old, "plan_id": json.loads(SMALL)["plan_id"][:digits]}).encode())


def test_people_see_the_start_of_an_id() -> None:
    plan_id = standard_plan().plan_id
    assert str(sentence("guard.expired", plan=plan_id, ended="1", now="2")).startswith(
        f"cannot apply plan {plan_id[:12]}: "
    )
    assert [format_plan_id(text) for text in ("none", "f" * 63, "g" * 64)] == ["none", "f" * 63, "g" * 64]
