"""Pods of a simulated cluster that nobody controls, and how a ReplicaSet adopts one whose label is its own.

One piece of the simulated cluster. A pod that is adopted takes over what one of its owner's pods had to do, and its
owner, which has one too many then, lets one go.

Source: kubernetes:pkg/controller/controller_ref_manager.go (ClaimPods).
"""

from __future__ import annotations

import json

from enforcer.manifest import Manifest
from enforcer.simulated.controllers import Controllers
from enforcer.simulated.revisions import HASH_LABEL, HASH_LABELS, pod_uid
from enforcer.simulated.store import SimulatedStore
from enforcer.simulated.system import SharingSystem


class LoosePods:
    """Makes pods without an owner, and lets owners take them over."""

    def __init__(self, store: SimulatedStore, controllers: Controllers, system: SharingSystem) -> None:
        self._store = store
        self._system = system
        self._controllers = controllers

    def make(self, body: Manifest) -> None:
        """Make a pod that nobody controls, and place it.

        Raises:
            Refused: the sharing system's webhook denies it.
        """
        metadata = body["metadata"]
        name = metadata["name"]
        uid = pod_uid(metadata["namespace"], name, self._store.number("version"))
        pod = self._system.mutate({**body, "metadata": {"annotations": {}, "labels": {}, **metadata, "uid": uid}})
        self._controllers.enter(pod, ("Pod", name), name)

    def adopt(self, namespace: str, name: str) -> None:
        """Let the ReplicaSet whose label a pod without a controller carries take it over, if there is one."""
        store = self._store
        (pod,) = store.pods("namespace=? AND name=?", namespace, name)
        labels = pod.body["metadata"].get("labels", {})
        label = next((name for name in (HASH_LABEL, *HASH_LABELS.values()) if name in labels), None)
        if pod.owner_kind != "Pod" or label is None:
            return
        makers = store.rows(
            "SELECT body FROM objects WHERE kind='ReplicaSet' AND namespace=? "
            f"AND json_extract(body, '$.metadata.labels.\"{label}\"')=?",
            namespace, labels[label],
        )  # fmt: skip
        if not makers:
            return
        maker = json.loads(makers[0][0])["metadata"]
        kind, owner_name = (maker["ownerReferences"][0][part] for part in ("kind", "name"))
        owner = store.object_body(kind, namespace, owner_name)
        if owner is None:
            return
        reference = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": maker["name"], "controller": True}
        body = {**pod.body, "metadata": {**pod.body["metadata"], "ownerReferences": [reference]}}
        plays = self._part_to_play(owner[1]) or name
        store.write(
            "UPDATE pods SET owner_kind=?, owner_name=?, revision=?, plays=?, body=? WHERE namespace=? AND name=?",
            [(kind, owner_name, labels[label], plays, json.dumps(body), namespace, name)],
        )
        self._controllers.reconcile(owner[1])

    def _part_to_play(self, owner: Manifest) -> str | None:
        """A pod of the trace that nobody plays, else one that is played by the pod that goes first."""
        metadata = owner["metadata"]
        pods = self._controllers.pods_of(owner["kind"], metadata["namespace"], metadata["name"])
        roster = self._store.roster(owner["kind"], metadata["namespace"], metadata["name"])
        played = {pod.plays for pod in pods}
        going = {pod.name: pod.going for pod in self._controllers.rolling_pods(owner, pods)}
        first = min(pods, key=lambda pod: going[pod.name], default=None)
        return next((row[0] for row in roster if row[0] not in played), None if first is None else first.plays)
