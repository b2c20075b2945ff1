"""Tools of the assistant that need a whole data folder: cost of a time, what-if, back-test. None keeps anything.

What-if and back-test plan anew, which takes from seconds to minutes: each runs in a process of its own, one at a time,
and is ended when its time is over. Called by `gputide run assistant` and `gputide serve`.
"""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from dashboards.assistant.tool import CLUSTER, LIMIT, Found, Question, Tool, listed, rows
from fleet.errors import Misconfigured
from fleet.money.charges import Owner
from fleet.money.unit_costs import unit_costs
from fleet.settings.price_book import with_price_book
from fleet.units import parse_time
from gputide.session import Session
from gputide.study import Study

if TYPE_CHECKING:
    from dashboards.assistant.answers import Assistant
    from dashboards.assistant.route import Offer
    from dashboards.assistant.server import HttpAnswers

STUDY_SECONDS_MAX = 100.0
"""How long a what-if or a back-test may take; clients wait for a minute or two at most."""
ASSUMPTIONS_MAX = 5
SUPPOSED_SECTIONS = ("analyzer", "plan", "recommender", "risk")
"""Sections of the settings that a what-if may change: none of them names a file, an address or another cluster, which
nobody who may only look should have this process open."""
DAYS_MAX = 14
FOLDS_MAX = 4


def offer(session: Session) -> Offer | None:
    """What the web app needs to answer assistants; None where their SDK is not installed."""
    if find_spec("mcp") is None:
        return None
    from dashboards.assistant.route import Offer

    return Offer(open=_http_answers, tools=session_tools(session))


def _http_answers(assistant: Assistant) -> HttpAnswers:
    from dashboards.assistant.server import HttpAnswers

    return HttpAnswers(assistant)


def session_tools(session: Session, *, study_seconds_max: float = STUDY_SECONDS_MAX) -> tuple[Tool, ...]:
    """The tools over the data folder of a session, in the order in which a client lists them.

    Args:
        study_seconds_max: how long a what-if or a back-test may take.
    """
    study = Study(session, study_seconds_max)
    return (
        Tool(
            name="cost",
            says="Cost of a time by namespace, team, workload, card model, node or pod: by allocation, by use and "
            "blended, with card hours that were idle, idle_held and unused; what was unallocated and stranded apart. "
            "Needs the right to see the whole cluster; card_hours shows the last week of what you may see.",
            answer=lambda question: _cost(session, question),
            parameters={
                "cluster": CLUSTER,
                "by": {"type": "string", "enum": [owner.value for owner in Owner], "default": "namespace"},
                "since": {**_TIME, "description": "Start, ISO 8601 in UTC; a week before the end unless given."},
                "until": {**_TIME, "description": "End, ISO 8601 in UTC; now unless given."},
                "limit": LIMIT,
            },
            data={
                "since": {"type": "string"}, "until": {"type": "string"}, "currency": {"type": "string"},
                "rows": listed("name", "card_hours", "cost_allocation", "cost_use", "cost_blended"),
                "total": {"type": "object", "required": ["card_hours", "cost_allocation"]},
            },
        ),
        Tool(
            name="what_if",
            says="What would follow if things were otherwise, beside the plan as they are: NAME=VALUE for a setting "
            f"of {', '.join(SUPPOSED_SECTIONS)}, "
            "cards.MODEL=OTHER for another card model, cards+MODEL=N or cards-MODEL=N for more or fewer cards, "
            "nodes-NAME for a node gone; hyphens for blanks in models. Both are planned anew and neither is kept. "
            f"Takes at most {study_seconds_max:.0f} s.",
            answer=lambda question: _what_if(study, question),
            parameters={
                "cluster": CLUSTER,
                "assumptions": {
                    "type": "array", "minItems": 1, "maxItems": ASSUMPTIONS_MAX,
                    "items": {"type": "string", "minLength": 1, "maxLength": 200},
                },
            },
            required=("assumptions",),
            data={
                "is_hypothetical": {"const": True},
                "compared": {"type": "object", "required": ["present", "what_if"]},
                "card_models": listed("card_model", "present", "what_if"),
                "stays_on_its_cards": listed("workload", "code"),
            },
        ),
        Tool(
            name="backtest",
            says="How plans made on earlier days would have done on the days that followed: saved and violated shares "
            "per preset, beside naive rules, on days that they had not seen. "
            f"Takes at most {study_seconds_max:.0f} s.",
            answer=lambda question: _backtest(study, question),
            parameters={
                "cluster": CLUSTER,
                "train_days": {"type": "integer", "minimum": 1, "maximum": DAYS_MAX, "default": 7},
                "test_days": {"type": "integer", "minimum": 1, "maximum": DAYS_MAX, "default": 3},
                "folds": {"type": "integer", "minimum": 1, "maximum": FOLDS_MAX, "default": 1},
            },
            data={"scores": listed("fold", "rule", "saved_ratio", "violation_ratio", "predicted_violation_ratio")},
        ),
    )  # fmt: skip


_TIME = {"type": "string", "minLength": 10, "maxLength": 40}


def _cost(session: Session, question: Question) -> Found:
    from gputide.answers.cost import cost_answer
    from gputide.container.cost import cost_period, period_unit_counts

    cluster = question.whole_cluster("cost")
    if session.bare_settings is not None:
        # Prices may have been set since the start.
        session = replace(session, settings=with_price_book(session.bare_settings, session.data_path))
    by = Owner(question.asked.get("by", Owner.NAMESPACE))
    since, until = (_time(question.asked.get(name)) for name in ("since", "until"))
    period = cost_period(session, since, until, cluster=cluster)
    found = period.chargeback(by)
    units = unit_costs(found.rows, period_unit_counts(period)) if by is Owner.WORKLOAD else ()
    shown = cost_answer(found, session.settings, units).document
    data, left_out = rows(
        "rows", sorted(shown["rows"], key=lambda row: (-(row["cost_allocation"] or 0), row["name"])), question.limit,
        **{key: value for key, value in shown.items() if key not in ("rows", "schema")},
    )  # fmt: skip
    return Found(cluster=cluster, data=data, left_out=left_out)


def _time(text: Any) -> Any:
    return None if text is None else parse_time(str(text))


def _what_if(study: Study, question: Question) -> Found:
    cluster = question.whole_cluster("a what-if")
    for text in question.asked["assumptions"]:
        section, dot, _ = text.partition("=")[0].partition(".")
        if not text.startswith(("cards.", "cards+", "cards-", "nodes-")) and (
            not dot or section.strip() not in SUPPOSED_SECTIONS
        ):
            raise Misconfigured(
                f"cannot suppose {text[:80]!r}: expected a setting of {', '.join(SUPPOSED_SECTIONS)} as NAME=VALUE, "
                "cards.MODEL=OTHER, cards+MODEL=N, cards-MODEL=N or nodes-NAME"
            )
    found = study.find("what_if", {"cluster": cluster, "texts": list(question.asked["assumptions"])})
    return Found(cluster=cluster, data=found)


def _backtest(study: Study, question: Question) -> Found:
    cluster = question.whole_cluster("a back-test")
    asked = {name: question.asked.get(name, days) for name, days in (("train_days", 7), ("test_days", 3), ("folds", 1))}
    found = study.find("backtest", {"cluster": cluster, **asked})
    return Found(cluster=cluster, data=found)
