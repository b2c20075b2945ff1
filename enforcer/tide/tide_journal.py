"""What the ledger says of each night: what was changed and must be given back, and how long giving back took."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from typing import Any

from enforcer.record.journal import ObjectIntent, object_content, object_of
from enforcer.record.ledger import Ledger
from fleet.errors import Corrupt
from fleet.inventory import WorkloadId
from fleet.sentences import Sentence, recorded
from fleet.tiers import Tier

_NIGHTS_REMEMBERED = 14
_SLACK = timedelta(minutes=1)
"""Clocks and written seconds are rounded by less."""
_JUDGED = timedelta(days=14)
"""Time goes on where no night begins any more because too many ended early; a count of nights would not."""
_NIGHTS_JUDGED_MIN = 3
"""Nights that say how often work has to go before its time; fewer prove nothing."""
_LEAD_FACTOR = 1.25
"""The next night is given this much more than the slowest of those remembered took."""


@dataclass(slots=True, kw_only=True)
class Night:
    """One night; mutable: it grows while the ledger is read.

    Attributes:
        ends_at: when services must have everything again, UTC.
        services: those that scale in.
        scale: what is written for each of them, in the same order.
        left: services that kept what they had, and why.
        workloads: services of its schedule.
        cards: cards that it frees at most, as counted when it began.
        marks: what is written on pods so that they leave first.
        frees: cards that they hold, each with the service that gives it.
        freed: cards of the plan that stood empty when low priority was let in.
        machines: nodes that held nobody then, and whose cards are among these.
        tiers: tier of each of `admission`.
        admitted_at: when it was let in; None where it was not yet.
        runs_until: until when it may run, as it reads on itself.
        stops_at: when giving back began; None while it has not, as far as is written down.
        gave_back_after_seconds: how long giving back took; None while it is not over.
        is_late: services had everything again only after its end.
        home_early: services that came home before its end, because they needed it, each since when.
        taken_back: cards that work was taken off before its time, because such a service needed them, each since when.
    """

    plan_id: str
    night: date
    began_at: datetime
    ends_at: datetime
    services: tuple[WorkloadId, ...]
    scale: tuple[ObjectIntent, ...]
    left: tuple[tuple[WorkloadId, str], ...]
    workloads: tuple[WorkloadId, ...]
    cards: int
    marks: tuple[ObjectIntent, ...]
    frees: tuple[tuple[WorkloadId, str], ...]
    admission: tuple[ObjectIntent, ...] = ()
    freed: tuple[str, ...] = ()
    machines: tuple[str, ...] = ()
    tiers: tuple[Tier, ...] = ()
    admitted_at: datetime | None = None
    runs_until: datetime | None = None
    stops_at: datetime | None = None
    is_aborted: bool = False
    gave_back_after_seconds: float | None = None
    ended_at: datetime | None = None
    is_late: bool = False
    home_early: dict[WorkloadId, datetime] = field(default_factory=dict)
    taken_back: dict[str, datetime] = field(default_factory=dict)

    @property
    def is_open(self) -> bool:
        """It is not over."""
        return self.ended_at is None

    @property
    def is_admitting(self) -> bool:
        """Low priority was let in, or is about to be."""
        return self.admitted_at is not None

    @property
    def work_hours(self) -> float:
        """Hours that work which was let in had, a minute at least; 0 where there was none, or the night is open."""
        if self.admitted_at is None or self.stops_at is None:
            return 0.0
        return max(_SLACK, self.stops_at - self.admitted_at) / timedelta(hours=1)

    @property
    def is_cut_short(self) -> bool:
        """Work had to go before the moment that was announced to it."""
        return self.stops_at is not None and self.runs_until is not None and self.stops_at < self.runs_until - _SLACK

    @property
    def card_hours(self) -> float:
        """Hours that work had on all freed cards together; 0 where there was none, or the night is open."""
        lost = sum(
            (self.stops_at - max(since, self.admitted_at)) / timedelta(hours=1)
            for card, since in self.taken_back.items()
            if card in self.freed
            and self.admitted_at is not None
            and self.stops_at is not None
            and since < self.stops_at
        )
        return max(0.0, len(self.freed) * self.work_hours - lost)


def evictions_of(nights: Sequence[Night]) -> float | None:
    """How often work of these nights had to go before its time, per hour that it ran; None where none was let in."""
    hours = sum(night.card_hours for night in nights)
    early = sum(len({*night.freed} if night.is_cut_short else {*night.freed} & {*night.taken_back}) for night in nights)
    return early / hours if hours else None


class TideJournal:
    """Writes and reads nights."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def begin(self, night: Night) -> None:
        """A night begins; written before anything is changed."""
        self._write(
            night.plan_id, night.began_at, "tide_begin", night=night.night.isoformat(),
            ends_at=night.ends_at.isoformat(), services=list(night.services),
            scale=[object_content(entry) for entry in night.scale], left=[list(entry) for entry in night.left],
            workloads=list(night.workloads), cards=night.cards, marks=[object_content(entry) for entry in night.marks],
            frees=[list(entry) for entry in night.frees],
        )  # fmt: skip

    def admit(
        self, plan_id: str, at: datetime, until: datetime, admission: Sequence[ObjectIntent], tiers: Sequence[Tier],
        freed: Sequence[str], machines: Sequence[str],
    ) -> None:  # fmt: skip
        """Services scaled in; low priority is about to be let in, until a moment."""
        self._write(
            plan_id, at, "tide_admit", admission=[object_content(entry) for entry in admission], tiers=list(tiers),
            freed=list(freed), machines=list(machines), until=until.isoformat(),
        )  # fmt: skip

    def abort(self, plan_id: str, at: datetime, by: str) -> None:
        """Somebody ends the night early."""
        self._write(plan_id, at, "tide_abort", by=by)

    def home_early(self, plan_id: str, at: datetime, needs: Mapping[WorkloadId, str]) -> None:
        """Services are about to come home before the end, each with what it needs; written before they do."""
        self._write(plan_id, at, "tide_home_early", needs=dict(needs))

    def take_back(self, plan_id: str, at: datetime, cards: Sequence[str]) -> None:
        """Work is about to be taken off cards before its time."""
        self._write(plan_id, at, "tide_take_back", cards=list(cards))

    def go_home(self, plan_id: str, at: datetime) -> None:
        """All services are about to come home."""
        self._write(plan_id, at, "tide_go_home")

    def end(self, plan_id: str, at: datetime, *, seconds: float, is_late: bool, kept: Sequence[Sentence]) -> None:
        """Everything is given back."""
        self._write(
            plan_id, at, "tide_end", seconds=round(seconds, 1), late=is_late, kept=[recorded(left) for left in kept]
        )

    def nights(self) -> tuple[Night, ...]:
        """All nights, oldest first. What a record of an earlier version does not say yet keeps no service away.

        Raises:
            Corrupt: the ledger was edited.
        """
        found: list[Night] = []
        for entry in self._ledger.entries():
            content = entry.content
            if entry.event == "tide_begin":
                found.append(
                    Night(
                        plan_id=entry.plan_id,
                        night=date.fromisoformat(content["night"]),
                        began_at=entry.at,
                        ends_at=datetime.fromisoformat(content["ends_at"]),
                        services=tuple(map(WorkloadId, content["services"])),
                        scale=tuple(object_of(part) for part in content["scale"]),
                        left=tuple((WorkloadId(workload), str(why)) for workload, why in content["left"]),
                        workloads=tuple(map(WorkloadId, content["workloads"])),
                        cards=int(content["cards"]),
                        marks=tuple(object_of(part) for part in content.get("marks", ())),
                        frees=tuple((WorkloadId(workload), str(card)) for workload, card in content.get("frees", ())),
                    )
                )
            elif not found and entry.event.startswith("tide_"):
                raise Corrupt(f"cannot read the nights: entry {entry.number} is of one that never began")
            elif entry.event == "tide_admit":
                found[-1].admission = tuple(object_of(part) for part in content["admission"])
                found[-1].freed = tuple(content["freed"])
                found[-1].machines = tuple(content.get("machines", ()))
                found[-1].tiers = tuple(map(Tier, content.get("tiers") or [Tier.BATCH] * len(content["admission"])))
                found[-1].admitted_at = entry.at
                found[-1].runs_until = datetime.fromisoformat(content["until"]) if content.get("until") else None
            elif entry.event == "tide_abort":
                found[-1].is_aborted = True
                found[-1].stops_at = found[-1].stops_at or entry.at
            elif entry.event == "tide_go_home":
                found[-1].stops_at = found[-1].stops_at or entry.at
            elif entry.event == "tide_home_early":
                for service in content["needs"]:
                    found[-1].home_early.setdefault(WorkloadId(service), entry.at)
            elif entry.event == "tide_take_back":
                for card in content["cards"]:
                    found[-1].taken_back.setdefault(str(card), entry.at)
            elif entry.event == "tide_end":
                found[-1].gave_back_after_seconds = float(content["seconds"])
                found[-1].ended_at = entry.at
                found[-1].stops_at = found[-1].stops_at or entry.at - timedelta(seconds=float(content["seconds"]))
                found[-1].is_late = bool(content["late"])
        return tuple(found)

    def open_night(self) -> Night | None:
        """The night that is under way.

        Raises:
            Corrupt: the ledger was edited.
        """
        return next((found for found in reversed(self.nights()) if found.is_open), None)

    def scalings(self) -> dict[WorkloadId, list[tuple[datetime, datetime]]]:
        """When the tide changed the replicas of each workload: the spans of scaling in and of scaling back.

        Raises:
            Corrupt: the audit log was edited.
        """
        found: dict[WorkloadId, list[tuple[datetime, datetime]]] = {}
        for night in self.nights():
            spans = [(night.began_at, night.began_at)]
            if night.ended_at is not None:
                home = night.ended_at - timedelta(seconds=night.gave_back_after_seconds or 0.0)
                spans.append((home, night.ended_at))
            for service in night.services:
                early = night.home_early.get(service)
                found.setdefault(service, []).extend([*spans, *(() if early is None else ((early, early),))])
        return found

    def absences(self) -> dict[WorkloadId, list[tuple[datetime, datetime, int]]]:
        """When replicas of each workload were away by our own doing, until when, and how many stayed.

        Of a night under way, until it ends.

        Raises:
            Corrupt: the audit log was edited.
        """
        found: dict[WorkloadId, list[tuple[datetime, datetime, int]]] = {}
        for night in self.nights():
            for service, intent in zip(night.services, night.scale, strict=True):
                stayed = int(intent.fields[0].new or "0")
                home = night.home_early.get(service) or night.ended_at or night.ends_at
                found.setdefault(service, []).append((night.began_at, home, stayed))
        return found

    def evictions_per_hour(self, now: datetime) -> float | None:
        """How often work had to go before its time in nights not older than `_JUDGED`, per hour that it ran.

        None where fewer than `_NIGHTS_JUDGED_MIN` of them let any in.

        Raises:
            Corrupt: the audit log was edited.
        """
        since = now - _JUDGED
        known = [night for night in self.nights() if since <= night.began_at <= now and night.stops_at and night.tiers]
        if len(known) < _NIGHTS_JUDGED_MIN:
            return None
        return evictions_of(known)

    def lead(self, least: timedelta) -> timedelta:
        """How long before its end a night must begin to give back: measured, once it was."""
        took = [night.gave_back_after_seconds for night in self.nights()[-_NIGHTS_REMEMBERED:]]
        slowest = max((seconds for seconds in took if seconds is not None), default=0.0)
        return max(least, timedelta(seconds=_LEAD_FACTOR * slowest))

    def _write(self, plan_id: str, at: datetime, event: str, **content: Any) -> None:
        self._ledger.append([(event, content)], plan_id=plan_id, at=at)
