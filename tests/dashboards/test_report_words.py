"""The report speaks two languages, from one table, and nothing of one stays in the other."""

import re
from dataclasses import replace
from functools import cache
from html.parser import HTMLParser

import pytest

from analyzer.trust import CHECKS
from dashboards.report.report import Edition, Report, make_report
from dashboards.report.text import report_html, report_lines, report_markdown
from enforcer.record.savings import Step
from fleet.decisions import RecommendationKind
from fleet.profiles import CardState, WorkloadState
from fleet.sentences import sentence
from fleet.words import Language, Words
from tests.dashboards.embedded import CLUSTER, NOW, PRICES, make_measured, make_profiles, make_views

pytestmark = pytest.mark.long

EN = Words(language=Language.EN)
ZH = Words(language=Language.ZH)
_LATIN = re.compile(r"[A-Za-z][A-Za-z']+")
_FOREIGN = {
    "GPU", "Pod", "PUE", "UTC", "MIG", "SM", "Job", "kWh", "kg", "CO2", "CO", "CNY", "gputide", "cost", "prices",
    "list",
}  # fmt: skip
"""Units, names of things, and a command, which are the same in Chinese."""


@cache
def _report(language: Language) -> Report:
    views, _ = make_views()
    found = make_report(
        make_profiles(),
        views.plans.plans(CLUSTER),
        views.outcomes.outcomes(CLUSTER),
        views.outcomes.ledger(CLUSTER),
        now=NOW,
        prices=PRICES,
        edition=Edition(language=language, measured=make_measured(make_profiles())),
    )
    assert found.next_plan is not None
    assert found.refused
    # Titles of stages and reasons of refusals are this fleet's own inventions; the planner's are tested below.
    return replace(
        found,
        next_plan=replace(found.next_plan, stages=()),
        refused=tuple(replace(group, reason="opt out") for group in found.refused),
    )


@cache
def _data() -> tuple[str, ...]:
    """Names and ids that the report repeats, of settings too: data, not words of its own."""
    views, _ = make_views()
    plans, report = views.plans.plans(CLUSTER), _report(Language.ZH)
    people = {name for entry in plans for name in entry.approved_by}
    return (
        CLUSTER,
        report.price_version,
        "energy.grid_kg_co2_per_kwh",
        *(name for entry in plans for name in (entry.plan.plan_id, entry.plan.short_id)),
        *people,
    )


class _Said(HTMLParser):
    """Text between tags, but for code, names, text marked as English, and style."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self._muted: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if values.get("aria-label"):
            self.found.append(values["aria-label"] or "")
        if tag in {"meta", "br", "rect"}:
            return
        is_foreign = tag in {"code", "style"} or values.get("class") == "name" or values.get("lang") == "en"
        if self._muted or is_foreign:
            self._muted.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if self._muted and tag != "rect":
            assert self._muted.pop() == tag

    def handle_data(self, data: str) -> None:
        if not self._muted:
            self.found.append(data)


def _english_in(text: str) -> set[str]:
    for name in _data():
        text = text.replace(name, "")
    text = re.sub(r"\b[\w.]+[_/][\w./-]+", "", text)  # names of counters and annotations
    return {word for word in _LATIN.findall(text) if word not in _FOREIGN}


def test_no_english_word_stays_in_the_chinese_page() -> None:
    said = _Said()
    said.feed(report_html(_report(Language.ZH)))
    assert len(said.found) > 100
    assert _english_in(" ".join(said.found)) == set()


def test_no_english_heading_or_sentence_stays_in_chinese_markdown_and_chat() -> None:
    chinese = _report(Language.ZH)
    markdown = "\n".join(line for line in report_markdown(chinese).splitlines() if line.startswith(("#", "**", "_")))
    lines = "\n".join(report_lines(chinese))
    found = _english_in(re.sub(r"\\", "", markdown + lines))
    assert found == set()
    assert "上周" in lines
    for key in ("top.heading", "next.heading", "done.heading", "refused.heading", "budget.heading"):
        assert EN.say(f"report.{key}") not in report_markdown(chinese)


def test_no_chinese_stays_in_english() -> None:
    english = _report(Language.EN)
    for text in (report_html(english), report_markdown(english), *report_lines(english)):
        assert not re.search(r"[\u3000-\u303f\u4e00-\u9fff\uff00-\uffef]", text)


def test_page_says_its_language_and_chinese_dates_and_signs_are_chinese() -> None:
    page = report_html(_report(Language.ZH))
    assert '<html lang="zh">' in page
    assert ">1月19日</text>" in page
    assert "99.1%" in page
    assert "99.1 %" not in page
    assert ">19 Jan</text>" in report_html(_report(Language.EN))


@pytest.mark.parametrize(
    ("group", "codes"),
    [
        ("kind", [one.value for one in RecommendationKind]),
        ("state", [one.value for one in CardState]),
        ("workload_state", [one.value for one in WorkloadState]),
        ("check", CHECKS),
        ("step", Step),
    ],
)
def test_every_code_of_a_closed_list_is_in_the_catalogues(group: str, codes: list[str]) -> None:
    assert [code for code in codes if not EN.knows(f"{group}.{code}")] == []


def test_titles_of_stages_are_said_in_chinese() -> None:
    assert ZH.stage(sentence("share", number=2, all=5)) == "共享卡，第 2 批，共 5 批"
    assert ZH.stage(sentence("reclaim")) == "归还闲置的卡"
    waits = ZH.stage(sentence("mig_waits", cards=3, pods=2))
    assert "3 张卡" in waits
    assert "2 个 Pod" in waits


def test_names_with_places_of_their_own_are_not_filled() -> None:
    assert ZH.say("report.of_team", team="{cards}") == "团队 {cards}"
