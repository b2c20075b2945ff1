"""Writes what the ledger says shall be written, and takes it back: one object at a time, in steps that may be repeated.

Every write is conditional on the version that was just read, and on what the plan knew: where somebody else changed
the object since, it is refused, never forced. Called by the pod mover.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from enforcer.cluster import DisowningWriter, identity
from enforcer.kinds.register import WORKLOAD_KINDS
from enforcer.manifest import Manifest, field_of, is_signal, json_taken_back, values_equal
from enforcer.record.journal import FieldIntent, ObjectIntent
from enforcer.rollout.holding import Phase, held_values
from enforcer.rollout.outside_change import outside_change
from enforcer.rollout.patience import PatientCluster
from fleet.errors import Refused
from fleet.inventory import WorkloadId
from fleet.sentences import Sentence, sentence

TRIES_MAX = 5
"""How often an object that changes while it is written is looked at anew."""
_SHOWN_LETTERS_MAX = 200


class IntentWriter:
    """Writes, holds, settles and restores objects.

    Each call raises `Unavailable` where the cluster can't be asked or can't take it.

    Attributes:
        overridden: owners that were restored around somebody else's change.
    """

    def __init__(self, cluster: PatientCluster) -> None:
        self._cluster = cluster
        self._seen: dict[tuple[str, str, str], Manifest] = {}
        self.overridden: set[WorkloadId] = set()

    def see(self, manifests: Iterable[Manifest]) -> None:
        """Take objects as they were listed just now, so that none of them is asked for again before it is written.

        Each serves one attempt: a write depends on its version, and a second attempt looks anew.
        """
        self._seen.update((identity(manifest), manifest) for manifest in manifests)

    def patch(self, intent: ObjectIntent, phase: Phase) -> None:
        """Write an object's new fields and hold it, unless all that stands there already.

        Raises:
            Refused: somebody changed the object since it was read, or it is gone.
        """
        for number in range(TRIES_MAX):
            current = self._last_seen(intent, lambda seen: not _is_written(seen, intent))
            if current is None and intent.kind == "Pod":
                return
            if not _is_written(current, intent):
                _refuse_changed(current, intent)
                fields = [(part.field, part.new) for part in intent.fields]
            else:
                fields = []
                changed = outside_change(intent, current, is_written=True)
                if changed is not None:
                    raise Refused(changed)
            if current is None:
                return
            fields += held_values(current, intent.holds, phase)
            if not fields or self._write(f"patch {intent.workload}", intent, fields, current, number):
                return

    def stands(self, intent: ObjectIntent, current: Manifest | None) -> bool:
        """Whether an object has an intent's new fields already."""
        return _is_written(current, intent)

    def is_restored(self, intent: ObjectIntent, current: Manifest | None) -> bool:
        """Whether nothing of an intent is left to be taken back."""
        return current is None or not _in_force(current, intent)

    def has_come_back(self, intent: ObjectIntent, current: Manifest) -> list[FieldIntent]:
        """Fields of an intent that was taken back which have the plan's values again."""
        return [part for part in _in_force(current, intent) if not is_signal(part.field)]

    def hold(self, intent: ObjectIntent, phase: Phase) -> None:
        """Let an owner roll as far as a phase says; nothing is written where it is held so already.

        Raises:
            Refused: the object changes all the time.
        """
        for number in range(TRIES_MAX):
            current = self._last_seen(intent, lambda seen: bool(held_values(seen, intent.holds, phase)))
            fields = [] if current is None else held_values(current, intent.holds, phase)
            if current is None or not fields:
                return
            if self._write(f"{phase.value} {intent.workload}", intent, fields, current, number):
                return

    def restore(self, intent: ObjectIntent) -> tuple[Sentence, ...]:
        """Write an object's old fields back: those that still are as the plan left them.

        Its owner rolls as it is held: surge-first where the way there was, or where an undo found room for it.

        An owner that somebody else changed while its stage was under way gets its own strategy back in the same write
        (`overridden`): its roll is theirs.

        Returns:
            What was kept because somebody changed it since, one sentence each.

        Raises:
            Refused: the cluster does not take the object as it was, though nobody else changed it.
        """
        for _ in range(TRIES_MAX):
            current = self._last_seen(intent, lambda seen: not self.is_restored(intent, seen))
            if current is None:
                return () if intent.kind == "Pod" else (sentence("rollout.gone", workload=intent.workload),)
            fields: list[tuple[str, str | None]] = []
            kept: list[Sentence] = []
            for part in intent.fields:
                value = field_of(current, part.field)
                if values_equal(part.field, value, part.old):
                    continue
                if values_equal(part.field, value, part.new):
                    fields.append((part.field, part.old))
                else:
                    text, is_whole = taken_back(part, value)
                    fields += [] if text in (None, value) else [(part.field, text)]
                    kept += [] if is_whole else [set_since(intent, part.field, value)]
            phase = Phase.REST
            if outside_change(intent, current, is_written=False) is not None:
                self.overridden.add(intent.workload)
                phase = Phase.SETTLED
            if not fields:
                return tuple(kept)
            # An old signal may be understood as one that nobody answered; the one that was given is good again.
            fields += [(part.field, part.new) for part in intent.fields if is_signal(part.field)]
            fields += held_values(current, intent.holds, phase)
            try:
                if self._write(f"restore {intent.workload}", intent, fields, current, 0):
                    return tuple(kept)
            except Refused as exc:
                if not kept:
                    raise
                # A container whose amounts come half from the plan's time and half from somebody else is none that
                # the server takes: then all of it is theirs.
                return (*kept, sentence("rollout.left_too", workload=intent.workload, why=exc.said))
        return (sentence("rollout.keeps_changing", workload=intent.workload),)

    def with_owners(self, objects: Sequence[ObjectIntent]) -> list[ObjectIntent]:
        """Objects with who owns the fields that are going to be changed, where the cluster keeps it."""
        writer = self._cluster.writer
        if not isinstance(writer, DisowningWriter):
            return list(objects)
        asked: dict[tuple[str, str], dict[str, list[str]]] = {}
        for intent in objects:
            if intent.kind in WORKLOAD_KINDS:
                asked.setdefault((intent.kind, intent.namespace), {})[intent.name] = _fields(intent)
        found = {
            (kind, namespace, name): owners
            for (kind, namespace), fields in asked.items()
            for name, owners in self._cluster.patiently(lambda: writer.owners(kind, namespace, fields)).items()  # noqa: B023
        }
        return [replace(intent, owners=found.get(intent.key, ())) for intent in objects]

    def disown(self, intent: ObjectIntent) -> None:
        """Give the fields of a restored object to their former owners, where the cluster keeps who has what."""
        writer = self._cluster.writer
        if isinstance(writer, DisowningWriter) and intent.kind != "Pod":
            self._cluster.step(f"disown {intent.workload}")
            self._cluster.patiently(lambda: writer.disown(*intent.key, _fields(intent), intent.owners))

    def _last_seen(self, intent: ObjectIntent, is_to_write: Callable[[Manifest], bool]) -> Manifest | None:
        """The object as it was listed, where it is to be written; only a fresh look says that nothing is to be done."""
        seen = self._seen.pop(intent.key, None)
        return seen if seen is not None and is_to_write(seen) else self._cluster.get(*intent.key)

    def _write(
        self, step: str, intent: ObjectIntent, fields: Sequence[tuple[str, str | None]], current: Manifest, number: int
    ) -> bool:
        """Write fields on the condition that the object is as it was just read; False where it has changed since."""
        version = current["metadata"]["resourceVersion"]
        try:
            self._cluster.patch(step, intent.key, fields, version)
        except Refused:
            # An answer that was lost on its way back looks like a conflict when the call is made again, and a status
            # that moved on is no conflict of ours: look again, and let the one who looks decide.
            again = self._cluster.get(*intent.key)
            is_same = again is not None and again["metadata"]["resourceVersion"] == version
            if is_same or number == TRIES_MAX - 1:
                raise
            return False
        return True


def taken_back(part: FieldIntent, value: str | None) -> tuple[str | None, bool]:
    """A field that somebody changed since, without what the plan wrote into it, and whether that is all of it.

    Only the configuration of a ConfigMap has places of its own, so that others change theirs in the same field.
    """
    return json_taken_back(part.old, part.new, value) if part.field.startswith("data[") else (None, False)


def set_since(intent: ObjectIntent, field: str, value: str | None) -> Sentence:
    """Says that a field is as somebody else set it, and stays so."""
    who = sentence("rollout.somebody")
    return sentence("rollout.set_since", workload=intent.workload, field=field, who=who, value=_shown(value))


def _shown(value: str | None) -> str:
    """A value as it is said and written down: a tenant may write a quarter of a megabyte."""
    return repr(value if value is None else value[:_SHOWN_LETTERS_MAX])


def _fields(intent: ObjectIntent) -> list[str]:
    return [*(part.field for part in intent.fields), *(hold.field for hold in intent.holds)]


def _refuse_changed(current: Manifest | None, intent: ObjectIntent) -> None:
    """Refuse to write over what somebody else changed: the specification, or one of our fields."""
    what = f"{intent.kind} {intent.namespace}/{intent.name}" if intent.namespace else f"{intent.kind} {intent.name}"
    if current is None:
        raise Refused(sentence("guard.object_gone", what=what))
    generation = current["metadata"].get("generation")
    if intent.generation is not None and generation is not None and generation != intent.generation:
        then = f"generation={intent.generation}"
        raise Refused(sentence("guard.object_changed", what=what, then=then, now=str(generation)))
    for part in intent.fields:
        value = field_of(current, part.field)
        if not any(values_equal(part.field, value, known) for known in (part.old, part.new)):
            then, now = _shown(part.old), _shown(value)
            raise Refused(sentence("guard.field_changed", what=what, field=part.field, then=then, now=now))


def _in_force(current: Manifest, intent: ObjectIntent) -> list[FieldIntent]:
    """Fields that have the value of an intent, where that is not the one of before."""
    return [
        part
        for part in intent.fields
        for value in (field_of(current, part.field),)
        if values_equal(part.field, value, part.new) and not values_equal(part.field, value, part.old)
    ]


def _is_written(current: Manifest | None, intent: ObjectIntent) -> bool:
    return current is not None and all(
        values_equal(part.field, field_of(current, part.field), part.new) for part in intent.fields
    )
