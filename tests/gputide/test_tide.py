"""`gputide run tide` on the simulated cluster of a data folder: shown, checked, moved, ended."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from enforcer.manifest import field_of
from enforcer.record.ledger import Ledger
from enforcer.simulated.cluster import SimulatedCluster
from fleet.data_folder import open_data_folder
from fleet.decisions import Plan, ScheduledReplicas
from fleet.documents import seal_plan
from fleet.durable import FolderLock
from fleet.errors import Misconfigured, NotEnoughData, Refused, Unavailable
from fleet.inventory import WorkloadId
from fleet.settings.guard import GuardSettings
from fleet.settings.settings import Settings
from gputide.cli import app
from gputide.container.plans import journal, plan_store
from gputide.container.tide import followed_plan, tide_journal
from tests.enforcer.builders import NOW, a_cluster, card_id, standard_plan, with_tide
from tests.scraping import OWN_PORT, own_url, scraped
from tests.waiting import until

Program = Callable[..., Result]
MIDNIGHT = "2026-01-12T00:00:00Z"


def scheduled() -> Plan:
    entry = ScheduledReplicas(
        workload=WorkloadId("team/Deployment/a"), replicas=1, start="22:30", end="07:30", time_zone="UTC",
        frees=(card_id(1),),
    )  # fmt: skip
    return with_tide(standard_plan(), [entry])


@pytest.fixture
def program(tmp_path: Path) -> Program:
    """Return the program on a data folder whose newest plan has a tide."""
    folder = open_data_folder(tmp_path / "data", create=True)
    a_cluster(folder.path).close()
    plan_store(folder).add(scheduled(), None)
    plan_store(folder).approve(scheduled(), [3], by="ada", at=NOW)

    def invoke(*words: str, now: str = MIDNIGHT) -> Result:
        options = ["--data-dir", str(folder.path), "--now", now, "--set", "tide.save_seconds=10"]
        return CliRunner().invoke(app, [*options, "run", "tide", *words], catch_exceptions=False)

    return invoke


def replicas(tmp_path: Path) -> str | None:
    cluster = SimulatedCluster.open(tmp_path / "data" / "cluster.sqlite")
    try:
        owner = cluster.get("Deployment", "team", "a")
        assert owner is not None
        return field_of(owner, "spec.replicas")
    finally:
        cluster.close()


def test_night_goes_out_is_shown_and_ends_when_asked(program: Program, tmp_path: Path) -> None:
    shown = program("show", "--format", "json")
    assert json.loads(shown.stdout)["workloads"][0]["replicas"] == 1
    due = json.loads(program("check", "--format", "json").stdout)
    assert (due["phase"], due["would_change"][0]["to"]) == ("night", "1")
    assert replicas(tmp_path) == "2"
    said = program("run", "--once", "--yes").stdout
    assert replicas(tmp_path) == "1"
    said += program("run", "--once", "--yes", now="2026-01-12T00:10:00Z").stdout
    assert "1 cards are free for the night, 0 machines whole" in said
    due = program("check", "--format", "json", now="2026-01-12T00:20:00Z")
    assert json.loads(due.stdout)["in_need"] == []
    assert "nobody says how busy the services are: nothing was recorded yet" in program("check").stdout
    assert "under way" in program("show").stdout
    ended = program("abort", "--yes", "--by", "ada", now="2026-01-12T01:00:00Z")
    assert "services came home" in ended.stdout
    assert replicas(tmp_path) == "2"


def test_what_each_tier_is_promised_and_got_is_said(program: Program, tmp_path: Path) -> None:
    cluster = SimulatedCluster.open(tmp_path / "data" / "cluster.sqlite")
    queue = {
        "kind": "ClusterQueue",
        "metadata": {"namespace": "", "name": "night", "labels": {"gputide.io/tier": "mid"}},
    }
    cluster.create({**queue, "spec": {"stopPolicy": "Hold"}})
    cluster.close()
    options = ["--data-dir", str(tmp_path / "data"), "--now", MIDNIGHT]

    def said(*words: str) -> str:
        return CliRunner().invoke(app, [*options, *words], catch_exceptions=False).stdout

    assert "a night frees 1 cards, in this order for work of tier mid 4 h at least, 15m to save" in said("plan", "show")
    said("--set", "tide.queues=night", "run", "tide", "run", "--once", "--yes")
    program("run", "--once", "--yes", now="2026-01-12T06:30:00Z")
    (night,) = json.loads(program("show", "--format", "json").stdout)["nights"]
    assert (night["runs_until"], night["tiers"], night["is_cut_short"]) == ("2026-01-12T06:30:00Z", ["mid"], False)
    shown = said("run", "tide", "show")
    assert re.search(r"protected +│ all replicas in time +│ +1 │ +│ 0 nights late, 0 services home early +│ yes", shown)
    assert re.search(r"mid +│ 4 h at least, .* │ +1 │ 6.5 +│ 0.000 an hour +│ yes", shown)


def test_night_that_ends_as_soon_as_work_was_let_in_kept_no_promise(program: Program, tmp_path: Path) -> None:
    cluster = SimulatedCluster.open(tmp_path / "data" / "cluster.sqlite")
    cluster.create({"kind": "ClusterQueue", "metadata": {"namespace": "", "name": "q"}, "spec": {"stopPolicy": "Hold"}})
    cluster.close()
    options = ["--data-dir", str(tmp_path / "data"), "--now", MIDNIGHT, "--set", "tide.queues=q", "run", "tide"]
    for words in (("run", "--once", "--yes"), ("abort", "--yes")):
        CliRunner().invoke(app, [*options, *words], catch_exceptions=False)
    assert re.search(r"batch +│ 1 h at least, .* an hour +│ no ", program("show").stdout)


def test_night_comes_home_by_its_own_plan_when_a_newer_one_has_no_tide(program: Program, tmp_path: Path) -> None:
    program("run", "--once", "--yes")
    assert replicas(tmp_path) == "1"
    newer = seal_plan(replace(standard_plan(), created_at=scheduled().created_at + timedelta(minutes=1)))
    folder = open_data_folder(tmp_path / "data", create=False)
    plan_store(folder).add(newer, None)
    assert plan_store(folder).newest() == newer
    program("run", "--once", "--yes", now="2026-01-12T07:00:00Z")
    assert replicas(tmp_path) == "2"
    # What somebody approved is played until it expires.
    program("run", "--once", "--yes", now="2026-01-12T23:00:00Z")
    assert replicas(tmp_path) == "1"


def test_plan_without_a_tide_is_no_failure_of_the_tide(program: Program, tmp_path: Path) -> None:
    store = plan_store(open_data_folder(tmp_path / "data", create=False))
    store.keep_approvals(scheduled().plan_id, ())
    newer = seal_plan(replace(standard_plan(), created_at=scheduled().created_at + timedelta(minutes=1)))
    store.add(newer, None)
    said = program("run", "--once", "--yes")
    assert said.exit_code == 0
    assert f"nothing is due: plan {newer.plan_id} has no tide" in said.output
    for plan in (newer, scheduled()):
        (tmp_path / "data" / "plans" / f"{plan.plan_id}.json").unlink()
    assert "nothing is due: there is no plan yet" in program("run", "--once", "--yes").output


def test_services_come_home_while_another_process_holds_the_folder(program: Program, tmp_path: Path) -> None:
    """A rollout holds it for hours; services don't go out then."""
    with FolderLock(tmp_path / "data", "writer"):
        said = program("run", "--once", "--yes").stdout
        assert "holds it" in said
    assert replicas(tmp_path) == "2"
    program("run", "--once", "--yes")
    assert replicas(tmp_path) == "1"
    with FolderLock(tmp_path / "data", "writer"):
        said = program("run", "--once", "--yes", now="2026-01-12T07:00:00Z").stdout
    assert "services came home" in said
    assert replicas(tmp_path) == "2"


def test_night_is_aborted_while_another_process_holds_the_folder(program: Program, tmp_path: Path) -> None:
    program("run", "--once", "--yes")
    with FolderLock(tmp_path / "data", "writer"):
        program("abort", "--yes", now="2026-01-12T01:00:00Z")
    assert replicas(tmp_path) == "2"


def test_services_come_home_when_due_though_the_enforcer_can_not_be_opened(tmp_path: Path, program: Program) -> None:
    """As with settings that are wrong since the evening; a warehouse that is away is no other."""

    def broken(*words: str, now: str) -> str:
        options = ["--data-dir", str(tmp_path / "data"), "--now", now, "--set", "enforcer.watch_queries=up"]
        options += ["--set", "tide.save_seconds=10"]
        return CliRunner().invoke(app, [*options, "run", "tide", *words, "--yes"], catch_exceptions=False).output

    for words, now in ((("run", "--once"), "2026-01-12T07:00:00Z"), (("abort",), "2026-01-13T01:00:00Z")):
        program("run", "--once", "--yes", now=now.replace("T07", "T00").replace("T01", "T00"))
        assert replicas(tmp_path) == "1"
        with pytest.raises(Misconfigured, match="watch_queries"):
            broken("run", "--once", now=now.replace("T07", "T01"))
        assert replicas(tmp_path) == "1", "what is missing ends no night before its time"
        assert "services came home" in broken(*words, now=now)
        assert replicas(tmp_path) == "2"


def test_one_process_at_a_time_plays_the_tide(program: Program, tmp_path: Path) -> None:
    with FolderLock(tmp_path / "data", "tide"), pytest.raises(Unavailable, match="as tide"):
        program("run", "--once", "--yes")
    assert replicas(tmp_path) == "2"


def test_night_whose_time_zone_is_unknown_now_is_shown_and_comes_home(program: Program, tmp_path: Path) -> None:
    """Its plan was approved elsewhere, or this machine lost its time zones."""
    program("run", "--once", "--yes")
    odd = with_tide(standard_plan(), [replace(entry, time_zone="Moon/Tycho") for entry in scheduled().schedule])
    folder = open_data_folder(tmp_path / "data", create=False)
    plan_store(folder).add(odd, None)
    older = Ledger(folder.tide)
    entries = older.entries()
    folder.tide.unlink()
    folder.tide.with_name("tide.jsonl.head").unlink()
    for entry in entries:
        Ledger(folder.tide).append([(entry.event, entry.content)], plan_id=odd.plan_id, at=entry.at)
    due = json.loads(program("check", "--format", "json").stdout)
    assert (due["phase"], due["night"], due["ends_at"]) == ("give_back", "2026-01-11", "2026-01-12T07:30:00Z")
    assert "Moon/Tycho" in due["why_not"]
    said = program("run", "--once", "--yes", now="2026-01-12T01:00:00Z").output
    assert "services come home now" in said
    assert replicas(tmp_path) == "2"


def test_night_is_aborted_whatever_plan_is_newest(program: Program, tmp_path: Path) -> None:
    program("run", "--once", "--yes")
    newer = seal_plan(replace(standard_plan(), created_at=scheduled().created_at + timedelta(minutes=1)))
    plan_store(open_data_folder(tmp_path / "data", create=False)).add(newer, None)
    program("abort", "--yes", now="2026-01-12T01:00:00Z")
    assert replicas(tmp_path) == "2"


@pytest.mark.parametrize("words", [("run", "--once"), ("abort",)])
@pytest.mark.parametrize("becomes", ["edited", "gone"])
def test_night_whose_plan_can_no_longer_be_read_comes_home(
    program: Program, tmp_path: Path, words: tuple[str, ...], becomes: str
) -> None:
    program("run", "--once", "--yes")
    assert replicas(tmp_path) == "1"
    file = open_data_folder(tmp_path / "data", create=False).plans / f"{scheduled().plan_id}.json"
    file.unlink() if becomes == "gone" else file.write_text(file.read_text().replace("22:30", "22:31"))
    said = program(*words, "--yes", now="2026-01-12T01:00:00Z").output
    assert "services come home now" in said
    assert "services came home" in said
    assert replicas(tmp_path) == "2"


def test_nothing_is_moved_without_yes(program: Program, tmp_path: Path) -> None:
    for words in (("run", "--once"), ("abort",)):
        with pytest.raises(Refused, match="--yes"):
            program(*words)
    assert replicas(tmp_path) == "2"


def test_night_begins_only_by_a_tide_that_somebody_approved(program: Program, tmp_path: Path) -> None:
    store = plan_store(open_data_folder(tmp_path / "data", create=False))
    other = seal_plan(replace(scheduled(), created_at=scheduled().created_at + timedelta(minutes=1)))
    store.add(other, None)
    # Two stages of it are approved, and the tide is not among them.
    store.approve(other, [1, 2], by="ada", at=NOW)
    # So that of the older plan, which is, is followed.
    assert json.loads(program("show", "--format", "json").stdout)["plan_id"] == scheduled().plan_id
    store.keep_approvals(scheduled().plan_id, ())
    assert json.loads(program("show", "--format", "json").stdout)["plan_id"] == other.plan_id
    assert "nobody approved" in json.loads(program("check", "--format", "json").stdout)["why_not"]
    said = program("run", "--once", "--yes")
    assert "nobody approved" in said.stdout
    assert said.exit_code == 0
    assert replicas(tmp_path) == "2"


def test_tide_is_approved_like_any_stage_and_apply_leaves_it_to_its_own_verb(tmp_path: Path) -> None:
    folder = open_data_folder(tmp_path / "data", create=True)
    a_cluster(folder.path).close()
    plan_store(folder).add(scheduled(), None)

    def program(*words: str) -> str:
        options = ["--data-dir", str(folder.path), "--now", MIDNIGHT, "--quiet"]
        return CliRunner().invoke(app, [*options, *words], catch_exceptions=False).output

    assert "nobody approved" in program("run", "tide", "run", "--once", "--yes")
    # A yes to everything does not mean it.
    said = program("plan", "approve")
    assert "approved stages 1, 2 of plan" in said
    own = f"the tide needs a yes of its own: gputide plan approve --plan {scheduled().short_id} --stage 3"
    assert own in said
    assert "nobody approved" in program("run", "tide", "run", "--once", "--yes")
    shown = program("plan", "show")
    assert own in shown
    two = ("--set", "guard.two_approvals_cards_min=1", "plan", "approve", "--stage", "3")
    first = program(*two)
    assert "nights begin" not in first
    assert "two different people" in first
    said = program("plan", "approve", "--stage", "3")
    for text in (shown, said):
        assert re.search(r"team/Deployment/a │ +1 │ 22:30 │ 07:30 │ UTC +│ +1 │", text)
    assert "nights begin by it until 2026-01-26" in said
    assert "gputide apply" not in said
    assert "`gputide run tide` plays it" in program("apply", "--stage", "3")
    done = program("apply", "--stage", "3", "--yes", "--by", "ada")
    assert "0 of 0 stages applied" in done
    assert "stage 3: Apply leaves replicas as they are" in done
    assert replicas(tmp_path) == "2"
    assert not journal(folder).runs()
    with pytest.raises(Refused, match=r"stage 3: .*gputide run tide"):
        program("apply", "--stage", "3", "--emit", "kubectl", "-o", str(tmp_path / "files"))
    program("run", "tide", "run", "--once", "--yes")
    assert replicas(tmp_path) == "1"


def test_tide_follows_the_newest_plan_whose_tide_is_approved_as_it_must_be(tmp_path: Path) -> None:
    folder = open_data_folder(tmp_path / "data", create=True)
    store = plan_store(folder)
    old, new = scheduled(), seal_plan(replace(scheduled(), created_at=NOW + timedelta(minutes=1)))
    store.add(old, None)
    store.add(new, None)
    settings = Settings(guard=GuardSettings(two_approvals_cards_min=1))
    assert followed_plan(folder, settings, None, NOW) == new
    for name in ("ada", "bob"):
        store.approve(old, [3], by=name, at=NOW)
    assert followed_plan(folder, settings, None, NOW) == old
    store.approve(new, [1, 2], by="ada", at=NOW)
    assert followed_plan(folder, settings, None, NOW) == old
    store.approve(new, [3], by="ada", at=NOW)
    assert followed_plan(folder, settings, None, NOW) == old, "the second person is missing"
    assert followed_plan(folder, Settings(), None, NOW) == new
    store.approve(new, [3], by="bob", at=NOW)
    assert followed_plan(folder, settings, None, NOW) == new
    assert followed_plan(folder, settings, old.plan_id, NOW) == old


def test_next_plan_is_told_what_the_tide_moved_itself(program: Program, tmp_path: Path) -> None:
    program("run", "--once", "--yes")
    program("abort", "--yes", now="2026-01-12T01:00:00Z")
    moved = tide_journal(open_data_folder(tmp_path / "data", create=False)).scalings()
    assert list(moved) == ["team/Deployment/a"]
    (out, _), (home, done) = moved[WorkloadId("team/Deployment/a")]
    assert out < home <= done


def test_by_day_nothing_is_due(program: Program) -> None:
    said = program("run", "--once", "--yes", now="2026-01-12T12:00:00Z")
    assert "nothing is due: it is day" in said.output


def test_window_that_no_clock_shows_is_named(program: Program, tmp_path: Path) -> None:
    odd = [replace(entry, end="25:00") for entry in scheduled().schedule]
    plan = with_tide(standard_plan(), odd)
    plan_store(open_data_folder(tmp_path / "data", create=False)).add(plan, None)
    with pytest.raises(Misconfigured, match=r"'22:30' to '25:00' in 'UTC'"):
        program("show", "--plan", plan.plan_id)


def test_plan_without_a_tide_says_so(program: Program, tmp_path: Path) -> None:
    plan_store(open_data_folder(tmp_path / "data", create=False)).add(standard_plan(), None)
    with pytest.raises(NotEnoughData, match="has no tide"):
        program("show", "--plan", standard_plan().plan_id)


def test_tide_that_runs_shows_a_scraper_its_night(program: Program, tmp_path: Path) -> None:
    gputide = str(Path(sys.executable).with_name("gputide"))
    options = ["--data-dir", str(tmp_path / "data"), "--now", MIDNIGHT, "--set", "tide.interval_seconds=1", *OWN_PORT]
    log = tmp_path / "log"
    with log.open("wb") as file:
        tide = subprocess.Popen([gputide, *options, "run", "tide", "run", "--yes"], stderr=file)
    try:
        url = own_url(log)
        until(lambda: scraped(url)["gputide_tide_is_night"] == 1)
        found = scraped(url)
    finally:
        tide.terminate()
        tide.wait(30)
    assert replicas(tmp_path) == "1"
    assert found["gputide_tide_step_seconds_count"] >= 1
    assert found["gputide_tide_api_requests_total"] == 0
