"""Settings of the exporters: what is read of a node and of a cluster, how often, and where it lies.

Part of `fleet.settings.settings`.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

from pydantic import Field

from fleet.settings.kinds import Bytes, HostPort
from fleet.settings.listener import ListenerSettings
from fleet.units import MIB


class ApiUse(StrEnum):
    """Whether the node exporter asks the API server for this node's pods."""

    AUTO = "auto"
    """Where a service account or a kubeconfig is there."""
    ON = "on"
    OFF = "off"


class ExporterSettings(ListenerSettings):
    """What the exporters read, how often, where it lies, and who may read it from them."""

    scrape_tokens_file: Path | None = None
    """File with a line `TOKEN NAME` per scraper; TOKEN may be `sha256:` and its digest. Read again when changed."""
    own_listen: HostPort | None = None
    """Where a process that has no other port for it shows `/metrics` of itself (docs/metrics/processes-of-gputide.md
    lists which), such as `127.0.0.1:9403`, another for each process of a machine; none for nowhere. TLS and tokens are
    those above."""

    node: str | None = Field(default=None, min_length=1, max_length=253)
    """Name of this node, as Kubernetes has it; none for `NODE_NAME` of the environment, else the host's name."""
    interval_seconds: Annotated[float, Field(ge=0.5, le=3600)] = 15.0
    """Time between two readings."""
    sample_seconds: Annotated[float, Field(ge=0.1, le=60)] = 1.0
    """Time between two sub-samples of a card, of which a reading gives mean and peak."""
    nvml_library: Path | None = None
    """File of the driver's `libnvidia-ml.so.1`; none for where the loader and the usual places have it."""
    pod_resources: bool = True
    """Ask the kubelet which devices it handed to whom."""
    pod_resources_socket: Path = Path("/var/lib/kubelet/pod-resources/kubelet.sock")
    """Socket of the kubelet's pod-resources service."""
    pod_resources_bytes_max: Bytes = 16 * MIB
    """Longest answer of the kubelet that is read."""
    containers_folder: Path | None = Path("/usr/local/vgpu/containers")
    """Where HAMi and Volcano keep a folder per container; none to look at no shared regions."""
    claims_folder: Path | None = Path("/usr/local/vgpu/claims")
    """Where HAMi's driver for dynamic resource allocation keeps a folder per claim; looked at with the containers'."""
    proc_folder: Path = Path("/proc")
    """Where the host's `/proc` is."""
    processes_max: Annotated[int, Field(ge=0, le=1000)] = 0
    """Processes on cards that have series of their own, those that hold most framebuffer first; 0 for none."""
    device_resources: tuple[str, ...] = ()
    """Names of resources that count GPU devices, beyond the usual ones: HAMi's may have been given another."""
    api_server: ApiUse = ApiUse.AUTO
    """Ask the API server for this node's pods: owners, UIDs and the annotations of sharing backends."""
    kubeconfig: Path | None = None
    """Kubeconfig file; none for the pod's own service account, else `$KUBECONFIG` or `~/.kube/config`."""
    kubeconfig_context: str | None = Field(default=None, min_length=1)
    """Context of it; none for the current one."""
