"""The node exporter's own process: its options, and how `gputide run export node` becomes it.

Reading and checking settings takes some thirty megabytes, and a node exporter runs on every node: so the verb checks
them and then becomes `python -m gputide.node_exporter OPTIONS`, which knows nothing of them. Nobody calls that by hand.
Standard library and plain records only.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import traceback
from dataclasses import asdict, dataclass

from fleet.errors import EXIT_BUG
from fleet.listener_files import ListenerFiles


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeOptions:
    """Options of the process: settings of the same names (`fleet.settings.exporter`) with their defaults settled.

    Attributes:
        sample_seconds: time between two sub-samples of a card.
        nvml_library: file of the driver's library; None for the usual places.
        pod_resources_socket: the kubelet's socket; None not to ask it.
        pod_resources_bytes_max: longest answer of it.
        containers_folder: where HAMi keeps its regions; None for none.
        claims_folder: where HAMi's driver for dynamic resource allocation keeps its regions; None for none.
        proc_folder: the host's `/proc`.
        processes_max: processes with series of their own.
        asks_api_server: ask the API server for this node's pods.
        kubeconfig: kubeconfig file; None for the usual places.
        kubeconfig_context: context of it; None for the current one.
        compat: words of `--compat`.
        log_level: see `fleet.logs.set_up_logs`.
        files: TLS of the port, and who may see figures.
    """

    cluster: str
    node: str
    host: str
    port: int
    interval_seconds: float
    sample_seconds: float
    nvml_library: str | None
    pod_resources_socket: str | None
    pod_resources_bytes_max: int
    containers_folder: str | None
    claims_folder: str | None
    proc_folder: str
    processes_max: int
    asks_api_server: bool
    kubeconfig: str | None
    kubeconfig_context: str | None
    compat: tuple[str, ...]
    log_level: str
    log_format: str
    files: ListenerFiles


def node_name(named: str | None) -> str:
    """Name of this node, as Kubernetes has it: the setting `exporter.node`, the environment, or the host's name."""
    return named or os.environ.get("NODE_NAME") or socket.gethostname()


def become(options: NodeOptions) -> None:
    """Turns this process into the node exporter; does not return."""
    # Without docstrings, and with one arena of the allocator for all threads: some five megabytes.
    arguments = [sys.executable, "-OO", "-m", "gputide.node_exporter", json.dumps(asdict(options))]
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(sys.executable, arguments, {"MALLOC_ARENA_MAX": "1", **os.environ})


def options_of(text: str) -> NodeOptions:
    """The options, as `become` writes them."""
    given = json.loads(text)
    return NodeOptions(**{**given, "compat": tuple(given["compat"]), "files": ListenerFiles(**given["files"])})


def main() -> int:
    """The process.

    Returns:
        Exit status.
    """
    # structlog does without it where it is not there; only its pretty tracebacks need it, and it is six megabytes.
    sys.modules.setdefault("rich", None)  # type: ignore[arg-type]
    from gputide.container.node import serve_node

    try:
        return serve_node(options_of(sys.argv[1]))
    except Exception:  # noqa: BLE001 - the outermost frame of a process: whatever comes here is a bug, and is shown
        traceback.print_exc()
        return EXIT_BUG


if __name__ == "__main__":
    sys.exit(main())
