"""Dashboard "Fleet": which cards are idle?"""

from __future__ import annotations

from deploy.grafana.panel import (
    CARD_FILTER,
    CLUSTER,
    MODEL,
    NO_CARDS,
    NO_SAVINGS,
    NO_SLICES,
    Board,
    Draw,
    Panel,
    Query,
    Unit,
)

_STATES = "States come from the recording rules after a day of history; " + NO_CARDS[0].lower() + NO_CARDS[1:]
_CARD_LINK = ("card", "/d/gputide-card?var-card=${__value.text}&${__url_time_range}")

BOARD = Board(
    uid="gputide-fleet",
    title="gputide / Fleet",
    about="Which cards are idle, whose are they, and what do they hold?",
    variables=(CLUSTER, MODEL),
    panels=(
        Panel(
            title="Cards",
            draw=Draw.STAT,
            queries=(Query(expression=f"count(gputide:card:activity_ratio{{{CARD_FILTER}}})"),),
            empty=NO_CARDS,
            about="Cards that any exporter speaks of.",
            width=4,
            height=4,
        ),
        Panel(
            title="Granted and idle now",
            draw=Draw.STAT,
            queries=(Query(expression=f'sum(gputide:fleet:cards{{{CARD_FILTER}, state="idle_held"}})'),),
            empty="none idle-held, or less than a day of history",
            about="Cards that pods hold and on which nothing happened in the idle window.",
            width=4,
            height=4,
        ),
        Panel(
            title="Unallocated",
            draw=Draw.STAT,
            queries=(Query(expression=f'sum(gputide:fleet:cards{{{CARD_FILTER}, state="free"}})'),),
            empty="none unallocated, or grants unknown",
            about="Cards that nobody was granted; known where an exporter names the pods that hold cards.",
            width=4,
            height=4,
        ),
        Panel(
            title="Busy share",
            draw=Draw.STAT,
            queries=(Query(expression=f"avg(gputide:card:activity_ratio{{{CARD_FILTER}}})"),),
            unit=Unit.RATIO,
            empty=NO_CARDS,
            about="Mean over the cards of their busiest engine now.",
            width=4,
            height=4,
        ),
        Panel(
            title="Framebuffer in use",
            draw=Draw.STAT,
            queries=(
                Query(
                    expression=f"sum(gputide:card:framebuffer_used_bytes{{{CARD_FILTER}}})\n"
                    f"/ sum(gputide:card:framebuffer_capacity_bytes{{{CARD_FILTER}}})"
                ),
            ),
            unit=Unit.RATIO,
            empty="No capacity: add DCGM_FI_DEV_FB_FREE to dcgm-exporter's counters, or start gputide run export node",
            about="Framebuffer that is held, of what the cards have.",
            width=4,
            height=4,
        ),
        Panel(
            title="Unallocated or idle, last 7 days",
            draw=Draw.STAT,
            queries=(
                Query(
                    expression="sum by (measure, currency) (gputide_week_card_hours_cost"
                    '{cluster=~"$cluster", measure=~"unallocated|idle|idle_held"})',
                    legend="{{measure}}, {{currency}}",
                ),
            ),
            unit=Unit.MONEY,
            empty=NO_SAVINGS,
            about="Amortised price of the card-hours that nobody was granted, or that were granted and idle.",
            width=4,
            height=4,
        ),
        Panel(
            title="Cards by state",
            draw=Draw.STACK,
            queries=(Query(expression=f"sum by (state) (gputide:fleet:cards{{{CARD_FILTER}}})", legend="{{state}}"),),
            empty=_STATES,
            about="The five states of the analyzer, estimated by Prometheus from a day of history.",
            has_state_colours=True,
        ),
        Panel(
            title="Activity by model",
            draw=Draw.LINES,
            queries=(
                Query(
                    expression=f"avg by (card_model) (gputide:card:activity_ratio{{{CARD_FILTER}}})",
                    legend="{{card_model}}",
                ),
            ),
            unit=Unit.RATIO,
            empty=NO_CARDS,
            about="Mean of the busiest engine of each card.",
        ),
        Panel(
            title="Who holds idle cards",
            draw=Draw.TABLE,
            queries=(
                Query(
                    expression="sort_desc(sum by (namespace, workload, card_model) (\n"
                    "  max by (namespace, workload, card) (gputide:slice:workload)\n"
                    "  * on (card) group_left (card_model) "
                    f"(gputide:card:idle_held_bytes{{{CARD_FILTER}}} > bool 0)\n))"
                ),
            ),
            empty=f"No card is idle-held; or: {NO_SLICES[0].lower()}{NO_SLICES[1:]}",
            about="Cards that are idle and held, by who holds them.",
            columns=(("namespace", "namespace"), ("workload", "workload"), ("card_model", "card model")),
            value_heading="cards",
        ),
        Panel(
            title="Idle cards and what they hold",
            draw=Draw.TABLE,
            queries=(Query(expression=f"sort_desc(gputide:card:idle_held_bytes{{{CARD_FILTER}}})"),),
            unit=Unit.BYTES,
            empty="No card is idle-held",
            about="One row per card; a click on it opens its dashboard.",
            columns=(("node", "node"), ("card", "card"), ("card_model", "card model")),
            value_heading="framebuffer held",
            links=(_CARD_LINK,),
        ),
        Panel(
            title="Power",
            draw=Draw.LINES,
            queries=(
                Query(
                    expression=f"sum by (card_model) (gputide:card:power_watts{{{CARD_FILTER}}})",
                    legend="{{card_model}}",
                ),
            ),
            unit=Unit.WATTS,
            empty="No power: add DCGM_FI_DEV_POWER_USAGE to dcgm-exporter's counters, or start gputide run export node",
            about="Sum of what the cards draw.",
        ),
        Panel(
            title="Hottest cards",
            draw=Draw.TABLE,
            queries=(Query(expression=f"topk(10, gputide:card:temperature_celsius{{{CARD_FILTER}}})"),),
            unit=Unit.CELSIUS,
            empty="No temperature: add DCGM_FI_DEV_GPU_TEMP to dcgm-exporter's counters, or "
            "start gputide run export node",
            about="The ten hottest now.",
            columns=(("node", "node"), ("card", "card"), ("card_model", "card model")),
            value_heading="temperature",
            links=(_CARD_LINK,),
        ),
    ),
)
"""The dashboard."""
