"""Moves pods from one set of seats to another, in steps that may be repeated, for rollout and undo.

An owner that rolls by itself is patched when its pods' places are free and waited for; pods of the others are evicted
one by one. Every step looks at the cluster first and does only what is missing, so that it can be called again after a
crash at any moment. What is decided (and written down) is the caller's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from enforcer.backend import Move, by_workload
from enforcer.backends.planned_seats import SEATS_FIELD
from enforcer.cluster import FollowingReader, renew
from enforcer.dialect import Dialect, ListingDialect, SeatSlice
from enforcer.kinds.kind import condition
from enforcer.kinds.register import is_begun, is_rolled_out, trouble_of, workload_kind
from enforcer.manifest import Manifest, workload_parts
from enforcer.ownership import MAKERS, Parents, parents_of, workload_of_pod
from enforcer.record.journal import ObjectIntent
from enforcer.rollout.change_time import change_seconds_max
from enforcer.rollout.holding import Phase, changes_template, surges
from enforcer.rollout.intent_writer import IntentWriter, set_since
from enforcer.rollout.landing import Landing, landing_of, made_anew, wanted_pods
from enforcer.rollout.load import Load, units_of
from enforcer.rollout.move_order import Order, OrderedUnit, Unit, waves
from enforcer.rollout.outside_change import outside_change
from enforcer.rollout.patience import PatientCluster
from enforcer.seat import PodSeat, is_over, seat_of_pod
from enforcer.snapshot import Snapshot, take_snapshot, with_listed
from fleet.inventory import WorkloadId
from fleet.sentences import Sentence, listed, sentence

OnWave = Callable[[Sequence[Move], int], None]

WATCHED_LOOK_SECONDS = 1.0
"""Longest pause between two looks at pods that a watch keeps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MovePolicy:
    """How patient the pod mover is.

    Attributes:
        parallel_pods_max: workloads that may be changing at once.
        poll_seconds: pause between looks; shorter where a watch keeps what is looked at.
        placement_seconds_max: how long a pod may take until it is ready in its new seat, where its own template does
            not ask for more (see `enforcer.rollout.change_time`).
    """

    parallel_pods_max: int = 10
    poll_seconds: float = 10.0
    placement_seconds_max: float = 600.0


class PodMover:
    """Patches, evicts and waits.

    Each call raises `Unavailable` where the cluster can't be reached or can't take it.

    Attributes:
        kept: what was left as it is on the way back, one sentence each.
        look_seconds: pause between two looks.
    """

    def __init__(self, cluster: PatientCluster, policy: MovePolicy, dialect: Dialect) -> None:
        self._cluster = cluster
        self._reader = cluster.reader
        self._policy = policy
        self._dialect = dialect
        self._parents: Parents | None = None
        self._left: set[WorkloadId] = set()
        self._restored: dict[WorkloadId, ObjectIntent] = {}
        self._written: dict[WorkloadId, ObjectIntent] = {}
        self._ending: set[WorkloadId] = set()
        self._without_room: set[WorkloadId] = set()
        # A look at what a watch keeps costs the cluster nothing.
        is_watched = isinstance(self._reader, FollowingReader) and not isinstance(dialect, ListingDialect)
        self.look_seconds = min(policy.poll_seconds, WATCHED_LOOK_SECONDS) if is_watched else policy.poll_seconds
        self.kept: list[Sentence] = []
        self.objects = IntentWriter(cluster)

    def move(self, load: Load, on_wave: OnWave) -> list[Sentence]:
        """Bring pods to their seats, in an order in which they find room.

        Args:
            on_wave: called with the moves of each wave and how many pods are done, before the wave goes.

        Returns:
            What went wrong, one sentence per workload; empty where every pod landed. Strictly, it stops at the first
            wave that fails.

        Raises:
            Refused: somebody changed an owner since it was read.
        """
        snapshot = self._cluster.patiently(lambda: take_snapshot(self._reader, self._dialect))
        self._dialect = snapshot.dialect
        self.objects.see(snapshot.owners[workload] for workload in load.intents if workload in snapshot.owners)
        units = units_of(load, snapshot)
        missing = [unit for unit in units if not self._has_landed(load, unit, snapshot)]
        rest = {unit[0].workload for unit in missing}
        for workload, intent in load.intents.items():
            # Whose pods all sit right needs its fields nevertheless.
            if workload not in rest:
                self._put(load, intent)
        self._without_room.clear()
        surging = {workload for workload, intent in load.intents.items() if surges(intent)}
        done = sum(map(len, units)) - sum(map(len, missing))
        failures: list[Sentence] = []
        patched: set[WorkloadId] = set()
        firm = set() if load.is_strict else {name for name, intent in load.intents.items() if _had_seats(intent)}
        for wave in waves(missing, snapshot.seats, snapshot.cards, self._policy.parallel_pods_max, surging, firm):
            on_wave([move for unit in wave for move in unit.moves], done)
            for unit in wave:
                failures += self._start(load, unit, patched)
            if failures and load.is_strict:
                return failures
            # Nothing lands at once.
            self._cluster.pause(self.look_seconds)
            failures += self._wait(load, wave)
            if failures and load.is_strict:
                return failures
            done += sum(len(unit.moves) for unit in wave)
        if not failures and isinstance(self._reader, FollowingReader):
            # Each wave went by what was heard of so far, which may be late; that all is well, fresh lists say.
            renew(self._reader)
            failures = self._wait(load, [OrderedUnit(moves=unit, order=Order.FREE) for unit in units])
        return failures

    def look_at(self, workloads: Iterable[WorkloadId]) -> None:
        """List owners that are about to be written, in place of one request for each."""
        self.objects.see(self._owners(list(workloads)).values())

    def outside_changes(self) -> list[Sentence]:
        """What somebody else changed of the owners that were written, one sentence each; a fresh look confirms it."""
        if not self._outside_changes(self._written):
            return []
        renew(self._reader)
        return self._outside_changes(self._written)

    def let_go(self, intents: Iterable[ObjectIntent]) -> None:
        """Give owners that somebody else changed while their stage was under way their own strategy back."""
        known = {intent.workload: intent for intent in intents}
        for workload, owner in self._owners(list(known)).items():
            if outside_change(known[workload], owner, is_written=False) is not None:
                self.objects.hold(known[workload], Phase.SETTLED)

    def _outside_changes(self, intents: Mapping[WorkloadId, ObjectIntent]) -> list[Sentence]:
        owners = self._owners(list(intents))
        found = (outside_change(intents[workload], owner, is_written=True) for workload, owner in owners.items())
        return [change for change in found if change is not None]

    def in_place(self, moves: Sequence[Move]) -> tuple[str, ...]:
        """Pods that were made for these moves and sit as planned, `namespace/pod`."""
        found: list[str] = []
        moves_of = by_workload(moves)
        pods = self._pods(list(moves_of)) if moves_of else {}
        for workload, own in moves_of.items():
            landing = landing_of(own, pods[workload])
            found += [pod.pod_id for pod in made_anew(own, landing.in_place)]
        return tuple(sorted(found))

    def unfinished(self, load: Load) -> list[Sentence]:
        """Owners that were patched back and still have pods of the template that the plan gave them.

        Those of which a pod finds no room before nodes have changed are left out.

        Returns:
            One sentence per workload, with what keeps it from going on.
        """
        owners = self._owners([name for name in load.intents if name not in self._left | self._without_room])
        late = {workload: owner for workload, owner in owners.items() if not is_rolled_out(owner)}
        pods = self._pods(list(late)) if late else {}
        found = []
        for workload, owner in late.items():
            unready = next((pod for pod in pods[workload] if not pod.is_ready), None)
            why = sentence("rollout.controller_late")
            if owner.get("spec", {}).get("paused"):
                why = sentence("rollout.paused")
            elif unready is not None:
                why = sentence("rollout.never_ready", pod=unready.pod_id, why=self._why(unready))
            found.append(sentence("rollout.old_template", workload=workload, why=why))
        return found

    def _start(self, load: Load, unit: OrderedUnit, patched: set[WorkloadId]) -> list[Sentence]:
        """Let a unit go; returns why a pod could not be evicted."""
        workload = unit.moves[0].workload
        intent = load.intents.get(workload)
        if intent is not None and workload not in patched:
            patched.add(workload)
            self._put(load, intent)
        if workload in self._left:
            return []
        if load.rolls(workload):
            if not load.is_strict and _is_ordered(workload):
                self._evict_unready(workload)
            return []
        failures: list[Sentence] = []
        for move in unit.moves:
            pods = self._pods([workload])[workload]
            landing = landing_of(load.of(workload), pods)
            # Who shall be gone goes with its owner's scale; who sits right is only waited for.
            going = {pod.pod_id for pod in landing.unmoved} & {move.live_id} if move.new else set()
            if not load.is_strict:
                left = (*landing.unmoved, *landing.elsewhere, *landing.outdated, *landing.waiting)
                going = {pod.pod_id for pod in left}
            failures += [why for pod_id in sorted(going) if (why := self._evict(pod_id)) is not None]
        return failures

    def _put(self, load: Load, intent: ObjectIntent) -> None:
        if load.is_strict:
            self.objects.patch(intent, load.phase)
            self._written[intent.workload] = intent
            return
        if intent.workload in self._left:
            return
        kept = self.objects.restore(intent)
        self.kept += kept
        if kept or intent.workload in self.objects.overridden:
            self._left.add(intent.workload)
        self._restored[intent.workload] = intent

    def _leave_what_came_back(self, owners: Mapping[WorkloadId, Manifest]) -> None:
        """Leave owners to which somebody gave the plan's fields again after they had been taken back: a rollback."""
        for workload, owner in owners.items():
            intent = self._restored.get(workload)
            if intent is None or workload in self._left or not self.objects.has_come_back(intent, owner):
                continue
            # What was heard of may be older than our write.
            fresh = self._cluster.get(*intent.key)
            for part in self.objects.has_come_back(intent, fresh) if fresh is not None else ():
                self._left.add(workload)
                self.kept.append(set_since(intent, part.field, part.new))

    def _evict_unready(self, workload: WorkloadId) -> None:
        """Evict pods of a StatefulSet that never became ready: it waits for them, whatever their template says now."""
        for pod in self._pods([workload])[workload]:
            if not pod.is_ready:
                self._evict(pod.pod_id)

    def _evict(self, pod_id: str) -> Sentence | None:
        policy = self._policy
        return self._cluster.evict(
            pod_id, f"evict {pod_id}", poll_seconds=policy.poll_seconds, seconds_max=policy.placement_seconds_max
        )

    def _wait(self, load: Load, wave: Sequence[OrderedUnit]) -> list[Sentence]:
        waited = 0.0
        waiting = [unit.moves for unit in wave]
        progress: dict[WorkloadId, tuple[int, float]] = {}
        while True:
            changed = self.outside_changes()
            if changed:
                return changed
            workloads = list(dict.fromkeys(unit[0].workload for unit in waiting))
            pods = self._pods(workloads)
            owners = self._owners(workloads)
            self._leave_what_came_back(owners)
            still: list[Unit] = []
            failures: list[Sentence] = []
            for unit in waiting:
                workload = unit[0].workload
                landing = landing_of(load.of(workload), pods[workload])
                trouble = trouble_of(owners.get(workload)) if load.is_strict else None
                if landing.is_astray and load.is_strict:
                    failures.append(_astray(landing.elsewhere[0], load.of(workload)))
                elif trouble is not None:
                    failures.append(sentence("rollout.in_trouble", workload=workload, why=trouble))
                elif workload not in self._left and not (
                    # A card is free only once the pod that leaves it is gone.
                    self._is_done(load, unit, landing, owners.get(workload)) and workload not in self._ending
                ):
                    if load.changing_nodes and any(map(self._is_without_room, landing.waiting)):
                        self._without_room.add(workload)
                        continue
                    still.append(unit)
                    self._make_way(load, unit, landing)
                    if progress.get(workload, (-1, 0.0))[0] != len(landing.in_place):
                        progress[workload] = (len(landing.in_place), waited)
            if failures:
                return failures
            if not still:
                return []
            late = [unit for unit in still if self._is_late(load, unit, owners, waited - progress[unit[0].workload][1])]
            if late:
                return [self._overdue(load, unit, pods[unit[0].workload], waited) for unit in late]
            waiting = still
            self._cluster.pause(self.look_seconds)
            waited += self.look_seconds

    def _is_without_room(self, pod: PodSeat) -> bool:
        """Whether the scheduler says that no node has room for a pod."""
        manifest = None if pod.node is not None else self._cluster.get("Pod", pod.namespace, pod.pod)
        said = {} if manifest is None else condition(manifest, "PodScheduled")
        return said.get("status") == "False" and said.get("reason") == "Unschedulable"

    def _is_late(
        self, load: Load, unit: Unit, owners: Mapping[WorkloadId, Manifest], since_progress_seconds: float
    ) -> bool:
        workload = unit[0].workload
        usual = self._policy.placement_seconds_max
        return since_progress_seconds >= change_seconds_max(owners.get(workload), load.intents.get(workload), usual)

    def _make_way(self, load: Load, unit: Unit, landing: Landing) -> None:
        """Evict the pod of a StatefulSet whose place one waits for that its controller has made anew before it.

        It rolls from the highest ordinal down, whichever place is free, and makes an evicted pod of its new template.
        """
        is_stateful = _is_ordered(unit[0].workload) and load.rolls(unit[0].workload)
        if not is_stateful or load.phase is not Phase.REST or all(pod.slices for pod in landing.waiting):
            return
        unmoved = {pod.pod_id for pod in landing.unmoved}
        first = next((move.live_id for move in unit if move.live_id in unmoved), None)
        if first is not None:
            self._evict(first)

    def _is_done(self, load: Load, unit: Unit, landing: Landing, owner: Manifest | None) -> bool:
        if not load.is_strict:
            settled = len(landing.in_place) + len(landing.elsewhere)
            # Nobody waits for what its owner does not want any more, or for who was ended meanwhile.
            is_wanted = settled >= wanted_pods(owner, landing.planned) and settled + landing.seatless >= landing.pods
            return is_wanted and is_rolled_out(owner)
        if load.rolls(unit[0].workload):
            if load.phase is Phase.CANARY:
                return is_begun(owner) and not landing.is_starting and bool(landing.in_place)
            return landing.is_whole and is_rolled_out(owner)
        names = {pod.pod_id for pod in landing.unmoved}
        is_complete = landing.planned <= landing.pods <= landing.planned + landing.seatless
        return not landing.is_waiting and is_complete and all(move.live_id not in names for move in unit)

    def _has_landed(self, load: Load, unit: Unit, snapshot: Snapshot) -> bool:
        workload = unit[0].workload
        landing = landing_of(load.of(workload), snapshot.pods.get(workload, []))
        owner = snapshot.owners.get(workload)
        intent = load.intents.get(workload)
        if not load.is_strict:
            is_restored = intent is None or self.objects.is_restored(intent, owner)
            return is_restored and landing.is_whole and is_rolled_out(owner)
        if intent is not None and changes_template(intent) and not self.objects.stands(intent, owner):
            return False
        return self._is_done(load, unit, landing, owner)

    def _pods(self, workloads: Sequence[WorkloadId]) -> dict[WorkloadId, list[PodSeat]]:
        """The pods of workloads as they are now, without those that are going or over."""
        found: dict[WorkloadId, list[PodSeat]] = {workload: [] for workload in workloads}
        self._ending -= set(workloads)
        # New pods may be read by objects that are as new as they.
        dialect = self._cluster.patiently(lambda: with_listed(self._reader, self._dialect))
        for namespace in sorted({workload_parts(workload)[0] for workload in workloads}):
            for pod in self._cluster.list_objects("Pod", namespace):
                workload = workload_of_pod(pod, self._known_parents())
                if workload not in found or is_over(pod):
                    continue
                if "deletionTimestamp" in pod["metadata"]:
                    self._ending.add(workload)
                else:
                    found[workload].append(replace(seat_of_pod(pod, dialect), workload=workload))
        return found

    def _known_parents(self) -> Parents:
        """Who controls what makes pods; read once, for ReplicaSets that come later show their maker by their names."""
        if self._parents is None:
            self._parents = parents_of(found for kind in MAKERS for found in self._cluster.list_objects(kind))
        return self._parents

    def _owners(self, workloads: Sequence[WorkloadId]) -> dict[WorkloadId, Manifest]:
        """Owners as they stand; those of one kind and namespace in one call."""
        groups: dict[tuple[str, str], list[tuple[str, WorkloadId]]] = {}
        for workload in workloads:
            namespace, kind, name = workload_parts(workload)
            groups.setdefault((kind, namespace), []).append((name, workload))
        found: dict[WorkloadId, Manifest] = {}
        for (kind, namespace), members in groups.items():
            if len(members) == 1:
                name, workload = members[0]
                owner = self._cluster.get(kind, namespace, name)
                found |= {} if owner is None else {workload: owner}
                continue
            by_name = dict(members)
            for owner in self._cluster.list_objects(kind, namespace):
                if owner["metadata"]["name"] in by_name:
                    found[by_name[owner["metadata"]["name"]]] = owner
        return found

    def _overdue(self, load: Load, unit: Unit, pods: Sequence[PodSeat], waited: float) -> Sentence:
        workload = unit[0].workload
        landing = landing_of(load.of(workload), pods)
        late = [*landing.waiting, *landing.outdated, *landing.unmoved, *landing.elsewhere]
        planned = sorted({_shown(move.new) for move in unit if move.new})
        if not late and workload in self._ending:
            return sentence("rollout.not_ended", workload=workload, seconds=waited)
        if not late:
            return sentence(
                "rollout.pods_differ", workload=workload, pods=landing.pods, seconds=waited, planned=landing.planned
            )
        seat = listed(planned, len(planned))
        return sentence("rollout.late", pod=late[0].pod_id, seat=seat, seconds=waited, why=self._why(late[0]))

    def _why(self, pod: PodSeat) -> Sentence | str:
        manifest = self._cluster.get("Pod", pod.namespace, pod.pod)
        if manifest is None:
            return sentence("rollout.pod_gone")
        for said in manifest.get("status", {}).get("conditions", ()):
            if said.get("status") == "False" and said.get("message"):
                return str(said["message"])
        return sentence("rollout.pod_unready" if not pod.is_ready else "rollout.pod_unmoved")


def _had_seats(intent: ObjectIntent) -> bool:
    """Whether an owner's pods were pinned to seats before it was changed, by an earlier plan."""
    return any(part.field == SEATS_FIELD and part.old is not None for part in intent.fields)


def _is_ordered(workload: WorkloadId) -> bool:
    """Whether an owner rolls from its highest ordinal down, and waits for each."""
    return workload_kind(workload_parts(workload)[1]).is_ordered


def _astray(pod: PodSeat, moves: Sequence[Move]) -> Sentence:
    seats = list(dict.fromkeys(_shown(move.new) for move in moves if move.new))
    found = listed([_shown(pod.slices)] if pod.slices else [], 1)
    return sentence("rollout.astray", pod=pod.pod_id, found=found, seats=listed(seats, len(seats), clauses=True))


def _shown(slices: Sequence[SeatSlice]) -> str:
    return ", ".join(
        f"{part.card or part.resource or part.node} ({part.framebuffer_mib} MiB, {part.core_percent} %)"
        for part in slices
    )
