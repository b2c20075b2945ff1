"""Prices as the book says now, though the process began before it was changed."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from dashboards.money.charged_days import CostPeriod
from dashboards.stored.last_answers import LastAnswers
from dashboards.stored.money import _SUMS, StoredMoney
from fleet.data_folder import open_data_folder
from fleet.errors import Corrupt, GputideError, Misconfigured, NotEnoughData, Unavailable
from fleet.inventory import Card, CardId, CardModelName
from fleet.settings.settings import Settings
from tests.waiting import until

PATIENT_SUMS = replace(_SUMS, first_seconds=10.0)
NOW = datetime(2026, 1, 22, 9, 0, tzinfo=UTC)
CARD = Card(card=CardId("GPU-1"), card_model=CardModelName("NVIDIA A10"), framebuffer_bytes=1, node="n", cluster="c1")
BOOK = """
[[price]]
card_model = "NVIDIA A10"
per_card_hour = {price}
source = "contract"
date = "2026-01"
[[budget]]
namespace = "search"
per_month = 100
"""


def money_of(path: Path, *, is_patient: bool) -> StoredMoney:
    """What a process that began with an empty book knows."""

    def nothing_known(_settings: Settings, cluster: str, _since: datetime) -> CostPeriod:
        raise NotEnoughData(f"nothing is known of {cluster}")

    folder = open_data_folder(path, create=True)
    return StoredMoney(
        folder,
        Settings(),
        lambda: NOW,
        period=nothing_known,
        unit_counts=lambda _: (),
        quotas=lambda _: (),
        nodes=lambda _: (),
        is_patient=is_patient,
    )


def write_book(path: Path, price: str) -> None:
    (path / "prices.toml").write_text(BOOK.format(price=price), encoding="utf-8")
    os.utime(path / "prices.toml", ns=(time.time_ns(), time.time_ns()))


def test_changed_book_shows_without_a_restart_and_a_broken_one_is_said(tmp_path: Path) -> None:
    money = money_of(tmp_path / "data", is_patient=True)
    first = money.prices("c1")
    assert first.of(CARD).amortised != Decimal("7.5")
    assert money.prices("c1") is first
    write_book(tmp_path / "data", "7.5")
    assert money.prices("c1").of(CARD).amortised == Decimal("7.5")
    write_book(tmp_path / "data", "8.25")
    assert money.prices("c1").of(CARD).amortised == Decimal("8.25")
    write_book(tmp_path / "data", "-1")
    with pytest.raises(Misconfigured, match=r"prices\.toml"):
        money.prices("c1")


def test_web_app_waits_for_no_sums_and_gets_them_later(tmp_path: Path) -> None:
    money = money_of(tmp_path / "data", is_patient=False)
    assert money.budgets("c1") == ()
    write_book(tmp_path / "data", "7.5")
    # Nothing was recorded of the cluster: there is nothing to hold a budget against, and no error on the page.
    assert money.budgets("c1") == ()
    until(lambda: not any(kept.worker and kept.worker.is_alive() for kept in money._budgets._kept.values()))
    assert money.budgets("c1") == ()
    assert money.unit_costs("c1") == ()


def test_sums_that_are_not_made_yet_are_no_empty_answer() -> None:
    is_ready = threading.Event()
    held = LastAnswers(lambda _: 1 if is_ready.wait(10) else 0, replace(_SUMS, first_seconds=0.05), is_patient=False)
    with pytest.raises(Unavailable, match=r"being charged since \d+ s"):
        held.of("c1", 1)
    is_ready.set()
    until(lambda: held._kept["c1"].made is not None)
    assert held.of("c1", 1) == 1


def test_sums_that_can_not_be_made_are_told_and_tried_again() -> None:
    faults: list[GputideError] = [Corrupt("a file is cut"), Unavailable("nobody answers")]

    def make(_: str) -> int:
        if faults:
            raise faults.pop(0)
        return 1

    tried = LastAnswers(make, PATIENT_SUMS, is_patient=False)
    with pytest.raises(Corrupt, match="cut"):
        tried.of("c1", 1)
    with pytest.raises(Unavailable, match="answers"):
        tried.of("c1", 1)
    assert tried.of("c1", 1) == 1


def test_sums_that_a_fault_overtook_are_not_shown_as_if_they_held() -> None:
    faults: dict[int, GputideError] = {2: Misconfigured("a price is below 0")}
    versions = [1]

    def make(_: str) -> int:
        if versions[0] in faults:
            raise faults[versions[0]]
        return versions[0]

    shown = LastAnswers(make, PATIENT_SUMS, is_patient=False)
    assert shown.of("c1", 1) == 1
    versions[0] = 2

    def is_told() -> bool:
        try:
            return shown.of("c1", 2) == 2
        except Misconfigured:
            return True

    until(is_told)
    with pytest.raises(Misconfigured, match="below 0"):
        shown.of("c1", 2)
    versions[0] = 3
    assert shown.of("c1", 3) == 3


def test_reader_of_costs_sees_a_bug_and_the_log_has_its_traceback() -> None:
    def make(_: str) -> int:
        raise ZeroDivisionError("no hours")

    tried = LastAnswers(make, PATIENT_SUMS, is_patient=False)
    with capture_logs() as logged, pytest.raises(ZeroDivisionError, match="no hours"):
        tried.of("c1", 1)
    assert [one["exc_info"] for one in logged] == [True]
