"""Volcengine mGPU's words for a plan: shares of online and offline work, compute policies, nodes.

The scheduler picks the card on a node and reports only its number there, so a seat is a node and a grant: what a stage
frees on a node is what its cards' grants leave together. Offline work asks for reclaimed cores and runs in what online
work leaves idle; framebuffer is never taken from it, so all of a card's must fit. Sources: Volcengine's help pages on
mGPU and co-location (published description); volcano-sh/volcano's proposal for mGPU (webhook's rules, policies of pods
and nodes, 16 containers a card); kubewharf/katalyst-api:pkg/consts/qos.go.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime

from enforcer.backend import RenderedStage
from enforcer.backends.card_fit import CORE_MODE, check_cards, check_cores, granted_mib, is_whole, shared_percent
from enforcer.backends.node_pin import check_nodes, nodes_of_workloads, pin_fields
from enforcer.backends.pod_template import asks_for_cards, check_notebook
from enforcer.backends.stage import Target, check_init_containers, check_kinds, draft_stage, rendered
from enforcer.dialect import FixedDialect, ObjectKey, SeatSlice, StandingCard
from enforcer.manifest import Manifest, template_of
from enforcer.snapshot import Snapshot
from fleet.capabilities.register import MGPU, CorePolicy
from fleet.decisions import CardPlacement, PlacedSlice, Plan
from fleet.errors import Corrupt, Misconfigured, Refused
from fleet.grammars.mgpu import CORES_RESOURCE, FRAMEBUFFER_RESOURCE, RECLAIMED_CORES_RESOURCE
from fleet.inventory import Priority
from fleet.units import MIB, parse_quantity

POLICY_ANNOTATION = "vke.volcengine.com/mgpu-compute-policy"
"""On a pod; the same key is a label of a node, and both must say the same."""

MULTIPLE_ANNOTATION = "vke.volcengine.com/container-multiple-gpu"
QOS_ANNOTATION = "katalyst.kubewharf.io/qos_level"
NODE_LABEL = "vke.node.gpu.schedule"

FIXED, GUARANTEED, NATIVE = "fixed-share", "guaranteed-burst-share", "native-burst-share"
ONLINE, OFFLINE = "shared_cores", "reclaimed_cores"

FRAMEBUFFER_MIB_MIN = 256
"""Less than this the webhook refuses."""

CARD_CORES = 100

RESOURCES = (CORES_RESOURCE, RECLAIMED_CORES_RESOURCE, FRAMEBUFFER_RESOURCE)
_CARDS_MAX = 64
_ANNOTATIONS = "spec.template.metadata.annotations"


class MgpuDialect(FixedDialect):
    """What containers ask for, and what nodes have (the port `Dialect`)."""

    config_objects: tuple[ObjectKey, ...] = ()

    def slices_of_pod(self, pod: Manifest) -> tuple[SeatSlice, ...]:
        """One share per card of each container of a bound pod; see the port."""
        node = pod["spec"].get("nodeName")
        if node is None:
            return ()
        annotations = pod["metadata"].get("annotations", {})
        counts = _multiple(annotations.get(MULTIPLE_ANNOTATION))
        slices: list[SeatSlice] = []
        for number, container in enumerate(pod["spec"]["containers"]):
            limits = container.get("resources", {}).get("limits", {})
            resource = next((name for name in (CORES_RESOURCE, RECLAIMED_CORES_RESOURCE) if name in limits), None)
            if resource is None:
                continue
            cores = _amount(limits, resource)
            framebuffer_mib = _amount(limits, FRAMEBUFFER_RESOURCE)
            cards = (counts[number] if number < len(counts) else 0) or max(1, cores // CARD_CORES)
            if not 1 <= cards <= _CARDS_MAX:
                raise Corrupt(f"cannot read {resource}={cores} of {container['name']}: more than {_CARDS_MAX} cards")
            is_offline = annotations.get(QOS_ANNOTATION) == OFFLINE
            slices += [
                SeatSlice(
                    container=container["name"],
                    card=None,
                    framebuffer_mib=framebuffer_mib // cards,
                    core_percent=cores // cards,
                    priority=OFFLINE if is_offline else None,
                    node=node,
                    resource=resource,
                )
                for _ in range(cards)
            ]
        return tuple(slices)

    def cards_of_node(self, node: Manifest) -> tuple[StandingCard, ...]:
        """Its cards by number, as its allocatable cores and framebuffer count them; see the port."""
        if node["metadata"].get("labels", {}).get(NODE_LABEL) != "mgpu":
            return ()
        allocatable = node.get("status", {}).get("allocatable", {})
        count = _amount(allocatable, CORES_RESOURCE) // CARD_CORES
        if not count:
            return ()
        if count > _CARDS_MAX:
            raise Corrupt(f"cannot read {CORES_RESOURCE}={count * CARD_CORES}: more than {_CARDS_MAX} cards")
        name = node["metadata"]["name"]
        return tuple(
            StandingCard(
                card=f"{name}/{CORES_RESOURCE}/{number}",
                device_type="",
                node=name,
                framebuffer_mib=_amount(allocatable, FRAMEBUFFER_RESOURCE) // count,
                slices_max=MGPU.slices_per_card_max,
                mode=node_policy(node),
            )
            for number in range(count)
        )


MGPU_DIALECT = MgpuDialect()


class MgpuBackend:
    """Volcengine mGPU (the port `Backend`)."""

    capabilities = MGPU
    dialect = MGPU_DIALECT

    def __init__(self, now: datetime) -> None:
        self._now = now

    def render(self, plan: Plan, stage: int, snapshot: Snapshot) -> RenderedStage:
        """Turn one stage into changes; see the port."""
        draft = draft_stage(plan, stage, snapshot, _seat)
        partly = check_kinds(MGPU, draft.recommendations)
        warnings = [*partly, *draft.warnings, *check_cards(draft, snapshot, MGPU, (CORE_MODE,))]
        for card in draft.cards:
            _check_card(card, snapshot)
        if any(entry.new for entry in draft.moves):
            check_nodes(draft, snapshot, nodes_of_workloads(plan))

        def template_fields(owner: Manifest, kind: str, staying: Sequence[Target]) -> Mapping[str, str | None]:
            return _template_fields(owner, kind, staying, snapshot, plan.plan_id)

        if draft.cards:
            warnings.append("which card of its node a pod gets is the choice of mGPU's scheduler (policy binpack)")
        return rendered(draft, snapshot, template_fields, self._now, warnings=warnings)


def node_policy(node: Manifest) -> str:
    """The compute policy of a node's cards; `fixed-share` where its label says none."""
    return str(node["metadata"].get("labels", {}).get(POLICY_ANNOTATION, FIXED))


def _seat(card: CardPlacement, part: PlacedSlice) -> SeatSlice:
    if card.node is None:
        raise Refused(f"cannot place {part.pod_id} on card {card.card}: the plan does not name its node")
    is_offline = part.priority is Priority.LOW
    whole = is_whole(card, part)
    cores = CARD_CORES if whole else shared_percent(card, part)
    return SeatSlice(
        container=part.container,
        card=None,
        framebuffer_mib=0 if whole else part.framebuffer_bytes // MIB,
        core_percent=cores,
        priority=OFFLINE if is_offline and not whole else None,
        node=card.node,
        resource=RECLAIMED_CORES_RESOURCE if is_offline and not whole else CORES_RESOURCE,
    )


def _check_card(card: CardPlacement, snapshot: Snapshot) -> None:
    """Refuse what mGPU's own rules for a card forbid."""
    node = snapshot.nodes.get(card.node or "")
    if node is None:
        raise Refused(f"cannot place pods on node {card.node}: it is gone since the plan")
    kind = node["metadata"].get("labels", {}).get(NODE_LABEL)
    if kind != "mgpu":
        raise Refused(f"cannot share cards of node {card.node}: its label {NODE_LABEL} is {kind!r}, not 'mgpu'")
    shared = [part for part in card.slices if not is_whole(card, part)]
    if not shared:
        return
    standing = next((found for found in snapshot.cards.values() if found.node == card.node), None)
    room = card.framebuffer_bytes // MIB if standing is None else standing.framebuffer_mib
    if granted_mib(card) > room:
        raise Refused(
            f"cannot grant {granted_mib(card)} MiB on card {card.card}: it has {room} MiB, and framebuffer of offline "
            "work is not pre-empted"
        )
    if len(shared) > MGPU.slices_per_card_max:
        raise Refused(
            f"cannot put {len(shared)} containers on card {card.card}: maxContainersPerCard is "
            f"{MGPU.slices_per_card_max}"
        )
    for is_offline in (False, True):
        check_cores(card, [part for part in shared if (part.priority is Priority.LOW) is is_offline], "mGPU")
    small = next((part for part in shared if part.framebuffer_bytes // MIB < FRAMEBUFFER_MIB_MIN), None)
    if small is not None:
        raise Refused(
            f"cannot give {small.pod_id} {small.framebuffer_bytes // MIB} MiB: {FRAMEBUFFER_RESOURCE} is at least "
            f"{FRAMEBUFFER_MIB_MIN}"
        )
    policy = node_policy(node)
    if policy == NATIVE and len({part.priority is Priority.LOW for part in shared}) > 1:
        raise Refused(
            f"cannot put online and offline work together on node {card.node}: its policy is {NATIVE}, and co-location "
            f"works only with {FIXED} or {GUARANTEED}"
        )
    for part in shared:
        is_bursting = part.core_policy is CorePolicy.BURST and part.priority is not Priority.LOW
        if is_bursting and policy == FIXED:
            raise Refused(
                f"cannot let {part.pod_id} use more than its cores on node {card.node}: its policy is {FIXED}; label "
                f"the node {POLICY_ANNOTATION}={GUARANTEED} while it is empty"
            )
        if part.core_policy is CorePolicy.HARD and policy != FIXED:
            raise Refused(
                f"cannot hold {part.pod_id} to its cores on node {card.node}: its policy is {policy}, and a pod's must "
                "be the same"
            )


def _template_fields(
    owner: Manifest, kind: str, staying: Sequence[Target], snapshot: Snapshot, plan_id: str
) -> Mapping[str, str | None]:
    moving = [entry for entry in staying if entry.new]
    if not moving:
        return {}
    _check_template(owner, kind, staying)
    if any(part.framebuffer_mib for part in moving[0].after):
        check_init_containers(owner, lambda container: asks_for_cards(container, RESOURCES))
    parts = moving[0].after
    annotations: dict[str, str | None] = {}
    if parts[0].framebuffer_mib:
        annotations[POLICY_ANNOTATION] = node_policy(snapshot.nodes[parts[0].node or ""])
    held = template_of(owner).get("metadata", {}).get("annotations", {})
    if parts[0].priority == OFFLINE:
        annotations[QOS_ANNOTATION] = OFFLINE
    elif held.get(QOS_ANNOTATION) == OFFLINE:
        annotations[QOS_ANNOTATION] = ONLINE
    fields = {f"{_ANNOTATIONS}[{key}]": value for key, value in annotations.items()}
    if kind == "Notebook":
        fields = {}
        check_notebook(owner, annotations, {POLICY_ANNOTATION: FIXED, QOS_ANNOTATION: ONLINE})
    for container in template_of(owner)["spec"]["containers"]:
        fields.update(_container_fields(container, [part for part in parts if part.container == container["name"]]))
    return {**fields, **pin_fields(kind, staying, plan_id)}


def _check_template(owner: Manifest, kind: str, staying: Sequence[Target]) -> None:
    name = owner["metadata"]["name"]
    if kind == "Job":
        raise Refused(f"cannot give Job {name} another share: its template can't be changed, and no admission step can")
    for entry in staying:
        containers = Counter(part.container for part in entry.after)
        if any(part.core_percent != CARD_CORES and containers[part.container] > 1 for part in entry.new or ()):
            raise Refused(f"cannot share the cards of {entry.seat.pod_id}: a pod of several cards is not co-located")
    grants = {tuple(sorted(map(_grant, entry.after))) for entry in staying if entry.after}
    if len(grants) > 1:
        raise Refused(
            f"cannot give replicas of {name} different shares ({len(grants)} of them): a template names one, and mGPU "
            "has no annotation that gives a pod its card"
        )


def _container_fields(container: Manifest, parts: Sequence[SeatSlice]) -> Mapping[str, str | None]:
    if not parts:
        return {}
    wanted: dict[str, str | None] = dict.fromkeys(RESOURCES)
    wanted[parts[0].resource or CORES_RESOURCE] = str(sum(part.core_percent for part in parts))
    framebuffer_mib = sum(part.framebuffer_mib for part in parts)
    wanted[FRAMEBUFFER_RESOURCE] = str(framebuffer_mib) if framebuffer_mib else None
    requests = container.get("resources", {}).get("requests", {})
    is_requested = any(name in requests for name in RESOURCES)
    path = f"spec.template.spec.containers[{container['name']}].resources"
    places = ("limits", "requests") if is_requested else ("limits",)
    return {f"{path}.{place}[{name}]": value for place in places for name, value in wanted.items()}


def _grant(part: SeatSlice) -> tuple[str, int, int, str]:
    return part.container, part.framebuffer_mib, part.core_percent, part.resource or ""


def _amount(amounts: Mapping[str, object], name: str) -> int:
    if name not in amounts:
        return 0
    try:
        value = parse_quantity(str(amounts[name]))
    except Misconfigured as exc:
        raise Corrupt(f"cannot read {name}: {exc}") from exc
    if value < 0 or value != int(value):
        raise Corrupt(f"cannot read {name}={amounts[name]}: no whole number")
    return int(value)


def _multiple(text: str | None) -> tuple[int, ...]:
    """Cards of each container, in their order; 0 where the annotation says nothing for it."""
    if text is None:
        return ()
    parts = [part.strip() for part in text.split(",")]
    if len(parts) > _CARDS_MAX or not all(part.isascii() and part.isdigit() and len(part) < 4 for part in parts):
        raise Corrupt(f"cannot read {MULTIPLE_ANNOTATION}: {text[:64]!r} is no list of numbers of cards")
    return tuple(int(part) for part in parts)
