"""A scheduler of a sharing backend on a real control plane: binds the pods that name it, by rules of its own.

What it decides is in the rules; nothing here knows of gputide's plans, of its simulated cluster or of how it reads
annotations. A pod that no node takes stays pending with the rules' words and is tried again with every look. The parts
of a backend that end what its scheduler began (device plugin, kubelet) are played with the binding itself.
"""

from __future__ import annotations

import threading
import time
import urllib.error
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tests.cluster.api import Api, Manifest

_LOOK_SECONDS = 0.1


class Waits(Exception):
    """No node takes a pod now; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """Where a pod goes.

    Attributes:
        node: its node.
        annotations: what scheduler and device plugin write on it.
        labels: the same.
        reserved: pods of the backend's own that hold cards for it.
    """

    node: str
    annotations: dict[str, str] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    reserved: tuple[Manifest, ...] = ()


class Rules(Protocol):
    """What one scheduler decides."""

    @property
    def scheduler(self) -> str:
        """Its name in `spec.schedulerName`."""
        ...

    def decide(self, pod: Manifest, nodes: Sequence[Manifest], pods: Sequence[Manifest]) -> Binding:
        """Where a pod goes.

        Args:
            nodes: those that its selectors and affinities allow and that take pods.
            pods: every other pod that is bound and not over, with what stands on it.

        Raises:
            Waits: nowhere.
        """
        ...

    def abandoned(self, pods: Sequence[Manifest]) -> list[Manifest]:
        """Pods of its own that hold cards for nobody any more."""
        ...


class SchedulerDouble:
    """Looks at pods and nodes ten times a second and binds what is pending.

    Args:
        api: by whose rights it works.
        rules: what it decides.
    """

    def __init__(self, api: Api, rules: Rules) -> None:
        self._api = api
        self._rules = rules
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._play, daemon=True)
        self.faults: list[str] = []
        """What it could not write."""

    def start(self) -> None:
        """Begin to bind."""
        self._thread.start()

    def stop(self) -> None:
        """End."""
        self._over.set()
        self._thread.join(10)
        assert self.faults == []

    def _play(self) -> None:
        while not self._over.wait(_LOOK_SECONDS):
            try:
                self._look()
            except urllib.error.HTTPError as refused:
                # Somebody deleted or changed what it wrote to; the next look sees it.
                if refused.code not in (404, 409):
                    self.faults.append(f"{refused.url}: {refused.code} {refused.read()[:300]!r}")
            except OSError as lost:
                self.faults.append(str(lost))

    def _look(self) -> None:
        pods = self._api.ask("GET", "/api/v1/pods")["items"]
        standing = [pod for pod in pods if pod["spec"].get("nodeName") and pod["status"]["phase"] not in _OVER]
        for pod in self._rules.abandoned(standing):
            self._api.delete(_path(pod))
            standing.remove(pod)
        pending = [pod for pod in pods if self._is_mine(pod)]
        if not pending:
            return
        nodes = self._api.ask("GET", "/api/v1/nodes")["items"]
        for pod in sorted(pending, key=lambda one: (one["metadata"]["creationTimestamp"], one["metadata"]["name"])):
            try:
                found = self._rules.decide(pod, [node for node in nodes if takes(node, pod)], standing)
            except Waits as reason:
                self._say(pod, str(reason))
            else:
                standing += self._bind(pod, found)

    def _is_mine(self, pod: Manifest) -> bool:
        spec, metadata = pod["spec"], pod["metadata"]
        is_open = not spec.get("nodeName") and "deletionTimestamp" not in metadata
        return is_open and spec.get("schedulerName") == self._rules.scheduler

    def _bind(self, pod: Manifest, found: Binding) -> list[Manifest]:
        for own in found.reserved:
            self._api.create(f"/api/v1/namespaces/{own['metadata']['namespace']}/pods", own)
        metadata = {"annotations": found.annotations, "labels": found.labels}
        changed = self._api.patch(_path(pod), {"metadata": metadata})
        target = {"apiVersion": "v1", "kind": "Node", "name": found.node}
        named = {"name": pod["metadata"]["name"], "namespace": pod["metadata"]["namespace"]}
        self._api.ask("POST", f"{_path(pod)}/binding", {"metadata": named, "target": target})
        changed["spec"]["nodeName"] = found.node
        return [changed, *found.reserved]

    def _say(self, pod: Manifest, why: str) -> None:
        told = [one for one in pod["status"].get("conditions", ()) if one["type"] == "PodScheduled"]
        if [one.get("message") for one in told] == [why]:
            return
        since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        condition = {
            "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": why,
            "lastTransitionTime": since,
        }  # fmt: skip
        self._api.patch(f"{_path(pod)}/status", {"status": {"conditions": [condition]}})


_OVER = ("Succeeded", "Failed")


def takes(node: Manifest, pod: Manifest) -> bool:
    """Whether a node takes a pod, as far as its selector, its required node affinity and the node's cordon say.

    Source: kubernetes/kubernetes:pkg/scheduler/framework/plugins/nodeaffinity/node_affinity.go (Filter).
    """
    if node["spec"].get("unschedulable") or "deletionTimestamp" in node["metadata"]:
        return False
    labels = node["metadata"].get("labels", {})
    if any(labels.get(key) != value for key, value in pod["spec"].get("nodeSelector", {}).items()):
        return False
    affinity = pod["spec"].get("affinity", {}).get("nodeAffinity", {})
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    return required is None or any(_matches(node, term) for term in required["nodeSelectorTerms"])


def _matches(node: Manifest, term: Manifest) -> bool:
    labels, name = node["metadata"].get("labels", {}), node["metadata"]["name"]
    asked = [(one, labels.get(one["key"])) for one in term.get("matchExpressions", ())]
    asked += [(one, name) for one in term.get("matchFields", ())]
    return bool(asked) and all(_holds(one, value) for one, value in asked)


def _holds(asked: Manifest, value: str | None) -> bool:
    match asked["operator"]:
        case "In":
            return value in asked["values"]
        case "NotIn":
            return value not in asked["values"]
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case other:
            raise NotImplementedError(other)


def _path(pod: Manifest) -> str:
    return f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"
