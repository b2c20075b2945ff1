"""Card hours of the last seven days by measure, as pages show them.

Called by the fleet and tenants pages.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from dash import html

from dashboards.pages.frame import card, scrolled, table
from dashboards.queries import Views
from dashboards.view_models.rows import percent_words
from dashboards.words.reading import say, say_code
from fleet.errors import Corrupt, Misconfigured, Unavailable
from fleet.money.charges import in_cents
from fleet.money.week_hours import Measures, WeekHours
from fleet.profiles import HourMeasure


def known_week(views: Views, cluster: str) -> WeekHours | str:
    """The card hours of a cluster, or why they are not known."""
    try:
        found = views.money.week(cluster)
    except (Misconfigured, Unavailable, Corrupt) as exc:
        return str(exc)
    return say("measure.no_card_known_week") if found is None else found


def measures_card(week: WeekHours | str) -> Any:
    """What became of every card hour; the rows sum to the total."""
    title = say("measure.card_hours_week")
    if isinstance(week, str):
        return card(title, html.P(week, className="soft"))
    total = week.total
    hours = sum(one.card_hours for one in total.values())
    costs = in_cents([one.cost for one in total.values()])
    rows: list[tuple[Any, ...]] = [
        (
            say_code("hour_measure", measure),
            hours_words(one.card_hours),
            percent_words(one.card_hours / hours if hours else None, 1),
            cost_words(cost),
        )
        for (measure, one), cost in zip(total.items(), costs, strict=True)
    ]
    known = [cost for cost in costs if cost is not None]
    whole = cost_words(sum(known, Decimal(0)) if known else None)
    rows.append((html.B(say("measure.total")), html.B(hours_words(hours)), "", html.B(whole)))
    columns = (
        (say("measure.measure"), "t"),
        (say("measure.card_hours"), "n"),
        (say("measure.share"), "n"),
        (week.currency, "n"),
    )
    return card(
        title,
        scrolled(table(columns, rows), name=title, class_name="measures"),
        note=say("measure.same_card_hours_elsewhere"),
        export="card-hours",
    )


def cells_of(measures: Measures) -> list[str]:
    """Card hours of every measure; an en dash where there is none."""
    return [hours_words(measures[measure].card_hours) if measure in measures else "–" for measure in HourMeasure]


def hours_words(hours: float) -> str:
    """Card hours with one digit, grouped by thousands."""
    return f"{hours:,.1f}"


def cost_words(cost: Decimal | None) -> str:
    """An amount in cents, grouped by thousands; an en dash where there is none."""
    return "–" if cost is None else f"{cost:,.2f}"
