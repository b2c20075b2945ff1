"""An API server that keeps cluster-wide custom objects in memory, with versions, generations and their status apart.

For what our own code makes of `GpuPlan` and `GpuChange` objects; schemas and admission policies need the real server
(`tests/cluster`).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from enforcer.kubernetes.cluster import ClusterPlace, KubernetesCluster
from tests.enforcer.scripted_api import Heard, ScriptedApi, Told

_GROUP = "/apis/gputide.io/v1alpha1/"
_MISSING = Told(status=404, document={"kind": "Status", "message": "not found"})


class ObjectsApi:
    """Keeps objects; `objects` holds them by plural and name, for tests to look at and to change.

    `on_status` is called after each write of a status.
    """

    def __init__(self, folder: Path) -> None:
        self.objects: dict[str, dict[str, dict[str, Any]]] = {}
        self.is_away = False
        self.on_status: Callable[[], None] | None = None
        self._version = 0
        self._api = ScriptedApi(folder, lambda heard, _: self._answer(heard))
        self._opened: list[KubernetesCluster] = []

    def cluster(self) -> KubernetesCluster:
        """A connection of its own."""
        place = ClusterPlace(kubeconfig=self._api.kubeconfig, requests_per_second=1000.0, requests_burst=1000)
        self._opened.append(KubernetesCluster(place))
        return self._opened[-1]

    def heard(self, method: str) -> list[str]:
        """Paths that were asked by a method."""
        return [heard.path for heard in self._api.heard if heard.method == method]

    def change(self, plural: str, name: str, act: Callable[[dict[str, Any]], None]) -> None:
        """Change an object as somebody else does."""
        act(self.objects[plural][name])
        self._touch(self.objects[plural][name])

    def close(self) -> None:
        """Stop."""
        for one in self._opened:
            one.close()
        self._api.close()

    def _answer(self, heard: Heard) -> Told:
        if self.is_away:
            return Told(status=503, document={"kind": "Status", "message": "away"})
        if heard.path.endswith("/selfsubjectreviews"):
            return Told(status=201, document={"status": {"userInfo": {"username": "ann"}}})
        if not heard.path.startswith(_GROUP):
            return _MISSING
        plural, name, part = [*heard.path.removeprefix(_GROUP).split("/"), "", ""][:3]
        held = self.objects.setdefault(plural, {})
        if heard.method == "POST":
            return self._make(held, heard.body)
        if not name:
            return Told(document={"metadata": {"resourceVersion": str(self._version)}, "items": list(held.values())})
        if name not in held:
            return _MISSING
        return Told(document=held[name]) if heard.method == "GET" else self._write(held[name], heard.body, part)

    def _make(self, held: dict[str, dict[str, Any]], body: dict[str, Any]) -> Told:
        metadata = body["metadata"]
        name = metadata.setdefault("name", f"{metadata.get('generateName', '')}{self._version}")
        if name in held:
            return Told(status=409, document={"kind": "Status", "reason": "AlreadyExists", "message": "is there"})
        metadata.update({"generation": 1, "uid": name, "creationTimestamp": "2026-01-12T00:00:00Z"})
        held[name] = body
        self._touch(body)
        return Told(status=201, document=body)

    def _write(self, found: dict[str, Any], body: dict[str, Any], part: str) -> Told:
        version = found["metadata"]["resourceVersion"]
        if body["metadata"].get("resourceVersion", version) != version:
            return Told(status=409, document={"kind": "Status", "reason": "Conflict", "message": "has changed"})
        before = json.dumps(found["spec"], sort_keys=True)
        found["spec"] = {**found["spec"], **body.get("spec", {})} if part != "status" else found["spec"]
        found["metadata"].setdefault("annotations", {}).update(body["metadata"].get("annotations") or {})
        found["metadata"]["generation"] += json.dumps(found["spec"], sort_keys=True) != before
        found["status"] = body.get("status", found.get("status"))
        self._touch(found)
        if part == "status" and self.on_status is not None:
            self.on_status()
        return Told(document=found)

    def _touch(self, found: dict[str, Any]) -> None:
        self._version += 1
        found["metadata"]["resourceVersion"] = str(self._version)
