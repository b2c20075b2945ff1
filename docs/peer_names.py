"""Names of dcgm-exporter, HAMi's two exporters, KAI's and nvitop's, and which series of ours holds each, or why none.

Read by `metrics_page` and by tests.

Sources: NVIDIA/dcgm-exporter:etc/default-counters.csv and etc/dcp-metrics-included.csv, lines that are commented out
included, and pkg/cmd/app.go; Project-HAMi/HAMi:cmd/vGPUmonitor/metrics.go and cmd/scheduler/metrics.go;
kai-scheduler/kai-gpu-fractioning:fractioning-manager/metricsd/internal/metrics/exporter.go;
XuehaiPan/nvitop:nvitop-exporter/nvitop_exporter/exporter.py, whose names end in their unit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from exporter.compat.figures import GRANT_SUMS, SHOWN_FIGURES
from exporter.compat.names import NameSource, names_of
from fleet.schema import Measure
from fleet.series import SLICE_INFO, Subject, card_series, slice_series


class Peer(StrEnum):
    """Another exporter; the value is how the page calls it."""

    DCGM = "dcgm-exporter"
    HAMI_MONITOR = "HAMi, node monitor"
    HAMI_SCHEDULER = "HAMi, scheduler"
    KAI = "KAI's GPU fractioning"
    NVITOP = "nvitop-exporter"


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerName:
    """One name of another exporter.

    Attributes:
        peer: whose name.
        name: the name.
        families: our families that hold it; empty for none.
        is_shown: `--compat` shows it under this name.
        remark: why none of ours holds it, or not in the same way; empty where there is nothing to say.
    """

    peer: Peer
    name: str
    families: tuple[str, ...]
    is_shown: bool
    remark: str


_DCGM = """
SM_CLOCK MEM_CLOCK MEMORY_TEMP GPU_TEMP POWER_USAGE TOTAL_ENERGY_CONSUMPTION PCIE_TX_THROUGHPUT PCIE_RX_THROUGHPUT
PCIE_REPLAY_COUNTER GPU_UTIL MEM_COPY_UTIL ENC_UTIL DEC_UTIL XID_ERRORS POWER_VIOLATION THERMAL_VIOLATION
SYNC_BOOST_VIOLATION BOARD_LIMIT_VIOLATION LOW_UTIL_VIOLATION RELIABILITY_VIOLATION FB_FREE FB_USED FB_RESERVED
ECC_SBE_VOL_TOTAL ECC_DBE_VOL_TOTAL ECC_SBE_AGG_TOTAL ECC_DBE_AGG_TOTAL RETIRED_SBE RETIRED_DBE RETIRED_PENDING
NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL NVLINK_CRC_DATA_ERROR_COUNT_TOTAL NVLINK_REPLAY_ERROR_COUNT_TOTAL
NVLINK_RECOVERY_ERROR_COUNT_TOTAL NVLINK_BANDWIDTH_TOTAL NVLINK_BANDWIDTH_L0 VGPU_LICENSE_STATUS
UNCORRECTABLE_REMAPPED_ROWS CORRECTABLE_REMAPPED_ROWS ROW_REMAP_FAILURE
"""
_DCGM_PROFILING = """
GR_ENGINE_ACTIVE SM_ACTIVE SM_OCCUPANCY PIPE_TENSOR_ACTIVE DRAM_ACTIVE PIPE_FP64_ACTIVE PIPE_FP32_ACTIVE
PIPE_FP16_ACTIVE PCIE_TX_BYTES PCIE_RX_BYTES
"""
_DCGM_OWN = "CLOCK_EVENTS_COUNT XID_ERRORS_COUNT GPU_HEALTH_STATUS P2P_STATUS"
_HAMI_MONITOR = """
hami_host_gpu_memory_used_bytes hami_host_gpu_utilization_ratio hami_host_gpu_memory_controller_utilization_ratio
hami_host_gpu_temperature_celsius hami_host_gpu_power_usage_watts hami_host_gpu_ecc_errors_total
hami_vgpu_memory_used_bytes hami_vgpu_memory_limit_bytes hami_container_device_memory_bytes
hami_container_device_utilization_ratio hami_container_last_kernel_elapsed_seconds hami_mig_device_info
hami_vgpu_memory_context_bytes hami_vgpu_memory_module_bytes hami_vgpu_memory_buffer_bytes
HostGPUMemoryUsage HostCoreUtilization vGPU_device_memory_usage_in_bytes vGPU_device_memory_limit_in_bytes
Device_memory_desc_of_container Device_utilization_desc_of_container Device_last_kernel_of_container MigInfo
"""
_HAMI_SCHEDULER = """
hami_gpu_memory_limit_bytes hami_gpu_core_limit_ratio hami_gpu_memory_allocated_bytes hami_gpu_shared_count
hami_gpu_core_allocated_ratio hami_node_gpu_overview hami_node_gpu_memory_allocated_ratio
hami_node_gpu_mig_instance_info hami_vgpu_memory_allocated_bytes hami_vgpu_core_allocated_ratio
hami_resource_quota_used hami_resource_quota_limit
GPUDeviceMemoryLimit GPUDeviceCoreLimit GPUDeviceMemoryAllocated GPUDeviceSharedNum GPUDeviceCoreAllocated
nodeGPUOverview nodeGPUMemoryPercentage nodeGPUMigInstance vGPUMemoryAllocated vGPUCoreAllocated QuotaUsed
vGPUPodsDeviceAllocated vGPUMemoryPercentage vGPUCorePercentage
"""

_GRANTED = "gputide_card_framebuffer_granted_bytes"
_GRANTABLE = "gputide_card_framebuffer_grantable_bytes"
_COMPUTE_GRANTED = "gputide_card_compute_granted_ratio"
_SLICE_BYTES = "gputide_slice_framebuffer_granted_bytes"
_SLICE_COMPUTE = "gputide_slice_compute_granted_ratio"
_MIG_INFO = "gputide_slice_mig_info"
_BY_CLUSTER = "by `gputide run export cluster`"
_UNLIMITED = f"{_BY_CLUSTER}; a container without a limit counts 0 there and 1 here"
_ALWAYS_100 = "always 100"
_AS_LABELS = "values as labels: every change would be a new series; the figures are there by themselves"
_RATE = "a rate that it calls a counter; dropped there since, see `DCGM_FI_PROF_PCIE_…`"

_HELD: Mapping[str, tuple[tuple[str, ...], str]] = {
    "DCGM_FI_DEV_PCIE_TX_THROUGHPUT": (("gputide_card_pcie_transmit_bytes_per_second",), _RATE),
    "DCGM_FI_DEV_PCIE_RX_THROUGHPUT": (("gputide_card_pcie_receive_bytes_per_second",), _RATE),
    "DCGM_FI_DEV_LOW_UTIL_VIOLATION": (("gputide_card_held_back_ratio",), 'as `reason="gpu_idle"`, a share of time'),
    "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL": (
        ("gputide_card_nvlink_transmit_bytes_total", "gputide_card_nvlink_receive_bytes_total"),
        "its unit is written nowhere, so nothing can be converted into it",
    ),
    "DCGM_FI_DEV_NVLINK_BANDWIDTH_L0": (
        ("gputide_card_nvlink_transmit_bytes_total", "gputide_card_nvlink_receive_bytes_total"),
        "over all links",
    ),
    "DCGM_FI_DEV_VGPU_LICENSE_STATUS": ((), "licences of virtual machines are not read"),
    "DCGM_EXP_CLOCK_EVENTS_COUNT": (("gputide_card_held_back_ratio",), "share of time per reason"),
    "DCGM_EXP_XID_ERRORS_COUNT": (
        ("gputide_card_xid_errors_total",),
        "`increase()` over any window, where it has one of five minutes",
    ),
    "DCGM_EXP_GPU_HEALTH_STATUS": (
        ("gputide_card_reading_state", "gputide_card_rows_remap_failed", "gputide_card_xid_errors_total"),
        "single figures instead of a verdict",
    ),
    "DCGM_EXP_P2P_STATUS": ((), "the topology of cards is not read"),
    "DCGM_FI_DRIVER_VERSION": (("gputide_driver_info",), "a label there, and with `--compat dcgm`"),
    "Device_memory_desc_of_container": (
        (
            slice_series(Measure.FRAMEBUFFER_USED),
            "gputide_slice_framebuffer_context_bytes",
            "gputide_slice_framebuffer_module_bytes",
            "gputide_slice_framebuffer_data_bytes",
        ),
        _AS_LABELS,
    ),
    "hami_gpu_memory_limit_bytes": ((_GRANTABLE,), _BY_CLUSTER),
    "GPUDeviceMemoryLimit": ((_GRANTABLE,), _BY_CLUSTER),
    "hami_gpu_core_limit_ratio": ((), _ALWAYS_100),
    "GPUDeviceCoreLimit": ((), _ALWAYS_100),
    "hami_gpu_core_allocated_ratio": ((_COMPUTE_GRANTED,), _UNLIMITED),
    "GPUDeviceCoreAllocated": ((_COMPUTE_GRANTED,), _UNLIMITED),
    "hami_node_gpu_overview": ((_GRANTED,), f"{_BY_CLUSTER}; {_AS_LABELS}"),
    "nodeGPUOverview": ((_GRANTED,), f"{_BY_CLUSTER}; {_AS_LABELS}"),
    "hami_node_gpu_memory_allocated_ratio": ((_GRANTED, _GRANTABLE), f"their quotient, {_BY_CLUSTER}"),
    "nodeGPUMemoryPercentage": ((_GRANTED, _GRANTABLE), f"their quotient, {_BY_CLUSTER}"),
    "hami_node_gpu_mig_instance_info": ((_MIG_INFO,), "of instances that were granted"),
    "nodeGPUMigInstance": ((_MIG_INFO,), "of instances that were granted"),
    "hami_resource_quota_used": (("gputide_quota_used",), _BY_CLUSTER),
    "hami_resource_quota_limit": (("gputide_quota_limit",), _BY_CLUSTER),
    "QuotaUsed": (("gputide_quota_used", "gputide_quota_limit"), _BY_CLUSTER),
    "vGPUPodsDeviceAllocated": ((_SLICE_BYTES,), f"{_BY_CLUSTER}; gone there since v2.8"),
    "vGPUMemoryPercentage": ((_SLICE_BYTES, _GRANTABLE), f"their quotient, {_BY_CLUSTER}; gone there since v2.8"),
    "vGPUCorePercentage": ((_SLICE_COMPUTE,), f"{_BY_CLUSTER}; gone there since v2.8"),
}
"""What `--compat` does not show: families of ours that hold it, and what is to be said of it."""

_NAMED_BEFORE = "`gpu_sharing_gpu_…` before"
_KAI: Mapping[str, tuple[tuple[str, ...], str]] = {
    "gpu_fractioning_gpu_memory_used_bytes": ((slice_series(Measure.FRAMEBUFFER_USED),), _NAMED_BEFORE),
    "gpu_fractioning_gpu_sm_utilization_percent": ((slice_series(Measure.DUTY_CYCLE),), _NAMED_BEFORE),
    "gpu_fractioning_gpu_sm_utilization_percent_normalized": (
        (slice_series(Measure.DUTY_CYCLE), _SLICE_BYTES),
        "their quotient, with the limit where the pod has one, at most 100 %",
    ),
}
_HOST = "of the host and not of its cards: Prometheus' node_exporter shows it"
_OPT_IN = "where `exporter.processes_max` is above 0"
_NVITOP: Mapping[str, tuple[tuple[str, ...], str]] = {
    "nvitop_info": (("gputide_driver_info",), ""),
    **{
        f"host_{name}": ((), _HOST)
        for name in (
            "uptime_Second", "cpu_percent_Percentage", "virtual_memory_total_MiB", "virtual_memory_used_MiB",
            "virtual_memory_free_MiB", "virtual_memory_percent_Percentage", "swap_memory_total_MiB",
            "swap_memory_used_MiB", "swap_memory_free_MiB", "swap_memory_percent_Percentage",
            "load_average_1m_Percentage", "load_average_5m_Percentage", "load_average_15m_Percentage",
            "net_io_tx_data_MiB", "net_io_rx_data_MiB", "net_io_tx_packets_Packet", "net_io_rx_packets_Packet",
            "disk_io_read_data_MiB", "disk_io_write_data_MiB", "disk_usage_total_MiB", "disk_usage_used_MiB",
            "disk_usage_free_MiB", "disk_usage_percent_Percentage",
        )
    },
    "gpu_utilization_Percentage": (("gputide_card_duty_cycle_ratio",), ""),
    "gpu_memory_utilization_Percentage": (("gputide_card_memory_copy_ratio",), ""),
    "gpu_encoder_utilization_Percentage": (("gputide_card_encoder_ratio",), ""),
    "gpu_decoder_utilization_Percentage": (("gputide_card_decoder_ratio",), ""),
    "gpu_memory_total_MiB": (("gputide_card_framebuffer_capacity_bytes",), ""),
    "gpu_memory_used_MiB": (("gputide_card_framebuffer_used_bytes",), ""),
    "gpu_memory_free_MiB": (("gputide_card_framebuffer_free_bytes",), ""),
    "gpu_memory_percent_Percentage": (
        ("gputide_card_framebuffer_used_bytes", "gputide_card_framebuffer_capacity_bytes"), "their quotient",
    ),
    "gpu_clock_sm_MHz": (("gputide_card_sm_clock_hertz",), ""),
    "gpu_clock_memory_MHz": (("gputide_card_memory_clock_hertz",), ""),
    "gpu_clock_graphics_MHz": (("gputide_card_graphics_clock_hertz",), ""),
    "gpu_clock_video_MHz": (("gputide_card_video_clock_hertz",), ""),
    "gpu_power_usage_W": (("gputide_card_power_watts",), ""),
    "gpu_power_limit_W": (("gputide_card_power_limit_watts",), ""),
    "gpu_temperature_C": (("gputide_card_temperature_celsius",), ""),
    "gpu_fan_speed_Percentage": ((), "fans are not read: cards of data centres have none"),
    "gpu_pcie_tx_throughput_MiBps": (("gputide_card_pcie_transmit_bytes_per_second",), ""),
    "gpu_pcie_rx_throughput_MiBps": (("gputide_card_pcie_receive_bytes_per_second",), ""),
    "gpu_nvlink_total_tx_throughput_MiBps": (("gputide_card_nvlink_transmit_bytes_per_second",), ""),
    "gpu_nvlink_total_rx_throughput_MiBps": (("gputide_card_nvlink_receive_bytes_per_second",), ""),
    "gpu_nvlink_mean_tx_throughput_MiBps": (("gputide_card_nvlink_transmit_bytes_per_second",), "over all links"),
    "gpu_nvlink_mean_rx_throughput_MiBps": (("gputide_card_nvlink_receive_bytes_per_second",), "over all links"),
    "gpu_nvlink_tx_throughput_MiBps": (("gputide_card_nvlink_transmit_bytes_per_second",), "over all links"),
    "gpu_nvlink_rx_throughput_MiBps": (("gputide_card_nvlink_receive_bytes_per_second",), "over all links"),
    "process_info_info": (
        ("gputide_process_info",), f"{_OPT_IN}; the command line, which may hold passwords, and the user are left out",
    ),
    "process_running_time_Second": (("gputide_process_started_timestamp_seconds",), _OPT_IN),
    "process_cpu_percent_Percentage": (("gputide_process_cpu_seconds_total",), f"its `rate()`, {_OPT_IN}"),
    "process_rss_memory_MiB": (("gputide_process_resident_bytes",), _OPT_IN),
    "process_memory_percent_Percentage": (("gputide_process_resident_bytes",), _OPT_IN),
    "process_gpu_memory_MiB": (("gputide_process_framebuffer_used_bytes",), _OPT_IN),
    "process_gpu_sm_utilization_Percentage": (("gputide_process_duty_cycle_ratio",), _OPT_IN),
    "process_gpu_memory_utilization_Percentage": (("gputide_process_memory_copy_ratio",), _OPT_IN),
    "process_gpu_encoder_utilization_Percentage": (("gputide_process_encoder_ratio",), _OPT_IN),
    "process_gpu_decoder_utilization_Percentage": (("gputide_process_decoder_ratio",), _OPT_IN),
}  # fmt: skip


def peer_names() -> Iterator[PeerName]:
    """Every name, in the order of its exporter."""
    dcgm = [f"DCGM_FI_DEV_{name}" for name in _DCGM.split()]
    dcgm += [f"DCGM_FI_PROF_{name}" for name in _DCGM_PROFILING.split()]
    dcgm += [f"DCGM_EXP_{name}" for name in _DCGM_OWN.split()] + ["DCGM_FI_DRIVER_VERSION"]
    shown = _shown()
    for peer, names in (
        (Peer.DCGM, dcgm),
        (Peer.HAMI_MONITOR, _HAMI_MONITOR.split()),
        (Peer.HAMI_SCHEDULER, _HAMI_SCHEDULER.split()),
    ):
        for name in names:
            if name in shown:
                yield PeerName(peer=peer, name=name, families=shown[name], is_shown=True, remark="")
            else:
                families, remark = _HELD[name]
                yield PeerName(peer=peer, name=name, families=families, is_shown=False, remark=remark)
    for peer, held in ((Peer.KAI, _KAI), (Peer.NVITOP, _NVITOP)):
        for name, (families, remark) in held.items():
            yield PeerName(peer=peer, name=name, families=families, is_shown=False, remark=remark)


def _shown() -> dict[str, tuple[str, ...]]:
    """What `--compat` shows, with the families that hold it."""
    found: dict[str, list[str]] = {}
    for source in NameSource:
        for name in names_of(source):
            if name.measure is not None:
                of_card = name.subject is Subject.CARD
                found.setdefault(name.name, []).append(
                    card_series(name.measure) if of_card else slice_series(name.measure)
                )
            elif name.subject is Subject.GRANT:
                found.setdefault(name.name, []).append(SLICE_INFO)
        for grant_sum in GRANT_SUMS.get(source, ()):
            found.setdefault(grant_sum.name, []).append(SLICE_INFO)
    for figure in SHOWN_FIGURES:
        found.setdefault(figure.name, []).append(figure.family)
    return {name: tuple(families) for name, families in found.items()}
