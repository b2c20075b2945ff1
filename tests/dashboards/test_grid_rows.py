"""Pages of a large table: sorted, filtered and bounded on the server, whatever a browser asks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dashboards.view_models.grid_rows import PAGE_ROWS_MAX, GridColumn, GridRows
from dashboards.view_models.rows import card_table, workload_table
from fleet.errors import Refused
from fleet.inventory import WorkloadId
from fleet.profiles import Profiles
from tests.dashboards.embedded import HOSTILE, PRICES, make_profiles

ITEMS: list[tuple[str | None, float | None]] = [
    ("Beta", 0.5), ("alpha", None), (HOSTILE, 0.9), (None, 0.1), ("beta", 0.5), ("Gamma\u202e\n", 0.0)
]  # fmt: skip


@pytest.fixture(scope="module")
def profiles() -> Profiles:
    return make_profiles()


def the_rows(items: list[tuple[str | None, float | None]] | None = None) -> GridRows[tuple[str | None, float | None]]:
    return GridRows(
        ITEMS if items is None else items,
        (
            GridColumn(field="name", value=lambda item: item[0]),
            GridColumn(field="load", value=lambda item: item[1], is_number=True),
            GridColumn(field="share", value=lambda item: item[1], is_ratio=True),
        ),
    )


def names(request: dict[str, Any]) -> list[str | None]:
    return [row["name"] for row in the_rows().page({"first": 0, "count": 100, **request})["rows"]]


def test_page_is_a_part_of_all_that_pass_and_says_how_many_do() -> None:
    answer = the_rows().page({"first": 1, "count": 2, "filters": {}, "sorts": []})
    assert [row["name"] for row in answer["rows"]] == ["alpha", HOSTILE]
    assert answer["count"] == len(ITEMS)
    assert the_rows().page({"first": 90, "count": 9}) == {"rows": [], "count": len(ITEMS)}


def test_one_answer_is_bounded_whatever_is_asked(profiles: Profiles) -> None:
    table = card_table(profiles, PRICES)
    assert len(table) > PAGE_ROWS_MAX
    assert len(table.page({"first": 0, "count": 2**30})["rows"]) == PAGE_ROWS_MAX


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (" ETA ", ["Beta", "beta"]),
        ("=BETA", ["Beta", "beta"]),
        ("=bet", []),
        (HOSTILE[1:], [HOSTILE]),
        (".*", []),
        ("", [name for name, _ in ITEMS]),
    ],
)
def test_text_filter_compares_without_case_and_runs_nothing(text: str, expected: list[str | None]) -> None:
    assert names({"filters": {"name": text}}) == expected


@pytest.mark.parametrize(
    ("field", "text", "expected"),
    [
        ("load", ">0.4", ["Beta", HOSTILE, "beta"]),
        ("load", "<= 0.1", [None, "Gamma\u202e\n"]),
        ("load", "0.1..0.6", ["Beta", None, "beta"]),
        ("load", "<0", []),
        ("load", "0.5", ["Beta", "beta"]),
        ("load", "=1", ["Beta", HOSTILE, "beta"]),
        ("share", ">=50 %", ["Beta", HOSTILE, "beta"]),
        ("share", "10", [None]),
    ],
)
def test_number_that_was_not_collected_passes_no_comparison(field: str, text: str, expected: list[str | None]) -> None:
    assert names({"filters": {field: text}}) == expected


@pytest.mark.parametrize("text", ["many", ">", "1..", "1e9", "nan", "..", "9" * 16, "٣"])
def test_what_is_no_number_is_said_to_be_none(text: str) -> None:
    with pytest.raises(Refused, match="Not a filter for numbers"):
        the_rows().page({"filters": {"load": text}})


def test_filters_of_two_columns_must_both_pass() -> None:
    assert names({"filters": {"name": "a", "load": ">=0.5"}}) == ["Beta", HOSTILE, "beta"]


@given(st.lists(st.tuples(st.none() | st.text(max_size=3), st.none() | st.floats(-1, 1)), max_size=30), st.booleans())
def test_sort_is_stable_and_what_was_not_collected_comes_last(items: Any, is_down: bool) -> None:
    rows = the_rows(items)
    for field, place in (("name", 0), ("load", 1)):
        asked = {"sorts": [[field, "desc" if is_down else "asc"]]}
        found = [items[int(at)] for at in rows.chosen(asked)]
        values = [item[place].lower() if place == 0 and item[0] is not None else item[place] for item in found]
        known = [value for value in values if value is not None]
        assert known == sorted(known, reverse=is_down)
        assert values == known + [None] * (len(values) - len(known))
        same = [item for item in items if item[place] is None]
        assert found[len(known) :] == same


@pytest.mark.parametrize(
    "request_",
    [
        {"first": -1},
        {"first": "0; DROP"},
        {"first": True},
        {"count": 1e9},
        {"filters": {"__class__": "x"}},
        {"filters": [1]},
        {"filters": {"name": 7}},
        {"filters": {"name": "x" * 513}},
        {"filters": {"name": {"$ne": 1}}},
        {"sorts": [["no such column", "asc"]]},
        {"sorts": "name"},
        {"sorts": [7]},
        {"sorts": [["name", "asc"]] * 5},
    ],
)
def test_request_that_is_none_of_the_grid_is_refused(request_: dict[str, Any]) -> None:
    with pytest.raises(Refused, match="cannot"):
        the_rows().page(request_)


def test_rows_that_are_not_meant_are_in_no_page() -> None:
    rows = the_rows()
    among = rows.where("name", ("Beta", "beta"))
    answer = rows.page({"sorts": [["load", "desc"]], "filters": {"load": ">0"}}, among=among)
    assert [row["name"] for row in answer["rows"]] == ["Beta", "beta"]
    assert answer["count"] == 2


def test_every_column_of_both_tables_can_be_sorted_and_shown(profiles: Profiles) -> None:
    hostile = replace(profiles.workloads[0], workload=WorkloadId(f"team-3/Deployment/{HOSTILE}"))
    changed = replace(profiles, workloads=(hostile, *profiles.workloads[1:]))
    for table in (card_table(changed, PRICES), workload_table(changed)):
        for field in table.row(0):
            assert len(table.chosen({"sorts": [[field, "asc"]]})) == len(table)
    found = workload_table(changed).page({"filters": {"workload": HOSTILE[1:]}, "sorts": []})
    named = {profile.workload for profile in changed.workloads if HOSTILE in profile.workload}
    assert {row["workload"] for row in found["rows"]} == named >= {hostile.workload}
