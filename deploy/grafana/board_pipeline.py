"""Dashboard "Pipeline": can the figures be trusted, and how old are they?"""

from __future__ import annotations

from deploy.grafana.panel import CLUSTER, NO_SAVINGS, Board, Draw, Panel, Query, Unit

_NO_RECEIVER = "No receiver: let Prometheus scrape gputide run receive"
_NO_EXPORTER = "No exporter of gputide: dcgm-exporter and HAMi don't tell this"
_NO_PROCESS = "No process of gputide is scraped: set exporter.own_listen, or ownMetrics of the chart"
_REASONS = ("full", "unavailable", "rate", "busy")
_PASSES = (
    ("rollup", "step"), ("bridge", "poll"), ("agent", "look"), ("relief", "look"), ("tide", "step"), ("notify", "look"),
)  # fmt: skip
"""Processes that do one thing again and again, and what each calls a time of it (docs/metrics.md)."""
_CALLERS = ("agent", "admission", "relief", "tide")
"""Processes that count their requests to the Kubernetes API."""

BOARD = Board(
    uid="gputide-pipeline",
    title="gputide / Pipeline health",
    about="How old are the figures, who is refused, and which counters are in doubt?",
    variables=(CLUSTER,),
    panels=(
        Panel(
            title="Warehouse: age of the newest window",
            draw=Draw.STAT,
            queries=(Query(expression='max(gputide_warehouse_data_age_seconds{cluster=~"$cluster"})'),),
            unit=Unit.SECONDS,
            empty=NO_SAVINGS,
            about="By the clock of the data.",
            width=6,
            height=4,
        ),
        Panel(
            title="Warehouse: coverage of the last day",
            draw=Draw.STAT,
            queries=(Query(expression='min(gputide_warehouse_coverage_ratio{cluster=~"$cluster"})'),),
            unit=Unit.RATIO,
            empty=NO_SAVINGS,
            about="Windows with a row, of those expected.",
            width=6,
            height=4,
        ),
        Panel(
            title="Cards that Prometheus knows",
            draw=Draw.STAT,
            queries=(Query(expression='count(gputide:card:activity_ratio{cluster=~"$cluster"})'),),
            empty="No card is known: load gputide's recording rules and scrape an exporter",
            about="Of the recording rules.",
            width=6,
            height=4,
        ),
        Panel(
            title="Counters in doubt",
            draw=Draw.STAT,
            queries=(Query(expression='count(gputide:counter:distrusted{cluster=~"$cluster"})'),),
            empty="none in doubt",
            about="Series that failed a cross-check.",
            width=6,
            height=4,
        ),
        Panel(
            title="Samples received",
            draw=Draw.LINES,
            queries=(
                Query(
                    expression="sum by (instance) (rate(gputide_receiver_samples_total[$__rate_interval]))",
                    legend="{{instance}}",
                ),
            ),
            unit=Unit.PER_SECOND,
            empty=_NO_RECEIVER,
            about="Samples that are on the bus.",
        ),
        Panel(
            title="Bodies refused",
            draw=Draw.LINES,
            queries=tuple(
                Query(expression=f"sum(rate(gputide_receiver_refused_{reason}_total[$__rate_interval]))", legend=reason)
                for reason in _REASONS
            ),
            unit=Unit.PER_SECOND,
            empty=_NO_RECEIVER,
            about="full: no room on the bus; unavailable: storage; rate, busy: a sender sends too much.",
        ),
        Panel(
            title="Answers by status",
            draw=Draw.LINES,
            queries=(
                Query(
                    expression="sum by (code) (rate(gputide_receiver_requests_total[$__rate_interval]))",
                    legend="{{code}}",
                ),
            ),
            unit=Unit.PER_SECOND,
            empty=_NO_RECEIVER,
            about="429 asks a sender to wait; 400 is a body that nobody can read.",
        ),
        Panel(
            title="Time to answer, p99",
            draw=Draw.LINES,
            queries=(
                Query(
                    expression="histogram_quantile(0.99, "
                    "sum by (le) (rate(gputide_receiver_request_seconds_bucket[$__rate_interval])))",
                    legend="p99",
                ),
            ),
            unit=Unit.SECONDS,
            empty=_NO_RECEIVER,
            about="From the last byte of a body to its answer.",
        ),
        Panel(
            title="Prometheus behind in sending",
            draw=Draw.LINES,
            queries=(
                Query(
                    expression="prometheus_remote_storage_highest_timestamp_in_seconds\n"
                    "- on (instance) group_right ()\n"
                    "prometheus_remote_storage_queue_highest_sent_timestamp_seconds",
                    legend="{{url}}",
                ),
            ),
            unit=Unit.SECONDS,
            empty="Prometheus does not scrape itself, or sends to nobody",
            about="Newest sample it has, less the newest that it sent.",
        ),
        Panel(
            title="Exporters: age of the figures",
            draw=Draw.LINES,
            queries=(
                Query(
                    expression="topk(10, gputide_exporter_data_age_seconds)",
                    legend="{{instance}}",
                ),
            ),
            unit=Unit.SECONDS,
            empty=_NO_EXPORTER,
            about="The ten oldest; it grows while a device hangs.",
        ),
        Panel(
            title="Sources of the nodes that are silent",
            draw=Draw.TABLE,
            queries=(Query(expression='gputide_node_source_age_seconds{cluster=~"$cluster"} > 60'),),
            unit=Unit.SECONDS,
            empty="Every source answered within a minute; or no exporter of gputide runs",
            about="The driver, the kubelet and the API server, by node.",
            columns=(("node", "node"), ("source", "source")),
            value_heading="silent for",
        ),
        Panel(
            title="Cross-checks that fail",
            draw=Draw.TABLE,
            queries=(Query(expression='count by (check, counter) (gputide:counter:distrusted{cluster=~"$cluster"})'),),
            empty="No counter is in doubt",
            about="What each check means stands in docs/metrics/checks.md.",
            columns=(("check", "check"), ("counter", "counter")),
            value_heading="series",
        ),
        Panel(
            title="Processes: time since they last succeeded",
            draw=Draw.LINES,
            queries=tuple(
                Query(
                    expression=f"time() - max by (instance) (gputide_{process}_last_success_timestamp_seconds)",
                    legend=f"{process} {{{{instance}}}}",
                )
                for process, _ in _PASSES
            ),
            unit=Unit.SECONDS,
            empty=_NO_PROCESS,
            about="It grows while a process fails or hangs.",
        ),
        Panel(
            title="Processes: failures",
            draw=Draw.LINES,
            queries=tuple(
                Query(
                    expression=f"sum by (error) (rate(gputide_{process}_{one}_failures_total[$__rate_interval])) > 0",
                    legend=f"{process} {{{{error}}}}",
                )
                for process, one in _PASSES
            ),
            unit=Unit.PER_SECOND,
            empty="No process failed; or none is scraped",
            about="By the kind of error: unavailable passes by itself, misconfigured and refused need a person.",
        ),
        Panel(
            title="Processes: time of one pass, p99",
            draw=Draw.LINES,
            queries=tuple(
                Query(
                    expression="histogram_quantile(0.99, "
                    f"sum by (le) (rate(gputide_{process}_{one}_seconds_bucket[$__rate_interval])))",
                    legend=process,
                )
                for process, one in _PASSES
            ),
            unit=Unit.SECONDS,
            empty=_NO_PROCESS,
            about="A step of the roll-up or the tide, a look of the node agent, of relief or for news.",
        ),
        Panel(
            title="Processes: requests to the Kubernetes API",
            draw=Draw.LINES,
            queries=tuple(
                Query(expression=f"sum(rate(gputide_{process}_api_requests_total[$__rate_interval]))", legend=process)
                for process in _CALLERS
            ),
            unit=Unit.PER_SECOND,
            empty=_NO_PROCESS,
            about="Of all pods of a part together; watches of the node agents are not counted.",
        ),
    ),
)
"""The dashboard."""
