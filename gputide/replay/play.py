"""Plays a recorded fleet through the real pipeline: trace → remote-write bodies → receiver → bus → warehouse.

Called by `gputide admin replay` and `gputide demo`. The simulated cluster lives beside it: its users start and end pods
as the trace says, and pods that a plan moved are played where the cluster has them; where plans change a real cluster,
all is played as recorded. The replay's clock moves on with what the receiver has acknowledged, so a replay that was
killed goes on where it was, with the same result.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path

from enforcer.simulated.cluster import ReplayMark, SeatState, SimulatedCluster, SimulatedSeat
from enforcer.simulated.systems import PLAYABLE
from exporter.reader import Block
from exporter.replay.paging import Lent
from exporter.replay.reader import ReplayReader
from exporter.replay.seats import Enforced, Seat
from exporter.trace.trace import Trace, open_trace
from fleet.capabilities.register import CorePolicy
from fleet.data_folder import DataFolder
from fleet.errors import Corrupt, Misconfigured, Unavailable
from fleet.inventory import Grant
from fleet.settings.settings import ClusterChoice, Settings
from fleet.units import format_time
from gputide.container.receiver import open_receiver
from gputide.container.rollup import OpenedRollup, open_rollup
from gputide.replay.clock import ReplayClock, read_replay_clock, write_replay_clock
from gputide.replay.sender import ReplaySender
from gputide.session import Tick
from pipeline.receiver.receiver import WRITE_PATH

_INSTANT = timedelta(milliseconds=1)
_AFTER_LAST = timedelta(seconds=1)
SAMPLES_PER_SEND = 60_000
"""Samples that are gathered from short blocks before they are sent."""
ROLLUP_SECONDS = 2.0
"""Pause between looks of the rollup at the bus: each look that finds something writes files."""
STEPS_PER_BLOCK = 36
"""Steps that are read at once while nobody was moved."""
STEPS_PER_SEATED_BLOCK = 1
"""Steps that are read at once where pods were moved. Pods come and go in the simulated cluster between blocks; were a
block longer, a pod could get the card of one that still runs there in the block's first steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Playback:
    """What is played, and how.

    Attributes:
        trace: folder in the neutral trace format.
        since: first sample; the replay's clock, or the start of the trace, unless given.
        until: first sample that is not sent any more; the end of the trace unless given.
        speed: trace seconds per second; None for as fast as possible.
        write_url: where a receiver that already runs takes bodies; None for one of its own, with the rollup behind it.
    """

    trace: Path
    since: datetime | None = None
    until: datetime | None = None
    speed: float | None = None
    write_url: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """What a replay did.

    Attributes:
        since: first moment that was sent; equal to `until` where nothing was left to send.
        rows: rows written to the warehouse, all tables and levels.
        pending_pods: pods that found no card in the simulated cluster.
        unplayed_pods: pods that stopped or were made anew in the folder's simulated cluster, and were played as
            recorded all the same because plans change a real one.
        lent: what came of framebuffer that pods of a card lent each other.
    """

    since: datetime
    until: datetime
    samples: int
    requests: int
    bytes_sent: int
    rows: int
    pending_pods: int
    unplayed_pods: int
    lent: Lent


def replay(
    folder: DataFolder,
    settings: Settings,
    playback: Playback,
    *,
    tick: Tick,
    sleep: Callable[[float], None] = time.sleep,
) -> Replayed:
    """Send a trace's samples with since ≤ ts < until through the pipeline.

    Args:
        tick: called with how far it is, in minutes of the trace.
        sleep: waits real seconds, for the speed and for a receiver that asks for a pause.

    Raises:
        Corrupt: the trace can't be read.
        Misconfigured: the trace is another one than the folder was fed with, or a span that leaves a gap, or the
            folder's simulated cluster plays another backend.
    """
    trace, speed = open_trace(playback.trace), playback.speed
    trace_name = playback.trace.resolve().name
    clock = read_replay_clock(folder)
    cluster = SimulatedCluster.open(
        folder.cluster,
        # What no simulated cluster can play is planned for all the same, from what is replayed.
        settings.enforcer.backend if settings.enforcer.backend in PLAYABLE else None,
    )
    try:
        clock = _caught_up(folder, clock, cluster.replay_mark())
        begin, end = _span(trace, trace_name, clock, playback.since, playback.until)
        name = ReplayClock(now=begin, trace=trace_name, cluster=_cluster_of(trace))
        if clock is None:
            write_replay_clock(folder, name)
        # What a real cluster did stands in the trace; a simulated one says where plans moved its pods.
        is_real = settings.enforcer.cluster is ClusterChoice.KUBERNETES
        seating = None if is_real else ClusterSeating(cluster, trace)
        unplayed = {
            (seat.namespace, seat.pod)
            for seat in (cluster.seats() if is_real else ())
            if seat.is_remade or seat.state is SeatState.STOPPED
        }
        with _pipeline(folder, settings, playback.write_url) as (url, rollup), cluster.replaying() as keep:
            sender = ReplaySender(url, sleep=sleep)
            reader = ReplayReader(trace, since=begin - _INSTANT, until=end - _INSTANT, seating=seating)
            with _rolling_up(rollup) as rolled:
                if begin < end:
                    steps = _steps_from(begin, end, trace, cluster, seating)
                    for block in _blocks(reader, trace, end, steps, cluster):
                        sender.add(block)
                        now = min(block.until + _INSTANT, end)
                        if sender.waiting >= SAMPLES_PER_SEND or speed is not None:
                            sender.send()
                            keep(now, steps)
                            write_replay_clock(folder, replace(name, now=now))
                            tick(int((now - begin).total_seconds() // 60), int((end - begin).total_seconds() // 60))
                        if speed is not None:
                            sleep((block.until - block.since).total_seconds() / speed)
                    sender.send()
            sender.close()
            if begin < end:
                # What ends at `end` is not known before it: its last sample belongs to what comes next.
                cluster.sync(trace.inventory_at(end - _INSTANT), end)
                keep(end, 0)
                write_replay_clock(folder, replace(name, now=end))
        pending = 0 if is_real else sum(seat.state is SeatState.PENDING for seat in cluster.seats())
    finally:
        cluster.close()
    return Replayed(
        since=begin,
        until=max(begin, end),
        samples=sender.samples,
        requests=sender.requests,
        bytes_sent=sender.bytes_sent,
        rows=rolled(),
        pending_pods=pending,
        unplayed_pods=len(unplayed),
        lent=reader.lent,
    )


class ClusterSeating:
    """The replay's `Seating`: where the simulated cluster has the pods that do not sit as recorded."""

    def __init__(self, cluster: SimulatedCluster, trace: Trace) -> None:
        self._cluster = cluster
        self._recorded: dict[str, list[tuple[Grant, ...]]] = {}
        for pair in trace.pairs:
            self._recorded.setdefault(pair.grants[0].pod_id, []).append(pair.grants)
        self._known: tuple[SimulatedSeat, ...] | None = None
        self._seats: dict[str, tuple[Seat, ...]] = {}
        self._gone: dict[str, datetime] = {}

    @property
    def enforced(self) -> Enforced:
        """What the sharing system of the cluster enforces, by its record."""
        record = self._cluster.capabilities
        return Enforced(framebuffer=record.holds_framebuffer, priority=record.priority_levels > 1)

    def seats(self, at: datetime) -> dict[str, tuple[Seat, ...]]:
        """Seats of pods that sit elsewhere, with another grant, or anew, against what the trace says; see `Seating`.

        The cluster's users end a pod before the block that holds its last sample is read; until its recorded end it
        is told where it last sat, or it would be played on its recorded card, which may long be somebody else's.
        """
        found = self._cluster.seats()
        if found is self._known and not any(end <= at for end in self._gone.values()):
            return self._seats
        self._known = found
        by_pod: dict[str, list[SimulatedSeat]] = {}
        for seat in found:
            by_pod.setdefault(f"{seat.namespace}/{seat.pod}", []).append(seat)
        ends = {pod: self._recorded_end(pod) for pod in self._seats if pod not in by_pod}
        self._gone = {pod: end for pod, end in ends.items() if end is not None and end > at}
        self._seats = {pod: self._seats[pod] for pod in self._gone} | {
            pod: tuple(_seat(place) for place in places)
            for pod, places in by_pod.items()
            if any(place.is_remade for place in places)
            or not _sits_as_recorded(places, self._recorded.get(pod, ()), at)
        }
        return self._seats

    def _recorded_end(self, pod: str) -> datetime | None:
        ends = [periods[-1].ended_at for periods in self._recorded.get(pod, ())]
        return max((end for end in ends if end is not None), default=None)


def _span(
    trace: Trace, name: str, clock: ReplayClock | None, since: datetime | None, until: datetime | None
) -> tuple[datetime, datetime]:
    """What is to be sent, from the first moment on to the one that is not sent any more; nothing if that is earlier."""
    last = trace.until + _AFTER_LAST
    end = min(until, last) if until is not None else last
    if clock is not None and clock.trace != name:
        raise Misconfigured(
            f"cannot replay {name}: this data folder was fed with {clock.trace}; use another --data-dir for it"
        )
    begin = max(since, trace.since) if since is not None else trace.since
    if clock is not None:
        if since is not None and since > clock.now:
            raise Misconfigured(
                f"cannot replay from {format_time(since)}: the replay stands at {format_time(clock.now)} and would "
                f"leave a gap; start with --from {format_time(clock.now)}"
            )
        begin = clock.now
    return begin, end


def _cluster_of(trace: Trace) -> str:
    clusters = sorted({card.cluster for card in trace.cards})
    if len(clusters) != 1:
        raise Corrupt(f"cannot replay a trace of {len(clusters)} clusters ({', '.join(clusters)}): expected one")
    return clusters[0]


def _caught_up(folder: DataFolder, clock: ReplayClock | None, mark: ReplayMark | None) -> ReplayClock | None:
    """The clock, moved on to where the cluster stands if a replay was killed between the two."""
    if clock is None or mark is None or mark.now <= clock.now:
        return clock
    moved = replace(clock, now=mark.now)
    write_replay_clock(folder, moved)
    return moved


def _steps_from(
    begin: datetime, end: datetime, trace: Trace, cluster: SimulatedCluster, seating: ClusterSeating | None
) -> int:
    """Bring the cluster to the first moment; returns how many steps to read at once.

    A replay that was killed goes on with the cluster and the blocks as they were, unless somebody changed the cluster.
    """
    mark = cluster.replay_mark()
    if mark is not None and mark.now == begin and mark.steps:
        if seating is not None:
            seating.seats(begin)  # who is moved now is remembered beyond the end that comes ahead
        _place_ahead(begin - _INSTANT, end, mark.steps, trace, cluster)
        return mark.steps
    cluster.sync(trace.inventory_at(begin), begin)
    return STEPS_PER_SEATED_BLOCK if seating is not None and seating.seats(begin) else STEPS_PER_BLOCK


def _blocks(
    reader: ReplayReader, trace: Trace, end: datetime, steps: int, cluster: SimulatedCluster
) -> Iterator[Block]:
    """Blocks of the span, each played where the cluster has the pods at its start."""
    for block in reader.blocks(steps):
        yield block
        _place_ahead(block.until, end, steps, trace, cluster)


def _place_ahead(until: datetime, end: datetime, steps: int, trace: Trace, cluster: SimulatedCluster) -> None:
    """Give pods of the next block their cards before it is read."""
    ahead = min(until + timedelta(seconds=steps * trace.step_seconds), end - _INSTANT)
    cluster.sync(trace.inventory_at(ahead), until)


def _sits_as_recorded(places: list[SimulatedSeat], recorded: Sequence[tuple[Grant, ...]], at: datetime) -> bool:
    """Whether a pod sits on the cards, with the grants, that the trace has for it now."""
    running = [place for place in places if place.state is SeatState.RUNNING]
    here = sorted((str(place.card), place.framebuffer_granted_bytes, place.compute_granted_ratio) for place in running)
    latest = (
        next((grant for grant in reversed(periods) if grant.started_at <= at), periods[0]) for periods in recorded
    )
    own = list(latest)
    there = sorted((str(grant.card), grant.framebuffer_granted_bytes, grant.compute_granted_ratio) for grant in own)
    priorities = {place.priority for place in running} - {None}
    return not recorded or (here == there and priorities <= {grant.priority for grant in own})


def _seat(place: SimulatedSeat) -> Seat:
    return Seat(
        card=place.card if place.state is SeatState.RUNNING else None,
        framebuffer_granted_bytes=place.framebuffer_granted_bytes,
        compute_granted_ratio=place.compute_granted_ratio,
        is_hard=place.core_policy is CorePolicy.HARD,
        priority=place.priority,
        is_oversubscribed=place.is_oversubscribed,
        kept_bytes=place.kept_bytes,
        since=place.since,
        is_anew=place.is_remade,
        pod=place.name if place.name not in ("", place.pod) else None,
    )


@contextmanager
def _pipeline(
    folder: DataFolder, settings: Settings, write_url: str | None
) -> Iterator[tuple[str, OpenedRollup | None]]:
    """Where bodies go, and the rollup that is behind it and ours."""
    if write_url is not None:
        yield write_url, None
        return
    own: dict[str, object] = dict.fromkeys(
        ("tls_certificate_file", "tls_key_file", "client_ca_file", "tokens_file")
    ) | {"senders": {}, "series_max": 50_000_000, "body_samples_max": 1_000_000, "decoded_bytes_max": 1 << 30}
    # On a port of its own on loopback, for as long as the replay lasts: nobody needs to say who sends, and a trace is
    # as large as it is.
    alone = settings.model_copy(update={"receiver": settings.receiver.model_copy(update=own)})
    with open_receiver(folder, alone) as (host, port), open_rollup(folder, settings) as rollup:
        yield f"http://{host}:{port}{WRITE_PATH}", rollup


@contextmanager
def _rolling_up(opened: OpenedRollup | None) -> Iterator[Callable[[], int]]:
    """Roll up in the background while samples come in, and drain the bus at the end."""
    rows = 0
    failure: list[BaseException] = []
    stop = threading.Event()

    def drain() -> None:
        nonlocal rows
        while opened is not None and (step := opened.rollup.step()) is not None:
            rows += step.rows

    def work() -> None:
        try:
            while not stop.wait(ROLLUP_SECONDS):
                drain()
        except (Corrupt, Unavailable) as exc:
            failure.append(exc)

    worker = threading.Thread(target=work, name="rollup", daemon=True)
    worker.start()
    try:
        yield lambda: rows
    finally:
        stop.set()
        worker.join()
    if failure:
        raise failure[0]
    drain()
    # Another roll-up of this folder has lanes of its own.
    while opened is not None and not opened.is_drained():
        time.sleep(ROLLUP_SECONDS)
        drain()
