"""A person at the pages: looks, chooses, approves, applies, takes back."""

import re
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from fleet.decisions import RecommendationKind, RiskLevel
from fleet.documents import seal_plan
from fleet.profiles import CardState
from tests.browser.conftest import served
from tests.dashboards.embedded import (
    CLUSTER,
    HOSTILE,
    EmbeddedCluster,
    EmbeddedFleet,
    make_plan,
    make_profiles,
    make_views,
)

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.browser


@pytest.fixture
def running(servers: ExitStack) -> tuple[str, EmbeddedCluster]:
    views, cluster = make_views()
    return servers.enter_context(served(views)), cluster


def test_every_page_draws_without_fault(page: "Page", running: tuple[str, EmbeddedCluster]) -> None:
    from playwright.sync_api import expect  # noqa: PLC0415

    address, _ = running
    page.goto(address)
    expect(page.locator("#card-map path").first).to_be_visible()
    expect(page.locator("#cards-grid .grid-row").first).to_be_visible()
    page.get_by_role("link", name="Workloads", exact=True).click()
    expect(page.locator("#workloads-grid .grid-row").first).to_be_visible()
    page.get_by_role("link", name="Plan", exact=True).click()
    expect(page.locator("#after path").first).to_be_visible()
    page.get_by_role("link", name="Savings", exact=True).click()
    expect(page.locator("#funnel")).to_contain_text("realised")
    page.get_by_role("link", name="Plan", exact=True).first.click()
    expect(page.locator(".stage").first).to_be_visible()
    page.get_by_role("link", name="Workloads", exact=True).click()
    expect(page.locator("#workloads-grid .grid-row").first).to_be_visible()


def test_click_on_a_square_opens_its_card_and_the_address_remembers_it(
    page: "Page", running: tuple[str, EmbeddedCluster]
) -> None:
    from playwright.sync_api import expect  # noqa: PLC0415

    address, _ = running
    page.goto(address)
    expect(page.locator("#card-map path").first).to_be_visible()
    box = page.locator("#card-map svg").bounding_box()
    assert box is not None
    page.mouse.click(box["x"] + 6, box["y"] + 1.5 * 12.6 + 6)
    uuid = page.locator("#side .uuid")
    expect(uuid).to_contain_text("GPU-")
    name = uuid.inner_text()
    assert f"card={name}" in page.url
    page.reload()
    expect(page.locator("#side .uuid")).to_have_text(name)


def test_state_bar_filters_the_table(page: "Page", running: tuple[str, EmbeddedCluster]) -> None:
    from playwright.sync_api import expect  # noqa: PLC0415

    address, _ = running
    page.goto(address)
    page.locator("#state-bar .untrusted").click()
    expect(page.locator("#cards-filter")).to_contain_text("untrusted")
    states = page.locator("#cards-grid .grid-row [data-col=state_word]")
    expect(states.first).to_have_text("untrusted")
    assert set(states.all_inner_texts()) == {"untrusted"}


def test_slash_searches_and_enter_opens_a_workload(page: "Page", running: tuple[str, EmbeddedCluster]) -> None:
    from playwright.sync_api import expect  # noqa: PLC0415

    address, _ = running
    page.goto(address)
    expect(page.locator("#card-map path").first).to_be_visible()
    page.keyboard.press("/")
    page.keyboard.type("calc")
    expect(page.locator("#search-results .hit").first).to_contain_text(HOSTILE)
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_have_text(HOSTILE)
    expect(page.locator("#week .main-svg").first).to_be_visible()
    assert page.locator("img[src=x]").count() == 0


def test_apply_and_undo_change_the_cluster_and_change_it_back(
    page: "Page", running: tuple[str, EmbeddedCluster]
) -> None:
    from playwright.sync_api import expect  # noqa: PLC0415

    address, cluster = running
    plan = cluster.plans(CLUSTER)[0].plan
    first = {
        name for item in plan.recommendations if item.id in plan.stages[0].recommendations for name in item.workloads
    }
    page.goto(f"{address}plan?stages=1")
    expect(page.locator("#apply")).to_be_disabled()
    expect(page.locator("#apply-reason")).to_contain_text("not approved yet")
    page.locator("#approve").click()
    expect(page.locator("#plan-message")).to_contain_text("Approved by mei: stage 1")
    expect(page.locator("#apply")).to_be_enabled()
    assert cluster.changed == set()
    page.locator("#apply").click()
    expect(page.locator("#progress-phase .on")).to_have_text("done", timeout=180_000)
    assert cluster.changed == first
    expect(page.locator("#undo-preview")).to_contain_text("Undo restores")
    page.locator("#undo").click()
    expect(page.locator("#progress-phase .on")).to_have_text("restored", timeout=180_000)
    assert cluster.changed == set()
    assert cluster.ledger(CLUSTER)[0].action == "undone"


def test_a_stage_of_low_confidence_is_not_chosen_until_somebody_chooses_it(page: "Page", servers: ExitStack) -> None:
    from playwright.sync_api import expect  # noqa: PLC0415

    profiles = make_profiles()
    plan = make_plan(profiles)
    likely_to_wake = tuple(
        replace(item, confidence=0.11, risk_level=RiskLevel.HIGH) if item.kind is RecommendationKind.RECLAIM else item
        for item in plan.recommendations
    )
    cluster = EmbeddedCluster(profiles, (seal_plan(replace(plan, recommendations=likely_to_wake)),))
    address = servers.enter_context(served(replace(make_views(with_past=False)[0], plans=cluster, rollouts=cluster)))
    page.goto(f"{address}plan")
    boxes = page.locator(".stage .tick input")
    expect(page.locator(".stage .confidence.low")).to_have_text("confidence 11 %")
    expect(page.locator("#approve")).to_have_text("Approve 4 stages")
    assert [box.is_checked() for box in boxes.all()] == [False, True, True, True, True]
    boxes.first.check()
    expect(page.locator("#approve")).to_have_text("Approve 5 stages")
    page.wait_for_url("**stages=1*")
    page.reload()
    expect(page.locator("#approve")).to_have_text("Approve 5 stages")
    boxes.first.uncheck()
    page.wait_for_url("**/plan")
    page.locator("#approve").click()
    expect(page.locator("#plan-message")).to_contain_text("stages 2, 3, 4, 5")


def test_row_of_a_diff_is_closed_and_shows_both_sides_once_it_is_opened_by_key(
    page: "Page", running: tuple[str, EmbeddedCluster]
) -> None:
    from playwright.sync_api import expect  # noqa: PLC0415

    address, cluster = running
    page.goto(f"{address}plan")
    stage = page.locator(".stage").nth(1)
    button = stage.get_by_role("button", name="Diff")
    expect(button).to_have_attribute("aria-expanded", "false")
    button.click()
    row = stage.locator(".diff").first
    expect(row).to_be_visible()
    expect(button).to_have_attribute("aria-expanded", "true")
    assert "nvidia.com/gpumem" not in page.content()
    row.locator("summary").focus()
    page.keyboard.press("Enter")
    expect(row.get_by_role("region", name="Before")).to_have_text(re.compile(r"^ {2}spec:\n {4}replicas: 2\n"))
    after = row.get_by_role("region", name="After")
    expect(after.locator("ins")).to_contain_text("+       nvidia.com/gpumem: 8192")
    assert after.evaluate("(side) => side.querySelectorAll('*').length") == 1
    page.locator("#preview").click()
    expect(page.locator("#preview-answer .diff")).to_have_count(len(cluster.plans(CLUSTER)[0].plan.recommendations))
    button.click()
    expect(row).to_have_count(0)
    expect(button).to_have_attribute("aria-expanded", "false")


@pytest.mark.parametrize("width", [1440, 390])
def test_segment_of_the_state_bar_is_as_wide_as_its_share_of_the_cards(
    page: "Page", servers: ExitStack, width: int
) -> None:
    views, _ = make_views(with_past=False)
    counts = {CardState.BUSY: 1100, CardState.LOW_USE: 300, CardState.UNTRUSTED: 4, CardState.IDLE_HELD: 1}
    profiles = make_profiles()
    states = [state for state, count in counts.items() for _ in range(count)]
    assert len(profiles.cards) >= len(states)
    cards = tuple(replace(card, state=state) for card, state in zip(profiles.cards, states, strict=False))
    views = replace(views, fleet=EmbeddedFleet(replace(profiles, cards=cards)))
    address = servers.enter_context(served(views))
    page.set_viewport_size({"width": width, "height": 900})
    page.goto(address)
    bar = page.locator("#state-shares")
    bar.wait_for()
    all_px = bar.evaluate("(it) => it.getBoundingClientRect().width")
    for state, count in counts.items():
        name = state.value.replace("_", "-")
        drawn = bar.locator(f".{name}").evaluate("(it) => it.getBoundingClientRect().width")
        # Gaps, and the two pixels that keep the least visible, are all that may be amiss.
        assert abs(drawn - all_px * count / len(states)) <= 6, (state, drawn)
        assert drawn >= 2, (state, drawn)
        assert page.locator(f"#state-bar .{name}").is_visible()
    assert page.locator("#state-bar").inner_text().split("\n") == [
        "B busy 78 %", "H idle, held 0.1 %", "L low use 21 %", "? untrusted 0.3 %",
    ]  # fmt: skip


def test_light_and_dark_are_kept(page: "Page", running: tuple[str, EmbeddedCluster]) -> None:
    from playwright.sync_api import expect  # noqa: PLC0415

    address, _ = running
    page.goto(address)
    light = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.locator("#theme").click()
    page.reload()
    expect(page.locator("#theme")).to_be_visible()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != light


def test_cost_is_cut_by_a_click_and_by_a_drag_and_the_address_says_so(
    page: "Page", running: tuple[str, EmbeddedCluster]
) -> None:
    from playwright.sync_api import expect  # noqa: PLC0415

    address, _ = running
    page.goto(f"{address}cost?range=28d&by=model")
    rows = page.locator(".teams tbody tr")
    expect(page.locator("#cost-days .main-svg").first).to_be_visible()
    whole = rows.last.locator("td").nth(7).inner_text()
    model = rows.first.locator("a").inner_text()
    rows.first.locator("a").click()
    expect(page.locator(".chosen .chip")).to_contain_text(model)
    expect(page.locator(".segments.by a.on")).to_have_text("node")
    part = rows.last.locator("td").nth(7).inner_text()
    assert float(part.replace(",", "")) < float(whole.replace(",", ""))
    page.locator(".chosen .chip").click()
    expect(rows.last.locator("td").nth(7)).to_have_text(whole)
    box = page.locator("#cost-days .nsewdrag").bounding_box()
    assert box is not None
    middle = box["y"] + box["height"] / 2

    def dragged() -> bool:
        """Drag; a figure that is being drawn again just then does not see it."""
        page.mouse.move(box["x"] + 0.4 * box["width"], middle)
        page.mouse.down()
        page.mouse.move(box["x"] + 0.6 * box["width"], middle, steps=8)
        page.mouse.up()
        page.wait_for_timeout(2000)
        return "since=" in page.url

    assert any(dragged() for _ in range(5))
    expect(rows.last.locator("td").nth(7)).not_to_have_text(whole)
    page.reload()
    expect(rows.last.locator("td").nth(7)).not_to_have_text(whole)
    page.get_by_text("show the whole range").click()
    expect(rows.last.locator("td").nth(7)).to_have_text(whole)


def test_first_page_loads_no_charting_library_and_its_map_is_read_by_keyboard(
    page: "Page", running: tuple[str, EmbeddedCluster]
) -> None:
    from playwright.sync_api import expect  # noqa: PLC0415

    address, _ = running
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(address)
    stand, tip = page.locator("#card-map .drawn-stand"), page.locator("#card-map .drawn-tip")
    expect(page.locator("#card-map .cross")).to_have_count(1)
    expect(page.locator("#cards-grid .grid-row").first).to_be_visible()
    stand.focus()
    expect(tip).to_contain_text("GPU-")
    first = tip.inner_text()
    page.keyboard.press("ArrowRight")
    expect(tip).not_to_have_text(first)
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowLeft")
    expect(tip).to_have_text(first)
    page.keyboard.press("Enter")
    expect(page.locator("#side .uuid")).to_have_text(first.splitlines()[0])
    hours = page.locator("#over-time")
    hours.locator(".drawn-stand").focus()
    page.keyboard.press("End")
    expect(hours.locator(".drawn-tip")).to_contain_text("23:00")
    assert not [url for url in asked if "plotly" in url.lower() or "async-graph" in url]


def test_table_is_moved_in_by_keyboard_and_filtered_by_a_comparison(
    page: "Page", running: tuple[str, EmbeddedCluster]
) -> None:
    from playwright.sync_api import expect  # noqa: PLC0415

    address, _ = running
    page.goto(address)
    grid = page.locator("#cards-grid")
    grid.locator("[data-row='0'] [data-col=node]").focus()
    page.keyboard.press("Control+End")
    last = grid.locator(".grid-row").last.locator("[data-col=price_per_week]")
    expect(last).to_be_focused()
    expect(last).not_to_be_empty()
    page.keyboard.press("Control+Home")
    expect(grid.locator("[data-row='0'] [data-col=node]")).to_be_focused()
    page.keyboard.press("ArrowUp")
    page.keyboard.type("a10-")
    expect(grid.locator(".grid-said")).to_have_text("576 rows")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("Enter")
    expect(grid.locator("[aria-sort=ascending]")).to_have_text("node")
    loads = grid.get_by_label("filter: compute p95")
    loads.fill(">90")
    expect(grid.locator(".grid-said")).not_to_have_text("576 rows")
    shown = [int(text.rstrip("%")) for text in grid.locator(".grid-row [data-col=compute_p95]").all_inner_texts()]
    assert shown
    assert min(shown) >= 90
    loads.fill("much")
    expect(grid.locator(".grid-said")).to_contain_text("Not a filter for numbers: much")
