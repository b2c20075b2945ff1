"""Series of single processes, for anybody who asks for them: what each holds of a card and how busy it keeps it.

Processes come and go, and every one is a new series: so there are none unless asked for, and of many those that hold
most framebuffer. The driver lists processes of the host; where the host's processes can't be seen, they have no name,
and nothing but the driver's figures. Command lines are never shown: they hold passwords. Called by
`exporter.node.reader`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from exporter.attribution.records import AttributedSlice
from exporter.families import CataloguedFamily, Family, KeptLabels, Row, counter, gauge, info
from exporter.nvml.figures import CardFigures, ProcessFigures
from exporter.process_stat import ProcessStats
from fleet.inventory import Card, CardId

_ON_CARD = ("node", "card", "card_model", "gpu_instance", "compute_instance", "pid")
_OF_HOST = ("node", "pid")

Labels = tuple[str, ...]


def _gauge(name: str, help_text: str, labels: Labels = _ON_CARD) -> CataloguedFamily:
    return gauge(f"gputide_process_{name}", help_text, labels)


_INFO = info(
    "gputide_process_info",
    "A process on a card, the name that it gives itself, and whose container it is in; always 1.",
    (*_ON_CARD, "name", "kind", "namespace", "pod", "container"),
)
_FRAMEBUFFER = _gauge("framebuffer_used_bytes", "Framebuffer that a process holds on a card, bytes.")
_PEAK = _gauge("framebuffer_peak_bytes", "Most framebuffer that a process ever held, where the driver keeps accounts.")
_DUTY_CYCLE = _gauge("duty_cycle_ratio", "Share of time in which a kernel of the process ran, 0-1.")
_MEMORY_COPY = _gauge("memory_copy_ratio", "Share of time in which the process read or wrote the framebuffer, 0-1.")
_ENCODER = _gauge("encoder_ratio", "Share of the video encoder's time that the process used, 0-1.")
_DECODER = _gauge("decoder_ratio", "Share of the video decoder's time that the process used, 0-1.")
_LIFE_DUTY_CYCLE = _gauge(
    "lifetime_duty_cycle_ratio",
    "Share of its whole life in which a kernel of the process ran, 0-1, where the driver keeps accounts.",
)
_LIFE_MEMORY_COPY = _gauge(
    "lifetime_memory_copy_ratio",
    "Share of its whole life in which the process read or wrote the framebuffer, 0-1, where the driver keeps accounts.",
)
_CPU = counter("gputide_process_cpu_seconds_total", "CPU time of a process on a card, seconds.", _OF_HOST)
_RESIDENT = _gauge("resident_bytes", "Host memory that a process on a card holds, bytes.", _OF_HOST)
_STARTED = _gauge("started_timestamp_seconds", "When a process on a card began, epoch seconds.", _OF_HOST)
_LEFT_OUT = _gauge("left_out_count", "Processes on cards that have no series of their own: too many.", ("node",))

FAMILIES: tuple[CataloguedFamily, ...] = (
    _INFO, _FRAMEBUFFER, _PEAK, _DUTY_CYCLE, _MEMORY_COPY, _ENCODER, _DECODER, _LIFE_DUTY_CYCLE, _LIFE_MEMORY_COPY,
    _CPU, _RESIDENT, _STARTED, _LEFT_OUT,
)  # fmt: skip
"""Every family that is made here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Listed:
    card: CardId
    process: ProcessFigures
    tenant: Labels


class ProcessSeries:
    """Names the figures of a node's processes.

    Args:
        processes_max: most processes that have series; those with most framebuffer first.
    """

    def __init__(self, *, node: str, processes_max: int, stats: ProcessStats) -> None:
        self._node = node
        self._processes_max = processes_max
        self._stats = stats
        self._began_at = stats.began_at()
        self._kept = KeptLabels()

    def of(
        self, figures: Mapping[CardId, CardFigures], cards: Mapping[CardId, Card], slices: tuple[AttributedSlice, ...]
    ) -> tuple[Family, ...]:
        """The families of one reading, without those that nobody has.

        Args:
            slices: who was granted what, with the processes of each.
        """
        tenants = {
            (found.grant.card, pid): (found.grant.namespace, found.grant.pod, found.grant.container)
            for found in slices
            for pid in found.pids
        }
        listed = [
            _Listed(card=card, process=process, tenant=tenants.get((card, process.pid), ("", "", "")))
            for card, told in figures.items()
            if card in cards
            for process in told.processes or ()
        ]
        listed.sort(key=_rank)
        return self._kept.families(FAMILIES, self._rows(listed, cards))

    def _rows(self, listed: list[_Listed], cards: Mapping[CardId, Card]) -> Iterator[tuple[CataloguedFamily, Row]]:
        yield _LEFT_OUT, ((self._node,), float(max(0, len(listed) - self._processes_max)))
        listed = listed[: self._processes_max]
        sees_host = self._stats.sees_host()
        stats = {one.process.pid: self._stats.of(one.process.pid) if sees_host else None for one in listed}
        for one in listed:
            process, stat = one.process, stats[one.process.pid]
            instance = (_number(process.gpu_instance), _number(process.compute_instance))
            labels = (self._node, one.card, cards[one.card].card_model, *instance, str(process.pid))
            kind = "+".join(sorted(kind.value for kind in process.kinds))
            yield _INFO, ((*labels, stat.name if stat is not None else "", kind, *one.tenant), 1.0)
            yield from ((family, (labels, value)) for family, value in _of_driver(process))
        for pid, stat in stats.items():
            if stat is None:
                continue
            host = (self._node, str(pid))
            yield _CPU, (host, stat.cpu_seconds)
            yield _RESIDENT, (host, stat.resident_bytes)
            if self._began_at is not None:
                yield _STARTED, (host, self._began_at + stat.started_seconds)


def _of_driver(process: ProcessFigures) -> Iterator[tuple[CataloguedFamily, float]]:
    sizes = ((_FRAMEBUFFER, process.framebuffer_bytes), (_PEAK, process.framebuffer_peak_bytes))
    yield from ((family, float(size)) for family, size in sizes if size is not None)
    spreads = (
        (_DUTY_CYCLE, process.sm_busy),
        (_MEMORY_COPY, process.memory_busy),
        (_ENCODER, process.encoder_busy),
        (_DECODER, process.decoder_busy),
    )
    yield from ((family, spread.mean) for family, spread in spreads if spread is not None)
    shares = ((_LIFE_DUTY_CYCLE, process.accounted_sm_busy), (_LIFE_MEMORY_COPY, process.accounted_memory_busy))
    yield from ((family, share) for family, share in shares if share is not None)


def _rank(one: _Listed) -> tuple[int, int, str, int, int]:
    """Most framebuffer first; then in an order that stays."""
    process = one.process
    return (
        -(process.framebuffer_bytes or 0),
        process.pid,
        one.card,
        -1 if process.gpu_instance is None else process.gpu_instance,
        -1 if process.compute_instance is None else process.compute_instance,
    )


def _number(instance: int | None) -> str:
    return "" if instance is None else str(instance)
