"""Everything on this node, as a `DeviceReader`: cards by the driver, slices by their grants, used or not.

Joins the driver's cards and processes, what the kubelet and the API server say of grants, and HAMi's regions. Only the
driver is needed. A source that can't be asked is reported with its age, and its last answer stands until it answers
again: a kubelet that is being restarted ends no grant. Chosen by `gputide run export node`.

One attribution after the other becomes grants that begin and end. A slice keeps its start for as long as it lasts; a
pod of the same name but another UID is another life, and a change of size or labels is another period. What is merely
known better (the pod's UID and with it the time when it was bound, the owner of its owner) is the same period, reported
again: so it begins when the scheduler layer, which knows the same pod by the same status, says that it does.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Generic, TypeVar

from exporter.attribution.attributor import Attributor
from exporter.attribution.cards import KnownCard, KnownInstance
from exporter.attribution.claim_users import sole_users
from exporter.attribution.mps import is_mps_server
from exporter.attribution.pods import PodFacts
from exporter.attribution.process_places import ProcessPlaces
from exporter.attribution.records import AttributedSlice, Attribution, Finding, FindingKind, NodeView, ProcessOnCard
from exporter.cluster.reader import Watched
from exporter.families import Family
from exporter.kubelet.client import KubeletPodResources
from exporter.kubelet.pod_resources import DeviceRow, PodRow
from exporter.node.families import NodeFamilies, SourceState
from exporter.node.objects import NodeObjects
from exporter.node.pods import NodePods
from exporter.node.slices import CardsNow, slice_values
from exporter.nvml.figures import Activity, CardFigures, CardsReading
from exporter.nvml.reader import NvmlReader
from exporter.process_series import ProcessSeries
from exporter.reader import Reading
from exporter.regions.columns import CardFacts, HamiReading
from exporter.regions.families import NodeNames, RegionFamilies
from exporter.regions.reader import HamiReader
from exporter.regions.tree import ClaimUsers
from fleet.errors import Corrupt, Unavailable
from fleet.inventory import Card, CardId, Grant
from fleet.logs import logger
from fleet.usage import SliceKey

HandedOut = tuple[tuple[PodRow, ...], tuple[DeviceRow, ...] | None]
"""Who was handed what, and what may be handed out."""

Answer = TypeVar("Answer")
"""What a source answers."""

_CARDS_SHARE = 0.6
"""Of a reading's time, what the driver may take."""
_KUBELET_SHARE = 0.5
"""Of the time that is left after that, what the kubelet may take: one that hangs must not hide HAMi's regions."""
_OF_CLAIMS = (Watched.RESOURCE_CLAIMS, Watched.RESOURCE_SLICES)
_PODS_SHARE = 0.3
"""Of the first reading's time, what the API server may take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSources:
    """Whom a node's reader asks.

    Attributes:
        kubelet: who was handed which device; None where it is not to be asked.
        pods: what the API server says of this node's pods; None where it is not to be asked.
        regions: HAMi's regions; None where the node is not to be looked at for any.
    """

    cards: NvmlReader
    kubelet: KubeletPodResources | None
    pods: NodePods | None
    processes: ProcessPlaces
    regions: HamiReader | None


class NodeReader:
    """Reads a node.

    Args:
        sources: whom it asks; closed with the reader.
        process_series: names single processes; None where nobody asked for them.
    """

    def __init__(
        self,
        sources: NodeSources,
        *,
        cluster: str,
        node: str,
        process_series: ProcessSeries | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._sources = sources
        self._cluster = cluster
        self._node = node
        self._process_series = process_series
        self._clock = clock
        self._attributor = Attributor()
        self._periods = GrantPeriods()
        self._is_begun = False
        self._cards: dict[CardId, Card] = {}
        self._kubelet = _Kept[HandedOut]("kubelet")
        self._regions = _Kept[HamiReading]("hami_regions")
        self._processes_seen = _Kept[tuple[ProcessOnCard, ...]]("processes")
        self._region_families = RegionFamilies(cluster=cluster, node=node)
        self._names = NodeNames(pods={}, card_models={})
        self._families = NodeFamilies(cluster=cluster, node=node)

    def read(self, deadline_seconds: float) -> Reading:
        """Reads once; see `DeviceReader`."""
        until = time.monotonic() + deadline_seconds
        reading = self._sources.cards.read(_CARDS_SHARE * deadline_seconds)
        found = self._sources.cards.cards_reading
        if found is None:
            raise Unavailable("cannot read this node: the driver reports nothing")
        self._cards.update((card.card, card) for card in reading.change.cards)
        figures = {card.identity.card: card.figures for card in found.cards if card.is_new and card.figures is not None}
        self._await_pods(min(_PODS_SHARE * deadline_seconds, until - time.monotonic()))
        rows, allocatable = self._handed_out(until) or (None, None)
        pods = None if self._sources.pods is None else self._sources.pods.facts()
        named = NodeObjects() if self._sources.pods is None else self._sources.pods.objects()
        regions = self._read_regions(figures, sole_users(named.claims, pods or ()), until)
        processes, sees_processes = self._processes(figures)
        attribution = self._attributor.attribute(
            NodeView(
                cluster=self._cluster,
                node=self._node,
                cards=self._known_cards(found),
                rows=rows,
                allocatable=allocatable,
                pods=pods,
                owners=named.owners,
                claims=named.claims,
                published=named.published,
                processes=processes,
                enclosing=self._sources.processes.enclosing(),
            ),
            reading.at,
        )
        change = self._periods.follow(attribution, reading.at)
        shown = tuple(slice_ for slice_ in self._periods.slices if slice_.grant.card in figures)
        keys = tuple(SliceKey.of(slice_.grant) for slice_ in shown)
        values = slice_values(
            shown,
            CardsNow(
                figures=figures,
                shared=frozenset(
                    CardId(odd.card) for odd in attribution.findings if odd.kind is FindingKind.STRANGER
                ),
                mps_servers=frozenset((server.card, server.pid) for server in attribution.mps_servers),
                sees_processes=sees_processes,
                regions=regions,
            ),
        )  # fmt: skip
        return replace(
            reading,
            slices=keys,
            slice_values=values,
            change=replace(reading.change, grants_started=change.started, grants_ended=change.ended),
            families=(
                *reading.families,
                *self._families_of_regions(regions, pods),
                *self._families.of_slices(keys, shown, are_processes_seen=pods is not None),
                *self._families.of_instances(keys, shown, (mig for card in figures.values() for mig in card.migs)),
                *(self._process_series.of(figures, self._cards, shown) if self._process_series is not None else ()),
                *self._families.of_findings(_with_refusals(attribution, named)),
                *self._families.of_sources(self._source_states()),
            ),
        )

    def close(self) -> None:
        """Closes all sources; more than once does no harm."""
        self._sources.cards.close()
        if self._sources.kubelet is not None:
            self._sources.kubelet.close()
        if self._sources.pods is not None:
            self._sources.pods.stop()
        if self._sources.regions is not None:
            self._sources.regions.close()

    def _await_pods(self, seconds: float) -> None:
        """Gives the API server time before the first reading: a grant that begins without its owner begins twice."""
        if self._sources.pods is not None and not self._is_begun:
            self._sources.pods.wait(seconds)
        self._is_begun = True

    def _handed_out(self, until: float) -> HandedOut | None:
        kubelet = self._sources.kubelet
        if kubelet is None:
            return None

        def ask(seconds: float) -> HandedOut:
            due = time.monotonic() + seconds
            rows = kubelet.list(seconds)
            left = due - time.monotonic()
            if left <= 0:
                raise Unavailable("cannot ask the kubelet what may be handed out: no time is left of this reading")
            return rows, kubelet.allocatable(left)

        now = time.monotonic()
        return self._kubelet.of(ask, now + _KUBELET_SHARE * (until - now))

    def _read_regions(
        self, figures: Mapping[CardId, CardFigures], claims: ClaimUsers, until: float
    ) -> HamiReading | None:
        regions = self._sources.regions
        if regions is None:
            return None
        facts = {
            str(card): CardFacts(
                framebuffer_bytes=None if told.framebuffer is None else float(told.framebuffer.total_bytes),
                duty_cycle_ratio=_duty_cycle(told),
                host_pids=None if told.processes is None else frozenset(one.pid for one in told.processes),
            )
            for card, told in figures.items()
        }
        found = self._regions.of(
            lambda seconds: regions.read(facts, now_seconds=self._clock(), deadline_seconds=seconds, claims=claims),
            until,
        )
        # Unlike a grant, a figure from before says nothing of now.
        return found if self._regions.is_fresh else None

    def _processes(self, figures: Mapping[CardId, CardFigures]) -> tuple[tuple[ProcessOnCard, ...], bool]:
        """Processes on the cards, and whether the host's can be looked at."""
        listed = [(process.pid, card) for card, told in figures.items() for process in told.processes or ()]

        def look(_seconds: float) -> tuple[ProcessOnCard, ...]:
            places = {place.pid: place for place in self._sources.processes.look(pid for pid, _ in listed)}
            if listed and not places:
                raise Unavailable(f"cannot look at any of {len(listed)} processes that the driver lists on the cards")
            return tuple(
                ProcessOnCard(
                    pid=pid,
                    card=card,
                    places=places[pid].places,
                    is_mps_server=is_mps_server(places[pid].name, figures[card]),
                )
                for pid, card in dict.fromkeys(listed)
                if pid in places
            )

        found = self._processes_seen.of(look, math.inf)
        return (found or (), True) if self._processes_seen.is_fresh else ((), False)

    def _known_cards(self, found: CardsReading) -> tuple[KnownCard, ...]:
        """The cards, those that hang among them: a grant does not end because its card says nothing."""
        return tuple(
            KnownCard(
                card=self._cards[reading.identity.card],
                index=reading.identity.index,
                minor=reading.identity.minor_number,
                instances=tuple(
                    KnownInstance(
                        instance=instance.mig,
                        profile=instance.mig_profile,
                        framebuffer_bytes=None if instance.framebuffer is None else instance.framebuffer.total_bytes,
                        gpu_instance=instance.gpu_instance,
                        compute_instance=instance.compute_instance,
                    )
                    for instance in (reading.figures.migs if reading.figures is not None else ())
                ),
            )
            for reading in found.cards
            if reading.identity.card in self._cards
        )

    def _families_of_regions(
        self, regions: HamiReading | None, pods: tuple[PodFacts, ...] | None
    ) -> tuple[Family, ...]:
        if regions is None:
            return ()
        names = NodeNames(
            pods={facts.record.uid: (facts.record.namespace, facts.record.pod) for facts in pods or ()},
            card_models={str(card.card): str(card.card_model) for card in self._cards.values()},
        )
        if names != self._names:
            self._names = names
        return self._region_families.of(regions, self._names)

    def _source_states(self) -> tuple[SourceState, ...]:
        states = [
            kept.state()
            for kept, source in ((self._kubelet, self._sources.kubelet), (self._regions, self._sources.regions))
            if source is not None
        ]
        states.append(self._processes_seen.state())
        if self._sources.pods is not None:
            watch = self._sources.pods.state()
            failures = sum(count for _, count in watch.errors) + self._sources.pods.objects().failures
            states.append(SourceState(source="api_server", age_seconds=watch.age_seconds, failures=failures))
        return tuple(states)


class _Kept(Generic[Answer]):
    """What a source last answered, while it is asked again and again."""

    def __init__(self, source: str) -> None:
        self.failures = 0
        self._source = source
        self._answer: Answer | None = None
        self._answered_at: float | None = None
        self._is_failing = False
        self._log = logger("exporter.node.reader")

    def of(self, ask: Callable[[float], Answer], until: float) -> Answer | None:
        """Asks, with the seconds that there are until a monotonic time; the former answer where it can't be asked."""
        try:
            seconds = until - time.monotonic()
            if seconds <= 0:
                raise Unavailable(f"cannot ask {self._source}: no time is left of this reading")
            self._answer = ask(seconds)
        except (Unavailable, Corrupt) as exc:
            # The first of a row of failures is logged; the rest are counted.
            if not self._is_failing:
                self._log.warning("source failed", source=self._source, error=str(exc))
            self._is_failing = True
            self.failures += 1
        else:
            self._is_failing = False
            self._answered_at = time.monotonic()
        return self._answer

    @property
    def is_fresh(self) -> bool:
        return not self._is_failing

    def state(self) -> SourceState:
        age = None if self._answered_at is None else time.monotonic() - self._answered_at
        return SourceState(source=self._source, age_seconds=age, failures=self.failures)


def _with_refusals(attribution: Attribution, named: NodeObjects) -> Attribution:
    """What may not be read of the cluster is odd too, once for each kind of use."""
    if not named.refused:
        return attribution
    kinds = {
        FindingKind.CLAIMS_REFUSED if watched in _OF_CLAIMS else FindingKind.OWNERS_REFUSED for watched in named.refused
    }
    refused = tuple(Finding(kind=kind, namespace="", pod="") for kind in sorted(kinds))
    return replace(attribution, findings=(*attribution.findings, *refused))


def _duty_cycle(figures: CardFigures) -> float | None:
    spread = figures.activities.get(Activity.DUTY_CYCLE)
    return None if spread is None else spread.mean


SliceName = tuple[str, str, str, CardId]
"""Namespace, pod, container and card."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GrantChange:
    """What came and went since the attribution before; the first one names all that stands there.

    Attributes:
        started: grants whose period began, and grants that are known better now: those take the place of what was
            of the same pod, container and card.
        ended: grants whose period is over, with `ended_at`; otherwise equal to what was once started.
    """

    started: tuple[Grant, ...]
    ended: tuple[Grant, ...]


class GrantPeriods:
    """Remembers which grants live. For one thread."""

    def __init__(self) -> None:
        self._living: dict[SliceName, AttributedSlice] = {}
        # As found, beside what it was reported as: most rounds find the very same records.
        self._found: dict[SliceName, Grant] = {}

    @property
    def slices(self) -> tuple[AttributedSlice, ...]:
        """What lives, each with the start of its period."""
        return tuple(self._living.values())

    def follow(self, attribution: Attribution, now: datetime) -> GrantChange:
        """Takes the next attribution.

        Args:
            now: the moment, UTC; ends and changes are dated by it.
        """
        started: list[Grant] = []
        ended: list[Grant] = []
        living: dict[SliceName, AttributedSlice] = {}
        for found in attribution.slices:
            name = _name(found)
            before = self._living.get(name)
            if before is None:
                living[name] = found
                started.append(found.grant)
            elif found.grant is self._found.get(name) or _is_same_period(before, found):
                # Who is asked later may know less; what was told once is kept, its start above all.
                living[name] = replace(found, pod_uid=before.pod_uid, grant=before.grant)
            elif before.pod_uid is None:
                living[name] = found
                started.append(found.grant)
            elif _is_same_but_for_its_owner(before, found):
                living[name] = replace(found, grant=replace(found.grant, started_at=before.grant.started_at))
                started.append(living[name].grant)
            else:
                is_new_life = before.pod_uid != found.pod_uid
                since = max(before.grant.started_at, found.grant.started_at) if is_new_life else now
                ended.append(replace(before.grant, ended_at=now))
                living[name] = replace(found, grant=replace(found.grant, started_at=since))
                started.append(living[name].grant)
        ended += [replace(before.grant, ended_at=now) for name, before in self._living.items() if name not in living]
        self._living = living
        self._found = {_name(found): found.grant for found in attribution.slices}
        return GrantChange(started=tuple(started), ended=tuple(ended))


def _is_same_period(before: AttributedSlice, found: AttributedSlice) -> bool:
    if found.pod_uid is None and before.pod_uid is not None:
        # The API server can't be asked, or is behind; the kubelet goes on listing the slice.
        return True
    is_same_life = before.pod_uid == found.pod_uid
    return is_same_life and before.grant == replace(found.grant, started_at=before.grant.started_at)


def _is_same_but_for_its_owner(before: AttributedSlice, found: AttributedSlice) -> bool:
    of_before = replace(
        before.grant, workload=found.grant.workload, workload_kind=found.grant.workload_kind,
        started_at=found.grant.started_at,
    )  # fmt: skip
    return before.pod_uid == found.pod_uid and of_before == found.grant


def _name(found: AttributedSlice) -> SliceName:
    return found.grant.namespace, found.grant.pod, found.grant.container, found.grant.card
