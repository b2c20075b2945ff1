"""The kubelet's part of device plugins: takes registrations, follows what is healthy, and hands out what pods ask for.

What it hands out, its pod-resources socket tells, as a kubelet's does: one entry per device and NUMA node, and as
allocatable only what is healthy. All of a resource is unhealthy while its plugin is away; what a container holds stays
with it.

Sources: kubernetes/kubernetes:pkg/kubelet/cm/devicemanager/manager.go (GetAllocatableDevices, markResourceUnhealthy,
devicesToAllocate), pkg/kubelet/cm/container_manager.go, staging/src/k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent import futures
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import descriptor_pb2  # type: ignore[import-untyped]

from tests.exporter.kubelet import INTEGER, TEXT, StandInKubelet, container, messages_of, pod

FLAG = descriptor_pb2.FieldDescriptorProto.TYPE_BOOL
COUNT = descriptor_pb2.FieldDescriptorProto.TYPE_INT32
ANSWER_SECONDS = 10.0
HEALTHY = "Healthy"
NAMESPACE = "team"
"""Of all pods."""

# A map travels as a list of its entries.
_MESSAGES = messages_of(
    "v1beta1",
    {
        "Empty": [],
        "DevicePluginOptions": [
            ("pre_start_required", 1, FLAG, False),
            ("get_preferred_allocation_available", 2, FLAG, False),
        ],
        "RegisterRequest": [
            ("version", 1, TEXT, False),
            ("endpoint", 2, TEXT, False),
            ("resource_name", 3, TEXT, False),
            ("options", 4, "DevicePluginOptions", False),
        ],
        "NUMANode": [("ID", 1, INTEGER, False)],
        "TopologyInfo": [("nodes", 1, "NUMANode", True)],
        "Device": [("ID", 1, TEXT, False), ("health", 2, TEXT, False), ("topology", 3, "TopologyInfo", False)],
        "ListAndWatchResponse": [("devices", 1, "Device", True)],
        "ContainerPreferredAllocationRequest": [
            ("available_deviceIDs", 1, TEXT, True),
            ("must_include_deviceIDs", 2, TEXT, True),
            ("allocation_size", 3, COUNT, False),
        ],
        "PreferredAllocationRequest": [("container_requests", 1, "ContainerPreferredAllocationRequest", True)],
        "ContainerPreferredAllocationResponse": [("deviceIDs", 1, TEXT, True)],
        "PreferredAllocationResponse": [("container_responses", 1, "ContainerPreferredAllocationResponse", True)],
        "ContainerAllocateRequest": [("devices_ids", 1, TEXT, True)],
        "AllocateRequest": [("container_requests", 1, "ContainerAllocateRequest", True)],
        "Entry": [("key", 1, TEXT, False), ("value", 2, TEXT, False)],
        "Mount": [("container_path", 1, TEXT, False), ("host_path", 2, TEXT, False), ("read_only", 3, FLAG, False)],
        "DeviceSpec": [
            ("container_path", 1, TEXT, False),
            ("host_path", 2, TEXT, False),
            ("permissions", 3, TEXT, False),
        ],
        "ContainerAllocateResponse": [
            ("envs", 1, "Entry", True),
            ("mounts", 2, "Mount", True),
            ("devices", 3, "DeviceSpec", True),
        ],
        "AllocateResponse": [("container_responses", 1, "ContainerAllocateResponse", True)],
    },
)


@dataclass(frozen=True, slots=True, kw_only=True)
class HandedOut:
    """What one container was given.

    Attributes:
        ids: device ids.
        environ: variables that the plugin wants the container to have.
        mounts: path in the container → path on the node.
        device_files: device files that the plugin wants the container to have.
    """

    ids: tuple[str, ...]
    environ: Mapping[str, str]
    mounts: Mapping[str, str]
    device_files: tuple[str, ...]


class RefusedByPluginError(Exception):
    """The plugin refused to hand out; the message is its own."""


class DeviceManager:
    """One kubelet as device plugins see it.

    Args:
        folder: where plugins look for its socket and put their own.
        kubelet: its pod-resources socket; is told what there is and who holds what.
    """

    def __init__(self, folder: Path, kubelet: StandInKubelet) -> None:
        self._folder = folder
        self._kubelet = kubelet
        self._lock = threading.Lock()
        self._plugins: dict[str, grpc.Channel] = {}
        self._health: dict[str, dict[str, bool]] = {}
        self._numa: dict[str, tuple[int, ...]] = {}
        self._held: dict[tuple[str, str, str], tuple[str, ...]] = {}
        self._followers: list[threading.Thread] = []
        self._server: grpc.Server | None = None

    def start(self) -> None:
        """Opens the socket at which plugins register."""
        self._server = grpc.server(futures.ThreadPoolExecutor(2))
        self._server.add_generic_rpc_handlers((_Registration(self._registered),))
        self._server.add_insecure_port(f"unix:{self._folder / 'kubelet.sock'}")
        self._server.start()

    def stop(self) -> None:
        """Closes the socket and every plugin's; who holds what is kept, as the kubelet keeps it in a file."""
        if self._server is not None:
            self._server.stop(0).wait()
            self._server = None
        with self._lock:
            channels = list(self._plugins.values())
        for channel in channels:
            channel.close()
        for follower in self._followers:
            follower.join(ANSWER_SECONDS)
        self._followers = []

    def resources(self) -> dict[str, int]:
        """How many healthy devices each resource has."""
        with self._lock:
            return {resource: sum(health.values()) for resource, health in self._health.items()}

    def devices(self, resource: str, *, healthy: bool = True) -> list[str]:
        """Ids of a resource that are healthy, or that are not, sorted."""
        with self._lock:
            return sorted(name for name, is_well in self._health.get(resource, {}).items() if is_well is healthy)

    def grant(self, pod_name: str, resource: str, count: int = 1, *, container_name: str = "main") -> HandedOut:
        """Hands a container as many devices as it asks for, those that the plugin prefers.

        Raises:
            RefusedByPluginError: the plugin refuses.
        """
        with self._lock:
            held = {name for (*_, of), names in self._held.items() if of == resource for name in names}
            free = [name for name, is_well in self._health[resource].items() if is_well and name not in held]
            channel = self._plugins[resource]
        wanted = {"available_deviceIDs": sorted(free), "allocation_size": count}
        try:
            preferred = _ask(channel, "GetPreferredAllocation", "PreferredAllocation", wanted)
            ids = tuple(preferred.deviceIDs)
            answer = _ask(channel, "Allocate", "Allocate", {"devices_ids": ids})
        except grpc.RpcError as refusal:
            raise RefusedByPluginError(refusal.details()) from refusal
        assert len(ids) == count
        assert set(ids) <= set(free)
        with self._lock:
            self._held[pod_name, container_name, resource] = ids
            self._tell()
        return HandedOut(
            ids=ids,
            environ={entry.key: entry.value for entry in answer.envs},
            mounts={mount.container_path: mount.host_path for mount in answer.mounts},
            device_files=tuple(sorted(spec.host_path for spec in answer.devices)),
        )

    def take_back(self, pod_name: str) -> None:
        """Frees all that a pod holds."""
        with self._lock:
            self._held = {name: ids for name, ids in self._held.items() if name[0] != pod_name}
            self._tell()

    def _registered(self, request: bytes) -> bytes:
        told = _MESSAGES["RegisterRequest"].FromString(request)
        assert told.version == "v1beta1"
        # Channels to one place share a connection and its pauses after failures; a plugin that is back waits for none.
        alone = [("grpc.use_local_subchannel_pool", 1)]
        channel = grpc.insecure_channel(f"unix:{self._folder / told.endpoint}", options=alone)
        with self._lock:
            self._plugins[told.resource_name] = channel
        follower = threading.Thread(target=self._follow, args=(told.resource_name, channel), daemon=True)
        self._followers.append(follower)
        follower.start()
        return b""

    def _follow(self, resource: str, channel: grpc.Channel) -> None:
        watch = channel.unary_stream(
            "/v1beta1.DevicePlugin/ListAndWatch", response_deserializer=_MESSAGES["ListAndWatchResponse"].FromString
        )
        try:
            for answer in watch(b"", wait_for_ready=True):
                with self._lock:
                    self._health[resource] = {told.ID: told.health == HEALTHY for told in answer.devices}
                    self._numa |= {told.ID: tuple(at.ID for at in told.topology.nodes) for told in answer.devices}
                    self._tell()
        except (grpc.RpcError, ValueError):  # the plugin is gone, or this kubelet has closed the channel
            pass
        with self._lock:
            if self._plugins.get(resource) is channel:
                self._health[resource] = dict.fromkeys(self._health.get(resource, {}), False)
                self._tell()

    def _tell(self) -> None:
        """Tells the pod-resources socket. Call with the lock held."""
        pods: dict[str, dict[str, list[Mapping[str, Any]]]] = {}
        for (pod_name, container_name, resource), ids in self._held.items():
            pods.setdefault(pod_name, {}).setdefault(container_name, []).extend(self._rows(resource, ids))
        self._kubelet.pods = [
            pod(NAMESPACE, name, *(container(of, *rows) for of, rows in containers.items()))
            for name, containers in pods.items()
        ]
        self._kubelet.devices = [
            row
            for resource, health in self._health.items()
            for row in self._rows(resource, [name for name, is_well in health.items() if is_well])
        ]

    def _rows(self, resource: str, ids: Sequence[str]) -> list[Mapping[str, Any]]:
        """Entries as the kubelet writes them; of a device without a place in the machine's topology one without it."""
        rows: list[Mapping[str, Any]] = []
        for name in ids:
            row = {"resource_name": resource, "device_ids": [name]}
            places = self._numa.get(name, ())
            rows += [{**row, "topology": {"nodes": [{"ID": at}]}} for at in places] if places else [row]
        return rows


class _Registration(grpc.GenericRpcHandler):  # type: ignore[misc]
    def __init__(self, register: Callable[[bytes], bytes]) -> None:
        self._register = register

    def service(self, handler_call_details):
        if handler_call_details.method != "/v1beta1.Registration/Register":
            return None
        return grpc.unary_unary_rpc_method_handler(lambda request, context: self._register(request))


def _ask(channel: grpc.Channel, method: str, message: str, wanted: Mapping[str, Any]) -> Any:
    """Asks a plugin for one container, and returns its answer for that one."""
    call = channel.unary_unary(
        f"/v1beta1.DevicePlugin/{method}",
        request_serializer=_MESSAGES[f"{message}Request"].SerializeToString,
        response_deserializer=_MESSAGES[f"{message}Response"].FromString,
    )
    request = _MESSAGES[f"{message}Request"](container_requests=[_MESSAGES[f"Container{message}Request"](**wanted)])
    (answer,) = call(request, timeout=ANSWER_SECONDS).container_responses
    return answer
