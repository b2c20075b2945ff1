"""Who may speak for whom: one table of voices, and the one rule by which a series' labels are judged.

The receiver and a scan ask `Provenance.stranger` once per series, before `fleet.series` says what it means. What
Prometheus attaches to a target counts, not what the target writes: `namespace`, and `job` where `namespace` may be the
claim itself. Where the source and the target both have a `namespace`, Prometheus renames the source's
(`exported_namespace`); under `honor_labels: true` the source's own stands, and the target's is lost. Source:
prometheus/prometheus:docs/configuration/configuration.md (`honor_labels`). Standard library only.

| voice | who has it | for whom it may speak |
|---|---|---|
| exporter | metrics of cards, slices, grants, nodes, owners, pods and quotas | everybody, where its target is trusted |
| server | metrics of inference servers, and what rules record of them | the pod that was scraped |

A series with neither `job` nor `instance` was not scraped: a rule, a replay or another program that holds the
receiver's token wrote it. One without a namespace of its target (static targets) is taken: nothing says whose it is.
A scan knows more: `up` carries the labels of the target alone, whatever `honor_labels` says (`Targets`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from fleet.server_series import SERVER_METRICS, SERVER_READINGS, recorded_name

OWN_NAMESPACES = ("gputide", "gputide-nodes")
"""Namespaces of gputide's own exporters, as the chart calls them."""
TRUSTED_NAMESPACES = (
    "kube-*", "openshift-*", "gke-managed-system", "gmp-system", "gpu-operator", "gpu-operator-resources",
    "nvidia-gpu-operator", "gpu-monitoring", "monitoring", "prometheus", "prometheus-operator", "observability",
    "cattle-monitoring-system",
    "kubesphere-monitoring-system", "amazon-cloudwatch", "hami", "hami-system", "volcano-system", "volcano-monitoring",
    "kai-scheduler", "gpu-fractioning", "runai", "npu-exporter", "mindx-dl",
)  # fmt: skip
"""Namespaces in which the usual installations put exporters, and in which no tenant runs pods."""
TRUSTED_JOBS = (
    "*gpu*", "*nvidia*", "*dcgm*", "*hami*", "*volcano*", "*kube-state-metrics*", "ksm*", "*fractioning*",
    "npu-exporter*", "*exporter*", "node*", "integrations/*dcgm*", "integrations/kubernetes/*",
)  # fmt: skip
"""Names of jobs by which exporters are usually scraped under `honor_labels: true`, or by their address. A tenant that
may name a job gains by it to say, where `up` is not known, that its own pod is on cards, and what they do."""

_SERVER_NAMES = frozenset({*SERVER_METRICS, *map(recorded_name, SERVER_READINGS)})
_RENAMED = ("exported_namespace", "exported_pod", "pod_namespace", "podnamespace", "podname", "podName")
"""Labels beside which `namespace` is no claim: the source writes its own elsewhere."""
_OF_NAMESPACE = frozenset({"kube_replicaset_owner", "kube_job_owner", "gputide_quota_info"})
"""Metrics that name a namespace and no pod."""
_OF_NO_POD = (
    "gputide_card_", "gputide_node_", "kube_node_", "hami_host_", "hami_gpu_", "GPUDevice", "HostGPU", "HostCore",
    "hw_", "volcano_vgpu_device_memory_limit",
)  # fmt: skip
"""Beginnings of metrics of cards and nodes, which name neither: labels of a pod are those of the target."""
_OLD_NAMESPACE, _OLD_POD = "kubernetes_namespace", "kubernetes_pod_name"
"""What older examples of Prometheus' configuration call a target's namespace and pod."""
TARGET_NAMESPACES = ("namespace", _OLD_NAMESPACE)
"""Labels in which Prometheus has a target's namespace."""

JUDGED_LABELS = ("job", "instance", "namespace", "pod", "pod_name", _OLD_NAMESPACE, _OLD_POD, *_RENAMED)
"""All labels that `Provenance.stranger` and `target_of` look at."""
UP = "up"
"""Metric that Prometheus writes of every target."""
Targets = Mapping[tuple[str, str], frozenset[str]]
"""Namespaces of targets by job and instance, as their `up` says; an empty text where it says none."""
NO_TARGETS: Targets = MappingProxyType({})


@dataclass(frozen=True, slots=True, order=True)
class Stranger:
    """A target that spoke for others and may not; empty for what its labels don't say."""

    namespace: str
    job: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """Which targets may speak for others.

    Attributes:
        namespaces: namespaces whose pods are trusted; `*` stands for any letters (`provenance.namespaces` and
            `provenance.own_namespaces`).
        jobs: jobs that are trusted where labels don't say the target's namespace; `*` stands for any letters but `/`
            (`provenance.jobs`).
    """

    namespaces: tuple[str, ...] = (*OWN_NAMESPACES, *TRUSTED_NAMESPACES)
    jobs: tuple[str, ...] = TRUSTED_JOBS
    _namespace: re.Pattern[str] = field(init=False, repr=False, compare=False)
    _job: re.Pattern[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_namespace", _pattern(self.namespaces))
        object.__setattr__(self, "_job", _pattern(self.jobs))

    def stranger(self, name: str, labels: Mapping[str, str], targets: Targets = NO_TARGETS) -> Stranger | None:
        """Who wrote a series that they may not write; None where they may.

        Args:
            name: of the metric.
            labels: as Prometheus stores them.
            targets: where targets are, as far as that is known.
        """
        namespace, of_target = labels.get("namespace", ""), labels.get(_OLD_NAMESPACE, "")
        job = labels.get("job", "")
        if name in _SERVER_NAMES:
            own = (namespace, labels.get("pod", ""))
            is_own = own == (of_target or own[0], labels.get(_OLD_POD) or own[1])
            return None if is_own else Stranger(of_target or namespace, job)
        if of_target and not self._trusts_namespace(of_target):
            return Stranger(of_target, job)
        if not namespace or self._trusts_namespace(namespace):
            return None
        if not _may_be_claim(name, labels):
            return Stranger(namespace, job)
        known = targets.get((job, labels.get("instance", "")))
        if known is None:
            return None if self._trusts_job(job, labels) else Stranger(namespace, job)
        # Of its own namespace a target speaks for itself; of another one under honor_labels: true, if it may.
        if namespace in known or not known:
            return Stranger(namespace, job)
        is_trusted = any(not one or self._trusts_namespace(one) for one in known)
        return None if is_trusted else Stranger(min(known), job)

    def _trusts_namespace(self, namespace: str) -> bool:
        return self._namespace.fullmatch(namespace) is not None

    def _trusts_job(self, job: str, labels: Mapping[str, str]) -> bool:
        if not job:
            return not labels.get("instance")
        # The Prometheus operator calls the job of a PodMonitor by the monitor's namespace and name, and that of a
        # ScrapeConfig likewise, behind a word.
        of_monitor, _, monitor = job.removeprefix("scrapeConfig/").partition("/")
        return self._job.fullmatch(job) is not None or (bool(monitor) and self._trusts_namespace(of_monitor))


def target_namespace(labels: Mapping[str, str]) -> str:
    """The namespace of a target, as its `up` says it; empty where it does not."""
    return labels.get("namespace") or labels.get(_OLD_NAMESPACE) or ""


def target_of(labels: Mapping[str, str]) -> tuple[tuple[str, str], str]:
    """A target by job and instance, as `Targets` names it, and its namespace, of the labels of its `up`."""
    return (labels.get("job", ""), labels.get("instance", "")), target_namespace(labels)


def _may_be_claim(name: str, labels: Mapping[str, str]) -> bool:
    """Whether `namespace` may be what the source says and not where the target is."""
    if name.startswith(_OF_NO_POD):
        return False
    for label in _RENAMED:
        # A copy of the label itself, as some relabelling makes it, says nothing.
        if labels.get(label) and labels[label] != labels.get("namespace" if "namespace" in label else "pod"):
            return False
    return name in _OF_NAMESPACE or bool(labels.get("pod") or labels.get("pod_name"))


def _pattern(patterns: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(re.escape(one).replace(r"\*", "[^/]*") for one in patterns) or r"(?!)")
