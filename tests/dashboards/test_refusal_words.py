"""A refusal, and why a stage is taken back, is said in the reader's language by pages and in English elsewhere."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from dashboards.access.namespace_cut import without_others
from dashboards.api.answers import entry_answer
from dashboards.pages.frame import shown
from dashboards.pages.plan_rollout import apply_reason, progress_panel
from dashboards.queries import RolloutPhase, RolloutProgress
from dashboards.stored.changes import StoredOutcomes
from dashboards.stored.plans import StoredPlans
from dashboards.words.reading import READING
from enforcer.record.journal import Journal
from enforcer.record.ledger import Ledger
from enforcer.record.plan_cache import PlanCache
from enforcer.record.plan_store import PlanStore
from enforcer.rollout.watch import PodHealth, WatchPolicy, complaints
from enforcer.safety.abort_wish import aborted_by
from enforcer.safety.guard import Guard, GuardPolicy
from fleet.data_folder import open_data_folder
from fleet.errors import Refused
from fleet.sentences import listed, recorded, sentence, sentence_of
from fleet.words import Language
from tests.dashboards.embedded import CLUSTER, NOW
from tests.dashboards.test_stored_plans import PLAN

IDLE = RolloutProgress(phase=RolloutPhase.NOT_STARTED, done=0, total=0)
CHINESE = re.compile("[\u4e00-\u9fff]")


@pytest.fixture
def chinese() -> Iterator[None]:
    token = READING.set(Language.ZH)
    yield
    READING.reset(token)


@pytest.mark.usefixtures("chinese")
def test_plan_that_expired_says_so_on_the_chinese_page_and_in_english_in_the_api(tmp_path: Path) -> None:
    folder = open_data_folder(tmp_path / "data", create=True)
    store = PlanStore(folder.plans)
    store.add(PLAN)
    store.approve(PLAN, (1,), by="mei", at=NOW)
    late = PLAN.expires_at + timedelta(days=1)
    plans = StoredPlans(
        folder, PlanCache(folder.plans), lambda: late, guard=lambda: Guard(GuardPolicy()), preview=lambda *_: (),
        open_plans=lambda: nullcontext(store),
    )  # fmt: skip
    (entry,) = plans.plans(CLUSTER)
    said = apply_reason(entry, (1,), IDLE) or ""
    assert f"无法应用方案 {PLAN.short_id}：它已于" in said
    assert "expired" not in said
    answer = entry_answer(entry)["apply_refusal"]
    assert answer.startswith(f"cannot apply plan {PLAN.short_id}: it expired at")
    with pytest.raises(Refused, match=re.escape(answer)):
        Guard(GuardPolicy()).check_plan(PLAN, (1,), store.approvals(PLAN.plan_id), late)


@pytest.mark.usefixtures("chinese")
def test_why_a_stage_was_taken_back_is_chinese_on_the_page_after_it_stood_in_the_ledger() -> None:
    ill = PodHealth(pod_id="team/a-0", is_ready=True, restarts=3, is_oom_killed=False, framebuffer_used_ratio=1.0)
    why = complaints([ill], ["team/a-0", "team/a-1"], WatchPolicy())
    assert [str(one) for one in why] == [
        "team/a-1 is gone",
        "team/a-0 restarted 3 times (enforcer.watch_restarts_max=0)",
        "team/a-0 uses 100.0% of its framebuffer grant",
    ]
    read = sentence_of(recorded(sentence("watch.and_more", first=why[0], more=str(len(why) - 1))))
    said = sentence("progress.stage_restored", stage=1, reason=read)
    assert str(said) == "stage 1 was taken back: team/a-1 is gone (and 2 more)"
    page = str(progress_panel(replace(IDLE, phase=RolloutPhase.RESTORED, said=said)))
    assert "team/a-1 已不存在（另有 2 项）" in page
    assert "is gone" not in page


@pytest.mark.usefixtures("chinese")
def test_the_ledger_says_why_a_stage_was_taken_back_and_what_was_left_in_the_readers_language(tmp_path: Path) -> None:
    folder = open_data_folder(tmp_path / "data", create=True)
    PlanStore(folder.plans).add(PLAN)
    journal = Journal(Ledger(folder.ledger))
    left = sentence(
        "rollout.set_since", workload="team/Deployment/a", field="f", who=sentence("rollout.plan", plan="p"), value="9"
    )
    journal.write(PLAN.plan_id, NOW, "restoring", stage=1, reason=recorded(aborted_by("mei")))
    journal.write(PLAN.plan_id, NOW, "restored", stage=1, kept=[recorded(left)])
    lines = {line.action: line.detail for line in StoredOutcomes(folder).ledger(CLUSTER)}
    assert shown(lines["taken back"]) == "由 mei 中止"
    assert shown(lines["restored"]) == "team/Deployment/a 的 f：此后由方案 p 设为 9"
    assert str(lines["taken back"]) == "aborted by mei"
    theirs = without_others(lines["restored"], frozenset({"other"}))
    assert "team/Deployment/a" not in str(theirs)
    assert "plan p set it to 9 since" in str(theirs)


@pytest.mark.usefixtures("chinese")
def test_fault_that_is_a_text_is_marked_as_english_and_one_that_is_a_sentence_is_not() -> None:
    assert shown("cannot reach the cluster").lang == "en"
    assert CHINESE.search(str(shown(sentence("guard.lease_held"))))


def test_several_causes_are_named_up_to_a_number_and_the_rest_counted() -> None:
    assert str(listed((), 3)) == "none"
    assert listed(["a"], 3) == "a"
    assert str(listed(["a", "b"], 3)) == "a, b"
    assert str(listed(["a", "b", "c"], 2)) == "a, b and 1 more"
    assert str(listed(["a", "b", "c"], 2, clauses=True)) == "a; b; and 1 more"


def test_sentence_without_a_message_is_shown_as_its_code() -> None:
    assert str(sentence("guard.not_yet_known", plan="p")) == "not yet known"
