"""The price book through the real program: set, imported, listed; what is wrong is named by its line."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest

from fleet.errors import Misconfigured
from fleet.settings.money import PriceRule
from fleet.settings.price_book import parse_price_book, with_prices
from fleet.settings.settings import Settings
from tests.gputide.conftest import Program

HOSTILE = 'x"]\n[[budget]]\nteam = "\u202e\x7f\\'


def a_rule(**fields: object) -> PriceRule:
    return PriceRule.model_validate({"source": "invoice", "date": "2026-01", "per_card_hour": "0.5", **fields})


def test_a_price_that_was_set_goes_before_the_others_and_keeps_what_people_wrote(
    tmp_path: Path, program: Program
) -> None:
    data, first = tmp_path / "data", ("cost", "prices", "set", "A10", "0.90", "--node-label", "pool=own")
    assert program(data, *first).status == 0
    book = data / "prices.toml"
    book.write_text("# ours\n" + book.read_text() + '\n# theirs\n[[price]]\ncard_model = "H20"\n'
                    'per_card_hour = 8.5\ncurrency = "CNY"\nsource = "offer"\ndate = 2026-01-02\n')  # fmt: skip
    assert (
        program(
            data, "cost", "prices", "set", "A10", "0.85 USD", "--node-label", "pool=own", "--contract", "C-7"
        ).status
        == 0
    )
    assert program(data, "cost", "prices", "set", "any", "2").status == 0
    text = book.read_text()
    assert "# ours" in text
    assert "# theirs" in text
    listed = program(data, "cost", "prices", "list", "--format", "json").document
    own = [(row["card_model"], row["price_per_card_hour"], row["currency"], row["contract"]) for row in listed[:3]]
    assert own == [("any", 2.0, "USD", None), ("A10", 0.85, "USD", "C-7"), ("H20", 8.5, "CNY", None)]
    assert "no rate from CNY into USD" in listed[2]["applies_to"]


def test_what_is_listed_as_csv_can_be_changed_and_imported(tmp_path: Path, program: Program) -> None:
    data, file = tmp_path / "data", tmp_path / "prices.csv"
    program(
        data,
        "cost",
        "prices",
        "set",
        "A10",
        "0.9",
        "--node-label",
        "pool=own",
        "--since",
        "2026-01-10",
        "--basis",
        "owned",
    )
    rows = list(csv.DictReader(io.StringIO(program(data, "cost", "prices", "list", "--format", "csv").out)))
    assert rows[0]["node_labels"] == "pool=own"
    rows[0]["price_per_card_hour"] = "0.8"
    with file.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    said = program(data, "cost", "prices", "import", "--replace", str(file))
    assert (said.status, "rows without a price left out" in said.out) == (0, True)
    again = list(csv.DictReader(io.StringIO(program(data, "cost", "prices", "list", "--format", "csv").out)))
    assert again[0] == rows[0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("card_model,price\nA10,1\n", "line 1: unknown column 'price'; did you mean 'price_per_card_hour'?"),
        ("card_model\nA10\n", "line 1: no column 'price_per_card_hour'"),
        ("card_model,price_per_card_hour\nA10,1\nL4,cheap\n", "line 3: per_card_hour='cheap'"),
        ("card_model,price_per_card_hour\nA10,-1\n", "line 2: per_card_hour='-1': expected at least 0"),
        ("card_model,price_per_card_hour\nA10,1,2\n", "line 2: it has not as many cells"),
        ("card_model,price_per_card_hour,node_labels\nA10,1,own\n", "line 2: node_labels='own'"),
        ("card_model,price_per_card_hour\nA10,\n", "it holds no price"),
    ],
)
def test_a_bad_csv_changes_nothing_and_names_its_line(
    tmp_path: Path, program: Program, text: str, message: str
) -> None:
    file = tmp_path / "prices.csv"
    file.write_text(text)
    said = program(tmp_path / "data", "cost", "prices", "import", str(file))
    assert said.status == 2
    assert message in said.err
    assert not (tmp_path / "data" / "prices.toml").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[price]\n", "not valid TOML"),
        ("currency = 'USD'\n", "unknown name 'currency'"),
        ("price = 3\n", r"price must be tables"),
        ("\n[[price]]\nper_card_hour = 1\nsource='s'\ndate='2026-01'\n\n[[price]]\nper_card_hour = 'x'\n",
         r"price 2 \(line 7\): per_card_hour='x'"),
        ("[[rate]]\ncurrency='CNY'\ninto='USD'\nrate=0\nsource='s'\ndate='2026-01'\n", r"rate 1 \(line 1\): rate=0"),
        ("[[budget]]\nteam='a'\nnamespace='b'\nper_month=1\n", "budget 1 .*either team or namespace"),
    ],
)  # fmt: skip
def test_a_bad_book_is_refused_with_its_line(text: str, message: str) -> None:
    with pytest.raises(Misconfigured, match=message):
        parse_price_book(text, name="prices.toml")


def test_a_bad_book_stops_those_who_need_prices_and_nobody_else(replayed: Path, program: Program) -> None:
    (replayed / "prices.toml").write_text("[[price]\n")
    assert program(replayed, "cost", "show").status == 2
    assert program(replayed, "workloads", "--format", "csv").status == 0
    doctor = program(replayed, "doctor", "--format", "json")
    assert any("not valid TOML" in item["found"] for item in doctor.document["diagnoses"])


def test_names_cannot_break_out_of_the_book() -> None:
    rule = a_rule(card_model="A10", contract=HOSTILE, node_labels={HOSTILE: HOSTILE})
    entries = parse_price_book(with_prices("", [rule], name="b"), name="b")
    assert entries.prices == (rule,)
    assert entries.budgets == ()


def test_a_machine_keeps_its_own_table_when_another_price_is_put_before_it() -> None:
    machine = (
        '[[price]]\nsource = "register"\ndate = 2026-01-01\n'
        "[price.on_premises]\npurchase = 80000\ncards = 8\nlife_years = 4\n\n"
        '[[rate]]\ncurrency = "CNY"\ninto = "USD"\nrate = 0.14\nsource = "bank"\ndate = "2026-01"\n'
    )
    changed = parse_price_book(with_prices(machine, [a_rule(card_model="A10")], name="b"), name="b")
    assert [rule.on_premises is not None for rule in changed.prices] == [False, True]
    replaced = parse_price_book(with_prices(machine, [a_rule()], name="b"), name="b")
    assert [rule.on_premises is not None for rule in replaced.prices] == [False]
    assert len(replaced.rates) == 1


def test_prices_of_the_book_reach_the_plan_behind_those_of_the_settings(replayed: Path, program: Program) -> None:
    (replayed / "prices.toml").write_text(
        '[[price]]\nper_card_hour = 3\nsource = "s"\ndate = "2026-01"\nbasis = "committed"\n'
    )
    said = program(replayed, "cost", "show", "--by", "cluster", "--since", "2026-01-13", "--format", "json")
    assert said.document["total"]["cost_allocation"] == 60 * 24 * 3
    assert said.document["free_cards"]["marginal"] == 0
    assert said.document["free_cards"]["amortised"] > 0
    assert Settings().prices.rules == ()
