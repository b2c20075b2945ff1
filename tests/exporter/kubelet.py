"""A kubelet's pod-resources socket, played by the real gRPC library with protobuf's own encoder.

The schema is written down here a second time, from the kubelet's, so that a wrong field number in the client shows.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Mapping, Sequence
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory  # type: ignore[import-untyped]

TEXT = descriptor_pb2.FieldDescriptorProto.TYPE_STRING
INTEGER = descriptor_pb2.FieldDescriptorProto.TYPE_INT64
UNSIGNED = descriptor_pb2.FieldDescriptorProto.TYPE_UINT64

# Message → fields: name, number, type (or message), repeated. Field 9 of a pod is one that no kubelet has yet.
SCHEMA: Mapping[str, Sequence[tuple[str, int, int | str, bool]]] = {
    "NUMANode": [("ID", 1, INTEGER, False)],
    "TopologyInfo": [("nodes", 1, "NUMANode", True)],
    "ContainerDevices": [
        ("resource_name", 1, TEXT, False),
        ("device_ids", 2, TEXT, True),
        ("topology", 3, "TopologyInfo", False),
    ],
    "ContainerMemory": [("memory_type", 1, TEXT, False), ("size", 2, UNSIGNED, False)],
    "CDIDevice": [("name", 1, TEXT, False)],
    "ClaimResource": [
        ("cdi_devices", 1, "CDIDevice", True),
        ("driver_name", 2, TEXT, False),
        ("pool_name", 3, TEXT, False),
        ("device_name", 4, TEXT, False),
        ("share_id", 5, TEXT, False),
    ],
    "DynamicResource": [
        ("claim_name", 2, TEXT, False),
        ("claim_namespace", 3, TEXT, False),
        ("claim_resources", 4, "ClaimResource", True),
    ],
    "ContainerResources": [
        ("name", 1, TEXT, False),
        ("devices", 2, "ContainerDevices", True),
        ("cpu_ids", 3, INTEGER, True),
        ("memory", 4, "ContainerMemory", True),
        ("dynamic_resources", 5, "DynamicResource", True),
    ],
    "PodResources": [
        ("name", 1, TEXT, False),
        ("namespace", 2, TEXT, False),
        ("containers", 3, "ContainerResources", True),
        ("of_the_future", 9, "TopologyInfo", True),
        ("number_of_the_future", 10, UNSIGNED, False),
    ],
    "ListPodResourcesResponse": [("pod_resources", 1, "PodResources", True)],
    "GetPodResourcesRequest": [("pod_name", 1, TEXT, False), ("pod_namespace", 2, TEXT, False)],
    "GetPodResourcesResponse": [("pod_resources", 1, "PodResources", False)],
    "AllocatableResourcesResponse": [
        ("devices", 1, "ContainerDevices", True),
        ("cpu_ids", 2, INTEGER, True),
        ("memory", 3, "ContainerMemory", True),
    ],
}
_POOL_NUMBERS = itertools.count()


def messages_of(package: str, schema: Mapping[str, Sequence[tuple[str, int, int | str, bool]]]) -> dict[str, Any]:
    """Classes of messages, by name."""
    file = descriptor_pb2.FileDescriptorProto(
        name=f"kubelet{next(_POOL_NUMBERS)}.proto", package=package, syntax="proto3"
    )
    for name, fields in schema.items():
        message = file.message_type.add(name=name)
        for field_name, number, kind, is_repeated in fields:
            field = message.field.add(name=field_name, number=number, label=3 if is_repeated else 1)
            if isinstance(kind, str):
                field.type = descriptor_pb2.FieldDescriptorProto.TYPE_MESSAGE
                field.type_name = f".{package}.{kind}"
            else:
                field.type = kind
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}")) for name in schema}


MESSAGES = messages_of("v1", SCHEMA)


def device(resource: str, *ids: str, numa: int = 1) -> dict[str, Any]:
    return {"resource_name": resource, "device_ids": ids, "topology": {"nodes": [{"ID": numa}]}}


def claim(name: str, namespace: str, *resources: Mapping[str, Any]) -> dict[str, Any]:
    return {"claim_name": name, "claim_namespace": namespace, "claim_resources": resources}


def container(name: str, *devices: Mapping[str, Any], claims: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
    memory = [{"memory_type": "memory", "size": 2**40}]
    return {"name": name, "devices": devices, "cpu_ids": [0, 300], "memory": memory, "dynamic_resources": claims}


def pod(namespace: str, name: str, *containers: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "name": name,
        "namespace": namespace,
        "containers": containers,
        "of_the_future": [{"nodes": [{"ID": 1}]}],
        "number_of_the_future": 2**60,
    }


class StandInKubelet:
    """Serves what it is given; `start` and `stop` play a restart.

    Attributes:
        pods: what `List` and `Get` answer.
        devices: what `GetAllocatableResources` answers.
        refusals: method → status and text that it is refused with.
        silence: while it is set, `List` waits for `resumed`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.pods: Sequence[Mapping[str, Any]] = ()
        self.devices: Sequence[Mapping[str, Any]] = ()
        self.refusals: dict[str, tuple[grpc.StatusCode, str]] = {}
        self.is_silent = False
        self.resumed = threading.Event()
        self.calls = 0
        self._server: grpc.Server | None = None

    def start(self) -> None:
        self._server = grpc.server(
            futures.ThreadPoolExecutor(2), options=[("grpc.max_send_message_length", 64 * 2**20)]
        )
        self._server.add_generic_rpc_handlers((_Handler(self),))
        self._server.add_insecure_port(f"unix:{self.path}")
        self._server.start()

    def stop(self) -> None:
        self.resumed.set()
        if self._server is not None:
            self._server.stop(0).wait()
            self._server = None

    def answer(self, name: str, request: bytes, context: grpc.ServicerContext) -> bytes:
        self.calls += 1
        if name in self.refusals:
            context.abort(*self.refusals[name])
        if self.is_silent:
            self.resumed.wait(10)
        if name == "GetAllocatableResources":
            return _encoded("AllocatableResourcesResponse", devices=self.devices, cpu_ids=[1, 2])
        if name == "List":
            return _encoded("ListPodResourcesResponse", pod_resources=self.pods)
        wanted = MESSAGES["GetPodResourcesRequest"].FromString(request)
        for found in self.pods:
            if (found["name"], found["namespace"]) == (wanted.pod_name, wanted.pod_namespace):
                return _encoded("GetPodResourcesResponse", pod_resources=found)
        context.abort(grpc.StatusCode.UNKNOWN, f"pod {wanted.pod_name} in namespace {wanted.pod_namespace} not found")
        raise AssertionError("abort raises")


class _Handler(grpc.GenericRpcHandler):  # type: ignore[misc]
    def __init__(self, kubelet: StandInKubelet) -> None:
        self._kubelet = kubelet

    def service(self, handler_call_details):
        service, _, name = handler_call_details.method.rpartition("/")
        if service != "/v1.PodResourcesLister":
            return None
        return grpc.unary_unary_rpc_method_handler(
            lambda request, context: self._kubelet.answer(name, request, context)
        )


def _encoded(name: str, **fields: Any) -> bytes:
    data: bytes = MESSAGES[name](**fields).SerializeToString()
    return data
