"""`gputide run export`: a node's cards, a cluster's scheduler layer, or savings, for any Prometheus."""

from __future__ import annotations

import os
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError

from exporter.compat.translation import Compat
from exporter.serving import serve
from fleet.addresses import host_and_port
from fleet.errors import Misconfigured
from fleet.logs import LogFormat
from fleet.settings.exporter import ApiUse, ExporterSettings
from fleet.settings.faults import fault_words
from fleet.settings.settings import Settings
from fleet.units import parse_time
from gputide.node_exporter import NodeOptions, become, node_name
from gputide.session import session_of
from wire.kubernetes.access import SERVICE_ACCOUNT

app = typer.Typer(
    no_args_is_help=True,
    help="Serve /metrics: this node's cards and pods, a cluster's scheduler layer, savings, or a recorded fleet.",
)

CLUSTER_INTERVAL_SECONDS = 0.5
"""Time between two looks at the scheduler layer, which is kept up to date in the background."""

SAVINGS_INTERVAL_SECONDS = 60.0
"""Time between two looks at plans and outcomes; the history is analysed anew only when there is more of it."""

ListenOption = Annotated[str, typer.Option(metavar="HOST:PORT", help="Address to listen on.")]
CompatOption = Annotated[
    list[Compat] | None,
    typer.Option(help="Show the same figures under this exporter's names too; may be repeated."),
]


@app.command("node", epilog="Example: gputide run export node --listen 0.0.0.0:9400")
def node(
    context: typer.Context,
    replay: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Serve a recorded fleet, a folder in the neutral trace format.")
    ] = None,
    since: Annotated[str | None, typer.Option("--from", metavar="TIME", help="Where in the trace to begin.")] = None,
    listen: ListenOption = "127.0.0.1:9400",
    interval: Annotated[
        float | None, typer.Option(help="Seconds between two readings; exporter.interval_seconds.")
    ] = None,
    compat: CompatOption = None,
    processes: Annotated[
        int | None,
        typer.Option(min=0, max=1000, help="Processes on cards to show one by one; exporter.processes_max."),
    ] = None,
) -> None:
    """Serve this node's cards and pods, or a recorded fleet; a scrape never waits for a reading."""
    settings = session_of(context).settings
    host, port = host_and_port(listen)
    interval_seconds = settings.exporter.interval_seconds if interval is None else _interval(interval)
    if replay is not None:
        # The trace's drivers are no business of a node.
        from exporter.cross_checks.checks import CrossChecks
        from exporter.replay.reader import ReplayedFamilies, ReplayReader
        from exporter.trace.trace import open_trace

        reader = ReplayReader(open_trace(replay), since=parse_time(since) if since is not None else None)
        files = settings.exporter.files("exporter", settings.exporter.scrape_tokens_file)
        serve(
            reader,
            host=host,
            port=port,
            interval_seconds=interval_seconds,
            compat=compat or (),
            derivations=(ReplayedFamilies(), CrossChecks()),
            files=files,
        )
        return
    if since is not None:
        raise Misconfigured("cannot begin at --from: it goes with --replay")
    _check_extra("exporter", "pynvml", "h2")
    options = _node_options(
        context, settings, host, port, interval_seconds, tuple(word.value for word in compat or ())
    )  # fmt: skip
    become(options if processes is None else replace(options, processes_max=processes))


@app.command("cluster", epilog="Example: gputide run export cluster --listen 0.0.0.0:9401")
def cluster(context: typer.Context, listen: ListenOption = "127.0.0.1:9401") -> None:
    """Serve what a cluster's schedulers granted: cards, pods, queues, quota and pods that wait, and why."""
    from exporter.allocation.collector import AllocationCollector, ClusterLayerReader
    from exporter.cluster.kubernetes import KubernetesReader

    settings = session_of(context).settings
    host, port = host_and_port(listen)
    reader = KubernetesReader(
        kubeconfig=settings.exporter.kubeconfig, context=settings.exporter.kubeconfig_context
    )  # fmt: skip
    allocation = AllocationCollector(
        reader, cluster=settings.cluster.name, device_resources=frozenset(settings.exporter.device_resources)
    )
    serve(
        ClusterLayerReader(allocation),
        host=host,
        port=port,
        interval_seconds=CLUSTER_INTERVAL_SECONDS,
        files=settings.exporter.files("exporter", settings.exporter.scrape_tokens_file),
    )


@app.command("savings", epilog="Example: gputide run export savings --listen 0.0.0.0:9402")
def savings(
    context: typer.Context,
    listen: ListenOption = "127.0.0.1:9402",
    interval: Annotated[
        float, typer.Option(min=1.0, max=3600.0, help="Seconds between two looks at the data folder.")
    ] = SAVINGS_INTERVAL_SECONDS,
) -> None:
    """Serve what was found, promised and saved, and how old the warehouse is: plans, savings, promised quiet hours."""
    from dashboards.view_models.savings_series import SavingsReader
    from gputide.container.pages import views_of

    session = session_of(context)
    session.folder()
    host, port = host_and_port(listen)
    reader = SavingsReader(views_of(session), off_peak_ratio=session.settings.analyzer.off_peak_ratio)
    exporter = session.settings.exporter
    files = exporter.files("exporter", exporter.scrape_tokens_file)
    serve(reader, host=host, port=port, interval_seconds=interval, files=files)


def _interval(seconds: float) -> float:
    """The option, within the bounds of the setting that it stands for."""
    try:
        return ExporterSettings(interval_seconds=seconds).interval_seconds
    except ValidationError as exc:
        raise Misconfigured(
            f"cannot export with --interval {seconds:g}: exporter.{fault_words(exc, ExporterSettings)}"
        ) from exc


def _node_options(
    context: typer.Context, settings: Settings, host: str, port: int, interval_seconds: float, compat: tuple[str, ...]
) -> NodeOptions:
    exporter = settings.exporter
    program = context.find_root().params
    return NodeOptions(
        cluster=settings.cluster.name,
        node=node_name(exporter.node),
        host=host,
        port=port,
        interval_seconds=interval_seconds,
        sample_seconds=exporter.sample_seconds,
        nvml_library=None if exporter.nvml_library is None else str(exporter.nvml_library),
        pod_resources_socket=str(exporter.pod_resources_socket) if exporter.pod_resources else None,
        pod_resources_bytes_max=exporter.pod_resources_bytes_max,
        containers_folder=None if exporter.containers_folder is None else str(exporter.containers_folder),
        claims_folder=None if exporter.claims_folder is None else str(exporter.claims_folder),
        proc_folder=str(exporter.proc_folder),
        processes_max=exporter.processes_max,
        asks_api_server=_asks_api_server(settings),
        kubeconfig=None if exporter.kubeconfig is None else str(exporter.kubeconfig),
        kubeconfig_context=exporter.kubeconfig_context,
        compat=compat,
        log_level=str(program["log_level"]),
        log_format=LogFormat(program["log_format"]).value,
        files=exporter.files("exporter", exporter.scrape_tokens_file),
    )


def _asks_api_server(settings: Settings) -> bool:
    use = settings.exporter.api_server
    if use is not ApiUse.AUTO:
        return use is ApiUse.ON
    has_account = (SERVICE_ACCOUNT / "token").exists()
    return settings.exporter.kubeconfig is not None or "KUBECONFIG" in os.environ or has_account


def _check_extra(extra: str, *modules: str) -> None:
    for module in modules:
        if find_spec(module) is None:
            raise Misconfigured(f"cannot export without {module}: pip install 'gputide[{extra}]' brings it")
