"""A long list, a part at a time."""

from __future__ import annotations

import json

import pytest
from plotly.utils import PlotlyJSONEncoder

from dashboards.address import Address, read_address
from dashboards.long_list import ROWS_MAX, part_of

ROWS = tuple(range(2 * ROWS_MAX + 7))


def at(text: str | None) -> Address:
    return read_address("/tenants", "?cluster=a" + ("" if text is None else f"&from={text}"))


def hrefs(links: object) -> list[str]:
    found = json.loads(json.dumps(links, cls=PlotlyJSONEncoder))
    return [part["props"]["href"] for part in found["props"]["children"] if part != " " and "href" in part["props"]]


def test_parts_together_are_the_whole_list() -> None:
    seen: list[int] = []
    address = at(None)
    while True:
        shown, links = part_of(ROWS, address)
        seen += shown
        onward = [href for href in hrefs(links) if href.startswith("/tenants?cluster=a&from=")]
        onward = [href for href in onward if int(href.rpartition("=")[2]) == len(seen)]
        if not onward:
            break
        address = read_address("/tenants", onward[0].partition("?")[2])
    assert tuple(seen) == ROWS


def test_links_lead_back_and_keep_what_the_address_says() -> None:
    _, links = part_of(ROWS, at(str(2 * ROWS_MAX)))
    assert hrefs(links) == [f"/tenants?cluster=a&from={ROWS_MAX}"]
    _, links = part_of(ROWS, at(str(ROWS_MAX)))
    assert hrefs(links)[0] == "/tenants?cluster=a"


@pytest.mark.parametrize("text", ["-1", "x", "1e3", "٣", "9" * 40, str(len(ROWS)), ""])
def test_row_that_is_none_means_the_beginning(text: str) -> None:
    assert tuple(part_of(ROWS, at(text))[0]) == ROWS[:ROWS_MAX]


def test_short_list_has_no_links() -> None:
    assert part_of(ROWS[:ROWS_MAX], at("60")) == (ROWS[:ROWS_MAX], None)
