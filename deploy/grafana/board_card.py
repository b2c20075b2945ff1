"""Dashboard "Card": what does this card do, and who shares it?"""

from __future__ import annotations

from deploy.grafana.panel import (
    CLUSTER,
    MODEL,
    NO_CARDS,
    NO_SLICES,
    Board,
    Draw,
    Panel,
    Query,
    Unit,
    Variable,
)

_CARD = 'card=~"$card"'
_MODEL = f'cluster=~"$cluster", card_model=~"$model", {_CARD}'

BOARD = Board(
    uid="gputide-card",
    title="gputide / Card",
    about="What does this card do, who shares it, and is it healthy?",
    variables=(
        CLUSTER,
        MODEL,
        Variable(
            name="card",
            label="Card",
            series='gputide:card:activity_ratio{cluster=~"$cluster", card_model=~"$model"}',
            of="card",
            is_many=False,
        ),
    ),
    panels=(
        Panel(
            title="State",
            draw=Draw.TABLE,
            queries=(Query(expression=f"gputide:card:state{{{_MODEL}}}"),),
            empty="No state yet: it takes a day of history and gputide's recording rules",
            about="The analyzer's word, estimated by Prometheus.",
            columns=(("node", "node"), ("card_model", "card model"), ("state", "state")),
            value_heading="is so",
            height=4,
        ),
        Panel(
            title="Tenants",
            draw=Draw.STAT,
            queries=(Query(expression=f"sum(gputide:card:tenants{{{_MODEL}}})"),),
            empty=NO_SLICES,
            about="Pods that were granted a slice of it.",
            width=6,
            height=4,
        ),
        Panel(
            title="Framebuffer left",
            draw=Draw.STAT,
            queries=(Query(expression=f"min(gputide:card:framebuffer_left_ratio{{{_MODEL}}})"),),
            unit=Unit.RATIO,
            empty="No capacity: add DCGM_FI_DEV_FB_FREE to dcgm-exporter's counters, or start gputide run export node",
            about="Share of the card's framebuffer that nobody holds.",
            width=6,
            height=4,
        ),
        Panel(
            title="Engines",
            draw=Draw.LINES,
            queries=(
                Query(expression=f"gputide:card:duty_cycle_ratio{{{_MODEL}}}", legend="duty cycle"),
                Query(expression=f"gputide:card:sm_active_ratio{{{_MODEL}}}", legend="SM active"),
                Query(expression=f"gputide:card:encoder_ratio{{{_MODEL}}}", legend="encoder"),
                Query(expression=f"gputide:card:decoder_ratio{{{_MODEL}}}", legend="decoder"),
            ),
            unit=Unit.RATIO,
            empty=NO_CARDS,
            about="A duty cycle says that a kernel runs; SM active says how much of the card works.",
        ),
        Panel(
            title="Who computes on it",
            draw=Draw.STACK,
            queries=(Query(expression=f"gputide:slice:activity_ratio{{{_CARD}}}", legend="{{namespace}}/{{pod}}"),),
            unit=Unit.RATIO,
            empty=NO_SLICES,
            about="Activity of each slice.",
        ),
        Panel(
            title="Framebuffer",
            draw=Draw.LINES,
            queries=(
                Query(expression=f"gputide:card:framebuffer_capacity_bytes{{{_MODEL}}}", legend="capacity"),
                Query(expression=f"gputide:card:framebuffer_used_bytes{{{_MODEL}}}", legend="used"),
                Query(
                    expression=f"sum(gputide:slice:framebuffer_granted_bytes{{{_CARD}}})", legend="granted to slices"
                ),
            ),
            unit=Unit.BYTES,
            empty="No framebuffer: add DCGM_FI_DEV_FB_USED to dcgm-exporter's counters, or "
            "start gputide run export node",
            about="Granted above capacity is oversubscribed.",
        ),
        Panel(
            title="Framebuffer by slice",
            draw=Draw.STACK,
            queries=(
                Query(expression=f"gputide:slice:framebuffer_used_bytes{{{_CARD}}}", legend="{{namespace}}/{{pod}}"),
            ),
            unit=Unit.BYTES,
            empty=NO_SLICES,
            about="What each slice holds.",
        ),
        Panel(
            title="Temperature",
            draw=Draw.LINES,
            queries=(Query(expression=f"gputide:card:temperature_celsius{{{_MODEL}}}", legend="{{node}}"),),
            unit=Unit.CELSIUS,
            empty="No temperature: add DCGM_FI_DEV_GPU_TEMP to dcgm-exporter's counters, or "
            "start gputide run export node",
            about="Of the card's chip.",
            width=8,
        ),
        Panel(
            title="Power",
            draw=Draw.LINES,
            queries=(Query(expression=f"gputide:card:power_watts{{{_MODEL}}}", legend="{{node}}"),),
            unit=Unit.WATTS,
            empty="No power: add DCGM_FI_DEV_POWER_USAGE to dcgm-exporter's counters, or start gputide run export node",
            about="What it draws.",
            width=8,
        ),
        Panel(
            title="XID and doubts",
            draw=Draw.TABLE,
            queries=(
                Query(expression=f'label_replace(gputide:card:xid_last15m{{{_MODEL}}}, "what", "XID", "", "")'),
                Query(
                    expression="label_replace(gputide:counter:distrusted"
                    f'{{{_CARD}}}, "what", "fails $1", "check", "(.+)")'
                ),
            ),
            empty="No XID in the last 15 minutes and no counter in doubt",
            about="Faults that the driver reported, and counters that contradict each other.",
            columns=(("what", "what"), ("counter", "counter"), ("pod", "pod")),
            value_heading="code",
            width=8,
        ),
    ),
)
"""The dashboard."""
