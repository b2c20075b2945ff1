"""On a telephone no page is wider than the screen: what must be wide scrolls in its own box."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dashboards.report.report import Edition, make_report
from dashboards.report.text import report_html
from fleet.words import Language
from tests.browser import test_access, test_reading
from tests.browser.test_reading import PATHS, opened
from tests.dashboards.embedded import CLUSTER, NOW, PRICES, make_measured, make_profiles, make_views

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.browser

WIDTH_PX = 390


@pytest.fixture(scope="module")
def house() -> Iterator[test_reading.House]:
    found = test_reading.House()
    yield found
    found.server.close()


@pytest.fixture
def telephone(page: Page) -> Page:
    page.set_viewport_size({"width": WIDTH_PX, "height": 844})
    return page


def width_of(page: Page) -> int:
    found: int = page.evaluate("document.documentElement.scrollWidth")
    return found


@pytest.mark.parametrize("language", ["en", "zh"])
def test_no_page_scrolls_sideways(telephone: Page, house: test_reading.House, language: str) -> None:
    profiles = house.profiles
    workloads = [f"/workloads?w={item.workload}" for item in (*profiles.workloads[:2], profiles.workloads[-1])]
    found: dict[str, int] = {}
    for path in (*PATHS, *workloads, *(f"{page}?card={profiles.cards[0].card}" for page in ("/", "/card"))):
        opened(telephone, house.at(path + ("&" if "?" in path else "?") + f"lang={language}"))
        found[path[:60]] = width_of(telephone)
    assert {path: width for path, width in found.items() if width > WIDTH_PX} == {}


@pytest.mark.parametrize("language", ["en", "zh"])
def test_opened_diff_and_preview_and_evidence_do_not_scroll_the_page_sideways(
    telephone: Page, house: test_reading.House, language: str
) -> None:
    from playwright.sync_api import expect  # noqa: PLC0415

    opened(telephone, house.at(f"/plan?lang={language}"))
    stage = telephone.locator(".stage").nth(1)
    stage.locator(".stage-line button").click()
    telephone.locator("#preview").click()
    for answer in (stage, telephone.locator("#preview-answer")):
        answer.locator(".diff summary").first.click()
        expect(answer.locator("pre")).to_have_count(2)
    stage.locator("details summary").last.click()
    assert width_of(telephone) == WIDTH_PX


def test_way_in_and_out_does_not_scroll_sideways(browser: Browser, tmp_path: Path) -> None:
    house = test_access.House(tmp_path)
    # A context of its own: the browser logs the answer 401 as an error.
    context = browser.new_context(viewport={"width": WIDTH_PX, "height": 844})
    telephone = context.new_page()
    try:
        telephone.goto(house.at("/plan"))
        assert width_of(telephone) == WIDTH_PX
        test_access.sign_in(telephone, "team")
        telephone.locator("#reader").wait_for()
        telephone.goto(house.at("/savings"))
        telephone.get_by_role("alert").wait_for()
        assert width_of(telephone) == WIDTH_PX
        telephone.locator("#reader summary").click()
        assert width_of(telephone) == WIDTH_PX
        telephone.get_by_role("button", name="Sign out").click()
        telephone.get_by_text("You are signed out").wait_for()
        assert width_of(telephone) == WIDTH_PX
    finally:
        context.close()
        house.stop()


@pytest.mark.parametrize("language", list(Language))
def test_report_does_not_scroll_sideways(telephone: Page, language: Language) -> None:
    views, _ = make_views()
    report = make_report(
        make_profiles(),
        views.plans.plans(CLUSTER),
        views.outcomes.outcomes(CLUSTER),
        views.outcomes.ledger(CLUSTER),
        now=NOW,
        prices=PRICES,
        edition=Edition(language=language, measured=make_measured(make_profiles())),
    )
    telephone.set_content(report_html(report))
    assert width_of(telephone) == WIDTH_PX
