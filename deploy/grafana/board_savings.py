"""Dashboard "Savings": did it come true?"""

from __future__ import annotations

from deploy.grafana.panel import CLUSTER, NO_SAVINGS, Board, Draw, Panel, Query, Unit

_OF = 'cluster=~"$cluster"'
_VERIFIED = "No plan was verified yet: gputide verify, some days after gputide apply"

BOARD = Board(
    uid="gputide-savings",
    title="gputide / Savings",
    about="What was found, applied and realised, and what harm came with it?",
    variables=(CLUSTER,),
    hours=720,
    panels=(
        Panel(
            title="Services over harm budget",
            draw=Draw.STAT,
            queries=(
                Query(
                    expression=f"sum(gputide_plan_services_over_harm_budget{{{_OF}}} and on (cluster, plan_id) "
                    f'gputide_plan_info{{{_OF}, state="applied"}})'
                ),
            ),
            empty=_VERIFIED,
            about="Of plans that are applied, by the verdict of gputide verify.",
            width=8,
            height=4,
        ),
        *(
            Panel(
                title=title,
                draw=Draw.STAT,
                queries=(Query(expression=f'sum(gputide_savings_cards{{{_OF}, step="{step}"}})'),),
                empty=NO_SAVINGS,
                about=about,
                width=4,
                height=4,
            )
            for title, step, about in (
                ("Cards found", "found", "Whole cards that plans would free."),
                ("Accepted", "accepted", "Of stages that somebody approved."),
                ("Applied", "applied", "Of stages that were applied."),
                ("Realised", "realised", "Granted before, and to nobody over the measured days."),
            )
        ),
        Panel(
            title="Cards by step",
            draw=Draw.LINES,
            queries=(Query(expression=f"sum by (step) (gputide_savings_cards{{{_OF}}})", legend="{{step}}"),),
            empty=NO_SAVINGS,
            about="The funnel over time.",
        ),
        Panel(
            title="Price of a week of these cards",
            draw=Draw.LINES,
            queries=(
                Query(
                    expression=f"sum by (step, currency) (gputide_savings_per_week{{{_OF}}})",
                    legend="{{step}}, {{currency}}",
                ),
            ),
            unit=Unit.MONEY,
            empty="No price of these card models: gputide cost prices list",
            about="Amortised: the full price of a card hour.",
        ),
        Panel(
            title="Promised and realised, by plan",
            draw=Draw.BARS,
            queries=(
                Query(expression=f"gputide_plan_cards_promised{{{_OF}}}", legend="{{plan_id}} promised"),
                Query(expression=f"gputide_plan_cards_realised{{{_OF}}}", legend="{{plan_id}} realised"),
            ),
            empty=NO_SAVINGS,
            about="Whole cards.",
        ),
        Panel(
            title="Harm, by plan",
            draw=Draw.BARS,
            queries=(
                Query(expression=f"gputide_plan_violation_ratio_predicted{{{_OF}}}", legend="{{plan_id}} predicted"),
                Query(expression=f"gputide_plan_violation_ratio{{{_OF}}}", legend="{{plan_id}} observed"),
            ),
            unit=Unit.RATIO,
            empty=_VERIFIED,
            about="Share of the active time of changed services in which their card was contended or full.",
        ),
        Panel(
            title="Plans",
            draw=Draw.TABLE,
            queries=(
                Query(
                    expression=f"gputide_plan_info{{{_OF}}} * on (cluster, plan_id) group_left () "
                    "gputide_plan_cards_promised"
                ),
            ),
            empty=NO_SAVINGS,
            about="Where each plan stands.",
            columns=(("plan_id", "plan"), ("cluster", "cluster"), ("state", "state")),
            value_heading="cards",
        ),
        Panel(
            title="Unallocated or idle, last 7 days",
            draw=Draw.LINES,
            queries=(
                Query(
                    expression="sum by (measure, currency) (gputide_week_card_hours_cost"
                    f'{{{_OF}, measure=~"unallocated|idle|idle_held"}})',
                    legend="{{measure}}, {{currency}}",
                ),
            ),
            unit=Unit.MONEY,
            empty=NO_SAVINGS,
            about="What is left to find.",
        ),
    ),
)
"""The dashboard."""
