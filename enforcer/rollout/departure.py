"""Watches a released node until its owner has taken it, or says why that one does not.

Called by `NodeSteps`: before anything is written it looks once more that nobody stays there; between the cordon and
everything that asks the owner for the machine it waits until the last pod that passes has ended; afterwards it waits.
Once the machine is being deleted there is no way back, so the stage counts as kept, whatever still holds the machine;
before that everything that speaks against it gives the node back.
"""

from __future__ import annotations

from enforcer.backend import Departure, NodeOwner, NodeStep
from enforcer.node_release import replacement, why_held
from enforcer.rollout.patience import PatientCluster
from fleet.sentences import Sentence, first_of, sentence

_BIND_SECONDS = 2.0
"""Within which a scheduler that chose a node before it was cordoned binds the pod to it."""


class Departures:
    """Looks at nodes that leave.

    Each call raises `Unavailable` where the cluster can't be reached.

    Args:
        empty_seconds_max: how long pods that pass may take to end on a node that is cordoned.
        seconds_max: how long an owner may take until it deletes the machine.
    """

    def __init__(
        self, cluster: PatientCluster, *, poll_seconds: float, empty_seconds_max: float, seconds_max: float
    ) -> None:
        self._cluster = cluster
        self._poll_seconds = poll_seconds
        self._empty_seconds_max = empty_seconds_max
        self._seconds_max = seconds_max

    def held(self, node: str, *, lastingly: bool = False) -> list[Sentence]:
        """What keeps a node from leaving, as of now (`why_held`); nothing where it is gone."""
        manifest = self._cluster.get("Node", "", node)
        if manifest is None:
            return []
        pods, budgets = self._cluster.list_objects("Pod"), self._cluster.list_objects("PodDisruptionBudget")
        return why_held(manifest, pods, budgets, lastingly=lastingly)

    def clear(self, step: NodeStep) -> list[Sentence]:
        """Wait until the last pod that passes has ended on a cordoned node; returns why it is to be given back instead.

        A node whose machine is on its way out is not looked at.
        """
        if self.has_left(step):
            return []
        self._cluster.pause(_BIND_SECONDS)
        waited = _BIND_SECONDS
        while held := self.held(step.node):
            lasting = self.held(step.node, lastingly=True)
            if lasting:
                return [sentence("release.refused", node=step.node, why=lasting[0])]
            if waited >= self._empty_seconds_max:
                return [sentence("release.not_empty", node=step.node, seconds=waited, why=held[0])]
            self._cluster.pause(self._poll_seconds)
            waited += self._poll_seconds
        return []

    def has_left(self, step: NodeStep) -> bool:
        """Whether a node's machine is gone, or on its way out without a way back."""
        if step.departure is None:
            return False
        machine = self._cluster.get(*step.departure.machine)
        return machine is None or machine["metadata"].get("deletionTimestamp") is not None

    def wait(self, step: NodeStep, departure: Departure) -> list[Sentence]:
        """Wait until a node is gone; returns why it is to be given back instead."""
        waited, old = 0.0, self._cluster.get(*departure.machine)
        while departure.owner is not NodeOwner.NOBODY:
            is_gone = self._cluster.get("Node", "", step.node) is None
            if is_gone and self._cluster.get(*departure.machine) is None:
                break
            has_left, held = self.has_left(step), self.held(step.node, lastingly=True)
            if not has_left:
                kind, namespace, _ = departure.machine
                machines = self._cluster.list_objects(kind, namespace or None)
                new = replacement(machines, old, departure.newest)
                if new is not None:
                    return [sentence("release.replaced", node=step.node, machine=str(new["metadata"]["name"]))]
                if held and held[0].code == "release.serves":
                    return [sentence("release.refused", node=step.node, why=held[0])]
            if waited >= self._seconds_max:
                why = first_of(held) if held else sentence(f"release.untaken_{departure.owner.value}")
                late = sentence("release.late", node=step.node, seconds=waited, why=why)
                return [] if has_left else [late]
            self._cluster.pause(self._poll_seconds)
            waited += self._poll_seconds
        return []
