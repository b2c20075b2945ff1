"""What the demo leaves behind, and a person at it: approves, applies and undoes; the cluster is what the page says."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from enforcer.record.journal import Journal, StageState
from enforcer.record.ledger import Ledger
from enforcer.record.outcome_store import read_outcomes
from enforcer.record.plan_store import PlanStore
from enforcer.record.savings import named_cards
from enforcer.simulated.cluster import SeatState, SimulatedCluster, SimulatedSeat
from enforcer.verify import emptied_cards
from fleet.data_folder import open_data_folder
from fleet.decisions import Plan
from fleet.money.saving import cards_in
from fleet.node_changes import NodeMode, NodeSwitch

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.browser

PROGRAM = (sys.executable, "-m", "gputide.cli")


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("demo") / "data"
    subprocess.run([*PROGRAM, "--data-dir", str(folder), "--quiet", "demo", "--once"], check=True, capture_output=True)
    return folder


@pytest.fixture
def address(demo: Path, servers: ExitStack) -> str:
    return servers.enter_context(served(demo))


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The pages of a data folder, and their address."""
    command = [*PROGRAM, "--data-dir", str(folder), "serve", "--port", "0"]
    environ = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environ) as server:
        assert server.stdout is not None
        try:
            yield server.stdout.readline().split()[0]
        finally:
            server.send_signal(signal.SIGINT)
        assert server.wait(timeout=60) == 0


def standing(folder: Path) -> tuple[SimulatedSeat, ...]:
    """Where every pod sits; when it was made anew, and what it is called since, does not matter."""
    cluster = SimulatedCluster.open(folder / "cluster.sqlite")
    try:
        made = datetime(2026, 1, 1, tzinfo=UTC)
        return tuple(replace(seat, since=made, name="", is_remade=False) for seat in cluster.seats())
    finally:
        cluster.close()


def cards_by_workload(seated: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Cards of each workload's pods, sorted: which of its replicas sits on which is the scheduler's choice."""
    found: dict[str, list[str]] = {}
    for workload, card in seated:
        found.setdefault(workload, []).append(card)
    return {workload: sorted(cards) for workload, cards in found.items()}


def grant_of(seat: SimulatedSeat) -> SimulatedSeat:
    """A seat without the place."""
    return replace(seat, card=None, node=None)


def cards_in_use(seats: tuple[SimulatedSeat, ...]) -> set[str]:
    return {str(seat.card) for seat in seats if seat.state is SeatState.RUNNING}


def waiting_plan(folder: Path) -> Plan:
    plan = PlanStore(folder / "plans").newest()
    assert plan is not None
    return plan


def test_the_demo_ends_with_its_plan_standing_one_service_restored_and_the_next_plan_waiting(demo: Path) -> None:
    plan, waiting = PlanStore(demo / "plans").plans()
    (run,) = Journal(Ledger(demo / "ledger.jsonl")).runs()
    assert (run.plan_id, waiting.created_at > plan.created_at) == (plan.plan_id, True)
    assert {record.state for record in run.records.values()} == {StageState.PROMOTED}
    assert 0 < len(run.records) < len(plan.stages), "some of it waits"
    (undone,) = [entry for entry in Ledger(demo / "ledger.jsonl").entries() if entry.event == "undone"]
    (restored,) = {
        intent.workload
        for record in run.records.values()
        for intent in record.objects
        if intent.recommendation == undone.content["recommendation"] and intent.kind != "Pod"
    }
    seats = standing(demo)
    in_use = cards_in_use(seats)
    returned = {str(seat.card) for seat in seats if seat.workload == restored}
    freed = emptied_cards(run.records.values(), run.cards_granted, plan)
    assert freed & in_use <= returned
    (outcome,) = read_outcomes(open_data_folder(demo, create=False))
    assert outcome.is_final
    # A card that was free and is used since, so that services changed cards without a gap, counts against those freed.
    moved = {move.workload for record in run.records.values() for move in record.moves}
    new = cards_in_use(tuple(seat for seat in seats if seat.workload in moved)) - run.cards_granted
    assert outcome.realised_cards_freed + outcome.spare_cards == len(freed - in_use) - len(new)
    assert PlanStore(demo / "plans").approvals(waiting.plan_id) == ()
    assert waiting.totals.cards_freed >= 1
    assert waiting.totals.cards_before == len(in_use)
    freed_next = in_use - {str(card.card) for card in waiting.placement}
    assert freed_next
    assert freed_next.isdisjoint(freed)
    assert restored not in {name for item in waiting.recommendations for name in item.workloads}


def diff_of(folder: Path, stage: int) -> list[dict[str, object]]:
    """What a stage changes by itself, object by object and then node by node, as the command line says."""
    command = [*PROGRAM, "--data-dir", str(folder), "plan", "diff", "--stage", str(stage), "--format", "json"]
    answer = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    (found,) = answer["stages"]
    nodes = {one["node"] for one in (*found["nodes"], *found["cards"])}
    return [*found["made"], *found["objects"], *({"kind": "node", "name": name} for name in nodes)]


def test_diff_of_the_largest_stage_is_a_closed_row_per_object_and_opens_at_once(
    page: "Page", servers: ExitStack, demo: Path
) -> None:
    from playwright.sync_api import expect  # noqa: PLC0415

    plan = waiting_plan(demo)
    objects_of = {stage.stage: diff_of(demo, stage.stage) for stage in plan.stages}
    rolling = {number for number, found in objects_of.items() if any(one["kind"] == "Deployment" for one in found)}
    largest = max(plan.stages, key=lambda stage: (stage.stage in rolling, len(objects_of[stage.stage])))
    objects = objects_of[largest.stage]
    address = servers.enter_context(served(demo))
    page.goto(f"{address}plan?plan={plan.plan_id}")
    stage = page.locator(".stage").nth(plan.stages.index(largest))
    expect(stage).to_be_visible()
    page.wait_for_load_state("networkidle")
    before = stage.locator("*").count()
    stage.get_by_role("button", name="Diff").click()
    rows = stage.locator(".diff")
    expect(rows.first).to_be_visible()
    expect(rows).to_have_count(len(objects))
    expect(stage.locator(".diff[open]")).to_have_count(0)
    assert stage.locator("*").count() - before <= 7 * rows.count() + 10
    assert "apiVersion" not in page.content()
    row = rows.filter(has_text="Deployment").first
    row.locator("summary").click()
    expect(stage.locator(".diff[open]")).to_have_count(1)
    sides = row.locator("pre")
    expect(sides).to_have_count(2)
    expect(sides.first).to_contain_text("apiVersion: apps/v1")
    assert any(line.startswith("+ ") for line in sides.last.inner_text().splitlines())
    assert row.evaluate("(it) => it.querySelectorAll('pre *').length") <= 20


def test_apply_and_undo_on_the_plan_page_change_the_cluster_and_change_it_back(
    page: "Page", address: str, demo: Path
) -> None:
    from playwright.sync_api import expect  # noqa: PLC0415 - the quick tier need not load it

    plan = waiting_plan(demo)
    before = standing(demo)
    page.goto(f"{address}plan")
    expect(page.locator("h1")).to_contain_text(plan.short_id)
    expect(page.locator("#apply")).to_be_disabled()
    # In its last stage pods of two workloads change places, which takes away more of them at once than is allowed.
    page.locator(".stage .tick input").last.uncheck()
    workloads_of = {item.id: item.workloads for item in plan.recommendations}
    resting = {str(name) for number in plan.stages[-1].recommendations for name in workloads_of[number]}
    page.locator("#approve").click()
    expect(page.locator("#plan-message")).to_contain_text("Approved by")
    assert standing(demo) == before
    expect(page.locator("#apply")).to_be_enabled()
    page.locator("#apply").click()
    expect(page.locator("#progress-phase .on")).to_have_text("done", timeout=180_000)
    after = standing(demo)
    freed = cards_in(named_cards(plan, [stage.stage for stage in plan.stages[:-1]]))  # spares are emptied as well
    assert freed >= 1
    assert len(cards_in_use(before)) - len(cards_in_use(after)) == freed
    placed = cards_by_workload((str(part.workload), str(card.card)) for card in plan.placement for part in card.slices)
    seated = cards_by_workload(
        (str(seat.workload), str(seat.card)) for seat in after if seat.state is SeatState.RUNNING
    )
    moved = {str(seat.workload) for seat in after if seat.state is SeatState.RUNNING and seat not in before}
    moved -= resting
    assert moved
    assert {name: seated[name] for name in moved} == {name: placed[name] for name in moved}
    page.reload()
    expect(page.locator("#progress-phase .on")).to_have_text("done")
    expect(page.locator("#undo-preview")).to_contain_text("Undo restores")
    page.locator("#undo").click()
    expect(page.locator("#progress-phase .on")).to_have_text("restored", timeout=180_000)
    restored = standing(demo)
    # Every grant is what it was; which of the equal free cards a pod gets is the scheduler's choice.
    assert [grant_of(seat) for seat in restored] == [grant_of(seat) for seat in before]
    assert len(cards_in_use(restored)) == len(cards_in_use(before))
    assert Ledger(demo / "ledger.jsonl").verify() > 0


def test_every_page_of_the_demo_draws(page: "Page", address: str, demo: Path) -> None:
    from playwright.sync_api import expect  # noqa: PLC0415

    page.goto(address)
    expect(page.locator("#card-map path").first).to_be_visible()
    expect(page.locator("#page")).to_contain_text(re.compile(r"160\s*cards"))
    page.get_by_role("link", name="Workloads", exact=True).click()
    expect(page.locator("#workloads-grid .grid-row").first).to_be_visible()
    page.get_by_role("link", name="Savings", exact=True).click()
    (outcome,) = read_outcomes(open_data_folder(demo, create=False))
    expect(page.locator("#funnel .realised b")).to_have_text(str(outcome.realised_cards_freed))
    # What waited of the first plan is found again by the next, and counts once.
    items = [item for plan in reversed(PlanStore(demo / "plans").plans()) for item in plan.recommendations]
    replaced: dict[str, str | None] = {}
    for card in (card for item in items for card in item.freed if not card.is_spare):
        replaced.setdefault(card.card, card.replaced_by)
    found = sum(card is None for card in replaced.values())
    expect(page.locator("#funnel .found b")).to_have_text(str(found))


def test_a_node_is_emptied_and_put_into_another_mode_by_clicks_and_taken_back_by_a_click(
    page: "Page", servers: ExitStack, demo: Path
) -> None:
    from playwright.sync_api import expect  # noqa: PLC0415

    before = standing(demo)
    address = servers.enter_context(served(demo))
    node, pods = dry_run_by_clicks(page, address, before)
    rows = page.locator("#switch-answer tbody tr")
    assert {row.split("\t")[2] for row in rows.all_inner_texts()} <= {seat.node for seat in before} - {node}
    assert not any(plan.node_switch for plan in PlanStore(demo / "plans").plans()), "a dry run keeps nothing"
    page.locator("#switch-keep").click()
    expect(page.locator("h1")).to_contain_text("Plan")
    plan = PlanStore(demo / "plans").get(page.url.rpartition("plan=")[2])
    assert plan.node_switch == NodeSwitch(node=node, mode=NodeMode.WHOLE)
    assert PlanStore(demo / "plans").approvals(plan.plan_id) == ()
    page.locator("#preview").click()
    expect(page.locator("#preview-answer tbody tr")).to_have_count(pods)
    page.locator("#approve").click()
    expect(page.locator("#plan-message")).to_contain_text("Approved by")
    assert standing(demo) == before
    page.locator("#apply").click()
    expect(page.locator("#progress-phase .on")).to_have_text("done", timeout=180_000)
    expect(page.locator(".objects")).to_contain_text(f"Node/{node}")
    # Which of the nodes with room they come up on is the scheduler's choice.
    now = [seat for seat in standing(demo) if seat.state is SeatState.RUNNING]
    assert len(now) == sum(seat.state is SeatState.RUNNING for seat in before)
    assert node not in {seat.node for seat in now}
    page.goto(f"{address}node?node={node}")
    expect(page.locator(".headline")).to_contain_text(re.compile(r"whole\s*mode"))
    expect(page.locator(".headline")).to_contain_text(f"nvidia.com/gpu: {plan.totals.cards_before}")
    page.get_by_role("link", name=f"Switch node {node} to mode whole").click()
    expect(page.locator("#undo")).to_be_enabled()
    page.locator("#undo").click()
    expect(page.locator("#progress-phase .on")).to_have_text("restored", timeout=180_000)
    page.goto(f"{address}node?node={node}")
    expect(page.locator(".headline")).to_contain_text(re.compile(r"vgpu\s*mode"))
    names = [sorted(str(seat.workload) for seat in found if seat.card) for found in (before, standing(demo))]
    assert names[0] == names[1], "nobody is without a card"


def dry_run_by_clicks(page: "Page", address: str, seats: tuple[SimulatedSeat, ...]) -> tuple[str, int]:
    """The first node of several pods that may be given whole cards, and its pods; its dry run stands on the page."""
    by_node: dict[str, set[str]] = {}
    for seat in seats:
        if seat.node is not None:
            by_node.setdefault(seat.node, set()).add(seat.pod)
    for node, pods in sorted(by_node.items(), key=lambda one: (len(one[1]), one[0])):
        if len(pods) > 1:
            page.goto(f"{address}?node={node}")
            page.locator("#node-mode").click()
            page.locator(".modes li", has_text="whole").locator("button").click()
            page.locator("#switch-keep").wait_for()
            if page.locator("#switch-keep").is_enabled():
                return node, len(pods)
    raise AssertionError("no node can be emptied")
