"""Re-home: a workload moves to a free card of a cheaper model on which it still fits, or leaves a node whole."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

from fleet.decisions import Recommendation, RecommendationKind, Refusal
from fleet.inventory import WorkloadId
from fleet.money.saving import cards_in, saved
from fleet.sentences import sentence
from fleet.workload_kinds import JOB_KINDS
from recommender.advice.case import Case, untouchable, untrusted
from recommender.advice.joining import batch_title
from recommender.harm.risk import level_of
from recommender.rehome import Rehoming
from recommender.solution import Draft, Solution, confidence_of

_NODES_NAMED_MAX = 3


class Rehome:
    """Workloads on whole cards of one model; `rehome` says whether there is a cheaper card that fits."""

    kind = RecommendationKind.REHOME
    shares = False
    spares_critical = True

    def applies(self, case: Case) -> bool:
        """One card a pod, whole, and not work that would be lost by a restart."""
        cards = Counter(grant.pod_id for grant in case.grants)
        return (
            case.workload_kind not in JOB_KINDS
            and max(cards.values()) == 1
            and len({grant.card_model for grant in case.grants}) == 1
            and not any(grant.mig_profile for grant in case.grants)
        )

    def refusal(self, case: Case) -> Refusal | None:
        """Only data sheets say what another card does to a service; one that must answer fast is left where it is."""
        general = untouchable(case) or untrusted(case, self.kind)
        if general is not None:
            return general
        if case.is_latency_critical:
            return case.refuse(self.kind, "latency_critical")
        return case.refuse_hidden(self.kind)

    def propose(self, solution: Solution) -> Sequence[Draft]:
        """Pods that make room on a node that is shared without them, and moves to cheaper cards or off whole nodes."""
        rows_of: dict[WorkloadId, list[int]] = defaultdict(list)
        for row in sorted(solution.arrangement.displaced):
            rows_of[solution.grants[row].workload_id].append(row)
        aside = {
            name: _aside(solution, number, name, rows_of[name]) for number, name in enumerate(sorted(rows_of), start=1)
        }
        drafts = []
        for number, names in enumerate(solution.batches, start=1):
            made = [aside[name] for name in names if name in aside]
            drafts += [Draft(title=batch_title(solution, number), recommendations=made, batch=number)] if made else []
        made = [_elsewhere(solution, number, item) for number, item in enumerate(solution.arrangement.rehomed, start=1)]
        for title, is_gathered in (("rehome", False), ("gather", True)):
            own = [
                one
                for one, item in zip(made, solution.arrangement.rehomed, strict=True)
                if bool(item.node_left) is is_gathered
            ]
            drafts += [Draft(title=sentence(title), recommendations=own)] if own else []
        return drafts


def _elsewhere(solution: Solution, number: int, item: Rehoming) -> Recommendation:
    evidence = solution.evidence(item.workload)
    rows = sorted(item.targets)
    freed = solution.freed(solution.grants[row].card for row in rows)
    return Recommendation(
        id=f"rehome-{number:04d}",
        kind=RecommendationKind.REHOME,
        workloads=(item.workload,),
        pods=solution.pods(rows),
        cards_freed=cards_in(freed),
        saving_per_week=saved(freed),
        freed=freed,
        risk_level=level_of(0.0, confidence_of(evidence)),
        confidence=confidence_of(evidence),
        evidence=evidence,
        why=(
            sentence("gather", pods=len(rows), node=item.node_left)
            if item.node_left
            else sentence(
                "rehome",
                pods=len(rows),
                target_model=item.target_model,
                source_model=item.source_model,
                load_max_ratio=round(float(item.load_max), 4),
                slowdown=round(float(item.slowdown), 3),
            ),
        ),
    )


def _aside(solution: Solution, number: int, name: WorkloadId, rows: Sequence[int]) -> Recommendation:
    evidence = solution.evidence(name)
    nodes = sorted({solution.grants[row].node for row in rows})
    return Recommendation(
        id=f"rehome-aside-{number:04d}",
        kind=RecommendationKind.REHOME,
        workloads=(name,),
        pods=solution.pods(rows),
        cards_freed=0,
        saving_per_week=saved(()),
        risk_level=level_of(0.0, confidence_of(evidence)),
        confidence=confidence_of(evidence),
        evidence=evidence,
        why=(sentence("rehome_aside", pods=len(rows), nodes=len(nodes), named=_named(nodes)),),
    )


def _named(nodes: Sequence[str]) -> str:
    return ", ".join(nodes[:_NODES_NAMED_MAX]) + (", …" if len(nodes) > _NODES_NAMED_MAX else "")
