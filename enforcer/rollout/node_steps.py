"""Carries out what nodes need until their cards are shared in another way: emptied, plugins made anew, waited for.

Called by the rollout between the backend's configuration and the pods that rely on it, and by restoration after it.
Every step looks first and does only what is missing, so that it can be repeated after a crash: a plugin pod that was
there before counts as old, a node that we closed carries the plan's id.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from enforcer.backend import ROUNDED_MIB, NodeStep
from enforcer.dialect import Dialect
from enforcer.manifest import Manifest, field_of
from enforcer.ownership import controller_of
from enforcer.rollout.departure import Departures
from enforcer.rollout.patience import PatientCluster
from enforcer.seat import is_over, is_ready
from fleet.errors import Corrupt, Refused
from fleet.sentences import Sentence, first_of, listed, sentence
from fleet.units import MIB

CLOSED_ANNOTATION = "gputide.io/closed-for"
"""On a node that was closed to new pods for a plan: the plan's id."""

_CLOSED = f"metadata.annotations[{CLOSED_ANNOTATION}]"
_UNSCHEDULABLE = "spec.unschedulable"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStepPolicy:
    """How patient to be with nodes.

    Attributes:
        ready_seconds_max: how long a node may take until it shares its cards as it should.
        empty_seconds_max: how long pods that pass may take to end on a node that is released.
        leave_seconds_max: how long its owner may take to take a released node.
    """

    poll_seconds: float = 10.0
    ready_seconds_max: float = 900.0
    empty_seconds_max: float = 900.0
    leave_seconds_max: float = 1800.0


class NodeSteps:
    """Empties nodes, starts their plugins anew, and waits for them.

    Each call returns what did not go well in time, one sentence each, and raises `Unavailable` where the cluster can't
    take it.
    """

    def __init__(self, cluster: PatientCluster, policy: NodeStepPolicy, dialect: Dialect) -> None:
        self._cluster = cluster
        self._policy = policy
        self._dialect = dialect
        self._departures = Departures(
            cluster, poll_seconds=policy.poll_seconds, empty_seconds_max=policy.empty_seconds_max,
            seconds_max=policy.leave_seconds_max,
        )  # fmt: skip

    def has_left(self, step: NodeStep) -> bool:
        """Whether a released node's machine is gone, or on its way out without a way back."""
        return self._departures.has_left(step)

    def empty(
        self, steps: Sequence[NodeStep], plan_id: str, homeless: Collection[tuple[str, str]] = ()
    ) -> list[Sentence]:
        """Close nodes whose pods must leave, and let those go; before the nodes' own fields are written.

        Where no stage gives them another place, one pod of each maker leaves at a time, and the next one when as many
        are ready as were; a pod that nobody looked at before stays, and the node with it.
        The plan's id marks nodes that are closed for it.

        Args:
            homeless: pods that no other node has room for, which are not waited for.
        """
        released = (
            (step.node, self._departures.held(step.node, lastingly=True))
            for step in steps
            if step.departure is not None and not self.has_left(step)
        )
        failures = [sentence("release.refused", node=node, why=first_of(why)) for node, why in released if why]
        emptied = [
            step for step in steps if (step.leaving or step.back or step.offered_before) and not self._is_ready(step)
        ]
        # All that empty at once are closed first, or who leaves the one comes to the next.
        for step in emptied:
            if not step.back:
                self._close(step.node, plan_id)
        for step in emptied:
            if step.back:
                self._close(step.node, plan_id)
            leaving = self._still_there(step)
            strangers = sorted({*map(_identity, leaving)} - {*step.leaving})
            if strangers:
                failures.append(sentence("rollout.pod_came", pod="/".join(strangers[0]), node=step.node))
                continue
            were_ready = self._ready_of({namespace for namespace, _ in step.leaving if step.back}, homeless)
            for wave in _waves(leaving) if step.back else [leaving]:
                held = [why for pod in map(_identity, wave) if (why := self._evict(pod, f"evict {'/'.join(pod)}"))]
                held = held or self._wait(step.node, lambda: self._not_up(were_ready))  # noqa: B023 - called at once
                failures += held
                if held:
                    break
            else:
                failures += self._wait(step.node, lambda: self._leavers(step))  # noqa: B023 - called at once
        return failures

    def clear(self, steps: Sequence[NodeStep]) -> list[Sentence]:
        """Wait until nothing runs on released nodes any more, once these are cordoned; other steps are passed over."""
        return [why for step in steps if step.departure is not None for why in self._departures.clear(step)]

    def settle(self, steps: Sequence[NodeStep], plan_id: str) -> list[Sentence]:
        """Start plugins anew, wait until nodes share their cards as they should, and open what `empty` closed.

        A node that does not get ready stays closed.
        """
        failures: list[Sentence] = []
        for step in steps:
            failures += self._restart(
                step, [pod for pod in step.restarts if self._cluster.get("Pod", *pod) is not None]
            )
        if failures:
            return failures
        for step in steps:
            if step.departure is not None:
                failures += self._departures.wait(step, step.departure)
                continue
            found = self._wait(step.node, lambda: self._missing(step), failed=step)  # noqa: B023 - called at once
            failures += found
            if not found:
                self._open(step.node, plan_id)
        return failures

    def take_back(self, steps: Sequence[NodeStep], plan_id: str) -> list[Sentence]:
        """After the configuration was restored: plugins read it anew, and nodes are open again.

        Where no plugin runs just now, its node still registers what the last one wrote, until the next one starts.
        """
        failures: list[Sentence] = []
        for step in steps:
            running = self._plugins(step)
            held = self._restart(step, [_identity(pod) for pod in running])
            failures += held
            old = {_identity(pod) for pod in running}
            if not held and (old or step.registered_mib or step.back or step.offered_before):
                failures += self._wait(step.node, lambda: self._not_back(step, old))  # noqa: B023 - at once
            self._open(step.node, plan_id)
        return failures

    def scaled(self, steps: Sequence[NodeStep]) -> list[str]:
        """Nodes whose cards register more framebuffer than before these steps."""
        return sorted({step.node for step in steps if self._registers_more(step) is not None})

    def _not_back(self, step: NodeStep, old: set[tuple[str, str]]) -> Sentence | None:
        offered = _unlike(self._node(step.node), (*step.back, *step.offered_before))
        return self._registers_more(step) or offered or self._without_plugin(step, old)

    def _registers_more(self, step: NodeStep) -> Sentence | None:
        node = self._cluster.get("Node", "", step.node) if step.registered_mib else None
        if node is None:
            return None
        now = {card.card: card.framebuffer_mib for card in self._dialect.cards_of_node(node)}
        for card, mib in step.registered_mib:
            if now.get(card, 0) > mib + ROUNDED_MIB:
                return sentence(
                    "rollout.node_registers_more", card=card, found_bytes=now[card] * MIB, wanted_bytes=mib * MIB
                )
        return None

    def _restart(self, step: NodeStep, pods: Sequence[tuple[str, str]]) -> list[Sentence]:
        whys = [self._evict(pod, f"restart {'/'.join(pod)} on {step.node}") for pod in pods]
        return [why for why in whys if why is not None]

    def _evict(self, pod: tuple[str, str], what: str) -> Sentence | None:
        policy = self._policy
        return self._cluster.evict(
            "/".join(pod), what, poll_seconds=policy.poll_seconds, seconds_max=policy.ready_seconds_max
        )

    def _close(self, node: str, plan_id: str) -> None:
        manifest = self._node(node)
        other = field_of(manifest, _CLOSED)
        if other not in (None, plan_id):
            raise Refused(sentence("guard.node_closed_for", node=node, plan=str(other)))
        if field_of(manifest, _UNSCHEDULABLE) == "true":
            # Somebody else closed it, who opens it again; or we did before a crash.
            return
        self._write(manifest, {_UNSCHEDULABLE: "true", _CLOSED: plan_id}, f"close {node}")

    def is_closed_for(self, node: str, plan_id: str) -> bool:
        """Whether a node was closed to new pods for a plan, and not opened since."""
        manifest = self._cluster.get("Node", "", node)
        return manifest is not None and field_of(manifest, _CLOSED) == plan_id

    def _open(self, node: str, plan_id: str) -> None:
        manifest = self._cluster.get("Node", "", node)
        if manifest is not None and field_of(manifest, _CLOSED) == plan_id:
            self._write(manifest, {_UNSCHEDULABLE: None, _CLOSED: None}, f"open {node}")

    def _write(self, manifest: Manifest, fields: dict[str, str | None], what: str) -> None:
        name, version = manifest["metadata"]["name"], manifest["metadata"]["resourceVersion"]
        try:
            self._cluster.patch(what, ("Node", "", name), fields.items(), version)
        except Refused:
            # Nodes report themselves all the time, so the version is often another; once more, on what stands now.
            version = self._node(name)["metadata"]["resourceVersion"]
            self._cluster.patch(what, ("Node", "", name), fields.items(), version)

    def _wait(
        self, node: str, missing: Callable[[], Sentence | None], failed: NodeStep | None = None
    ) -> list[Sentence]:
        """Wait until nothing is missing; a node that says it failed is not waited for, if it did not say so before."""
        waited = 0.0
        was_failed = failed is not None and self._has_failed(failed)
        while True:
            why = missing()
            if why is None:
                return []
            if failed is not None and not was_failed and self._has_failed(failed):
                field, value = str(failed.done_field), str(failed.failed_value)
                return [sentence("rollout.node_failed", node=node, field=field, value=value)]
            if waited >= self._policy.ready_seconds_max:
                return [sentence("rollout.node_late", node=node, seconds=waited, why=why)]
            self._cluster.pause(self._policy.poll_seconds)
            waited += self._policy.poll_seconds

    def _has_failed(self, step: NodeStep) -> bool:
        if step.done_field is None or step.failed_value is None:
            return False
        return field_of(self._node(step.node), step.done_field) == step.failed_value

    def _is_ready(self, step: NodeStep) -> bool:
        """Whether a node shares its cards as it should already: what it holds then came after the change."""
        has_sign = step.done_field is not None or step.done_mode is not None or bool(step.advertised)
        return has_sign and self._missing(step) is None

    def _missing(self, step: NodeStep) -> Sentence | None:
        """What a node still lacks, None where it is ready."""
        node = self._node(step.node)
        wanted = [*step.advertised]
        if step.done_field is not None and step.done_value is not None:
            wanted.append((step.done_field, step.done_value))
        unlike = _unlike(node, wanted)
        if unlike is not None:
            return unlike
        if step.done_mode is not None:
            modes = sorted({card.mode or "unknown" for card in self._dialect.cards_of_node(node)})
            if modes != [step.done_mode]:
                return sentence("rollout.node_mode", found=listed(modes, len(modes)), wanted=step.done_mode)
        registered = {card.card: card.framebuffer_mib for card in self._dialect.cards_of_node(node)}
        for card, mib in step.registers_mib:
            found_mib = registered.get(card, 0)
            if found_mib < mib:
                return sentence(
                    "rollout.node_registers", card=card, found_bytes=found_mib * MIB, wanted_bytes=mib * MIB
                )
        return self._without_plugin(step, set(step.restarts))

    def _without_plugin(self, step: NodeStep, old: set[tuple[str, str]]) -> Sentence | None:
        """Why plugins did not come back yet, None where each has a ready pod that is not one of the old ones."""
        ready = {_family(_identity(pod)) for pod in self._plugins(step) if is_ready(pod) and _identity(pod) not in old}
        gone = sorted({_family(pod) for pod in old} - ready)
        return sentence("rollout.no_plugin", pods="/".join(gone[0])) if gone else None

    def _plugins(self, step: NodeStep) -> list[Manifest]:
        """Pods on a node of the same families as those that a step starts anew."""
        families = {_family(pod) for pod in step.restarts}
        return [
            pod
            for namespace in sorted({namespace for namespace, _ in families})
            for pod in self._cluster.list_objects("Pod", namespace)
            if pod["spec"].get("nodeName") == step.node and _family(_identity(pod)) in families
        ]

    def _still_there(self, step: NodeStep) -> list[Manifest]:
        if step.back:
            # A pod that came before the node was closed holds its cards just as those that were seen.
            return [pod for pod in self._cluster.list_objects("Pod") if self._holds(pod, step.node)]
        pods = [self._cluster.get("Pod", *name) for name in step.leaving]
        return [pod for pod in pods if pod is not None and pod["spec"].get("nodeName") == step.node]

    def _holds(self, pod: Manifest, node: str) -> bool:
        """Whether a pod holds cards of a node, or says so in words that nobody can read."""
        if pod["spec"].get("nodeName") != node or is_over(pod):
            return False
        try:
            return bool(self._dialect.slices_of_pod(pod))
        except Corrupt:
            return True

    def _leavers(self, step: NodeStep) -> Sentence | None:
        left = self._still_there(step)
        return sentence("rollout.pods_left", count=len(left), pod="/".join(_identity(left[0]))) if left else None

    def _ready_of(
        self, namespaces: Collection[str], without: Collection[tuple[str, str]] = ()
    ) -> Counter[tuple[str, str, str]]:
        """How many pods are ready of each maker (namespace, kind, name); not of Jobs, which begin anew or end."""
        return Counter(
            (namespace, *maker)
            for namespace in sorted(namespaces)
            for pod in self._cluster.list_objects("Pod", namespace)
            if is_ready(pod) and pod["metadata"].get("deletionTimestamp") is None and _identity(pod) not in without
            if (maker := controller_of(pod)) is not None and maker[0] != "Job"
        )

    def _not_up(self, were_ready: Counter[tuple[str, str, str]]) -> Sentence | None:
        """Why pods that left did not come up elsewhere yet; None where as many are ready as were."""
        missing = were_ready - self._ready_of({namespace for namespace, _, _ in were_ready})
        maker = min(missing, default=None)
        return None if maker is None else sentence("rollout.not_up", maker="/".join(maker), count=missing[maker])

    def _node(self, name: str) -> Manifest:
        manifest = self._cluster.get("Node", "", name)
        if manifest is None:
            raise Refused(sentence("guard.node_gone", node=name))
        return manifest


def _unlike(node: Manifest, fields: Iterable[tuple[str, str]]) -> Sentence | None:
    """The first field of a node that has another value, None where there is none."""
    for path, value in fields:
        # What a node does not offer it either counts as nothing or does not name.
        found = field_of(node, path) or ("0" if value == "0" else None)
        if found != value:
            return sentence("rollout.node_field", field=path, found=str(found), wanted=value)
    return None


def _waves(pods: Sequence[Manifest]) -> list[list[Manifest]]:
    """Pods in turns, of each maker one."""
    by_maker: dict[tuple[str, tuple[str, str] | None], list[Manifest]] = {}
    for pod in pods:
        by_maker.setdefault((pod["metadata"]["namespace"], controller_of(pod)), []).append(pod)
    return [[pod for pod in turn if pod is not None] for turn in zip_longest(*by_maker.values())]


def _identity(pod: Manifest) -> tuple[str, str]:
    return pod["metadata"]["namespace"], pod["metadata"]["name"]


def _family(pod: tuple[str, str]) -> tuple[str, str]:
    """Namespace and the part of a name that a DaemonSet gives all its pods."""
    namespace, name = pod
    return namespace, name.rpartition("-")[0]
