"""Turns a pod's manifest into a record: what it asks for, what it was granted, and what it waits for.

Pure. An annotation is a claim, not a fact: it counts only for a pod that lives, is bound to the node that the
annotation was written for, and whose binding did not fail. The record also says whether the pod refuses to run beside
its own kind: by a required anti-affinity whose selector matches the pod itself, as replicas of one workload are kept on
machines, or in zones, of their own. A preferred one binds no scheduler, and is left out. Called by
`exporter.allocation.state` once per pod event.

Sources: Project-HAMi/HAMi:pkg/util/types.go (bind phases), pkg/device/devices.go,
Project-HAMi/HAMi:pkg/device/metax/protocol.go, Project-HAMi/volcano-vgpu-device-plugin:pkg/util/types.go,
kubernetes/api:core/v1/types.go (PodAntiAffinity, PodAffinityTerm, PodExtendedResourceClaimStatus),
apimachinery:pkg/apis/meta/v1/types.go (LabelSelector).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace

from exporter.allocation.manifest import (
    Shared,
    counts_devices,
    devices_of,
    epoch_seconds,
    is_extended,
    labels_of,
    mapping,
    objects,
    quantity,
    text,
    texts,
    words,
)
from exporter.allocation.records import ContainerNeeds, DistrustReason, OwnedRecord, OwnerLinkRecord, PodRecord
from exporter.allocation.shares import AnnotatedShares, annotated_shares, reserved_cards, speaks_of_grants
from exporter.allocation.waiting import waiting_reason
from fleet.errors import Corrupt
from fleet.grammars.hami import PRIORITY_ENV, PRIORITY_RESOURCE, disables_control
from fleet.grammars.kai import RESERVATION_NAMESPACES, asks_kai
from fleet.grammars.mgpu import RECLAIMED_CORES_RESOURCE
from fleet.inventory import KEPT_APART_LABEL, LIBRARY_OFF_LABEL, Priority
from fleet.kv_cache import model_known
from fleet.object_names import can_own
from fleet.selectors import selects_labels
from fleet.server_arguments import fixed_pool_bytes
from fleet.servers import MODEL_LABEL, model_of, preallocates, server_of
from fleet.tiers import tier_of

_OVER = ("Succeeded", "Failed")
_QUEUE_LABELS = ("kueue.x-k8s.io/queue-name", "kai.scheduler/queue")
_QUEUE_ANNOTATION = "volcano.sh/queue-name"
_QOS_ANNOTATION = "katalyst.kubewharf.io/qos_level"
_QOS_RECLAIMED = "reclaimed_cores"
_APP_CLASS_ANNOTATION = "metax-tech.com/sgpu-app-class"
_APP_CLASSES = {"online": Priority.HIGH, "offline": Priority.LOW}
_CONTAINERS_MAX = 1024
_LIBRARIES = ("hami", "volcano")
"""Backends that read the variable of HAMi's library, each in its own way."""
_SELECTABLE = {"labels_max": 1024, "length_max": 65536}
"""Bounds of the labels of a pod that a `GpuPolicy` may select it by."""


def pod_record(
    manifest: Mapping[str, object], shared: Shared, device_resources: AbstractSet[str] = frozenset()
) -> PodRecord | None:
    """Reads a pod; None for one that has nothing to do with cards."""
    metadata, spec, status = mapping(manifest.get("metadata")), mapping(manifest.get("spec")), manifest.get("status")
    annotations = texts(metadata.get("annotations"))
    namespace = text(metadata.get("namespace"))
    inits, mains = objects(spec.get("initContainers")), objects(spec.get("containers"))
    is_reservation = namespace in RESERVATION_NAMESPACES
    if not (is_reservation or _wants_cards((*mains, *inits), spec, annotations, device_resources)):
        return None
    state = mapping(status)
    labels = texts(metadata.get("labels"))
    reserves = reserved_cards(annotations, labels) if is_reservation else ()
    said = {**annotations, **labels}
    priority = _pod_priority(said)
    containers = (
        *(
            _needs(container, priority, device_resources, said, is_init=not _is_sidecar(container))
            for container in inits[:_CONTAINERS_MAX]
        ),
        *(_needs(container, priority, device_resources, said, is_init=False) for container in mains[:_CONTAINERS_MAX]),
    )
    made, requests = _made_for_resources(state)
    # What an init container had, the others go on with; it keeps only what is nobody else's.
    others = {request for needs in containers if not needs.is_init for request in requests.get(needs.container, ())}
    containers = tuple(
        _using(needs, made, requests.get(needs.container, frozenset()) - (others if needs.is_init else frozenset()))
        for needs in containers
    )
    node = text(spec.get("nodeName")) or None
    phase = state.get("phase")
    is_over = phase in _OVER
    granted, distrust = _granted(annotations, labels, containers, len(inits), node, phase)
    idle = _idle_inits(inits, state)
    scheduled = next((entry for entry in objects(state.get("conditions")) if entry.get("type") == "PodScheduled"), {})
    is_waiting = node is None and not is_over
    created_at = epoch_seconds(metadata.get("creationTimestamp"))
    changed_at = epoch_seconds(scheduled.get("lastTransitionTime"))
    kept = _told_labels(spec, namespace, labels, {**_model_served(mains), **annotations})
    is_cut = not labels.items() <= dict(kept).items()
    return PodRecord(
        namespace=namespace,
        pod=text(metadata.get("name")),
        uid=text(metadata.get("uid")),
        node=node,
        is_over=is_over,
        bound_at=None if node is None else (changed_at or epoch_seconds(state.get("startTime")) or created_at),
        owner=_controller(metadata),
        containers=containers,
        labels=shared.labels(kept),
        selectable=shared.labels(labels_of(labels, {}, **_SELECTABLE)) if is_cut else None,
        shares=tuple(share for share in granted.shares if share.container not in idle),
        groups=granted.groups,
        claims=tuple(sorted({*_claims(spec, state), *(((made, made),) if made else ())})),
        reserves=() if is_over else reserves,
        distrust=distrust,
        queue=_queue(labels, annotations),
        scheduler=text(spec.get("schedulerName")),
        waits_for=waiting_reason(scheduled, spec) if is_waiting else None,
        waits_since=(changed_at or created_at) if is_waiting else None,
    )


def owned_record(manifest: Mapping[str, object]) -> OwnedRecord | None:
    """Reads the metadata of an object that may own pods; None for one that nobody owns."""
    metadata = mapping(manifest.get("metadata"))
    owner = _controller(metadata)
    return None if owner is None else OwnedRecord(uid=text(metadata.get("uid")), owner=owner)


def _wants_cards(
    containers: Sequence[Mapping[str, object]],
    spec: Mapping[str, object],
    annotations: Mapping[str, str],
    device_resources: AbstractSet[str],
) -> bool:
    # Most pods of a cluster leave here, so nothing is built before it is known.
    if asks_kai(annotations) or spec.get("resourceClaims"):
        return True
    # An administrator may name HAMi's resources otherwise. What a pod that asks for none of any device plugin has
    # written on it, nobody granted.
    is_wanted = is_extended if speaks_of_grants(annotations) else counts_devices
    for container in containers:
        resources = mapping(container.get("resources"))
        for kind in ("limits", "requests"):
            if any(is_wanted(name) or name in device_resources for name in mapping(resources.get(kind))):
                return True
    return False


def _needs(
    container: Mapping[str, object],
    priority: Priority,
    device_resources: AbstractSet[str],
    said: Mapping[str, str],
    *,
    is_init: bool,
) -> ContainerNeeds:
    resources = mapping(container.get("resources"))
    limits, requests = mapping(resources.get("limits")), mapping(resources.get("requests"))
    # The API server copies limits to requests of extended resources; either may be given.
    devices = devices_of({**requests, **limits}, device_resources)
    memory = quantity(requests.get("memory"))
    set_priority = _set_priority(container, limits)
    claims = [(text(claim.get("name")), text(claim.get("request"))) for claim in objects(resources.get("claims"))]
    command = _command(container)
    server = server_of(text(container.get("image")), command, said)
    return ContainerNeeds(
        container=text(container.get("name")),
        devices=tuple(sorted(devices.items())),
        cpu_cores=quantity(requests.get("cpu")),
        memory_bytes=None if memory is None else int(memory),
        priority=set_priority or priority,
        claims=tuple(claim for claim, _ in claims),
        requests=tuple((claim, request) for claim, request in claims if request),
        is_init=is_init,
        server=server,
        kv_cache_pool_bytes=fixed_pool_bytes(command) if server == "vllm" else None,
    )


def _using(needs: ContainerNeeds, claim: str, requests: AbstractSet[str]) -> ContainerNeeds:
    """The container with some requests of a claim that its specification does not name."""
    if not requests:
        return needs
    more = tuple((claim, request) for request in sorted(requests))
    return replace(needs, claims=(*needs.claims, claim), requests=(*needs.requests, *more))


def _pod_priority(said: Mapping[str, str]) -> Priority:
    """What labels and annotations say of all containers of a pod: Katalyst's level, MetaX's class of work, its tier."""
    if said.get(_QOS_ANNOTATION) == _QOS_RECLAIMED:
        return Priority.LOW
    tier = tier_of(said)
    own = Priority.NORMAL if tier is None else tier.priority
    return _APP_CLASSES.get(said.get(_APP_CLASS_ANNOTATION, ""), own)


def _is_sidecar(container: Mapping[str, object]) -> bool:
    return container.get("restartPolicy") == "Always"


def _set_priority(container: Mapping[str, object], limits: Mapping[str, object]) -> Priority | None:
    """HAMi's two levels: 0 is high, every other number low; what mGPU lends is low; None where nobody set one."""
    if RECLAIMED_CORES_RESOURCE in limits:
        return Priority.LOW
    if PRIORITY_RESOURCE in limits:
        return Priority.HIGH if quantity(limits[PRIORITY_RESOURCE]) == 0 else Priority.LOW
    for entry in objects(container.get("env")):
        if entry.get("name") == PRIORITY_ENV:
            value = entry.get("value")
            if isinstance(value, str) and value.isascii() and value.isdigit():
                return Priority.HIGH if int(value[:9]) == 0 else Priority.LOW
    return None


def _granted(
    annotations: Mapping[str, str],
    labels: Mapping[str, str],
    containers: Sequence[ContainerNeeds],
    inits: int,
    node: str | None,
    phase: object,
) -> tuple[AnnotatedShares, DistrustReason | None]:
    nothing = AnnotatedShares()
    try:
        found = annotated_shares(annotations, labels, containers, inits)
    except Corrupt:
        return nothing, DistrustReason.CORRUPT
    if not found.shares and not found.groups:
        return nothing, None
    if phase in _OVER:
        return nothing, DistrustReason.FINISHED
    if found.has_failed and phase != "Running":
        return nothing, DistrustReason.BIND_FAILED
    if node is None:
        return nothing, DistrustReason.UNBOUND
    if found.node is not None and found.node != node:
        return nothing, DistrustReason.NODE_DIFFERS
    return found, None


def _idle_inits(inits: Sequence[Mapping[str, object]], status: Mapping[str, object]) -> frozenset[str]:
    """Init containers that have ended for good; those that restart always are sidecars and hold what they have."""
    sidecars = {text(container.get("name")) for container in inits if _is_sidecar(container)}
    return frozenset(
        text(entry.get("name"))
        for entry in objects(status.get("initContainerStatuses"))
        if mapping(entry.get("state")).get("terminated") and entry.get("name") not in sidecars
    )


def _controller(metadata: Mapping[str, object]) -> OwnerLinkRecord | None:
    for reference in objects(metadata.get("ownerReferences")):
        kind, name = text(reference.get("kind")), text(reference.get("name"))
        if reference.get("controller") is True and can_own(kind, name):
            return OwnerLinkRecord(uid=text(reference.get("uid")), kind=kind, name=name)
    return None


def _claims(spec: Mapping[str, object], status: Mapping[str, object]) -> tuple[tuple[str, str], ...]:
    """Claims by their names within the pod; those made from a template are named in the status once they exist."""
    made = {
        text(entry.get("name")): text(entry.get("resourceClaimName"))
        for entry in objects(status.get("resourceClaimStatuses"))
    }
    found = {}
    for entry in objects(spec.get("resourceClaims")):
        name = text(entry.get("name"))
        claim = text(entry.get("resourceClaimName")) or made.get(name, "")
        if claim:
            found[name] = claim
    return tuple(sorted(found.items()))


def _made_for_resources(status: Mapping[str, object]) -> tuple[str, dict[str, frozenset[str]]]:
    """The claim that the scheduler made for extended resources, which no specification names, and who uses what of it.

    Returns:
        Its name, empty where there is none, and its requests by container.
    """
    made = mapping(status.get("extendedResourceClaimStatus"))
    claim = text(made.get("resourceClaimName"))
    requests: dict[str, frozenset[str]] = {}
    for entry in objects(made.get("requestMappings")) if claim else ():
        container = text(entry.get("containerName"))
        requests[container] = requests.get(container, frozenset()) | {text(entry.get("requestName"))}
    return claim, requests


def _model_served(containers: Sequence[Mapping[str, object]]) -> dict[str, str]:
    """The published model that a pod's server serves, as its command names it; nothing where several serve one each.

    No other word of a command is repeated: it may be a secret.
    """
    commands = [
        command
        for container in containers[:_CONTAINERS_MAX]
        if preallocates(server_of(text(container.get("image")), command := _command(container), {}))
    ]
    model = model_known(model_of(commands[0])) if len(commands) == 1 else None
    return {} if model is None else {MODEL_LABEL: model}


def _command(container: Mapping[str, object]) -> list[str]:
    return [*words(container.get("command")), *words(container.get("args"))]


def _told_labels(
    spec: Mapping[str, object], namespace: str, labels: Mapping[str, str], annotations: Mapping[str, str]
) -> tuple[tuple[str, str], ...]:
    """The pod's labels, with what its specification says of it before what somebody wrote of that."""
    said = {KEPT_APART_LABEL: kept_apart(spec, namespace, labels), LIBRARY_OFF_LABEL: _library_off(spec)}
    told = {key: value for key, value in said.items() if value}
    others = {key: value for key, value in labels.items() if key not in told}
    return labels_of(others, {**annotations, **told})


def _library_off(spec: Mapping[str, object]) -> str:
    """The backends whose plugin gives some container of a pod no library because its variables say so."""
    variables = [objects(container.get("env")) for container in objects(spec.get("containers"))[:_CONTAINERS_MAX]]
    return ",".join(name for name in _LIBRARIES if any(disables_control(own, name) for own in variables))


def _queue(labels: Mapping[str, str], annotations: Mapping[str, str]) -> str | None:
    found = next((labels[key] for key in _QUEUE_LABELS if labels.get(key)), None) or annotations.get(_QUEUE_ANNOTATION)
    return sys.intern(found[:253]) if found else None


HOSTNAME_KEY = "kubernetes.io/hostname"
_KEY_LENGTH_MAX = 317
"""A label's key: a prefix of 253, a slash and a name of 63."""


def kept_apart(spec: Mapping[str, object], namespace: str, labels: Mapping[str, str]) -> str | None:
    """The label of nodes in each of whose values at most one pod like this may run; None where it does not mind.

    Returns:
        The widest where there are several: who may not share a zone may not share a machine in it.
    """
    rules = mapping(mapping(spec.get("affinity")).get("podAntiAffinity"))
    terms = objects(rules.get("requiredDuringSchedulingIgnoredDuringExecution"))
    keys = [text(term.get("topologyKey")) for term in terms if _is_of_itself(term, namespace, labels)]
    found = [key for key in keys if 0 < len(key) <= _KEY_LENGTH_MAX]
    wide = [key for key in found if key != HOSTNAME_KEY]
    return next(iter(wide or found), None)


def _is_of_itself(term: Mapping[str, object], namespace: str, labels: Mapping[str, str]) -> bool:
    if term.get("mismatchLabelKeys"):
        return False
    selector = term.get("labelSelector")
    if not isinstance(selector, Mapping):
        # No selector matches nothing, an empty one everything.
        return False
    return _is_of_namespace(term, namespace) and selects_labels(selector, labels)


def _is_of_namespace(term: Mapping[str, object], namespace: str) -> bool:
    named = term.get("namespaces")
    if isinstance(named, Sequence) and not isinstance(named, str) and named:
        return namespace in named
    chosen = term.get("namespaceSelector")
    # By labels of namespaces, which are not read here, a term may mean others alone.
    return chosen is None or (isinstance(chosen, Mapping) and not chosen)
