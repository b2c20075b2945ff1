"""HAMi's protocol on a real control plane, small: webhook, scheduler extender, and the plugin that finishes a binding.

HAMi itself can't be had where these tests run. What it does to objects is done here to the letter, over the same
interfaces: the API server calls the webhook over TLS, a second kube-scheduler of profile `hami-scheduler` asks the
extender where a pod goes and lets it bind, and the node's plugin ends what the bind began. Where a pod goes is decided
by the same pure rules as in the simulated cluster; nothing here knows of gputide's plans.

Sources: Project-HAMi/HAMi:pkg/scheduler/webhook.go, pkg/scheduler/scheduler.go (Filter, Bind),
pkg/util/nodelock/nodelock.go, pkg/device-plugin/nvidiadevice/nvinternal/plugin/server.go,
kubernetes/kubernetes:staging/src/k8s.io/kube-scheduler/extender/v1/types.go.
"""

from __future__ import annotations

import base64
import json
import math
import queue
import ssl
import threading
import time
import urllib.error
from collections.abc import Callable, Collection
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from enforcer.simulated.hami_scheduler import Allocation, CardBook, NodeBook, Unplaced, book, place
from enforcer.simulated.hami_webhook import ask_of, mutate
from fleet.errors import Refused
from fleet.grammars.hami import (
    DEVICE_CORDON_ANNOTATION,
    DEVICES_ALLOCATED_ANNOTATION,
    DEVICES_TO_ALLOCATE_ANNOTATION,
    NODE_HANDSHAKE_ANNOTATION,
    NODE_REGISTER_ANNOTATION,
    VGPU_NODE_ANNOTATION,
    DeviceGrant,
    RegisteredDevice,
    parse_devices_allocated,
    parse_node_register,
    render_devices_allocated,
    render_node_register,
)
from gputide.operate.engine_process import ProcessRecord, start_process, stop_process
from tests.cluster.api import Api, Manifest
from tests.control_plane import HOLD_ANNOTATION, ControlPlane, KubernetesPrograms

SCHEDULER = "hami-scheduler"
NAMESPACE_LABEL = "hami-double"
"""Pods of namespaces with this label, of value `on`, pass the webhook."""

COUNT, FRAMEBUFFER = "nvidia.com/gpu", "nvidia.com/gpumem"
PERCENT, CORES, PRIORITY = "nvidia.com/gpumem-percentage", "nvidia.com/gpucores", "nvidia.com/priority"
MANAGED = (COUNT, FRAMEBUFFER, PERCENT, CORES, PRIORITY)
LOCK, PHASE = "hami.io/mutex.lock", "hami.io/bind-phase"
LOCK_EXPIRES = timedelta(minutes=5)

CERTIFICATES = Path(__file__).parents[1] / "pipeline" / "certificates"
# What a scheduler knows of pods is what it was granted, of those that are not over: not all that stands in them.
_HOLDERS = "/api/v1/pods?fieldSelector=status.phase%21%3DSucceeded%2Cstatus.phase%21%3DFailed"
_METADATA = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
_NODES_SECONDS = 1.0
_ATTEMPTS, _ATTEMPT_SECONDS = 5, 1.0
_WEBHOOKS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
_REASONS = {
    "too little framebuffer": "CardInsufficientMemory",
    "too few cores": "CardInsufficientCore",
    "excluded by annotation": "CardTypeMismatch",
    "use-gpuuuid": "CardUuidMismatch",
    "exclusive": "ExclusiveDeviceAllocateConflict",
    "deviceSplitCount": "CardTimeSlicingExhausted",
}


class HamiDouble:
    """HAMi's parts next to a running control plane.

    Args:
        control_plane: what it belongs to.
        programs: for its scheduler.
        api: by whose rights it works.
        folder: for its scheduler's configuration and log.
        looks_at_all_nodes: its scheduler offers all nodes to the extender; as HAMi's chart has it, of more than a
            hundred it offers some, others at the next attempt.
    """

    def __init__(
        self,
        control_plane: ControlPlane,
        programs: KubernetesPrograms,
        api: Api,
        folder: Path,
        *,
        looks_at_all_nodes: bool = False,
    ) -> None:
        self._looks_at_all_nodes = looks_at_all_nodes
        self._plane = control_plane
        self._programs = programs
        self._api = api
        self._folder = folder
        self._filtering = threading.Lock()
        self._nodes = NodeCache(api)
        self._bound: queue.Queue[tuple[str, str, str] | None] = queue.Queue()
        self.held: set[tuple[str, str]] = set()
        """Namespaces and first parts of the names of pods that are placed and never turn ready."""
        self.faults: list[str] = []
        """What the plugin could not write."""
        self._servers: list[ThreadingHTTPServer] = []
        self._threads: list[threading.Thread] = []
        self._scheduler: ProcessRecord | None = None

    def start(self) -> None:
        """Start all parts."""
        webhook = self._serve({"/webhook": self._review}, is_secured=True)
        extender = self._serve({"/filter": self._filter, "/bind": self._bind}, is_secured=False)
        self._threads.append(threading.Thread(target=self._plug, name="plugin", daemon=True))
        self._threads[-1].start()
        authority = base64.b64encode((CERTIFICATES / "authority.pem").read_bytes()).decode()
        self._api.create(
            _WEBHOOKS,
            {
                "metadata": {"name": "hami-webhook"},
                "webhooks": [
                    {
                        "name": "vgpu.hami.io",
                        "clientConfig": {"url": f"https://127.0.0.1:{webhook}/webhook", "caBundle": authority},
                        "rules": [
                            {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
                        ],
                        "namespaceSelector": {"matchLabels": {NAMESPACE_LABEL: "on"}},
                        # HAMi's own is Ignore; here a webhook that fails shall be seen.
                        "failurePolicy": "Fail",
                        "sideEffects": "None",
                        "admissionReviewVersions": ["v1"],
                    }
                ],
            },
        )
        self._start_scheduler(extender)

    def stop(self) -> None:
        """Stop all parts."""
        self._api.delete(f"{_WEBHOOKS}/hami-webhook")
        if self._scheduler is not None:
            stop_process(self._scheduler, patience_seconds=5.0)
        self._bound.put(None)
        for server in self._servers:
            server.shutdown()
            server.server_close()
        for thread in self._threads:
            thread.join(10)
        assert self.faults == []

    # --- webhook ---

    def _review(self, review: Manifest) -> Manifest:
        request = review["request"]
        response: Manifest = {"uid": request["uid"], "allowed": True}
        try:
            patch = admit(request["object"])
        except Refused as denied:
            response |= {"allowed": False, "status": {"message": str(denied)}}
        else:
            patch = [*patch, *self._hold(request)]
            if patch:
                response |= {"patchType": "JSONPatch", "patch": base64.b64encode(json.dumps(patch).encode()).decode()}
        return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}

    def look_again(self) -> None:
        """Place the next pod by nodes as they stand now, not as they stood up to a second ago."""
        self._nodes.forget()

    def _hold(self, request: Manifest) -> list[Manifest]:
        metadata = request["object"]["metadata"]
        name = metadata.get("name") or metadata.get("generateName", "")
        if not any(request["namespace"] == space and name.startswith(start) for space, start in self.held):
            return []
        annotations = {**metadata.get("annotations", {}), HOLD_ANNOTATION: "on"}
        return [{"op": "add", "path": "/metadata/annotations", "value": annotations}]

    # --- scheduler ---

    def _filter(self, asked: Manifest) -> Manifest:
        pod, names = asked["Pod"], asked["NodeNames"]
        if not any(limits.keys() & set(MANAGED) for limits in _limits(pod)):
            return {"NodeNames": names}
        with self._filtering:
            cards = {card.card: card for card in self._nodes.cards(names) if card.node in names}
            for other in self._api.ask("GET", _HOLDERS, accept=_METADATA)["items"]:
                if other["metadata"]["uid"] != pod["metadata"]["uid"]:
                    book(cards, allocations_of(other))
            nodes = {name: NodeBook(node=name, cpu_cores=None, memory_bytes=None) for name in names}
            found = place(ask_of(pod), cards.values(), nodes)
            if isinstance(found, Unplaced):
                reason = _reason(found, len(cards))
                return {"NodeNames": [], "FailedNodes": dict.fromkeys(names, reason)}
            node = cards[found[0].card].node
            self._assign(pod, node, found)
        others = {name: "not the best node" for name in names if name != node}
        return {"NodeNames": [node], "FailedNodes": others}

    def _assign(self, pod: Manifest, node: str, found: tuple[Allocation, ...]) -> None:
        grants = [
            [
                DeviceGrant(
                    card=part.card, device_type="NVIDIA", framebuffer_mib=part.framebuffer_mib,
                    core_percent=part.core_percent,
                )
                for part in found
                if part.container == container["name"]
            ]
            for container in [*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"]]
        ]  # fmt: skip
        text = render_devices_allocated(grants)
        annotations = {
            VGPU_NODE_ANNOTATION: node,
            "hami.io/vgpu-time": str(int(datetime.now(UTC).timestamp())),
            DEVICES_ALLOCATED_ANNOTATION: text,
            DEVICES_TO_ALLOCATE_ANNOTATION: text,
        }
        change = {"metadata": {"annotations": annotations, "labels": {VGPU_NODE_ANNOTATION: node}}}
        self._api.patch(_pod_path(pod["metadata"]["namespace"], pod["metadata"]["name"]), change)

    def _bind(self, asked: Manifest) -> Manifest:
        namespace, name, node = asked["PodNamespace"], asked["PodName"], asked["Node"]
        try:
            self._lock_node(node, namespace, name)
        except Refused as held:
            return {"Error": str(held)}
        pod = _pod_path(namespace, name)
        bound_at = str(int(datetime.now(UTC).timestamp()))
        try:
            self._api.patch(pod, {"metadata": {"annotations": {PHASE: "allocating", "hami.io/bind-time": bound_at}}})
            target = {"apiVersion": "v1", "kind": "Node", "name": node}
            binding = {"metadata": {"name": name, "namespace": namespace}, "target": target}
            self._api.ask("POST", f"{pod}/binding", binding)
        except urllib.error.HTTPError as refused:
            self._release_node(node)
            return {"Error": f"bind failed with status {refused.code}"}
        self.finish_binding(namespace, name, node)
        return {"Error": ""}

    def finish_binding(self, namespace: str, name: str, node: str) -> None:
        """Let the plugin end what the bind of a pod began."""
        self._bound.put((namespace, name, node))

    def _lock_node(self, node: str, namespace: str, name: str) -> None:
        found = self._api.ask("GET", f"/api/v1/nodes/{node}")
        held = found["metadata"].get("annotations", {}).get(LOCK)
        now = datetime.now(UTC)
        if held is not None and now - datetime.fromisoformat(held.partition(",")[0]) < LOCK_EXPIRES:
            raise Refused(f"node {node} has been locked within 5 minutes")
        value = f"{now.isoformat(timespec='seconds').replace('+00:00', 'Z')},{namespace},{name}"
        version = found["metadata"]["resourceVersion"]
        change = {"metadata": {"annotations": {LOCK: value}, "resourceVersion": version}}
        try:
            self._api.patch(f"/api/v1/nodes/{node}", change)
        except urllib.error.HTTPError as refused:
            raise Refused(f"node {node} was locked by somebody else ({refused.code})") from refused

    def _release_node(self, node: str) -> None:
        self._api.patch(f"/api/v1/nodes/{node}", {"metadata": {"annotations": {LOCK: None}}})

    # --- plugin ---

    def _plug(self) -> None:
        while (bound := self._bound.get()) is not None:
            namespace, name, node = bound
            done = {PHASE: "success", DEVICES_TO_ALLOCATE_ANNOTATION: ";"}
            self._patch_standing(_pod_path(namespace, name), {"metadata": {"annotations": done}})
            self._patch_standing(f"/api/v1/nodes/{node}", {"metadata": {"annotations": {LOCK: None}}})

    def _patch_standing(self, path: str, change: Manifest) -> None:
        """Patch an object, at a second attempt if need be; one that was deleted meanwhile needs no patch.

        The plugin of one node that fails must not end the bindings of all others.
        """
        for _ in range(_ATTEMPTS):
            try:
                self._api.patch(path, change)
            except urllib.error.HTTPError as refused:
                if refused.code == 404:
                    return
                failure = f"{path}: {refused.code} {refused.read()[:300]!r}"
            except OSError as lost:
                failure = f"{path}: {lost}"
            else:
                return
            time.sleep(_ATTEMPT_SECONDS)
        self.faults.append(failure)

    # --- parts ---

    def _start_scheduler(self, extender: int) -> None:
        config: Manifest = {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            # Of its own accord it binds fifty pods a second, which is nothing that a test should wait for.
            "clientConnection": {"kubeconfig": str(self._plane.kubeconfig()), "qps": 500, "burst": 500},
            "leaderElection": {"leaderElect": False},
            # A pod that found no room is tried again within a second, so that tests need not wait.
            "podInitialBackoffSeconds": 1,
            "podMaxBackoffSeconds": 1,
            "profiles": [{"schedulerName": SCHEDULER}],
            "extenders": [
                {
                    "urlPrefix": f"http://127.0.0.1:{extender}",
                    "filterVerb": "filter",
                    "bindVerb": "bind",
                    "nodeCacheCapable": True,
                    "weight": 1,
                    "httpTimeout": "30s",
                    "managedResources": [{"name": name, "ignoredByScheduler": True} for name in MANAGED],
                }
            ],
        }
        if self._looks_at_all_nodes:
            config["percentageOfNodesToScore"] = 100
        path = self._folder / "hami-scheduler.json"
        path.write_text(json.dumps(config), encoding="utf-8")
        command = [str(self._programs.kt), "kube-scheduler", f"--config={path}", "--secure-port=0"]
        log = self._folder / "hami-scheduler.log"
        environ = {"PATH": "/usr/bin:/bin", "HOME": str(self._folder)}
        self._scheduler = start_process("hami-scheduler", command, folder=self._folder, log=log, environ=environ)

    def _serve(self, routes: dict[str, Callable[[Manifest], Manifest]], *, is_secured: bool) -> int:
        """Serve JSON by POST; returns the port."""

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                answer = json.dumps(routes[self.path.partition("?")[0]](asked)).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        if is_secured:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(CERTIFICATES / "receiver.pem", CERTIFICATES / "receiver.key.pem")
            server.socket = context.wrap_socket(server.socket, server_side=True)
        self._servers.append(server)
        self._threads.append(threading.Thread(target=server.serve_forever, daemon=True))
        self._threads[-1].start()
        return int(server.server_address[1])


class NodeCache:
    """What HAMi's scheduler knows of nodes, read anew only when it does.

    A cordon that is written on a node acts once the register or what the node offers changes, or once the handshake
    does not say `Requesting`.

    Args:
        api: the API server.
    """

    def __init__(self, api: Api) -> None:
        self._api = api
        self._read: dict[str, tuple[tuple[str, str], list[CardBook]]] = {}
        self._known: list[CardBook] = []
        self._known_at = -math.inf
        self._names: frozenset[str] = frozenset()

    def forget(self) -> None:
        """Look at the nodes with the next question; what HAMi itself remembers of them stays."""
        self._known_at = -math.inf

    def cards(self, names: Collection[str]) -> list[CardBook]:
        """Books of all cards, nothing granted on them; nodes are looked at once a second, by HAMi every fifteen.

        Args:
            names: nodes that are asked for; one of which no card is known is looked for at once: a pod that is refused
                for it waits for the next change of the cluster, which may not come.
        """
        if time.monotonic() - self._known_at > _NODES_SECONDS or not self._names.issuperset(names):
            nodes = self._api.ask("GET", "/api/v1/nodes")["items"]
            self._known, self._known_at = [card for node in nodes for card in self._of_node(node)], time.monotonic()
            self._names = frozenset(card.node for card in self._known)
        return [_copied(card) for card in self._known]

    def _of_node(self, node: Manifest) -> list[CardBook]:
        name, annotations = node["metadata"]["name"], node["metadata"].get("annotations", {})
        register = annotations.get(NODE_REGISTER_ANNOTATION)
        if register is None:
            return []
        stamp = register, str(node["status"].get("allocatable", {}).get(COUNT))
        known = self._read.get(name)
        is_requested = "Requesting" in annotations.get(NODE_HANDSHAKE_ANNOTATION, "")
        if known is not None and known[0] == stamp and is_requested:
            return known[1]
        cordoned = {card.strip() for card in annotations.get(DEVICE_CORDON_ANNOTATION, "").split(",")}
        books = [_book_of(device, name, device.card in cordoned) for device in parse_node_register(register)]
        self._read[name] = (stamp, books)
        if not is_requested:
            asked_at = f"Requesting_{datetime.now(UTC):%Y-%m-%d %H:%M:%S}"
            change = {"metadata": {"annotations": {NODE_HANDSHAKE_ANNOTATION: asked_at}}}
            self._api.patch(f"/api/v1/nodes/{name}", change)
        return books


def hami_node(api: Api, name: str, devices: list[RegisteredDevice]) -> None:
    """Make a node that kwok plays and whose cards HAMi's plugin has registered."""
    annotations = {
        "kwok.x-k8s.io/node": "fake",
        NODE_REGISTER_ANNOTATION: render_node_register(devices),
        NODE_HANDSHAKE_ANNOTATION: "Reported_2026-01-01 00:00:00",
    }
    api.create("/api/v1/nodes", {"metadata": {"name": name, "annotations": annotations, "labels": {"gpu": "on"}}})
    count = str(sum(device.slices_max for device in devices))
    offered = {COUNT: count, "cpu": "64", "memory": "512Gi", "pods": "110"}
    api.patch(f"/api/v1/nodes/{name}/status", {"status": {"capacity": offered, "allocatable": offered}})


def admit(pod: Manifest) -> list[Manifest]:
    """What the webhook does to a new pod, as a JSON patch.

    Raises:
        Refused: it is denied; the message is HAMi's.
    """
    asking = [limits for limits in _limits(pod) if limits.keys() & set(MANAGED)]
    name = pod["spec"].get("schedulerName", "default-scheduler")
    if not asking or name not in ("default-scheduler", SCHEDULER):
        return []
    if pod["spec"].get("nodeName"):
        raise Refused("pod has node assigned")
    for container in pod["spec"]["containers"]:
        limits = container.get("resources", {}).get("limits", {})
        if limits.keys() & set(MANAGED) and (container.get("securityContext") or {}).get("privileged"):
            raise Refused(f"container {container['name']} is privileged and wants a GPU")
        percent = limits.get(PERCENT)
        if percent is not None and not (percent.isdecimal() and int(percent) <= 100):
            where = f"in container {container['name']}: must be an integer between 0 and 100"
            raise Refused(f"invalid {PERCENT} value {percent} {where}")
    named = {"name": pod["metadata"].get("generateName", "pod"), **pod["metadata"]}
    mutated = mutate({**pod, "metadata": named})
    return [{"op": "replace", "path": "/spec", "value": {**mutated["spec"], "schedulerName": SCHEDULER}}]


def allocations_of(pod: Manifest) -> list[Allocation]:
    """What a pod holds, by its annotation; nothing once it is over."""
    text = pod["metadata"].get("annotations", {}).get(DEVICES_ALLOCATED_ANNOTATION)
    if text is None or pod.get("status", {}).get("phase") in ("Succeeded", "Failed"):
        return []
    return [
        Allocation(
            container="", card=grant.card, framebuffer_mib=grant.framebuffer_mib, core_percent=grant.core_percent
        )
        for container in parse_devices_allocated(text)
        for grant in container
    ]


def _book_of(device: RegisteredDevice, node: str, is_cordoned: bool) -> CardBook:
    return CardBook(
        card=device.card,
        card_model=device.device_type.removeprefix("NVIDIA-"),
        node=node,
        framebuffer_mib=device.framebuffer_mib,
        slices_max=device.slices_max,
        is_cordoned=is_cordoned or not device.is_healthy,
    )


def _copied(card: CardBook) -> CardBook:
    return CardBook(
        card=card.card, card_model=card.card_model, node=card.node, framebuffer_mib=card.framebuffer_mib,
        slices_max=card.slices_max, is_cordoned=card.is_cordoned,
    )  # fmt: skip


def _reason(found: Unplaced, cards: int) -> str:
    words = [word for hint, word in _REASONS.items() if hint in found.reason]
    return ",".join(f"{cards}/{cards} {word}" for word in words) or found.reason


def _limits(pod: Manifest) -> list[dict[str, Any]]:
    containers = [*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"]]
    return [container.get("resources", {}).get("limits", {}) for container in containers]


def _pod_path(namespace: str, name: str) -> str:
    return f"/api/v1/namespaces/{namespace}/pods/{name}"
