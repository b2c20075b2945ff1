"""The ledger finds every edit; plans and approvals are kept whole."""

from __future__ import annotations

import json
import math
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enforcer.record.fingerprint import fingerprint_of
from enforcer.record.journal import FieldIntent, Journal, ObjectIntent, StageRecord
from enforcer.record.ledger import Ledger
from enforcer.record.plan_store import PlanStore
from enforcer.safety.freeze import freeze, frozen_by, lift
from enforcer.snapshot import take_snapshot
from fleet.errors import Corrupt, Misconfigured, Refused
from fleet.sentences import recorded, sentence
from tests.enforcer.builders import NOW, a_cluster, standard_plan


def a_ledger(path: Path, lines: int = 4) -> Ledger:
    path.unlink(missing_ok=True)
    path.with_name(path.name + ".head").unlink(missing_ok=True)
    ledger = Ledger(path)
    for number in range(lines):
        ledger.append([("intent", {"field": f"f{number}", "old": None})], plan_id="p", at=NOW)
    return ledger


def test_entries_come_back_as_written(tmp_path: Path) -> None:
    a_ledger(tmp_path / "l")
    entries = Ledger(tmp_path / "l").entries()
    assert [entry.number for entry in entries] == [1, 2, 3, 4]
    assert entries[2].content == {"field": "f2", "old": None}
    assert entries[0].at == NOW
    assert Ledger(tmp_path / "l").entries("other") == ()


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(codec="utf-8")),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(st.characters(codec="utf-8")), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(content=st.dictionaries(st.text(st.characters(codec="utf-8")), VALUES, max_size=4))
def test_whatever_is_written_can_be_read_by_the_next_process(
    content: dict[str, object], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "any-ledger"
    ledger = a_ledger(path)
    ledger.append([("something", content)], plan_id="p", at=NOW)
    assert Ledger(path).entries() == ledger.entries()


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, True])
def test_complaint_that_holds_no_number_of_json_locks_nobody_out(tmp_path: Path, value: float) -> None:
    path = tmp_path / "ledger.jsonl"
    said = recorded(sentence("watch.framebuffer_full", pod="team/a", used_ratio=value))
    Ledger(path).append([("watched", {"stage": 1, "batch": "canary", "complaints": [said]})], plan_id="p", at=NOW)
    assert Ledger(path).verify() == 1


def test_empty_ledger_verifies(tmp_path: Path) -> None:
    assert Ledger(tmp_path / "l").verify() == 0


@given(data=st.data())
def test_any_changed_byte_is_found(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "edited-ledger"
    a_ledger(path)
    content = bytearray(path.read_bytes())
    place = data.draw(st.integers(0, len(content) - 1))
    content[place] ^= data.draw(st.integers(1, 255))
    path.write_bytes(bytes(content))
    with pytest.raises(Corrupt):
        Ledger(path).verify()


@pytest.mark.parametrize("line", range(4))
def test_any_removed_line_is_found(tmp_path: Path, line: int) -> None:
    path = tmp_path / "l"
    a_ledger(path)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:line] + lines[line + 1 :]))
    with pytest.raises(Corrupt):
        Ledger(path).verify()


def test_swapped_lines_are_found(tmp_path: Path) -> None:
    path = tmp_path / "l"
    a_ledger(path)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([lines[1], lines[0], *lines[2:]]))
    with pytest.raises(Corrupt, match="entry 1"):
        Ledger(path).verify()


def test_line_cut_by_a_crash_is_dropped_and_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "l"
    a_ledger(path)
    with path.open("ab") as file:
        file.write(b'{"number":5,"at"')
    ledger = Ledger(path)
    assert ledger.verify() == 4
    ledger.append([("x", {})], plan_id="p", at=NOW)
    assert Ledger(path).verify() == 5


def test_two_writers_share_one_chain(tmp_path: Path) -> None:
    path = tmp_path / "l"
    one, two = a_ledger(path, 1), Ledger(path)
    two.append([("x", {})], plan_id="p", at=NOW)
    one.append([("y", {})], plan_id="p", at=NOW)
    assert [entry.event for entry in Ledger(path).entries()] == ["intent", "x", "y"]
    assert two.verify() == 3


def test_plan_is_kept_with_its_fingerprint_and_approvals(tmp_path: Path) -> None:
    store, plan = PlanStore(tmp_path / "plans"), standard_plan()
    assert store.newest() is None
    fingerprint = fingerprint_of(take_snapshot(a_cluster(tmp_path)))
    store.add(plan, fingerprint)
    assert store.newest() == plan
    assert store.get(plan.plan_id[:8]) == plan
    assert store.fingerprint(plan.plan_id) == fingerprint
    store.approve(plan, [1], by="ann", at=NOW)
    store.approve(plan, [2], by="bob", at=NOW)
    assert PlanStore(tmp_path / "plans").approved_stages(plan.plan_id) == {1, 2}
    assert [entry.by for entry in store.approvals(plan.plan_id)] == ["ann", "bob"]


def test_edited_plan_file_is_refused(tmp_path: Path) -> None:
    store, plan = PlanStore(tmp_path), standard_plan()
    store.add(plan)
    file = tmp_path / f"{plan.plan_id}.json"
    content = json.loads(file.read_text())
    content["totals"]["cards_freed"] = 99
    file.write_text(json.dumps(content))
    with pytest.raises(Refused, match="edited"):
        store.get(plan.plan_id)


def test_damaged_plan_file_is_corrupt(tmp_path: Path) -> None:
    store, plan = PlanStore(tmp_path), standard_plan()
    store.add(plan)
    (tmp_path / f"{plan.plan_id}.json").write_text("{")
    with pytest.raises(Corrupt):
        store.newest()


def test_expired_plan_and_unknown_stage_cannot_be_approved(tmp_path: Path) -> None:
    store = PlanStore(tmp_path)
    store.add(standard_plan())
    with pytest.raises(Refused, match="9"):
        store.approve(standard_plan(), [9], by="ann", at=NOW)
    with pytest.raises(Refused, match="expired"):
        store.approve(standard_plan(), [1], by="ann", at=NOW + timedelta(days=9))
    assert store.approved_stages(standard_plan().plan_id) == frozenset()


def test_unknown_plan_names_the_known_ones(tmp_path: Path) -> None:
    store, plan = PlanStore(tmp_path), standard_plan()
    store.add(plan)
    with pytest.raises(Misconfigured, match=f"no plan has that id; known: {plan.short_id}"):
        store.get("zzzzzzzz")


def test_freeze_file_says_who(tmp_path: Path) -> None:
    file = tmp_path / "freeze"
    assert frozen_by(file) is None
    freeze(file, by="ann", at=NOW)
    assert "ann" in (frozen_by(file) or "")
    lift(file)
    assert frozen_by(file) is None


def test_stage_whose_intents_were_cut_short_was_never_begun(tmp_path: Path) -> None:
    field = FieldIntent(field="spec.replicas", old="2", new="1")
    intent = ObjectIntent(
        kind="Deployment", namespace="n", name="w", resource_version="1", recommendation="r", fields=(field,)
    )
    whole = Ledger(tmp_path / "whole")
    Journal(whole).write("p", NOW, "begin", stages=[1], by="ann", cards_granted=[])
    Journal(whole).begin_stage(StageRecord(plan_id="p", stage=1, objects=[intent, intent]), NOW)
    (run,) = Journal(whole).runs()
    assert len(run.records[1].objects) == 2
    cut = Ledger(tmp_path / "cut")
    lines = (tmp_path / "whole").read_bytes().splitlines(keepends=True)
    (tmp_path / "cut").write_bytes(b"".join(lines[:-1]))
    (run,) = Journal(cut).runs()
    assert run.records == {}
