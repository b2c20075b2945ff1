"""Cost through the real program: what is shown and exported is what the recorded fleet cost."""

from __future__ import annotations

import re
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from fleet.money.focus_columns import focus_faults
from fleet.settings.settings import Settings
from gputide.container.cost import cost_period
from gputide.session import Session
from tests.gputide.conftest import Program

DAY = ("--since", "2026-01-12", "--until", "2026-01-13")
START, END = datetime(2026, 1, 12, tzinfo=UTC), datetime(2026, 1, 13, tzinfo=UTC)


def test_by_use_a_whole_card_costs_what_the_recorded_samples_say(
    replayed: Path, small_fleet: Path, program: Program
) -> None:
    pods = [
        pod
        for pod in pq.read_table(small_fleet / "pods.parquet").to_pylist()
        if pod["started_at"] <= START and pod["ended_at"] is None and "A10G" in pod["card_model"]
    ]
    samples: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for sample in pq.read_table(small_fleet / "usage.parquet").to_pylist():
        if START < sample["ts"] <= END and sample["sm_active_ratio"] is not None:
            samples[sample["pod"]].append((sample["sm_active_ratio"], sample["framebuffer_used_bytes"]))
    complete = [pod for pod in pods if len(samples[pod["pod"]]) == 144]
    assert complete
    said = program(replayed, "cost", "show", "--by", "pod", *DAY, "--format", "json")
    assert said.status == 0, said.err
    shown = {row["name"]: row for row in said.document["rows"]}
    for pod in complete:
        row = shown[f"{pod['namespace']}/{pod['pod']}"]
        busy = sum(ratio for ratio, _ in samples[pod["pod"]]) / 144
        held = sum(used for _, used in samples[pod["pod"]]) / 144 / pod["framebuffer_bytes"]
        assert row["cost_allocation"] == pytest.approx(24 * 1.006, abs=0.011)
        assert row["cost_use"] == pytest.approx(24 * 1.006 * (busy + held) / 2, abs=0.011)


def test_rows_idle_and_stranded_are_the_total_and_every_card_is_in_it(replayed: Path, program: Program) -> None:
    said = program(replayed, "cost", "show", "--by", "team", *DAY, "--format", "json")
    found = said.document
    lines = [*found["rows"], found["unallocated"], found["stranded"]]
    for basis in ("cost_allocation", "cost_use", "cost_blended"):
        assert sum(Decimal(str(line[basis] or 0)) for line in lines) == Decimal(str(found["total"][basis]))
    assert found["total"]["card_hours"] == 60 * 24
    assert sum(line["card_hours"] for line in lines) == pytest.approx(60 * 24)
    assert found["total"]["unpriced_card_hours"] > 0


def test_two_halves_of_a_week_are_the_week_by_every_measure(replayed: Path, program: Program) -> None:
    def measures(since: str, until: str) -> dict[str, float]:
        said = program(replayed, "cost", "show", "--since", since, "--until", until, "--format", "json")
        assert said.status == 0, said.err
        return {name: hours["card_hours"] for name, hours in said.document["total"]["measures"].items()}

    begin, middle, end = "2026-01-07T00:00:00Z", "2026-01-10T06:00:00Z", "2026-01-13T00:00:00Z"
    whole, first, second = measures(begin, end), measures(begin, middle), measures(middle, end)
    assert whole["idle_held"] + whole["idle"] > 0
    assert {name: first[name] + second[name] for name in whole} == pytest.approx(whole)


def test_hours_without_a_price_name_their_card_models_and_the_verb_that_sets_one(
    replayed: Path, program: Program
) -> None:
    said = " ".join(program(replayed, "cost", "show", *DAY).out.split())
    assert "card hours unknown, and in no amount: no price for NVIDIA" in said
    model = re.search(r"\(set one with `gputide cost prices set '([^']+)' PRICE`\)", said)
    assert model is not None
    assert program(replayed, "cost", "prices", "set", model[1], "1 USD").status == 0
    assert f"no price for {model[1]}" not in program(replayed, "cost", "show", *DAY).out


def test_export_conforms_and_is_the_cost_that_is_shown(replayed: Path, program: Program, tmp_path: Path) -> None:
    target = tmp_path / "focus.parquet"
    said = program(replayed, "cost", "export", "--since", "2026-01-12", "--until", "2026-01-14", "-o", str(target))
    assert said.status == 0, said.err
    table = pq.read_table(target)
    assert focus_faults(table.replace_schema_metadata()) == ()
    shown = program(replayed, "cost", "show", "--since", "2026-01-12", "--until", "2026-01-14", "--format", "json")
    total = Decimal(str(shown.document["total"]["cost_allocation"]))
    assert sum(table.column("EffectiveCost").to_pylist()).quantize(Decimal("0.01")) == total
    assert "card hours without a price were left out" in said.err


def test_the_report_writes_the_same_export(replayed: Path, program: Program) -> None:
    early = ("--now", "2026-01-06T12:00")
    report = program(replayed, *early, "report", "--format", "focus")
    export = program(replayed, *early, "cost", "export")
    assert (report.status, report.out) == (0, export.out)
    assert export.out.startswith("AllocatedMethodDetails,")


def test_budgets_say_what_was_spent_and_end_with_status_1_when_asked(replayed: Path, program: Program) -> None:
    book = '[[budget]]\nnamespace = "ads"\nper_month = 10\n[[budget]]\nteam = "vision"\nper_month = 100000\n'
    book += '[[budget]]\nnamespace = "ads"\ncluster = "another"\nper_month = 5\n'
    (replayed / "prices.toml").write_text(book)
    said = program(replayed, "cost", "budgets", "--fail-over", "--format", "json")
    assert said.status == 1
    spent = program(replayed, "cost", "show", "--since", "2026-01-01", "--format", "json")
    of_ads = next(row for row in spent.document["rows"] if row["name"] == "ads")
    assert [(row["name"], row["state"]) for row in said.document] == [("ads", "over"), ("vision", "ok")]
    assert said.document[0]["spent"] == pytest.approx(of_ads["cost_allocation"], abs=0.011)
    assert said.document[1]["forecast"] > said.document[1]["spent"]


def test_forecast_is_of_the_time_in_which_cards_were_seen(replayed: Path, program: Program) -> None:
    (replayed / "prices.toml").write_text('[[budget]]\nnamespace = "ads"\nper_month = 10000000\n')
    (row,) = program(replayed, "--now", "2026-01-06T12:00", "cost", "budgets", "--format", "json").document
    # The first card was seen when the fifth began: a day and a half of the month is known.
    assert row["forecast"] == pytest.approx(row["spent"] * (1 + (25.5 * 24) / 36), rel=1e-3)
    now = datetime(2026, 1, 6, 12, 30, tzinfo=UTC)
    session = Session(data_path=replayed, settings=Settings(), now_override=now, is_quiet=True)
    week = cost_period(session, now - timedelta(days=7), None)
    assert (week.until - week.known_since, week.until - week.since) == (timedelta(hours=36), timedelta(days=7))


def test_budgets_of_a_month_that_has_just_begun_say_so(replayed: Path, program: Program) -> None:
    (replayed / "prices.toml").write_text('[[budget]]\nnamespace = "ads"\nper_month = 10\n')
    said = program(replayed, "--now", "2026-02-01T00:30", "cost", "budgets", "--fail-over")
    assert (said.status, said.out) == (3, "")
    assert "2026-02" in said.err
    assert "--since" not in said.err


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (("show", "--since", "2026-01-13T10:30", "--until", "2026-01-13T10:45"), 2, "--since must be a whole hour"),
        (("show", "--since", "2020-01-01"), 2, "at most 400"),
        (("show", "--since", "2025-12-01", "--until", "2025-12-02"), 3, "no card is known"),
        (("export", "--format", "parquet"), 2, "name a file with -o"),
        (("budgets",), 2, "add a [[budget]]"),
    ],
)
def test_what_cannot_be_shown_says_why(
    replayed: Path, program: Program, arguments: tuple[str, ...], status: int, message: str
) -> None:
    said = program(replayed, "cost", *arguments)
    assert (said.status, message in said.err, said.out) == (status, True, "")
