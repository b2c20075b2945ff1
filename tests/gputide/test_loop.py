"""The whole loop through the real program, as the README tells it."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import subprocess
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fleet.data_folder import open_data_folder
from gputide.container.plans import chosen_plan, plan_store
from tests.gputide.conftest import CUT, Program


def test_plan_is_applied_played_on_verified_and_undone(replayed: Path, small_fleet: Path, program: Program) -> None:
    analysed = program(replayed, "workloads", "--format", "json")
    assert analysed.status == 0, analysed.err
    assert analysed.document["schema"] == "gputide.profiles/v1"
    one = analysed.document["workloads"][0]
    alone = program(replayed, "workloads", one["workload"], "--format", "json")
    assert alone.document == one
    said = program(replayed, "workloads", one["workload"]).out.replace("\n", " ")
    assert f"{one['workload']} is {one['state']}: {one['reason']}" in said
    wrong = program(replayed, "workloads", f"{one['workload']}x")
    assert wrong.status == 2
    assert f"did you mean {one['workload']}" in wrong.err
    made = program(replayed, "plan", "make", "--format", "json")
    assert made.status == 0, made.err
    plan = made.document
    assert plan["schema"] == "gputide.plan/v1"
    assert plan["created_at"].startswith(CUT)
    assert plan["totals"]["cards_freed"] > 0
    assert "per moved pod" in program(replayed, "plan", "show").out
    assert program(replayed, "plan", "diff").status == 0
    assert program(replayed, "plan", "approve").status == 0
    before = program(replayed, "doctor", "--format", "json")
    assert before.status in (0, 1), before.err
    applied = program(replayed, "apply", "--yes", "--format", "json")
    assert applied.status == 0, applied.err
    assert program(replayed, "plan", "drift").out.startswith("everything is as applied plans left it")
    later = program(replayed, "admin", "replay", str(small_fleet), "--from", CUT)
    assert later.status == 0, later.err
    verified = program(replayed, "verify", "--format", "json")
    assert verified.status == 0, verified.err
    outcome = verified.document
    assert outcome["plan_id"] == plan["plan_id"]
    assert outcome["is_final"] is False
    assert outcome["promised_cards_freed"] == plan["totals"]["cards_freed"]
    assert outcome["realised_cards_freed"] > 0
    assert outcome["coverage_ratio"] > 0.5
    assert outcome["verdict"]["level"] in ("as_predicted", "more_than_predicted")
    reported = program(replayed, "report", "--format", "md")
    assert reported.status == 0, reported.err
    assert "cards freed and still free" in reported.out.splitlines()[2]
    undone = program(replayed, "undo", "--yes", "--format", "json")
    assert undone.status == 0, undone.err
    successor = program(replayed, "plan", "make", "--format", "json").document
    both = {
        card["card"]
        for item in plan["recommendations"] + successor["recommendations"]
        for card in item["freed"]
        if not card["is_spare"] and card["replaced_by"] is None
    }
    steps = {step["name"]: step for step in program(replayed, "report", "--format", "json").document["funnel"]}
    assert steps["found"]["cards"] == len(both)
    assert steps["applied"]["cards"] == plan["totals"]["cards_freed"]
    assert steps["realised"]["cards"] == 0


def test_services_over_their_harm_budget_make_verify_exit_one_and_lead_the_report(
    planned: Path, small_fleet: Path, program: Program, tmp_path: Path
) -> None:
    risen = tmp_path / small_fleet.name
    shutil.copytree(small_fleet, risen)
    usage = pq.read_table(risen / "usage.parquet")
    busy = pa.array([0.6] * len(usage), usage["sm_active_ratio"].type)
    pq.write_table(
        usage.set_column(usage.column_names.index("sm_active_ratio"), "sm_active_ratio", busy), risen / "usage.parquet"
    )
    assert program(planned, "plan", "approve").status == 0
    assert program(planned, "apply", "--yes").status == 0
    assert program(planned, "admin", "replay", str(risen), "--from", CUT).status == 0
    said = program(planned, "verify")
    assert said.status == 1, said.err
    assert said.out.startswith("Harm above plan: ")
    measured = program(planned, "verify", "--format", "json")
    assert measured.status == 1, measured.err
    verdict = measured.document["verdict"]
    assert " ".join(said.out.split()).startswith(verdict["text"])
    assert verdict["level"] == "harmed"
    assert verdict["is_final"] is False
    report = program(planned, "report", "--format", "json").document
    lead = verdict["text"].partition(". ")[0]
    assert report["headline"].startswith(lead)
    assert report["verdict"] == {name: value for name, value in verdict.items() if name != "text"}
    assert report["week"]["violation_ratio"] == verdict["observed_ratio"]
    assert lead in program(planned, "report", "--format", "html").out
    over = [one["workload"] for one in verdict["over_budget"]]
    for team in {workload.split("/")[0] for workload in over}:
        theirs = program(planned, "report", "--team", team, "--format", "json").document["verdict"]
        assert [one["workload"] for one in theirs["over_budget"]] == [one for one in over if one.startswith(f"{team}/")]
    assert program(planned, "report", "--format", "md").out.splitlines()[2].startswith("**Harm above plan: ")
    before = program(planned, "status", "--format", "json").document
    assert {one["workload"] for one in before["harmed"]} == set(over)
    made = program(planned, "plan", "show", "--format", "json").document
    harmful = [item for item in made["recommendations"] if set(item["workloads"]) & set(over)]
    # A slice that came with a move is undone with the move.
    advice = next(
        item for item in harmful if program(planned, "undo", "--recommendation", item["id"], "--yes").status == 0
    )
    after = program(planned, "status", "--format", "json").document
    taken_back = set(over) & set(advice["workloads"])
    assert {one["workload"] for one in after["harmed"]} == set(over) - taken_back
    assert taken_back <= {one["workload"] for one in after["restored"]}
    assert f", {len(after['restored'])} restored" in program(planned, "status").out
    # What is left may have to change places on cards that are all taken; then undo asks for a yes to a gap.
    assert program(planned, "--set", "guard.gaps_allowed=true", "undo", "--yes").status == 0
    assert program(planned, "status", "--format", "json").document["harmed"] == []


def test_apply_is_a_dry_run_unless_told(planned: Path, program: Program) -> None:
    assert program(planned, "plan", "approve").status == 0
    dry = program(planned, "apply")
    assert dry.status == 0, dry.err
    again = program(planned, "apply")
    assert again.out == dry.out


def test_approval_names_the_stages_that_rest_on_little_evidence(replayed: Path, program: Program) -> None:
    third_day = ("--now", "2026-01-08T00:00:00Z")
    made = program(replayed, *third_day, "plan", "make", "--format", "json")
    assert made.status == 0, made.err
    approved = program(replayed, *third_day, "plan", "approve")
    assert approved.status == 0, approved.err
    shown = program(replayed, "plan", "show", "--plan", made.document["plan_id"]).out
    for stage in made.document["stages"]:
        assert f"warning: stage {stage['stage']} ({stage['title']}) has a confidence of 7" in approved.out
    assert "confidence" in next(line for line in shown.splitlines() if "recommendations" in line)
    later = program(replayed, "plan", "make", "--format", "json")
    assert later.status == 0, later.err
    sure = {item["id"] for item in later.document["recommendations"] if item["confidence"] >= 0.8}
    said = program(replayed, "plan", "approve").out
    rested = [stage for stage in later.document["stages"] if set(stage["recommendations"]) <= sure]
    assert rested
    assert not [stage for stage in rested if f"warning: stage {stage['stage']} " in said]


def test_apply_of_a_plan_that_nobody_approved_is_refused(planned: Path, program: Program) -> None:
    said = program(planned, "apply", "--yes")
    assert said.status == 4
    assert "approve" in said.err


def test_same_input_gives_the_same_plan(replayed: Path, program: Program) -> None:
    first = program(replayed, "plan", "make", "--format", "json")
    second = program(replayed, "plan", "make", "--format", "json")
    assert first.status == 0, first.err
    assert first.out == second.out


def test_replaying_the_same_days_again_changes_nothing(replayed: Path, small_fleet: Path, program: Program) -> None:
    before = program(replayed, "workloads", "--format", "json")
    again = program(replayed, "admin", "replay", str(small_fleet), "--until", CUT)
    assert again.status == 0, again.err
    assert program(replayed, "workloads", "--format", "json").out == before.out


def test_plan_is_written_as_files_and_changes_nothing(planned: Path, program: Program, tmp_path: Path) -> None:
    assert program(planned, "plan", "approve").status == 0
    target = tmp_path / "files"
    said = program(planned, "apply", "--emit", "kubectl", "-o", str(target))
    assert said.status == 0, said.err
    assert sorted(path.name for path in target.iterdir()) == ["apply.sh", "restore.sh"]
    assert "kubectl patch" in (target / "apply.sh").read_text()
    assert program(planned, "apply", "--emit", "kustomize", "-o", str(target)).status == 2
    component = tmp_path / "component"
    assert program(planned, "apply", "--emit", "helm", "-o", str(component)).status == 0
    assert (component / "component" / "kustomization.yaml").exists()
    assert program(planned, "apply", "--emit", "kubectl").status == 2
    assert program(planned, "apply", "--emit", "kubectl", "-o", str(target), "--yes").status == 2
    again = program(planned, "apply", "--format", "json")
    assert json.loads(again.out)["stages"]


@pytest.mark.parametrize("form", ["kubectl", "kustomize", "helm", "git"])
def test_only_approved_stages_are_written_as_files(form: str, planned: Path, program: Program, tmp_path: Path) -> None:
    target, before = tmp_path / "files", list[Path]()
    if form == "git":
        git = ["git", "-C", str(target), "-c", "user.name=a", "-c", "user.email=a@b"]
        target.mkdir()
        subprocess.run([*git, "init", "-q", "-b", "main"], check=True)
        subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "begin"], check=True)
        before = sorted(target.rglob("refs/heads/*"))
    asked = ("apply", "--emit", form, "-o", str(target))
    refused = program(planned, *asked)
    assert refused.status == 4
    assert "gputide plan approve --plan" in refused.err
    assert sorted(target.rglob("refs/heads/*")) == before
    assert target.exists() is (form == "git")

    previewed = program(planned, "plan", "diff", "--format", "json").document["stages"]
    first, second = [stage for stage in previewed if stage["objects"] and stage["refusal"] is None][:2]
    assert program(planned, "plan", "approve", "--stage", str(first["stage"])).status == 0
    assert program(planned, *asked, "--stage", str(second["stage"])).status == 4
    said = program(planned, *asked)
    assert said.status == 0, said.err
    shown = program(planned, "plan", "show", "--format", "json").document
    tides = {item["id"] for item in shown["recommendations"] if item["kind"] == "tide"}
    rolled = [str(stage["stage"]) for stage in shown["stages"] if not tides & set(stage["recommendations"])]
    left_out = [stage for stage in rolled if stage != str(first["stage"])]
    assert f"left out, because nobody approved them: stages {', '.join(left_out)}" in said.err
    if form == "git":
        log = subprocess.run(
            ["git", "-C", str(target), "log", "--all", "-p"], check=True, capture_output=True, text=True
        )
        written = log.stdout
    else:
        written = "".join(path.read_text() for path in sorted(target.rglob("*")) if path.is_file())
    names = {part: {item["name"] for item in stage["objects"]} for part, stage in (("in", first), ("out", second))}
    assert names["out"] - names["in"]
    for name in names["in"]:
        assert name in written
    for name in names["out"] - names["in"]:
        assert name not in written


def test_files_of_a_plan_for_two_approvers_wait_for_the_second(planned: Path, program: Program, tmp_path: Path) -> None:
    two = ("--set", "guard.two_approvals_cards_min=1")
    asked = (*two, "apply", "--emit", "kubectl", "-o", str(tmp_path / "files"))
    assert program(planned, "plan", "approve").status == 0
    assert program(planned, *asked).status == 4
    folder = open_data_folder(planned, create=False)
    plan = chosen_plan(folder, None)
    plan_store(folder).approve(plan, plan.rollout_stages, by="bo", at=plan.created_at)  # signed in to the web app
    assert program(planned, *asked).status == 0


def test_one_user_of_the_machine_is_one_approver_whatever_they_call_themselves(
    planned: Path, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = ("--set", "guard.two_approvals_cards_min=1", "apply", "--yes")
    own = pwd.getpwuid(os.getuid()).pw_name
    assert program(planned, "plan", "approve", "--by", own).status == 0
    said = program(planned, "plan", "approve", "--by", "bo")
    assert said.status == 4
    assert f"cannot approve as 'bo': here you are {own!r}" in said.err
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.setenv(name, "bo")
    assert f"{own} approved" in program(planned, "plan", "approve").out
    folder = open_data_folder(planned, create=False)
    plan = chosen_plan(folder, None)
    assert {approval.by for approval in plan_store(folder).approvals(plan.plan_id)} == {own}
    refused = program(planned, *asked)
    assert refused.status == 4
    assert "two different people" in refused.err
