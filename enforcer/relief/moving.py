"""Carries moves out: one step further at every look, each step such that it may be repeated after a crash.

Warm: the replica is made, waited for, the old pod is asked to go under its disruption budgets, and the replica takes
its place. Restart: the card is closed to newcomers, the pod is evicted, and its owner's pods are waited for. What takes
too long, or is not wanted any more, is taken back: the replica goes, the old pod stays. The ledger knows each phase
before it is done. Called by `runner`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from enforcer.agent.hami_node_actions import HamiNodeActions
from enforcer.cluster import DELETION_COST_ANNOTATION, ClusterReader, ClusterWriter, FieldChange
from enforcer.manifest import Manifest
from enforcer.ownership import controller_of, workload_of_pod
from enforcer.relief.relief_journal import Manner, MoveOrder, MovePhase, MoveRecord, ReliefJournal
from enforcer.relief.warm_replica import hash_of, wants_pods, warm_replica
from enforcer.resource_names import Words
from enforcer.seat import is_ready
from fleet.errors import Misconfigured, Refused
from fleet.sentences import Sentence, sentence

_REASON = "GputideRelief"


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long the parts of a move may take.

    Attributes:
        leave_seconds_max: until disruption budgets let the old one go.
    """

    ready_seconds_max: float = 900.0
    leave_seconds_max: float = 600.0


class Mover:
    """Carries out moves on one cluster.

    Each call raises `Unavailable` where the cluster can't be reached; the next look goes on.
    """

    def __init__(
        self,
        reader: ClusterReader,
        writer: ClusterWriter,
        journal: ReliefJournal,
        patience: Patience,
        step: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._reader, self._writer, self._journal = reader, writer, journal
        self._patience, self._step = patience, step

    def begin(self, order: MoveOrder, words: Words) -> str:
        """Begin a move; what to say of it.

        Raises:
            Refused: the cluster won't have it; it stands in the journal as taken back.
        """
        self._journal.begin(self._reader.now(), order)
        where, reason = "home" if order.is_home else "away", order.reason
        self._tell(order, f"moves {where} from {order.from_card} to {order.to_card}: {reason}")
        if order.manner is Manner.WARM:
            self._make(order, words)
        return (
            f"{order.pod_id} moves {where} from {order.from_card} to {order.to_card} ({order.manner.value}): {reason}"
        )

    def go_on(self, record: MoveRecord, words: Words) -> str | None:
        """One step further with a move; what to say of it, None where it waits."""
        try:
            if record.phase is MovePhase.BACK:
                return self._take_back(record)
            if record.order.manner is Manner.RESTART:
                return self._go_on_restarting(record)
            return self._go_on_warm(record, words)
        except (Misconfigured, Refused) as exc:
            if not record.is_open or record.phase in (MovePhase.LEAVING, MovePhase.BACK):
                # The old pod may be gone: there is no way back, only a next try.
                return f"{record.order.pod_id}: {exc}"
            return self._turn_back(record, sentence("relief.fault", fault=exc.said))

    # --- warm ---

    def _make(self, order: MoveOrder, words: Words) -> None:
        replica_set = self._reader.get("ReplicaSet", order.namespace, order.maker)
        if replica_set is None or not wants_pods(replica_set):
            self._give_up(order, sentence("relief.no_pods_kept", maker=order.maker))
        try:
            manifest = warm_replica(order, replica_set or {}, words)
            self._step(f"make {order.namespace}/{order.replica}")
            self._writer.make(manifest)
        except (Misconfigured, Refused) as exc:
            self._give_up(order, sentence("relief.fault", fault=exc.said))

    def _give_up(self, order: MoveOrder, why: Sentence) -> None:
        self._journal.note(self._reader.now(), order.move_id, MovePhase.TAKEN_BACK, why)
        raise Refused(f"cannot move {order.pod_id}: {why}")

    def _go_on_warm(self, record: MoveRecord, words: Words) -> str | None:
        order = record.order
        replica = self._reader.get("Pod", order.namespace, order.replica)
        replica_set = self._reader.get("ReplicaSet", order.namespace, order.maker)
        if record.phase is not MovePhase.LEAVING:
            unwanted = self._why_unwanted(order, replica_set)
            if unwanted is not None:
                return self._turn_back(record, unwanted)
        if replica is None:
            if record.phase is not MovePhase.BEGUN:
                return self._turn_back(record, sentence("relief.replica_gone"))
            # A crash came between the journal and the cluster.
            self._make(order, words)
            return None
        if record.phase is MovePhase.BEGUN:
            if not is_ready(replica):
                return self._wait(record, record.begun_at, self._patience.ready_seconds_max, "not_ready")
            self._journal.note(self._reader.now(), order.move_id, MovePhase.READY)
        if record.phase is not MovePhase.LEAVING:
            self._journal.note(self._reader.now(), order.move_id, MovePhase.LEAVING)
        if not self._is_evicted(order):
            return self._wait_to_leave(record)
        return self._adopt(record, replica, replica_set)

    def _why_unwanted(self, order: MoveOrder, replica_set: Manifest | None) -> Sentence | None:
        if not wants_pods(replica_set):
            return sentence("relief.no_pods_kept", maker=order.maker)
        return None if self._is_there(order) else sentence("relief.went_by_itself")

    def _is_evicted(self, order: MoveOrder) -> bool:
        """Whether the old pod is on its way out; it is asked to go, if its disruption budgets let it."""
        if not self._is_there(order):
            return True
        self._step(f"evict {order.pod_id}")
        return self._writer.evict(order.namespace, order.pod)

    def _wait_to_leave(self, record: MoveRecord) -> str | None:
        since = record.leaving_at or self._reader.now()
        return self._wait(record, since, self._patience.leave_seconds_max, "kept_by_budget")

    def _wait(self, record: MoveRecord, since: datetime, seconds_max: float, code: str) -> str | None:
        """Nothing, until that takes too long; `code` says what."""
        if self._reader.now() - since <= timedelta(seconds=seconds_max):
            return None
        return self._turn_back(record, sentence(f"relief.{code}", seconds=seconds_max))

    def _adopt(self, record: MoveRecord, replica: Manifest, replica_set: Manifest | None) -> str | None:
        order = record.order
        if replica_set is None:
            return self._turn_back(record, sentence("relief.maker_gone", maker=order.maker))
        label, value = hash_of(replica_set)
        if label not in (replica["metadata"].get("labels") or {}):
            self._step(f"adopt {order.namespace}/{order.replica}")
            self._patch(replica, FieldChange(field=f"metadata.labels[{label}]", value=value))
            replica = self._reader.get("Pod", order.namespace, order.replica) or replica
        if controller_of(replica) is None:
            # Its controller takes it over within moments.
            return None
        self._patch(replica, FieldChange(field=f"metadata.annotations[{DELETION_COST_ANNOTATION}]", value=None))
        now = self._reader.now()
        self._journal.note(now, order.move_id, MovePhase.DONE)
        took = (now - record.begun_at).total_seconds()
        where = "is home" if order.is_home else "moved"
        text = f"{order.pod_id} {where}: {order.replica} serves on {order.to_card} after {took:.0f} s"
        self._writer.record_event("Pod", order.namespace, order.replica, _REASON, text)
        return text

    # --- restart ---

    def _go_on_restarting(self, record: MoveRecord) -> str | None:
        order, now = record.order, self._reader.now()
        if record.phase is not MovePhase.LEAVING:
            if not self._is_there(order):
                return self._turn_back(record, sentence("relief.went_by_itself"))
            actions = HamiNodeActions(self._reader, self._writer, order.from_node)
            self._step(f"close {order.from_card}")
            actions.close_card(order.from_card, now.timestamp() + self._patience.ready_seconds_max)
            self._journal.note(now, order.move_id, MovePhase.LEAVING)
        if not self._is_evicted(order):
            return self._wait_to_leave(record)
        pods = [
            pod
            for pod in self._reader.list_objects("Pod", order.namespace)
            if workload_of_pod(pod, {}) == order.workload and "deletionTimestamp" not in pod["metadata"]
        ]
        left_at = record.leaving_at or now
        if not pods or not all(map(is_ready, pods)):
            return self._wait(record, left_at, self._patience.ready_seconds_max, "not_whole")
        self._open(order)
        self._journal.note(now, order.move_id, MovePhase.READY)
        self._journal.note(now, order.move_id, MovePhase.DONE)
        text = (
            f"{order.pod_id} was stopped and started in {(now - left_at).total_seconds():.0f} s: no second one can be"
        )
        self._tell(order, text)
        return text

    def _open(self, order: MoveOrder) -> None:
        """The card that was closed for a restart takes newcomers again."""
        actions = HamiNodeActions(self._reader, self._writer, order.from_node)
        actions.open_card(order.from_card)

    # --- back ---

    def _turn_back(self, record: MoveRecord, why: Sentence) -> str:
        self._journal.note(self._reader.now(), record.order.move_id, MovePhase.BACK, why)
        return self._take_back(record) or f"{record.order.pod_id} stays: {why}"

    def _take_back(self, record: MoveRecord) -> str | None:
        order = record.order
        if order.manner is Manner.RESTART:
            self._open(order)
        else:
            replica = self._reader.get("Pod", order.namespace, order.replica)
            if replica is not None and controller_of(replica) is None and not self._is_going(replica):
                self._step(f"take back {order.namespace}/{order.replica}")
                if not self._writer.evict(order.namespace, order.replica):
                    return None
        self._journal.note(self._reader.now(), order.move_id, MovePhase.TAKEN_BACK)
        why = "" if record.why is None else f": {record.why}"
        text = f"{order.pod_id} was not moved{why}"
        self._tell(order, text)
        return text

    def _is_there(self, order: MoveOrder) -> bool:
        """Whether the pod that is meant still stands, and nobody has asked it to go."""
        pod = self._reader.get("Pod", order.namespace, order.pod)
        return pod is not None and str(pod["metadata"].get("uid", "")) == order.pod_uid and not self._is_going(pod)

    def _is_going(self, pod: Manifest) -> bool:
        return pod["metadata"].get("deletionTimestamp") is not None

    def _patch(self, pod: Manifest, *fields: FieldChange) -> None:
        """Write fields of a pod whose status may have moved on since it was read."""
        metadata = pod["metadata"]
        for number in range(3):
            current = pod if number == 0 else self._reader.get("Pod", metadata["namespace"], metadata["name"])
            if current is None:
                return
            version = current["metadata"]["resourceVersion"]
            try:
                self._writer.patch("Pod", metadata["namespace"], metadata["name"], list(fields), version)
            except Refused:
                if number == 2:
                    raise
                continue
            return

    def _tell(self, order: MoveOrder, text: str) -> None:
        if self._reader.get("Pod", order.namespace, order.pod) is not None:
            self._writer.record_event("Pod", order.namespace, order.pod, _REASON, text)
