"""Names of other exporters for figures that we show and the receiver does not keep, and for sums over grants.

What the receiver keeps stands in the alias table (`exporter.compat.names` reads it backwards); this is the rest. The
node's exporter knows who was granted what on its cards, so the figures of HAMi's scheduler need no second exporter.
Called by `exporter.compat.translation`.

Sources: NVIDIA/dcgm-exporter:etc/default-counters.csv and etc/dcp-metrics-included.csv (units),
NVIDIA/DCGM:dcgmlib/dcgm_fields.h (what is in neither list), Project-HAMi/HAMi:cmd/vGPUmonitor/metrics.go and
cmd/scheduler/metrics.go.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from exporter.compat.names import NameSource
from exporter.families import Family
from exporter.reader import Float64
from fleet.inventory import Card, Grant
from fleet.schema import Measure
from fleet.series import slice_series

_MIB = float(1024 * 1024)
_PERCENT = 0.01
_MEGA = 1e6
_MILLI = 1e-3
_NANO = 1e-9


class Of(StrEnum):
    """Whom the series of a name speak of."""

    CARD = "card"
    MIG = "mig"
    """A GPU instance of MIG, which other exporters name by its card and number."""
    SLICE = "slice"
    SLICE_MIG = "slice_mig"
    """A MIG instance that a container was granted."""
    CONTAINER = "container"
    """A container, on whatever cards."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownFigure:
    """One name of another exporter.

    Attributes:
        family: our family with the same figure.
        of: whom its series speak of.
        factor: a value of that exporter times `factor` is in our unit.
        measure: the measure of slices that `family` holds; None where it holds none.
        constant: labels that distinguish this figure from others of the same name.
        is_counter: it only grows, under whatever name.
    """

    source: NameSource
    name: str
    family: str
    of: Of = Of.CARD
    factor: float = 1.0
    measure: Measure | None = None
    constant: tuple[tuple[str, str], ...] = ()
    is_counter: bool = False


def _dcgm(name: str, figure: str, factor: float = 1.0) -> ShownFigure:
    family = f"gputide_card_{figure}"
    return ShownFigure(
        source=NameSource.DCGM,
        name=f"DCGM_FI_{name}",
        family=family,
        factor=factor,
        is_counter=family.endswith("_total"),
    )


def _mig(name: str, figure: str, factor: float = 1.0) -> ShownFigure:
    return ShownFigure(
        source=NameSource.DCGM, name=f"DCGM_FI_{name}", family=f"gputide_card_mig_{figure}", of=Of.MIG, factor=factor
    )


def _hami(name: str, family: str, factor: float = 1.0, of: Of = Of.SLICE) -> ShownFigure:
    return ShownFigure(
        source=NameSource.HAMI, name=f"hami_{name}", family=f"gputide_{family}", of=of, factor=factor
    )  # fmt: skip


def _hami_ecc(error_type: str, figure: str) -> ShownFigure:
    return ShownFigure(
        source=NameSource.HAMI,
        name="hami_host_gpu_ecc_errors_total",
        family=f"gputide_card_{figure}",
        constant=(("error_type", error_type),),
        is_counter=True,
    )


def _legacy(name: str, family: str, of: Of) -> ShownFigure:
    return ShownFigure(source=NameSource.HAMI_LEGACY, name=name, family=f"gputide_{family}", of=of)


SHOWN_FIGURES: tuple[ShownFigure, ...] = (
    _dcgm("DEV_SM_CLOCK", "sm_clock_hertz", _MEGA),
    _dcgm("DEV_MEM_CLOCK", "memory_clock_hertz", _MEGA),
    _dcgm("DEV_VIDEO_CLOCK", "video_clock_hertz", _MEGA),
    _dcgm("DEV_MAX_SM_CLOCK", "sm_clock_max_hertz", _MEGA),
    _dcgm("DEV_PSTATE", "performance_state"),
    _dcgm("DEV_MEMORY_TEMP", "memory_temperature_celsius"),
    _dcgm("DEV_ENFORCED_POWER_LIMIT", "power_limit_watts"),
    _dcgm("DEV_TOTAL_ENERGY_CONSUMPTION", "energy_joules_total", _MILLI),
    _dcgm("DEV_PCIE_REPLAY_COUNTER", "pcie_replays_total"),
    _dcgm("DEV_PCIE_LINK_GEN", "pcie_link_generation"),
    _dcgm("DEV_PCIE_LINK_WIDTH", "pcie_link_width_lanes"),
    _dcgm("DEV_MEM_COPY_UTIL", "memory_copy_ratio", _PERCENT),
    _dcgm("DEV_XID_ERRORS", "last_xid"),
    _dcgm("DEV_POWER_VIOLATION", "held_back_by_power_seconds_total", _NANO),
    _dcgm("DEV_THERMAL_VIOLATION", "held_back_by_heat_seconds_total", _NANO),
    _dcgm("DEV_SYNC_BOOST_VIOLATION", "held_back_by_sync_boost_seconds_total", _NANO),
    _dcgm("DEV_BOARD_LIMIT_VIOLATION", "held_back_by_board_limit_seconds_total", _NANO),
    _dcgm("DEV_RELIABILITY_VIOLATION", "held_back_by_reliability_seconds_total", _NANO),
    _dcgm("DEV_FB_TOTAL", "framebuffer_capacity_bytes", _MIB),
    _dcgm("DEV_FB_FREE", "framebuffer_free_bytes", _MIB),
    _dcgm("DEV_FB_RESERVED", "framebuffer_reserved_bytes", _MIB),
    _dcgm("DEV_CORRECTABLE_REMAPPED_ROWS", "rows_remapped_correctable_total"),
    _dcgm("DEV_UNCORRECTABLE_REMAPPED_ROWS", "rows_remapped_uncorrectable_total"),
    _dcgm("DEV_ROW_REMAP_FAILURE", "rows_remap_failed"),
    _dcgm("DEV_ROW_REMAP_PENDING", "rows_remap_pending"),
    _dcgm("DEV_ECC_SBE_VOL_TOTAL", "ecc_corrected_errors_total"),
    _dcgm("DEV_ECC_DBE_VOL_TOTAL", "ecc_uncorrected_errors_total"),
    _dcgm("DEV_ECC_SBE_AGG_TOTAL", "ecc_lifetime_corrected_errors_total"),
    _dcgm("DEV_ECC_DBE_AGG_TOTAL", "ecc_lifetime_uncorrected_errors_total"),
    _dcgm("DEV_RETIRED_SBE", "pages_retired_single_bit_total"),
    _dcgm("DEV_RETIRED_DBE", "pages_retired_double_bit_total"),
    _dcgm("DEV_RETIRED_PENDING", "pages_retire_pending"),
    _dcgm("DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL", "nvlink_crc_flit_errors_total"),
    _dcgm("DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL", "nvlink_crc_data_errors_total"),
    _dcgm("DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL", "nvlink_replay_errors_total"),
    _dcgm("DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL", "nvlink_recovery_errors_total"),
    _dcgm("PROF_GR_ENGINE_ACTIVE", "graphics_active_ratio"),
    _dcgm("PROF_SM_OCCUPANCY", "sm_occupancy_ratio"),
    _dcgm("PROF_PIPE_TENSOR_ACTIVE", "tensor_active_ratio"),
    _dcgm("PROF_PIPE_FP64_ACTIVE", "fp64_active_ratio"),
    _dcgm("PROF_PIPE_FP32_ACTIVE", "fp32_active_ratio"),
    _dcgm("PROF_PIPE_FP16_ACTIVE", "fp16_active_ratio"),
    _dcgm("PROF_PCIE_TX_BYTES", "pcie_transmit_bytes_per_second"),
    _dcgm("PROF_PCIE_RX_BYTES", "pcie_receive_bytes_per_second"),
    _dcgm("PROF_NVLINK_TX_BYTES", "nvlink_transmit_bytes_per_second"),
    _dcgm("PROF_NVLINK_RX_BYTES", "nvlink_receive_bytes_per_second"),
    # What an instance does; figures of the whole card are not repeated for each.
    _mig("DEV_FB_TOTAL", "framebuffer_capacity_bytes", _MIB),
    _mig("DEV_FB_USED", "framebuffer_used_bytes", _MIB),
    _mig("DEV_FB_FREE", "framebuffer_free_bytes", _MIB),
    _mig("PROF_GR_ENGINE_ACTIVE", "graphics_active_ratio"),
    _mig("PROF_SM_ACTIVE", "sm_active_ratio"),
    _mig("PROF_SM_OCCUPANCY", "sm_occupancy_ratio"),
    _mig("PROF_DRAM_ACTIVE", "memory_active_ratio"),
    _mig("PROF_PIPE_TENSOR_ACTIVE", "tensor_active_ratio"),
    _mig("PROF_PIPE_FP64_ACTIVE", "fp64_active_ratio"),
    _mig("PROF_PIPE_FP32_ACTIVE", "fp32_active_ratio"),
    _mig("PROF_PIPE_FP16_ACTIVE", "fp16_active_ratio"),
    _hami("host_gpu_memory_controller_utilization_ratio", "card_memory_copy_ratio", _PERCENT, of=Of.CARD),
    _hami_ecc("corrected", "ecc_lifetime_corrected_errors_total"),
    _hami_ecc("uncorrected", "ecc_lifetime_uncorrected_errors_total"),
    ShownFigure(
        source=NameSource.HAMI,
        name="hami_container_device_memory_bytes",
        family=slice_series(Measure.FRAMEBUFFER_USED),
        of=Of.SLICE,
        measure=Measure.FRAMEBUFFER_USED,
    ),
    _hami("vgpu_memory_context_bytes", "slice_framebuffer_context_bytes"),
    _hami("vgpu_memory_module_bytes", "slice_framebuffer_module_bytes"),
    _hami("vgpu_memory_buffer_bytes", "slice_framebuffer_data_bytes"),
    _hami("container_last_kernel_elapsed_seconds", "container_since_last_kernel_seconds", of=Of.CONTAINER),
    _hami("mig_device_info", "slice_mig_info", of=Of.SLICE_MIG),
    _legacy("Device_last_kernel_of_container", "container_since_last_kernel_seconds", Of.CONTAINER),
    _legacy("MigInfo", "slice_mig_info", Of.SLICE_MIG),
)
"""Every such name; one that stands for cards and for MIG instances stands here twice."""

_SOURCES_FAMILY = "gputide_node_source_age_seconds"
_GRANTERS = ("kubelet", "api_server")
"""Sources that say who was granted what."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GrantSum:
    """One name for a sum over the grants of a card.

    Attributes:
        summand: what a grant adds.
    """

    name: str
    meaning: str
    summand: Callable[[Grant], float]

    def of(self, cards: tuple[Card, ...], grants: tuple[Grant, ...]) -> Float64:
        """The sum of each card, shape `(len(cards),)`; 0 for a card on which nothing is granted."""
        sums = dict.fromkeys((card.card for card in cards), 0.0)
        for grant in grants:
            if grant.card in sums:
                sums[grant.card] += self.summand(grant)
        return np.array(list(sums.values()), np.float64)


def _bytes(name: str) -> GrantSum:
    return GrantSum(
        name=name,
        meaning="sum of `framebuffer_granted_bytes` of the card's grants",
        summand=lambda grant: float(grant.framebuffer_granted_bytes),
    )


def _count(name: str) -> GrantSum:
    return GrantSum(name=name, meaning="number of the card's grants", summand=lambda _: 1.0)


GRANT_SUMS: Mapping[NameSource, tuple[GrantSum, ...]] = {
    NameSource.HAMI: (_bytes("hami_gpu_memory_allocated_bytes"), _count("hami_gpu_shared_count")),
    NameSource.HAMI_LEGACY: (_bytes("GPUDeviceMemoryAllocated"), _count("GPUDeviceSharedNum")),
}
"""Per source, its sums."""


def are_grants_known(families: Mapping[str, Family]) -> bool:
    """Whether any source says who was granted what; otherwise no card is called free."""
    ages = families.get(_SOURCES_FAMILY)
    if ages is None:
        return False
    place = ages.label_names.index("source")
    return any(
        labels[place] in _GRANTERS and bool(np.isfinite(age))
        for labels, age in zip(ages.labels, ages.values, strict=True)
    )
