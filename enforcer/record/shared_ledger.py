"""A ledger whose entries lie in the cluster that they are about, and of which the folder keeps a copy.

What is about to be done is written to the cluster first: an entry that the cluster did not take is not acted on. So
another machine, with an empty data folder, can undo what this one applied, and two machines can't both go on with one
plan, as each entry depends on those that its writer has seen. Entries are brought here before each look. A folder that
holds entries of a plan that is in force, and a cluster that has lost them, gives them back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

from enforcer.record.anchor import Anchor
from enforcer.record.journal import RunRecord, runs_of
from enforcer.record.ledger import Entry, Ledger
from enforcer.record.plan_status import changes_state, in_force, newest_records, standing
from fleet.errors import Corrupt
from fleet.json_text import as_stored
from fleet.units import format_time, parse_time


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredEntry:
    """An entry as the cluster keeps it.

    Attributes:
        at: when, UTC, whole microseconds.
    """

    at: datetime
    event: str
    content: Mapping[str, Any]


class ChangeStore(Protocol):
    """Keeps the entries of each plan in the cluster."""

    def entries(self) -> Mapping[str, Sequence[StoredEntry] | Corrupt]:
        """Entries of every plan by its id, oldest first; the error where somebody edited those of a plan.

        Raises:
            Refused: the cluster does not know the kind of objects that hold them.
            Unavailable: the cluster can't be reached.
        """
        ...

    def append(
        self, plan_id: str, known: int, entries: Sequence[StoredEntry], summary: Mapping[str, str | int]
    ) -> None:
        """Add entries of a plan, on the condition that it has `known` of them.

        Args:
            summary: what those see who list the changes of a cluster.

        Raises:
            Unavailable: another one has written since, or the cluster can't be reached.
            Corrupt: somebody edited those that it has.
            Refused: they are too large for it.
        """
        ...


class SharedLedger(Ledger):
    """A ledger file that follows what a cluster keeps.

    Args:
        path: the file; made with the first entry.
        cluster: its name: of plans of other clusters nothing is written to it.
        is_lean: the file is for this process alone, which runs for months: of plans of which nothing stands or goes on
            entries are read where that plan is asked for, and not held.
        key, anchor: see `Ledger`.
    """

    def __init__(
        self,
        path: Path,
        store: ChangeStore,
        cluster: str | None,
        *,
        is_lean: bool = False,
        key: bytes | None = None,
        anchor: Anchor | None = None,
    ) -> None:
        super().__init__(path, key=key, anchor=anchor)
        self._store = store
        self._cluster = cluster
        self._is_lean = is_lean
        self._over: dict[str, tuple[int, bool]] = {}
        self._left_out: dict[str, Sequence[StoredEntry]] = {}
        self._begun: set[str] = set()
        self._agreed: dict[str, int] = {}
        self._damaged: dict[str, Corrupt] = {}

    def append(self, events: Sequence[tuple[str, Mapping[str, Any]]], *, plan_id: str, at: datetime) -> None:
        """See `Ledger`; to the cluster first.

        Raises:
            Unavailable: another enforcer has written of this plan since, or the cluster can't be reached; nothing may
                be done that was to be written.
            Corrupt: as `entries`.
        """
        self._begun.add(plan_id)
        self.pull()
        self._check(plan_id)
        before = super().entries(plan_id)
        added = [_stored(at, event, content) for event, content in events]
        after = [*before, *(_entry(plan_id, entry) for entry in added)]
        self._store.append(plan_id, len(before), added, summary_of(runs_of(after)))
        self._agreed[plan_id] = len(after)
        super().append(events, plan_id=plan_id, at=at)

    def entries(self, plan_id: str | None = None) -> tuple[Entry, ...]:
        """See `Ledger`; those that another machine wrote are brought here first.

        Of a plan whose entries somebody edited in the cluster, those of the file count among all.

        Raises:
            Corrupt: somebody edited those of the plan that is named, or the file holds others of it.
            Unavailable: the cluster can't be reached.
        """
        self.pull()
        if plan_id is not None:
            self._check(plan_id)
            if plan_id in self._left_out:
                return tuple(_entry(plan_id, stored) for stored in self._left_out[plan_id])
        return super().entries(plan_id)

    def rest(self) -> None:
        """See `Ledger`: a lean one begins anew, as that of a process that has just been started."""
        if self._is_lean:
            self._path.unlink(missing_ok=True)
            self._head_path.unlink(missing_ok=True)
            self._last, self._entries = None, []
            self._agreed.clear()
            self._begun.clear()

    def _check(self, plan_id: str) -> None:
        if plan_id in self._damaged:
            raise self._damaged[plan_id].with_traceback(None)

    def pull(self) -> None:
        """Copy what the cluster has and this file lacks, and give back what a cluster has lost of plans in force.

        A plan of which file and cluster hold different entries is damaged, and left alone.

        Raises:
            Corrupt: the file was edited.
            Refused: the cluster does not know the kind of objects that hold them.
            Unavailable: the cluster can't be reached.
        """
        held: dict[str, list[Entry]] = {}
        for entry in super().entries():
            held.setdefault(entry.plan_id, []).append(entry)
        found = self._store.entries()
        missing: list[tuple[str, StoredEntry]] = []
        self._damaged = {plan_id: stored for plan_id, stored in found.items() if isinstance(stored, Corrupt)}
        self._left_out = {}
        for plan_id, stored in found.items():
            if isinstance(stored, Corrupt):
                continue
            own = held.get(plan_id, [])
            if self._is_lean and not own and plan_id not in self._begun and self._is_over(plan_id, stored):
                self._left_out[plan_id] = stored
                continue
            shared = min(len(own), len(stored))
            agreed = min(self._agreed.get(plan_id, 0), shared)
            # To look at an entry is to unpack all before it.
            fresh = list(islice(stored, agreed, None)) if agreed < len(stored) else []
            other = next(
                (number for number in range(agreed, shared) if _differ(own[number], fresh[number - agreed])), None
            )
            if other is not None:
                self._damaged[plan_id] = Corrupt(
                    f"cannot go on: entry {other + 1} of plan {plan_id} in ledger {self._path} is not the one of "
                    f"the cluster's GpuChange objects; keep both, and move the file away to follow the cluster"
                )
                continue
            self._agreed[plan_id] = shared
            missing += [(plan_id, entry) for entry in fresh[shared - agreed :]]
        # Plans that other machines wrote of at the same time stand one after the other, as they happened.
        for plan_id, late in sorted(missing, key=lambda one: one[1].at):
            super().append([(late.event, late.content)], plan_id=plan_id, at=late.at)
            self._agreed[plan_id] = self._agreed.get(plan_id, 0) + 1
        for plan_id, own in held.items():
            stored = found.get(plan_id, ())
            if plan_id in self._damaged or isinstance(stored, Corrupt) or len(own) <= len(stored):
                continue
            lost, runs = own[len(stored) :], runs_of(own)
            if (standing(runs) or any(run.is_open for run in runs)) and all(
                run.cluster in (None, self._cluster) for run in runs
            ):
                added = [_stored(entry.at, entry.event, entry.content) for entry in lost]
                self._store.append(plan_id, len(own) - len(lost), added, summary_of(runs))
                self._agreed[plan_id] = len(own)

    def _is_over(self, plan_id: str, stored: Sequence[StoredEntry]) -> bool:
        """Whether nothing of a plan stands in the cluster or goes on."""
        known = self._over.get(plan_id)
        if known is None or known[0] != len(stored):
            entries = [_entry(plan_id, one) for one in stored]
            undos = [entry.event for entry in entries if entry.event in ("undo_begin", "undone")]
            runs = runs_of(entries)
            is_open = undos[-1:] == ["undo_begin"] or any(run.is_open for run in runs)
            known = self._over[plan_id] = len(stored), not is_open and not standing(runs)
        return known[1]


def stored_runs(store: ChangeStore, plan_id: str) -> Sequence[RunRecord]:
    """Runs of a plan, oldest first, by what the cluster keeps alone.

    Raises:
        Corrupt: somebody edited them.
        Refused: the cluster does not know the kind of objects that hold them.
        Unavailable: the cluster can't be reached.
    """
    found = store.entries().get(plan_id, ())
    if isinstance(found, Corrupt):
        raise found
    return runs_of([_entry(plan_id, entry) for entry in found])


def summary_of(runs: Sequence[RunRecord]) -> dict[str, str | int]:
    """What is shown of a plan's changes in a list: state, stages in force, pods moved, who asked last."""
    records, applied = newest_records(runs), sorted(in_force(runs))
    return {
        "state": changes_state(runs),
        "stages": ", ".join(map(str, applied)),
        "pods": sum(len(records[stage].moves) for stage in applied),
        "by": runs[-1].by if runs else "",
    }


def _differ(own: Entry, stored: StoredEntry) -> bool:
    return _stored(own.at, own.event, own.content) != stored


def _stored(at: datetime, event: str, content: Mapping[str, Any]) -> StoredEntry:
    # As it comes back from JSON: tuples are lists there.
    return StoredEntry(at=parse_time(format_time(at)), event=event, content=as_stored(content))


def _entry(plan_id: str, entry: StoredEntry) -> Entry:
    return Entry(number=0, at=entry.at, event=entry.event, plan_id=plan_id, content=entry.content, sha256="")
