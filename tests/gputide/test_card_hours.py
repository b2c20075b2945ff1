"""Card hours add up: fleet page, tenants page, `cost`, report, API and exporter show the same, to the cent."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from dashboards.address import read_address
from dashboards.api.answers import week_answer
from dashboards.pages import cost as cost_page
from dashboards.pages import fleet, tenants
from dashboards.queries import Views
from dashboards.view_models.savings_series import SavingsReader
from fleet.profiles import HourMeasure
from fleet.settings.settings import Settings
from gputide.container.pages import views_of
from gputide.session import Session
from tests.gputide.conftest import Program


@pytest.fixture(scope="module")
def data(_replayed: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One data folder for all."""
    copy = tmp_path_factory.mktemp("card-hours") / "data"
    shutil.copytree(_replayed, copy)
    return copy


@pytest.fixture(scope="module")
def cost(program: Program, data: Path) -> dict[str, Any]:
    """What `gputide cost show` says of the last seven days by namespace."""
    said = program(data, "cost", "show", "--format", "json")
    assert said.status == 0, said.err
    return dict(said.document)


@pytest.fixture(scope="module")
def views(data: Path) -> Views:
    """The ports of the pages over the same data folder."""
    return views_of(Session(data_path=data, settings=Settings(), now_override=None, is_quiet=True))


def cells(part: Any, inside: str | None) -> Iterator[list[str]]:
    """Rows of the table of a rendered page that lies in a part of a class."""
    own = getattr(part, "className", None) or ""
    found = None if inside is not None and inside in own.split() else inside
    kind = type(part).__name__
    if kind == "Tr" and found is None:
        yield [text(cell) for cell in part.children]
        return
    for child in _children(part):
        yield from cells(child, found)


def text(part: Any) -> str:
    """What a part of a page shows."""
    return part if isinstance(part, str) else "".join(map(text, _children(part)))


def _children(part: Any) -> list[Any]:
    found = getattr(part, "children", None)
    return [] if found is None else list(found) if isinstance(found, list | tuple) else [found]


def number(cell: str) -> Decimal:
    return Decimal(0) if cell in ("–", "") else Decimal(cell.replace(",", ""))


def one_digit(hours: float) -> Decimal:
    return Decimal(f"{hours:.1f}")


def test_the_fleet_page_shows_the_card_hours_and_the_cost_of_the_cost_verb(views: Views, cost: dict[str, Any]) -> None:
    page = fleet.layout(views, read_address("/", ""), views.fleet.profiles(cost["cluster"]))
    rows = {row[0]: row for row in cells(page, "measures")}
    names = dict(zip(HourMeasure, list(rows)[1:], strict=False))
    total = cost["total"]["measures"]
    for measure, name in names.items():
        assert number(rows[name][1]) == one_digit(total[measure]["card_hours"])
        assert number(rows[name][3]) == Decimal(str(total[measure]["cost"] or 0))
    assert number(rows["total"][1]) == one_digit(cost["total"]["card_hours"])
    assert number(rows["total"][3]) == Decimal(str(cost["total"]["cost_allocation"]))


def test_the_tenants_and_what_nobody_was_granted_are_the_fleets_total(views: Views, cost: dict[str, Any]) -> None:
    page = tenants.layout(views, read_address("/tenants", ""), views.fleet.profiles(cost["cluster"]))
    heading, *rows = cells(page, "teams")
    cost_of, hours_of = heading.index(cost["currency"]), heading.index("card-hours")
    *teams, rest, total = rows
    assert sum(number(row[cost_of]) for row in (*teams, rest)) == number(total[cost_of])
    assert number(total[cost_of]) == Decimal(str(cost["total"]["cost_allocation"]))
    assert number(total[hours_of]) == one_digit(cost["total"]["card_hours"])
    shown = {row["name"]: row["card_hours"] for row in cost["rows"]}
    assert {row[0]: number(row[hours_of]) for row in teams} == {name: one_digit(shown[name]) for name in shown}
    for place, measure in enumerate(HourMeasure, start=3):
        assert number(total[place]) == one_digit(cost["total"]["measures"][measure]["card_hours"])


def test_the_cost_page_shows_the_amounts_of_the_cost_verb(
    views: Views, cost: dict[str, Any], program: Program, data: Path
) -> None:
    page = cost_page.layout(views, read_address("/cost", "?range=all"), views.fleet.profiles(cost["cluster"]))
    heading, *rows = cells(page, "teams")
    all_days = views.money.cost_days(cost["cluster"], is_quarter=True)
    assert all_days is not None
    since, until = (moment.isoformat() for moment in (all_days.starts[0], all_days.until))
    said = program(
        data, "cost", "show", "--by", "team", "--since", since, "--until", until, "--format", "json"
    ).document  # fmt: skip
    cost_of, hours_of = heading.index(cost["currency"]), heading.index("card-hours")
    assert number(rows[-1][cost_of]) == Decimal(str(said["total"]["cost_allocation"]))
    shown = {row[0]: (number(row[hours_of]), number(row[cost_of])) for row in rows[:-1]}
    for team in said["rows"]:
        assert shown[team["name"]][0] == one_digit(team["card_hours"])
        assert shown[team["name"]][1] == pytest.approx(Decimal(str(team["cost_allocation"] or 0)), abs=Decimal("0.01"))


def test_report_api_and_exporter_sum_to_the_same(
    views: Views, cost: dict[str, Any], program: Program, data: Path
) -> None:
    total = cost["total"]["measures"]
    wasted = (HourMeasure.UNALLOCATED, HourMeasure.IDLE, HourMeasure.IDLE_HELD)
    report = program(data, "report", "-f", "json").document
    assert report["week"]["idle_gpu_hours"] == pytest.approx(sum(total[one]["card_hours"] for one in wasted), abs=0.06)
    costs = sum(Decimal(str(total[one]["cost"] or 0)) for one in wasted)
    assert Decimal(report["week"]["wasted_per_week"]) == pytest.approx(costs, abs=Decimal("0.02"))
    for measure in (HourMeasure.IDLE, HourMeasure.IDLE_HELD, HourMeasure.UNUSED, HourMeasure.USED):
        of_teams = sum(line["tenant"]["measures"][measure]["card_hours"] for line in report["teams"])
        assert of_teams == pytest.approx(total[measure]["card_hours"])
    week = views.money.week(cost["cluster"])
    assert week is not None
    answer = week_answer(week)
    reading = SavingsReader(views, off_peak_ratio=0.2).read(1.0)
    assert reading is not None
    (hours,) = [one for one in reading.families if one.name == "gputide_week_card_hours"]
    for measure in HourMeasure:
        assert answer["total"][measure]["card_hours"] == pytest.approx(total[measure]["card_hours"])
        exported = sum(
            value for labels, value in zip(hours.labels, hours.values, strict=True) if labels[2] == measure.value
        )
        assert exported == pytest.approx(total[measure]["card_hours"])


def test_every_measure_that_the_synthetic_fleet_holds_is_found(cost: dict[str, Any]) -> None:
    total = cost["total"]["measures"]
    for measure in (HourMeasure.UNALLOCATED, HourMeasure.IDLE_HELD, HourMeasure.UNUSED, HourMeasure.USED):
        assert total[measure]["card_hours"] > 24
    assert sum(part["card_hours"] for part in total.values()) == pytest.approx(cost["total"]["card_hours"])
