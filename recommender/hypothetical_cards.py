"""The same history on other cards: what a plan is made from when somebody asks "what if".

Cards of one model become another one's where the pods on them still fit, by the data sheets and the room that
the re-home rule asks for; cards are added on nodes of their own; cards or nodes are taken away, those that nobody holds
first. A pod on a card that is taken away stays in the history on it, for what it needs does not go away: whether the
plan needs fewer cards than are left is told by counting. Called by the command line's `plan make --what-if`; pure.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fleet.catalogue import CardModel, find_model
from fleet.decisions import Refusal
from fleet.errors import Misconfigured
from fleet.inventory import Card, CardId, CardModelName, Grant, Inventory, Node, WorkloadId
from fleet.schema import Measure
from fleet.sentences import Sentence, sentence
from fleet.sharing import framebuffer_need, replayed_framebuffer
from fleet.usage import CardGrid, Float32, History, SliceGrid, SliceKey
from recommender.demand import Demand, demand_of
from recommender.rehome import LOAD_MAX, slowdown_of

CARDS_PER_NODE = 8
"""Cards of one added node, as most machines have."""
_WHOLE_RATIO = 0.98
"""A grant of this share of a card's framebuffer is the whole card."""
_SCALED = (Measure.SM_ACTIVE, Measure.DUTY_CYCLE, Measure.MEMORY_ACTIVE)


@dataclass(frozen=True, slots=True, kw_only=True)
class SwappedModel:
    """Every card of one model were one of another."""

    source: CardModel
    target: CardModel


@dataclass(frozen=True, slots=True, kw_only=True)
class AddedCards:
    """Some cards more.

    Attributes:
        count: how many, at least 1.
    """

    model: CardModel
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RemovedCards:
    """Some cards fewer.

    Attributes:
        count: how many, at least 1.
    """

    model: CardModel
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RemovedNode:
    """A machine were gone, with its cards."""

    node: str


CardChange = SwappedModel | AddedCards | RemovedCards | RemovedNode
"""One thing that were otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hypothesis:
    """A history as it were on other cards.

    Attributes:
        history: the inventory and the usage, with every live pod of the real one.
        gone: cards that were taken away; those that a pod holds still stand in the history.
        swapped: cards that became another model.
        refused: workloads that a swap leaves on their cards, and why.
    """

    history: History
    gone: frozenset[CardId]
    swapped: frozenset[CardId]
    added: frozenset[CardId]
    refused: tuple[Refusal, ...]

    @property
    def cards(self) -> tuple[Card, ...]:
        """Cards that would stand there."""
        return tuple(card for card in self.history.inventory.cards if card.card not in self.gone)


def on_other_cards(
    history: History, changes: Sequence[CardChange], *, headroom_ratio: float, video_ratio_max: float
) -> Hypothesis:
    """Changes the cards of a history, one change after the other.

    Args:
        headroom_ratio: framebuffer kept free above the largest need, share of it.
        video_ratio_max: use of encoders and decoders up to which a pod counts as not needing them, 0-1.

    Raises:
        Misconfigured: a change asks for what isn't there, or compares models whose data sheets don't allow it.
    """
    state = Hypothesis(history=history, gone=frozenset(), swapped=frozenset(), added=frozenset(), refused=())
    for change in changes:
        if isinstance(change, SwappedModel):
            state = _swapped(state, change, headroom_ratio, video_ratio_max)
        elif isinstance(change, AddedCards):
            state = _added(state, change)
        elif isinstance(change, RemovedCards):
            state = _without_cards(state, change)
        else:
            state = _without_node(state, change)
    return state


def _swapped(state: Hypothesis, change: SwappedModel, headroom_ratio: float, video_ratio_max: float) -> Hypothesis:
    slowdown = _slowdown(change)
    history = state.history
    mine = [card for card in state.cards if find_model(card.card_model) is change.source]
    if not mine:
        raise Misconfigured(f"cannot swap cards of {change.source.name}: the cluster has none")
    source_names = {card.card_model for card in mine}
    demand = demand_of(history)
    staying = _staying(demand, mine, change, slowdown, headroom_ratio, video_ratio_max, _video(history, demand))
    tied = {grant.card for grant in demand.grants if grant.workload_id in staying}
    # MIG geometry belongs to a card model: what instances another one could carry is not in the data sheets.
    swapped = {card.card: card for card in mine if card.card not in tied and not card.mig_mode}
    moved = {grant.workload_id for grant in demand.grants if grant.card in swapped}
    size = change.target.framebuffer_bytes
    name = CardModelName(change.target.name)

    def fresh(grant: Grant) -> Grant:
        """A grant on the other model; earlier pods of a workload count as if they had run on it too."""
        if grant.card not in swapped and not (grant.workload_id in moved and grant.card_model in source_names):
            return grant
        is_whole = grant.framebuffer_granted_bytes >= _WHOLE_RATIO * grant.framebuffer_bytes
        granted = size if is_whole else min(size, grant.framebuffer_granted_bytes)
        return replace(grant, card_model=name, framebuffer_bytes=size, framebuffer_granted_bytes=granted)

    grants = tuple(fresh(grant) for grant in history.inventory.grants)
    slices, grants = _slices_on(history, grants, slowdown)
    inventory = replace(
        history.inventory,
        cards=tuple(
            replace(card, card_model=name, framebuffer_bytes=size) if card.card in swapped else card
            for card in history.inventory.cards
        ),
        grants=grants,
    )
    return replace(
        state,
        history=History(
            inventory=inventory, slices=slices, cards=_cards_on(history.cards, set(swapped), name, slowdown, size)
        ),
        swapped=state.swapped | set(swapped),
        refused=(*state.refused, *staying.values()),
    )


def _slowdown(change: SwappedModel) -> float:
    source, target = change.source, change.target
    old, new = source.compute_capability, target.compute_capability
    if source is target:
        raise Misconfigured(f"cannot swap cards of {source.name} for the same model")
    if old is not None and new is not None and new < old:
        raise Misconfigured(
            f"cannot swap cards of {source.name} for {target.name}: it is older (compute capability "
            f"{new[0]}.{new[1]}, not {old[0]}.{old[1]}), so what runs here may not run there"
        )
    slowdown = slowdown_of(source, target)
    if slowdown is None:
        raise Misconfigured(
            f"cannot swap cards of {source.name} for {target.name}: the catalogue does not know the performance, "
            "bandwidth and compute capability of both"
        )
    return slowdown


def _staying(
    demand: Demand,
    cards: Sequence[Card],
    change: SwappedModel,
    slowdown: float,
    headroom_ratio: float,
    video_ratio_max: float,
    video: NDArray[np.float64],
) -> dict[WorkloadId, Refusal]:
    """Workloads that keep their cards, and why; a workload that shares a card with one of them keeps it as well."""
    ids = {card.card for card in cards}
    mig = {card.card for card in cards if card.mig_mode}
    rows_on: dict[CardId, list[int]] = defaultdict(list)
    for row, grant in enumerate(demand.grants):
        if grant.card in ids:
            rows_on[grant.card].append(row)
    found: dict[WorkloadId, Refusal] = {}
    target = change.target
    for card in sorted(rows_on):
        rows = rows_on[card]
        said = _why_not(demand, rows, target, slowdown, headroom_ratio)
        if card in mig or any(demand.grants[row].mig_profile for row in rows):
            said = sentence("mig")
        elif said is None and float(video[rows].max()) > video_ratio_max:
            said = sentence("video_engines", video_ratio=round(float(video[rows].max()), 4))
        if said is not None:
            for row in rows:
                workload = demand.grants[row].workload_id
                found.setdefault(workload, Refusal(workload=workload, reason=said.code, values=said.values))
    changed = True
    while changed:
        changed = False
        for card in sorted(rows_on):
            here = [demand.grants[row].workload_id for row in rows_on[card]]
            keeps = next((workload for workload in here if workload in found), None)
            for workload in here:
                if keeps is not None and workload not in found:
                    values = (("neighbour", keeps),)
                    found[workload] = Refusal(workload=workload, reason="neighbour_stays", values=values)
                    changed = True
    return dict(sorted(found.items()))


def _why_not(
    demand: Demand, rows: Sequence[int], target: CardModel, slowdown: float, headroom_ratio: float
) -> Sentence | None:
    """Why those who share a card would not fit another one, as the re-home rule sees it; None where they would."""
    compute, need = demand.compute[list(rows)], demand.need_bytes[list(rows)]
    if not demand.has_need[list(rows)].all():
        return sentence("preallocation_hides_need")
    if any(demand.grants[row].kv_cache_pool_max_bytes is not None for row in rows):
        return sentence("pool_estimated")
    if not np.isfinite(compute).any(axis=1).all() or not np.isfinite(need).any(axis=1).all():
        return sentence("not_seen")
    held = float(np.nanmax(need, axis=1).sum()) * (1.0 + headroom_ratio)
    if held > target.framebuffer_bytes:
        return sentence(
            "framebuffer", need_bytes=round(held), card_model=target.name, framebuffer_bytes=target.framebuffer_bytes
        )
    load = float(np.nansum(compute, axis=0).max()) * slowdown
    if load > LOAD_MAX:
        return sentence(
            "compute", card_model=target.name, load_ratio=round(load, 4), slowdown=slowdown, limit_ratio=LOAD_MAX
        )
    return None


def _video(history: History, demand: Demand) -> NDArray[np.float64]:
    """Largest use of an encoder or decoder per row of the demand, 0 where not collected, (rows,)."""
    most = np.zeros(len(demand.grants))
    row_of = {SliceKey.of(grant): row for row, grant in enumerate(demand.grants)}
    for measure in (Measure.ENCODER, Measure.DECODER):
        values = history.slices.peak.get(measure, history.slices.mean.get(measure))
        for number, key in enumerate(history.slices.keys if values is not None else ()):
            if values is not None and key in row_of and np.isfinite(values[number]).any():
                most[row_of[key]] = max(most[row_of[key]], float(np.nanmax(values[number])))
    return most


def _slices_on(history: History, grants: Sequence[Grant], slowdown: float) -> tuple[SliceGrid, tuple[Grant, ...]]:
    """Usage of the slices that have come to another model, and the grants with the KV-cache pools they have there."""
    grid = history.slices
    before = {_identity(old): (old, new) for old, new in zip(history.inventory.grants, grants, strict=True)}
    changed = [
        row
        for row, key in enumerate(grid.keys)
        if (pair := before.get(_identity(key))) is not None and pair[0] is not pair[1]
    ]
    if not changed:
        return grid, tuple(grants)
    rows = np.array(changed, np.int64)
    pairs = [before[_identity(grid.keys[row])] for row in changed]
    mean, peak = (_slowed(table, rows, slowdown) for table in (grid.mean, grid.peak))
    new_pools = np.full(len(rows), np.nan)
    for table in (mean, peak):
        if Measure.FRAMEBUFFER_USED not in table:
            continue
        used = table[Measure.FRAMEBUFFER_USED][rows]
        cache = table[Measure.KV_CACHE_USAGE][rows] if Measure.KV_CACHE_USAGE in table else None
        pools = np.array([np.nan if old.kv_cache_pool_bytes is None else old.kv_cache_pool_bytes for old, _ in pairs])
        granted = np.array([new.framebuffer_granted_bytes for _, new in pairs], np.float64)
        shown, cache, new_pools = replayed_framebuffer(
            used, framebuffer_need(used, cache, pools), cache, pools, granted
        )
        table[Measure.FRAMEBUFFER_USED][rows] = shown
        if cache is not None:
            table[Measure.KV_CACHE_USAGE][rows] = cache
    pool_of = {_identity(grid.keys[row]): pool for row, pool in zip(changed, new_pools.tolist(), strict=True)}
    keys = list(grid.keys)
    for row, (_, new) in zip(changed, pairs, strict=True):
        keys[row] = replace(keys[row], card_model=new.card_model)
    resized = tuple(
        replace(grant, kv_cache_pool_bytes=int(pool))
        if grant.kv_cache_pool_bytes is not None and np.isfinite(pool := pool_of.get(_identity(grant), np.nan))
        else grant
        for grant in grants
    )
    return replace(grid, keys=tuple(keys), mean=mean, peak=peak), resized


def _cards_on(
    grid: CardGrid | None, cards: set[CardId], name: CardModelName, slowdown: float, size: int
) -> CardGrid | None:
    """What the cards themselves would report."""
    if grid is None:
        return None
    rows = np.array([row for row, key in enumerate(grid.keys) if key.card in cards], np.int64)
    mean, peak = (_slowed(table, rows, slowdown) for table in (grid.mean, grid.peak))
    for table in (mean, peak):
        if Measure.FRAMEBUFFER_USED in table:
            table[Measure.FRAMEBUFFER_USED][rows] = np.minimum(table[Measure.FRAMEBUFFER_USED][rows], np.float32(size))
    keys = tuple(replace(key, card_model=name) if key.card in cards else key for key in grid.keys)
    return replace(grid, keys=keys, mean=mean, peak=peak)


def _slowed(table: Mapping[Measure, Float32], rows: NDArray[np.int64], slowdown: float) -> dict[Measure, Float32]:
    """A copy of what is changed: engines as busy as they would be, at most fully."""
    found = dict(table)
    for measure in (*_SCALED, Measure.FRAMEBUFFER_USED, Measure.KV_CACHE_USAGE):
        if measure in found:
            found[measure] = found[measure].copy()
        if measure in found and measure in _SCALED:
            found[measure][rows] = np.minimum(np.float32(1), found[measure][rows] * np.float32(slowdown))
    return found


def _identity(item: Grant | SliceKey) -> tuple[str, str, str, str]:
    return item.namespace, item.pod, item.container, item.card


def _added(state: Hypothesis, change: AddedCards) -> Hypothesis:
    inventory = state.history.inventory
    like = next((card for card in inventory.cards if find_model(card.card_model) is change.model), None)
    word = "".join(letter if letter.isalnum() else "-" for letter in change.model.name.lower())
    known = {node.node for node in inventory.nodes}
    first = sum(name.startswith(f"what-if-{word}-") for name in known)
    cards = tuple(
        Card(
            card=CardId(f"what-if-{word}-{first}-{number:05d}"),
            card_model=like.card_model if like is not None else CardModelName(change.model.name),
            framebuffer_bytes=like.framebuffer_bytes if like is not None else change.model.framebuffer_bytes,
            node=f"what-if-{word}-{first + number // CARDS_PER_NODE}",
            cluster=inventory.cluster,
        )
        for number in range(change.count)
    )
    # Who may come to a node is read off labels that all nodes of the cluster share; its CPU and memory are not limited.
    shared = set.intersection(*(set(node.labels) for node in inventory.nodes)) if inventory.nodes else set()
    nodes = tuple(
        Node(node=name, cluster=inventory.cluster, labels=tuple(sorted(shared)))
        for name in sorted({card.node for card in cards})
    )
    return _with_inventory(
        replace(state, added=state.added | {card.card for card in cards}),
        replace(
            inventory,
            cards=tuple(sorted((*inventory.cards, *cards), key=lambda card: card.card)),
            nodes=tuple(sorted((*inventory.nodes, *nodes), key=lambda node: node.node)),
        ),
    )


def _without_cards(state: Hypothesis, change: RemovedCards) -> Hypothesis:
    mine = [card for card in state.cards if find_model(card.card_model) is change.model]
    if change.count > len(mine):
        raise Misconfigured(
            f"cannot take away {change.count} cards of {change.model.name}: the cluster has {len(mine)}"
        )
    pods: dict[CardId, set[str]] = defaultdict(set)
    for grant in state.history.inventory.live_grants():
        pods[grant.card].add(grant.pod_id)
    ranked = sorted(mine, key=lambda card: (len(pods[card.card]), card.card))
    return _without(state, ranked[: change.count])


def _without_node(state: Hypothesis, change: RemovedNode) -> Hypothesis:
    return _without(state, [card for card in state.cards if card.node == change.node])


def _without(state: Hypothesis, cards: Iterable[Card]) -> Hypothesis:
    """Cards that nobody holds leave the inventory; the others stay in it for those who do."""
    gone = {card.card for card in cards}
    inventory = state.history.inventory
    held = {grant.card for grant in inventory.live_grants()}
    left = tuple(card for card in inventory.cards if card.card not in gone or card.card in held)
    return _with_inventory(replace(state, gone=state.gone | gone), replace(inventory, cards=left))


def _with_inventory(state: Hypothesis, inventory: Inventory) -> Hypothesis:
    return replace(state, history=replace(state.history, inventory=inventory))
