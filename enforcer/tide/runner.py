"""Runs the tide: services scale in at night and low priority work takes their cards; in the morning all goes back.

The runner takes one step whenever it is called, decided anew from clock, ledger and cluster. In the evening services
scale in as the plan's schedule says, then low priority work is admitted to the freed cards; the morning is
`enforcer.tide.homecoming`. A crash at any moment is gone on from. A night begins by a schedule that a person approved
as a stage of its plan. Once that approval counts no more, or somebody aborts the night, the morning starts at once. A
freeze, and a schedule that expires, stop the evening, never the morning: it needs nobody's yes. A service that needs
its replicas while the night runs comes home alone, at once, in a frozen cluster too. Nothing is written before the
ledger knows the state before it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

from enforcer.manifest import Manifest, field_of, workload_parts
from enforcer.ownership import top_owner
from enforcer.record.journal import ObjectIntent
from enforcer.rollout.holding import Phase
from enforcer.rollout.run_context import RunContext
from enforcer.rollout.stages import Approved
from enforcer.seat import PodSeat
from enforcer.snapshot import Snapshot
from enforcer.tide.calendar import TideCalendar, TideMoment, TidePhase
from enforcer.tide.early_home import Busy, in_need, too_busy, work_in_the_way
from enforcer.tide.homecoming import Homecoming, TidePolicy, TideResult, TideStep
from enforcer.tide.leaving import leaving, marks_of
from enforcer.tide.letting_in import LettingIn, letting_in, owners_of_pods
from enforcer.tide.scaling import NightScale, night_scale
from enforcer.tide.tide_journal import Night, TideJournal
from fleet.decisions import Plan
from fleet.durable import Held
from fleet.errors import GputideError, Refused, Unavailable
from fleet.inventory import WorkloadId
from fleet.units import format_time

if TYPE_CHECKING:
    from wire.own_metrics import OwnMetrics


_KUEUE = "kueue.x-k8s.io/"
"""Labels of Jobs that a queue let in, and of their pods."""


class TideRunner(Homecoming):
    """Moves the tide of one plan.

    Each call raises `Unavailable` where the cluster can't be reached; called again, it goes on.

    Args:
        alone: holds what only one process may do at a time that scales services in, beside the lease; coming home does
            without both.
        busy: how busy pods are now; what can't be asked keeps no night from going on, and is said.
    """

    def __init__(
        self, tools: RunContext, journal: TideJournal, plan: Plan, calendar: TideCalendar, policy: TidePolicy,
        approved: Approved = tuple, *, alone: Callable[[], AbstractContextManager[None]] = nullcontext,
        busy: Callable[[], Busy] = Busy,
    ) -> None:  # fmt: skip
        super().__init__(tools.reader, tools.writer, tools.pause, journal, policy, step=tools.step)
        self._tools, self._plan, self._calendar, self._approved, self._alone = tools, plan, calendar, approved, alone
        self._busy = busy

    def moment(self) -> TideMoment:
        """Where the cluster's clock stands."""
        return self._calendar.at(self._tools.reader.now(), self._journal.lead(self._policy.lead_min))

    def would_scale(self) -> NightScale:
        """Who would scale in if a night began now; changes nothing."""
        scale = night_scale(self._plan.schedule, self._tools.reader)
        busy, _ = self._ask_busy()
        schedule = [entry for entry in self._plan.schedule if entry.workload in scale.services]
        kept = too_busy(schedule, self._tools.snapshot().pods, busy) if busy.demand_ratio else {}
        going = [
            (service, intent)
            for service, intent in zip(scale.services, scale.intents, strict=True)
            if service not in kept
        ]
        return NightScale(
            services=tuple(service for service, _ in going),
            intents=tuple(intent for _, intent in going),
            left=(*scale.left, *kept.items()),
        )

    def why_not(self) -> str | None:
        """What stands against beginning a night now, whatever the hour; None for nothing."""
        try:
            self._tools.guard.check_frozen(self._tools.reader)
            self._check_plan(self.would_scale())
        except Refused as exc:
            return str(exc)
        return None

    def short(self) -> dict[WorkloadId, str]:
        """Services of the schedule that do not have all their replicas ready, with both numbers."""
        return self._short([entry.workload for entry in self._plan.schedule])

    def step(self) -> TideResult:
        """Do what is due now. Where no night may begin, nothing is due, and the reason is said.

        Raises:
            Refused: a night is half out, and the cluster is frozen or somebody else holds the lease. Coming home is
                never refused.
            Unavailable: the cluster can't be reached; call again to go on.
        """
        moment = self.moment()
        night = self._journal.open_night()
        is_over = moment.phase is not TidePhase.NIGHT
        if night is None:
            return TideResult(step=TideStep.NOTHING, moment=moment, night=None) if is_over else self._begin(moment)
        if is_over or night.stops_at is not None or moment.night != night.night:
            return self._come_home(night, moment)
        if (why := self._withdrawn(night)) is not None:
            # Written down, so that a yes that comes later does not send half a night out again.
            self._journal.abort(night.plan_id, self._tools.reader.now(), f"gputide: {why}")
            home = self._come_home(night, moment)
            return replace(home, said=(f"this night ends: {why}", *home.said))
        is_early, said = self._home_early(night)
        if is_early or night.is_admitting:
            step = TideStep.HOME_EARLY if is_early else TideStep.NOTHING
            return TideResult(step=step, moment=moment, night=self._journal.open_night(), said=tuple(said))
        self._tools.guard.check_frozen(self._tools.reader)
        with self._going_out():
            result = self._go_on(night, moment)
        return replace(result, said=(*said, *result.said))

    def needs(self) -> tuple[dict[WorkloadId, str], tuple[str, ...]]:
        """Services of the night under way that need their replicas back now, and why; why nobody can say it."""
        night = self._journal.open_night()
        if night is None:
            return {}, ()
        busy, said = self._ask_busy()
        return in_need(night.services, self._tools.snapshot().pods, busy.crowded), said

    def _ask_busy(self) -> tuple[Busy, tuple[str, ...]]:
        """How busy pods are now, and why nobody can say it."""
        try:
            return self._busy(), ()
        except GputideError as exc:
            return Busy(), (f"nobody says how busy the services are: {exc}",)

    def _home_early(self, night: Night) -> tuple[bool, list[str]]:
        """Give services their replicas back that need them, and the cards that they left, where pods wait for one.

        Returns:
            Whether anything was written, and what to say.
        """
        needs, troubles = self.needs()
        said, away = list(troubles), list[ObjectIntent]()
        service_of = dict(zip(night.scale, night.services, strict=True))

        def look(intent: ObjectIntent) -> None:
            if self._writer.stands(intent, self._tools.reader.get(*intent.key)):
                away.append(intent)

        said += self._each([intent for intent in night.scale if service_of[intent] in needs], look).values()
        if away:
            why = {service_of[intent]: needs[service_of[intent]] for intent in away}
            self._tools.step("tide home early")
            self._journal.home_early(night.plan_id, self._tools.reader.now(), why)
            said += [f"{service} comes home early: {text}" for service, text in why.items()]
            said += self._each(self._seated_first(away), self._restore).values()
            # Those that find an empty card take it, and nobody has to go.
            self._cluster.pause(self._policy.poll_seconds)
        stopped = self._make_room(night, needs)
        return bool(away or stopped), [*said, *stopped]

    def _make_room(self, night: Night, needs: Collection[WorkloadId]) -> list[str]:
        """Stop the work that holds cards which services left and need now; it gets the notice of its tier."""
        if not needs:
            return []
        snapshot, now = self._tools.snapshot(), self._tools.reader.now()
        pods = snapshot.pods
        running: dict[ObjectIntent, Manifest] = {}
        stopped: set[WorkloadId] = set()

        def owners_in(work: Manifest) -> list[WorkloadId]:
            return [top_owner(owner, snapshot.parents) for owner in owners_of_pods(work)]

        def look(intent: ObjectIntent) -> None:
            if (found := self._running(intent)) is not None:
                running[intent] = found
            elif (left := self._tools.reader.get(*intent.key)) is not None and intent.kind != "ClusterQueue":
                stopped.update(owners_in(left))

        self._each(night.admission, look)
        tier_of = dict(zip(night.admission, night.tiers, strict=True))
        work = {intent: tier_of[intent] for intent in running}
        queues = [intent for intent in night.admission if intent.kind == "ClusterQueue"]
        queued, evicted = self._queued(night, snapshot, queues) if queues else ({}, set())
        for intent in queues:
            stopped.update(queued[intent] if intent not in work else ())
        owners = {
            intent: queued[intent] if intent.kind == "ClusterQueue" else owners_in(found)
            for intent, found in running.items()
        }
        # What should be gone by now may never go: a node that died keeps its pods.
        patience = timedelta(seconds=self._policy.stop_seconds_max) + max(
            map(self._notice, tier_of.values()), default=timedelta()
        )
        is_recent = any(now - since < patience for since in night.taken_back.values())
        going = work_in_the_way(night, needs, pods, work, owners, stopped | evicted if is_recent else ())
        if not going:
            return []
        self._tools.step("tide take back")
        self._journal.take_back(night.plan_id, now, sorted(frozenset().union(*going.values())))
        said = [f"{work.workload} goes early: services need {len(cards)} cards" for work, cards in going.items()]
        said += self._ask_to_save({intent: self._notice(tier_of[intent]) for intent in going}, now)
        return [*said, *self._each(list(going), self._restore).values()]

    def _queued(
        self, night: Night, snapshot: Snapshot, queues: Sequence[ObjectIntent]
    ) -> tuple[dict[ObjectIntent, list[WorkloadId]], set[WorkloadId]]:
        """Whose pods sit on cards of the night because a queue of Kueue let them in, as they or their pods say.

        What has no Workload may be of any of them.

        Returns:
            By queue; and those whose Workload no queue has any more, so their pods go.
        """
        queue_of = {
            top_owner(owner, snapshot.parents): field_of(found, "status.admission.clusterQueue")
            for found in self._tools.reader.list_objects("Workload")
            for owner in owners_of_pods(found)
        }
        of_night = {*night.freed, *(card for _, card in night.frees)}
        found: dict[ObjectIntent, list[WorkloadId]] = {intent: [] for intent in queues}
        evicted: set[WorkloadId] = set()
        for workload, seats in snapshot.pods.items():
            seat = next((seat for seat in seats if not of_night.isdisjoint(seat.cards)), None)
            if seat is None or workload in night.workloads:
                continue
            namespace, kind, name = workload_parts(workload)
            for key in (("Pod", namespace, seat.pod), (kind, namespace, name)):
                with suppress(GputideError):
                    labels = ((self._tools.reader.get(*key) or {}).get("metadata") or {}).get("labels") or {}
                    if any(label.startswith(_KUEUE) for label in labels):
                        if workload in queue_of and queue_of[workload] is None:
                            evicted.add(workload)
                            break
                        for intent in queues:
                            found[intent] += [workload] if queue_of.get(workload, intent.name) == intent.name else []
                        break
        return found, evicted

    def _begin(self, moment: TideMoment) -> TideResult:
        """Go out, unless something stands against it: a night that does not begin is no failure."""
        if any(found.night == moment.night for found in self._journal.nights()):
            return TideResult(step=TideStep.NOTHING, moment=moment, night=None, said=("this night is over",))
        try:
            self._tools.guard.check_frozen(self._tools.reader)
            with self._going_out():
                return self._go_out(moment)
        except (Refused, Held) as exc:
            if self._journal.open_night() is not None:
                raise
            return TideResult(step=TideStep.NOTHING, moment=moment, night=None, said=(str(exc),))

    @contextmanager
    def _going_out(self) -> Iterator[None]:
        """Nobody else changes the cluster while services scale in."""
        with self._alone():
            self._tools.take_lease()
            try:
                yield
            finally:
                self._tools.let_go()

    def _go_out(self, moment: TideMoment) -> TideResult:
        if moment.night is None or moment.ends_at is None:
            raise Refused("cannot begin a night by day")
        scale = self.would_scale()
        cards = self._check_plan(scale)
        seats = leaving(self._plan.schedule, scale.services, self._tools.snapshot().pods)
        self._tools.step("tide begin")
        night = Night(
            plan_id=self._plan.plan_id, night=moment.night, began_at=self._tools.reader.now(), ends_at=moment.ends_at,
            services=scale.services, scale=scale.intents, left=scale.left,
            workloads=tuple(entry.workload for entry in self._plan.schedule), cards=cards, marks=marks_of(seats),
            frees=self._frees(scale.services, seats),
        )  # fmt: skip
        self._journal.begin(night)
        result = self._go_on(night, moment, dict(scale.left))
        said = (*(f"{workload} stays as it is: {why}" for workload, why in scale.left), *result.said)
        step = TideStep.WENT_OUT if result.step is TideStep.WAITS else result.step
        return TideResult(step=step, moment=moment, night=result.night, said=said)

    def _check_plan(self, scale: NightScale) -> int:
        """Refuse to begin a night by the plan; the cards that it frees at most."""
        now, age_max = self._tools.reader.now(), self._policy.plan_age_max
        freed = self._left_by(scale)
        self._tools.guard.check_tide(self._plan, self._approved(), now, freed=freed, age_max=age_max)
        return freed

    def _left_by(self, scale: NightScale) -> int:
        """Cards that pods leave at most when services scale in."""
        pods, kept, cards = self._tools.snapshot().pods, {workload for workload, _ in scale.left}, 0
        for entry in self._plan.schedule:
            if entry.workload not in kept:
                held = sorted(len(seat.cards) or len(seat.slices) for seat in pods.get(entry.workload, ()))
                cards += sum(held[entry.replicas :])
        return cards

    def _withdrawn(self, night: Night) -> str | None:
        """Why the night that is under way may go on no longer; None where it may.

        Raises:
            Unavailable: nobody can say it now; the next step asks again.
        """
        try:
            self._tools.guard.check_tide_approved(self._plan, self._approved(), freed=night.cards)
        except Unavailable:
            raise
        except GputideError as exc:
            return str(exc)
        return None

    def _go_on(self, night: Night, moment: TideMoment, left: Mapping[WorkloadId, str] | None = None) -> TideResult:
        """Lower what is not lowered yet; let low priority in once nobody has pods left to lose.

        Args:
            left: services that stay as they are, as was just seen; None to look.
        """
        service_of = dict(zip(night.scale, night.services, strict=True))
        kept = dict(night.left) | dict.fromkeys(night.home_early, "it came home early")

        def lower(intent: ObjectIntent) -> None:
            service = service_of[intent]
            if left is None and not self._writer.stands(intent, self._tools.reader.get(*intent.key)):
                # What was fit to be lowered when the night began may have changed its mind since.
                schedule = [entry for entry in self._plan.schedule if entry.workload == service]
                for _, why in night_scale(schedule, self._tools.reader).left:
                    raise Refused(f"{service} stays as it is: {why}")
            self._writer.patch(intent, Phase.REST)

        # A pod that can't be marked leaves as its controller likes.
        self._each(night.marks, lambda intent: self._writer.patch(intent, Phase.REST))
        failed = self._each([intent for intent in night.scale if service_of[intent] not in night.home_early], lower)
        kept |= {service_of[intent]: why for intent, why in failed.items()}
        said = list(failed.values())
        freed, machines = self._freed(night)
        # Nobody waits for the cards of a service that stays as it is.
        waiting = len({card for service, card in night.frees if service not in kept} - freed)
        waited = (self._tools.reader.now() - night.began_at).total_seconds()
        if waiting and waited < self._policy.release_seconds_max:
            said.append(f"{waiting} cards of the schedule are not free yet")
            return TideResult(step=TideStep.WAITS, moment=moment, night=night, said=tuple(said))
        now, until = self._tools.reader.now(), night.ends_at - self._journal.lead(self._policy.lead_min)
        rate = self._journal.evictions_per_hour(now)
        found = letting_in(self._tools.reader, self._policy, now, until, rate) if freed else LettingIn()
        self._tools.step("tide admit")
        self._journal.admit(night.plan_id, now, until, found.intents, found.tiers, sorted(freed), machines)
        refused = self._each(found.intents, lambda intent: self._writer.patch(intent, Phase.REST))
        let_in = len(found.intents) - len(refused)
        said += [
            *refused.values(),
            *(f"{work} is not let in: {why}" for work, why in found.left),
            f"{len(freed)} cards are free for the night, {len(machines)} machines whole",
            f"{let_in} Jobs, Workloads and queues were let in",
            f"work may run until {format_time(until)}",
        ]
        return TideResult(step=TideStep.ADMITTED, moment=moment, night=self._journal.nights()[-1], said=tuple(said))

    def _frees(self, services: Collection[WorkloadId], seats: Sequence[PodSeat]) -> tuple[tuple[WorkloadId, str], ...]:
        """Cards that pods leave, each with its service; the plan's, where nobody says on which ones they sit."""
        found = {(seat.workload, card) for seat in seats for card in seat.cards}
        seen = {service for service, _ in found}
        found |= {
            (entry.workload, str(card))
            for entry in self._plan.schedule
            if entry.workload in services and entry.workload not in seen
            for card in entry.frees
        }
        return tuple(sorted(found))

    def _freed(self, night: Night) -> tuple[frozenset[str], tuple[str, ...]]:
        """Cards that pods leave in a night and that nobody holds now; machines of theirs that hold nobody."""
        snapshot = self._tools.snapshot()
        held = {str(part.card) for seat in snapshot.seats.values() for part in seat.slices if part.card is not None}
        freed = frozenset(card for _, card in night.frees) - held
        busy = {seat.node for seat in snapshot.seats.values() if seat.slices}
        return freed, tuple(sorted({card.node for card in snapshot.cards.values() if card.card in freed} - busy))


class TideMetrics:
    """What the tide counts of itself."""

    def __init__(self, own: OwnMetrics) -> None:
        self.steps = own.passes("step", "step of the tide")
        self._is_night = own.gauge("is_night", "1 from the first service that scales in until all have scaled out.")
        self._freed = own.gauge("freed_cards", "Cards that are free for the night.")
        self._nights = own.counter("nights_total", "Nights that ended: in_time or late.", "result")
        self.api_requests = own.followed_counter("api_requests_total", "Requests to the Kubernetes API.")

    def take(self, result: TideResult) -> None:
        """Count what a step did."""
        night = result.night
        is_open = night is not None and night.is_open
        self._is_night.set(is_open)
        self._freed.set(len(night.freed) if night is not None and is_open else 0)
        if night is not None and result.step is TideStep.CAME_HOME:
            self._nights.labels("late" if night.is_late else "in_time").inc()
