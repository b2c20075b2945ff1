"""Fulfils the pages' `Outcomes`: what came of plans, and the ledger in plain words."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from dashboards.queries import LedgerEntry
from enforcer.record.ledger import Entry, Ledger
from enforcer.record.savings import promised_cards
from fleet.data_folder import DataFolder
from fleet.documents import outcome_document, outcome_of
from fleet.durable import write_durably
from fleet.errors import Corrupt
from fleet.money.saving import cards_in
from fleet.outcomes import Outcome
from gputide.freeze_desk import told_freezes
from gputide.kept_plans import KeptPlans
from gputide.wiring import plan_store


def keep_outcome(folder: DataFolder, outcome: Outcome) -> None:
    """Keep the newest outcome of a plan."""
    folder.outcomes.mkdir(exist_ok=True)
    write_durably(_file(folder, outcome.plan_id), json.dumps(outcome_document(outcome)).encode())


def read_outcomes(folder: DataFolder) -> tuple[Outcome, ...]:
    """The newest outcome of every plan that was verified, the newest first.

    Raises:
        Corrupt: a file can't be read.
    """
    found = []
    for file in sorted(folder.outcomes.glob("*.json")) if folder.outcomes.is_dir() else ():
        try:
            found.append(outcome_of(json.loads(file.read_bytes()), name=str(file)))
        except (OSError, ValueError) as exc:
            raise Corrupt(f"cannot read {file}: {exc}") from exc
    return tuple(sorted(found, key=lambda outcome: outcome.since, reverse=True))


class StoredOutcomes:
    """`Outcomes` over a data folder.

    Args:
        folder: data folder.
        plans: its plans as they were read; None for a reading of its own.
    """

    def __init__(self, folder: DataFolder, plans: KeptPlans | None = None) -> None:
        self._folder = folder
        self._plans = plans or KeptPlans(folder.plans)

    def outcomes(self, cluster: str) -> tuple[Outcome, ...]:
        """The newest outcome of every plan that was verified, newest first."""
        found = read_outcomes(self._folder)
        of_cluster = {plan.plan_id for plan in self._plans.plans(cluster)} if found else set()
        return tuple(outcome for outcome in found if outcome.plan_id in of_cluster)

    def ledger(self, cluster: str) -> tuple[LedgerEntry, ...]:
        """Everything that was done, newest first."""
        plans = {plan.plan_id: plan for plan in self._plans.plans(cluster)}
        freed = {
            (plan.plan_id, stage.stage): cards_in(promised_cards(plan, [stage.stage]))
            for plan in plans.values()
            for stage in plan.stages
        }
        by: dict[str, str] = {}
        found: list[LedgerEntry] = []
        for entry in Ledger(self._folder.ledger).entries():
            if entry.plan_id in plans:
                if entry.event == "begin":
                    by[entry.plan_id] = str(entry.content["by"])
                found += _told(entry, by.get(entry.plan_id, "gputide"), freed)
        for plan_id in plans:
            for approval in plan_store(self._folder).approvals(plan_id):
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
        found += told_freezes(self._folder)
        return tuple(sorted(found, key=lambda entry: entry.at, reverse=True))


def _told(entry: Entry, actor: str, freed: dict[tuple[str, int], int]) -> Iterator[LedgerEntry]:
    """One line for what people want to see; intents and moves stay in the file."""
    content = entry.content
    if entry.event == "promoted":
        stage = int(content["stage"])
        cards = freed.get((entry.plan_id, stage), 0)
        yield _line(entry, actor, "applied", f"stage {stage}", "kept after the watch", cards)
    elif entry.event == "restored":
        yield _line(entry, actor, "restored", f"stage {content['stage']}", "; ".join(content["kept"][:3]), 0)
    elif entry.event == "restoring":
        yield _line(entry, actor, "taken back", f"stage {content['stage']}", str(content["reason"]), 0)
    elif entry.event == "undone":
        what = content["recommendation"] or "stages " + ", ".join(map(str, content["stages"]))
        cards = sum(freed.get((entry.plan_id, int(stage)), 0) for stage in content["stages"])
        whole = 0 if content["recommendation"] else -cards
        yield _line(entry, actor, "undone", what, "; ".join(content["kept"][:3]), whole)


def _line(entry: Entry, actor: str, action: str, subject: str, detail: str, cards: int) -> LedgerEntry:
    return LedgerEntry(
        at=entry.at, actor=actor, action=action, plan_id=entry.plan_id, subject=subject, detail=detail, cards=cards
    )


def _file(folder: DataFolder, plan_id: str) -> Path:
    return folder.outcomes / f"{plan_id}.json"
