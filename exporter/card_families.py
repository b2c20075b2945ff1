"""Figures of cards beyond the measures that are stored, as families for a scraper; and how their reading fares.

Means of the stored measures are named by the exposition itself; here are their peaks, and all else that a card reports.
Only a card whose reading is in order has figures; age and state are told of every card. Called by
`exporter.nvml.reader`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType

from exporter.families import CataloguedFamily, Family, KeptLabels, Row, counter, gauge, info
from exporter.nvml.figures import (
    Activity,
    CardFigures,
    CardReading,
    CardsReading,
    CardState,
    ClockReason,
    ComputeMode,
    Counter,
    Framebuffer,
    Gauge,
    MigFigures,
    ProcessKind,
)
from fleet.schema import CARD_IDENTITY, CARD_MEASURES

_MIG = (*CARD_IDENTITY, "mig_profile", "mig", "gpu_instance", "compute_instance")

Labels = tuple[str, ...]


def _gauge(name: str, help_text: str, labels: Labels = CARD_IDENTITY) -> CataloguedFamily:
    return gauge(f"gputide_card_{name}", help_text, labels)


def _counter(name: str, help_text: str, labels: Labels = CARD_IDENTITY) -> CataloguedFamily:
    return counter(f"gputide_card_{name}", help_text, labels)


_ACTIVITY_WORDS: Mapping[Activity, str] = MappingProxyType(
    {
        Activity.DUTY_CYCLE: "Share of time with at least one kernel running, 0-1",
        Activity.MEMORY_COPY: "Share of time in which the framebuffer was read or written, 0-1",
        Activity.SM_ACTIVE: "Share of SM cycles with a warp resident, 0-1",
        Activity.SM_OCCUPANCY: "Warps resident against the most that fit, 0-1",
        Activity.TENSOR_ACTIVE: "Share of time in which tensor cores worked, 0-1",
        Activity.MEMORY_ACTIVE: "Share of the framebuffer's bandwidth in use, 0-1",
        Activity.FP64_ACTIVE: "Share of time in which SMs did 64-bit floating point without tensor cores, 0-1",
        Activity.FP32_ACTIVE: "Share of time in which SMs did 32-bit floating point without tensor cores, 0-1",
        Activity.FP16_ACTIVE: "Share of time in which SMs did 16-bit floating point without tensor cores, 0-1",
        Activity.GRAPHICS_ACTIVE: "Share of time in which any compute or graphics work was on the card, 0-1",
        Activity.ENCODER: "Share of the video encoder's time in use, 0-1",
        Activity.DECODER: "Share of the video decoder's time in use, 0-1",
        Activity.JPEG: "Share of the JPEG engine's time in use, 0-1",
        Activity.OPTICAL_FLOW: "Share of the optical-flow engine's time in use, 0-1",
        Activity.FRAMEBUFFER_USED: "Framebuffer in use, bytes",
        Activity.POWER: "Power draw, watts",
        Activity.PCIE_TRANSMIT: "PCIe traffic from the card, bytes per second",
        Activity.PCIE_RECEIVE: "PCIe traffic to the card, bytes per second",
        Activity.NVLINK_TRANSMIT: "NVLink traffic from the card over all links, bytes per second",
        Activity.NVLINK_RECEIVE: "NVLink traffic to the card over all links, bytes per second",
    }
)

_STORED = frozenset(column.measure.value for column in CARD_MEASURES)

_MEANS = {
    activity: _gauge(activity.value, f"{words}; mean of the sub-samples since the reading before.")
    for activity, words in _ACTIVITY_WORDS.items()
    if activity.value not in _STORED
}
_PEAKS = {
    activity: _gauge(f"peak_{activity.value}", f"{words}; largest sub-sample since the reading before.")
    for activity, words in _ACTIVITY_WORDS.items()
}
_MIG_MEANS = {
    activity: _gauge(f"mig_{activity.value}", f"{words} of the MIG instance; mean of the sub-samples.", _MIG)
    for activity, words in _ACTIVITY_WORDS.items()
    if activity not in (Activity.DUTY_CYCLE, Activity.MEMORY_COPY, Activity.FRAMEBUFFER_USED, Activity.POWER)
}
_MIG_PEAKS = {
    activity: _gauge(
        f"mig_peak_{activity.value}", f"{_ACTIVITY_WORDS[activity]} of the MIG instance; largest sub-sample.", _MIG
    )
    for activity in _MIG_MEANS
}

_GAUGES = {
    # The temperature is a stored measure.
    Gauge.MEMORY_TEMPERATURE: _gauge("memory_temperature_celsius", "Temperature of the framebuffer, degrees Celsius."),
    Gauge.POWER_LIMIT: _gauge("power_limit_watts", "Power limit in force, watts."),
    Gauge.SM_CLOCK: _gauge("sm_clock_hertz", "Clock of the SMs, hertz."),
    Gauge.MEMORY_CLOCK: _gauge("memory_clock_hertz", "Clock of the framebuffer, hertz."),
    Gauge.GRAPHICS_CLOCK: _gauge("graphics_clock_hertz", "Clock of the graphics engine, hertz."),
    Gauge.VIDEO_CLOCK: _gauge("video_clock_hertz", "Clock of the video engines, hertz."),
    Gauge.SM_CLOCK_MAX: _gauge("sm_clock_max_hertz", "Highest clock of the SMs, hertz."),
    Gauge.PERFORMANCE_STATE: _gauge("performance_state", "Performance state, 0 (fastest) to 15 (slowest)."),
    Gauge.PCIE_LINK_GENERATION: _gauge("pcie_link_generation", "Generation of the PCIe link in use."),
    Gauge.PCIE_LINK_WIDTH: _gauge("pcie_link_width_lanes", "Lanes of the PCIe link in use."),
    Gauge.PERSISTENCE_MODE: _gauge("persistence_mode", "1 where the driver stays loaded without clients, else 0."),
    Gauge.ECC_ENABLED: _gauge("ecc_enabled", "1 where the framebuffer's errors are corrected, else 0."),
    Gauge.ROWS_REMAP_PENDING: _gauge("rows_remap_pending", "1 where rows wait for a reset to be remapped, else 0."),
    Gauge.ROWS_REMAP_FAILED: _gauge("rows_remap_failed", "1 where remapping a row has failed, else 0."),
    Gauge.PAGES_RETIRE_PENDING: _gauge("pages_retire_pending", "1 where pages wait for a reset to be retired, else 0."),
}

_SINCE_DRIVER = "since the driver was loaded"
_COUNTERS = {
    total: _counter(total.value, words)
    for total, words in {
        Counter.ENERGY: f"Energy, joules, {_SINCE_DRIVER}.",
        Counter.ECC_CORRECTED: f"Single-bit errors, {_SINCE_DRIVER}.",
        Counter.ECC_UNCORRECTED: f"Double-bit errors, {_SINCE_DRIVER}.",
        Counter.ECC_LIFETIME_CORRECTED: "Single-bit errors in the life of the card.",
        Counter.ECC_LIFETIME_UNCORRECTED: "Double-bit errors in the life of the card.",
        Counter.ROWS_REMAPPED_CORRECTABLE: "Rows remapped for correctable errors.",
        Counter.ROWS_REMAPPED_UNCORRECTABLE: "Rows remapped for uncorrectable errors.",
        Counter.PAGES_RETIRED_SINGLE_BIT: "Pages retired for single-bit errors.",
        Counter.PAGES_RETIRED_DOUBLE_BIT: "Pages retired for double-bit errors.",
        Counter.PCIE_REPLAYS: f"PCIe packets sent again, {_SINCE_DRIVER}.",
        Counter.PCIE_TRANSMIT: f"PCIe traffic from the card, bytes, {_SINCE_DRIVER}.",
        Counter.PCIE_RECEIVE: f"PCIe traffic to the card, bytes, {_SINCE_DRIVER}.",
        Counter.NVLINK_TRANSMIT: f"NVLink payload from the card over all links, bytes, {_SINCE_DRIVER}.",
        Counter.NVLINK_RECEIVE: f"NVLink payload to the card over all links, bytes, {_SINCE_DRIVER}.",
        Counter.NVLINK_CRC_FLIT_ERRORS: f"NVLink flow-control checksum errors, {_SINCE_DRIVER}.",
        Counter.NVLINK_CRC_DATA_ERRORS: f"NVLink data checksum errors, {_SINCE_DRIVER}.",
        Counter.NVLINK_REPLAY_ERRORS: f"NVLink packets sent again, {_SINCE_DRIVER}.",
        Counter.NVLINK_RECOVERY_ERRORS: f"NVLink recoveries, {_SINCE_DRIVER}.",
        Counter.HELD_BACK_BY_POWER: f"Time held back by the power limit, seconds, {_SINCE_DRIVER}.",
        Counter.HELD_BACK_BY_HEAT: f"Time held back by heat, seconds, {_SINCE_DRIVER}.",
        Counter.HELD_BACK_BY_SYNC_BOOST: f"Time held back by the slowest card of a group, seconds, {_SINCE_DRIVER}.",
        Counter.HELD_BACK_BY_BOARD_LIMIT: f"Time held back by the board's limits, seconds, {_SINCE_DRIVER}.",
        Counter.HELD_BACK_BY_RELIABILITY: f"Time held back by the voltage's limit, seconds, {_SINCE_DRIVER}.",
    }.items()
}

FRAMEBUFFER_CAPACITY = _gauge("framebuffer_capacity_bytes", "Whole framebuffer, bytes.")
FRAMEBUFFER_FREE = _gauge("framebuffer_free_bytes", "Framebuffer that nobody holds, bytes.")
_FRAMEBUFFER_RESERVED = _gauge("framebuffer_reserved_bytes", "Framebuffer that the driver holds itself, bytes.")
_MIG_CAPACITY = _gauge("mig_framebuffer_capacity_bytes", "Whole framebuffer of the MIG instance, bytes.", _MIG)
_MIG_USED = _gauge("mig_framebuffer_used_bytes", "Framebuffer of the MIG instance in use, bytes.", _MIG)
_MIG_FREE = _gauge("mig_framebuffer_free_bytes", "Framebuffer of the MIG instance that nobody holds, bytes.", _MIG)
_MIG_SMS = _gauge("mig_sm_count", "Multiprocessors of the MIG instance.", _MIG)
_HELD_BACK = _gauge(
    "held_back_ratio", "Share of sub-samples in which a reason held the clocks down, 0-1.", (*CARD_IDENTITY, "reason")
)
_COMPUTE_MODE = _gauge("compute_mode", "1 for the compute mode in force, else 0.", (*CARD_IDENTITY, "mode"))
_PROCESSES = _gauge("processes", "Processes that sit on the card.", (*CARD_IDENTITY, "kind"))
_XIDS = _counter("xid_errors_total", "XID events since the exporter started, by code.", (*CARD_IDENTITY, "xid"))
_XID_EVENTS = _counter("xid_events_total", "XID events since the exporter started, all codes.")
_LAST_XID = _gauge(
    "last_xid", "Code of the last XID event since the exporter started, 0 where there was none; never goes back to 0."
)
_HARDWARE = info(
    "gputide_card_hardware_info",
    "Which board the card is.",
    (*CARD_IDENTITY, "index", "minor_number", "pci_bus_id", "serial"),
)
_DRIVER = info(
    "gputide_driver_info",
    "Versions of the driver, of its library and of the newest CUDA that it supports.",
    ("node", "driver", "nvml", "cuda"),
)
_UNNAMED = _gauge("unnamed_count", "Cards that the driver counts and that did not say who they are.", ("node",))
_AGE = _gauge("data_age_seconds", "Age of the card's latest figures when the reading was taken, seconds.")
_STATE = _gauge("reading_state", "1 for the state that the card's reading is in, else 0.", (*CARD_IDENTITY, "state"))
_FAILED = _counter(
    "call_failures_total",
    "Calls into the driver's library that failed, by function and error.",
    (*CARD_IDENTITY, "function", "error"),
)

CARD_FAMILIES: tuple[CataloguedFamily, ...] = (
    *_MEANS.values(), *_PEAKS.values(), *_GAUGES.values(), *_COUNTERS.values(),
    FRAMEBUFFER_CAPACITY, FRAMEBUFFER_FREE, _FRAMEBUFFER_RESERVED, _HELD_BACK, _COMPUTE_MODE, _PROCESSES,
    _MIG_CAPACITY, _MIG_USED, _MIG_FREE, _MIG_SMS, *_MIG_MEANS.values(), *_MIG_PEAKS.values(),
    _XIDS, _XID_EVENTS, _LAST_XID, _HARDWARE, _DRIVER, _UNNAMED, _AGE, _STATE, _FAILED,
)  # fmt: skip
"""Every family that a card may have, in the order in which they are shown."""


class CardFamilies:
    """Names the figures of one node's cards."""

    def __init__(self, *, cluster: str, node: str) -> None:
        self._cluster = cluster
        self._node = node
        self._kept = KeptLabels()

    def of(self, reading: CardsReading) -> tuple[Family, ...]:
        """The families of one reading, without those that nobody has."""
        return self._kept.families(CARD_FAMILIES, self._rows(reading))

    def _rows(self, reading: CardsReading) -> Iterator[tuple[CataloguedFamily, Row]]:
        versions = reading.versions
        yield _DRIVER, ((self._node, versions.driver or "", versions.library or "", versions.cuda or ""), 1.0)
        yield _UNNAMED, ((self._node,), float(reading.unnamed))
        for card in reading.cards:
            yield from _rows_of(card, (self._cluster, self._node, card.identity.card, card.identity.card_model))


def _rows_of(card: CardReading, labels: Labels) -> Iterator[tuple[CataloguedFamily, Row]]:
    yield _AGE, (labels, card.age_seconds)
    for state in CardState:
        yield _STATE, ((*labels, state.value), float(card.state is state))
    yield _HARDWARE, ((*labels, *_hardware(card)), 1.0)
    if card.xids is not None:
        yield _XID_EVENTS, (labels, float(sum(card.xids.values())))
        yield _LAST_XID, (labels, float(card.last_xid or 0))
        for code, count in sorted(card.xids.items()):
            yield _XIDS, ((*labels, str(code) if code >= 0 else "other"), float(count))
    if card.figures is None:
        return
    for (function, error), count in sorted(card.figures.failed_calls.items()):
        yield _FAILED, ((*labels, function, error), float(count))
    if card.state is CardState.OK:
        yield from _figures(card.figures, labels)


def _hardware(card: CardReading) -> Labels:
    identity = card.identity
    minor = "" if identity.minor_number is None else str(identity.minor_number)
    return str(identity.index), minor, identity.pci_bus_id or "", identity.serial or ""


def _figures(figures: CardFigures, labels: Labels) -> Iterator[tuple[CataloguedFamily, Row]]:
    for activity, spread in figures.activities.items():
        if activity in _MEANS:
            yield _MEANS[activity], (labels, spread.mean)
        yield _PEAKS[activity], (labels, spread.peak)
    for name, family in _GAUGES.items():
        if name in figures.gauges:
            yield family, (labels, figures.gauges[name])
    for total, family in _COUNTERS.items():
        if total in figures.counters:
            yield family, (labels, figures.counters[total])
    if figures.framebuffer is not None:
        yield from _framebuffer(figures.framebuffer, labels)
    yield from _modes(figures, labels)
    yield from _migs(figures.migs, labels)


def _modes(figures: CardFigures, labels: Labels) -> Iterator[tuple[CataloguedFamily, Row]]:
    if figures.held_back is not None:
        for reason in ClockReason:
            yield _HELD_BACK, ((*labels, reason.value), figures.held_back[reason])
    if figures.compute_mode is not None:
        for mode in ComputeMode:
            yield _COMPUTE_MODE, ((*labels, mode.value), float(figures.compute_mode is mode))
    if figures.processes is not None:
        for kind in ProcessKind:
            count = sum(kind in process.kinds for process in figures.processes)
            yield _PROCESSES, ((*labels, kind.value), float(count))


def _framebuffer(framebuffer: Framebuffer, labels: Labels) -> Iterator[tuple[CataloguedFamily, Row]]:
    yield FRAMEBUFFER_CAPACITY, (labels, float(framebuffer.total_bytes))
    yield FRAMEBUFFER_FREE, (labels, float(framebuffer.free_bytes))
    if framebuffer.reserved_bytes is not None:
        yield _FRAMEBUFFER_RESERVED, (labels, float(framebuffer.reserved_bytes))


def _migs(migs: Iterable[MigFigures], card: Labels) -> Iterator[tuple[CataloguedFamily, Row]]:
    for mig in migs:
        labels = (*card, mig.mig_profile, mig.mig, str(mig.gpu_instance), str(mig.compute_instance))
        if mig.framebuffer is not None:
            yield _MIG_CAPACITY, (labels, float(mig.framebuffer.total_bytes))
            yield _MIG_USED, (labels, float(mig.framebuffer.used_bytes))
            yield _MIG_FREE, (labels, float(mig.framebuffer.free_bytes))
        if mig.sm_count is not None:
            yield _MIG_SMS, (labels, float(mig.sm_count))
        for activity, spread in mig.activities.items():
            if activity in _MIG_MEANS:
                yield _MIG_MEANS[activity], (labels, spread.mean)
                yield _MIG_PEAKS[activity], (labels, spread.peak)
