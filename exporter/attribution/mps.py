"""Which process on a card is the server of NVIDIA's Multi-Process Service, by which tenants share the card.

The driver lists the server among the processes that compute; its clients are listed as such by drivers of Volta and
later, and on older cards the server alone is. The name is any process's own word, so it counts only on a card that
shows MPS in use: NVIDIA's daemons keep a card of MPS to one process at a time (`EXCLUSIVE_PROCESS`), and clients are
listed as clients. Pure; called by `exporter.node.reader`, believed by `exporter.attribution.attributor`.

Sources: docs.nvidia.com/deploy/mps (architecture; compute modes), NVIDIA/k8s-device-plugin:cmd/mps-control-daemon/mps.
"""

from __future__ import annotations

from exporter.nvml.figures import CardFigures, ComputeMode, ProcessKind

SERVER_NAME = "nvidia-cuda-mps"
"""`nvidia-cuda-mps-server` as the kernel keeps it, which is 15 characters long."""


def is_mps_server(name: str, card: CardFigures) -> bool:
    """Whether a process of that name is the card's MPS server.

    Args:
        name: what the process calls itself, see `exporter.process_stat`.
    """
    return name == SERVER_NAME and (card.compute_mode is ComputeMode.EXCLUSIVE_PROCESS or lists_mps_clients(card))


def lists_mps_clients(card: CardFigures) -> bool:
    """Whether the driver lists any client of an MPS server on a card."""
    return any(ProcessKind.MPS in process.kinds for process in card.processes or ())
