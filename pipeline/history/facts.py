"""What stands beside the samples: grants of HAMi and Volcano, owners, requests and nodes of kube-state-metrics.

Facts seldom change, so they are looked at once an hour, or by their labels alone. Every one of them may be missing:
what that costs is `misses`' to say. Called by `gputide.scanning.scan`; `seats` makes the inventory of them.

Sources: kubernetes/kube-state-metrics:docs/metrics (pod, replicaset, job and node metrics and their labels),
NVIDIA/dcgm-exporter:etc/default-counters.csv (framebuffer counters, MiB).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from fleet.errors import Corrupt, Unavailable
from fleet.grammars.kai import (
    FRACTION_ANNOTATION,
    FRAMEBUFFER_ANNOTATION,
    GROUP_LABEL,
    METRIC_PREFIXES,
    RESERVATION_NAMESPACES,
    RESERVED_CARD_ANNOTATION,
    container_annotations,
    parse_kai_share,
)
from fleet.inventory import PROVIDER_ID_LENGTH_MAX, READ_LABELS, Priority
from fleet.provenance import UP
from fleet.schema import SERVERS
from fleet.series import PRIORITY_REQUEST, Subject, known_names, kube_label, meaning_of_name, resolve
from fleet.servers import server_of, server_of_metric, server_rank
from fleet.units import MIB
from pipeline.history.places import Places, fits
from pipeline.history.presence import Period
from pipeline.history.source import HistorySource
from pipeline.records.sightings import server_row, sighted_text
from wire.prometheus_query import TooMuch

LOOK_MS = 3_600_000
"""Time between two looks at a fact."""
CLOSE_LOOK_MS = 60_000
"""The same in the last hour, for facts of pods that have just started."""

OWNER_NAMES = ("kube_pod_owner", "kube_replicaset_owner", "kube_job_owner")
POD_INFO, POD_CREATED, POD_LABELS, POD_ANNOTATIONS = (
    "kube_pod_info",
    "kube_pod_created",
    "kube_pod_labels",
    "kube_pod_annotations",
)
REQUESTS = "kube_pod_container_resource_requests"
CONTAINER_INFO = "kube_pod_container_info"
ALLOCATABLE, TAINTS, NODE_INFO = "kube_node_status_allocatable", "kube_node_spec_taint", "kube_node_info"
FRAMEBUFFER_NAMES = ("DCGM_FI_DEV_FB_TOTAL", "DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_FB_FREE", "DCGM_FI_DEV_FB_RESERVED")
FACT_NAMES = (
    *OWNER_NAMES,
    POD_INFO,
    POD_CREATED,
    POD_LABELS,
    POD_ANNOTATIONS,
    REQUESTS,
    CONTAINER_INFO,
    ALLOCATABLE,
    TAINTS,
    NODE_INFO,
    UP,
    *FRAMEBUFFER_NAMES,
)
"""Names that say something beside samples; `fleet.series` knows the others."""

_SHORTER_MS = (86_400_000, 3_600_000)
_CARD_RESOURCES = (
    "nvidia_com_gpu", "nvidia_com_mig", "volcano_sh_vgpu", "hami_io_gpu", "nvidia_com_pgpu", "amd_com_gpu",
    "huawei_com_Ascend",
)  # fmt: skip

SeatName = tuple[str, str, str, str]
"""Namespace, pod, container, card."""
PodName = tuple[str, str]
"""Namespace, pod."""


@dataclass(slots=True, kw_only=True)
class GrantFact:
    """What a scheduler or a limit says a container was granted on a card; mutable: filled series by series.

    Attributes:
        first_ms: first look that saw it.
        last_ms: last look that saw it.
        framebuffer_bytes: framebuffer granted; None where nobody says.
        compute_ratio: share of compute granted, 0-1; None where nobody says.
        framebuffer_ratio: share of the card's framebuffer, where it is granted so; None elsewhere.
    """

    first_ms: int
    last_ms: int
    framebuffer_bytes: int | None = None
    compute_ratio: float | None = None
    framebuffer_ratio: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFact:
    """A node.

    Attributes:
        cpu_cores: allocatable; None where nobody says.
        memory_bytes: allocatable; None where nobody says.
        taints: `key=value:effect`.
        provider_id: what the provider calls it; None where nobody says.
    """

    cpu_cores: float | None = None
    memory_bytes: int | None = None
    taints: tuple[str, ...] = ()
    provider_id: str | None = None


@dataclass(slots=True, kw_only=True)
class Facts:
    """All that stands beside the samples; mutable: filled metric by metric.

    Attributes:
        mig_profiles: MIG profile of a container's slice.
        capacity_bytes: framebuffer that may be granted of a card, oversubscription included.
        framebuffer_bytes: framebuffer of a card, as measured.
        owners: owner (kind, name) by namespace, kind and name of what it owns.
        created_ms: when a pod was made; the newest of pods that had the name one after another.
        cpu_cores: CPU requested by namespace, pod, container.
        memory_bytes: host memory requested by namespace, pod, container.
        priorities: HAMi's priority of a container, by namespace, pod, container: 0 is high, all else low.
        servers: server or framework that runs in a container, by namespace, pod, container; of a pod whose own
            metrics say it, with an empty container.
        said_by_servers: when servers said what of themselves, by the row of `fleet.schema.SERVERS`.
        wants_cards: pods that ask for cards, and when they were last seen.
        resources: names of resources that nodes offer or pods ask for, as kube-state-metrics writes them.
        capped: namespace, pod and card of containers that KAI's driver caps, as its operator measures them.
        has_kai_reservations: pods of KAI hold cards for others.
        failed: names that could not be read, and why.
    """

    grants: dict[SeatName, GrantFact] = field(default_factory=dict)
    mig_profiles: dict[SeatName, str] = field(default_factory=dict)
    mig_cards: set[str] = field(default_factory=set)
    capacity_bytes: dict[str, int] = field(default_factory=dict)
    framebuffer_bytes: dict[str, int] = field(default_factory=dict)
    owners: dict[tuple[str, str, str], tuple[str, str]] = field(default_factory=dict)
    created_ms: dict[PodName, int] = field(default_factory=dict)
    cpu_cores: dict[tuple[str, str, str], float] = field(default_factory=dict)
    memory_bytes: dict[tuple[str, str, str], int] = field(default_factory=dict)
    priorities: dict[tuple[str, str, str], Priority] = field(default_factory=dict)
    servers: dict[tuple[str, str, str], str] = field(default_factory=dict)
    said_by_servers: dict[tuple[str, ...], Period] = field(default_factory=dict)
    labels: dict[PodName, dict[str, str]] = field(default_factory=dict)
    wants_cards: dict[PodName, int] = field(default_factory=dict)
    nodes: dict[str, NodeFact] = field(default_factory=dict)
    resources: set[str] = field(default_factory=set)
    capped: set[tuple[str, str, str]] = field(default_factory=set)
    has_kai_reservations: bool = False
    failed: dict[str, str] = field(default_factory=dict)


def read_facts(source: HistorySource, names: frozenset[str], places: Places, *, since_ms: int, until_ms: int) -> Facts:
    """Everything beside the samples; teaches `places` where cards sit.

    Args:
        places: learns from the labels.
        since_ms: start of the time, epoch milliseconds.
        until_ms: end of it.

    Raises:
        Unavailable: the source can't be reached.
        Misconfigured: it does not let us in.
    """
    facts = Facts()
    asked = _Asked(source, names, places, facts, since_ms, until_ms)
    for labels in asked.label_sets(UP):
        places.learn_target(labels)
    _read_pods(asked)
    _read_places(asked)
    _read_grants(asked)
    _read_kai(asked)
    _read_framebuffers(asked)
    _read_requests(asked)
    _read_servers(asked)
    _read_nodes(asked)
    return facts


class _Asked:
    """One reading of facts."""

    def __init__(
        self, source: HistorySource, names: frozenset[str], places: Places, facts: Facts, since_ms: int, until_ms: int
    ) -> None:
        self.places = places
        self.facts = facts
        self._source = source
        self._names = names
        self._since_ms = since_ms
        self._until_ms = until_ms

    def has(self, name: str) -> bool:
        return name in self._names

    def label_sets(self, name: str) -> list[Mapping[str, str]]:
        """The label sets of a metric; where there are too many, those of its newest time; what is missing is noted."""
        if name not in self._names:
            return []
        for span_ms in (self._until_ms - self._since_ms, *_SHORTER_MS):
            since_ms = max(self._since_ms, self._until_ms - span_ms)
            try:
                found = self._source.series(name, since_ms=since_ms, until_ms=self._until_ms)
            except TooMuch as exc:
                self.facts.failed[name] = f"only in part, or not at all: {exc}"
                continue
            except Unavailable as exc:
                self.facts.failed[name] = str(exc)
                break
            return [self.places.labels(labels) for labels in found if name == UP or self.places.takes(name, labels)]
        return []

    def values(self, name: str, *, until_now: bool = False) -> Iterator[tuple[Mapping[str, str], float, int, int]]:
        """Labels, last value, and first and last look of each series of a metric.

        Args:
            until_now: look closely at the last hour too; series of it come again.
        """
        since_ms, until_ms = self._since_ms, self._until_ms
        spans = [(since_ms, LOOK_MS), (max(since_ms, until_ms - LOOK_MS), CLOSE_LOOK_MS)]
        for start_ms, step_ms in spans[: 2 if until_now else 1] if name in self._names else ():
            try:
                block = self._source.looks(name, since_ms=start_ms, until_ms=until_ms, step_ms=step_ms)
            except Unavailable as exc:
                self.facts.failed[name] = str(exc)
                return
            for place, labels in enumerate(block.labels):
                span = slice(int(block.starts[place]), int(block.starts[place + 1]))
                is_there = np.isfinite(block.values[span])
                if is_there.any() and self.places.takes(name, labels):
                    times = block.ts_ms[span][is_there]
                    yield (
                        self.places.labels(labels),
                        float(block.values[span][is_there][-1]),
                        int(times[0]),
                        int(times[-1]),
                    )


def _read_pods(asked: _Asked) -> None:
    facts = asked.facts
    pods_of: dict[str, set[str]] = {}
    for labels in asked.label_sets(POD_INFO):
        namespace, pod = pod_of(labels)
        if namespace and pod:
            pods_of.setdefault(pod, set()).add(namespace)
    # A source that leaves the namespace out (Volcano's) means the only one that has a pod of the name.
    asked.places.namespaces.update({pod: next(iter(found)) for pod, found in pods_of.items() if len(found) == 1})
    for name in OWNER_NAMES:
        for labels in asked.label_sets(name):
            meaning = resolve(name, labels)
            if meaning is not None and meaning.owner is not None and meaning.identity.namespace is not None:
                link = meaning.owner
                facts.owners[meaning.identity.namespace, link.kind, link.name] = (link.owner_kind, link.owner_name)
    for labels, value, _, _ in asked.values(POD_CREATED):
        if 0 < value < 1e11:
            created = pod_of(labels)
            facts.created_ms[created] = max(facts.created_ms.get(created, 0), round(value * 1000))
    for name, prefix in ((POD_LABELS, "label_"), (POD_ANNOTATIONS, "annotation_")):
        written = {kube_label(prefix, own): own for own in READ_LABELS}
        for labels in asked.label_sets(name):
            mine = {own: labels[key] for key, own in written.items() if 0 < len(labels.get(key, "")) <= 63}
            if mine:
                facts.labels.setdefault(pod_of(labels), {}).update(mine)


def _read_places(asked: _Asked) -> None:
    # Who knows Kubernetes goes first: dcgm-exporter may know its own container's name for that of the node.
    names = [name for name in known_names() if asked.has(name)]
    for name in sorted(names, key=lambda name: (name.startswith("DCGM_"), name)):
        for labels in asked.label_sets(name):
            meaning = resolve(name, labels)
            if meaning is None or not fits(meaning.identity):
                continue
            identity = meaning.identity
            asked.places.add(identity)
            if labels.get("GPU_I_ID") and identity.card is not None:
                asked.facts.mig_cards.add(identity.card)
            if name.startswith(METRIC_PREFIXES) and identity.pod is not None and identity.card is not None:
                asked.facts.capped.add((identity.namespace or "", identity.pod, identity.card))
            if identity.mig_profile and identity.pod is not None and identity.card is not None:
                settled = asked.places.settled(identity)
                seat = (settled.namespace or "", identity.pod, settled.container or "", identity.card)
                asked.facts.mig_profiles[seat] = identity.mig_profile


def _read_grants(asked: _Asked) -> None:
    facts = asked.facts
    for name in known_names():
        for labels, value, first_ms, last_ms in asked.values(name) if _is_fact(name) else ():
            meaning = resolve(name, labels)
            if meaning is None or meaning.identity.card is None or not fits(meaning.identity) or value < 0:
                continue
            identity, amount = asked.places.settled(meaning.identity), value * meaning.factor
            if meaning.subject is Subject.CAPACITY:
                facts.capacity_bytes[meaning.identity.card] = round(amount)
                continue
            if identity.pod is None:
                continue
            seat = (identity.namespace or "", identity.pod, identity.container or "", meaning.identity.card)
            grant = facts.grants.setdefault(seat, GrantFact(first_ms=first_ms, last_ms=last_ms))
            grant.first_ms, grant.last_ms = min(grant.first_ms, first_ms), max(grant.last_ms, last_ms)
            # Zero is HAMi's word for "all of it": of the framebuffer by a missing limit, of the cores by core limit 0.
            if amount > 0 and meaning.fact == "framebuffer_granted_bytes":
                grant.framebuffer_bytes = round(amount)
            elif meaning.fact == "compute_granted_ratio":
                grant.compute_ratio = min(1.0, amount) if amount > 0 else 1.0


def _read_kai(asked: _Asked) -> None:
    """Fractions that KAI gave: on the card that its group's reservation holds, else on those that a capped pod sees.

    A tenant can write what its pod sees: it counts where the operator that caps it measures the pod on that card.

    Labels and annotations of pods are there where kube-state-metrics is set to show them.
    """
    facts = asked.facts
    texts: dict[PodName, dict[str, str]] = {}
    for name, prefix, keys in (
        (POD_LABELS, "label_", (GROUP_LABEL,)),
        (POD_ANNOTATIONS, "annotation_", (FRACTION_ANNOTATION, FRAMEBUFFER_ANNOTATION, RESERVED_CARD_ANNOTATION)),
    ):
        written = {kube_label(prefix, key): key for key in keys}
        for labels in asked.label_sets(name):
            found = {key: labels[there] for there, key in written.items() if labels.get(there)}
            if prefix == "annotation_":
                found |= container_annotations(labels)
            if found:
                texts.setdefault(pod_of(labels), {}).update(found)
    cards = {
        found[GROUP_LABEL]: found[RESERVED_CARD_ANNOTATION]
        for (namespace, _), found in texts.items()
        if namespace in RESERVATION_NAMESPACES and GROUP_LABEL in found and RESERVED_CARD_ANNOTATION in found
    }
    facts.has_kai_reservations = any(namespace in RESERVATION_NAMESPACES for namespace, _ in texts)
    lives = {pod_of(labels): (first, last) for labels, _, first, last in asked.values(POD_INFO)} if texts else {}
    for (namespace, pod), found in texts.items():
        if namespace in RESERVATION_NAMESPACES or (namespace, pod) not in lives:
            continue
        try:
            share = parse_kai_share(found, found)
        except Corrupt:
            continue
        if share is None:
            continue
        reserved = cards.get(found.get(GROUP_LABEL, ""))
        seen = [card for card in share.on_cards if share.is_capped and (namespace, pod, card) in facts.capped]
        for card in seen if reserved is None else (reserved,):
            first_ms, last_ms = lives[namespace, pod]
            size = None if share.framebuffer_mib is None else share.framebuffer_mib * MIB
            facts.grants[namespace, pod, "", card] = GrantFact(
                first_ms=first_ms,
                last_ms=last_ms,
                framebuffer_bytes=size,
                compute_ratio=share.ratio,
                framebuffer_ratio=share.ratio,
            )


def _is_fact(name: str) -> bool:
    """Whether a name is of grants or capacities, by what it means with all labels that anybody asks for."""
    labels = dict.fromkeys(
        (
            "device_uuid", "deviceuuid", "devID", "gpu_uuid", "vdie_id", "pod", "podname", "podName", "exported_pod",
            "UUID", "card",
        ),
        "x",
    )  # fmt: skip
    meaning = resolve(name, labels)
    return meaning is not None and meaning.subject in (Subject.GRANT, Subject.CAPACITY)


def _read_framebuffers(asked: _Asked) -> None:
    """Framebuffer of whole cards: the total where it is reported, else used, free and reserved of the same hour."""
    parts: dict[str, dict[str, float]] = {}
    for name in FRAMEBUFFER_NAMES:
        for labels, value, _, _ in asked.values(name):
            card = labels.get("UUID")
            if card and not labels.get("GPU_I_ID") and 0 <= value <= 2**21:
                parts.setdefault(card, {})[name] = value
    total, used, free, reserved = FRAMEBUFFER_NAMES
    for card, found in parts.items():
        if found.get(total):
            asked.facts.framebuffer_bytes[card] = round(found[total] * MIB)
        elif used in found and free in found:
            asked.facts.framebuffer_bytes[card] = round((found[used] + found[free] + found.get(reserved, 0.0)) * MIB)


def _read_requests(asked: _Asked) -> None:
    facts = asked.facts
    for labels, value, _, last_ms in asked.values(REQUESTS):
        resource, (namespace, pod) = labels.get("resource", ""), pod_of(labels)
        container = labels.get("exported_container") or labels.get("container") or ""
        if not pod or not math.isfinite(value) or value < 0:
            continue
        if value > 0:
            facts.resources.add(resource)
        if resource == "cpu":
            facts.cpu_cores[namespace, pod, container] = value
        elif resource == "memory":
            facts.memory_bytes[namespace, pod, container] = round(value)
        elif resource == PRIORITY_REQUEST:
            facts.priorities[namespace, pod, container] = Priority.HIGH if value == 0 else Priority.LOW
        elif resource.startswith(_CARD_RESOURCES) and value > 0:
            facts.wants_cards[namespace, pod] = max(last_ms, facts.wants_cards.get((namespace, pod), 0))


def _read_servers(asked: _Asked) -> None:
    """What runs in containers: by their images, and where those don't say it by the metrics that a pod gives."""
    facts = asked.facts
    for labels in asked.label_sets(CONTAINER_INFO):
        pod = pod_of(labels)
        container = labels.get("exported_container") or labels.get("container") or ""
        server = server_of(labels.get("image_spec") or labels.get("image") or "", (), facts.labels.get(pod, {}))
        if server is not None:
            facts.servers[(*pod, container)] = server
    for name in known_names():
        server, named = server_of_metric(name), meaning_of_name(name)
        for labels in asked.label_sets(name) if server is not None else ():
            meaning = resolve(name, labels)
            if server is not None and meaning is not None and meaning.identity.pod is not None:
                place = meaning.identity.namespace or "", meaning.identity.pod, ""
                facts.servers[place] = min(server, facts.servers.get(place, server), key=server_rank)
        if server is not None and named is not None and named.measure is None:
            _read_said(asked, name)


def _read_said(asked: _Asked, name: str) -> None:
    """What servers say of themselves in one of their metrics."""
    said = asked.facts.said_by_servers
    for labels, value, first_ms, last_ms in asked.values(name, until_now=True):
        meaning = resolve(name, labels)
        if meaning is None or meaning.server is None or not fits(meaning.identity):
            continue
        columns = server_row(asked.places.settled(meaning.identity), meaning.server)
        if meaning.fact is not None:
            columns[meaning.fact] = sighted_text(meaning.fact, value * meaning.factor)
        row = tuple(columns[column] for column in SERVERS.keys)
        before = said.get(row, Period(first_ms=first_ms, last_ms=last_ms))
        said[row] = Period(first_ms=min(before.first_ms, first_ms), last_ms=max(before.last_ms, last_ms))


def _read_nodes(asked: _Asked) -> None:
    cores: dict[str, float] = {}
    memory: dict[str, int] = {}
    taints: dict[str, set[str]] = {}
    for labels, value, _, _ in asked.values(ALLOCATABLE):
        node = labels.get("exported_node") or labels.get("node") or ""
        if labels.get("resource") == "cpu" and value >= 0:
            cores[node] = value
        elif labels.get("resource") == "memory" and 0 <= value < 2**63:
            memory[node] = round(value)
        if value > 0:
            asked.facts.resources.add(labels.get("resource", ""))
    for labels in asked.label_sets(TAINTS):
        node, key, effect = labels.get("node", ""), labels.get("key", ""), labels.get("effect", "")
        if key and effect and len(key) + len(effect) < 512:
            taints.setdefault(node, set()).add(f"{key}={labels.get('value', '')[:63]}:{effect}")
    provider_ids = {
        labels.get("exported_node") or labels.get("node") or "": provider_id
        for labels in asked.label_sets(NODE_INFO)
        if 0 < len(provider_id := labels.get("provider_id", "")) <= PROVIDER_ID_LENGTH_MAX
    }
    for node in sorted({*cores, *memory, *taints, *provider_ids}):
        if node:
            asked.facts.nodes[node] = NodeFact(
                cpu_cores=cores.get(node),
                memory_bytes=memory.get(node),
                taints=tuple(sorted(taints.get(node, ()))),
                provider_id=provider_ids.get(node),
            )


def pod_of(labels: Mapping[str, str]) -> PodName:
    """Namespace and pod of a series of kube-state-metrics, whether the scrape renamed them or not."""
    return (
        labels.get("exported_namespace") or labels.get("namespace") or "",
        labels.get("exported_pod") or labels.get("pod") or "",
    )
