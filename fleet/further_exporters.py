"""Metrics of exporters beside dcgm-exporter and HAMi's: KAI's GPU fractioning, AMD's, Ascend's and OpenTelemetry's.

Data for the alias table of `fleet.series`, which asks for it once, and the form in which it says where labels stand.
Where an administrator gave these metrics other names they stay unknown. Standard library only.

Sources: kai-scheduler/kai-gpu-fractioning:fractioning-manager/metricsd/internal/metrics/exporter.go (a pod's sum over
processes of NVML's utilisation, at most 100), ROCm/device-metrics-exporter:docs/configuration/metricslist.md (units,
partitions), opentelemetry.io/docs/specs/semconv/hardware (names, units, `hw.gpu.task`),
Ascend/mind-cluster:component/npu-exporter/collector (units, labels; HAMi names a chip by the same `vdie_id`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from fleet.schema import Measure

_MIB = float(1024 * 1024)
_PERCENT = 0.01
_UNPARTITIONED = ("", "na", "none", "spx")
_AMD_EXPORTER = "metrics-exporter"
_UNIQUE_ID = re.compile(r"GPU-.+|[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelNames:
    """Where a source writes each part of an identity; of several labels the first that is set counts."""

    node: tuple[str, ...] = ()
    card: tuple[str, ...] = ()
    card_model: tuple[str, ...] = ()
    namespace: tuple[str, ...] = ()
    pod: tuple[str, ...] = ()
    container: tuple[str, ...] = ()
    mig_profile: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FurtherMetric:
    """One metric.

    Attributes:
        measure: what it measures; None for the framebuffer that a card has.
        factor: a sample times `factor` is in the measure's unit, or bytes.
        of_slice: it speaks of what a pod does on a card, and else of the card.
    """

    labels: LabelNames
    measure: Measure | None
    factor: float = 1.0
    of_slice: bool = False


EXPORTED_POD = LabelNames(
    namespace=("exported_namespace", "namespace"),
    pod=("exported_pod", "pod"),
    container=("exported_container", "container"),
)
"""Prometheus renames a label of the source to `exported_…` where the scrape's own target has one of that name: then the
plain label names the exporter's own pod, so the exported one comes first everywhere."""

_NODE = ("node", "kubernetes_node")
# Of a pod and not of a container: a label `container` is that of the exporter that was scraped.
_KAI = LabelNames(node=_NODE, card=("gpu_uuid",), namespace=EXPORTED_POD.namespace, pod=EXPORTED_POD.pod)
AMD = LabelNames(
    # The exporter's `hostname` is its own container's name unless it runs in the host's namespace.
    node=(*_NODE, "hostname"),
    card=("gpu_uuid", "serial_number"),
    card_model=("card_series", "card_model"),
    namespace=EXPORTED_POD.namespace,
    pod=EXPORTED_POD.pod,
    container=EXPORTED_POD.container,
)
"""Labels of AMD's exporter, whose series need `is_of_whole_card` and `is_amd_exporter` besides."""
# Of a chip: who is named on one that several share is not documented, so nobody is.
HARDWARE = LabelNames(
    node=(*_NODE, "k8s_node_name", "host_name", "hostname"), card=("hw_id",), card_model=("hw_model", "hw_name")
)
"""Labels of OpenTelemetry's conventions for hardware, whose series need `is_of_gpu` besides. They name no pod: one that
stands there runs the exporter."""
_CHIP = LabelNames(node=_NODE, card=("vdie_id",), card_model=("model_name", "modelName"))
_ON_CHIP = LabelNames(
    node=_NODE, card=_CHIP.card, card_model=_CHIP.card_model, namespace=EXPORTED_POD.namespace, pod=("pod_name",),
    container=("container_name",),
)  # fmt: skip

FURTHER_METRICS: Mapping[str, FurtherMetric] = MappingProxyType(
    {
        # Under the name of its operator and under the one before. `…_normalized` is a share of the grant, cut at 100:
        # no measure of ours.
        **{
            f"{prefix}_gpu_{name}": FurtherMetric(labels=_KAI, measure=measure, factor=factor, of_slice=True)
            for prefix in ("gpu_fractioning", "gpu_sharing")
            for name, measure, factor in (
                ("memory_used_bytes", Measure.FRAMEBUFFER_USED, 1.0),
                ("sm_utilization_percent", Measure.DUTY_CYCLE, _PERCENT),
            )
        },
        "gpu_gfx_activity": FurtherMetric(labels=AMD, measure=Measure.DUTY_CYCLE, factor=_PERCENT),
        "gpu_used_vram": FurtherMetric(labels=AMD, measure=Measure.FRAMEBUFFER_USED, factor=_MIB),
        "gpu_total_vram": FurtherMetric(labels=AMD, measure=None, factor=_MIB),
        "gpu_package_power": FurtherMetric(labels=AMD, measure=Measure.POWER),
        "gpu_junction_temperature": FurtherMetric(labels=AMD, measure=Measure.TEMPERATURE),
        # By the conventions' names alone, and with the units that Prometheus appends.
        **{
            name: FurtherMetric(labels=HARDWARE, measure=measure)
            for base, unit, measure in (
                ("hw_gpu_utilization", "ratio", Measure.DUTY_CYCLE),
                ("hw_gpu_memory_usage", "bytes", Measure.FRAMEBUFFER_USED),
                ("hw_gpu_memory_limit", "bytes", None),
                ("hw_power", "watts", Measure.POWER),
                ("hw_temperature", "celsius", Measure.TEMPERATURE),
            )
            for name in (base, f"{base}_{unit}")
        },
        "npu_chip_info_utilization": FurtherMetric(labels=_CHIP, measure=Measure.DUTY_CYCLE, factor=_PERCENT),
        "npu_chip_info_hbm_used_memory": FurtherMetric(labels=_CHIP, measure=Measure.FRAMEBUFFER_USED, factor=_MIB),
        "npu_chip_info_hbm_total_memory": FurtherMetric(labels=_CHIP, measure=None, factor=_MIB),
        "npu_chip_info_power": FurtherMetric(labels=_CHIP, measure=Measure.POWER),
        "npu_chip_info_temperature": FurtherMetric(labels=_CHIP, measure=Measure.TEMPERATURE),
        # What containers do is reported for whole chips only.
        "container_npu_utilization": FurtherMetric(
            labels=_ON_CHIP, measure=Measure.DUTY_CYCLE, factor=_PERCENT, of_slice=True
        ),
        "container_npu_used_memory": FurtherMetric(
            labels=_ON_CHIP, measure=Measure.FRAMEBUFFER_USED, factor=_MIB, of_slice=True
        ),
    }
)
"""Every such metric by its name."""


def is_of_whole_card(labels: Mapping[str, str]) -> bool:
    """Whether a series of AMD's is of a card that is not partitioned.

    Of a partitioned one the first partition alone says what the whole card does, and the others say 0.
    """
    return labels.get("gpu_compute_partition_type", "").casefold() in _UNPARTITIONED


def is_of_gpu(labels: Mapping[str, str]) -> bool:
    """Whether a series by the conventions for hardware is of a card whose identifier no other card has.

    `hw.id` needs to be unique within its host alone: a number would make one card of those of all hosts. What encoder
    and decoder do has the same name as what the card does, and is left out.
    """
    return (
        labels.get("hw_type") in (None, "", "gpu")
        and labels.get("hw_gpu_task") in (None, "", "general")
        and _UNIQUE_ID.fullmatch(labels.get("hw_id", "")) is not None
    )


def is_amd_exporter(pod: str | None) -> bool:
    """Whether a pod is AMD's exporter itself, whose name a scrape gives to cards that nobody holds."""
    return _AMD_EXPORTER in (pod or "")
