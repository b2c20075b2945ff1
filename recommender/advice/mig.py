"""MIG: a pod that needs a part of its card gets an instance, walled off by hardware."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

from fleet.catalogue import CardModel, find_model
from fleet.decisions import Recommendation, RecommendationKind, Refusal
from fleet.inventory import CardId, WorkloadId
from fleet.money.saving import cards_in, saved
from fleet.sentences import Sentence, sentence
from fleet.workload_kinds import JOB_KINDS
from recommender.advice.case import Case, untouchable, untrusted
from recommender.harm.risk import level_of
from recommender.mig.geometry import profile_framebuffer_bytes
from recommender.mig.instance_size import DAYS_MIN
from recommender.mig.stages import Carving
from recommender.solution import Draft, Solution, confidence_of, needs_of


class Mig:
    """Pods of one card, whole or an instance, on a model that MIG cuts; `mig.advice` says which instance."""

    kind = RecommendationKind.MIG
    shares = False
    spares_critical = False

    def applies(self, case: Case) -> bool:
        """Where the backend cuts by MIG: all but work that would be lost by a restart."""
        return case.capability.cuts_by_mig and case.workload_kind not in JOB_KINDS

    def refusal(self, case: Case) -> Refusal | None:
        """An instance is a wall: what it must hold has to show, and on several days."""
        general = untouchable(case) or untrusted(case, self.kind)
        if general is not None:
            return general
        return self._refuse_shape(case) or case.refuse_hidden(self.kind) or case.refuse_short(self.kind, DAYS_MIN)

    def _refuse_shape(self, case: Case) -> Refusal | None:
        pod, most = Counter(grant.pod for grant in case.grants).most_common(1)[0]
        if most > 1:
            return case.refuse(self.kind, "multi_card", pod=pod, slices=most)
        names = sorted({grant.card_model for grant in case.grants})
        if len(names) > 1:
            return case.refuse(self.kind, "several_card_models", card_models=", ".join(names))
        model = find_model(names[0])
        if model is None or model.mig is None:
            return case.refuse(self.kind, "no_mig", card_model=names[0])
        for size in sorted({grant.framebuffer_bytes for grant in case.grants}):
            if size < _most_bytes(model) or model.is_outgrown_by(size):
                return case.refuse(self.kind, "unlike_its_model", card_model=model.name, framebuffer_bytes=size)
        if case.neighbours and not all(grant.mig_profile for grant in case.grants):
            return case.refuse(self.kind, "shares_already", neighbour=case.neighbours[0])
        return None

    def propose(self, solution: Solution) -> Sequence[Draft]:
        """One stage per step in which cards are emptied and cut."""
        drafts: list[Draft] = []
        count = 0
        cut_before: set[CardId] = set()
        for stage in sorted({item.stage for item in solution.arrangement.carved if item.stage}):
            items = [item for item in solution.arrangement.carved if item.stage == stage]
            made = [_instance(solution, count + number, item) for number, item in enumerate(items, start=1)]
            drafts.append(Draft(title=_title(items, cut_before), recommendations=made))
            count += len(made)
            cut_before |= {card for item in items for card in item.recut}
        return drafts


def _most_bytes(model: CardModel) -> int:
    """Framebuffer of the model's largest instance."""
    profiles = () if model.mig is None else model.mig.profiles
    return max((profile_framebuffer_bytes(model, profile) for profile in profiles), default=0)


def _title(items: Sequence[Carving], cut_before: set[CardId]) -> Sentence:
    cards = {card for item in items for card in item.recut} - cut_before
    if not cards:
        return sentence("mig_there")
    waiting = sum(len(item.waiting) for item in items)
    if waiting:
        return sentence("mig_waits", cards=len(cards), pods=waiting)
    return sentence("mig", cards=len(cards))


def _instance(solution: Solution, number: int, item: Carving) -> Recommendation:
    evidence = solution.evidence(item.workload)
    rows = sorted(item.restarted)
    freed = solution.freed(_left_last(solution).get(item.workload, ()))
    found = item.advice
    others = {solution.grants[row].workload_id for row in item.interrupted} - {item.workload}
    return Recommendation(
        id=f"mig-{number:04d}",
        kind=RecommendationKind.MIG,
        workloads=(item.workload, *sorted(others)),
        pods=solution.pods([*rows, *item.interrupted]),
        cards_freed=cards_in(freed),
        saving_per_week=saved(freed),
        freed=freed,
        risk_level=level_of(found.violation_ratio, confidence_of(evidence)),
        confidence=confidence_of(evidence),
        evidence=evidence,
        needs=needs_of(is_hard=True),
        violation_ratio=found.violation_ratio,
        why=_why(solution, item, cards_in(freed)),
    )


def _why(solution: Solution, item: Carving, freed: int) -> tuple[Sentence, ...]:
    found = item.advice
    beside = len({solution.grants[row].pod_id for row in item.interrupted})
    held = sorted({name for row in item.restarted if (name := solution.grants[row].mig_profile) is not None})
    stays = held == [found.profile.name]
    return (
        *((sentence("mig_kept" if stays else "mig_held", held=", ".join(held)),) if held else ()),
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


def _left_last(solution: Solution) -> dict[WorkloadId, list[CardId]]:
    """Freed cards by the workload on instances that leaves them last."""
    owner = {
        solution.grants[row].card: item.workload
        for item in solution.arrangement.carved
        for row in item.restarted
        if solution.grants[row].card in solution.arrangement.freed
    }
    emptied: dict[WorkloadId, list[CardId]] = defaultdict(list)
    for card in sorted(owner):
        emptied[owner[card]].append(card)
    return emptied
