"""Each question that people bring is answered in at most two clicks from the fleet page; the clicks are counted."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.browser.conftest import PATIENCE_MS, served
from tests.dashboards.embedded import make_views

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

pytestmark = pytest.mark.browser

CLICKS_MAX = 2


class Asker:
    """Somebody who starts at the fleet page and counts their clicks."""

    def __init__(self, page: Page, address: str) -> None:
        self.page = page
        self.clicks = 0
        page.goto(address)

    def click(self, what: Locator) -> None:
        what.click()
        self.clicks += 1
        assert self.clicks <= CLICKS_MAX

    def to(self, page_name: str) -> None:
        self.click(self.page.get_by_role("navigation").get_by_role("link", name=page_name, exact=True))


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    views, _ = make_views()
    with served(views) as address:
        yield address


@pytest.fixture
def asker(browser: Browser, address: str) -> Iterator[Asker]:
    from playwright.sync_api import expect  # noqa: PLC0415

    context = browser.new_context(viewport={"width": 1440, "height": 900})
    page = context.new_page()
    page.set_default_timeout(PATIENCE_MS)
    expect.set_options(timeout=PATIENCE_MS)
    yield Asker(page, address)
    context.close()


def test_which_cards_stand_idle_whose_since_when_and_what_they_cost(asker: Asker) -> None:
    from playwright.sync_api import expect  # noqa: PLC0415

    asker.click(asker.page.locator("#state-bar .idle-held"))
    row = asker.page.locator("#cards-grid .grid-row").first
    expect(row.locator("[data-col=state_word]")).to_have_text("idle, held")
    expect(row.locator("[data-col=owner]")).to_have_text(re.compile("^team-"))
    expect(row.locator("[data-col=idle_since]")).to_have_text(re.compile(r"^2026-01-\d\d \d\d:\d\d$"))
    expect(row.locator("[data-col=price_per_week]")).to_have_text(re.compile(r"^[\d,]+$"))
    assert asker.clicks == 1


def test_who_shares_this_card_and_who_would_suffer(asker: Asker) -> None:
    from playwright.sync_api import expect  # noqa: PLC0415

    asker.click(asker.page.locator("#state-bar .busy"))
    rows = asker.page.locator("#cards-grid .grid-row")
    expect(rows.first.locator("[data-col=state_word]")).to_have_text("busy")
    asker.page.wait_for_load_state("networkidle")
    asker.click(rows.first.locator("[data-col=card]"))
    side = asker.page.locator("#side")
    expect(side.locator(".uuid")).to_contain_text("GPU-")
    expect(side.locator(".holders a").first).to_contain_text("team-")
    expect(side.locator(".suffers")).to_be_visible()


def test_what_may_be_freed_tonight_at_what_risk_and_why_this_one(asker: Asker) -> None:
    from playwright.sync_api import expect  # noqa: PLC0415

    page = asker.page
    asker.click(page.locator("#review-plan"))
    expect(page.locator(".headline")).to_contain_text("cards free")
    expect(page.locator(".plan-title")).to_contain_text("predicted harm")
    expect(page.locator(".stage .risk").first).to_contain_text("risk")
    asker.click(page.locator(".stage summary").first)
    expect(page.locator(".stage .evidence tbody td").last).not_to_be_empty()
    expect(page.locator(".stage .evidence").first).to_contain_text("why")


def test_why_not_that_one(asker: Asker) -> None:
    from playwright.sync_api import expect  # noqa: PLC0415

    page = asker.page
    asker.click(page.locator("#review-plan"))
    asker.click(page.locator(".refused summary").first)
    expect(page.locator(".refused details[open] p").first).to_contain_text(re.compile("^team-.*: ."))


def test_what_last_weeks_changes_saved_and_harmed(asker: Asker) -> None:
    from playwright.sync_api import expect  # noqa: PLC0415

    asker.to("Savings")
    expect(asker.page.locator("#weeks .main-svg").first).to_be_visible()
    expect(asker.page.locator(".headline")).to_contain_text("a week, amortised")
    expect(asker.page.locator(".harm tbody tr").first).to_contain_text("%")
    expect(asker.page.locator(".ledger tbody tr").first).not_to_be_empty()


def test_which_numbers_can_not_be_trusted(asker: Asker) -> None:
    from playwright.sync_api import expect  # noqa: PLC0415

    asker.to("Health")
    checks = asker.page.get_by_role("region", name="Unreliable counters")
    expect(checks.locator("tbody tr").first).to_contain_text("frees nothing")
    expect(asker.page.get_by_role("region", name="Coverage by node").locator("tbody tr").first).to_contain_text("%")


def test_who_uses_less_than_its_quota_and_who_wastes_most(asker: Asker) -> None:
    from playwright.sync_api import expect  # noqa: PLC0415

    asker.to("Tenants")
    expect(asker.page.locator(".headline")).to_contain_text("holds most of that")
    expect(
        asker.page.get_by_role("region", name="Card-hours of the last 7 days by team").locator("tbody tr").first
    ).to_contain_text("team-")
    quota = asker.page.get_by_role("region", name="Quotas").locator("tbody tr").first
    expect(quota.locator("td").nth(7)).to_contain_text("%")
    expect(quota.locator("td").nth(6)).to_contain_text(re.compile("[1-9]"))
