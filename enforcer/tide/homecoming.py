"""The morning of the tide: what a night took is given back, whatever became of its plan and of other objects.

No new work is admitted; running work is asked to save, then stopped; services scale out, and the night ends when all
their replicas are ready, in time or late. Work is asked to save by an annotation, on Jobs by an event too, which say
until when: for as long as its tier is promised (`fleet.tiers`). A queue that evicts (`HoldAndDrain`) admits nothing new
meanwhile (`Hold`). Nobody's failure keeps others from coming home: each object is written once a step, what failed is
said, and the next step tries again.

Sources: kubernetes/api:batch/v1/types.go; kubernetes-sigs/kueue:apis/kueue/v1beta1/clusterqueue_types.go.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum

from enforcer.backends.planned_seats import SEATS_FIELD
from enforcer.cluster import ClusterReader, ClusterWriter, Pause
from enforcer.manifest import Manifest, field_of
from enforcer.record.journal import FieldIntent, ObjectIntent
from enforcer.rollout.holding import Phase
from enforcer.rollout.intent_writer import IntentWriter
from enforcer.rollout.patience import Patience, PatientCluster
from enforcer.tide.calendar import TideMoment, TidePhase
from enforcer.tide.scaling import replicas_short, tide_intent
from enforcer.tide.tide_journal import Night, TideJournal
from fleet.errors import GputideError, Refused
from fleet.inventory import WorkloadId
from fleet.sentences import Sentence
from fleet.tiers import NIGHT_TIERS, Guarantee, Tier
from fleet.units import format_time


class TideStep(StrEnum):
    """What a step did."""

    NOTHING = "nothing"
    WENT_OUT = "went_out"
    WAITS = "waits"
    """Services are still scaling in."""
    ADMITTED = "admitted"
    HOME_EARLY = "home_early"
    """Services that need their replicas in the night got them."""
    CAME_HOME = "came_home"


@dataclass(frozen=True, slots=True, kw_only=True)
class TidePolicy:
    """How careful the tide is.

    Attributes:
        lead_min: giving back begins at least this long before the end.
        plan_age_max: how old a plan may be when a night begins by it: forecasts age.
        release_seconds_max: how long services may take to scale in; then what is free is used, and no more waited for.
        guarantees: what the work of each tier is promised.
        stop_seconds_max: how long stopping work may keep services from coming home; the rest of it is stopped after.
        home_seconds_max: how long coming home is waited for in one step.
        queues: Kueue's ClusterQueues that low priority waits in.
    """

    lead_min: timedelta = timedelta(hours=1)
    plan_age_max: timedelta = timedelta(days=14)
    release_seconds_max: float = 1800.0
    guarantees: Mapping[Tier, Guarantee] = field(default_factory=dict)
    stop_seconds_max: float = 300.0
    home_seconds_max: float = 3600.0
    poll_seconds: float = 10.0
    queues: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TideResult:
    """What a step did.

    Attributes:
        night: the night that is under way, or that just ended; None by day.
        said: what people should know, one sentence each.
    """

    step: TideStep
    moment: TideMoment
    night: Night | None
    said: tuple[str, ...] = ()


def _unstopped(_: str) -> None:
    """A step that nobody stops."""


class Homecoming:
    """Ends the night that is under way by what the ledger says of it; its plan need not be readable any more.

    It asks for no lease, so whoever holds the enforcer's does not keep services from coming home: every write depends
    on the version that was just read, and on the value that the night wrote. Whoever calls it writes the ledger alone.

    Each call raises `Unavailable` where the cluster can't be reached; called again, it goes on.

    Args:
        step: called before every write with what it is, for tests that stop there.
    """

    def __init__(
        self,
        reader: ClusterReader,
        writer: ClusterWriter,
        pause: Pause,
        journal: TideJournal,
        policy: TidePolicy,
        *,
        step: Callable[[str], None] = _unstopped,
    ) -> None:
        self._journal, self._policy = journal, policy
        # An object that can't be written now is written in the next step: waiting for it would keep others waiting.
        once = Patience(pause, seconds_max=0.0)
        self._cluster = PatientCluster(reader=reader, writer=writer, pause=pause, patiently=once, step=step)
        self._writer = IntentWriter(self._cluster)

    def moment(self) -> TideMoment:
        """Where the cluster stands: in the morning, while a night is under way."""
        night = self._journal.open_night()
        if night is None:
            return TideMoment(phase=TidePhase.DAY, night=None, ends_at=None)
        return TideMoment(phase=TidePhase.GIVE_BACK, night=night.night, ends_at=night.ends_at)

    def short(self) -> dict[WorkloadId, str]:
        """Services of the night under way that do not have all their replicas ready, with both numbers."""
        night = self._journal.open_night()
        return {} if night is None else self._short(night.workloads)

    def step(self) -> TideResult:
        """Give back what the night under way took, if there is one.

        Raises:
            Unavailable: the cluster can't be reached; call again to go on.
        """
        night, moment = self._journal.open_night(), self.moment()
        if night is None:
            return TideResult(step=TideStep.NOTHING, moment=moment, night=None)
        return self._come_home(night, moment)

    def abort(self, by: str) -> TideResult:
        """End the night that is under way, and give everything back now.

        Raises:
            Refused: there is none.
            Unavailable: the cluster can't be reached; the next step goes on.
        """
        night = self._journal.open_night()
        if night is None:
            raise Refused("cannot abort the tide: no night is under way")
        self._journal.abort(night.plan_id, self._cluster.reader.now(), by)
        return self.step()

    def _come_home(self, night: Night, moment: TideMoment) -> TideResult:
        cluster = self._cluster
        began = cluster.reader.now()
        if night.stops_at is None:
            # What began to come home is not sent out again, and what work lost is known, however long it takes.
            self._journal.go_home(night.plan_id, began)
        kept: list[Sentence] = []

        def restore(intent: ObjectIntent) -> None:
            kept.extend(self._restore(intent))

        # First nobody new, then those who work, the lowest tier first, then the services. Nobody's failure keeps others
        # from coming home, and work whose changes take long waits for the services.
        tier_of = dict(zip(night.admission, night.tiers, strict=True))
        lowest_first = sorted(night.admission, key=lambda intent: -NIGHT_TIERS.index(tier_of[intent]))
        stopped = [intent for intent in lowest_first if intent.fields[0].old != "Hold"]
        left = self._each([intent for intent in night.admission if intent not in stopped], restore)
        said = self._ask_to_save({work: self._notice(tier_of[work]) for work in stopped}, began)
        stop_by = cluster.reader.now() + timedelta(seconds=self._policy.stop_seconds_max)
        left |= self._each(stopped, restore, until=stop_by)
        left |= self._each(self._seated_first(night.scale), restore)
        left |= self._each(night.marks, restore)
        late = [intent for intent, why in left.items() if why is _UNREACHED]
        left = {intent: why for intent, why in left.items() if why is not _UNREACHED} | self._each(late, restore)
        short, waited = self._short(night.workloads), 0.0
        while short and waited < self._policy.home_seconds_max:
            cluster.pause(self._policy.poll_seconds)
            waited += self._policy.poll_seconds
            left = self._each(list(left), restore)
            short = self._short(night.workloads)
        took = (cluster.reader.now() - began).total_seconds()
        said += [*left.values(), *(f"{workload}: {why}" for workload, why in short.items())]
        if left or (short and cluster.reader.now() < night.ends_at):
            return TideResult(step=TideStep.WAITS, moment=moment, night=night, said=tuple(said))
        is_late = cluster.reader.now() > night.ends_at or bool(short)
        cluster.step("tide end")
        self._journal.end(night.plan_id, cluster.reader.now(), seconds=took, is_late=is_late, kept=kept)
        said = [*map(str, kept), *said, f"services came home in {took:.0f} s, {'late' if is_late else 'in time'}"]
        return TideResult(
            step=TideStep.CAME_HOME, moment=moment, night=self._journal.nights()[-1], said=tuple(said)
        )  # fmt: skip

    def _restore(self, intent: ObjectIntent) -> tuple[Sentence, ...]:
        """Give one object back; what is kept, because somebody changed it since.

        Raises:
            Refused: it changes all the time; nothing was written, so the next step tries again.
        """
        found = self._writer.restore(self._as_asked(intent))
        for said in found:
            if said.code == "rollout.keeps_changing":
                raise Refused(said)
        return found

    def _notice(self, tier: Tier) -> timedelta:
        return timedelta(seconds=self._policy.guarantees.get(tier, Guarantee()).notice_seconds)

    def _ask_to_save(self, notices: Mapping[ObjectIntent, timedelta], now: datetime) -> list[str]:
        """Ask work that still runs to save what it has, and give it the time; who could not be asked."""
        until = now

        def ask(intent: ObjectIntent) -> None:
            nonlocal until
            work = self._running(intent)
            if work is None or not notices[intent]:
                return
            until = max(until, now + notices[intent])
            try:
                self._writer.patch(_asked_to_save(work, now + notices[intent]), Phase.REST)
            finally:
                if intent.kind != "ClusterQueue":
                    # One that reads no annotation may watch events.
                    self._cluster.writer.record_event(*intent.key, "GputideTide", "save now")

        failed = self._each(list(notices), ask, until=now + max(notices.values(), default=timedelta()))
        left = (until - self._cluster.reader.now()).total_seconds()
        if left > 0:
            self._cluster.pause(left)
        return [f"{intent.workload} could not be asked to save: {why}" for intent, why in failed.items()]

    def _running(self, intent: ObjectIntent) -> Manifest | None:
        """Work that was let in, while it still runs."""
        work = self._cluster.reader.get(*intent.key)
        if work is None:
            return None
        if intent.kind != "ClusterQueue":
            waits = intent.fields[0]
            return None if field_of(work, waits.field) == waits.old or _is_over(work) else work
        return work if field_of(work, _STOP) == "None" or _was_asked(work) else None

    def _as_asked(self, intent: ObjectIntent) -> ObjectIntent:
        """What is taken back of work that was asked to save: that too, so that no later night begins with it.

        A queue does not stand as the night opened it then.
        """
        work = self._cluster.reader.get(*intent.key)
        if work is None or not _was_asked(work):
            return intent
        first, *rest = intent.fields
        asked = FieldIntent(field=_SAVE_BY, old=None, new=field_of(work, _SAVE_BY))
        return replace(intent, fields=(replace(first, new="Hold") if first.field == _STOP else first, asked, *rest))

    def _seated_first(self, scale: Sequence[ObjectIntent]) -> list[ObjectIntent]:
        """Services whose pods have planned cards, then those whose pods take any free card and might take these."""

        def is_free(intent: ObjectIntent) -> bool:
            try:
                owner = self._cluster.reader.get(*intent.key)
            except GputideError:
                return True
            return owner is None or field_of(owner, SEATS_FIELD) is None

        return sorted(scale, key=is_free)

    def _each(
        self,
        intents: Sequence[ObjectIntent],
        work: Callable[[ObjectIntent], object],
        *,
        until: datetime | None = None,
    ) -> dict[ObjectIntent, str]:
        """Do something to every object; those for which it failed, and why.

        Args:
            until: the rest of them is left from then on, as `_UNREACHED`.
        """
        failed: dict[ObjectIntent, str] = {}
        for intent in intents:
            if until is not None and self._cluster.reader.now() >= until:
                failed[intent] = _UNREACHED
                continue
            try:
                work(intent)
            except GputideError as exc:
                failed[intent] = str(exc)
        return failed

    def _short(self, workloads: Sequence[WorkloadId]) -> dict[WorkloadId, str]:
        """Services that do not have all their replicas ready, or of which nobody can say it."""
        found: dict[WorkloadId, str] = {}
        for workload in workloads:
            try:
                found |= replicas_short([workload], self._cluster.reader)
            except GputideError as exc:
                found[workload] = str(exc)
        return found


_UNREACHED = "there was no time for it"
"""Said of an object that is left for later, because those before it took long."""

SAVE_BY_ANNOTATION = "gputide.io/save-by"
"""On a Job, Workload or queue: when its pods will be stopped, ISO 8601."""

_SAVE_BY = f"metadata.annotations[{SAVE_BY_ANNOTATION}]"
_STOP = "spec.stopPolicy"


def _asked_to_save(work: Manifest, until: datetime) -> ObjectIntent:
    """What asks a Job or Workload, or the work of a queue, to save what it has."""
    asked = tide_intent(work, _SAVE_BY, field_of(work, _SAVE_BY), format_time(until))
    if work["kind"] != "ClusterQueue":
        return asked
    closed = FieldIntent(field=_STOP, old=field_of(work, _STOP), new="Hold")
    return replace(asked, fields=(closed, *asked.fields))


def _was_asked(work: Manifest) -> bool:
    return field_of(work, _SAVE_BY) is not None and (work["kind"] != "ClusterQueue" or field_of(work, _STOP) == "Hold")


def _is_over(work: Manifest) -> bool:
    conditions = work.get("status", {}).get("conditions") or ()
    ends = ("Complete", "Failed", "Finished")
    return any(entry.get("type") in ends and entry.get("status") == "True" for entry in conditions)
