"""The pages speak two languages from their catalogues, and a reader gets the one that they asked for."""

import re
from collections.abc import Iterable, Iterator

import pytest
from flask import Flask

from dashboards.access.namespace_cut import SHARED_WITH_OTHERS
from dashboards.access.people import Role
from dashboards.address import read_address
from dashboards.figures.figures import DAYS
from dashboards.pages import plan_rollout as page_plan_rollout
from dashboards.pages.frame import shown
from dashboards.queries import RolloutPhase
from dashboards.request_hooks import COOKIE, asked_language, speak
from dashboards.view_models.relief_acts import MoveState
from dashboards.words.reading import READING, reader_words, say
from fleet.decisions import Need, RiskLevel
from fleet.inventory import Priority
from fleet.outcomes import ChangePhase
from fleet.profiles import CardState, HourMeasure, WorkloadClass, WorkloadState
from fleet.words import Language
from recommender.naive import HOUR_PROFILE, SUM_OF_MAXIMA
from tests.dashboards.embedded import NOW


@pytest.fixture
def chinese() -> Iterator[None]:
    token = READING.set(Language.ZH)
    yield
    READING.reset(token)


@pytest.mark.usefixtures("chinese")
@pytest.mark.parametrize(
    ("group", "codes"),
    [
        ("state", CardState),
        ("workload_state", WorkloadState),
        ("class", WorkloadClass),
        ("hour_measure", HourMeasure),
        ("level", [*RiskLevel, *Priority]),
        ("need", Need),
        ("phase", [*RolloutPhase, *ChangePhase]),
        ("move", MoveState),
        ("role", Role),
        ("weekday", DAYS),
        ("cause", ["contention", "short", "full"]),
        ("event", ["oom", "restart", "change", "container restarts"]),
        ("unit", ["tokens", "requests"]),
    ],
)
def test_every_code_of_a_closed_list_has_its_words(group: str, codes: Iterable[str]) -> None:
    assert [code for code in codes if not reader_words().knows(f"{group}.{code.replace(' ', '_')}")] == []


@pytest.mark.usefixtures("chinese")
@pytest.mark.parametrize("text", [SHARED_WITH_OTHERS, SUM_OF_MAXIMA, HOUR_PROFILE])
def test_text_that_was_recorded_in_english_is_said_in_the_readers_language(text: str) -> None:
    assert re.search("[\u4e00-\u9fff]", str(shown(text)))
    assert shown("something new").lang == "en"


@pytest.mark.usefixtures("chinese")
def test_names_in_braces_are_not_filled_and_days_are_chinese() -> None:
    assert say("tenants.nobody_holds_card_place", place="{count}") == "{count} 中没有人持有卡。"
    assert reader_words().day(NOW) == "1月22日"
    assert page_plan_rollout.stage_words((1, 2)) == "阶段 1, 2"


@pytest.mark.parametrize(
    ("path", "headers", "language"),
    [
        ("/?lang=zh", {"Accept-Language": "en"}, Language.ZH),
        ("/?lang=xx", {"Accept-Language": "zh-CN,zh;q=0.9,en;q=0.8"}, Language.ZH),
        ("/", {"Referer": "http://localhost/plan?lang=zh&plan=1", "Cookie": f"{COOKIE}=en"}, Language.ZH),
        ("/", {"Cookie": f"{COOKIE}=zh", "Accept-Language": "en"}, Language.ZH),
        ("/", {"Cookie": f"{COOKIE}=<b>", "Referer": "http://[", "Accept-Language": "fr,de"}, Language.EN),
        ("/", {"Accept-Language": "fr, en-GB;q=0.8, zh;q=0.7"}, Language.EN),
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
    assert answer.get_data(as_text=True) == Language.ZH
    kept = answer.headers["Set-Cookie"]
    assert kept.startswith(f"{COOKIE}=zh;")
    assert "Secure" in kept
    assert "Set-Cookie" not in server.test_client().get("/?lang=<script>").headers
    assert read_address("/plan", "?lang=zh&plan=1").href("/tenants") == "/tenants?lang=zh"
