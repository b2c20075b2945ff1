"""Traps in the labels of a Prometheus: whose a card is, on which node, and how often it is told.

Each is a generator over the scene; `prometheus` makes checks of them. The catalogue reports each trap by which fact it
is known. Absent labels are told only where somebody else says that there should be some.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set

from fleet.catalogue import find_model
from gputide.doctor.catalogue import kind_of
from gputide.doctor.finding import Area, Diagnosis, finding, some, unchecked, well
from gputide.doctor.prometheus_scene import ALLOCATABLE, NODES, OF_CARDS, Scene, Seen, pod_of

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
_VOLCANO = "volcano_vgpu_device_memory_allocation_for_a_certain_pod"


def pods_named(scene: Scene) -> Iterator[Diagnosis]:
    """Cards whose pods nobody names, though pods ask for cards."""
    check = "pods on cards"
    others = {seen.pod for seen in scene.slices if seen.pod is not None}
    by_node = _by_node(scene.cards)
    silent = {node for node, series in by_node.items() if not any(one.pod for one in series)}
    if not scene.cards:
        yield well(Area.PROMETHEUS, check, f"{len(others)} pods named, dcgm-exporter is not there")
    elif not scene.holders:
        yield unchecked(
            Area.PROMETHEUS, check, "kube-state-metrics does not tell which pods ask for cards, so none can be missed"
        )
    elif silent == set(by_node) and not others:
        found = f"{len(scene.cards)} series of {scene.base}, none with a pod; {len(scene.holders)} pods ask for cards"
        yield finding(kind_of("prometheus-pods-missing"), check, found, **scene.exporter)
    else:
        # Where HAMi or gputide report a node's pods, dcgm-exporter need not.
        told = {scene.holders[pod].node for pod in others if pod in scene.holders}
        held = {holder.node for holder in scene.holders.values()}
        missed = (silent & held) - told
        if missed:
            found = f"no series of {some(missed)} names a pod"
            kind = kind_of("prometheus-pods-partly-missing")
            yield finding(kind, check, found, subject=some(missed), **scene.exporter)
        else:
            yield well(Area.PROMETHEUS, check, f"{len(by_node)} nodes name the pods on their cards")


def pod_labels(scene: Scene) -> Iterator[Diagnosis]:
    """Labels that are there under another name than one would think."""
    check = "pod labels"
    exported = sum("exported_pod" in seen.labels for seen in scene.cards)
    old = sum("pod_name" in seen.labels for seen in scene.cards)
    if exported:
        found = f"{exported} of {len(scene.cards)} series have exported_pod"
        yield finding(kind_of("prometheus-honor-labels"), check, found, **scene.exporter)
    if old:
        found = f"{old} of {len(scene.cards)} series have pod_name"
        yield finding(kind_of("prometheus-pod-labels-old"), check, found, **scene.exporter)
    if not scene.cards:
        yield unchecked(Area.PROMETHEUS, check, "dcgm-exporter is not there")
    elif not exported and not old:
        yield well(Area.PROMETHEUS, check, "pods stand in `pod` and `namespace`")


def exporter_as_pod(scene: Scene) -> Iterator[Diagnosis]:
    """The exporter's own pod in the place of the tenant's."""
    check = "tenants"
    known = {pod_of(reading.labels) for reading in scene.pods}
    blamed = set()
    for series in _by_node(scene.cards).values():
        pods = {one.pod for one in series}
        (first,) = pods if len(pods) == 1 else (None,)
        is_own = first is not None and first in known and first not in scene.holders
        if is_own and not any("exported_pod" in one.labels for one in series):
            blamed.add("/".join(first or ()))
    if not scene.holders or not known:
        yield unchecked(Area.PROMETHEUS, check, "kube-state-metrics does not tell which pods ask for cards")
    elif blamed:
        found = f"all cards of a node are said to be held by {some(blamed)}, which asks for none"
        yield finding(kind_of("prometheus-exporter-as-pod"), check, found, subject=some(blamed), **scene.exporter)
    else:
        yield well(Area.PROMETHEUS, check, "no card is blamed on its exporter")


def hostnames(scene: Scene) -> Iterator[Diagnosis]:
    """Names of containers in the place of nodes."""
    check = "node names"
    if not scene.has("kube_node_info"):
        yield unchecked(Area.PROMETHEUS, check, "kube_node_info is not there")
        return
    nodes = {reading.labels.get("node", "") for reading in scene.ask.vector(scene.ask.selector("kube_node_info"))}
    wrong = {seen.node for seen in scene.cards if seen.node and seen.node not in nodes}
    wrong -= {seen.node for seen in scene.cards if any(seen.labels.get(name) for name in NODES[:2])}
    if wrong:
        found = f"{some(wrong)} are no nodes"
        yield finding(kind_of("prometheus-hostname-is-no-node"), check, found, subject=some(wrong), **scene.exporter)
    else:
        yield well(Area.PROMETHEUS, check, f"{len(nodes)} nodes")


def shared_cards(scene: Scene) -> Iterator[Diagnosis]:
    """Cards that several pods share, told as if one had them, or as if each had all of them."""
    check = "shared cards"
    found: list[Diagnosis] = []
    cut = {seen.card for seen in scene.cards if seen.labels.get("GPU_I_ID")}
    crowded = sorted(_crowded(scene, cut))
    if crowded:
        text = f"{some(crowded)}: each card names one pod at most"
        found.append(finding(kind_of("prometheus-one-pod-wins"), check, text, subject=some(crowded), **scene.exporter))
    copied, beside = set(), set()
    for card, series in _by_card(scene.cards).items():
        if card in cut:
            continue
        with_pod = [one for one in series if one.pod is not None]
        values = {one.value for one in with_pod}
        if len({one.pod for one in with_pod}) > 1 and len(values) == 1 and values != {0.0}:
            copied.add(card)
        if any("pod_uid" in one.labels for one in with_pod) and len(with_pod) < len(series):
            beside.add(card)
    if copied:
        text = f"{scene.base} is the same for all pods of {len(copied)} cards: {some(copied)}"
        kind = kind_of("prometheus-card-value-copied")
        found.append(finding(kind, check, text, subject=some(copied), **scene.exporter))
    if beside:
        text = f"{len(beside)} cards have a series without a pod beside those of their pods"
        found.append(finding(kind_of("prometheus-card-beside-pods"), check, text, subject=some(beside)))
    yield from found or [well(Area.PROMETHEUS, check, "no card is reported twice, or for one pod of several")]


def _crowded(scene: Scene, cut: Set[str]) -> Iterator[str]:
    """Nodes on which more cards are asked for than there are, while each card names one pod at most."""
    told = {seen.pod for seen in scene.slices}
    asked = Counter[str]()
    for pod, holder in scene.holders.items():
        if pod not in told:
            asked[holder.node] += round(holder.cards)
    for node, series in _by_node(scene.cards).items():
        pods_of: dict[str, set[tuple[str, str]]] = defaultdict(set)
        for one in series:
            pods_of[one.card] |= set() if one.pod is None else {one.pod}
        is_single = all(len(pods) <= 1 for pods in pods_of.values())
        if asked[node] > len(pods_of) and is_single and not cut & set(pods_of):
            yield f"{node} ({asked[node]} asked for, {len(pods_of)} cards)"


def hami(scene: Scene) -> Iterator[Diagnosis]:
    """HAMi's monitor that is not scraped, and names of two versions."""
    check = "HAMi names"
    found: list[Diagnosis] = []
    new, old = [name for name in _HAMI_NEW if scene.has(name)], [name for name in _HAMI_OLD if scene.has(name)]
    if scene.has(*_HAMI_SCHEDULER) and not scene.slices:
        text = f"{some(new + old)} without any metric of what containers use"
        found.append(finding(kind_of("prometheus-hami-monitor-missing"), check, text))
    pairs = zip(_HAMI_NEW, _HAMI_OLD, strict=True)
    doubled = [f"{one} and {other}" for one, other in pairs if scene.has(one) and scene.has(other)]
    if doubled:
        found.append(finding(kind_of("prometheus-hami-both-names"), check, some(doubled)))
    elif old and not new:
        found.append(finding(kind_of("prometheus-hami-old-names"), check, some(old)))
    yield from found or [well(Area.PROMETHEUS, check, f"names from 2.9 on: {some(new)}" if new else "no HAMi")]


def stale_grants(scene: Scene) -> Iterator[Diagnosis]:
    """Grants of pods that are gone, and pods whose namespace nobody reports."""
    check = "grants"
    if not scene.pods:
        yield unchecked(Area.PROMETHEUS, check, "kube_pod_info is not there: whether a pod lives is unknown")
        return
    found: list[Diagnosis] = []
    living = {pod_of(reading.labels) for reading in scene.pods}
    granted = {seen.pod for name in _HAMI_SCHEDULER for seen in scene.seen(name) if seen.pod is not None}
    gone = {"/".join(pod) for pod in granted - living}
    if gone:
        text = f"{len(gone)} pods that kube_pod_info does not have: {some(gone)}"
        found.append(finding(kind_of("prometheus-hami-stale-grant"), check, text, subject=some(gone)))
    spaces = Counter(pod for _, pod in living)
    bare = {seen.pod[1] for seen in scene.seen(_VOLCANO) if seen.pod is not None and not seen.pod[0]}
    twice = {pod for pod in bare if spaces[pod] > 1}
    if twice:
        text = f"in several namespaces: {some(twice)}"
        kind = kind_of("prometheus-volcano-pod-ambiguous")
        found.append(finding(kind, check, text, subject=some(twice), pod=min(twice)))
    yield from found or [well(Area.PROMETHEUS, check, f"{len(granted)} grants of living pods")]


def cards_once(scene: Scene) -> Iterator[Diagnosis]:
    """Cards that two scrapes tell, and several clusters in one."""
    check = "copies"
    found: list[Diagnosis] = []
    places: dict[tuple[tuple[str, str], ...], set[tuple[str, ...]]] = defaultdict(set)
    for seen in scene.cards:
        own = tuple(sorted(item for item in seen.labels.items() if item[0] not in _SCRAPE_LABELS))
        places[own].add(tuple(seen.labels.get(name, "") for name in _SCRAPE_LABELS))
    twice = {dict(own).get("UUID", "") for own, ways in places.items() if len(ways) > 1}
    if twice:
        text = f"{len(twice)} cards come by several jobs or instances: {some(twice)}"
        found.append(finding(kind_of("prometheus-card-scraped-twice"), check, text, subject=some(twice)))
    label = scene.settings.cluster_label
    clusters = {seen.labels[label] for seen in (*scene.cards, *scene.other_cards) if seen.labels.get(label)}
    if len(clusters) > 1 and scene.settings.cluster is None:
        text = f"{label} is {some(clusters)}"
        found.append(finding(kind_of("prometheus-several-clusters"), check, text, cluster=min(clusters)))
    yield from found or [well(Area.PROMETHEUS, check, "each card is reported once, for one cluster")]


def measured_nodes(scene: Scene) -> Iterator[Diagnosis]:
    """Nodes with cards that nobody measures, and pods with cards that nobody reports."""
    check = "coverage"
    if not scene.has(ALLOCATABLE):
        yield unchecked(Area.PROMETHEUS, check, f"{ALLOCATABLE} is not there: which nodes have cards is unknown")
        return
    query = f"{scene.ask.selector(ALLOCATABLE, OF_CARDS)} > 0"
    having = {reading.labels.get("node", "") for reading in scene.ask.vector(query)}
    everybody = (*scene.cards, *scene.other_cards, *scene.slices)
    measured = {seen.node for seen in everybody}
    # Where names of containers stand for nodes, every node would seem unmeasured: that is told by its own finding.
    missed = sorted(having - measured)[:20] if measured & having or not measured else []
    for node in missed:
        kind = kind_of("prometheus-node-unmeasured")
        yield finding(kind, check, "it has cards, and no series of a card names it", subject=node, **scene.exporter)
    named = {seen.pod for seen in everybody if seen.pod is not None}
    silent = sorted(set(scene.holders) - named) if named else []
    if silent:
        text = f"{len(silent)} of {len(scene.holders)} pods with cards: {some('/'.join(pod) for pod in silent)}"
        namespace, pod = silent[0]
        yield finding(kind_of("prometheus-pod-silent"), check, text, namespace=namespace, pod=pod)
    elif not missed:
        yield well(Area.PROMETHEUS, check, f"{len(having)} nodes with cards are measured")


def card_models(scene: Scene) -> Iterator[Diagnosis]:
    """Models that the catalogue does not know."""
    check = "card models"
    models = {seen.card_model for seen in (*scene.cards, *scene.other_cards) if seen.card_model}
    unknown = sorted(model for model in models if find_model(model) is None)
    for model in unknown[:20]:
        yield finding(kind_of("prometheus-card-model-unknown"), check, "no such model", subject=model, model=model)
    if not models:
        yield unchecked(Area.PROMETHEUS, check, "no model is reported")
    elif not unknown:
        yield well(Area.PROMETHEUS, check, some(models))


def identities(scene: Scene) -> Iterator[Diagnosis]:
    """Slots that have had several cards, and names that have had several pods, within a day."""
    check = "identities"
    found: list[Diagnosis] = []
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
            text = f"several within a day: {some(slots)}"
            kind = kind_of("prometheus-card-identity-changed")
            found.append(finding(kind, check, text, subject=some(slots), node=node or "NODE"))
    if scene.has("kube_pod_info"):
        info = f"last_over_time({ask.selector('kube_pod_info')}[1d])"
        reused = ask.vector(f"count by (namespace, pod) (count by (namespace, pod, uid) ({info})) > 1")
        wanted = {pod_of(reading.labels) for reading in reused} & set(scene.holders)
        if wanted:
            text = f"{len(wanted)} names of pods with cards have had several pods: {some(map('/'.join, wanted))}"
            found.append(finding(kind_of("prometheus-pod-name-reused"), check, text, **scene.exporter))
    yield from found or [well(Area.PROMETHEUS, check, "slots and names meant one card and one pod for a day")]


def _by_node(cards: Iterable[Seen]) -> Mapping[str, Sequence[Seen]]:
    found: dict[str, list[Seen]] = defaultdict(list)
    for seen in cards:
        found[seen.node].append(seen)
    return found


def _by_card(cards: Iterable[Seen]) -> Mapping[str, Sequence[Seen]]:
    found: dict[str, list[Seen]] = defaultdict(list)
    for seen in cards:
        found[seen.card].append(seen)
    return found


def _node_of(labels: Mapping[str, str]) -> str:
    return next((labels[name] for name in NODES if labels.get(name)), "?")
