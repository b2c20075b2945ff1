"""What a card is asked for once per reading: heat, clocks, counters of energy, errors and links.

Most of it comes in one call, `nvmlDeviceGetFieldValues`, whose ids are those of nvml.h (`NVML_FI_…`), as nvidia-ml-py
states them; a few have a function of their own that older drivers know. Called by `exporter.nvml.cards`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

from exporter.nvml.calls import CardCalls
from exporter.nvml.figures import ComputeMode, Counter, Gauge
from exporter.nvml.library import NOT_SUPPORTED_CODES, number_or_none

_ALL_LINKS = 2**32 - 1
"""Scope of NVLink fields that sums over the links."""
_KIB = 1024.0
_MILLI = 1e-3
_NANO = 1e-9
_MEGA = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class _Field:
    number: int
    factor: float = 1.0
    scope: int = 0

    @property
    def name(self) -> str:
        return f"field {self.number}"


_FIELDS: Mapping[Gauge | Counter, _Field] = MappingProxyType(
    {
        Gauge.ECC_ENABLED: _Field(number=1),
        Gauge.PAGES_RETIRE_PENDING: _Field(number=31),
        Gauge.MEMORY_TEMPERATURE: _Field(number=82),
        Gauge.ROWS_REMAP_PENDING: _Field(number=144),
        Gauge.ROWS_REMAP_FAILED: _Field(number=145),
        Counter.ECC_CORRECTED: _Field(number=3),
        Counter.ECC_UNCORRECTED: _Field(number=4),
        Counter.ECC_LIFETIME_CORRECTED: _Field(number=5),
        Counter.ECC_LIFETIME_UNCORRECTED: _Field(number=6),
        Counter.PAGES_RETIRED_SINGLE_BIT: _Field(number=29),
        Counter.PAGES_RETIRED_DOUBLE_BIT: _Field(number=30),
        Counter.NVLINK_CRC_FLIT_ERRORS: _Field(number=38),
        Counter.NVLINK_CRC_DATA_ERRORS: _Field(number=45),
        Counter.NVLINK_REPLAY_ERRORS: _Field(number=52),
        Counter.NVLINK_RECOVERY_ERRORS: _Field(number=59),
        Counter.HELD_BACK_BY_POWER: _Field(number=74, factor=_NANO),
        Counter.HELD_BACK_BY_HEAT: _Field(number=75, factor=_NANO),
        Counter.HELD_BACK_BY_SYNC_BOOST: _Field(number=76, factor=_NANO),
        Counter.HELD_BACK_BY_BOARD_LIMIT: _Field(number=77, factor=_NANO),
        Counter.HELD_BACK_BY_RELIABILITY: _Field(number=79, factor=_NANO),
        Counter.ENERGY: _Field(number=83, factor=_MILLI),
        Counter.PCIE_REPLAYS: _Field(number=94),
        Counter.NVLINK_TRANSMIT: _Field(number=138, factor=_KIB, scope=_ALL_LINKS),
        Counter.NVLINK_RECEIVE: _Field(number=139, factor=_KIB, scope=_ALL_LINKS),
        Counter.ROWS_REMAPPED_CORRECTABLE: _Field(number=142),
        Counter.ROWS_REMAPPED_UNCORRECTABLE: _Field(number=143),
        Counter.PCIE_TRANSMIT: _Field(number=197),
        Counter.PCIE_RECEIVE: _Field(number=198),
    }
)

_REMAPPED_ROWS: tuple[Gauge | Counter, ...] = (
    Counter.ROWS_REMAPPED_CORRECTABLE,
    Counter.ROWS_REMAPPED_UNCORRECTABLE,
    Gauge.ROWS_REMAP_PENDING,
    Gauge.ROWS_REMAP_FAILED,
)

_CLOCKS = ((Gauge.GRAPHICS_CLOCK, 0), (Gauge.SM_CLOCK, 1), (Gauge.MEMORY_CLOCK, 2), (Gauge.VIDEO_CLOCK, 3))

_NUMBERS = (
    (Gauge.PERFORMANCE_STATE, "nvmlDeviceGetPerformanceState"),
    (Gauge.PCIE_LINK_GENERATION, "nvmlDeviceGetCurrPcieLinkGeneration"),
    (Gauge.PCIE_LINK_WIDTH, "nvmlDeviceGetCurrPcieLinkWidth"),
    (Gauge.PERSISTENCE_MODE, "nvmlDeviceGetPersistenceMode"),
)

_PERFORMANCE_STATE_UNKNOWN = 32

_COMPUTE_MODES = (
    ComputeMode.DEFAULT,
    ComputeMode.EXCLUSIVE_THREAD,
    ComputeMode.PROHIBITED,
    ComputeMode.EXCLUSIVE_PROCESS,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowFigures:
    """What is read once per reading.

    Attributes:
        compute_mode: who may open the card, None where not reported.
    """

    gauges: Mapping[Gauge, float]
    counters: Mapping[Counter, float]
    compute_mode: ComputeMode | None


def read_slow_figures(calls: CardCalls) -> SlowFigures:
    """Reads them from one card; what it doesn't support is left out."""
    found = _field_values(calls)
    gauges = {name: value for name, value in found.items() if isinstance(name, Gauge)}
    counters = {name: value for name, value in found.items() if isinstance(name, Counter)}
    _add_older_functions(calls, gauges, counters)
    _add_clocks(calls, gauges)
    _add_power_and_heat(calls, gauges)
    for gauge, function in _NUMBERS:
        number = calls.ask(function)
        if number is None or number_or_none(number) is None:
            continue
        if gauge is not Gauge.PERFORMANCE_STATE or number != _PERFORMANCE_STATE_UNKNOWN:
            gauges[gauge] = float(number)
    mode = calls.ask("nvmlDeviceGetComputeMode")
    is_known = mode is not None and 0 <= mode < len(_COMPUTE_MODES)
    return SlowFigures(gauges=gauges, counters=counters, compute_mode=_COMPUTE_MODES[mode] if is_known else None)


def _field_values(calls: CardCalls) -> dict[Gauge | Counter, float]:
    wanted = {name: field for name, field in _FIELDS.items() if not calls.is_silent(field.name)}
    if not wanted:
        return {}
    asked = [(field.number, field.scope) for field in wanted.values()]
    answers = calls.try_to("nvmlDeviceGetFieldValues", lambda: calls.library.field_values(calls.handle, asked))
    found: dict[Gauge | Counter, float] = {}
    for (name, field), (code, value) in zip(wanted.items(), answers or (), strict=bool(answers)):
        if code in NOT_SUPPORTED_CODES:
            calls.silence(field.name)
        elif value is not None and value >= 0:
            found[name] = value * field.factor
    return found


def _add_older_functions(calls: CardCalls, gauges: dict[Gauge, float], counters: dict[Counter, float]) -> None:
    if Counter.ENERGY not in counters:
        millijoules = calls.ask("nvmlDeviceGetTotalEnergyConsumption")
        if millijoules is not None and number_or_none(millijoules) is not None:
            counters[Counter.ENERGY] = millijoules * _MILLI
    if Counter.ROWS_REMAPPED_CORRECTABLE not in counters:
        for name, number in zip(_REMAPPED_ROWS, calls.ask("nvmlDeviceGetRemappedRows") or (), strict=False):
            if isinstance(name, Counter):
                counters[name] = float(number)
            else:
                gauges[name] = float(number)


def _add_clocks(calls: CardCalls, gauges: dict[Gauge, float]) -> None:
    for gauge, kind in _CLOCKS:
        megahertz = calls.try_to(f"nvmlDeviceGetClockInfo {kind}", partial(_clock, calls, kind))
        if megahertz is not None and number_or_none(megahertz) is not None:
            gauges[gauge] = megahertz * _MEGA
    megahertz = calls.ask("nvmlDeviceGetMaxClockInfo", 1)
    if megahertz is not None and number_or_none(megahertz) is not None:
        gauges[Gauge.SM_CLOCK_MAX] = megahertz * _MEGA


def _clock(calls: CardCalls, kind: int) -> Any:
    return calls.library.call("nvmlDeviceGetClockInfo", calls.handle, kind)


def _add_power_and_heat(calls: CardCalls, gauges: dict[Gauge, float]) -> None:
    celsius = calls.ask("nvmlDeviceGetTemperature", 0)
    if celsius is not None and celsius <= 200:
        gauges[Gauge.TEMPERATURE] = float(celsius)
    milliwatts = calls.ask("nvmlDeviceGetEnforcedPowerLimit")
    if milliwatts is not None and number_or_none(milliwatts) is not None:
        gauges[Gauge.POWER_LIMIT] = milliwatts * _MILLI
