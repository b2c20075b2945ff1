"""What several checks of a Prometheus look at, asked for once: names of metrics, series of cards, pods with cards.

Called by `prometheus`, `prometheus_labels` and `prometheus_values`.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from fleet.provenance import UP, Targets, target_namespace
from fleet.schema import Measure
from fleet.series import known_names, meaning_of_name, resolve
from fleet.settings.scan import ScanSettings
from gputide.scanning.queries import checked_matchers
from wire.prometheus_query import PrometheusQuery, Sample

NOW_SECONDS = 3600.0
"""A metric counts as there while it has had a sample in this time."""

CARD_NAMES = (
    "DCGM_FI_DEV_FB_USED",
    "DCGM_FI_DEV_GPU_UTIL",
    "DCGM_FI_PROF_GR_ENGINE_ACTIVE",
    "DCGM_FI_PROF_SM_ACTIVE",
    "DCGM_FI_DEV_POWER_USAGE",
    "DCGM_FI_DEV_GPU_TEMP",
)
"""Metrics of dcgm-exporter; the first that is there stands for its labels."""
OTHER_CARD_NAMES = (
    "gputide_card_framebuffer_used_bytes",
    "hami_host_gpu_memory_used_bytes",
    "HostGPUMemoryUsage",
)
"""Metrics of cards by others."""
SLICE_NAMES = (
    "gputide_slice_framebuffer_used_bytes",
    "hami_vgpu_memory_used_bytes",
    "vGPU_device_memory_usage_in_bytes",
)
"""Metrics of what a container does on a card."""
OF_CARDS = 'resource=~"nvidia_com_gpu|nvidia_com_gpu_shared|nvidia_com_mig_.+|volcano_sh_vgpu_number"'
"""Matcher of resources that count cards, as kube-state-metrics writes their names."""
REQUESTS, ALLOCATABLE = "kube_pod_container_resource_requests", "kube_node_status_allocatable"
NODES = ("node", "kubernetes_node", "Hostname", "hostname")
"""Labels of dcgm-exporter's series that say the node, the surest first."""
_PODS = ("exported_pod", "pod_name", "pod")
_NAMESPACES = ("exported_namespace", "pod_namespace", "namespace")
_EXPORTER_NAME = re.compile(r"dcgm-exporter", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A series of a card, and whom it speaks of.

    Attributes:
        labels: as they are stored.
        node: name of the node, as far as the labels say it; empty where they don't.
        pod: namespace and name of the pod, as the exporter wrote them; None where there is none.
        card_model: name of the model; empty where unknown.
    """

    labels: Mapping[str, str]
    value: float
    card: str
    node: str
    pod: tuple[str, str] | None
    card_model: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """A running pod that asks for cards.

    Attributes:
        node: its node; empty where nobody says.
        cards: how many it asks for, slices among them.
    """

    node: str
    cards: float


class Scene:
    """What a server has, as far as checks share it.

    Each part is asked for at its first use. Two checks that ask at once may both ask; their answers are the same.
    """

    def __init__(self, ask: PrometheusQuery, settings: ScanSettings) -> None:
        self.ask = ask
        self.settings = settings

    @cached_property
    def names(self) -> frozenset[str]:
        """Names of metrics with samples within `NOW_SECONDS`."""
        return self.names_since(NOW_SECONDS)

    def names_since(self, seconds: float) -> frozenset[str]:
        """Names of metrics with samples within so many seconds before now."""
        now, matchers = time.time(), checked_matchers(self.settings)
        selector = "{" + ",".join(('__name__=~".+"', *matchers)) + "}" if matchers else None
        found = self.ask.label_values("__name__", selector=selector, since_seconds=now - seconds, until_seconds=now)
        return frozenset(found)

    def has(self, *names: str) -> bool:
        """Whether any of these metrics is there."""
        return any(name in self.names for name in names)

    @property
    def measures(self) -> Mapping[Measure, tuple[str, ...]]:
        """What is measured of cards or slices, and by which metrics."""
        found: dict[Measure, tuple[str, ...]] = {}
        for name in known_names():
            meaning = meaning_of_name(name)
            if name in self.names and meaning is not None and meaning.measure is not None:
                found[meaning.measure] = (*found.get(meaning.measure, ()), name)
        return found

    @property
    def base(self) -> str | None:
        """The metric of dcgm-exporter whose labels are looked at; None where it is not there."""
        return next((name for name in CARD_NAMES if name in self.names), None)

    @cached_property
    def cards(self) -> tuple[Seen, ...]:
        """Series of cards of dcgm-exporter."""
        return () if self.base is None else self.seen(self.base)

    def seen(self, name: str, query: str = "{}") -> tuple[Seen, ...]:
        """Series of a metric of cards or slices, without those that can't be recognised.

        Args:
            query: around the selector, which stands for the braces.
        """
        if name not in self.names:
            return ()
        seen = [
            seen_in(name, reading.labels, reading.value)
            for reading in self.ask.vector(query.format(self.ask.selector(name)))
        ]
        return tuple(one for one in seen if one is not None)

    @cached_property
    def slices(self) -> tuple[Seen, ...]:
        """Series of slices, by anybody who reports them."""
        return tuple(seen for name in SLICE_NAMES for seen in self.seen(name))

    @cached_property
    def other_cards(self) -> tuple[Seen, ...]:
        """Series of cards of others than dcgm-exporter."""
        return tuple(seen for name in OTHER_CARD_NAMES for seen in self.seen(name))

    @cached_property
    def targets(self) -> Targets:
        """Namespaces of targets by job and instance."""
        found: dict[tuple[str, str], frozenset[str]] = {}
        for reading in self.ask.vector(self.ask.selector(UP)) if self.has(UP) else ():
            target = reading.labels.get("job", ""), reading.labels.get("instance", "")
            found[target] = found.get(target, frozenset()) | {target_namespace(reading.labels)}
        return found

    @cached_property
    def pods(self) -> tuple[Sample, ...]:
        """The series of `kube_pod_info`."""
        return self.ask.vector(self.ask.selector("kube_pod_info")) if self.has("kube_pod_info") else ()

    @cached_property
    def holders(self) -> Mapping[tuple[str, str], Holder]:
        """Running pods that ask for cards, by namespace and name."""
        if not self.has(REQUESTS):
            return {}
        query = f"{self.ask.selector(REQUESTS, OF_CARDS)} > 0"
        if self.has("kube_pod_status_phase"):
            running = self.ask.selector("kube_pod_status_phase", 'phase="Running"')
            query = f"({query}) and on (namespace, pod) ({running} == 1)"
        found: dict[tuple[str, str], Holder] = {}
        for reading in self.ask.vector(query):
            pod = pod_of(reading.labels)
            known = found.get(pod)
            node = reading.labels.get("node", "")
            cards = reading.value + (0.0 if known is None else known.cards)
            found[pod] = Holder(node=node, cards=cards)
        return found

    @cached_property
    def exporter(self) -> Mapping[str, str]:
        """Where dcgm-exporter runs, for commands: `namespace`, `daemonset`, `servicemonitor`."""
        for reading in self.pods:
            namespace, pod = pod_of(reading.labels)
            if _EXPORTER_NAME.search(pod):
                name = reading.labels.get("created_by_name") or "dcgm-exporter"
                return {"namespace": namespace, "daemonset": name, "servicemonitor": name}
        return {
            "namespace": "gpu-operator",
            "daemonset": "nvidia-dcgm-exporter",
            "servicemonitor": "nvidia-dcgm-exporter",
        }


def seen_in(name: str, labels: Mapping[str, str], value: float) -> Seen | None:
    """Whom a series speaks of: of dcgm-exporter by its labels as they stand; of others as we read them."""
    if name.startswith("DCGM_"):
        namespace, pod = _first(labels, _NAMESPACES), _first(labels, _PODS)
        card, node, model = labels.get("UUID", ""), _first(labels, NODES), labels.get("modelName", "")
        who = (namespace, pod) if pod else None
    else:
        meaning = resolve(name, labels)
        if meaning is None:
            return None
        identity = meaning.identity
        card, node, model = identity.card or "", identity.node or "", identity.card_model or ""
        who = None if identity.pod is None else (identity.namespace or "", identity.pod)
    return Seen(labels=labels, value=value, card=card, node=node, pod=who, card_model=model) if card else None


def _first(labels: Mapping[str, str], names: Sequence[str]) -> str:
    return next((labels[name] for name in names if labels.get(name)), "")


def pod_of(labels: Mapping[str, str]) -> tuple[str, str]:
    """Namespace and name of the pod that a series of kube-state-metrics speaks of."""
    namespace = labels.get("exported_namespace") or labels.get("namespace", "")
    return namespace, labels.get("exported_pod") or labels.get("pod", "")
