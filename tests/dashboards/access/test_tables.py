"""Rows of the large tables, asked for as the grid asks: nobody is shown a row that they may not see, by any filter."""

from __future__ import annotations

import re
from typing import Any

import pytest

from dashboards.pages.frame import GRID_PATH
from dashboards.view_models.grid_rows import PAGE_ROWS_MAX
from tests.dashboards.access.keys import HOST, bearer
from tests.dashboards.access.test_matrix import REACHES, WHOLE, World, a_world, names_of_others
from tests.dashboards.embedded import CLUSTER

GRIDS = {"cards-grid": "/", "workloads-grid": "/workloads"}
MODELS: tuple[dict[str, Any], ...] = (
    {},
    {"filters": {"workload": "team-5"}},
    {"filters": {"workload": "", "coverage_ratio": ">=0"}},
    {"sorts": [["workload", "desc"]]},
)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return a_world(tmp_path_factory.mktemp("tables"), fresh=False)


def state_of(search: str, path: str) -> list[dict[str, Any]]:
    return [
        {"id": "address", "property": "pathname", "value": path},
        {"id": "address", "property": "search", "value": search},
    ]


def rows(world: World, grid: str, headers: dict[str, str], request: object, search: str = "") -> Any:
    body = {**request, "search": search} if isinstance(request, dict) else request
    return world.client.post(GRID_PATH + grid.removesuffix("-grid"), json=body, headers={**HOST, **headers})


def csv(world: World, grid: str, headers: dict[str, str], search: str = "") -> Any:
    name = grid.removesuffix("-grid")
    body = {
        "output": f"{name}-download.data",
        "outputs": {"id": f"{name}-download", "property": "data"},
        "inputs": [{"id": f"{name}-csv", "property": "n_clicks", "value": 1}],
        "state": [{"id": f"{name}-asked", "property": "data", "value": None}, *state_of(search, GRIDS[grid])],
        "changedPropIds": [f"{name}-csv.n_clicks"],
    }
    return world.client.post("/_dash-update-component", json=body, headers={**HOST, **headers})


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("reach", [reach for reach in REACHES if reach not in WHOLE])
def test_no_filter_sort_or_file_shows_a_row_of_somebody_else(world: World, grid: str, reach: str) -> None:
    headers = bearer(f"viewer-{reach}")
    answers = [
        rows(world, grid, headers, {"first": 0, "count": PAGE_ROWS_MAX, **model}, search)
        for model in MODELS
        for search in ("", f"?cluster={CLUSTER}", "?team=team-5", "?group=node-1")
    ]
    if reach == "team":
        answers.append(csv(world, grid, headers))
    words = {word for answer in answers for word in re.findall(r"[\w.-]+", answer.get_data(as_text=True))}
    assert not words & names_of_others()
    if reach == "team":
        assert answers[0].get_json()["count"] > 0


def test_who_may_see_the_cluster_gets_every_row(world: World) -> None:
    profiles = world.views.fleet.profiles(CLUSTER)
    for grid, count in (("cards-grid", len(profiles.cards)), ("workloads-grid", len(profiles.workloads))):
        found = rows(world, grid, bearer("viewer-everything"), {"first": 0, "count": 100}).get_json()
        assert found["count"] == count
        assert found["said"] == f"{count:,} rows"


@pytest.mark.parametrize("grid", GRIDS)
def test_rows_are_given_to_nobody_without_a_name(world: World, grid: str) -> None:
    assert rows(world, grid, {}, {"first": 0, "count": 100}).status_code == 401


@pytest.mark.parametrize(
    "request_", [{"first": "x"}, {"filters": {"card": 1}}, {"sorts": [None]}, {"filters": {"held_gib": "<b>"}}]
)
def test_request_that_is_none_gets_no_rows_and_no_trace_of_a_fault(world: World, request_: object) -> None:
    answer = rows(world, "cards-grid", bearer("viewer-everything"), request_)
    assert answer.status_code == 200
    found = answer.get_json()
    assert found["rows"] == []
    assert found["count"] == 0
    assert found["said"]


@pytest.mark.parametrize("body", ["7", "[]", "{", "[" * 100_000, '{"search": 7}', '{"search": "?cluster=elsewhere"}'])
def test_body_that_names_no_rows_gets_the_first_or_none(world: World, body: str) -> None:
    headers = {**HOST, **bearer("viewer-team")}
    answer = world.client.post(f"{GRID_PATH}cards", data=body, content_type="application/json", headers=headers)
    assert answer.status_code == 200
    words = set(re.findall(r"[\w.-]+", answer.get_data(as_text=True)))
    assert not words & names_of_others()
