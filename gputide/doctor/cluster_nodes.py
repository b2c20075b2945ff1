"""Nodes of a cluster and what shares their cards: backends, device plugins, webhooks. Looks of the area cluster."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from enforcer.backends.detect import ON_NVIDIAS_PLUGIN, conflicts
from enforcer.backends.running import PART_KINDS, parts_of, running_tag
from enforcer.kubernetes.admission_probe import PODS_WEBHOOK
from enforcer.manifest import Manifest
from fleet.capabilities.register import records_of
from fleet.capabilities.version import record_for, version_note
from fleet.errors import Refused
from fleet.grammars.hami import NODE_HANDSHAKE_ANNOTATION, NODE_REGISTER_ANNOTATION
from fleet.sentences import listed, sentence
from fleet.settings.settings import ClusterChoice
from gputide.doctor.cluster_scene import ClusterScene, namespaced, nodes_run, runs_elsewhere
from gputide.doctor.finding import Diagnosis, finding, otherwise, some, well

PRODUCT_LABEL = "nvidia.com/gpu.product"
SHARING_LABEL = "nvidia.com/gpu.sharing-strategy"
MIG_CONFIG_LABEL, MIG_STATE_LABEL = "nvidia.com/mig.config", "nvidia.com/mig.config.state"
_GONE = "Deleted"
_SHARED_SUFFIX = "-SHARED"
_NODES_MAX = 20
_PARTS_NAMED = 4


def nodes(scene: ClusterScene) -> Iterator[Diagnosis]:
    """What nodes with cards run, and how they fare."""
    yield from _backends(scene)
    yield from _fare(scene, {entry.node for entry in scene.backends})
    yield otherwise(nodes_run(scene.backends))


def _backends(scene: ClusterScene) -> Iterator[Diagnosis]:
    seen, chosen = scene.backends, scene.settings.enforcer.backend
    if not seen:
        yield finding("no-gpu-nodes", sentence("doctor.found.no_sign", nodes=len(scene.nodes)))
        return
    told, disputed = nodes_run(seen), conflicts(seen)
    for node, conflict in list(disputed.items())[:_NODES_MAX]:
        yield finding("backend-conflict", conflict, subject=node)
    if runs_elsewhere(seen, chosen) and not disputed:
        backend = Counter(entry.backend for entry in seen).most_common(1)[0][0]
        text = sentence("doctor.found.nodes_run", told=told, backend=chosen)
        yield finding("backend-elsewhere", text, backend=backend)
    elif len({entry.backend for entry in seen} - ON_NVIDIAS_PLUGIN) > 1 and not disputed:
        yield finding("backend-mixed", told)


def _fare(scene: ClusterScene, with_cards: set[str]) -> Iterator[Diagnosis]:
    unlabelled, sliced = [], []
    for node in scene.nodes:
        name, labels, annotations = str(node["metadata"]["name"]), _texts(node, "labels"), _texts(node, "annotations")
        handshake = annotations.get(NODE_HANDSHAKE_ANNOTATION, "")
        if handshake.startswith(_GONE):
            namespace, _ = namespaced(scene.settings.backends.hami_device_plugin)
            told = f"{NODE_HANDSHAKE_ANNOTATION}={handshake}"
            yield finding("hami-register-stale", told, subject=name, namespace=namespace, node=name)
        if labels.get(MIG_STATE_LABEL) == "failed":
            told = f"{MIG_CONFIG_LABEL}={labels.get(MIG_CONFIG_LABEL)}"
            yield finding("mig-config-failed", told, subject=name, node=name)
        if labels.get(MIG_CONFIG_LABEL) and '"mode":"mig"' in annotations.get(NODE_REGISTER_ANNOTATION, ""):
            text = sentence("doctor.found.register_mig", label=MIG_CONFIG_LABEL, value=labels[MIG_CONFIG_LABEL])
            yield finding("mig-two-managers", text, subject=name, node=name)
        if name not in with_cards:
            continue
        if not _is_ready(node):
            yield finding("node-unready", sentence("doctor.found.not_ready"), subject=name, node=name)
        if PRODUCT_LABEL not in labels and NODE_REGISTER_ANNOTATION not in annotations:
            unlabelled.append(name)
        if labels.get(SHARING_LABEL) == "time-slicing" or labels.get(PRODUCT_LABEL, "").endswith(_SHARED_SUFFIX):
            sliced.append(name)
    if unlabelled:
        text = sentence("doctor.found.nodes", nodes=len(unlabelled), names=some(unlabelled))
        yield finding("node-model-unlabelled", text, subject=some(unlabelled))
    if sliced:
        text = sentence("doctor.found.nodes", nodes=len(sliced), names=some(sliced))
        yield finding("time-slicing", text, subject=some(sliced))


def parts(scene: ClusterScene) -> Iterator[Diagnosis]:
    """The backend's device plugin and ConfigMaps, where the settings say that they are."""
    places, backend = scene.settings.backends, scene.settings.enforcer.backend
    if backend not in ("hami", "effectivegpu"):
        yield well(sentence("doctor.found.no_parts", backend=backend))
        return
    namespace, name = namespaced(getattr(places, f"{backend}_device_plugin"))
    plugin = scene.reader.get("DaemonSet", namespace, name)
    status: Mapping[str, Any] = {} if plugin is None else plugin.get("status", {})
    ready, wanted = status.get("numberReady", 0), status.get("desiredNumberScheduled", 0)
    if plugin is None or ready < wanted:
        text = sentence("doctor.found.no_daemonset")
        if plugin is not None:
            text = sentence("doctor.found.ready_pods", ready=ready, wanted=wanted)
        yield finding("device-plugin-unready", text, subject=f"{namespace}/{name}", namespace=namespace, name=name)
    for part in ("device_config", "node_config"):
        setting, place = f"backends.{backend}_{part}", getattr(places, f"{backend}_{part}")
        if scene.reader.get("ConfigMap", *namespaced(place)) is None:
            yield finding("backend-config-missing", f"{setting}={place}", subject=place, setting=setting)
    yield otherwise(sentence("doctor.found.place_ready", namespace=namespace, name=name, ready=ready, wanted=wanted))


def backend_version(scene: ClusterScene) -> Iterator[Diagnosis]:
    """Which version of the chosen backend runs, by the images of its own parts, and whether its facts are known."""
    enforcer = scene.settings.enforcer
    records = records_of(enforcer.backend)
    images = records[-1].images
    if not images and enforcer.backend_version is None:
        yield well(sentence("doctor.found.shows_none", backend=enforcer.backend))
        return
    parts = parts_of(images, (one for kind in PART_KINDS for one in scene.reader.list_objects(kind)))
    tag = enforcer.backend_version or running_tag(parts)
    named = [f"{part} ({part.tag})" for part in parts[:_PARTS_NAMED]]
    where = listed(named, _PARTS_NAMED) if named else sentence("doctor.found.no_part")
    if tag is None:
        yield finding("backend-version-unseen", where, subject=enforcer.backend)
        return
    try:
        record_for(records, tag)
    except Refused as exc:
        yield finding("backend-version-old", exc.said, subject=enforcer.backend)
        return
    newer = version_note(records, tag)
    if newer is not None:
        yield finding("backend-version-new", newer, subject=enforcer.backend)
    yield otherwise(sentence("doctor.found.seen", backend=enforcer.backend, version=tag, where=where))


def webhooks(scene: ClusterScene) -> Iterator[Diagnosis]:
    """Admission webhooks: HAMi's where it is needed, and whether ours can be answered."""
    path = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
    told = scene.get(path, "mutatingwebhookconfigurations.admissionregistration.k8s.io", verb="list") or {}
    entries = [entry for entry in told.get("items", []) if isinstance(entry, dict)]
    names = [str(entry["metadata"]["name"]) for entry in entries]
    there = sentence("doctor.found.there_are", names=listed(names, len(names)))
    if scene.settings.enforcer.backend == "hami" and not any("hami" in str(_words(entry)) for entry in entries):
        yield finding("hami-webhook-missing", there)
    own = [hook for entry in entries for hook in entry.get("webhooks") or [] if hook.get("name") == PODS_WEBHOOK]
    for hook in own:
        yield from _own_webhook(scene, hook)
    if not own and scene.settings.enforcer.cluster is ClusterChoice.KUBERNETES:
        yield finding("admission-missing", there)
    yield otherwise(some(names) or sentence("doctor.found.none_configured"))


def _own_webhook(scene: ClusterScene, hook: Mapping[str, Any]) -> Iterator[Diagnosis]:
    client = hook.get("clientConfig") or {}
    service = client.get("service") or {}
    namespace, name = str(service.get("namespace", "")), str(service.get("name", ""))
    policy = hook.get("failurePolicy", "Fail")
    path = f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices"
    slices = scene.get(path, "endpointslices.discovery.k8s.io", verb="list")
    ready = [
        endpoint
        for one in (slices or {}).get("items", [])
        if (one["metadata"].get("labels") or {}).get("kubernetes.io/service-name") == name
        for endpoint in one.get("endpoints") or []
        if (endpoint.get("conditions") or {}).get("ready")
    ]
    reasons = [] if client.get("caBundle") else [sentence("doctor.found.no_authority")]
    reasons += [] if ready else [sentence("doctor.found.no_endpoint")]
    if reasons:
        text = sentence("doctor.found.webhook", reasons=listed(reasons, 2), policy=str(policy))
        yield finding("admission-unready", text, subject=str(hook.get("name")), namespace=namespace, service=name)


def _words(entry: Mapping[str, Any]) -> list[str]:
    """What a configuration is called, and whom it asks."""
    hooks = [hook for hook in entry.get("webhooks") or [] if isinstance(hook, dict)]
    services = [((hook.get("clientConfig") or {}).get("service") or {}).get("name", "") for hook in hooks]
    return [str(entry["metadata"]["name"]), *map(str, services), *(str(hook.get("name")) for hook in hooks)]


def _texts(node: Manifest, part: str) -> Mapping[str, str]:
    found: Mapping[str, str] = node["metadata"].get(part) or {}
    return found


def _is_ready(node: Manifest) -> bool:
    conditions = node.get("status", {}).get("conditions") or []
    return any(one.get("type") == "Ready" and one.get("status") == "True" for one in conditions)
