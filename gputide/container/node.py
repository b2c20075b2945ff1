"""Wires the node exporter: options to the driver, the kubelet, the API server and HAMi's regions.

Loaded by the node exporter's process alone; standard library, numpy and the drivers of what is asked.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from exporter.attribution.process_places import ProcessPlaces
from exporter.compat.translation import Compat
from exporter.cross_checks.checks import CrossChecks
from exporter.kubelet.client import KubeletPodResources
from exporter.node.objects import NodeLookups
from exporter.node.pods import NodePods
from exporter.node.reader import NodeReader, NodeSources
from exporter.nvml.cards import NvmlCards
from exporter.nvml.reader import NvmlReader
from exporter.process_series import ProcessSeries
from exporter.process_stat import ProcessStats
from exporter.regions.reader import HamiReader
from exporter.serving import serve
from fleet.errors import GputideError
from fleet.logs import LogFormat, set_up_logs

if TYPE_CHECKING:
    from gputide.node_exporter import NodeOptions


def serve_node(options: NodeOptions) -> int:
    """Serves this node until SIGINT or SIGTERM; returns the exit status."""
    set_up_logs(level=options.log_level, log_format=LogFormat(options.log_format))
    try:
        serve(
            _reader(options),
            host=options.host,
            port=options.port,
            interval_seconds=options.interval_seconds,
            compat=[Compat(word) for word in options.compat],
            derivations=(CrossChecks(),),
            files=options.files,
        )
    except GputideError as exc:
        sys.stderr.write(f"gputide: {exc}\n")
        return exc.exit_status
    return 0


def _reader(options: NodeOptions) -> NodeReader:
    cards = NvmlCards(library_path=options.nvml_library, sample_seconds=options.sample_seconds)
    pods = _pods(options) if options.asks_api_server else None
    if pods is not None:
        pods.start()
    return NodeReader(
        NodeSources(
            cards=NvmlReader(cards, cluster=options.cluster, node=options.node),
            kubelet=None
            if options.pod_resources_socket is None
            else KubeletPodResources(
                options.pod_resources_socket, message_bytes_max=options.pod_resources_bytes_max
            ),
            pods=pods,
            processes=ProcessPlaces(options.proc_folder),
            regions=_regions(options),
        ),
        cluster=options.cluster,
        node=options.node,
        process_series=_process_series(options),
    )  # fmt: skip


def _regions(options: NodeOptions) -> HamiReader | None:
    if options.containers_folder is None:
        return None
    claims = None if options.claims_folder is None else Path(options.claims_folder)
    return HamiReader(Path(options.containers_folder), claims)


def _process_series(options: NodeOptions) -> ProcessSeries | None:
    if options.processes_max == 0:
        return None
    stats = ProcessStats(options.proc_folder)
    return ProcessSeries(node=options.node, processes_max=options.processes_max, stats=stats)


def _pods(options: NodeOptions) -> NodePods:
    # Loaded where it is used alone: a node without it keeps a megabyte.
    from exporter.cluster.kubernetes import KubernetesReader

    reader = KubernetesReader(
        kubeconfig=None if options.kubeconfig is None else Path(options.kubeconfig),
        context=options.kubeconfig_context,
        node=options.node,
    )
    return NodePods(reader, lookups=NodeLookups(reader))
