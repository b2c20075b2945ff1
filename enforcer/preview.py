"""What a plan would change, before anybody approves it: objects before and after, cards before and after.

The plan page, `plan diff` and a dry run of `apply` show it. Nothing is changed, and whatever stands against a stage is
said instead of raised.
"""

from __future__ import annotations

import copy
import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import yaml

from enforcer.backend import Backend, Move, RenderedStage
from enforcer.backends.card_fit import core_percent
from enforcer.backends.stage import draft_stage
from enforcer.cluster import ClusterReader
from enforcer.dialect import SeatSlice, StandingCard
from enforcer.manifest import Manifest, set_field
from enforcer.node_preview import NodeDiff, counted_after, counted_cards, node_diffs
from enforcer.plan_names import as_planned, with_real_names, with_top_owners
from enforcer.record.journal import ObjectIntent, RunRecord
from enforcer.rollout.holding import Way, way_of
from enforcer.rollout.intents import Canaries, intended_stage, object_intents, rolling_owners
from enforcer.safety.availability import availability_breaches, availability_refusal
from enforcer.safety.stage_checks import check_admission
from enforcer.seat import PodSeat, seats_by_workload
from enforcer.snapshot import Snapshot, take_snapshot
from fleet.decisions import CardPlacement, PlacedSlice, Plan
from fleet.errors import Corrupt, Misconfigured, Refused
from fleet.inventory import CardId, Grant, Inventory, WorkloadId
from fleet.sentences import Sentence, sentence
from fleet.units import MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectDiff:
    """One object before and after.

    Attributes:
        resource_version: version that was read; empty for an object that is made.
        before: YAML as it stands; of objects other than workloads the fields that change alone.
        refusal: why this object keeps its stage from being applied; None where it does not.
        way: how its pods follow each other; None where it does not roll, or others roll it out.
    """

    kind: str
    namespace: str
    name: str
    recommendation: str
    resource_version: str = ""
    before: str
    after: str
    refusal: Sentence | str | None = None
    way: Way | None = None

    @property
    def text(self) -> str:
        """Unified diff of the two."""
        title = f"{self.kind} {self.namespace}/{self.name}"
        lines = difflib.unified_diff(
            self.before.splitlines(), self.after.splitlines(), f"{title} now", f"{title} planned", lineterm="", n=2
        )
        return "\n".join(lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class CardDiff:
    """One card before and after; where a node only counts its cards, one resource of the node.

    Attributes:
        card: card; the resource, where nothing says which card a pod has.
        is_counted: it stands for all that the node gives by a resource.
    """

    card: CardId
    node: str
    before: tuple[str, ...]
    after: tuple[str, ...]
    is_counted: bool = False

    @property
    def freed(self) -> int:
        """1 where it is freed, -1 where it was free and is now used, else 0; of counted cards `NodeDiff` says it."""
        return 0 if self.is_counted else bool(self.before) - bool(self.after)


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePreview:
    """What one stage would do.

    Attributes:
        made: objects of our own that are made first, whole.
        nodes: nodes that are emptied, cut, or start their plugin anew, and those that only count their cards.
        cards: cards on which anything changes, sorted by node and card.
        cards_freed: how many cards fewer are held after this stage than before it.
        refusal: why it can't be applied; None where it can.
    """

    stage: int
    objects: tuple[ObjectDiff, ...]
    moves: tuple[Move, ...]
    cards: tuple[CardDiff, ...]
    cards_freed: int
    warnings: tuple[str, ...]
    refusal: Sentence | str | None
    made: tuple[ObjectDiff, ...] = ()
    nodes: tuple[NodeDiff, ...] = ()


def preview(
    plan: Plan,
    reader: ClusterReader,
    backend: Backend,
    stages: Sequence[int] | None = None,
    runs: Sequence[RunRecord] = (),
    *,
    rehearse: Callable[[ObjectIntent], None] | None = None,
    wave_max: int | None = None,
    gaps_allowed: bool = False,
) -> tuple[StagePreview, ...]:
    """What stages of a plan would do, each on top of the ones before it.

    Args:
        stages: numbers; all where None.
        runs: runs of this plan so far: pods that they moved are called otherwise now.
        rehearse: asks the cluster whether it would take the change of an object, and raises `Refused` where it would
            not; None where nobody can be asked.
        wave_max: how many workloads our rollout changes at once, to say which of them would have fewer pods ready than
            their owners allow; None where the stages are written for others to roll out.
        gaps_allowed: whether services of one replica and latency-critical ones may lose a pod for a while.

    Returns:
        One preview per stage, in order; a stage that is applied already changes nothing, nor does one of the tide.

    Raises:
        Unavailable: the cluster can't be reached.
    """
    snapshot, real = as_planned(take_snapshot(reader, backend.dialect), runs)
    chosen = {entry.stage for entry in plan.stages} if stages is None else set(stages)
    tides = plan.tide_stages
    found: list[StagePreview] = []
    held = counted_cards(snapshot)
    for entry in sorted(plan.stages, key=lambda entry: entry.stage):
        if entry.stage not in chosen:
            continue
        if entry.stage in tides:
            found.append(_left_to_tide(entry.stage))
            continue
        try:
            rendered = with_real_names(backend.render(with_top_owners(plan, snapshot), entry.stage, snapshot), real)
        except (Refused, Corrupt) as exc:
            found.append(_refused(entry.stage, exc.said))
            continue
        after = _after(snapshot, rendered)
        cards = _card_diffs(snapshot, after)
        then = counted_after(plan, after, held)
        nodes = node_diffs(rendered, snapshot, held, then)
        refusal, breaches, ways = _rolled(plan, rendered, snapshot, real, reader, wave_max, gaps_allowed=gaps_allowed)
        found.append(
            StagePreview(
                stage=entry.stage,
                objects=_object_diffs(rendered, snapshot, after, breaches, ways),
                moves=rendered.moves,
                cards=cards,
                cards_freed=sum(card.freed for card in cards) + sum(node.cards_freed for node in nodes),
                made=tuple(_made(manifest) for manifest in rendered.objects),
                nodes=nodes,
                warnings=(*rendered.warnings, *_restarts(rendered, snapshot)),
                refusal=refusal or _refusal(rendered, reader, rehearse),
            )
        )
        snapshot, held = after, then
    return tuple(found)


def preview_of_history(
    plan: Plan, inventory: Inventory, stages: Sequence[int] | None = None
) -> tuple[StagePreview, ...]:
    """What stages would do to pods and cards, where there is no cluster whose objects could be read.

    Returns:
        One preview per stage, in order, without objects: manifests are in no history.
    """
    snapshot, tides = _seen(inventory), plan.tide_stages
    found: list[StagePreview] = []
    for entry in sorted(plan.stages, key=lambda entry: entry.stage):
        if stages is not None and entry.stage not in stages:
            continue
        if entry.stage in tides:
            found.append(_left_to_tide(entry.stage))
            continue
        try:
            draft = draft_stage(plan, entry.stage, snapshot, _planned_slice)
        except Refused as exc:
            found.append(_refused(entry.stage, exc.said))
            continue
        rendered = RenderedStage(stage=entry.stage, changes=(), moves=draft.moves, warnings=draft.warnings)
        after = _after(snapshot, rendered)
        cards = _card_diffs(snapshot, after)
        found.append(
            StagePreview(
                stage=entry.stage,
                objects=(),
                moves=rendered.moves,
                cards=cards,
                cards_freed=sum(card.freed for card in cards),
                warnings=rendered.warnings,
                refusal=None,
            )
        )
        snapshot = after
    return tuple(found)


def _seen(inventory: Inventory) -> Snapshot:
    """Pods and cards of an inventory as a snapshot; who owns the pods is known by name alone."""
    grants: dict[str, list[Grant]] = {}
    for grant in inventory.live_grants():
        grants.setdefault(grant.pod_id, []).append(grant)
    seats = {
        pod_id: PodSeat(
            namespace=own[0].namespace,
            pod=own[0].pod,
            workload=own[0].workload_id,
            node=own[0].node,
            slices=tuple(_granted_slice(grant) for grant in own),
            is_ready=True,
            restarts=0,
            is_oom_killed=False,
            resource_version="",
            deletion_cost=None,
        )
        for pod_id, own in grants.items()
    }
    cards = {
        str(card.card): StandingCard(
            card=card.card,
            device_type=card.card_model,
            node=card.node,
            framebuffer_mib=card.framebuffer_bytes // MIB,
            slices_max=1,
        )
        for card in inventory.cards
    }
    return Snapshot(owners={}, seats=seats, pods=seats_by_workload(seats.values()), cards=cards)


def _granted_slice(grant: Grant) -> SeatSlice:
    return SeatSlice(
        container=grant.container,
        card=grant.card,
        framebuffer_mib=grant.framebuffer_granted_bytes // MIB,
        core_percent=round(100 * grant.compute_granted_ratio),
        priority=grant.priority.value,
    )


def _planned_slice(card: CardPlacement, part: PlacedSlice) -> SeatSlice:
    return SeatSlice(
        container=part.container,
        card=card.card,
        framebuffer_mib=part.framebuffer_bytes // MIB,
        core_percent=core_percent(part),
        priority=part.priority.value,
    )


def _restarts(rendered: RenderedStage, snapshot: Snapshot) -> tuple[str, ...]:
    """How many pods are made anew though they keep their seats, because their owner rolls as a whole."""
    rolling = rolling_owners(object_intents(rendered), snapshot)
    moved = {move.pod_id for move in rendered.moves}
    seats = [seat for name in rolling for seat in snapshot.pods.get(name, []) if seat.slices]
    others = [seat.pod_id for seat in seats if seat.pod_id not in moved]
    if not others:
        return ()
    shown = min(others)
    return (f"pods that stay are made anew too, for their owners roll as a whole: {len(others)}, such as {shown}",)


def place_lines(entry: StagePreview) -> list[str]:
    """Nodes and cards of a stage, before and after, one line each."""
    lines = []
    for node in entry.nodes:
        if node.cards_before is not None:
            lines.append(f"{node.node}: {node.cards_before} cards held -> {node.cards_after}")
        lines += [f"{node.node}: {step}" for step in node.steps]
    lines += [f"{card.node} {card.card}: {_pods(card.before)} -> {_pods(card.after)}" for card in entry.cards]
    return lines


def _pods(pods: Sequence[str]) -> str:
    return ", ".join(pods) or "free"


def _made(manifest: Manifest) -> ObjectDiff:
    metadata = manifest["metadata"]
    return ObjectDiff(
        kind=str(manifest["kind"]),
        namespace=str(metadata.get("namespace", "")),
        name=str(metadata["name"]),
        recommendation="",
        before="",
        after=_yaml(manifest),
    )


def _rolled(
    plan: Plan,
    rendered: RenderedStage,
    snapshot: Snapshot,
    real: Mapping[str, str],
    reader: ClusterReader,
    wave_max: int | None,
    *,
    gaps_allowed: bool,
) -> tuple[Sentence | str | None, Mapping[WorkloadId, Sentence], Mapping[WorkloadId, Way | None]]:
    """What the guard would refuse a stage with for its workloads' availability, as a whole and for each of them.

    Returns:
        Both, and the way in which each workload that rolls is changed.
    """
    if wave_max is None:
        return None, {}, {}
    try:
        record = intended_stage(
            plan.plan_id, rendered, snapshot, real, canaries=Canaries(workloads=0), wave_max=wave_max, watch_seconds=0.0
        )
        breaches = availability_breaches(record, snapshot, reader, wave_max, gaps_allowed=gaps_allowed)
    except (Refused, Misconfigured) as exc:
        return exc.said, {}, {}
    ways = {intent.workload: way_of(intent) for intent in record.objects}
    return availability_refusal(record, breaches), breaches, ways


def _refusal(
    rendered: RenderedStage, reader: ClusterReader, rehearse: Callable[[ObjectIntent], None] | None
) -> Sentence | str | None:
    """What stands against a stage, or against the first of its changes that the cluster would not take."""
    intents = object_intents(rendered)
    try:
        check_admission(rendered.stage, intents, reader)
        if rehearse is not None:
            for intent in intents:
                rehearse(intent)
    except (Refused, Misconfigured) as exc:
        return exc.said
    return None


def _refused(stage: int, why: Sentence | str) -> StagePreview:
    return StagePreview(stage=stage, objects=(), moves=(), cards=(), cards_freed=0, warnings=(), refusal=why)


def _left_to_tide(stage: int) -> StagePreview:
    return StagePreview(
        stage=stage, objects=(), moves=(), cards=(), cards_freed=0, refusal=None,
        warnings=(str(sentence("plan.left_to_tide")),),
    )  # fmt: skip


def _after(snapshot: Snapshot, rendered: RenderedStage) -> Snapshot:
    """The cluster as it would stand after a stage."""
    owners = dict(snapshot.owners)
    configs = dict(snapshot.configs)
    nodes = dict(snapshot.nodes)
    for intent in object_intents(rendered):
        current = owners.get(intent.workload)
        if current is not None:
            owners[intent.workload] = _patched(current, intent)
        elif intent.key in configs:
            configs[intent.key] = _patched(configs[intent.key], intent)
        elif intent.kind == "Node" and intent.name in nodes:
            nodes[intent.name] = _patched(nodes[intent.name], intent)
    seats = dict(snapshot.seats)
    for move in rendered.moves:
        if move.new:
            seats[move.pod_id] = replace(seats[move.pod_id], slices=move.new, node=_node_of(move.new, snapshot))
        else:
            seats.pop(move.pod_id, None)
    pods = seats_by_workload(seats.values())
    return replace(
        snapshot,
        owners=owners,
        seats=seats,
        pods={workload: pods.get(workload, []) for workload in snapshot.pods},
        configs=configs,
        nodes=nodes,
    )


def _patched(manifest: Manifest, intent: ObjectIntent) -> Manifest:
    changed = copy.deepcopy(manifest)
    for part in intent.fields:
        set_field(changed, part.field, part.new)
    return changed


def _node_of(slices: Sequence[SeatSlice], snapshot: Snapshot) -> str | None:
    if slices[0].card is None:
        return slices[0].node
    card = snapshot.cards.get(slices[0].card)
    return None if card is None else card.node


def _object_diffs(
    rendered: RenderedStage,
    before: Snapshot,
    after: Snapshot,
    breaches: Mapping[WorkloadId, Sentence],
    ways: Mapping[WorkloadId, Way | None],
) -> tuple[ObjectDiff, ...]:
    found = []
    for intent in object_intents(rendered):
        old, new = before.owners.get(intent.workload), after.owners.get(intent.workload)
        if old is None or new is None:
            # Pods' deletion costs and node configuration: the fields alone say it.
            old = {part.field: part.old for part in intent.fields if part.old is not None}
            new = {part.field: part.new for part in intent.fields if part.new is not None}
        found.append(
            ObjectDiff(
                kind=intent.kind,
                namespace=intent.namespace,
                name=intent.name,
                recommendation=intent.recommendation,
                resource_version=intent.resource_version,
                before=_yaml(old),
                after=_yaml(new),
                refusal=breaches.get(intent.workload),
                way=ways.get(intent.workload),
            )
        )
    return tuple(found)


def _card_diffs(before: Snapshot, after: Snapshot) -> tuple[CardDiff, ...]:
    then, now = _pods_by_card(after), _pods_by_card(before)
    found = []
    for place in sorted(then.keys() | now.keys(), key=lambda place: (place[0] or "", place[1])):
        if then.get(place) != now.get(place):
            node, card = place
            standing = before.cards.get(card)
            found.append(
                CardDiff(
                    card=CardId(card),
                    node=node if node is not None else "" if standing is None else standing.node,
                    before=now.get(place, ()),
                    after=then.get(place, ()),
                    is_counted=node is not None,
                )
            )
    return tuple(sorted(found, key=lambda diff: (diff.node, diff.card)))


def _pods_by_card(snapshot: Snapshot) -> dict[tuple[str | None, str], tuple[str, ...]]:
    """Pods of each card, or of each resource of a node where the card is nobody's to know."""
    found: dict[tuple[str | None, str], set[str]] = {}
    for seat in snapshot.seats.values():
        for part in seat.slices:
            if part.card is not None:
                found.setdefault((None, part.card), set()).add(seat.pod_id)
            elif part.node is not None and part.resource is not None:
                found.setdefault((part.node, part.resource), set()).add(seat.pod_id)
    return {place: tuple(sorted(pods)) for place, pods in found.items()}


def _yaml(manifest: Mapping[str, object]) -> str:
    return yaml.safe_dump(dict(manifest), sort_keys=True, width=120)
