"""What NVML reports of the cards of one node, as frozen records: cards, their MIG instances, their processes.

Made by `exporter.nvml.cards`; joined with pods by the node's reader, shown by `exporter.card_families`. A figure that
a card, a driver or a permission withholds is absent: None, or not in the mapping; never 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from fleet.inventory import CardId, CardModelName


class CardState(StrEnum):
    """How the reading of one card fares."""

    OK = "ok"
    HUNG = "hung"
    """A call into the library has not come back within its deadline; the figures are those from before."""
    LOST = "lost"
    """The driver says that the card is gone, or it no longer appears among the cards."""


class Activity(StrEnum):
    """What is sampled several times per reading; the value is the name, unit last. Ratios are 0-1."""

    DUTY_CYCLE = "duty_cycle_ratio"
    MEMORY_COPY = "memory_copy_ratio"
    """Share of time in which the framebuffer was read or written (NVML's `utilization.memory`): a duty cycle, and so
    another thing than `MEMORY_ACTIVE`."""
    SM_ACTIVE = "sm_active_ratio"
    SM_OCCUPANCY = "sm_occupancy_ratio"
    TENSOR_ACTIVE = "tensor_active_ratio"
    MEMORY_ACTIVE = "memory_active_ratio"
    FP64_ACTIVE = "fp64_active_ratio"
    FP32_ACTIVE = "fp32_active_ratio"
    FP16_ACTIVE = "fp16_active_ratio"
    GRAPHICS_ACTIVE = "graphics_active_ratio"
    ENCODER = "encoder_ratio"
    DECODER = "decoder_ratio"
    JPEG = "jpeg_ratio"
    OPTICAL_FLOW = "optical_flow_ratio"
    FRAMEBUFFER_USED = "framebuffer_used_bytes"
    POWER = "power_watts"
    PCIE_TRANSMIT = "pcie_transmit_bytes_per_second"
    PCIE_RECEIVE = "pcie_receive_bytes_per_second"
    NVLINK_TRANSMIT = "nvlink_transmit_bytes_per_second"
    NVLINK_RECEIVE = "nvlink_receive_bytes_per_second"


class Gauge(StrEnum):
    """What is read once per reading and goes up and down; the value is the name, unit last."""

    TEMPERATURE = "temperature_celsius"
    MEMORY_TEMPERATURE = "memory_temperature_celsius"
    POWER_LIMIT = "power_limit_watts"
    SM_CLOCK = "sm_clock_hertz"
    MEMORY_CLOCK = "memory_clock_hertz"
    GRAPHICS_CLOCK = "graphics_clock_hertz"
    VIDEO_CLOCK = "video_clock_hertz"
    SM_CLOCK_MAX = "sm_clock_max_hertz"
    PERFORMANCE_STATE = "performance_state"
    """0 is the fastest, 15 the slowest."""
    PCIE_LINK_GENERATION = "pcie_link_generation"
    PCIE_LINK_WIDTH = "pcie_link_width_lanes"
    PERSISTENCE_MODE = "persistence_mode"
    ECC_ENABLED = "ecc_enabled"
    ROWS_REMAP_PENDING = "rows_remap_pending"
    ROWS_REMAP_FAILED = "rows_remap_failed"
    PAGES_RETIRE_PENDING = "pages_retire_pending"


class Counter(StrEnum):
    """What the card counts since its driver was loaded (lifetime ones: since it was made); the value is the name."""

    ENERGY = "energy_joules_total"
    ECC_CORRECTED = "ecc_corrected_errors_total"
    ECC_UNCORRECTED = "ecc_uncorrected_errors_total"
    ECC_LIFETIME_CORRECTED = "ecc_lifetime_corrected_errors_total"
    ECC_LIFETIME_UNCORRECTED = "ecc_lifetime_uncorrected_errors_total"
    ROWS_REMAPPED_CORRECTABLE = "rows_remapped_correctable_total"
    ROWS_REMAPPED_UNCORRECTABLE = "rows_remapped_uncorrectable_total"
    PAGES_RETIRED_SINGLE_BIT = "pages_retired_single_bit_total"
    PAGES_RETIRED_DOUBLE_BIT = "pages_retired_double_bit_total"
    PCIE_REPLAYS = "pcie_replays_total"
    PCIE_TRANSMIT = "pcie_transmit_bytes_total"
    PCIE_RECEIVE = "pcie_receive_bytes_total"
    NVLINK_TRANSMIT = "nvlink_transmit_bytes_total"
    NVLINK_RECEIVE = "nvlink_receive_bytes_total"
    NVLINK_CRC_FLIT_ERRORS = "nvlink_crc_flit_errors_total"
    NVLINK_CRC_DATA_ERRORS = "nvlink_crc_data_errors_total"
    NVLINK_REPLAY_ERRORS = "nvlink_replay_errors_total"
    NVLINK_RECOVERY_ERRORS = "nvlink_recovery_errors_total"
    HELD_BACK_BY_POWER = "held_back_by_power_seconds_total"
    HELD_BACK_BY_HEAT = "held_back_by_heat_seconds_total"
    HELD_BACK_BY_SYNC_BOOST = "held_back_by_sync_boost_seconds_total"
    HELD_BACK_BY_BOARD_LIMIT = "held_back_by_board_limit_seconds_total"
    HELD_BACK_BY_RELIABILITY = "held_back_by_reliability_seconds_total"


class ClockReason(StrEnum):
    """Why clocks are lower than they could be (bits of `nvmlClocksEventReasons`, nvml.h)."""

    IDLE = "gpu_idle"
    APPLICATION_CLOCKS = "application_clocks"
    SOFTWARE_POWER_CAP = "software_power_cap"
    HARDWARE_SLOWDOWN = "hardware_slowdown"
    SYNC_BOOST = "sync_boost"
    SOFTWARE_THERMAL = "software_thermal_slowdown"
    HARDWARE_THERMAL = "hardware_thermal_slowdown"
    HARDWARE_POWER_BRAKE = "hardware_power_brake"
    DISPLAY_CLOCKS = "display_clocks"
    BOARD_LIMIT = "board_limit"
    """Older drivers only, as the next."""
    RELIABILITY = "reliability"


class ComputeMode(StrEnum):
    """Who may open a card (`nvmlComputeMode_t`)."""

    DEFAULT = "default"
    EXCLUSIVE_THREAD = "exclusive_thread"
    PROHIBITED = "prohibited"
    EXCLUSIVE_PROCESS = "exclusive_process"


class ProcessKind(StrEnum):
    """How a process sits on a card."""

    COMPUTE = "compute"
    GRAPHICS = "graphics"
    MPS = "mps"
    """Its work goes through an MPS server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Sub-samples of one figure since the reading before.

    Attributes:
        mean: mean over the sub-samples, in the figure's unit.
        samples: how many there were, at least 1.
    """

    mean: float
    peak: float
    samples: int


Activities = Mapping[Activity, Spread]
"""Sub-sampled figures by what they are of; what isn't supported is not among them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Framebuffer:
    """Memory of a card or a MIG instance, bytes.

    Attributes:
        used_bytes: held by processes; by drivers before 510 what the driver reserves is counted in.
        reserved_bytes: held by the driver itself; None where the driver counts it as used.
    """

    total_bytes: int
    used_bytes: int
    free_bytes: int
    reserved_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CardIdentity:
    """What a card is.

    Attributes:
        card: UUID.
        index: number of the card in the driver's order; may change when the node starts again.
        minor_number: N of `/dev/nvidiaN`, None where unknown.
        pci_bus_id: `00000000:07:00.0`, None where unknown.
    """

    card: CardId
    card_model: CardModelName
    index: int
    minor_number: int | None = None
    pci_bus_id: str | None = None
    serial: str | None = None
    framebuffer_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MigFigures:
    """One MIG device: a compute instance in a GPU instance.

    Attributes:
        mig: UUID of the MIG device (`MIG-…`).
        mig_profile: profile, such as `1g.10gb`.
        framebuffer: framebuffer of the GPU instance, shared by its compute instances; None where unknown.
        activities: of the GPU instance, with ratios of the instance and not of the card; needs GPM (Hopper and later).
    """

    mig: str
    mig_profile: str
    gpu_instance: int
    compute_instance: int
    framebuffer: Framebuffer | None = None
    sm_count: int | None = None
    activities: Activities = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessFigures:
    """One process on one card.

    Attributes:
        pid: process id in the host's PID namespace.
        kinds: how it sits on the card, at least one.
        gpu_instance: GPU instance that it runs in, None outside MIG.
        sm_busy: share of time in which its kernels ran, 0-1: a duty cycle. Absent under MIG, for a process that was
            not there at the reading before, and where the driver doesn't report.
        memory_busy: share of time in which its work read or wrote the framebuffer, 0-1.
        encoder_busy: share of the encoder's time, 0-1.
        decoder_busy: share of the decoder's time, 0-1.
        framebuffer_peak_bytes: the most that it ever held, where accounting mode is on.
        accounted_sm_busy: as `sm_busy`, over its whole life, where accounting mode is on.
        accounted_memory_busy: as `memory_busy`, over its whole life, where accounting mode is on.
    """

    pid: int
    kinds: frozenset[ProcessKind]
    gpu_instance: int | None = None
    compute_instance: int | None = None
    framebuffer_bytes: int | None = None
    sm_busy: Spread | None = None
    memory_busy: Spread | None = None
    encoder_busy: Spread | None = None
    decoder_busy: Spread | None = None
    framebuffer_peak_bytes: int | None = None
    accounted_sm_busy: float | None = None
    accounted_memory_busy: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CardFigures:
    """What one card told at one reading.

    Attributes:
        activities: sub-sampled figures; `FRAMEBUFFER_USED` among them.
        counters: what only grows until the driver starts anew.
        held_back: per reason the share of sub-samples in which it held the clocks down, 0-1; None where unknown.
        mig_mode: True where MIG is on, None where the card doesn't know MIG.
        migs: MIG devices, by GPU instance and compute instance.
        processes: by process id; None where the driver doesn't list them (no permission, or it failed to), () where
            there are none.
        failed_calls: calls that failed so far, by function and the error's word.
    """

    activities: Activities = field(default_factory=dict)
    framebuffer: Framebuffer | None = None
    gauges: Mapping[Gauge, float] = field(default_factory=dict)
    counters: Mapping[Counter, float] = field(default_factory=dict)
    held_back: Mapping[ClockReason, float] | None = None
    mig_mode: bool | None = None
    compute_mode: ComputeMode | None = None
    migs: tuple[MigFigures, ...] = ()
    processes: tuple[ProcessFigures, ...] | None = None
    failed_calls: Mapping[tuple[str, str], int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class CardReading:
    """One card as a reading of the node finds it.

    Attributes:
        figures: the latest figures; None before the first ones. While the state is not OK they are old.
        age_seconds: age of the figures, or of the wish for them where there are none.
        is_new: True where the figures were not part of an earlier reading.
        xids: XID events since the process started, by code (docs.nvidia.com, "XID errors"); None where the driver
            doesn't report them.
        last_xid: code of the last of them; None where there was none.
    """

    identity: CardIdentity
    state: CardState
    figures: CardFigures | None
    age_seconds: float
    is_new: bool
    xids: Mapping[int, int] | None = None
    last_xid: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LibraryVersions:
    """Versions of what stands between the exporter and the cards; None for what is unknown.

    Attributes:
        cuda: highest CUDA version that the driver supports, `12.4`.
    """

    driver: str | None = None
    library: str | None = None
    cuda: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CardsReading:
    """All cards of a node at one instant.

    Attributes:
        cards: every card that was ever there and is not long gone, by index.
        unnamed: cards that the driver counts and that did not report their identity: hung or lost, or out
            of our permission.
    """

    versions: LibraryVersions
    cards: tuple[CardReading, ...]
    unnamed: int = 0
