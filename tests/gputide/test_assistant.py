"""`gputide run assistant` as a client starts it: the real program over stdio, and a folder that is left as it was."""

from __future__ import annotations

import hashlib
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from dashboards.access.people import NotAllowed, Person, Right, Role, everything
from dashboards.access.scoped import scoped_views
from dashboards.assistant.tool import Question
from fleet.data_folder import open_data_folder
from fleet.errors import Unavailable
from fleet.settings.settings import Settings
from gputide.assistant import session_tools
from gputide.container.pages import views_of
from gputide.session import Session
from tests.gputide.assistant_client import asked, data_of
from tests.gputide.conftest import Program


def hashes(folder: Path) -> dict[str, str]:
    """Digest of every file."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_answers_are_those_of_the_verbs_and_the_folder_stays_as_it_was(planned: Path, program: Program) -> None:
    before = hashes(planned)
    since, until = "2026-01-06", "2026-01-12"
    fleet, cost, plan, harm, what_if, backtest = data_of(
        asked(
            planned,
            [
                ("fleet", {}),
                ("cost", {"by": "workload", "since": since, "until": until, "limit": 50}),
                ("plan", {"limit": 50}),
                ("harm", {}),
                ("what_if", {"assumptions": ["cards+NVIDIA-L40S=3", "risk.preset=high"]}),
                ("backtest", {"train_days": 5, "test_days": 2}),
            ],
        )
    )
    assert hashes(planned) == before
    profiles = program(planned, "workloads", "--format", "json").document
    assert fleet["cards"] == len(profiles["cards"])
    shown = program(
        planned, "cost", "show", "--by", "workload", "--since", since, "--until", until, "--format", "json"
    ).document
    assert {row["name"]: row for row in cost["rows"]}.items() <= {row["name"]: row for row in shown["rows"]}.items()
    assert cost["total"] == shown["total"]
    made = program(planned, "plan", "show", "--format", "json").document
    assert (plan["plan_id"], plan["totals"]) == (made["plan_id"], made["totals"])
    assert (harm["outcomes"], harm["services"]) == ([], [])
    supposed = program(
        planned, "plan", "make", "--what-if", "cards+NVIDIA-L40S=3", "--what-if", "risk.preset=high",
        "--format", "json",
    ).document  # fmt: skip
    assert what_if["compared"] == supposed["compared"]
    judged = program(planned, "plan", "backtest", "--train-days", "5", "--test-days", "2", "--format", "json").document
    assert backtest["scores"] == judged["scores"]


def test_what_if_opens_no_file_address_or_other_cluster(planned: Path, program: Program) -> None:
    del program
    hostile = (
        "hive.host=198.51.100.7", "prices.book=/etc/passwd", "cluster.name=other", "enforcer.cluster=kubernetes", "risk"
    )  # fmt: skip
    for answer in asked(planned, [("what_if", {"assumptions": [text]}) for text in hostile]).answers:
        assert "expected a setting of analyzer, plan, recommender, risk" in answer["error"]


def test_folder_without_data_is_an_answer(tmp_path: Path, program: Program) -> None:
    del program
    open_data_folder(tmp_path / "data", create=True)
    for answer in asked(tmp_path / "data", [("fleet", {}), ("plan", {}), ("cost", {})]).answers:
        assert answer["data"] is None
        assert answer["no_data"] == "no cluster has sent data yet, or you may see none"


def test_study_that_takes_too_long_is_ended_and_another_one_waits_for_nobody(planned: Path, program: Program) -> None:
    del program
    session = Session(
        data_path=planned, settings=Settings(), now_override=datetime(2026, 1, 14, tzinfo=UTC), is_quiet=True
    )
    (backtest,) = (tool for tool in session_tools(session, study_seconds_max=0.2) if tool.name == "backtest")
    question = Question(views=views_of(session), person=everything("mei"), asked={})
    for _ in range(2):
        began = time.monotonic()
        with pytest.raises(Unavailable, match=r"cannot answer backtest in 0\.2 s"):
            backtest.answer(question)
        assert time.monotonic() - began < 10


def test_who_sees_a_part_is_shown_no_total_of_the_cluster(planned: Path, program: Program) -> None:
    del program
    session = Session(
        data_path=planned, settings=Settings(), now_override=datetime(2026, 1, 14, tzinfo=UTC), is_quiet=True
    )
    person = Person(name="lin", rights=(Right(role=Role.ADMIN, namespaces=frozenset({"search"})),))
    question = Question(views=scoped_views(views_of(session), lambda: person), person=person, asked={})
    for tool in session_tools(session):
        with pytest.raises(NotAllowed, match="it counts the cluster as a whole, and you may see some namespaces of it"):
            tool.answer(question)
