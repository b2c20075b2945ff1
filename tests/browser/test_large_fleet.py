"""A hundred thousand cards in a browser: a card is two clicks away, and the table holds a screenful at a time."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from fleet.profiles import Profiles
from tests.browser.conftest import served
from tests.dashboards.embedded import CLUSTER, make_views

if TYPE_CHECKING:
    from playwright.sync_api import Page, Response

pytestmark = pytest.mark.browser

SCALE = 66
ANSWER_BYTES_MAX = 400_000
"""No answer grows with the fleet."""


@pytest.fixture(scope="module")
def large() -> Iterator[tuple[str, Profiles]]:
    views, _ = make_views(with_past=False, scale=SCALE)
    with served(views) as address:
        yield address, views.fleet.profiles(CLUSTER)


def test_one_card_of_100_000_is_two_clicks_away_and_its_address_leads_back(
    page: Page, large: tuple[str, Profiles]
) -> None:
    from playwright.sync_api import expect  # noqa: PLC0415

    address, profiles = large
    assert len(profiles.cards) > 100_000
    long: list[int] = []
    page.on("response", lambda answer: long.append(length_of(answer)))
    page.goto(address)
    expect(page.locator(".headline")).to_contain_text(f"{len(profiles.cards):,}")
    expect(page.locator("#card-map path").first).to_be_visible()
    page.locator("#card-map svg").click(position={"x": 12, "y": 46})
    expect(page).to_have_url(re.compile(r"[?&]group="))
    expect(page.locator(".map .back")).to_be_visible()
    inside = page.locator(".map p.soft").inner_text()
    expect(page.locator("#card-map path").first).to_be_visible()
    page.locator("#card-map svg").click(position={"x": 8, "y": 26})
    uuid = page.locator("#side .uuid")
    expect(uuid).to_contain_text("GPU-")
    name = uuid.inner_text()
    found = next(card for card in profiles.cards if card.card == name)
    assert found.card_model in inside
    page.reload()
    expect(page.locator("#side .uuid")).to_have_text(name)
    expect(page.locator(".map p.soft")).to_have_text(inside)
    page.locator(".map .back").click()
    expect(page).not_to_have_url(re.compile("group="))
    assert max(long) < ANSWER_BYTES_MAX


def test_table_of_100_000_rows_is_filtered_sorted_and_scrolled_on_the_server(
    page: Page, large: tuple[str, Profiles]
) -> None:
    from playwright.sync_api import expect  # noqa: PLC0415

    address, profiles = large
    long: list[int] = []
    page.on("response", lambda answer: long.append(length_of(answer)))
    page.goto(f"{address}?state=low_use")
    loads = page.locator("#cards-grid .grid-row [data-col=compute_p95]")
    states = page.locator("#cards-grid .grid-row [data-col=state_word]")
    expect(states.first).to_have_text("low use")
    page.locator("#cards-grid [role=columnheader][data-col=compute_p95] button").click()
    low = [card for card in profiles.cards if card.state.value == "low_use"]
    least = min(card.compute_p95 or 0.0 for card in low)
    expect(page.locator("#cards-grid .grid-row[data-row='0'] [data-col=compute_p95]")).to_have_text(f"{least:.0%}")
    page.locator("#cards-grid .grid-view").evaluate("(view) => view.scrollTo(0, 200000)")
    expect(page.locator("#cards-grid .grid-row[data-row='5000']").or_(loads.first)).to_be_visible()
    expect(states.last).to_have_text("low use")
    page.locator("#cards-grid .grid-line input").first.fill(low[7].node)
    expect(page.locator("#cards-grid .grid-row[data-row='0'] [data-col=node]")).to_have_text(low[7].node)
    assert max(long) < ANSWER_BYTES_MAX


def length_of(answer: Response) -> int:
    """Bytes of a callback's answer, unpacked; 0 for whatever else."""
    return len(answer.body()) if "_dash-update-component" in answer.url else 0
