"""What relief did stands on the plan page, for everybody who may know of it, and as its ledger says."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from dashboards.access.people import Person, Right, Role
from dashboards.access.scoped import scoped_views
from dashboards.address import read_address
from dashboards.pages.plan_relief import relief
from dashboards.stored.changes import StoredRelief
from dashboards.view_models.relief_acts import MoveState
from dashboards.words.reading import READING
from enforcer.agent.node_view import ContainerKey
from enforcer.record.ledger import Ledger
from enforcer.relief.relief_journal import MovePhase, ReliefJournal
from fleet.data_folder import DataFolder
from fleet.sentences import sentence
from fleet.words import Language, Words
from tests.dashboards.embedded import CLUSTER, EmbeddedFleet, EmbeddedRelief, make_profiles, make_views
from tests.enforcer.builders import NOW
from tests.enforcer.relief.test_squeeze import an_order, carry_out

ADDRESS = read_address("/plan", "?cluster=a&lang=zh")
HOSTILE = '"><img src=x onerror=alert(1)>'


def a_folder(path: Path) -> DataFolder:
    """Somebody was moved and came home, somebody was not, and low priority sleeps."""
    folder = DataFolder(path=path)
    journal = ReliefJournal(Ledger(folder.relief))
    carry_out(journal, an_order(1, replica="a-1-x"))
    carry_out(journal, an_order(2, pod="a-1-x", replica="a-1-y", is_home=True, to=0))
    journal.begin(NOW, replace(an_order(3), reason=sentence("relief.fault", fault=HOSTILE)))
    why = sentence("relief.not_ready", seconds=30.0)
    journal.note(NOW + timedelta(seconds=30), "move-3", MovePhase.TAKEN_BACK, why)
    journal.squeeze(
        NOW,
        "node-0",
        "GPU-7",
        frozenset({ContainerKey(pod_uid="uid", container="main")}),
        sentence("relief.fault", fault="full"),
    )
    return folder


def test_acts_are_those_of_the_ledger_newest_first_and_grow_with_it(tmp_path: Path) -> None:
    folder = a_folder(tmp_path)
    view = StoredRelief(folder, EmbeddedFleet(make_profiles()))
    found = view.acts(CLUSTER)
    assert [(move.state, move.seconds) for move in found.moves] == [
        (MoveState.TAKEN_BACK, 30.0),
        (MoveState.HOME_AGAIN, 9.0),
        (MoveState.HOME_AGAIN, 9.0),
    ]
    assert [(one.card, one.containers) for one in found.sleeps] == [("GPU-7", 1)]
    ReliefJournal(Ledger(folder.relief)).begin(NOW, an_order(4))
    assert view.acts(CLUSTER).moves[0].state is MoveState.UNDER_WAY
    assert StoredRelief(DataFolder(path=tmp_path / "none"), EmbeddedFleet(make_profiles())).acts(CLUSTER).moves == ()


def test_team_sees_its_own_moves_without_reasons_and_nobody_who_sleeps(tmp_path: Path) -> None:
    acts = StoredRelief(a_folder(tmp_path), EmbeddedFleet(make_profiles())).acts(CLUSTER)
    other = replace(acts.moves[0], workload=type(acts.moves[0].workload)("rival/Deployment/b"))
    views, _ = make_views()
    views = replace(views, relief=EmbeddedRelief(replace(acts, moves=(*acts.moves, other))))
    mine = Person(name="mei", rights=(Right(role=Role.VIEWER, clusters=None, namespaces=frozenset({"team"})),))
    found = scoped_views(views, lambda: mine).relief.acts(CLUSTER)
    assert {move.workload for move in found.moves} == {"team/Deployment/a"}
    assert {(move.reason, move.why) for move in found.moves} == {(None, None)}
    assert found.sleeps == ()


def test_page_tells_it_in_the_readers_language_and_names_as_text(tmp_path: Path) -> None:
    acts = StoredRelief(a_folder(tmp_path), EmbeddedFleet(make_profiles())).acts(CLUSTER)
    english = json.dumps(relief(acts, ADDRESS).to_plotly_json(), default=_plain)
    assert "home again" in english
    assert "it is not ready within 30 s" in english
    token = READING.set(Language.ZH)
    chinese = json.dumps(relief(acts, ADDRESS).to_plotly_json(), default=_plain, ensure_ascii=False)
    READING.reset(token)
    assert "已迁回" in chinese
    assert "home again" not in chinese
    assert "它未在 30 秒内就绪" in chinese
    assert "原卡在 relief.home_seconds=60 秒内一直容得下它，已用不超过 relief.home_ratio=50%" in chinese
    assert "its old card" not in chinese
    assert relief(replace(acts, moves=(), sleeps=()), ADDRESS) is None


@pytest.mark.parametrize("language", Language)
@pytest.mark.parametrize("code", ["kept_by_budget", "not_ready", "not_whole"])
def test_move_that_took_too_long_says_how_long(code: str, language: Language) -> None:
    assert "30" in Words(language=language).said(sentence(f"relief.{code}", seconds=30.0))


def _plain(part: Any) -> Any:
    return part.to_plotly_json()
