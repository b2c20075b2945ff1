"""Plans that are read once and no longer than they are true."""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

import enforcer.record.plan_cache as module
from enforcer.record.plan_cache import PlanCache
from enforcer.record.plan_store import PlanStore
from fleet.decisions import Plan
from fleet.documents import seal_plan
from fleet.errors import Corrupt, Misconfigured, Refused
from tests.dashboards.embedded import CLUSTER, NOW, make_plan, make_profiles
from tests.waiting import until

WHOLE = make_plan(make_profiles())
FIRST = seal_plan(replace(WHOLE, plan_id="", placement=WHOLE.placement[:20], refused=WHOLE.refused[:5]))
SECOND = seal_plan(replace(FIRST, plan_id="", created_at=NOW + timedelta(hours=1)))


@pytest.fixture
def store(tmp_path: Path) -> PlanStore:
    made = PlanStore(tmp_path)
    made.add(FIRST)
    os.utime(tmp_path / f"{FIRST.plan_id}.json", (1, 1))
    return made


def ids(plans: tuple[Plan, ...]) -> list[str]:
    return [plan.plan_id for plan in plans]


def test_plan_is_the_same_object_until_its_file_is_touched(tmp_path: Path, store: PlanStore) -> None:
    kept = PlanCache(tmp_path)
    assert kept.get(FIRST.plan_id) is kept.plans(CLUSTER)[0]
    store.add(SECOND)
    assert ids(kept.plans(CLUSTER)) == [FIRST.plan_id, SECOND.plan_id]
    before = kept.get(FIRST.plan_id)
    store.add(FIRST)  # the same plan again is made the newest
    assert ids(kept.plans(CLUSTER)) == [SECOND.plan_id, FIRST.plan_id]
    assert kept.get(FIRST.plan_id) == before
    assert kept.plans("elsewhere") == ()


def test_edited_and_removed_plans_are_not_given_from_memory(tmp_path: Path, store: PlanStore) -> None:
    kept = PlanCache(tmp_path)
    file = tmp_path / f"{FIRST.plan_id}.json"
    kept.get(FIRST.plan_id)
    text = file.read_text(encoding="utf-8")
    file.write_text(text.replace('"cards_freed": 1', '"cards_freed": 7', 1), encoding="utf-8")
    with pytest.raises((Refused, Corrupt)):
        kept.get(FIRST.plan_id)
    file.unlink()
    with pytest.raises(Misconfigured):
        kept.get(FIRST.plan_id)
    assert kept.plans(CLUSTER) == ()


@pytest.mark.parametrize("name", ["../secret", "", "*", "a/b", "\x00", "é"])
def test_name_that_is_no_id_opens_no_file(tmp_path: Path, store: PlanStore, name: str) -> None:
    store.add(SECOND)
    with pytest.raises(Misconfigured):
        PlanCache(tmp_path).get(name)


def test_old_plans_beyond_the_bound_are_listed_short_and_opened_whole(tmp_path: Path, store: PlanStore) -> None:
    store.add(SECOND)
    kept = PlanCache(tmp_path, items_max=1)
    kept.plans(CLUSTER)
    old, new = kept.plans(CLUSTER)
    assert (old.placement, old.refused) == ((), ())
    assert old.totals == FIRST.totals
    assert old.recommendations == FIRST.recommendations
    assert new == SECOND
    assert kept.get(FIRST.plan_id) == FIRST


def test_impatient_list_goes_on_without_a_large_new_plan_until_it_was_read(
    tmp_path: Path, store: PlanStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "QUICK_BYTES_MAX", 0)
    kept = PlanCache(tmp_path, is_patient=False)
    assert ids(kept.plans(CLUSTER)) == [FIRST.plan_id]
    store.add(SECOND)
    assert ids(kept.plans(CLUSTER)) == [FIRST.plan_id]
    until(lambda: ids(kept.plans(CLUSTER)) == [FIRST.plan_id, SECOND.plan_id])
