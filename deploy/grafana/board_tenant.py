"""Dashboard "Tenant": who uses less than its quota?"""

from __future__ import annotations

from deploy.grafana.panel import (
    CLUSTER,
    NAMESPACE,
    NO_SAVINGS,
    NO_SLICES,
    SLICE_FILTER,
    Board,
    Draw,
    Panel,
    Query,
    Unit,
)

BOARD = Board(
    uid="gputide-tenant",
    title="gputide / Tenant",
    about="What does each namespace hold, use and leave idle, against its quota?",
    variables=(CLUSTER, NAMESPACE),
    hours=168,
    panels=(
        Panel(
            title="Cards held, by state",
            draw=Draw.STACK,
            queries=(
                Query(expression=f"sum by (state) (gputide:namespace:cards{{{SLICE_FILTER}}})", legend="{{state}}"),
            ),
            empty=NO_SLICES,
            about="A shared card counts for each tenant with its share.",
            has_state_colours=True,
        ),
        Panel(
            title="Card-hours of the last 7 days",
            draw=Draw.TABLE,
            queries=(
                Query(expression=f"sort_desc(sum by (namespace, measure) (gputide_week_card_hours{{{SLICE_FILTER}}}))"),
            ),
            empty=NO_SAVINGS,
            about="What became of the card-hours that a namespace was granted, as on the tenants page.",
            columns=(("namespace", "namespace"), ("measure", "measure")),
            value_heading="card-hours",
        ),
        Panel(
            title="Granted and idle cards now, by namespace",
            draw=Draw.BARS,
            queries=(
                Query(
                    expression="sort_desc(sum by (namespace) "
                    f'(gputide:namespace:cards{{{SLICE_FILTER}, state="idle_held"}}))',
                    legend="{{namespace}}",
                ),
            ),
            empty="No namespace holds an idle card, or there is less than a day of history",
            about="Cards that are allocated but idle.",
        ),
        Panel(
            title="Quota and use",
            draw=Draw.TABLE,
            queries=(Query(expression=f"gputide:namespace:quota{{{SLICE_FILTER}}}"),),
            empty="No quota: start gputide run export cluster, or kube-state-metrics with resourcequotas",
            about="hard is what a namespace may have, used what it holds, in pieces of the resource.",
            columns=(("namespace", "namespace"), ("resource", "resource"), ("type", "hard or used")),
            value_heading="pieces",
        ),
        Panel(
            title="Framebuffer granted and used",
            draw=Draw.LINES,
            queries=(
                Query(
                    expression=f"sum by (namespace) (gputide:slice:framebuffer_granted_bytes{{{SLICE_FILTER}}})",
                    legend="{{namespace}} granted",
                ),
                Query(
                    expression=f"sum by (namespace) (gputide:slice:framebuffer_used_bytes{{{SLICE_FILTER}}})",
                    legend="{{namespace}} used",
                ),
            ),
            unit=Unit.BYTES,
            empty=NO_SLICES,
            about="The gap is what slicing could give back.",
        ),
        Panel(
            title="Activity of its slices",
            draw=Draw.LINES,
            queries=(
                Query(
                    expression=f"avg by (namespace) (gputide:slice:activity_ratio{{{SLICE_FILTER}}})",
                    legend="{{namespace}}",
                ),
            ),
            unit=Unit.RATIO,
            empty=NO_SLICES,
            about="Mean over the slices of a namespace.",
        ),
        Panel(
            title="Workloads by state",
            draw=Draw.TABLE,
            queries=(
                Query(
                    expression="sort_desc(sum by (namespace, workload, state) "
                    f"(gputide_workload_cards{{{SLICE_FILTER}}}))"
                ),
            ),
            empty=NO_SAVINGS,
            about="As the analyzer says from weeks of history.",
            columns=(("namespace", "namespace"), ("workload", "workload"), ("state", "state")),
            value_heading="cards",
        ),
    ),
)
"""The dashboard."""
