"""Wires the node agent: the driver, HAMi's regions and the API server behind its reader and its writer."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from enforcer.agent.hami_node_actions import HamiNodeActions
from enforcer.agent.loop import AgentLoop, AgentMetrics
from enforcer.agent.node_agent import AgentFolders, NodeAgent
from enforcer.agent.node_view import NodeView, troubled_cards
from enforcer.agent.view_server import ViewServer
from enforcer.cluster import ClusterReader
from enforcer.host_memory import PODS_GROUPS, HostMemory, host_memory
from exporter.cluster.kubernetes import KubernetesReader
from exporter.node.pods import NodePods
from exporter.nvml.pulse import CardPulses
from fleet.addresses import host_and_port
from fleet.capabilities.register import capabilities_of
from fleet.data_folder import DataFolder
from fleet.errors import Misconfigured
from fleet.settings.settings import Settings
from gputide.container.cluster import open_kubernetes
from gputide.container.node_reader import HamiNodeReader
from gputide.node_exporter import node_name
from wire.http_server import tls_contexts
from wire.port_guard import PortGuard


@contextmanager
def open_node_reader(settings: Settings) -> Iterator[HamiNodeReader]:
    """The reader of this node.

    Raises:
        Misconfigured: there is no folder of regions, or no way to the API server.
    """
    reader = KubernetesReader(
        kubeconfig=settings.enforcer.kubeconfig,
        context=settings.enforcer.kubeconfig_context,
        node=node_name(settings.exporter.node),
        setting="enforcer.kubeconfig",
    )
    library = settings.exporter.nvml_library
    pods = NodePods(reader)
    pods.start()
    node_reader = HamiNodeReader(CardPulses(None if library is None else str(library)), pods, _containers(settings))
    with closing(node_reader):
        yield node_reader


@contextmanager
def open_agent(folder: DataFolder, settings: Settings, metrics: AgentMetrics) -> Iterator[AgentLoop]:
    """The agent of this node, ready to run.

    Raises:
        Misconfigured: there is no folder of regions, or no way to the API server.
        Corrupt: the data folder can't be written.
    """
    agent_settings, enforcer = settings.agent, settings.enforcer
    node = node_name(settings.exporter.node)
    with open_node_reader(settings) as reader, open_kubernetes(settings) as cluster:
        agent = NodeAgent(
            reader,
            HamiNodeActions(cluster, cluster, node),
            AgentFolders(containers=_containers(settings), state=folder.agent),
            agent_settings,
            host_memory=_host_memory(settings),
        )
        with _open_view(settings, node) as show, metrics.api_requests.following(lambda: cluster.requests):
            yield AgentLoop(
                agent,
                _orders_of(cluster, enforcer.namespace, agent_settings.orders_config_map, node),
                metrics,
                interval_seconds=agent_settings.interval_seconds,
                pace_seconds=agent_settings.pace_seconds,
                orders_seconds=float(agent_settings.orders_seconds),
                on_view=show,
                is_troubled=lambda view: bool(
                    troubled_cards(
                        view,
                        full_ratio=agent_settings.full_ratio,
                        free_ratio_min=agent_settings.framebuffer_free_ratio_min,
                    )
                ),
            )


@contextmanager
def _open_view(settings: Settings, node: str) -> Iterator[Callable[[NodeView], None]]:
    """What shows views to relief; nobody where `agent.listen` is none."""
    listen = settings.agent.listen
    if listen is None:
        yield lambda _: None
        return
    host, port = host_and_port(listen)
    files = settings.agent.files("agent", settings.agent.tokens_file)
    server = ViewServer(
        node,
        host=host,
        port=port,
        full_ratio=settings.agent.full_ratio,
        free_ratio_min=settings.agent.framebuffer_free_ratio_min,
        tls=tls_contexts(files),
        guard=PortGuard(files, tokens_setting="tokens_file", now_seconds=time.monotonic),
    )
    server.start()
    try:
        yield server.show
    finally:
        server.stop()


def _host_memory(settings: Settings) -> Callable[[], tuple[HostMemory, ...]] | None:
    if not capabilities_of(settings.enforcer.backend).may_spill:
        return None
    return lambda: host_memory(settings.exporter.proc_folder, PODS_GROUPS)


def _orders_of(cluster: ClusterReader, namespace: str, name: str, node: str) -> Callable[[], str | None]:
    def read() -> str | None:
        found = cluster.get("ConfigMap", namespace, name)
        text = None if found is None else found.get("data", {}).get(node)
        return None if text is None else str(text)

    return read


def _containers(settings: Settings) -> Path:
    found = settings.exporter.containers_folder
    if found is None:
        raise Misconfigured("cannot run the agent without regions: exporter.containers_folder=none; name HAMi's folder")
    return found
