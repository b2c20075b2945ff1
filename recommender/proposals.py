"""Recommendations and stages: the packing told to people, workload by workload, in an order that is safe to stop at.

First idle cards are given back, whole or by pods that hold several, then every workload that shares is cut in place,
then pods move together in batches, or onto MIG instances;
after each stage the granted framebuffer fits every card. Called by `planner`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from decimal import Decimal

from fleet.decisions import Evidence, Need, Recommendation, RecommendationKind, Saving, Stage
from fleet.inventory import CardId, WorkloadId
from fleet.sentences import Sentence, sentence
from fleet.units import GIB
from recommender.harm.risk import level_of
from recommender.mig.stages import Carving
from recommender.proposal_scene import Move, Scene, batches_of, moves_by_workload
from recommender.rehome import Rehoming

_NODES_NAMED_MAX = 3
_KIND_ORDER = (
    RecommendationKind.COLOCATE,
    RecommendationKind.OFFPEAK_PAIR,
    RecommendationKind.OVERSUBSCRIBE,
    RecommendationKind.SLICE,
)


def propose(scene: Scene) -> tuple[tuple[Recommendation, ...], tuple[Stage, ...]]:
    """Recommendations in order of application, and the stages that hold them.

    Each freed card is counted in one recommendation: that of the last pod to leave it.
    """
    reclaims = [_reclaim(scene, number, name) for number, name in enumerate(scene.reclaimed, start=1)]
    fewer = [_fewer(scene, number, name) for number, name in enumerate(_fewer_names(scene), start=1)]
    cut_of = {name: _cut(scene, number, name) for number, name in enumerate(sorted(scene.cuts), start=1)}
    moves_of = moves_by_workload(scene)
    away = _displaced_rows(scene)
    leaves = {name: _displace(scene, number, name, away[name]) for number, name in enumerate(sorted(away), start=1)}
    grouped = {name for names in scene.together for name in names}
    in_place = [rec for name, rec in cut_of.items() if name not in grouped and not scene.waits(name, moves_of)]
    batches = [list(names) for names in scene.together] or batches_of(scene, moves_of)
    emptied = _emptied_by(scene, batches)
    joins: list[Recommendation] = []
    stages: list[Stage] = []
    if reclaims:
        stages.append(_stage(1, "Give back idle cards", reclaims, sum(len(rec.pods) for rec in reclaims)))
    if fewer:
        stages.append(_stage(len(stages) + 1, "Ask for fewer cards", fewer, sum(len(rec.pods) for rec in fewer)))
    if in_place:
        moved = sum(len(rec.pods) for rec in in_place)
        stages.append(_stage(len(stages) + 1, "Cut slices in place, nobody moves", in_place, moved))
    for number, batch in enumerate(batches, start=1):
        made = [leaves[name] for name in batch if name in leaves]
        made += [cut_of[name] for name in batch if name in cut_of and (name in grouped or scene.waits(name, moves_of))]
        for name in batch:
            if name in moves_of:
                joins.append(_join(scene, len(joins) + 1, name, moves_of[name], emptied.get(name, ())))
                made.append(joins[-1])
        what = "Share the cards of nodes, emptied for it" if scene.together else "Share cards"
        title = f"{what}, batch {number} of {len(batches)}"
        stages.append(_stage(len(stages) + 1, title, made, len({pod for rec in made for pod in rec.pods})))
    carved: list[Recommendation] = []
    cut_before: set[CardId] = set()
    for items in _mig_batches(scene):
        made = [_mig(scene, len(carved) + number, item) for number, item in enumerate(items, start=1)]
        carved += made
        title = _mig_title(items, cut_before)
        stages.append(_stage(len(stages) + 1, title, made, sum(len(rec.pods) for rec in made)))
        cut_before |= {card for item in items for card in item.recut}
    homes = [_rehome(scene, number, item) for number, item in enumerate(scene.rehomed, start=1)]
    if homes:
        stages.append(_stage(len(stages) + 1, "Move to cheaper cards", homes, sum(len(rec.pods) for rec in homes)))
    return (*reclaims, *fewer, *leaves.values(), *cut_of.values(), *joins, *carved, *homes), tuple(stages)


def _stage(number: int, title: str, recommendations: Sequence[Recommendation], moves: int) -> Stage:
    return Stage(
        stage=number,
        title=title,
        recommendations=tuple(rec.id for rec in recommendations),
        cards_freed=sum(rec.cards_freed for rec in recommendations),
        moves=moves,
    )


def _pods(scene: Scene, rows: Sequence[int]) -> tuple[str, ...]:
    return tuple(sorted({scene.grants[row].pod_id for row in rows}))


def _saved(scene: Scene, cards: Sequence[CardId]) -> Saving:
    savings = [scene.savings[card] for card in cards]
    return Saving(
        amortised=_sum([saving.amortised for saving in savings]), marginal=_sum([saving.marginal for saving in savings])
    )


def _sum(amounts: Sequence[Decimal | None]) -> Decimal | None:
    """The sum of what is known; None where there are amounts and none is."""
    known = [amount for amount in amounts if amount is not None]
    return None if amounts and not known else sum(known, start=Decimal("0.00"))


def _reclaim(scene: Scene, number: int, name: WorkloadId) -> Recommendation:
    rows = scene.rows_of[name]
    cards = sorted({scene.grants[row].card for row in rows} & scene.freed)
    profile = scene.profiles[name]
    return Recommendation(
        id=f"reclaim-{number:04d}",
        kind=RecommendationKind.RECLAIM,
        workloads=(name,),
        pods=_pods(scene, rows),
        cards_freed=len(cards),
        saving_per_week=_saved(scene, cards),
        risk_level=level_of(0.0, profile.confidence),
        confidence=profile.confidence,
        reason=f"{_sentence(profile.reason)} Scaling it to zero frees {_count(len(cards), 'card')}.",
        change_of_mind="Any activity on one of its engines, or the annotation gputide.io/opt-out.",
        evidence=scene.evidence[name],
        told=(*profile.told, sentence("reclaim", cards=len(cards))),
    )


def _fewer_names(scene: Scene) -> list[WorkloadId]:
    return sorted({scene.grants[row].workload_id for row in scene.dropped})


def _fewer(scene: Scene, number: int, name: WorkloadId) -> Recommendation:
    rows = scene.rows_of[name]
    dropped = [row for row in rows if row in scene.dropped]
    cards = sorted({scene.grants[row].card for row in dropped} & scene.freed)
    pods = _pods(scene, rows)
    before, after = len(rows) // len(pods), (len(rows) - len(dropped)) // len(pods)
    evidence = scene.evidence[name]
    return Recommendation(
        id=f"fewer-cards-{number:04d}",
        kind=RecommendationKind.FEWER_CARDS,
        workloads=(name,),
        pods=pods,
        cards_freed=len(cards),
        saving_per_week=_saved(scene, cards),
        risk_level=level_of(0.0, confidence_of(evidence)),
        confidence=confidence_of(evidence),
        reason=(
            f"{_each_of(len(pods))} holds {_count(before, 'card')} and worked on {after} at most, as "
            f"long as it was seen. Asking for {after} frees {_count(len(cards), 'card')}."
        ),
        change_of_mind="Any activity on one of the cards that are given back, or a new version that spreads over all.",
        evidence=evidence,
        told=(sentence("fewer_cards", pods=len(pods), before=before, after=after, cards=len(cards)),),
    )


def _rehome(scene: Scene, number: int, item: Rehoming) -> Recommendation:
    evidence = scene.evidence[item.workload]
    rows = sorted(item.targets)
    return Recommendation(
        id=f"rehome-{number:04d}",
        kind=RecommendationKind.REHOME,
        workloads=(item.workload,),
        pods=_pods(scene, rows),
        cards_freed=sum(card.card in scene.cards_before for card in item.targets.values()),
        saving_per_week=scene.rehoming_savings[item.workload],
        risk_level=level_of(0.0, confidence_of(evidence)),
        confidence=confidence_of(evidence),
        reason=(
            f"{_each_of(len(rows))} would fit a free {item.target_model} instead of its {item.source_model}: it is "
            f"foretold to use {item.load_max:.0%} of that at most, the old model being {item.slowdown:.1f} times as "
            "fast by its data sheet."
        ),
        change_of_mind=(
            "A measured speed on the new model that is worse than its data sheet says, a need above its framebuffer, "
            "or another price."
        ),
        evidence=evidence,
        told=(
            sentence(
                "rehome",
                pods=len(rows),
                target_model=item.target_model,
                source_model=item.source_model,
                load_max_ratio=round(float(item.load_max), 4),
                slowdown=round(float(item.slowdown), 3),
            ),
        ),
    )


def _displaced_rows(scene: Scene) -> dict[WorkloadId, list[int]]:
    rows_of: dict[WorkloadId, list[int]] = defaultdict(list)
    for row in sorted(scene.displaced):
        rows_of[scene.grants[row].workload_id].append(row)
    return rows_of


def _displace(scene: Scene, number: int, name: WorkloadId, rows: Sequence[int]) -> Recommendation:
    evidence = scene.evidence[name]
    nodes = sorted({scene.grants[row].node for row in rows})
    return Recommendation(
        id=f"rehome-aside-{number:04d}",
        kind=RecommendationKind.REHOME,
        workloads=(name,),
        pods=_pods(scene, rows),
        cards_freed=0,
        saving_per_week=_saved(scene, ()),
        risk_level=level_of(0.0, confidence_of(evidence)),
        confidence=confidence_of(evidence),
        reason=(
            f"{_count(len(rows), 'pod')} of it can't share, and all cards of {_count(len(nodes), 'node')} "
            f"({', '.join(nodes[:_NODES_NAMED_MAX])}{', …' if len(nodes) > _NODES_NAMED_MAX else ''}) will be shared "
            "alike: a whole card of the same model elsewhere keeps it as it is. It saves nothing by itself: those who "
            "share there do."
        ),
        change_of_mind="Another node for those who share, on which everybody does.",
        evidence=evidence,
        told=(sentence("rehome_aside", pods=len(rows), nodes=len(nodes), named=", ".join(nodes[:_NODES_NAMED_MAX])),),
    )


def _mig_batches(scene: Scene) -> list[list[Carving]]:
    numbers = sorted({item.stage for item in scene.carved if item.stage})
    return [[item for item in scene.carved if item.stage == number] for number in numbers]


def _mig_title(items: Sequence[Carving], cut_before: set[CardId]) -> str:
    cards = {card for item in items for card in item.recut} - cut_before
    if not cards:
        return "Move onto MIG instances that are there"
    told = f"Cut {_count(len(cards), 'card')} by MIG, each while it is empty"
    waiting = sum(len(item.waiting) for item in items)
    pods = "1 pod waits" if waiting == 1 else f"{waiting} pods wait"
    return f"{told}: with a spare card, or {pods} meanwhile" if waiting else told


def _mig(scene: Scene, number: int, item: Carving) -> Recommendation:
    evidence = scene.evidence[item.workload]
    rows = sorted(item.restarted)
    cards = _left_last(scene).get(item.workload, ())
    found = item.advice
    others = {scene.grants[row].workload_id for row in item.interrupted} - {item.workload}
    return Recommendation(
        id=f"mig-{number:04d}",
        kind=RecommendationKind.MIG,
        workloads=(item.workload, *sorted(others)),
        pods=_pods(scene, [*rows, *item.interrupted]),
        cards_freed=len(cards),
        saving_per_week=_saved(scene, cards),
        risk_level=level_of(found.violation_ratio, confidence_of(evidence)),
        confidence=confidence_of(evidence),
        reason=_mig_reason(scene, item, len(cards)),
        change_of_mind=(
            f"A pod that needs more than {found.framebuffer_bytes / GIB:.2f} GiB or {found.compute_ratio:.0%} of a "
            "card, for an instance is a wall and what others leave unused is not lent; a new model version; or a "
            "driver that cuts instances of another size."
        ),
        evidence=evidence,
        needs=_needs(True, has_low=False),
        violation_ratio=found.violation_ratio,
        told=_mig_told(scene, item, len(cards)),
    )


def _mig_reason(scene: Scene, item: Carving, freed: int) -> str:
    found = item.advice
    rows = sorted(item.restarted)
    held = sorted({name for row in rows if (name := scene.grants[row].mig_profile) is not None})
    instead = f"instead of {', '.join(held)}" if held else "instead of a whole card"
    if held == [found.profile.name]:
        instead = "as now, on cards that others share"
    gain = f"That frees {_count(freed, 'card')}" if freed else "It frees no card by itself: others join it there"
    text = (
        f"{_each_of(len(rows))} needed at most {found.need_max_bytes / GIB:.1f} GiB and "
        f"{found.load_max:.0%} of a card: an instance {found.profile.name} {instead} holds "
        f"{found.framebuffer_bytes / GIB:.2f} GiB and {found.compute_ratio:.0%}, walled off by hardware. {gain}. "
        "Every day seen was held against the instance that the other days ask for: it would have been too small in "
        f"{found.violation_ratio:.2%} of the active time."
    )
    if item.interrupted:
        count = len({scene.grants[row].pod_id for row in item.interrupted})
        beside = "1 pod beside it keeps its card and is" if count == 1 else f"{count} pods beside it keep cards and are"
        text += f" {beside} made anew: a machine is empty while its cards are cut."
    if not item.waiting:
        return text
    is_one = len(item.waiting) == 1
    pods, whom = ("1 pod is", "it") if is_one else (f"{len(item.waiting)} pods are", "them")
    return f"{text} A card is cut while it is empty: {pods} down meanwhile, unless a spare card takes {whom} in."


def _mig_told(scene: Scene, item: Carving, freed: int) -> tuple[Sentence, ...]:
    found = item.advice
    beside = len({scene.grants[row].pod_id for row in item.interrupted})
    return (
        *((sentence("mig_beside", pods=beside),) if item.interrupted else ()),
        *((sentence("mig_waits", pods=len(item.waiting)),) if item.waiting else ()),
        sentence(
            "mig",
            pods=len(item.restarted),
            need_bytes=round(found.need_max_bytes),
            load_max_ratio=round(float(found.load_max), 4),
            profile=found.profile.name,
            framebuffer_bytes=found.framebuffer_bytes,
            compute_ratio=round(float(found.compute_ratio), 4),
            cards=freed,
            violation_ratio=round(float(found.violation_ratio), 6),
        ),
    )


def _left_last(scene: Scene) -> dict[WorkloadId, list[CardId]]:
    """Freed cards by the workload on instances that leaves them last."""
    owner = {
        scene.grants[row].card: item.workload
        for item in scene.carved
        for row in item.restarted
        if scene.grants[row].card in scene.freed
    }
    emptied: dict[WorkloadId, list[CardId]] = defaultdict(list)
    for card in sorted(owner):
        emptied[owner[card]].append(card)
    return emptied


def _cut(scene: Scene, number: int, name: WorkloadId) -> Recommendation:
    rows = scene.rows_of[name]
    cut = scene.cuts[name]
    whole = scene.grants[rows[0]].framebuffer_bytes
    evidence = scene.evidence[name]
    return Recommendation(
        id=f"slice-{number:04d}",
        kind=RecommendationKind.SLICE,
        workloads=(name,),
        pods=_pods(scene, rows),
        cards_freed=0,
        saving_per_week=_saved(scene, ()),
        risk_level=level_of(0.0, confidence_of(evidence)),
        confidence=confidence_of(evidence),
        reason=(
            f"{_each_of(len(rows))} needed at most {cut.shown_bytes / GIB:.1f} GiB; a slice of "
            f"{cut.framebuffer_bytes / GIB:.2f} of {whole / GIB:.0f} GiB and {cut.compute_ratio:.0%} of the card's "
            "compute leaves room for neighbours. It saves nothing by itself: the next stages do."
        ),
        change_of_mind=(
            f"A need above {cut.framebuffer_bytes / GIB:.2f} GiB per pod, a new model version, or a distrusted counter."
        ),
        evidence=evidence,
        needs=_needs(cut.is_hard, has_low=False),
        told=(
            sentence(
                "slice",
                pods=len(rows),
                need_bytes=round(cut.shown_bytes),
                framebuffer_bytes=cut.framebuffer_bytes,
                whole_bytes=whole,
                compute_ratio=round(float(cut.compute_ratio), 4),
            ),
        ),
    )


def _join(
    scene: Scene, number: int, name: WorkloadId, moves: Sequence[Move], cards: Sequence[CardId]
) -> Recommendation:
    kind = next(kind for kind in _KIND_ORDER if any(move.kind is kind for move in moves))
    ratio = max(move.violation_ratio for move in moves)
    mean = sum(move.violation_ratio for move in moves) / len(moves)
    evidence = scene.evidence[name]
    targets = sorted({move.target for move in moves})
    return Recommendation(
        id=f"{kind.value.replace('_', '-')}-join-{number:04d}",
        kind=kind,
        workloads=(name,),
        pods=_pods(scene, [move.row for move in moves]),
        cards_freed=len(cards),
        saving_per_week=_saved(scene, cards),
        risk_level=level_of(mean, confidence_of(evidence)),
        confidence=confidence_of(evidence),
        reason=_join_reason(kind, len(moves), len(targets), len(cards), mean),
        change_of_mind=(
            "A day on which it or a neighbour rises above everything seen so far, more than the forecast counts on; "
            f"its fullest new card is predicted to be contended in {ratio:.2%} of its active time."
        ),
        evidence=evidence,
        needs=_needs(scene.cuts[name].is_hard, has_low=kind is RecommendationKind.COLOCATE),
        violation_ratio=mean,
        low_priority_gpu_hours_per_week=sum(move.low_hours for move in moves),
        told=(
            sentence(
                f"join_{kind.value}",
                pods=len(moves),
                targets=len(targets),
                cards=len(cards),
                violation_ratio=round(float(mean), 6),
                worst_ratio=round(float(ratio), 6),
            ),
        ),
    )


def _join_reason(kind: RecommendationKind, pods: int, targets: int, freed: int, ratio: float) -> str:
    why = {
        RecommendationKind.COLOCATE: "work of low priority uses what a service leaves, and yields to it",
        RecommendationKind.OFFPEAK_PAIR: "its busy hours are its neighbours' quiet ones",
        RecommendationKind.OVERSUBSCRIBE: "peaks together exceed a card, but they rarely meet",
        RecommendationKind.SLICE: "even all peaks together fit the card",
    }[kind]
    return (
        f"{_count(pods, 'pod')} can join {_count(targets, 'card')} that others already hold: {why}. "
        f"That frees {_count(freed, 'card')}; predicted harm is {ratio:.2%} of active time."
    )


def _needs(is_hard: bool, *, has_low: bool) -> tuple[Need, ...]:
    needs = [Need.FRAMEBUFFER_LIMIT]
    if is_hard:
        needs.append(Need.CORE_LIMIT)
    if has_low:
        needs.append(Need.PRIORITY)
    return tuple(needs)


def confidence_of(evidence: Evidence) -> float:
    """Coverage, times days / (days + 1): one day of history is half a promise, a week seven eighths."""
    days = (evidence.until - evidence.since).total_seconds() / 86400
    return round(evidence.coverage_ratio * days / (days + 1.0), 4)


def _emptied_by(scene: Scene, batches: Sequence[Sequence[WorkloadId]]) -> dict[WorkloadId, list[CardId]]:
    """Freed cards by the workload whose move empties them: the last to leave."""
    rank = {name: number for number, name in enumerate(name for batch in batches for name in batch)}
    owner: dict[CardId, WorkloadId] = {}
    for move in scene.moves:
        name = scene.grants[move.row].workload_id
        counted = move.source in scene.freed and move.source not in scene.replaced
        if counted and (move.source not in owner or rank[name] > rank[owner[move.source]]):
            owner[move.source] = name
    emptied: dict[WorkloadId, list[CardId]] = defaultdict(list)
    for card in sorted(owner):
        emptied[owner[card]].append(card)
    return emptied


def _count(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def _each_of(pods: int) -> str:
    return "Its only pod" if pods == 1 else f"Each of its {pods} pods"


def _sentence(text: str) -> str:
    """The text as a sentence of its own."""
    begun = text[:1].upper() + text[1:]
    return begun if begun.endswith((".", "!", "?")) else f"{begun}."
