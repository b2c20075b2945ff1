"""What was done to a cluster: outcomes of plans, the audit log in plain words, the freeze, and what relief did.

Read from the ledgers and the stored outcomes of the data folder.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Any

from dashboards.queries import Event, Fleet, LedgerEntry
from dashboards.view_models.relief_acts import MoveState, ReliefActs, ReliefMove, ReliefSleep
from enforcer.record.journal import Journal
from enforcer.record.ledger import Entry, Ledger, ledger_at
from enforcer.record.outcome_store import read_outcomes
from enforcer.record.plan_cache import PlanCache
from enforcer.record.plan_store import PlanStore
from enforcer.relief.relief_journal import Manner, MovePhase, MoveRecord, ReliefJournal
from enforcer.safety.freeze import FROZEN, THAWED, freeze_changes, frozen_by, thaw_changes
from fleet.data_folder import DataFolder
from fleet.inventory import CardId
from fleet.outcomes import Outcome
from fleet.sentences import Sentence, listed, sentence_of


class StoredOutcomes:
    """`Outcomes` over a data folder.

    Args:
        plans: its plans in memory; None to read them here.
    """

    def __init__(self, folder: DataFolder, plans: PlanCache | None = None) -> None:
        self._folder = folder
        self._plans = plans or PlanCache(folder.plans)

    def outcomes(self, cluster: str) -> tuple[Outcome, ...]:
        """The newest outcome of every plan that was verified, newest first."""
        found = read_outcomes(self._folder)
        of_cluster = {plan.plan_id for plan in self._plans.plans(cluster)} if found else set()
        return tuple(outcome for outcome in found if outcome.plan_id in of_cluster)

    def ledger(self, cluster: str) -> tuple[LedgerEntry, ...]:
        """Everything that was done, newest first."""
        plans = {plan.plan_id: plan for plan in self._plans.plans(cluster)}
        freed = {(plan.plan_id, stage.stage): stage.cards_freed for plan in plans.values() for stage in plan.stages}
        by: dict[str, str] = {}
        found: list[LedgerEntry] = []
        for entry in ledger_at(self._folder, self._folder.ledger).entries():
            if entry.plan_id in plans:
                if entry.event == "begin":
                    by[entry.plan_id] = str(entry.content["by"])
                found += _lines(entry, by.get(entry.plan_id, "gputide"), freed)
        for plan_id in plans:
            for approval in PlanStore(self._folder.plans).approvals(plan_id):
                stages = ", ".join(map(str, approval.stages))
                found.append(
                    LedgerEntry(
                        at=approval.at,
                        actor=approval.by,
                        action="approved",
                        plan_id=plan_id,
                        subject=f"stages {stages}",
                        detail="",
                    )
                )
        found += _freezes(self._folder)
        return tuple(sorted(found, key=lambda entry: entry.at, reverse=True))


def _lines(entry: Entry, actor: str, freed: dict[tuple[str, int], int]) -> Iterator[LedgerEntry]:
    """One line for each step that people ask about; intents and moves are in the file only."""
    content = entry.content
    if entry.event == "promoted":
        stage = int(content["stage"])
        cards = freed.get((entry.plan_id, stage), 0)
        yield _line(entry, actor, "applied", f"stage {stage}", "kept after the watch", cards)
    elif entry.event == "restored":
        yield _line(entry, actor, "restored", f"stage {content['stage']}", _kept(content["kept"]), 0)
    elif entry.event == "restoring":
        yield _line(entry, actor, "taken back", f"stage {content['stage']}", sentence_of(content["reason"]), 0)
    elif entry.event == "undone":
        what = content["recommendation"] or "stages " + ", ".join(map(str, content["stages"]))
        cards = sum(freed.get((entry.plan_id, int(stage)), 0) for stage in content["stages"])
        whole = 0 if content["recommendation"] else -cards
        yield _line(entry, actor, "undone", what, _kept(content["kept"]), whole)


def _kept(content: Sequence[Any]) -> Sentence | str:
    """What a restoration left as it was."""
    return listed([sentence_of(one) for one in content], 3, clauses=True) if content else ""


def _line(entry: Entry, actor: str, action: str, subject: str, detail: Sentence | str, cards: int) -> LedgerEntry:
    return LedgerEntry(
        at=entry.at, actor=actor, action=action, plan_id=entry.plan_id, subject=subject, detail=detail, cards=cards
    )


def _freezes(folder: DataFolder) -> tuple[LedgerEntry, ...]:
    return tuple(
        LedgerEntry(
            at=entry.at,
            actor=str(entry.content["by"]),
            action=entry.event,
            plan_id="",
            subject="every change",
            detail="stopped" if entry.event == FROZEN else "allowed again",
        )
        for entry in ledger_at(folder, folder.freezes).entries()
        if entry.event in (FROZEN, THAWED)
    )


def change_events(journal: Journal, workload: str) -> tuple[Event, ...]:
    """Changes of a workload by gputide, of the cluster that the journal is limited to."""
    found = []
    for run in journal.runs():
        for record in run.records.values():
            kinds = {move.recommendation for move in record.moves if move.workload == workload}
            if kinds and record.applied_at is not None:
                text = f"plan {run.plan_id}: {', '.join(sorted(kinds))}"
                found.append(Event(at=record.applied_at, kind="change", text=text))
    return tuple(found)


class StoredFreezes:
    """`Freezes` over a data folder: one freeze for every cluster that is changed from it."""

    def __init__(self, folder: DataFolder, now: Callable[[], datetime]) -> None:
        self._folder = folder
        self._now = now

    def frozen_by(self, cluster: str) -> str | None:
        """Who stopped every change, and when; None where nobody did."""
        del cluster
        return frozen_by(self._folder.freeze)

    def freeze(self, cluster: str, by: str) -> None:
        """Stop every change; see `freeze_changes`."""
        del cluster
        freeze_changes(self._folder, by=by, at=self._now())

    def thaw(self, cluster: str, by: str) -> None:
        """Let changes go on; see `thaw_changes`."""
        del cluster
        thaw_changes(self._folder, by=by, at=self._now())


class StoredRelief:
    """`ReliefLog` over a data folder.

    Args:
        fleet: knows which cards are of which cluster: the ledger of relief names none.
    """

    def __init__(self, folder: DataFolder, fleet: Fleet) -> None:
        self._folder = folder
        self._fleet = fleet
        self._lock = threading.Lock()
        self._read: tuple[tuple[int, int], ReliefActs] | None = None

    def acts(self, cluster: str) -> ReliefActs:
        """What relief did in one cluster.

        Raises:
            Corrupt: the ledger was edited.
        """
        found = self._all()
        if (not found.moves and not found.sleeps) or self._fleet.clusters() == (cluster,):
            return found
        cards = {card.card for card in self._fleet.profiles(cluster).cards}
        return ReliefActs(
            sleeps=tuple(one for one in found.sleeps if one.card in cards),
            moves=tuple(move for move in found.moves if move.from_card in cards or move.to_card in cards),
        )

    def _all(self) -> ReliefActs:
        """Read anew when the ledger grew."""
        file = self._folder.relief
        if not file.exists():
            return ReliefActs()
        stat = file.stat()
        version = (stat.st_mtime_ns, stat.st_size)
        with self._lock:
            if self._read is None or self._read[0] != version:
                self._read = version, acts_of(ReliefJournal(Ledger(file)))
            return self._read[1]


def acts_of(journal: ReliefJournal) -> ReliefActs:
    """What a journal of relief records, as the pages show it.

    Raises:
        Corrupt: the ledger was edited.
    """
    return ReliefActs(
        sleeps=tuple(
            ReliefSleep(node=one.node, card=CardId(one.card), containers=len(one.containers), since=one.at)
            for one in journal.open_squeezes()
        ),
        moves=tuple(_move(record) for record in reversed(journal.moves())),
    )


def _move(record: MoveRecord) -> ReliefMove:
    order, ended = record.order, record.ended_at
    return ReliefMove(
        workload=order.workload,
        pod=order.pod,
        from_card=CardId(order.from_card),
        to_card=CardId(order.to_card),
        is_restart=order.manner is Manner.RESTART,
        is_home=order.is_home,
        state=_state(record),
        begun_at=record.begun_at,
        seconds=None if ended is None else (ended - record.begun_at).total_seconds(),
        reason=order.reason,
        why=record.why,
    )


def _state(record: MoveRecord) -> MoveState:
    if record.phase is MovePhase.TAKEN_BACK:
        return MoveState.TAKEN_BACK
    if record.is_open:
        return MoveState.UNDER_WAY
    if record.order.is_home or record.is_home_again:
        return MoveState.HOME_AGAIN
    return MoveState.AWAY if record.order.manner is Manner.WARM else MoveState.STAYS
