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
        ),
    )


def names(request: dict[str, Any]) -> list[str | None]:
    return [row["name"] for row in the_rows().page({"startRow": 0, "endRow": 100, **request})["rowData"]]


def text_filter(kind: str, text: object) -> dict[str, Any]:
    return {"filterModel": {"name": {"filterType": "text", "type": kind, "filter": text}}}


def test_page_is_a_part_of_all_that_pass_and_says_how_many_do() -> None:
    answer = the_rows().page({"startRow": 1, "endRow": 3, "filterModel": {}, "sortModel": []})
    assert [row["name"] for row in answer["rowData"]] == ["alpha", HOSTILE]
    assert answer["rowCount"] == len(ITEMS)
    assert the_rows().page({"startRow": 90, "endRow": 99}) == {"rowData": [], "rowCount": len(ITEMS)}


def test_one_answer_is_bounded_whatever_is_asked(profiles: Profiles) -> None:
    table = card_table(profiles, PRICES)
    assert len(table) > PAGE_ROWS_MAX
    assert len(table.page({"startRow": 0, "endRow": 2**30})["rowData"]) == PAGE_ROWS_MAX


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        ("contains", "ETA", ["Beta", "beta"]),
        ("notContains", "eta", ["alpha", HOSTILE, None, "Gamma\u202e\n"]),
        ("equals", "BETA", ["Beta", "beta"]),
        ("notEqual", "beta", ["alpha", HOSTILE, None, "Gamma\u202e\n"]),
        ("startsWith", "=cmd|", [HOSTILE]),
        ("endsWith", "onerror=alert(1)>", [HOSTILE]),
        ("blank", None, [None]),
        ("contains", ".*", []),
    ],
)
def test_text_filter_compares_without_case_and_runs_nothing(kind: str, text: object, expected: list[str]) -> None:
    assert names(text_filter(kind, text)) == expected


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ({"type": "greaterThan", "filter": 0.4}, ["Beta", HOSTILE, "beta"]),
        ({"type": "lessThanOrEqual", "filter": 0.1}, [None, "Gamma\u202e\n"]),
        ({"type": "inRange", "filter": 0.0, "filterTo": 0.6}, ["Beta", None, "beta"]),
        ({"type": "notEqual", "filter": 0.5}, [HOSTILE, None, "Gamma\u202e\n"]),
        ({"type": "blank"}, ["alpha"]),
    ],
)
def test_number_that_was_not_collected_passes_no_comparison(condition: dict[str, Any], expected: list[str]) -> None:
    assert names({"filterModel": {"load": {"filterType": "number", **condition}}}) == expected


def test_two_conditions_are_joined_as_the_grid_says() -> None:
    both = [{"type": "contains", "filter": "a"}, {"type": "startsWith", "filter": "b"}]
    assert names({"filterModel": {"name": {"operator": "AND", "conditions": both}}}) == ["Beta", "beta"]
    assert names({"filterModel": {"name": {"operator": "OR", "conditions": both}}}) == [
        "Beta", "alpha", HOSTILE, "beta", "Gamma\u202e\n",
    ]  # fmt: skip


@given(st.lists(st.tuples(st.none() | st.text(max_size=3), st.none() | st.floats(-1, 1)), max_size=30), st.booleans())
def test_sort_is_stable_and_what_was_not_collected_comes_last(items: Any, is_down: bool) -> None:
    rows = the_rows(items)
    for field, place in (("name", 0), ("load", 1)):
        asked = {"sortModel": [{"colId": field, "sort": "desc" if is_down else "asc"}]}
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
        {"startRow": -1},
        {"startRow": "0; DROP"},
        {"startRow": True},
        {"endRow": 1e9},
        {"filterModel": {"__class__": {"type": "contains", "filter": "x"}}},
        {"filterModel": [1]},
        {"filterModel": {"name": "x"}},
        text_filter("contains", "x" * 513),
        text_filter("contains", {"$ne": 1}),
        text_filter("evaluate", "x"),
        {"filterModel": {"name": {"operator": "OR", "conditions": [{"conditions": []}]}}},
        {"filterModel": {"name": {"conditions": [{"type": "contains", "filter": "x"}] * 9}}},
        {"filterModel": {"load": {"type": "greaterThan", "filter": "NaN"}}},
        {"filterModel": {"load": {"type": "greaterThan", "filter": float("inf")}}},
        {"sortModel": [{"colId": "no such column", "sort": "asc"}]},
        {"sortModel": "name"},
        {"sortModel": [7]},
    ],
)
def test_request_that_is_none_of_the_grid_is_refused(request_: dict[str, Any]) -> None:
    with pytest.raises(Refused, match="cannot"):
        the_rows().page(request_)


def test_rows_that_are_not_meant_are_in_no_page() -> None:
    rows = the_rows()
    among = rows.where("name", ("Beta", "beta"))
    asked = {"sortModel": [{"colId": "load", "sort": "desc"}], **text_filter("notContains", "zz")}
    answer = rows.page(asked, among=among)
    assert [row["name"] for row in answer["rowData"]] == ["Beta", "beta"]
    assert answer["rowCount"] == 2


def test_every_column_of_both_tables_can_be_sorted_and_shown(profiles: Profiles) -> None:
    hostile = replace(profiles.workloads[0], workload=WorkloadId(f"team-3/Deployment/{HOSTILE}"))
    changed = replace(profiles, workloads=(hostile, *profiles.workloads[1:]))
    for table in (card_table(changed, PRICES), workload_table(changed)):
        for field in table.row(0):
            assert len(table.chosen({"sortModel": [{"colId": field, "sort": "asc"}]})) == len(table)
    found = workload_table(changed).page(
        {"filterModel": {"workload": {"type": "contains", "filter": HOSTILE}}, "sortModel": []}
    )
    named = {profile.workload for profile in changed.workloads if HOSTILE in profile.workload}
    assert {row["workload"] for row in found["rowData"]} == named >= {hostile.workload}
