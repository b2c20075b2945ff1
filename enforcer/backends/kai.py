"""KAI's words for a plan: how much framebuffer a pod asks for stands in annotations of its template.

By counting alone that is one annotation in MiB. With `NvFractions` it is a request and a limit of the container by
name, which the driver holds once the node says that it is ready; both are written alike, so nothing is lent.

KAI works on top of NVIDIA's device plugin: for every card that it shares, a pod of its own in
`kai-resource-reservation` asks the plugin for the whole card, so what a node offers less what all its pods ask for is
what is really free. Which pods share a card is KAI's choice (`node_shares`), and it fills cards up before it opens new
ones (unless its placement strategy was set to spread).

Sources: kai-scheduler/KAI-Scheduler:pkg/common/constants/constants.go, docs/gpu-sharing/README.md,
docs/gpu-sharing/nv-fraction, pkg/scheduler/plugins/gpupack/gpupack.go.
"""

from __future__ import annotations

from collections.abc import Sequence

from enforcer.backends.device_plugin import (
    CARD_RESOURCE,
    FRAMEBUFFER_LABEL,
    DevicePluginDialect,
    check_job,
    devices_of,
    label_number,
    offered,
    resource_fields,
)
from enforcer.backends.node_pin import node_of
from enforcer.backends.node_shares import NodeSharesBackend, one_share
from enforcer.backends.pod_template import check_notebook
from enforcer.backends.stage import Target, check_init_containers
from enforcer.dialect import Dialect, SeatSlice
from enforcer.manifest import Manifest, field_of, template_of
from enforcer.snapshot import Snapshot
from fleet.capabilities.capability import Capabilities
from fleet.capabilities.kai import KAI, KAI_NVFRACTIONS
from fleet.decisions import CardPlacement
from fleet.errors import Refused
from fleet.grammars.kai import (
    CARDS_ANNOTATION,
    CONTAINER_ANNOTATION,
    FRACTION_ANNOTATION,
    FRAMEBUFFER_ANNOTATION,
    READY_CONDITION,
    asks_kai,
    compute_mode,
    is_ready,
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


class KaiBackend(NodeSharesBackend):
    """KAI's fractions of cards (the port `Backend`)."""

    capabilities: Capabilities = KAI
    dialect: Dialect = KaiDialect()
    whole_resource = CARD_RESOURCE
    share_resource = FRAMEBUFFER_ANNOTATION

    def share_fields(
        self, owner: Manifest, kind: str, staying: Sequence[Target], snapshot: Snapshot
    ) -> dict[str, str | None]:
        """Annotations and resources; see the base."""
        del snapshot
        _check_owner(owner, kind)
        return _share_fields(owner, kind, staying)

    def shareable_mib(self, node: Manifest, snapshot: Snapshot) -> int:
        """By the node's label, in hundreds; see the base."""
        del snapshot
        registered = label_number(node, FRAMEBUFFER_LABEL)
        if registered is None:
            raise Refused(
                f"cannot share cards of node {node['metadata']['name']} by framebuffer: it has no label "
                f"{FRAMEBUFFER_LABEL}, by which KAI turns MiB into a fraction"
            )
        return KAI.shareable_bytes(registered * MIB) // MIB

    def free_cards(self, node: str, snapshot: Snapshot) -> int:
        """What the device plugin offers; see the base."""
        return offered(node_of(snapshot, node), CARD_RESOURCE)

    def _check_card(self, card: CardPlacement, snapshot: Snapshot) -> None:
        """Refuse a card for pods that KAI never puts on one; see the base."""
        super()._check_card(card, snapshot)
        modes = {
            compute_mode((template_of(owner).get("metadata") or {}).get("annotations") or {}): part.workload
            for part in card.slices
            if (owner := snapshot.owners.get(part.workload)) is not None
        }
        if len(modes) > 1:
            named = " and ".join(f"{workload} is of {mode}" for mode, workload in sorted(modes.items()))
            raise Refused(
                f"cannot share card {card.card}: {named}, and KAI keeps workloads of different compute modes apart"
            )


class KaiNvFractionsBackend(KaiBackend):
    """KAI with `global.gpuSharingMode: NvFractions` (the port `Backend`)."""

    capabilities = KAI_NVFRACTIONS
    share_resource = CAPPED

    def shareable_mib(self, node: Manifest, snapshot: Snapshot) -> int:
        """Only where the node says that limits are held; see the base."""
        conditions = (node.get("status") or {}).get("conditions") or ()
        if not is_ready(conditions):
            raise Refused(
                f"cannot share cards of node {node['metadata']['name']}: its condition {READY_CONDITION} is not True, "
                "and KAI places no pod of a limited share before; see the pods of gpu-fractioning on it, or set "
                "enforcer.backend=kai where the cluster only counts"
            )
        return super().shareable_mib(node, snapshot)


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
    shares = one_share(name, staying)
    template = template_of(owner)
    annotations: dict[str, str | None] = dict.fromkeys(
        (FRAMEBUFFER_ANNOTATION, FRACTION_ANNOTATION, CARDS_ANNOTATION, CONTAINER_ANNOTATION)
    )
    held = (template.get("metadata") or {}).get("annotations") or {}
    annotations |= dict.fromkeys(key for key in held if asks_kai({key: ""}))
    fields: dict[str, str | None] = {}
    containers = template["spec"]["containers"]
    if shares[0].resource == CARD_RESOURCE:
        fields |= resource_fields(owner, kind, staying)
    else:
        check_init_containers(owner, lambda entry: bool(devices_of(entry)))
        container, mib = shares[0].container, shares[0].framebuffer_mib
        annotations[CARDS_ANNOTATION] = str(len(shares)) if len(shares) > 1 else None
        if shares[0].resource == CAPPED:
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
