"""What a metric's name and labels mean: gputide's own names, and the one alias table for everybody else's.

The receiver asks `resolve` once per new series, never per sample, and multiplies samples by `factor`. The exporter
names its series by `card_series` and `slice_series`. Standard library only: the node exporter's process loads this
module.

Sources of the table: NVIDIA/dcgm-exporter:etc/default-counters.csv and internal/pkg/transformation/kubernetes.go,
Project-HAMi/HAMi:cmd/scheduler/metrics.go and cmd/vGPUmonitor/metrics.go (names from v2.9 on; the older ones with
`--legacy-metrics`), Project-HAMi/volcano-vgpu-device-plugin:cmd/vgpu-monitor/metrics.go,
volcano-sh/volcano:pkg/scheduler/api/devices/nvidia/vgpu/metrics.go,
kubernetes/kube-state-metrics:docs/metrics/workload/pod-metrics.md; those of inference servers: `fleet.server_series`,
of further exporters: `fleet.further_exporters`.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from fleet.further_exporters import (
    AMD,
    EXPORTED_POD,
    FURTHER_METRICS,
    HARDWARE,
    LabelNames,
    is_amd_exporter,
    is_of_gpu,
    is_of_whole_card,
)
from fleet.object_names import can_own
from fleet.schema import CARD_MEASURES, SLICE_MEASURES, Measure
from fleet.server_series import SERVER_METRICS, SERVER_READINGS, ServerFacts, recorded_name, server_facts

CARD_PREFIX = "gputide_card_"
SLICE_PREFIX = "gputide_slice_"
CARD_INFO = "gputide_card_info"
SLICE_INFO = "gputide_slice_info"
NODE_INFO = "gputide_node_info"
QUOTA_INFO = "gputide_quota_info"
RECORDED_CARD_INFO = "gputide:card:info"
RECORDED_SLICE_INFO = "gputide:slice:info"
RECORDED_NODE_INFO = "gputide:node:info"
"""What the rules of `dashboards.grafana.inventory` record of others' exporters, with labels as ours have them."""

_MIB = float(1024 * 1024)
_PERCENT = 0.01


class Subject(StrEnum):
    """What a series speaks of."""

    CARD = "card"
    """A measure of a whole card; where `identity.pod` is given, the card's only tenant by the source."""
    SLICE = "slice"
    """A measure of what one container does on one card."""
    POD_SERVER = "pod_server"
    """A measure of a pod's inference server; names a pod and no card."""
    SERVER = "server"
    """What an inference server says of its model and its KV cache (`server`); names a pod and no card."""
    CARD_INFO = "card_info"
    SLICE_INFO = "slice_info"
    NODE_INFO = "node_info"
    QUOTA_INFO = "quota_info"
    GRANT = "grant"
    """A fact about what a container was granted on a card, by a scheduler or a limit (`fact`)."""
    CAPACITY = "capacity"
    """A fact about what of a card may be granted (`fact`), oversubscription included."""
    OWNER = "owner"
    """Which object owns which (`owner`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesIdentity:
    """Whom a series speaks of; None for what its labels don't say.

    Attributes:
        card_model: model as the driver prints it.
        mig_profile: profile of the MIG instance that the series speaks of; its ratios are of the instance, not of the
            card.
    """

    cluster: str | None = None
    node: str | None = None
    card: str | None = None
    card_model: str | None = None
    namespace: str | None = None
    pod: str | None = None
    container: str | None = None
    mig_profile: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerLink:
    """One link from an object to its owner, in the namespace of the series.

    Attributes:
        kind: kind of the owned object: Pod, ReplicaSet or Job.
    """

    kind: str
    name: str
    owner_kind: str
    owner_name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesMeaning:
    """What one series means.

    Attributes:
        identity: whom it speaks of.
        measure: the measure, for CARD, SLICE and POD_SERVER; None for others.
        fact: for GRANT and CAPACITY, the field that the value gives: `framebuffer_granted_bytes`,
            `compute_granted_ratio`, `framebuffer_capacity_bytes`; for SERVER the column of `server` that the value
            gives, where labels don't say all; None for others.
        factor: what a sample is multiplied by to be in the unit of its measure or fact.
        value_max: values above it (after `factor`) are known to occur in this source and mean it; None where none are.
        owner: the link, for OWNER; None for others.
        server: what its labels say, for SERVER; None for others.
    """

    subject: Subject
    identity: SeriesIdentity
    measure: Measure | None = None
    fact: str | None = None
    factor: float = 1.0
    value_max: float | None = None
    owner: OwnerLink | None = None
    server: ServerFacts | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NameMeaning:
    """What one metric's name means, whatever its labels.

    Attributes:
        measure: the measure; None for facts, sightings and owners.
        factor: see `SeriesMeaning.factor`.
        value_max: see `SeriesMeaning.value_max`.
        family: names of one family, with the same labels otherwise, speak of the same.
    """

    measure: Measure | None
    factor: float
    value_max: float | None
    family: Hashable


@dataclass(frozen=True, slots=True, kw_only=True)
class _Alias:
    subject: Subject
    labels: LabelNames
    measure: Measure | None = None
    fact: str | None = None
    factor: float = 1.0
    value_max: float | None = None
    of_mig_only: bool = False
    """Counts for series of MIG instances only."""
    per_process: bool = False
    """dcgm-exporter's per-process mode makes this one per pod."""


_OWN = LabelNames(
    node=("exported_node", "node"),
    card=("card",),
    card_model=("card_model",),
    namespace=EXPORTED_POD.namespace,
    pod=EXPORTED_POD.pod,
    container=EXPORTED_POD.container,
    mig_profile=("mig_profile",),
)
_DCGM = LabelNames(
    # Hostname is the node's name where the exporter knows it, else its own container's; a label that the scrape adds
    # is surer.
    node=("node", "kubernetes_node", "Hostname", "hostname"),
    card=("UUID",),
    card_model=("modelName",),
    namespace=("exported_namespace", "pod_namespace", "namespace"),
    pod=("exported_pod", "pod_name", "pod"),
    container=("exported_container", "container_name", "container"),
    mig_profile=("GPU_I_PROFILE",),
)
_HAMI = LabelNames(
    node=("exported_node", "node"),
    card=("device_uuid",),
    card_model=("device_type",),
    namespace=EXPORTED_POD.namespace,
    pod=EXPORTED_POD.pod,
    container=EXPORTED_POD.container,
)
_HAMI_LEGACY = LabelNames(
    node=("nodeid", "nodename", "exported_node", "node", "kubernetes_node"),
    card=("deviceuuid",),
    card_model=("devicetype",),
    namespace=("podnamespace",),
    pod=("podname",),
    container=("ctrname",),
)
_VOLCANO = LabelNames(node=("NodeName",), card=("devID",), pod=("podName",))
# A rule's series has no `exported_…`; with labels of a target it was scraped, and anybody may write that.
_RECORDED = LabelNames(
    node=("node",), card=("card",), card_model=("card_model",), namespace=("namespace",), pod=("pod",),
    container=("container",), mig_profile=("mig_profile",),
)  # fmt: skip
_TARGET_LABEL = "instance"
# A server is no exporter: it speaks for the pod that was scraped, and `exported_…` is what it claims itself.
_SERVER = LabelNames(node=("node", "kubernetes_node"), namespace=("namespace",), pod=("pod",), container=("container",))


def _card(labels: LabelNames, measure: Measure, factor: float = 1.0, value_max: float | None = None) -> _Alias:
    return _Alias(subject=Subject.CARD, labels=labels, measure=measure, factor=factor, value_max=value_max)


def _slice(labels: LabelNames, measure: Measure, factor: float = 1.0, value_max: float | None = None) -> _Alias:
    return _Alias(subject=Subject.SLICE, labels=labels, measure=measure, factor=factor, value_max=value_max)


def _fact(subject: Subject, labels: LabelNames, fact: str, factor: float = 1.0) -> _Alias:
    return _Alias(subject=subject, labels=labels, fact=fact, factor=factor)


_GRANTED_BYTES = "framebuffer_granted_bytes"
_GRANTED_RATIO = "compute_granted_ratio"
_CAPACITY_BYTES = "framebuffer_capacity_bytes"

_ALIASES: Mapping[str, _Alias] = MappingProxyType(
    {
        # dcgm-exporter. Left out on purpose: MEM_COPY_UTIL (another thing than DRAM active), counters (energy), and
        # values of the last event.
        "DCGM_FI_DEV_GPU_UTIL": _Alias(
            subject=Subject.CARD, labels=_DCGM, measure=Measure.DUTY_CYCLE, factor=_PERCENT, per_process=True
        ),
        # The same share of time, but it exists under MIG, where GPU_UTIL does not; elsewhere it would count twice.
        "DCGM_FI_PROF_GR_ENGINE_ACTIVE": _Alias(
            subject=Subject.CARD, labels=_DCGM, measure=Measure.DUTY_CYCLE, of_mig_only=True
        ),
        "DCGM_FI_PROF_SM_ACTIVE": _card(_DCGM, Measure.SM_ACTIVE),
        "DCGM_FI_PROF_DRAM_ACTIVE": _card(_DCGM, Measure.MEMORY_ACTIVE),
        "DCGM_FI_DEV_ENC_UTIL": _card(_DCGM, Measure.ENCODER, _PERCENT),
        "DCGM_FI_DEV_DEC_UTIL": _card(_DCGM, Measure.DECODER, _PERCENT),
        "DCGM_FI_DEV_FB_USED": _Alias(
            subject=Subject.CARD, labels=_DCGM, measure=Measure.FRAMEBUFFER_USED, factor=_MIB, per_process=True
        ),
        "DCGM_FI_DEV_POWER_USAGE": _card(_DCGM, Measure.POWER),
        "DCGM_FI_DEV_GPU_TEMP": _card(_DCGM, Measure.TEMPERATURE),
        # HAMi, node monitor. `_ratio` is a percentage there; a container's is a sum over processes that can pass 100.
        # hami_container_device_memory_bytes repeats hami_vgpu_memory_used_bytes and would count twice.
        "hami_host_gpu_memory_used_bytes": _card(_HAMI, Measure.FRAMEBUFFER_USED),
        "hami_host_gpu_utilization_ratio": _card(_HAMI, Measure.DUTY_CYCLE, _PERCENT),
        "hami_host_gpu_temperature_celsius": _card(_HAMI, Measure.TEMPERATURE),
        "hami_host_gpu_power_usage_watts": _card(_HAMI, Measure.POWER),
        "hami_vgpu_memory_used_bytes": _slice(_HAMI, Measure.FRAMEBUFFER_USED),
        "hami_container_device_utilization_ratio": _slice(_HAMI, Measure.DUTY_CYCLE, _PERCENT, 1.0),
        "hami_vgpu_memory_limit_bytes": _fact(Subject.GRANT, _HAMI, _GRANTED_BYTES),
        "HostGPUMemoryUsage": _card(_HAMI_LEGACY, Measure.FRAMEBUFFER_USED),
        "HostCoreUtilization": _card(_HAMI_LEGACY, Measure.DUTY_CYCLE, _PERCENT),
        "vGPU_device_memory_usage_in_bytes": _slice(_HAMI_LEGACY, Measure.FRAMEBUFFER_USED),
        "Device_utilization_desc_of_container": _slice(_HAMI_LEGACY, Measure.DUTY_CYCLE, _PERCENT, 1.0),
        "vGPU_device_memory_limit_in_bytes": _fact(Subject.GRANT, _HAMI_LEGACY, _GRANTED_BYTES),
        # HAMi, scheduler.
        "hami_vgpu_memory_allocated_bytes": _fact(Subject.GRANT, _HAMI, _GRANTED_BYTES),
        "hami_vgpu_core_allocated_ratio": _fact(Subject.GRANT, _HAMI, _GRANTED_RATIO, _PERCENT),
        "hami_gpu_memory_limit_bytes": _fact(Subject.CAPACITY, _HAMI, _CAPACITY_BYTES),
        "vGPUMemoryAllocated": _fact(Subject.GRANT, _HAMI_LEGACY, _GRANTED_BYTES),
        "vGPUCoreAllocated": _fact(Subject.GRANT, _HAMI_LEGACY, _GRANTED_RATIO, _PERCENT),
        "GPUDeviceMemoryLimit": _fact(Subject.CAPACITY, _HAMI_LEGACY, _CAPACITY_BYTES),
        # Volcano, scheduler; its node monitor writes HAMi's old names.
        "volcano_vgpu_device_memory_allocation_for_a_certain_pod": _fact(Subject.GRANT, _VOLCANO, _GRANTED_BYTES, _MIB),
        "volcano_vgpu_device_core_allocation_for_a_certain_pod": _fact(
            Subject.GRANT, _VOLCANO, _GRANTED_RATIO, _PERCENT
        ),
        "volcano_vgpu_device_memory_limit": _fact(Subject.CAPACITY, _VOLCANO, _CAPACITY_BYTES, _MIB),
        **{
            name: _Alias(
                subject=Subject.CAPACITY
                if metric.measure is None
                else Subject.SLICE
                if metric.of_slice
                else Subject.CARD,
                labels=metric.labels,
                measure=metric.measure,
                fact=_CAPACITY_BYTES if metric.measure is None else None,
                factor=metric.factor,
            )
            for name, metric in FURTHER_METRICS.items()
        },
        **{
            name: _Alias(
                subject=Subject.SERVER if metric.measure is None else Subject.POD_SERVER,
                labels=_SERVER,
                measure=metric.measure,
                factor=metric.factor,
            )
            for name, metric in SERVER_METRICS.items()
        },
        # What Prometheus records of servers' counters.
        **{
            recorded_name(measure): _Alias(subject=Subject.POD_SERVER, labels=_SERVER, measure=measure)
            for measure in SERVER_READINGS
        },
        # Our own.
        **{f"{CARD_PREFIX}{column.measure.value}": _card(_OWN, column.measure) for column in CARD_MEASURES},
        **{f"{SLICE_PREFIX}{column.measure.value}": _slice(_OWN, column.measure) for column in SLICE_MEASURES},
        CARD_INFO: _Alias(subject=Subject.CARD_INFO, labels=_OWN),
        SLICE_INFO: _Alias(subject=Subject.SLICE_INFO, labels=_OWN),
        NODE_INFO: _Alias(subject=Subject.NODE_INFO, labels=_OWN),
        QUOTA_INFO: _Alias(subject=Subject.QUOTA_INFO, labels=_OWN),
        RECORDED_CARD_INFO: _Alias(subject=Subject.CARD_INFO, labels=_RECORDED),
        RECORDED_SLICE_INFO: _Alias(subject=Subject.SLICE_INFO, labels=_RECORDED),
        RECORDED_NODE_INFO: _Alias(subject=Subject.NODE_INFO, labels=_RECORDED),
    }
)

# kube-state-metrics: name → kind of the owned object, and the labels that name it.
_OWNER_SERIES: Mapping[str, tuple[str, tuple[str, ...]]] = MappingProxyType(
    {
        "kube_pod_owner": ("Pod", ("exported_pod", "pod")),
        "kube_replicaset_owner": ("ReplicaSet", ("replicaset",)),
        "kube_job_owner": ("Job", ("exported_job_name", "job_name")),
    }
)

PRIORITY_REQUEST = "nvidia_com_priority"
"""HAMi's resource for a container's priority, as kube-state-metrics writes it: 0 is high, every other number low."""

_CARD_SUBJECTS = frozenset(
    {Subject.CARD, Subject.SLICE, Subject.CARD_INFO, Subject.SLICE_INFO, Subject.GRANT, Subject.CAPACITY}
)
_POD_SUBJECTS = frozenset({Subject.SLICE, Subject.SLICE_INFO, Subject.POD_SERVER, Subject.SERVER})
# What the scrape's own target is called where an exporter leaves a card without a pod and Prometheus fills the gap with
# the exporter's.
_EXPORTER_PODS = ("dcgm-exporter", "nvidia-dcgm-exporter")


def card_series(measure: Measure) -> str:
    """The name under which gputide exposes a measure of a card."""
    return f"{CARD_PREFIX}{measure.value}"


def slice_series(measure: Measure) -> str:
    """The name under which gputide exposes a measure of a slice."""
    return f"{SLICE_PREFIX}{measure.value}"


def kube_label(prefix: str, name: str) -> str:
    """A label's or annotation's name as kube-state-metrics writes it: what a label can't have is an underscore."""
    return prefix + "".join(letter if letter.isalnum() else "_" for letter in name)


def known_names() -> tuple[str, ...]:
    """Every metric name that can mean something, sorted."""
    return tuple(sorted((*_ALIASES, *_OWNER_SERIES)))


def meaning_of_name(name: str) -> NameMeaning | None:
    """What a name means by itself; None for one that is none of ours.

    `resolve` finds the same measure, factor and bound for it, and the same subject and identity as for any other name
    of the family, so that a caller with many series asks it once per family and labels.
    """
    if name in _OWNER_SERIES:
        return NameMeaning(measure=None, factor=1.0, value_max=None, family=name)
    alias = _ALIASES.get(name)
    if alias is None:
        return None
    family = (alias.subject, alias.labels, alias.of_mig_only, alias.per_process)
    return NameMeaning(measure=alias.measure, factor=alias.factor, value_max=alias.value_max, family=family)


def resolve(name: str, labels: Mapping[str, str]) -> SeriesMeaning | None:
    """What a series means, by its name and labels; an empty label is as good as none.

    A dcgm-exporter series with pod labels is the card's truth and, as one pod holds the card, the slice's too: the
    subject is CARD and the identity names the pod. With virtual GPUs (`vgpu` label) every sharing pod repeats the
    card's value, so the pod is left out; only the two metrics of the per-process mode (`pod_uid` beside it) are a
    slice's own.

    Args:
        labels: its labels, with or without `__name__`.

    Returns:
        The meaning; None for a name that is none of ours, or labels that don't say whom it speaks of.
    """
    if name in _OWNER_SERIES:
        return _owner(name, labels)
    alias = _ALIASES.get(name)
    if alias is None:
        return None
    is_scraped = alias.labels is _RECORDED and bool(labels.get(_TARGET_LABEL))
    if is_scraped or (alias.labels is HARDWARE and not is_of_gpu(labels)):
        return None
    identity = _identity(alias.labels, labels)
    subject = alias.subject
    if alias.labels in (_DCGM, AMD):
        decided = (_dcgm if alias.labels is _DCGM else _amd)(alias, identity, labels)
        if decided is None:
            return None
        subject, identity = decided
    if subject in _CARD_SUBJECTS and identity.card is None:
        return None
    if subject in _POD_SUBJECTS and identity.pod is None:
        return None
    if subject is Subject.NODE_INFO and identity.node is None:
        return None
    return SeriesMeaning(
        subject=subject,
        identity=identity,
        measure=alias.measure,
        fact=SERVER_METRICS[name].fact_of(labels) if subject is Subject.SERVER else alias.fact,
        factor=alias.factor,
        value_max=alias.value_max,
        server=server_facts(name, labels) if subject is Subject.SERVER else None,
    )


def _dcgm(alias: _Alias, identity: SeriesIdentity, labels: Mapping[str, str]) -> tuple[Subject, SeriesIdentity] | None:
    if _is_exporter(identity):
        identity = _without_pod(identity)
    if labels.get("GPU_I_ID") or identity.mig_profile:
        # What an instance does is its tenant's slice; without a tenant it says nothing of the whole card.
        return (Subject.SLICE, identity) if identity.pod is not None else None
    if alias.of_mig_only:
        return None
    if labels.get("vgpu"):
        if alias.per_process and labels.get("pod_uid") and identity.pod is not None:
            return Subject.SLICE, identity
        return Subject.CARD, _without_pod(identity)
    return Subject.CARD, identity


def _amd(alias: _Alias, identity: SeriesIdentity, labels: Mapping[str, str]) -> tuple[Subject, SeriesIdentity] | None:
    if not is_of_whole_card(labels):
        return None
    return alias.subject, _without_pod(identity) if is_amd_exporter(identity.pod) else identity


def _identity(names: LabelNames, labels: Mapping[str, str]) -> SeriesIdentity:
    model = _first(labels, names.card_model)
    if model is not None and names in (_HAMI, _HAMI_LEGACY):
        # HAMi writes the vendor before the model: "NVIDIA-NVIDIA A10", "NVIDIA-Tesla T4".
        model = model.removeprefix("NVIDIA-")
    return SeriesIdentity(
        cluster=_first(labels, ("cluster",)),
        node=_first(labels, names.node),
        card=_first(labels, names.card),
        card_model=model,
        namespace=_first(labels, names.namespace),
        pod=_first(labels, names.pod),
        container=_first(labels, names.container),
        mig_profile=_first(labels, names.mig_profile),
    )


def _first(labels: Mapping[str, str], names: tuple[str, ...]) -> str | None:
    for name in names:
        value = labels.get(name)
        if value:
            return value
    return None


def _is_exporter(identity: SeriesIdentity) -> bool:
    return identity.pod is not None and identity.pod.startswith(_EXPORTER_PODS)


def _without_pod(identity: SeriesIdentity) -> SeriesIdentity:
    return SeriesIdentity(
        cluster=identity.cluster,
        node=identity.node,
        card=identity.card,
        card_model=identity.card_model,
        mig_profile=identity.mig_profile,
    )


def _owner(name: str, labels: Mapping[str, str]) -> SeriesMeaning | None:
    kind, name_labels = _OWNER_SERIES[name]
    owned = _first(labels, name_labels)
    namespace = _first(labels, ("exported_namespace", "namespace"))
    owner_kind, owner_name = labels.get("owner_kind"), labels.get("owner_name")
    # kube-state-metrics writes "<none>" for an object that nobody owns, which is no name either.
    if not (owned and namespace and owner_kind and owner_name and can_own(owner_kind, owner_name)):
        return None
    identity = SeriesIdentity(
        cluster=_first(labels, ("cluster",)), namespace=namespace, pod=owned if kind == "Pod" else None
    )
    link = OwnerLink(kind=kind, name=owned, owner_kind=owner_kind, owner_name=owner_name)
    return SeriesMeaning(subject=Subject.OWNER, identity=identity, owner=link)
