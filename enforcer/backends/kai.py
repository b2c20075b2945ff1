"""KAI's words for a plan: how much framebuffer a pod asks for stands in annotations of its template.

By counting alone that is one annotation in MiB. With `NvFractions` it is a request and a limit of the container by
name, which the driver holds once the node says that it is ready; both are written alike, so nothing is lent.

KAI works on top of NVIDIA's device plugin: for every card that it shares, a pod of its own in
`kai-resource-reservation` asks the plugin for the whole card, so what a node offers less what all its pods ask for is
what is really free. Which pods share a card is KAI's choice, and it fills cards up before it opens new ones (unless its
placement strategy was set to spread); pods are kept on the planned nodes (`node_pin`), so a node that the plan frees
gets none. A plan for KAI sizes the slices of a node so that it needs as many cards whatever KAI chooses
(`slices_that_meet`). Where several cards of a node are shared, or sizes leave more open, a stage says so.

Sources: kai-scheduler/KAI-Scheduler:pkg/common/constants/constants.go, docs/gpu-sharing/README.md,
docs/gpu-sharing/nv-fraction, pkg/scheduler/plugins/gpupack/gpupack.go.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from enforcer.backend import RenderedStage
from enforcer.backends.alike import with_all_replicas, with_seats_as_they_are
from enforcer.backends.card_fit import check_isolation, granted_mib, is_whole
from enforcer.backends.device_plugin import (
    CARD_RESOURCE,
    FRAMEBUFFER_LABEL,
    DevicePluginDialect,
    check_job,
    counted_slice,
    devices_of,
    label_number,
    offered,
    resource_fields,
)
from enforcer.backends.node_pin import check_nodes, node_of, nodes_of_workloads, pin_fields
from enforcer.backends.pod_template import check_notebook
from enforcer.backends.stage import (
    StageDraft,
    Target,
    check_init_containers,
    check_kinds,
    draft_stage,
    rendered,
)
from enforcer.dialect import Dialect, SeatSlice
from enforcer.manifest import Manifest, field_of, template_of
from enforcer.snapshot import Snapshot
from fleet.capabilities.capability import Capabilities, slices_that_meet
from fleet.capabilities.kai import KAI, KAI_NVFRACTIONS
from fleet.decisions import CardPlacement, PlacedSlice, Plan
from fleet.errors import Refused
from fleet.grammars.kai import (
    CARDS_ANNOTATION,
    CONTAINER_ANNOTATION,
    FRACTION_ANNOTATION,
    FRAMEBUFFER_ANNOTATION,
    READY_CONDITION,
    READY_CONDITIONS,
    asks_kai,
    limit_annotation,
    parse_kai_share,
    request_annotation,
)
from fleet.units import MIB

SCHEDULER = "kai-scheduler"
QUEUE_LABEL = "kai.scheduler/queue"

CAPPED = "nvidia.com/container.gpu-memory"
"""Stands in a seat for the annotations of `NvFractions`, whose names hold the container's."""

_ANNOTATIONS = "spec.template.metadata.annotations"


class KaiDialect(DevicePluginDialect):
    """KAI's annotations in pods, NVIDIA's labels on nodes (the port `Dialect`)."""

    def slices_of_pod(self, pod: Manifest) -> tuple[SeatSlice, ...]:
        """What a bound pod of KAI's shares of cards, or its whole cards; see the port."""
        spec, metadata = pod["spec"], pod["metadata"]
        if spec.get("schedulerName") != SCHEDULER or spec.get("nodeName") is None:
            return super().slices_of_pod(pod)
        share = parse_kai_share(metadata.get("annotations", {}), metadata.get("labels", {}))
        if share is None:
            return super().slices_of_pod(pod)
        by_size = CAPPED if share.is_capped else FRAMEBUFFER_ANNOTATION
        part = SeatSlice(
            container=share.container or spec["containers"][0]["name"],
            card=None,
            framebuffer_mib=share.framebuffer_mib or 0,
            core_percent=0 if share.ratio is None else int(100 * share.ratio),
            node=spec["nodeName"],
            resource=by_size if share.ratio is None else FRACTION_ANNOTATION,
        )
        return (part,) * share.cards


class KaiBackend:
    """KAI's fractions of cards (the port `Backend`)."""

    capabilities: Capabilities = KAI
    dialect: Dialect = KaiDialect()
    resource = FRAMEBUFFER_ANNOTATION

    def __init__(self, now: datetime) -> None:
        self._now = now

    def render(self, plan: Plan, stage: int, snapshot: Snapshot) -> RenderedStage:
        """Turn one stage into changes; see the port."""
        plan, along = with_all_replicas(with_seats_as_they_are(plan, snapshot), stage, snapshot, stays_on_node=True)
        nodes_of = nodes_of_workloads(plan)
        draft = draft_stage(plan, stage, snapshot, self._seat_slice)
        warnings = [*along, *draft.warnings, *check_kinds(self.capabilities, draft.recommendations)]
        for card in draft.cards:
            self._check_card(card, snapshot)
        check_nodes(draft, snapshot, nodes_of)

        def template_fields(owner: Manifest, kind: str, staying: Sequence[Target]) -> Mapping[str, str | None]:
            if not any(entry.new for entry in staying):
                return {}
            _check_owner(owner, kind)
            fields = _share_fields(owner, kind, staying)
            return fields | pin_fields(kind, staying, plan.plan_id)

        warnings += _choice_warnings(draft, snapshot)
        return rendered(draft, snapshot, template_fields, self._now, warnings=warnings)

    def _check_node(self, node: Manifest) -> None:
        """Refuse a node that can't share its cards in this way."""
        del node

    def _seat_slice(self, card: CardPlacement, part: PlacedSlice) -> SeatSlice:
        if part.mig_profile is not None:
            raise Refused(
                f"cannot give {part.pod_id} a MIG instance with KAI: it cuts no cards; enforcer.backend=mig does"
            )
        if is_whole(card, part):
            return counted_slice(part.container, card.node or "", CARD_RESOURCE)
        return SeatSlice(
            container=part.container,
            card=None,
            framebuffer_mib=max(1, part.framebuffer_bytes // MIB),
            node=card.node,
            resource=self.resource,
        )

    def _check_card(self, card: CardPlacement, snapshot: Snapshot) -> None:
        """Refuse what KAI's books can't hold."""
        check_isolation(card, snapshot, self.capabilities)
        if all(is_whole(card, part) for part in card.slices):
            return
        node = node_of(snapshot, card.node or "")
        self._check_node(node)
        registered = label_number(node, FRAMEBUFFER_LABEL)
        if registered is None:
            raise Refused(
                f"cannot share card {card.card} by framebuffer: node {card.node} has no label {FRAMEBUFFER_LABEL}, by "
                "which KAI turns MiB into a fraction"
            )
        granted, shareable = granted_mib(card), KAI.shareable_bytes(registered * MIB) // MIB
        if granted > shareable:
            raise Refused(
                f"cannot grant {granted} MiB on card {card.card}: node {card.node} registers {registered} MiB, of "
                f"which KAI shares {shareable} (it counts in steps of {KAI.card_step_bytes // MIB} MiB)"
            )


class KaiNvFractionsBackend(KaiBackend):
    """KAI with `global.gpuSharingMode: NvFractions` (the port `Backend`)."""

    capabilities = KAI_NVFRACTIONS
    resource = CAPPED

    def _check_node(self, node: Manifest) -> None:
        conditions = (node.get("status") or {}).get("conditions") or ()
        if not any(entry.get("type") in READY_CONDITIONS and entry.get("status") == "True" for entry in conditions):
            raise Refused(
                f"cannot share cards of node {node['metadata']['name']}: its condition {READY_CONDITION} is not True, "
                "and KAI places no pod of a limited share before; see the pods of gpu-fractioning on it, or set "
                "enforcer.backend=kai where the cluster only counts"
            )


def _check_owner(owner: Manifest, kind: str) -> None:
    """KAI places pods of its own only; which queue a team pays from is nobody's guess."""
    name = f"{kind} {owner['metadata']['namespace']}/{owner['metadata']['name']}"
    scheduler = field_of(owner, "spec.template.spec.schedulerName")
    if scheduler != SCHEDULER:
        raise Refused(
            f"cannot change {name}: its pods are placed by schedulerName={scheduler}, and KAI shares cards among pods "
            f"of {SCHEDULER} only"
        )
    labels = {**owner["metadata"].get("labels", {}), **template_of(owner).get("metadata", {}).get("labels", {})}
    if QUEUE_LABEL not in labels:
        raise Refused(f"cannot change {name}: it has no label {QUEUE_LABEL}, and KAI places no pod without a queue")


def _share_fields(owner: Manifest, kind: str, staying: Sequence[Target]) -> dict[str, str | None]:
    """Annotations and resources of a template for the new seats of its pods.

    Raises:
        Refused: its pods would have to ask for different things, or for more than an annotation can say.
    """
    name = f"{kind} {owner['metadata']['namespace']}/{owner['metadata']['name']}"
    wanted = {_asked(entry) for entry in staying if entry.after}
    if len(wanted) != 1:
        raise Refused(f"cannot change {name}: its pods would ask for {len(wanted)} different shares in one template")
    (shares,) = wanted
    template = template_of(owner)
    annotations: dict[str, str | None] = dict.fromkeys(
        (FRAMEBUFFER_ANNOTATION, FRACTION_ANNOTATION, CARDS_ANNOTATION, CONTAINER_ANNOTATION)
    )
    held = (template.get("metadata") or {}).get("annotations") or {}
    annotations |= dict.fromkeys(key for key in held if asks_kai({key: ""}))
    fields: dict[str, str | None] = {}
    containers = template["spec"]["containers"]
    if shares[0][2] == CARD_RESOURCE:
        fields |= resource_fields(owner, kind, staying)
    else:
        if len({share[:2] for share in shares}) > 1:
            raise Refused(f"cannot change {name}: KAI shares cards with one container of a pod, in equal parts")
        check_init_containers(owner, lambda entry: bool(devices_of(entry)))
        container, mib, resource = shares[0]
        annotations[CARDS_ANNOTATION] = str(len(shares)) if len(shares) > 1 else None
        if resource == CAPPED:
            annotations |= dict.fromkeys((request_annotation(container), limit_annotation(container)), f"{mib}Mi")
        else:
            annotations[FRAMEBUFFER_ANNOTATION] = str(mib)
            annotations[CONTAINER_ANNOTATION] = None if container == containers[0]["name"] else container
        # A pod that shares asks the device plugin for nothing: KAI's reservation does.
        for entry in containers:
            for resource in devices_of(entry):
                for part in ("limits", "requests"):
                    if resource in entry["resources"].get(part, {}):
                        fields[f"spec.template.spec.containers[{entry['name']}].resources.{part}[{resource}]"] = None
    if kind == "Notebook":
        # Without its annotation a pod that asks the device plugin for nothing would get no card at all.
        check_notebook(owner, annotations, {})
    fields |= {f"{_ANNOTATIONS}[{key}]": value for key, value in annotations.items()}
    changed = {path: value for path, value in fields.items() if field_of(owner, path) != value}
    check_job(kind, name, changed)
    return changed


def _asked(target: Target) -> tuple[tuple[str, int, str], ...]:
    return tuple(sorted((part.container, part.framebuffer_mib, part.resource or "") for part in target.after))


def _choice_warnings(draft: StageDraft, snapshot: Snapshot) -> list[str]:
    """What KAI chooses on each node of a stage where several cards are shared."""
    found = []
    for node in dict.fromkeys(card.node for card in draft.cards):
        cards = [card for card in draft.plan.placement if card.node == node]
        shared = [card for card in cards if not all(is_whole(card, part) for part in card.slices)]
        sizes = [part.framebuffer_bytes for card in shared for part in card.slices]
        if len(shared) < 2:
            continue
        most = slices_that_meet(sizes, KAI.shareable_bytes(shared[0].framebuffer_bytes))
        free = offered(node_of(snapshot, node or ""), CARD_RESOURCE) - len(cards)
        if most and -(-len(sizes) // most) == len(shared):
            found.append(
                f"KAI chooses which of the {len(sizes)} slices of node {node} share a card: any {most} of them, on "
                f"{len(shared)} cards"
            )
        elif free > 0:
            found.append(
                f"KAI chooses which slices share a card, and the sizes of those of node {node} leave open which fit "
                f"together, so it may use other than the plan's {len(cards)} cards there; what is really free is seen "
                "when they are placed"
            )
    return found
