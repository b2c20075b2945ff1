"""The health page's chain from the exporter to the warehouse: how far behind each step is, and which holds it up.

Called by `pages.health`.
"""

from __future__ import annotations

from typing import Any

from dash import html

from dashboards.pages.frame import card, table
from dashboards.shown.lag_chain import LagCause, LagChain
from dashboards.shown.rows import age_words
from dashboards.words.pages import say
from fleet.units import format_bytes_short

_UNKNOWN = "–"


def lag_chain(found: LagChain) -> Any:
    """One line per step, and a sentence that names the one that is behind."""
    waiting = _UNKNOWN if found.waiting_bytes is None else format_bytes_short(found.waiting_bytes)
    rows = (
        (say("newest sample, by its own time"), _age(found.sample_age_seconds), say("exporter and Prometheus")),
        (say("receiver wrote to the bus"), _age(found.received_age_seconds), say("receiver")),
        (say("waits on the bus"), waiting, say("bus")),
        (say("rollup stored something"), _age(found.stored_age_seconds), say("rollup and warehouse")),
    )
    is_behind = found.cause is not LagCause.NONE
    return card(
        say("From exporter to warehouse"),
        html.P(_sentence(found.cause), className="message failed" if is_behind else "soft"),
        table(((say("step"), "t"), (say("ago"), "n"), (say("whose"), "t")), rows),
        note=say("behind: more than {age}", age=age_words(found.limit_seconds)),
        export="lag",
    )


def _sentence(cause: LagCause) -> str:
    return {
        LagCause.NONE: say("Every step keeps up."),
        LagCause.SENDER: say("Nothing arrives: look at the exporter, its Prometheus and the way from there."),
        LagCause.LATE_SAMPLES: say("What arrives is old: the exporter's Prometheus is behind with its remote write."),
        LagCause.SENDER_OR_LATE: say(
            "Other clusters send, and of this one nothing new arrives: look at its exporter and its Prometheus."
        ),
        LagCause.ROLLUP: say("What arrived waits on the bus: the rollup stands still or is too slow."),
        LagCause.UNKNOWN: say("The newest sample is old, and the bus lies elsewhere: gputide doctor asks it."),
    }[cause]


def _age(seconds: float | None) -> str:
    return _UNKNOWN if seconds is None else age_words(seconds)
