"""Dashboard "Workload": what is this service, and does it keep its quiet hours?"""

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
    Variable,
)

_OF_WORKLOAD = f'{SLICE_FILTER}, workload=~"$workload"'
_MINE = f"and on (namespace, pod, container, card) gputide:slice:workload{{{_OF_WORKLOAD}}}"

BOARD = Board(
    uid="gputide-workload",
    title="gputide / Workload",
    about="What does this service use of what it was granted, and when is it quiet?",
    variables=(
        CLUSTER,
        NAMESPACE,
        Variable(
            name="workload",
            label="Workload",
            series=f"gputide:slice:workload{{{SLICE_FILTER}}}",
            of="workload",
            is_many=False,
        ),
    ),
    hours=168,
    panels=(
        Panel(
            title="Activity against the promise",
            draw=Draw.LINES,
            queries=(
                Query(expression=f"gputide:workload:activity_ratio:max5m{{{_OF_WORKLOAD}}}", legend="{{workload}}"),
                Query(
                    expression=f"gputide:workload:off_peak_limit_ratio{{{_OF_WORKLOAD}}}",
                    legend="promised: under this",
                ),
            ),
            unit=Unit.RATIO,
            empty=NO_SLICES,
            about="Busiest slice of each five minutes; the limit is drawn in hours in which the workload is always "
            "low.",
            width=24,
        ),
        Panel(
            title="Activity by pod",
            draw=Draw.LINES,
            queries=(Query(expression=f"gputide:slice:activity_ratio{{{SLICE_FILTER}}}\n{_MINE}", legend="{{pod}}"),),
            unit=Unit.RATIO,
            empty=NO_SLICES,
            about="One line per slice.",
        ),
        Panel(
            title="Framebuffer: used and granted",
            draw=Draw.LINES,
            queries=(
                Query(
                    expression=f"max(gputide:slice:framebuffer_used_bytes{{{SLICE_FILTER}}}\n{_MINE})",
                    legend="used, largest slice",
                ),
                Query(
                    expression=f"max(gputide:slice:framebuffer_granted_bytes{{{SLICE_FILTER}}}\n{_MINE})",
                    legend="granted to a slice",
                ),
            ),
            unit=Unit.BYTES,
            empty="No framebuffer of slices: start gputide run export node, HAMi's monitor, or dcgm-exporter with "
            "pod labels",
            about="Servers that take all memory at their start hide what they need: `gputide plan explain` says more.",
        ),
        Panel(
            title="Slices",
            draw=Draw.TABLE,
            queries=(Query(expression=f"gputide:slice:granted{{{SLICE_FILTER}}}\n{_MINE}"),),
            empty=NO_SLICES,
            about="Where it runs; a click on a card shows who else is there.",
            columns=(("namespace", "namespace"), ("pod", "pod"), ("node", "node"), ("card", "card")),
            value_heading="slices",
            links=(("card", "/d/gputide-card?var-card=${__value.text}&${__url_time_range}"),),
        ),
        Panel(
            title="What the analyzer says",
            draw=Draw.TABLE,
            queries=(Query(expression=f"gputide_workload_cards{{{_OF_WORKLOAD}}}"),),
            empty=NO_SAVINGS,
            about="State and cards, from weeks of history.",
            columns=(("namespace", "namespace"), ("workload", "workload"), ("state", "state")),
            value_heading="cards",
        ),
        Panel(
            title="Requests per second",
            draw=Draw.LINES,
            queries=(
                Query(
                    expression="sum((max by (cluster, namespace, pod) (gputide_slice_request_rate_per_second{"
                    f"{SLICE_FILTER}}}) or gputide:pod:request_rate_per_second{{{SLICE_FILTER}}}) "
                    f"and on (namespace, pod) gputide:slice:workload{{{_OF_WORKLOAD}}})",
                    legend="requests",
                ),
            ),
            unit=Unit.PER_SECOND,
            empty="No request rate: let Prometheus scrape the inference servers, or Istio's proxies beside them",
            about="What the workload's inference servers answered, all of its pods together.",
        ),
        Panel(
            title="KV cache in use",
            draw=Draw.LINES,
            queries=(
                Query(
                    expression="max(gputide_slice_kv_cache_usage_ratio{"
                    f"{SLICE_FILTER}}} and on (namespace, pod) gputide:slice:workload{{{_OF_WORKLOAD}}})",
                    legend="gputide",
                ),
                Query(
                    expression='max({__name__=~"vllm:(gpu|kv)_cache_usage_perc", '
                    f"{SLICE_FILTER}}} and on (namespace, pod) gputide:slice:workload{{{_OF_WORKLOAD}}})",
                    legend="vLLM",
                ),
            ),
            unit=Unit.RATIO,
            empty="No KV cache: scrape the servers of vLLM",
            about="A full cache means that requests wait.",
        ),
    ),
)
"""The dashboard."""
