"""Asks the kubelet over its pod-resources socket (v1) what it handed to which container.

The socket belongs to root, and so must this process, or be given it; a container mounts the kubelet's folder.

Source: kubernetes/kubelet:pkg/apis/podresources/v1/api.proto.
"""

from __future__ import annotations

from exporter.kubelet.grpc_call import STATUS_OK, STATUS_UNIMPLEMENTED, STATUS_UNKNOWN, Reply, UnaryCaller
from exporter.kubelet.pod_resources import DeviceRow, PodRow
from exporter.kubelet.wire import decode_allocatable, decode_list
from fleet.errors import Unavailable

SOCKET_PATH = "/var/lib/kubelet/pod-resources/kubelet.sock"
"""Where the kubelet listens, unless its `--root-dir` says otherwise."""

MESSAGE_BYTES_MAX = 16 * 2**20
"""Longest answer that a kubelet sends (kubernetes:pkg/kubelet/apis/podresources/constants.go)."""

SOCKET_SETTING = "exporter.pod_resources_socket"
SIZE_SETTING = "exporter.pod_resources_bytes_max"

_SERVICE = "/v1.PodResourcesLister/"


class KubeletPodResources:
    """Asks for what was handed out on this node. For one thread.

    No call takes longer than its deadline; a refusal or silence is `Unavailable`, an answer that is not the protocol or
    larger than its bound is `Corrupt`; after either, the next call starts afresh.

    Args:
        message_bytes_max: longest answer that is read, bytes.
    """

    def __init__(self, socket_path: str = SOCKET_PATH, *, message_bytes_max: int = MESSAGE_BYTES_MAX) -> None:
        self._caller = UnaryCaller(
            socket_path, socket_setting=SOCKET_SETTING, message_bytes_max=message_bytes_max, size_setting=SIZE_SETTING
        )
        self._rows: tuple[PodRow, ...] = ()
        self._allocatable: tuple[DeviceRow, ...] = ()

    def list(self, deadline_seconds: float) -> tuple[PodRow, ...]:
        """Every pod of the node, also those that finished a while ago, with what its containers were handed.

        Sorted by namespace, pod and device, so that two answers differ only where something has changed.
        """
        rows = decode_list(_answered("List", self._ask("List", deadline_seconds)))
        # The very same rows while nothing changes, so that a comparison ends at once.
        if rows != self._rows:
            self._rows = rows
        return self._rows

    def allocatable(self, deadline_seconds: float) -> tuple[DeviceRow, ...] | None:
        """Every device that may be handed out; None where the kubelet is too old to say (before 1.23)."""
        reply = self._ask("GetAllocatableResources", deadline_seconds)
        if _is_not_offered(reply):
            return None
        devices = decode_allocatable(_answered("GetAllocatableResources", reply))
        if devices != self._allocatable:
            self._allocatable = devices
        return self._allocatable

    def close(self) -> None:
        """Gives back what is held; more than once does no harm."""
        self._caller.close()

    def _ask(self, name: str, deadline_seconds: float) -> Reply:
        # Both requests are messages without fields.
        return self._caller.call(_SERVICE + name, b"", deadline_seconds)


def _answered(name: str, reply: Reply) -> bytes:
    if reply.status != STATUS_OK:
        raise Unavailable(f"cannot ask the kubelet for {name}: status {reply.status}: {reply.status_message!r}")
    return reply.message


def _is_not_offered(reply: Reply) -> bool:
    """Whether the kubelet is too old for a method, or has it behind a gate that is shut.

    Source: kubernetes:pkg/kubelet/apis/podresources/server_v1.go.
    """
    is_shut = reply.status == STATUS_UNKNOWN and "disabled" in reply.status_message
    return is_shut or reply.status == STATUS_UNIMPLEMENTED
