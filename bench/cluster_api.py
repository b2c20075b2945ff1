"""A small HTTP server that answers as a Kubernetes API server does: pages, watches, bookmarks, and what goes wrong.

Holds generated objects as the bytes that travel, so that it costs little beside the reader that is measured. Started by
`bars/devices-cluster` in a process of its own, and by tests of the exporter's cluster reader in theirs:

    python bench/cluster_api.py NODES PODS CARDS_PER_NODE

Then it prints its port, and takes two orders: `POST /orders/touch?namespace=NS&pod=NAME` grants a pod another slice,
`POST /orders/cut` ends all watches and forgets what has been, so that everything must be listed anew.
"""

from __future__ import annotations

import json
import re
import ssl
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

JsonObject = dict[str, Any]
BOOKMARK_SECONDS = 5.0
_MIB_OF_CARD = 81_920
_OBJECT_PATH = re.compile(r"(/apis?/.+)/namespaces/([^/]+)/([^/]+)/([^/]+)")
_RESOURCES = {
    "/api/v1/nodes", "/api/v1/pods", "/api/v1/resourcequotas", "/apis/apps/v1/replicasets",
    "/apis/apps/v1/statefulsets", "/apis/batch/v1/jobs",
}  # fmt: skip


class SimulatedApi:
    """Objects by path, with a version for every change; safe for several threads."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._objects: dict[str, dict[tuple[str, str], bytes]] = {path: {} for path in _RESOURCES}
        self._events: dict[str, list[tuple[int, bytes]]] = {}
        self._lists: dict[tuple[str, int], list[bytes]] = {}
        self._version = 1
        self._oldest = 1
        self._cuts = 0
        self.refused: dict[str, int] = {}
        """Status by path, for paths that are refused."""
        self.requests: list[str] = []
        """What was asked for, in order."""

    def serve(self, path: str) -> None:
        """Serves a kind from now on; the path is that of its list."""
        with self._changed:
            self._objects.setdefault(path, {})

    def put(self, path: str, manifest: JsonObject, *, kind: str | None = None) -> None:
        """Adds or replaces an object and tells all watches; `kind` overrides the event's word."""
        metadata = manifest["metadata"]
        key = (metadata.get("namespace", ""), metadata["name"])
        with self._changed:
            self._version += 1
            metadata["resourceVersion"] = str(self._version)
            body = json.dumps(manifest, separators=(",", ":")).encode()
            kind = kind or ("MODIFIED" if key in self._objects[path] else "ADDED")
            if kind == "DELETED":
                self._objects[path].pop(key, None)
            else:
                self._objects[path][key] = body
            self._tell(path, b'{"type":"%s","object":%s}\n' % (kind.encode(), body))

    def delete(self, path: str, manifest: JsonObject) -> None:
        """Takes an object away and tells all watches."""
        self.put(path, manifest, kind="DELETED")

    def find(self, path: str, namespace: str, name: str) -> JsonObject:
        """An object."""
        with self._changed:
            found: JsonObject = json.loads(self._objects[path][namespace, name])
            return found

    def cut(self, *, forget: bool) -> None:
        """Ends all watches; with `forget`, versions before now are too old to watch from, and so are page tokens."""
        with self._changed:
            self._cuts += 1
            if forget:
                self._version += 1
                self._oldest = self._version
                self._events.clear()
                self._lists.clear()
            self._changed.notify_all()

    def page(self, path: str, asked: Mapping[str, str]) -> tuple[int, bytes]:
        """Status and body of one page."""
        limit = int(asked.get("limit", "0")) or sys.maxsize
        with self._changed:
            if "continue" in asked:
                at, start = (int(part) for part in asked["continue"].split(":"))
            else:
                at, start = self._version, 0
                self._lists.setdefault((path, at), list(self._objects[path].values()))
            listed = self._lists.get((path, at))
            if listed is None:
                return HTTPStatus.GONE, _status(HTTPStatus.GONE, "The provided continue parameter is too old")
            part = listed[start : start + limit]
            more = start + limit < len(listed)
            if not more:
                del self._lists[path, at]
        metadata = {"resourceVersion": str(at)} | ({"continue": f"{at}:{start + limit}"} if more else {})
        head = json.dumps({"kind": "List", "apiVersion": "v1", "metadata": metadata})[:-1].encode()
        return HTTPStatus.OK, head + b',"items":[' + b",".join(part) + b"]}"

    def events(self, path: str, version: int, seconds: float) -> Iterator[bytes]:
        """Lines of a watch, until its time is over or it is cut."""
        deadline = time.monotonic() + seconds
        with self._changed:
            cuts, oldest = self._cuts, self._oldest
        if version < oldest:
            gone = _status(HTTPStatus.GONE, "too old resource version").decode()
            yield f'{{"type":"ERROR","object":{gone}}}\n'.encode()
            return
        place = 0
        while (left := deadline - time.monotonic()) > 0:
            with self._changed:
                if self._cuts != cuts:
                    return
                events = self._events.get(path, [])
                lines = [line for at, line in events[place:] if at > version]
                place, now = len(events), self._version
                if not lines and not self._changed.wait(min(left, BOOKMARK_SECONDS)):
                    bookmark = {"kind": "Bookmark", "metadata": {"resourceVersion": str(now)}}
                    lines = [json.dumps({"type": "BOOKMARK", "object": bookmark}).encode() + b"\n"]
            yield from lines

    def serves(self, path: str) -> bool:
        """Whether objects are listed at this path."""
        return path in self._objects

    def one(self, path: str) -> bytes | None:
        """An object by its own path; None where there is none."""
        match = _OBJECT_PATH.fullmatch(path)
        if match is None:
            return None
        prefix, namespace, plural, name = match.groups()
        with self._changed:
            return self._objects.get(f"{prefix}/{plural}", {}).get((namespace, name))

    def described(self, prefix: str) -> bytes | None:
        """What a group serves, as discovery tells it; None where there is no such group."""
        names = sorted(path.removeprefix(f"{prefix}/") for path in self._objects if path.startswith(f"{prefix}/"))
        listed = [{"name": name} for name in names if "/" not in name]
        return json.dumps({"kind": "APIResourceList", "resources": listed}).encode() if listed else None

    def _tell(self, path: str, line: bytes) -> None:
        self._events.setdefault(path, []).append((self._version, line))
        self._changed.notify_all()


def start_server(api: SimulatedApi, port: int = 0, *, tls: ssl.SSLContext | None = None) -> ThreadingHTTPServer:
    """Serve on loopback, in threads of this process; `server_address[1]` is the port. By TLS where that is given."""

    class Handler(_Handler):
        simulated = api

    server = _Server(("127.0.0.1", port), Handler)
    server.daemon_threads = True
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    return server


def fill(api: SimulatedApi, *, nodes: int, pods: int, cards_per_node: int) -> None:
    """Generate a cluster that HAMi shares: each pod of a Deployment holds a slice of one card."""
    for number in range(nodes):
        api.put("/api/v1/nodes", generated_node(number, cards_per_node))
    deployments = max(1, pods // 10)
    for number in range(deployments):
        api.put("/apis/apps/v1/replicasets", _replica_set(number))
    for number in range(pods):
        api.put("/api/v1/pods", generated_pod(number, nodes, cards_per_node, deployments))


def generated_node(number: int, cards: int) -> JsonObject:
    """A node with cards that HAMi's plugin registered."""
    register = [
        {"id": card_id(number, index), "index": index, "count": 10, "devmem": _MIB_OF_CARD, "devcore": 100,
         "type": "NVIDIA-NVIDIA A100-SXM4-80GB", "mode": "hami-core", "health": True}
        for index in range(cards)
    ]  # fmt: skip
    return {
        "metadata": {
            "name": f"node-{number}",
            "uid": f"node-uid-{number}",
            "labels": {"gpu": "on", "kubernetes.io/hostname": f"node-{number}", "zone": f"zone-{number % 3}"},
            "annotations": {"hami.io/node-nvidia-register": json.dumps(register, separators=(",", ":"))},
            "managedFields": _managed(1500),
        },
        "spec": {},
        "status": {
            "allocatable": {"cpu": "96", "memory": "1007Gi", "nvidia.com/gpu": str(10 * cards), "pods": "110"},
            "images": [{"names": [f"registry/{image}@sha256:{image:064d}"]} for image in range(30)],
        },
    }


def generated_pod(
    number: int, nodes: int, cards_per_node: int, deployments: int, *, framebuffer_mib: int = 8000
) -> JsonObject:
    """A running pod that holds a slice of one card."""
    node, card = number % nodes, number // nodes % cards_per_node
    deployment = number % deployments
    granted = f"{card_id(node, card)},NVIDIA,{framebuffer_mib},20:;"
    limits = {"cpu": "4", "memory": "16Gi", "nvidia.com/gpu": "1"}
    return {
        "metadata": {
            "namespace": f"team-{deployment % 50}",
            "name": f"svc-{deployment}-7d9c5b6f4-{number:05d}",
            "uid": f"pod-uid-{number}",
            "creationTimestamp": "2026-01-12T08:30:00Z",
            "labels": {"app": f"svc-{deployment}", "pod-template-hash": "7d9c5b6f4", "tier": "inference"},
            "annotations": {
                "hami.io/vgpu-devices-allocated": granted,
                "hami.io/vgpu-node": f"node-{node}",
                "hami.io/bind-phase": "success",
            },
            "ownerReferences": [
                {"kind": "ReplicaSet", "name": f"svc-{deployment}-7d9c5b6f4", "uid": f"rs-{deployment}",
                 "controller": True}
            ],
            "managedFields": _managed(2000),
        },
        "spec": {
            "nodeName": f"node-{node}",
            "schedulerName": "hami-scheduler",
            "containers": [
                {"name": "main", "image": "registry/triton:24.05", "resources": {"limits": limits, "requests": limits},
                 "env": [{"name": f"SETTING_{index}", "value": "x" * 20} for index in range(20)]}
            ],
        },
        "status": {
            "phase": "Running",
            "startTime": "2026-01-12T08:30:05Z",
            "conditions": [
                {"type": kind, "status": "True", "lastTransitionTime": "2026-01-12T08:30:04Z"}
                for kind in ("PodScheduled", "Initialized", "ContainersReady", "Ready")
            ],
        },
    }  # fmt: skip


def card_id(node: int, index: int) -> str:
    """UUID of a generated card."""
    return f"GPU-{node:08x}-0000-4000-8000-{index:012x}"


def _replica_set(number: int) -> JsonObject:
    owner = {"kind": "Deployment", "name": f"svc-{number}", "uid": f"deployment-{number}", "controller": True}
    return {
        "metadata": {
            "namespace": f"team-{number % 50}", "name": f"svc-{number}-7d9c5b6f4", "uid": f"rs-{number}",
            "ownerReferences": [owner],
        }
    }  # fmt: skip


def _managed(size: int) -> list[JsonObject]:
    """What the API server notes of who set which field: a third of a real object."""
    return [{"manager": "kubelet", "operation": "Update", "fieldsV1": {"f:status": "." * size}}]


def _status(code: int, message: str) -> bytes:
    return json.dumps({"kind": "Status", "status": "Failure", "code": int(code), "message": message}).encode()


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: object, client_address: object) -> None:
        """Says nothing of readers that have gone: they end their watches so."""


class _Handler(BaseHTTPRequestHandler):
    simulated: SimulatedApi
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        address = urlsplit(self.path)
        asked = {key: values[0] for key, values in parse_qs(address.query).items()}
        api = self.simulated
        api.requests.append(self.path)
        path = address.path
        # What is refused of a kind is refused of each of its objects.
        kind = _OBJECT_PATH.sub(r"\1/\3", path)
        if kind in api.refused:
            self._answer(api.refused[kind], _status(api.refused[kind], f"{path} is refused"))
        elif not api.serves(path):
            described = api.described(path) or api.one(path)
            if described is None:
                self._answer(HTTPStatus.NOT_FOUND, _status(HTTPStatus.NOT_FOUND, "not found"))
            else:
                self._answer(HTTPStatus.OK, described)
        elif "watch" in asked:
            self._watch(path, asked)
        else:
            self._answer(*api.page(path, asked))

    def do_POST(self) -> None:
        address = urlsplit(self.path)
        asked = {key: values[0] for key, values in parse_qs(address.query).items()}
        if address.path == "/orders/cut":
            self.simulated.cut(forget=True)
        else:
            pod = self.simulated.find("/api/v1/pods", asked["namespace"], asked["pod"])
            annotations = pod["metadata"]["annotations"]
            key = "hami.io/vgpu-devices-allocated"
            annotations[key] = annotations[key].replace(",8000,", ",9000,")
            self.simulated.put("/api/v1/pods", pod)
        self._answer(HTTPStatus.OK, b"{}")

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing."""

    def _watch(self, path: str, asked: Mapping[str, str]) -> None:
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        try:
            for line in self.simulated.events(path, int(asked["resourceVersion"]), float(asked["timeoutSeconds"])):
                self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
                self.wfile.flush()
            self.wfile.write(b"0\r\n\r\n")
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


if __name__ == "__main__":
    served = SimulatedApi()
    fill(served, nodes=int(sys.argv[1]), pods=int(sys.argv[2]), cards_per_node=int(sys.argv[3]))
    # Nobody watches from before now, so the events of filling are of no use.
    served.cut(forget=True)
    print(start_server(served).server_address[1], flush=True)
    threading.Event().wait()
