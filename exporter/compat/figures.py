"""Names of other exporters for figures that we show and the receiver does not keep.

What the receiver keeps stands in the alias table (`exporter.compat.names` reads it backwards); this is the rest. Left
out on purpose: gauges of the last event, such as `DCGM_FI_DEV_XID_ERRORS`, which shows one code for ever and counts
nothing; `gputide_card_xid_errors_total` counts by code. Called by `exporter.compat.translation`.

Sources: NVIDIA/dcgm-exporter:etc/default-counters.csv (units), Project-HAMi/HAMi:cmd/vGPUmonitor/metrics.go.
"""

from __future__ import annotations

from dataclasses import dataclass

from exporter.compat.names import NameSource

_MIB = float(1024 * 1024)
_PERCENT = 0.01
_MEGA = 1e6
_MILLI = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownFigure:
    """One name of another exporter.

    Attributes:
        source: whose name.
        name: the name.
        family: our family with the same figure.
        factor: a value of that exporter times `factor` is in our unit.
    """

    source: NameSource
    name: str
    family: str
    factor: float = 1.0


def _dcgm(name: str, figure: str, factor: float = 1.0) -> ShownFigure:
    return ShownFigure(source=NameSource.DCGM, name=f"DCGM_FI_{name}", family=f"gputide_card_{figure}", factor=factor)


def _hami(name: str, family: str, factor: float = 1.0) -> ShownFigure:
    return ShownFigure(source=NameSource.HAMI, name=f"hami_{name}", family=f"gputide_{family}", factor=factor)


SHOWN_FIGURES: tuple[ShownFigure, ...] = (
    _dcgm("DEV_SM_CLOCK", "sm_clock_hertz", _MEGA),
    _dcgm("DEV_MEM_CLOCK", "memory_clock_hertz", _MEGA),
    _dcgm("DEV_MEMORY_TEMP", "memory_temperature_celsius"),
    _dcgm("DEV_TOTAL_ENERGY_CONSUMPTION", "energy_joules_total", _MILLI),
    _dcgm("DEV_PCIE_REPLAY_COUNTER", "pcie_replays_total"),
    _dcgm("DEV_MEM_COPY_UTIL", "memory_copy_ratio", _PERCENT),
    _dcgm("DEV_FB_FREE", "framebuffer_free_bytes", _MIB),
    _dcgm("DEV_FB_RESERVED", "framebuffer_reserved_bytes", _MIB),
    _dcgm("DEV_CORRECTABLE_REMAPPED_ROWS", "rows_remapped_correctable_total"),
    _dcgm("DEV_UNCORRECTABLE_REMAPPED_ROWS", "rows_remapped_uncorrectable_total"),
    _dcgm("DEV_ROW_REMAP_FAILURE", "rows_remap_failed"),
    _dcgm("DEV_ECC_SBE_VOL_TOTAL", "ecc_corrected_errors_total"),
    _dcgm("DEV_ECC_DBE_VOL_TOTAL", "ecc_uncorrected_errors_total"),
    _dcgm("DEV_ECC_SBE_AGG_TOTAL", "ecc_lifetime_corrected_errors_total"),
    _dcgm("DEV_ECC_DBE_AGG_TOTAL", "ecc_lifetime_uncorrected_errors_total"),
    _dcgm("DEV_RETIRED_SBE", "pages_retired_single_bit_total"),
    _dcgm("DEV_RETIRED_DBE", "pages_retired_double_bit_total"),
    _dcgm("DEV_RETIRED_PENDING", "pages_retire_pending"),
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
    _hami("host_gpu_memory_controller_utilization_ratio", "card_memory_copy_ratio", _PERCENT),
    _hami("vgpu_memory_context_bytes", "slice_framebuffer_context_bytes"),
    _hami("vgpu_memory_module_bytes", "slice_framebuffer_module_bytes"),
    _hami("vgpu_memory_buffer_bytes", "slice_framebuffer_data_bytes"),
)
"""Every such name."""
