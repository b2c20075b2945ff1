"""Plans as they were made: sealed JSON files that nobody edits, with who approved which stages beside them.

The command line stores what `plan make` makes, pages list and approve, the guard reads approvals, the reconciler goes
by the wish. A file is written whole or not at all. `ID.json` is the plan, `ID.inputs.json` the fingerprint of what it
was made for, `ID.approvals.jsonl` its approvals, `ID.wish.json` the stages that are wanted in force. Of a real cluster
the folder is a copy (`enforcer.record.shared_plans`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from enforcer.record.entry_shapes import moment_of
from enforcer.record.fingerprint import Fingerprint, fingerprint_from_json, fingerprint_to_json
from fleet.decisions import Plan
from fleet.documents import PLAN_ID_DIGITS, plan_from_json, plan_to_json
from fleet.durable import unwritable, write_durably
from fleet.errors import Corrupt, Misconfigured, Refused
from fleet.json_text import json_value
from fleet.sentences import sentence
from fleet.units import format_plan_id, format_time

ID_DIGITS_MIN = 8
"""Fewest digits of a plan's id by which people may name it."""
_KNOWN_SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Approval:
    """One person's yes."""

    plan_id: str
    stages: tuple[int, ...]
    by: str
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """Which stages of a plan somebody wants in force.

    Attributes:
        stages: their numbers; None where nobody has said: what is in force stays, and nothing more is applied.
        by: who set them last; empty where that is not known.
        generation: grows with each change.
        failed_generation: the one at which a stage was last taken back; None where none was, or nobody keeps it.
        refusal: why a controller can't do now what this asks for; empty where it can, or none has tried.
    """

    stages: frozenset[int] | None = None
    by: str = ""
    generation: int = 0
    failed_generation: int | None = None
    refusal: str = ""

    @property
    def is_gone(self) -> bool:
        """Whether the cluster no longer has the plan: nothing more of it is applied, and what is in force stays."""
        return self.stages is not None and not self.generation

    def wanted(self, in_force: frozenset[int]) -> frozenset[int]:
        """Stages that are wanted in force; those that are where nobody says otherwise."""
        return in_force if self.stages is None or self.is_gone else self.stages

    @property
    def has_failed(self) -> bool:
        """Whether a stage was taken back since it was said: nothing more of it is tried."""
        return self.failed_generation is not None and self.failed_generation >= self.generation

    def changed(self, change: WishChange) -> Wish:
        """The wish with some stages more and some fewer; the same where that changes nothing."""
        before = change.in_force if self.stages is None else self.stages
        stages = (before | change.add) - change.remove
        if stages == self.stages:
            return self
        return replace(self, stages=stages, by=change.by, generation=self.generation + 1, refusal="")


GONE = Wish(stages=frozenset())
"""The wish of a plan that the cluster no longer has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DamagedPlan:
    """A plan that can't be read, with what is known of it."""

    wish: Wish
    approvals: tuple[Approval, ...]
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WishChange:
    """More stages that are wanted in force, or fewer.

    Attributes:
        remove: stages that no longer are.
        in_force: what is wanted where nobody has said anything yet: what is in force.
    """

    add: frozenset[int] = frozenset()
    remove: frozenset[int] = frozenset()
    by: str
    in_force: frozenset[int] = frozenset()


class _Wanted(BaseModel):
    """`ID.wish.json`."""

    model_config = ConfigDict(strict=True, defer_build=True)

    stages: list[int]
    by: str
    generation: int


class _Given(BaseModel):
    """A line of `ID.approvals.jsonl`."""

    model_config = ConfigDict(strict=True, defer_build=True)

    stages: list[int]
    by: str
    at: str


class PlanStore:
    """One folder of plans.

    Each call raises `Corrupt` where a file can't be read, or storage can't take one.

    Args:
        path: the folder; made with the first plan.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def add(self, plan: Plan, fingerprint: Fingerprint | None = None) -> None:
        """Keep a plan; the same plan again is only made the newest.

        Args:
            fingerprint: what the cluster looked like when it was made, for the guard.
        """
        if self._file(plan.plan_id).exists():
            os.utime(self._file(plan.plan_id))
        else:
            if fingerprint is not None:
                self._put(self._path / f"{plan.plan_id}.inputs.json", fingerprint_to_json(fingerprint))
            self._put(self._file(plan.plan_id), plan_to_json(plan))

    def get(self, plan_id: str) -> Plan:
        """One plan, by its id or the start of it.

        Raises:
            Misconfigured: there is no such plan, or more than one, or what is given of its id is too short.
            Refused: it was edited.
        """
        found = id_meant(plan_id, self._ids())
        file = self._file(found)
        plan = plan_from_json(_content(file), name=str(file))
        if plan.plan_id != found:
            raise Refused(f"cannot use plan {file}: it holds plan {plan.plan_id}")
        return plan

    def plans(self) -> tuple[Plan, ...]:
        """Every plan, in the order in which they were kept, the newest last.

        A replay's clock stands still while plans are made, so the file's time distinguishes them, not `created_at`.

        Raises:
            Refused: one was edited.
        """
        found = []
        for name in self.ids():
            try:
                found.append(self.get(name))
            except (Corrupt, Misconfigured):
                if self._file(name).exists():  # else it was superseded meanwhile
                    raise
        return tuple(found)

    def ids(self) -> tuple[str, ...]:
        """Ids of every plan, in the order in which they were kept, the newest last; opens none."""
        found = []
        for name in self._ids():
            with suppress(FileNotFoundError):  # it was superseded meanwhile
                found.append((self._file(name).stat().st_mtime_ns, name))
        return tuple(name for _, name in sorted(found))

    def drop(self, plan_ids: Iterable[str]) -> None:
        """Keep plans no longer; one that is not there is no error."""
        for plan_id in plan_ids:
            for file in (self._file(plan_id), *sorted(self._path.glob(f"{plan_id}.*"))):
                file.unlink(missing_ok=True)

    def newest(self, cluster: str | None = None) -> Plan | None:
        """The plan that was made last, of one cluster where it is given; None where there is none.

        Switches of nodes are no such plans: nobody means one of them without a name.

        Raises as `plans`.
        """
        found = map(self.get, reversed(self.ids()))
        return next((plan for plan in found if cluster in (None, plan.cluster) and not plan.is_of_node), None)

    def fingerprint(self, plan_id: str) -> Fingerprint | None:
        """What the cluster looked like when a plan was made, None where that was not kept."""
        file = self._path / f"{plan_id}.inputs.json"
        return fingerprint_from_json(_content(file), name=str(file)) if file.exists() else None

    def approve(self, plan: Plan, stages: Sequence[int], *, by: str, at: datetime) -> Approval:
        """Write down an approval, durable before this returns.

        Raises:
            Refused: the plan has no such stage, has expired, or its id is not whole.
        """
        approval = approval_of(plan, stages, by=by, at=at)
        try:
            with self._approvals_file(plan.plan_id).open("a", encoding="utf-8") as file:
                file.write(_line_of(approval))
                file.flush()
                os.fsync(file.fileno())
        except OSError as exc:
            raise Corrupt(f"cannot write approval of plan {plan.plan_id}: {exc.strerror}") from exc
        return approval

    def signs_as_user(self, plan: Plan) -> bool:
        """Whether approvals of a plan are given by users of its cluster, whom it knows by itself."""
        del plan
        return False

    def keep_approvals(self, plan_id: str, approvals: Sequence[Approval]) -> None:
        """Let a plan have these approvals and no others."""
        if tuple(approvals) != PlanStore.approvals(self, plan_id):
            self._put(self._approvals_file(plan_id), "".join(map(_line_of, approvals)).encode())

    def approvals(self, plan_id: str) -> tuple[Approval, ...]:
        """Approvals of a plan, oldest first. A line that a crash cut counts as never given."""
        file = self._approvals_file(plan_id)
        if not file.exists():
            return ()
        found = []
        for line in _content(file).split(b"\n")[:-1]:
            try:
                given = _Given.model_validate(json_value(line))
                found.append(
                    Approval(plan_id=plan_id, stages=tuple(given.stages), by=given.by, at=moment_of(given.at))
                )  # fmt: skip
            except (ValidationError, ValueError, Corrupt) as exc:
                raise Corrupt(f"cannot read {file}: {line[:64].decode(errors='replace')!r} is no approval") from exc
        return tuple(found)

    def copied_approvals(self, plan_id: str) -> tuple[Approval, ...]:
        """As `approvals`, by the folder alone."""
        return PlanStore.approvals(self, plan_id)

    def approved_stages(self, plan_id: str) -> frozenset[int]:
        """Stages that somebody approved."""
        return frozenset(stage for approval in self.approvals(plan_id) for stage in approval.stages)

    def wish(self, plan_id: str) -> Wish:
        """The stages of a plan that are wanted in force."""
        file = self._path / f"{plan_id}.wish.json"
        if not file.exists():
            return Wish()
        try:
            wanted = _Wanted.model_validate(json_value(_content(file)))
            return Wish(stages=frozenset(wanted.stages), by=wanted.by, generation=wanted.generation)
        except (ValidationError, ValueError) as exc:
            raise Corrupt(f"cannot read {file}: it holds no wish") from exc

    def wishes(self) -> Mapping[str, Wish]:
        """What is wanted of every plan, by its id, in the order in which they were kept."""
        return {plan_id: self.wish(plan_id) for plan_id in self.ids()}

    def damaged(self) -> Mapping[str, DamagedPlan]:
        """Plans that `wishes` left out when it was asked last, by their ids."""
        return {}

    def change_wish(self, plan_id: str, change: WishChange) -> Wish:
        """Want more stages of a plan in force, or fewer."""
        before = self.wish(plan_id)
        wish = before.changed(change)
        if wish != before:
            content = {"stages": sorted(wish.stages or ()), "by": wish.by, "generation": wish.generation}
            self._put(self._path / f"{plan_id}.wish.json", json.dumps(content).encode() + b"\n")
        return wish

    def _ids(self) -> list[str]:
        if not self._path.is_dir():
            return []
        return sorted(
            file.name.removesuffix(".json") for file in self._path.glob("*.json") if file.name.count(".") == 1
        )

    def _file(self, plan_id: str) -> Path:
        return self._path / f"{plan_id}.json"

    def _approvals_file(self, plan_id: str) -> Path:
        return self._path / f"{plan_id}.approvals.jsonl"

    def _put(self, file: Path, content: bytes) -> None:
        try:
            self._path.mkdir(parents=True, exist_ok=True)
        except OSError as exc:
            raise unwritable(self._path, exc) from exc
        write_durably(file, content)


def id_meant(given: str, ids: Sequence[str]) -> str:
    """The plan's id that is given, or begins so.

    Args:
        ids: of all plans.

    Raises:
        Misconfigured: none begins so, more than one does, or what is given has fewer digits than `ID_DIGITS_MIN`.
    """
    if given in ids:
        return given
    if len(given) < ID_DIGITS_MIN:
        raise Misconfigured(
            f"cannot use plan {given[:PLAN_ID_DIGITS]!r}: give at least {ID_DIGITS_MIN} digits of its id; "
            "`gputide plan list` shows them"
        )
    found = sorted({plan_id for plan_id in ids if plan_id.startswith(given)})
    if not found:
        known = ", ".join(map(format_plan_id, ids[-_KNOWN_SHOWN:])) or "none; run `gputide plan make`"
        raise Misconfigured(f"cannot use plan {given[:PLAN_ID_DIGITS]!r}: no plan has that id; known: {known}")
    if len(found) > 1:
        which = ", ".join(found[:_KNOWN_SHOWN])
        raise Misconfigured(f"cannot use plan {given!r}: {len(found)} plans have ids that begin so, {which}; give more")
    return found[0]


def check_whole_id(plan_id: str) -> None:
    """Refuse a plan whose id is the start of a digest: another plan may have the same.

    Raises:
        Refused: it is one.
    """
    if len(plan_id) != PLAN_ID_DIGITS:
        raise Refused(sentence("guard.short_id", plan=plan_id))


def approval_of(plan: Plan, stages: Sequence[int], *, by: str, at: datetime) -> Approval:
    """Somebody's yes to stages of a plan.

    Raises:
        Refused: the plan has no such stage, or has expired.
        Misconfigured: the name is none that can be written down.
    """
    check_whole_id(plan.plan_id)
    if not by.isprintable():
        raise Misconfigured(f"cannot approve as {by!a}: expected a name of characters that can be printed")
    known = {entry.stage for entry in plan.stages}
    unknown = sorted(set(stages) - known)
    if unknown or not stages:
        raise Refused(
            sentence("guard.approve_unknown", stages=str(unknown), plan=plan.plan_id, known=str(sorted(known)))
        )
    if at >= plan.expires_at:
        raise Refused(sentence("guard.approve_late", plan=plan.plan_id, ended=format_time(plan.expires_at)))
    return Approval(plan_id=plan.plan_id, stages=tuple(sorted(set(stages))), by=by, at=at)


def _line_of(approval: Approval) -> str:
    return json.dumps({"stages": approval.stages, "by": approval.by, "at": format_time(approval.at)}) + "\n"


def _content(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as exc:
        raise Corrupt(f"cannot read {file}: {exc.strerror}") from exc
