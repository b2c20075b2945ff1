"""HAMi's protocol on a real control plane, small: webhook, scheduler extender, and the plugin that finishes a binding.

HAMi itself can't be had where these tests run. What it does to objects is done here to the letter, over the same
interfaces: the API server calls the webhook over TLS, a second kube-scheduler of profile `hami-scheduler` asks the
extender where a pod goes and lets it bind, and the node's plugin ends what the bind began. What it decides is in
`hami_rules`; nothing here knows of gputide's plans, of its simulated cluster or of how it reads annotations. Quotas of
namespaces are not looked at.

Sources: Project-HAMi/HAMi:pkg/scheduler/webhook.go, pkg/scheduler/scheduler.go (Filter, Bind),
pkg/device-plugin/nvidiadevice/nvinternal/plugin/server.go, charts/hami/templates/scheduler (all v2.10.0),
kubernetes/kubernetes:staging/src/k8s.io/kube-scheduler/extender/v1/types.go.
"""

from __future__ import annotations

import base64
import copy
import json
import math
import os
import queue
import signal
import ssl
import threading
import time
import urllib.error
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Protocol

from gputide.operate.engine_process import ProcessRecord, start_process, stop_process
from tests.cluster.api import Api, Manifest
from tests.cluster.hami_rules import (
    ALLOCATED,
    COUNT,
    HANDSHAKE,
    LOCK,
    MANAGED,
    NODE,
    REGISTER,
    SCHEDULER,
    TIME,
    TO_ALLOCATE,
    Denied,
    Found,
    Node,
    Registry,
    Unfit,
    admit,
    asks_of,
    book,
    locked,
    needs_lock,
    place,
    released,
)
from tests.control_plane import ENDS_WITH_US, HOLD_ANNOTATION, ControlPlane, KubernetesPrograms

NAMESPACE_LABEL = "hami-double"
"""Pods of namespaces with this label, of value `on`, pass the webhook."""

PHASE, BOUND_AT = "hami.io/bind-phase", "hami.io/bind-time"
CERTIFICATES = Path(__file__).parents[1] / "pipeline" / "certificates"
# What a scheduler knows of pods is what it was granted, of those that are not over: not all that stands in them.
_HOLDERS = "/api/v1/pods?fieldSelector=status.phase%21%3DSucceeded%2Cstatus.phase%21%3DFailed"
_METADATA = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
_NODES_SECONDS = 1.0
_ATTEMPTS, _ATTEMPT_SECONDS = 5, 1.0
_WEBHOOKS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"


class RegisteredCard(Protocol):
    """A card as a test describes it for its node's register."""

    @property
    def card(self) -> str: ...
    @property
    def slices_max(self) -> int: ...
    @property
    def framebuffer_mib(self) -> int: ...
    @property
    def core_percent(self) -> int: ...
    @property
    def device_type(self) -> str: ...
    @property
    def numa(self) -> int: ...
    @property
    def is_healthy(self) -> bool: ...
    @property
    def index(self) -> int: ...
    @property
    def mode(self) -> str | None: ...


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
        self._inits: dict[str, int] = {}
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
        pod = request["object"]
        try:
            spec = admit(pod)["spec"]
        except Denied as denied:
            response |= {"allowed": False, "status": {"message": str(denied)}}
        else:
            changed = [] if spec == pod["spec"] else [{"op": "replace", "path": "/spec", "value": spec}]
            patch = [*changed, *self._hold(request)]
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
        if not any(asks_of(pod)):
            return {"NodeNames": names}
        with self._filtering:
            nodes = self._nodes.look(names)
            for other in self._api.ask("GET", _HOLDERS, accept=_METADATA)["items"]:
                self._book(other["metadata"], nodes, pod["metadata"]["uid"])
            try:
                fits, failed = place(pod, nodes.values())
            except Unfit as wrong:
                return {"Error": f"calcScore failed {wrong} for pod {pod['metadata']['name']}"}
            if not fits:
                unknown = dict.fromkeys(set(names) - nodes.keys(), "node unregistered")
                return {"FailedNodes": {**unknown, **failed}}
            node, found = next(iter(fits.items()))
            self._assign(pod, node, found)
        return {"NodeNames": [node]}

    def _book(self, holder: Manifest, nodes: dict[str, Node], asker: str) -> None:
        annotations = holder.get("annotations", {})
        node = nodes.get(annotations.get(NODE, ""))
        if node is not None and ALLOCATED in annotations and holder["uid"] != asker:
            book(node, annotations[ALLOCATED], self._inits.get(holder["uid"], 0))

    def _assign(self, pod: Manifest, node: str, found: Found) -> None:
        annotations = {NODE: node, TIME: _seconds_now(), ALLOCATED: found.text, TO_ALLOCATE: found.text}
        self._inits[pod["metadata"]["uid"]] = len(pod["spec"].get("initContainers", ()))
        change = {"metadata": {"annotations": annotations, "labels": {NODE: node}}}
        self._api.patch(_pod_path(pod["metadata"]["namespace"], pod["metadata"]["name"]), change)

    def _bind(self, asked: Manifest) -> Manifest:
        namespace, name, node = asked["PodNamespace"], asked["PodName"], asked["Node"]
        path = _pod_path(namespace, name)
        try:
            if needs_lock(self._api.ask("GET", path)):
                self._lock_node(node, namespace, name)
            self._api.patch(path, {"metadata": {"annotations": {PHASE: "allocating", BOUND_AT: _seconds_now()}}})
            target = {"apiVersion": "v1", "kind": "Node", "name": node}
            binding = {"metadata": {"name": name, "namespace": namespace}, "target": target}
            self._api.ask("POST", f"{path}/binding", binding)
        except (Unfit, urllib.error.HTTPError) as failure:
            self._release_node(node, namespace, name)
            return {"Error": str(failure)}
        self.finish_binding(namespace, name, node)
        return {"Error": ""}

    def finish_binding(self, namespace: str, name: str, node: str) -> None:
        """Let the plugin end what the bind of a pod began."""
        self._bound.put((namespace, name, node))

    def _lock_node(self, node: str, namespace: str, name: str) -> None:
        metadata = self._api.ask("GET", f"/api/v1/nodes/{node}")["metadata"]
        value = metadata.get("annotations", {}).get(LOCK)

        def is_there(*other: str) -> bool:
            return self._api.has(_pod_path(*other))

        mine = locked(value, node, (namespace, name), datetime.now(UTC), is_there)
        change = {"metadata": {"annotations": {LOCK: mine}, "resourceVersion": metadata["resourceVersion"]}}
        self._api.patch(f"/api/v1/nodes/{node}", change)

    def _release_node(self, node: str, namespace: str, name: str) -> None:
        metadata = self._api.ask("GET", f"/api/v1/nodes/{node}")["metadata"]
        value = metadata.get("annotations", {}).get(LOCK)
        if value is not None and released(value, (namespace, name)) is None:
            self._api.patch(f"/api/v1/nodes/{node}", {"metadata": {"annotations": {LOCK: None}}})

    # --- plugin ---

    def _plug(self) -> None:
        while (bound := self._bound.get()) is not None:
            namespace, name, node = bound
            # Of one container's part a split by `;` makes two, and both are empty once it was handed out.
            done = {PHASE: "success", TO_ALLOCATE: ";;"}
            self._patch_standing(_pod_path(namespace, name), {"metadata": {"annotations": done}})
            self._patch_standing(f"/api/v1/nodes/{node}", {"metadata": {"annotations": {LOCK: None}}})

    def _patch_standing(self, path: str, change: Manifest) -> None:
        """Patch an object, at a second attempt if need be; one that was deleted meanwhile needs no patch.

        The plugin of one node that fails must not end the bindings of all others.
        """
        failure = ""
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

    @contextmanager
    def scheduler_stopped(self) -> Iterator[None]:
        """While it lasts pods are admitted, and none is bound."""
        assert self._scheduler is not None
        os.killpg(self._scheduler.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.killpg(self._scheduler.pid, signal.SIGCONT)

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
        command = [*ENDS_WITH_US, str(self._programs.kt), "kube-scheduler", f"--config={path}", "--secure-port=0"]
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
        self._threads.append(threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True))
        self._threads[-1].start()
        return int(server.server_address[1])


class NodeCache:
    """What HAMi's scheduler knows of nodes; it looks at them once a second, HAMi itself every fifteen.

    Args:
        api: the API server.
    """

    def __init__(self, api: Api) -> None:
        self._api = api
        self._registry = Registry()
        self._looked_at = -math.inf

    def forget(self) -> None:
        """Look at the nodes with the next question; what HAMi itself remembers of them stays."""
        self._looked_at = -math.inf

    def look(self, names: Collection[str]) -> dict[str, Node]:
        """Copies of the nodes that it knows of those, with nothing granted.

        Args:
            names: nodes that are asked for; one that is not known is looked for at once: a pod that is refused for it
                waits for the next change of the cluster, which may not come.
        """
        if time.monotonic() - self._looked_at > _NODES_SECONDS or not self._registry.nodes.keys() >= set(names):
            nodes = self._api.ask("GET", "/api/v1/nodes")["items"]
            self._looked_at = time.monotonic()
            self._registry.keep([node["metadata"]["name"] for node in nodes])
            for node in nodes:
                self._look_at(node)
        known = self._registry.nodes
        return {
            name: replace(known[name], cards=[copy.copy(card) for card in known[name].cards])
            for name in sorted(names)
            if name in known
        }

    def _look_at(self, node: Manifest) -> None:
        name, annotations = node["metadata"]["name"], node["metadata"].get("annotations", {})
        count = int(node["status"].get("allocatable", {}).get(COUNT, "0"))
        if REGISTER not in annotations and name not in self._registry.nodes:
            return  # HAMi shakes hands with every node; here only those that it was made for are written on
        handshake = self._registry.look(name, annotations, count, datetime.now(UTC))
        if handshake is not None:
            self._api.patch(f"/api/v1/nodes/{name}", {"metadata": {"annotations": {HANDSHAKE: handshake}}})


def hami_node(api: Api, name: str, devices: Sequence[RegisteredCard]) -> None:
    """Make a node that kwok plays and whose cards HAMi's plugin has registered."""
    entries = [
        {
            "id": device.card, "index": device.index, "count": device.slices_max, "devmem": device.framebuffer_mib,
            "devcore": device.core_percent, "type": device.device_type, "numa": device.numa, "mode": device.mode,
            "health": device.is_healthy,
        }
        for device in devices
    ]  # fmt: skip
    # MarshalNodeDevices of pkg/device/devices.go leaves out what is zero, empty or false.
    register = [{key: value for key, value in entry.items() if value} for entry in entries]
    annotations = {
        "kwok.x-k8s.io/node": "fake",
        REGISTER: json.dumps(register, separators=(",", ":")),
        HANDSHAKE: "Reported_2026-01-01 00:00:00",
    }
    api.create("/api/v1/nodes", {"metadata": {"name": name, "annotations": annotations, "labels": {"gpu": "on"}}})
    count = str(sum(device.slices_max for device in devices))
    offered = {COUNT: count, "cpu": "64", "memory": "512Gi", "pods": "110"}
    api.patch(f"/api/v1/nodes/{name}/status", {"status": {"capacity": offered, "allocatable": offered}})


def _seconds_now() -> str:
    return str(int(datetime.now(UTC).timestamp()))


def _pod_path(namespace: str, name: str) -> str:
    return f"/api/v1/namespaces/{namespace}/pods/{name}"
