"""Traps in the labels of a Prometheus: whose a card is, on which node, and how often it is told.

Each is a generator over the scene; `prometheus` makes checks of them. The catalogue reports each trap by which fact it
is known. Absent labels are told only where somebody else says that there should be some.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from typing import Literal

from fleet.catalogue import find_model
from fleet.sentences import Sentence, listed, sentence
from fleet.series import CARD_INFO, SLICE_INFO
from fleet.settings.provenance import ProvenanceSettings
from gputide.doctor.finding import NAMES_MAX, Diagnosis, finding, otherwise, some, unchecked, well
from gputide.doctor.prometheus_scene import (
    ALLOCATABLE,
    CARD_NAMES,
    NODES,
    OF_CARDS,
    OTHER_CARD_NAMES,
    REQUESTS,
    SLICE_NAMES,
    Scene,
    Seen,
    pod_of,
)

_SCRAPE_LABELS = ("job", "instance", "endpoint", "service", "prometheus", "prometheus_replica", "replica")
"""Labels that say how a sample was collected, and not what it is of."""
_HAMI_SCHEDULER = ("hami_vgpu_memory_allocated_bytes", "vGPUMemoryAllocated")
_HAMI_NEW = (
    "hami_vgpu_memory_used_bytes",
    "hami_vgpu_memory_allocated_bytes",
    "hami_container_device_utilization_ratio",
    "hami_host_gpu_memory_used_bytes",
)
# In the same order.
_HAMI_OLD = (
    "vGPU_device_memory_usage_in_bytes",
    "vGPUMemoryAllocated",
    "Device_utilization_desc_of_container",
    "HostGPUMemoryUsage",
)
_SPOKEN = (
    *CARD_NAMES, *OTHER_CARD_NAMES, *SLICE_NAMES, CARD_INFO, SLICE_INFO, REQUESTS, "kube_pod_owner", "kube_pod_labels",
    "kube_pod_annotations",
)  # fmt: skip
"""Metrics whose writers are looked at."""
_VOLCANO = "volcano_vgpu_device_memory_allocation_for_a_certain_pod"


def pods_named(scene: Scene) -> Iterator[Diagnosis]:
    """Cards whose pods nobody names, though pods ask for cards."""
    others = {seen.pod for seen in scene.slices if seen.pod is not None}
    by_node = _by("node", scene.cards)
    silent = {node for node, series in by_node.items() if not any(one.pod for one in series)}
    if not scene.cards:
        yield well(sentence("doctor.found.pods_named", pods=len(others)))
    elif not scene.holders:
        yield unchecked(sentence("doctor.found.none_missed"))
    elif silent == set(by_node) and not others:
        found = sentence(
            "doctor.found.none_with_pod", series=len(scene.cards), metric=str(scene.base), holders=len(scene.holders)
        )
        yield finding("prometheus-pods-missing", found, **scene.exporter)
    else:
        # Where HAMi or gputide report a node's pods, dcgm-exporter need not.
        told = {scene.holders[pod].node for pod in others if pod in scene.holders}
        held = {holder.node for holder in scene.holders.values()}
        missed = (silent & held) - told
        if missed:
            found = sentence("doctor.found.no_pod_named", names=some(missed))
            yield finding("prometheus-pods-partly-missing", found, subject=some(missed), **scene.exporter)
    yield otherwise(sentence("doctor.found.nodes_name_pods", nodes=len(by_node)))


def pod_labels(scene: Scene) -> Iterator[Diagnosis]:
    """Labels that are there under another name than one would think."""
    exported = sum("exported_pod" in seen.labels for seen in scene.cards)
    old = sum("pod_name" in seen.labels for seen in scene.cards)
    if exported:
        found = sentence("doctor.found.exported_pod", found=exported, series=len(scene.cards))
        yield finding("prometheus-honor-labels", found, **scene.exporter)
    if old:
        found = sentence("doctor.found.pod_name", found=old, series=len(scene.cards))
        yield finding("prometheus-pod-labels-old", found, **scene.exporter)
    if not scene.cards:
        yield unchecked(sentence("doctor.found.no_dcgm"))
    yield otherwise(sentence("doctor.found.pod_labels_fine"))


def speakers(scene: Scene, settings: ProvenanceSettings) -> Iterator[Diagnosis]:
    """Targets that export what they may not: their pods speak for others, or of cards."""
    rule, targets = settings.rule, scene.targets
    wrote: dict[str, set[str]] = defaultdict(set)
    series = 0
    for name in _SPOKEN:
        for reading in scene.ask.vector(scene.ask.selector(name)) if scene.has(name) else ():
            stranger = rule.stranger(name, reading.labels, targets)
            if stranger is not None:
                wrote[stranger.namespace].add(name)
                series += 1
    if wrote:
        names = some(f"{namespace}: {', '.join(sorted(metrics)[:NAMES_MAX])}" for namespace, metrics in wrote.items())
        text = sentence("doctor.found.untrusted", series=series, names=names)
        trusted = ",".join([*settings.namespaces, *sorted(wrote)[:NAMES_MAX]])
        yield finding("prometheus-target-untrusted", text, subject=some(wrote), namespaces=trusted)
    yield otherwise(sentence("doctor.found.trusted"))


def exporter_as_pod(scene: Scene) -> Iterator[Diagnosis]:
    """The exporter's own pod in the place of the tenant's."""
    known = {pod_of(reading.labels) for reading in scene.pods}
    blamed = set()
    for series in _by("node", scene.cards).values():
        pods = {one.pod for one in series}
        (first,) = pods if len(pods) == 1 else (None,)
        is_own = first is not None and first in known and first not in scene.holders
        if is_own and not any("exported_pod" in one.labels for one in series):
            blamed.add("/".join(first or ()))
    if not scene.holders or not known:
        yield unchecked(sentence("doctor.found.no_requests"))
    elif blamed:
        found = sentence("doctor.found.blamed", names=some(blamed))
        yield finding("prometheus-exporter-as-pod", found, subject=some(blamed), **scene.exporter)
    yield otherwise(sentence("doctor.found.none_blamed"))


def hostnames(scene: Scene) -> Iterator[Diagnosis]:
    """Names of containers in the place of nodes."""
    if not scene.has("kube_node_info"):
        yield unchecked(sentence("doctor.found.no_node_info"))
        return
    nodes = {reading.labels.get("node", "") for reading in scene.ask.vector(scene.ask.selector("kube_node_info"))}
    wrong = {seen.node for seen in scene.cards if seen.node and seen.node not in nodes}
    wrong -= {seen.node for seen in scene.cards if any(seen.labels.get(name) for name in NODES[:2])}
    if wrong:
        found = sentence("doctor.found.no_nodes", names=some(wrong))
        yield finding("prometheus-hostname-is-no-node", found, subject=some(wrong), **scene.exporter)
    yield otherwise(sentence("doctor.found.node_count", nodes=len(nodes)))


def shared_cards(scene: Scene) -> Iterator[Diagnosis]:
    """Cards that several pods share, told as if one had them, or as if each had all of them."""
    cut = {seen.card for seen in scene.cards if seen.labels.get("GPU_I_ID")}
    crowded = sorted(_crowded(scene, cut), key=str)
    if crowded:
        nodes = listed(crowded, NAMES_MAX)
        text = sentence("doctor.found.one_pod", names=nodes)
        yield finding("prometheus-one-pod-wins", text, subject=nodes, **scene.exporter)
    copied, beside = set(), set()
    for card, series in _by("card", scene.cards).items():
        if card in cut:
            continue
        with_pod = [one for one in series if one.pod is not None]
        values = {one.value for one in with_pod}
        if len({one.pod for one in with_pod}) > 1 and len(values) == 1 and values != {0.0}:
            copied.add(card)
        if any("pod_uid" in one.labels for one in with_pod) and len(with_pod) < len(series):
            beside.add(card)
    if copied:
        text = sentence("doctor.found.copied", metric=str(scene.base), cards=len(copied), names=some(copied))
        yield finding("prometheus-card-value-copied", text, subject=some(copied), **scene.exporter)
    if beside:
        text = sentence("doctor.found.beside", cards=len(beside))
        yield finding("prometheus-card-beside-pods", text, subject=some(beside))
    yield otherwise(sentence("doctor.found.none_twice"))


def _crowded(scene: Scene, cut: Set[str]) -> Iterator[Sentence]:
    """Nodes on which more cards are asked for than there are, while each card names one pod at most."""
    told = {seen.pod for seen in scene.slices}
    asked = Counter[str]()
    for pod, holder in scene.holders.items():
        if pod not in told:
            asked[holder.node] += round(holder.cards)
    for node, series in _by("node", scene.cards).items():
        pods_of: dict[str, set[tuple[str, str]]] = defaultdict(set)
        for one in series:
            pods_of[one.card] |= set() if one.pod is None else {one.pod}
        is_single = all(len(pods) <= 1 for pods in pods_of.values())
        if asked[node] > len(pods_of) and is_single and not cut & set(pods_of):
            yield sentence("doctor.found.asked", node=node, asked=asked[node], cards=len(pods_of))


def hami(scene: Scene) -> Iterator[Diagnosis]:
    """HAMi's monitor that is not scraped, and names of two versions."""
    new, old = [name for name in _HAMI_NEW if scene.has(name)], [name for name in _HAMI_OLD if scene.has(name)]
    if scene.has(*_HAMI_SCHEDULER) and not scene.slices:
        text = sentence("doctor.found.no_usage", names=some(new + old))
        yield finding("prometheus-hami-monitor-missing", text)
    pairs = [pair for pair in zip(_HAMI_NEW, _HAMI_OLD, strict=True) if all(map(scene.has, pair))]
    doubled = [sentence("doctor.found.both", one=one, other=other) for one, other in pairs]
    if doubled:
        yield finding("prometheus-hami-both-names", listed(doubled, NAMES_MAX))
    elif old and not new:
        yield finding("prometheus-hami-old-names", some(old))
    yield otherwise(sentence("doctor.found.new_names", names=some(new)) if new else sentence("doctor.found.no_hami"))


def stale_grants(scene: Scene) -> Iterator[Diagnosis]:
    """Grants of pods that are gone, and pods whose namespace nobody reports."""
    if not scene.pods:
        yield unchecked(sentence("doctor.found.no_pod_info"))
        return
    living = {pod_of(reading.labels) for reading in scene.pods}
    granted = {seen.pod for name in _HAMI_SCHEDULER for seen in scene.seen(name) if seen.pod is not None}
    gone = {"/".join(pod) for pod in granted - living}
    if gone:
        text = sentence("doctor.found.gone", pods=len(gone), names=some(gone))
        yield finding("prometheus-hami-stale-grant", text, subject=some(gone))
    spaces = Counter(pod for _, pod in living)
    bare = {seen.pod[1] for seen in scene.seen(_VOLCANO) if seen.pod is not None and not seen.pod[0]}
    twice = {pod for pod in bare if spaces[pod] > 1}
    if twice:
        text = sentence("doctor.found.several_namespaces", names=some(twice))
        yield finding("prometheus-volcano-pod-ambiguous", text, subject=some(twice), pod=min(twice))
    yield otherwise(sentence("doctor.found.grants", grants=len(granted)))


def cards_once(scene: Scene) -> Iterator[Diagnosis]:
    """Cards that two scrapes tell, and several clusters in one."""
    places: dict[tuple[tuple[str, str], ...], set[tuple[str, ...]]] = defaultdict(set)
    for seen in scene.cards:
        own = tuple(sorted(item for item in seen.labels.items() if item[0] not in _SCRAPE_LABELS))
        places[own].add(tuple(seen.labels.get(name, "") for name in _SCRAPE_LABELS))
    twice = {dict(own).get("UUID", "") for own, ways in places.items() if len(ways) > 1}
    if twice:
        text = sentence("doctor.found.twice", cards=len(twice), names=some(twice))
        yield finding("prometheus-card-scraped-twice", text, subject=some(twice))
    label = scene.settings.cluster_label
    clusters = {seen.labels[label] for seen in (*scene.cards, *scene.other_cards) if seen.labels.get(label)}
    if len(clusters) > 1 and scene.settings.cluster is None:
        text = sentence("doctor.found.label_values", label=label, names=some(clusters))
        yield finding("prometheus-several-clusters", text, cluster=min(clusters))
    yield otherwise(sentence("doctor.found.once"))


def measured_nodes(scene: Scene) -> Iterator[Diagnosis]:
    """Nodes with cards that nobody measures, and pods with cards that nobody reports."""
    if not scene.has(ALLOCATABLE):
        yield unchecked(sentence("doctor.found.no_allocatable", metric=ALLOCATABLE))
        return
    query = f"{scene.ask.selector(ALLOCATABLE, OF_CARDS)} > 0"
    having = {reading.labels.get("node", "") for reading in scene.ask.vector(query)}
    everybody = (*scene.cards, *scene.other_cards, *scene.slices)
    measured = {seen.node for seen in everybody}
    # Where names of containers stand for nodes, every node would seem unmeasured: that is told by its own finding.
    missed = sorted(having - measured)[:20] if measured & having or not measured else []
    for node in missed:
        text = sentence("doctor.found.no_card_series")
        yield finding("prometheus-node-unmeasured", text, subject=node, **scene.exporter)
    named = {seen.pod for seen in everybody if seen.pod is not None}
    silent = sorted(set(scene.holders) - named) if named else []
    if silent:
        names = some(map("/".join, silent))
        text = sentence("doctor.found.silent", silent=len(silent), pods=len(scene.holders), names=names)
        namespace, pod = silent[0]
        yield finding("prometheus-pod-silent", text, namespace=namespace, pod=pod)
    yield otherwise(sentence("doctor.found.nodes_measured", nodes=len(having)))


def card_models(scene: Scene) -> Iterator[Diagnosis]:
    """Models that the catalogue does not know."""
    models = {seen.card_model for seen in (*scene.cards, *scene.other_cards) if seen.card_model}
    unknown = sorted(model for model in models if find_model(model) is None)
    for model in unknown[:20]:
        text = sentence("doctor.found.no_such_model")
        yield finding("prometheus-card-model-unknown", text, subject=model, model=model)
    yield otherwise(some(models)) if models else unchecked(sentence("doctor.found.no_model"))


def identities(scene: Scene) -> Iterator[Diagnosis]:
    """Slots that have had several cards, and names that have had several pods, within a day."""
    ask = scene.ask
    if scene.base is not None:
        one_day = f"last_over_time({ask.selector(scene.base)}[1d])"
        place = ", ".join((*NODES, "gpu"))
        changed = ask.vector(f"count by ({place}) (count by ({place}, UUID) ({one_day})) > 1")
        slots = {f"{_node_of(reading.labels)} gpu {reading.labels.get('gpu', '?')}" for reading in changed}
        now = ask.selector(scene.base, 'GPU_I_ID!=""')
        cut = f"last_over_time({now}[1d])"
        kept = "count by (UUID) (count by (UUID, GPU_I_ID, GPU_I_PROFILE) ({}))"
        recut = ask.vector(f"{kept.format(cut)} > on (UUID) {kept.format(now)}")
        slots |= {f"MIG of {reading.labels.get('UUID', '?')}" for reading in recut}
        if slots:
            node = _node_of(changed[0].labels) if changed else ""
            text = sentence("doctor.found.several_a_day", names=some(slots))
            yield finding("prometheus-card-identity-changed", text, subject=some(slots), node=node or "NODE")
    if scene.has("kube_pod_info"):
        info = f"last_over_time({ask.selector('kube_pod_info')}[1d])"
        reused = ask.vector(f"count by (namespace, pod) (count by (namespace, pod, uid) ({info})) > 1")
        wanted = {pod_of(reading.labels) for reading in reused} & set(scene.holders)
        if wanted:
            text = sentence("doctor.found.name_reused", pods=len(wanted), names=some(map("/".join, wanted)))
            yield finding("prometheus-pod-name-reused", text, **scene.exporter)
    yield otherwise(sentence("doctor.found.identities_fine"))


def _by(key: Literal["node", "card"], cards: Iterable[Seen]) -> Mapping[str, Sequence[Seen]]:
    found: dict[str, list[Seen]] = defaultdict(list)
    for seen in cards:
        found[getattr(seen, key)].append(seen)
    return found


def _node_of(labels: Mapping[str, str]) -> str:
    return next((labels[name] for name in NODES if labels.get(name)), "?")
