"""The pages speak two languages from one table, and a reader gets the one that they asked for."""

import ast
import re
import string
from collections.abc import Iterator
from pathlib import Path

import pytest
from flask import Flask

from dashboards.access.cut import SHARED_WITH_OTHERS
from dashboards.address import read_address
from dashboards.figures.figures import DAYS
from dashboards.pages import frame as page_frame
from dashboards.pages import plan_rollout as page_plan_rollout
from dashboards.pages.language import COOKIE, asked_language, speak
from dashboards.pages.measures import MEASURE_WORDS
from dashboards.queries import RolloutPhase
from dashboards.shown.relief_acts import MoveState
from dashboards.shown.rows import workload_state_words
from dashboards.tokens import STATE_WORDS
from dashboards.words.looking import GRID_WORDS
from dashboards.words.pages import CHINESE, ENGLISH, PAGE_WORDS, READING, day_words, say
from dashboards.words.report import WORDS, Language
from fleet.decisions import Need, RiskLevel
from fleet.inventory import Priority
from fleet.outcomes import ChangePhase
from fleet.profiles import WorkloadClass, WorkloadState
from recommender.naive import HOUR_PROFILE, SUM_OF_MAXIMA
from tests.dashboards.embedded import NOW

DASHBOARDS = Path(page_frame.__file__).parents[1]
CHOSEN_BY_CODE = {
    *(title for _, title in page_frame.PAGES),
    *(words for ranges in page_frame.RANGE_PAGES.values() for words in ranges.values()),
    *STATE_WORDS.values(),
    *MEASURE_WORDS.values(),
    *(code.value.replace("_", " ") for closed in (Need, RiskLevel, Priority, WorkloadClass) for code in closed),
    *(code.value.replace("_", " ") for closed in (RolloutPhase, ChangePhase) for code in closed),
    *(state.value for state in MoveState),
    "viewer", "approver", "operator", "admin",
    "card", "node", "team", "workload",
    "contention", "grant too small", "framebuffer full",
    "{count} days", "{count} h", "{count} min", "{money} marginal", "{money} amortised",
    *(workload_state_words(state) for state in WorkloadState),
    *DAYS, SUM_OF_MAXIMA, HOUR_PROFILE, "oom", "restart", "change", "container restarts", "tokens", "requests",
    "every approved stage is applied", "approve at least one stage first", "every stage is kept",
    "kept after the watch", "whole plan", "Cards of node", "Stage", SHARED_WITH_OTHERS,
    "cannot change anything: this page is of another process or session; reload it",
}  # fmt: skip
"""Sentences that no page writes out: words of closed lists."""


def _said() -> Iterator[str]:
    """Sentences that the pages write out."""
    for path in DASHBOARDS.rglob("*.py"):
        if path.is_relative_to(DASHBOARDS / "report"):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                chosen = {"say": node.args[:1], "counted": node.args[1:3]}.get(node.func.id, [])
                yield from (arg.value for arg in chosen if isinstance(arg, ast.Constant) and isinstance(arg.value, str))


def _places(text: str) -> set[str]:
    return {name for _, name, _, _ in string.Formatter().parse(text) if name}


@pytest.fixture
def chinese() -> Iterator[None]:
    token = READING.set(CHINESE)
    yield
    READING.reset(token)


def test_every_sentence_of_the_pages_has_its_chinese() -> None:
    assert sorted({*_said(), *CHOSEN_BY_CODE} - set(PAGE_WORDS)) == []


def test_no_sentence_stays_in_the_table_that_no_page_says() -> None:
    assert sorted(set(PAGE_WORDS) - {*_said(), *CHOSEN_BY_CODE}) == []


def test_both_languages_have_the_same_places_and_are_not_the_same() -> None:
    for english, said in PAGE_WORDS.items():
        assert _places(english) == _places(said), english
        assert said != english.partition("|")[0], english


def test_pages_and_report_say_the_same_chinese_for_the_same_code() -> None:
    codes = {
        said[Language.EN]: said[Language.ZH]
        for key, said in WORDS.items()
        if key.partition(".")[0] in {"state", "workload_state", "cause", "kind", "reason", "check"}
    }
    assert {english: PAGE_WORDS[english] for english in codes if english in PAGE_WORDS} == {
        english: chinese for english, chinese in codes.items() if english in PAGE_WORDS
    }


def test_grid_has_a_chinese_text_for_what_it_tells_a_screen_reader() -> None:
    assert GRID_WORDS["ariaSortableColumn"] == "按 ENTER 排序"
    assert all(re.search(r"[\u4e00-\u9fff/]", said) for said in GRID_WORDS.values())


@pytest.mark.usefixtures("chinese")
def test_names_in_braces_are_not_filled_and_days_are_chinese() -> None:
    assert say("Nobody holds a card in {place}.", place="{count}") == "{count} 中没有人持有卡。"
    assert day_words(NOW) == "1月22日"
    assert page_plan_rollout.stage_words((1, 2)) == "阶段 1, 2"


@pytest.mark.parametrize(
    ("path", "headers", "language"),
    [
        ("/?lang=zh", {"Accept-Language": "en"}, CHINESE),
        ("/?lang=xx", {"Accept-Language": "zh-CN,zh;q=0.9,en;q=0.8"}, CHINESE),
        ("/", {"Referer": "http://localhost/plan?lang=zh&plan=1", "Cookie": f"{COOKIE}=en"}, CHINESE),
        ("/", {"Cookie": f"{COOKIE}=zh", "Accept-Language": "en"}, CHINESE),
        ("/", {"Cookie": f"{COOKIE}=<b>", "Referer": "http://[", "Accept-Language": "fr,de"}, ENGLISH),
        ("/", {"Accept-Language": "fr, en-GB;q=0.8, zh;q=0.7"}, ENGLISH),
    ],
)
def test_address_goes_before_choice_goes_before_browser(path: str, headers: dict[str, str], language: str) -> None:
    with Flask(__name__).test_request_context(path, headers=headers):
        assert asked_language() == language


def test_choice_of_a_language_is_kept_in_a_cookie_and_in_links() -> None:
    server = Flask(__name__)
    speak(server, is_secure=True)
    server.add_url_rule("/", "spoken", READING.get)
    answer = server.test_client().get("/?lang=zh")
    assert answer.get_data(as_text=True) == CHINESE
    kept = answer.headers["Set-Cookie"]
    assert kept.startswith(f"{COOKIE}=zh;")
    assert "Secure" in kept
    assert "Set-Cookie" not in server.test_client().get("/?lang=<script>").headers
    assert read_address("/plan", "?lang=zh&plan=1").href("/tenants") == "/tenants?lang=zh"
