"""Prices bound to a node, a label, a cluster and days: whatever shows money asks one book, card by card and hour."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dashboards.access.sign_in import Ways
from dashboards.address import read_address
from dashboards.notify.news import News
from dashboards.pages import fleet as fleet_page
from dashboards.pages import tenants as tenants_page
from dashboards.queries import Views
from dashboards.view_models.rows import card_table, money_words
from dashboards.view_models.savings_series import SavingsReader
from dashboards.view_models.tenants import tenants
from fleet.data_folder import open_data_folder
from fleet.inventory import Card
from fleet.money.week_hours import WASTED
from fleet.schema import INVENTORY_NODES
from fleet.settings.notify import NoticeTopic
from fleet.settings.price_book import with_price_book
from fleet.settings.settings import Settings
from gputide.container.pages import views_of
from gputide.container.warehouse import warehouse
from gputide.session import Session
from pipeline.warehouse.ddl import arrow_schema
from pipeline.warehouse.warehouse import AppendName, Part
from pipeline.warehouse.warehouse_duckdb import DuckdbWarehouse
from tests.dashboards.access.keys import HOST, an_app
from tests.gputide.conftest import Program

NOW = datetime(2026, 1, 14, tzinfo=UTC)
TWELFTH = ("--since", "2026-01-12", "--until", "2026-01-13")
THIRTEENTH = ("--since", "2026-01-13", "--until", "2026-01-14")
WEEK_HOURS = 168


class Priced:
    """A data folder whose book prices four nodes apart, and what each card costs by that."""

    def __init__(self, data: Path, program: Program) -> None:
        self.data = data
        self._program = program
        self.cards = warehouse(open_data_folder(data, create=False), Settings()).inventory("demo", as_of=NOW).cards
        self.labelled, self.named, self.ended, self.begun = [
            name for name, _ in Counter(card.node for card in self.cards).most_common(4)
        ]
        _label(data, self.labelled)
        self.set("2", "--cluster", "demo")
        self.set("90", "--cluster", "another")
        self.set("5", "--node-label", "pool=reserved")
        self.set("0.77", "--node", self.named)
        self.set("31", "--node", self.ended, "--since", "2026-01-01", "--until", "2026-01-13")
        self.set("3.25", "--node", self.begun, "--since", "2026-01-13")

    def set(self, price: str, *where: str) -> None:
        """Set a price with the verb."""
        said = self._program(self.data, "cost", "prices", "set", "any", f"{price} USD", *where)
        assert said.status == 0, said.err

    def on_the_twelfth(self, node: str) -> Decimal:
        """Price of a card hour of a node on that day, by hand."""
        return {self.labelled: Decimal(5), self.named: Decimal("0.77"), self.ended: Decimal(31)}.get(node, Decimal(2))

    def now(self, node: str) -> Decimal:
        """The same from the thirteenth on."""
        of_node = {self.labelled: Decimal(5), self.named: Decimal("0.77"), self.begun: Decimal("3.25")}
        return of_node.get(node, Decimal(2))

    def views(self) -> Views:
        """The pages' ports over the folder, as a process has them that began before the prices were set."""
        bare = Settings()
        return views_of(
            Session(
                data_path=self.data, settings=with_price_book(bare, self.data), now_override=NOW, is_quiet=True,
                bare_settings=bare,
            )
        )  # fmt: skip

    def document(self, *arguments: str) -> Any:
        """What a verb answers as JSON."""
        said = self._program(self.data, *arguments, "--format", "json")
        assert said.status in (0, 1), said.err
        return said.document

    def per_week(self, cards: list[Card]) -> Decimal:
        """A week of some cards at the price of now."""
        return sum((self.now(card.node) for card in cards), Decimal(0)) * WEEK_HOURS


def _label(data: Path, node: str) -> None:
    """Send the node's labels, as an exporter in the cluster does."""
    seen = round(datetime(2026, 1, 12, tzinfo=UTC).timestamp() * 1000)
    row = dict.fromkeys(INVENTORY_NODES.keys, "") | {
        "cluster": "demo", "node": node, "labels": json.dumps({"pool": "reserved"}),
        "first_seen": seen, "last_seen": round(NOW.timestamp() * 1000), "ended_at": None,
    }  # fmt: skip
    rows = pa.Table.from_pylist([row], schema=arrow_schema(INVENTORY_NODES))
    with closing(DuckdbWarehouse(open_data_folder(data, create=False).warehouse)) as store:
        part = Part(table=INVENTORY_NODES, date="2026-01-12", cluster="demo", rows=(rows,), seen=None)
        assert store.append((AppendName(source="labels", start=0, end=1),), [part])


@pytest.fixture
def priced(replayed: Path, program: Program) -> Priced:
    """Return the small fleet under such a book."""
    return Priced(replayed, program)


@pytest.mark.parametrize("day", [TWELFTH, THIRTEENTH])
def test_cost_and_focus_charge_each_card_and_day_at_its_own_price(
    priced: Priced, program: Program, tmp_path: Path, day: tuple[str, ...]
) -> None:
    price: Callable[[str], Decimal] = priced.on_the_twelfth if day is TWELFTH else priced.now
    expected = {card.card: 24 * price(card.node) for card in priced.cards}
    found = priced.document("cost", "show", "--by", "node", *day)
    assert Decimal(str(found["total"]["cost_allocation"])) == sum(expected.values())
    target = tmp_path / "focus.parquet"
    assert program(priced.data, "cost", "export", *day, "-o", str(target)).status == 0
    table = pq.read_table(target)
    paid: dict[str, Decimal] = defaultdict(Decimal)
    for card, cost in zip(table["ResourceId"].to_pylist(), table["EffectiveCost"].to_pylist(), strict=True):
        paid[card] += cost
    assert paid == expected


def test_pages_show_the_price_that_each_card_is_charged_at(priced: Priced) -> None:
    views = priced.views()
    profiles, prices = views.fleet.profiles("demo"), views.money.prices("demo")
    rows = card_table(profiles, prices)
    weeks = {row["card"]: row["price_per_week"] for row in (rows.row(place) for place in range(len(profiles.cards)))}
    assert weeks == {card.card: float(priced.now(card.node) * WEEK_HOURS) for card in priced.cards}
    day = priced.document("cost", "show", *THIRTEENTH)
    assert sum(weeks.values()) == pytest.approx(7 * day["total"]["cost_allocation"], abs=0.005)
    for node in (priced.labelled, priced.named, priced.ended, priced.begun):
        card = next(card for card in priced.cards if card.node == node)
        panel = str(fleet_page._side(views, read_address("/", f"?card={card.card}"), profiles))
        assert f"{money_words(priced.now(node) * WEEK_HOURS, 'USD')} / week" in panel


def test_week_of_the_pages_prices_every_card_hour_of_its_own_day(priced: Priced) -> None:
    views = priced.views()
    week = views.money.week("demo")
    assert week is not None
    paid = sum((one.cost for one in week.total.values() if one.cost is not None), Decimal(0))
    # Six days to the twelfth, and the thirteenth.
    assert paid == sum(24 * (6 * priced.on_the_twelfth(card.node) + priced.now(card.node)) for card in priced.cards)
    profiles = views.fleet.profiles("demo")
    page = str(tenants_page.layout(views, read_address("/tenants", ""), profiles))
    assert all(money_words(team.idle.cost, "USD") in page for team in tenants(profiles, week))


def test_report_and_savings_series_name_the_same_waste(priced: Priced) -> None:
    waste, by_hand = Decimal(0), 0
    for row in priced.document("cost", "show", "--by", "node")["rows"]:
        wasted = [row["measures"][measure.value] for measure in WASTED]
        cost = sum((Decimal(str(one["cost"])) for one in wasted), Decimal(0))
        if row["name"] not in (priced.ended, priced.begun):
            by_hand += 1
            hours = sum(one["card_hours"] for one in wasted)
            assert float(cost) == pytest.approx(hours * float(priced.now(row["name"])), abs=0.02)
        waste += cost
    assert by_hand > 2
    assert waste > 0
    report = priced.document("report")
    assert float(report["week"]["wasted_per_week"]) == pytest.approx(float(waste), abs=0.005)
    views = priced.views()
    assert money_words(waste, "USD") in str(
        fleet_page.layout(views, read_address("/", ""), views.fleet.profiles("demo"))
    )
    reading = SavingsReader(views, off_peak_ratio=0.2).read(1.0)
    assert reading is not None
    (family,) = [one for one in reading.families if one.name == "gputide_week_card_hours_cost"]
    costs = zip(family.labels, family.values, strict=True)
    assert sum(cost for labels, cost in costs if labels[2] in WASTED) == pytest.approx(float(waste), abs=0.005)


def test_plan_saves_what_its_freed_cards_cost(priced: Priced) -> None:
    plan = priced.document("--set", "plan.spare_card_ratio=0", "plan", "make")
    by_id = {card.card: card for card in priced.cards}
    kept = {place["card"] for place in plan["placement"]}
    held = {card for one in priced.views().fleet.profiles("demo").workloads for card in one.cards}
    freed, taken = [by_id[card] for card in held - kept], [by_id[card] for card in kept - held]
    assert len(freed) - len(taken) == plan["totals"]["cards_freed"] > 0
    saving = Decimal(str(plan["totals"]["saving_per_week"]["amortised"]))
    assert saving == priced.per_week(freed) - priced.per_week(taken)


def test_api_and_messages_hold_the_same_cost_against_a_budget(priced: Priced) -> None:
    book = priced.data / "prices.toml"
    book.write_text(book.read_text() + '\n[[budget]]\nnamespace = "search"\nper_month = 10\n')
    month = priced.document("cost", "show", "--since", "2026-01-01")
    spent = next(row["cost_allocation"] for row in month["rows"] if row["name"] == "search")
    client = an_app(priced.views(), Ways(operator="operator"))
    answer = client.get("/api/v1/clusters/demo/budgets", headers=HOST).get_json()
    assert [round(float(one["spent"]), 2) for one in answer["budgets"]] == [pytest.approx(spent, abs=0.011)]
    (message,) = [one for one in News(priced.views(), Settings(), NOW)(None) if one.topic is NoticeTopic.BUDGET]
    assert money_words(Decimal(str(spent)), "USD") in message.lines[0]
