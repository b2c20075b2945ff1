"""Slice: grant what a workload needs instead of a whole card, the base of all sharing.

First it asks what the backend's record keeps a workload from, whatever its need.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from fleet.capabilities.capability import CorePolicy, Division, FramebufferIsolation
from fleet.decisions import Recommendation, RecommendationKind, Refusal
from fleet.inventory import Priority, WorkloadId
from fleet.money.saving import saved
from fleet.sentences import Sentence, Value, sentence
from fleet.units import GIB
from recommender.advice.case import Case, untouchable, untrusted
from recommender.advice.joining import batch_title, joins
from recommender.cuts import Cut
from recommender.footprint_grants import pool_cut
from recommender.harm.risk import level_of
from recommender.solution import Draft, Solution, confidence_of, needs_of


def unshareable(case: Case, kind: RecommendationKind) -> Refusal | None:
    """Why the backend can't put pods of a workload on a card with others; None where it can."""
    record = case.capability
    name = record.backend
    if case.workload_kind == "Job" and not record.admits_pods:
        return case.refuse(kind, "job_template_fixed", backend=name)
    if case.isolation == "hard" and not record.holds_limits:
        return case.refuse(
            kind,
            "backend_holds_no_limits",
            backend=name,
            framebuffer_isolation=record.framebuffer_isolation.value,
            compute_isolation=record.compute_isolation.value,
        )
    if case.isolation == "hard" and case.node_policy is CorePolicy.BURST:
        return case.refuse(kind, "node_policy_is_burst")
    if _gaps_without_named_cards(case):
        return case.refuse(kind, "gap_of_backend", backend=name)
    return (
        case.refuse_barred(kind) or _unfit_template(case, kind) or _unfit_division(case, kind) or _unbounded(case, kind)
    )


def _gaps_without_named_cards(case: Case) -> bool:
    """Whether a service would miss a pod that it can't spare, for nobody knows where a new pod would find room."""
    if case.capability.admits_pods or case.settings.guard.gaps_allowed:
        return False
    return case.must_gap or (case.can_surge and not case.spares_one)


def _unfit_template(case: Case, kind: RecommendationKind) -> Refusal | None:
    if case.workload_kind != "Notebook":
        return None
    is_bursting = case.node_policy is CorePolicy.BURST or case.priority is Priority.LOW
    if case.capability.grants_by_annotation or (case.capability.bursts_by_annotation and is_bursting):
        return case.refuse(kind, "notebook_takes_no_annotations", backend=case.capability.backend)
    return None


def _unfit_division(case: Case, kind: RecommendationKind) -> Refusal | None:
    division, name = case.capability.division, case.capability.backend
    pods = len({grant.pod_id for grant in case.grants})
    if division is Division.CLAIM and pods > 1:
        return case.refuse(kind, "claim_is_of_one_card", backend=name, pods=pods)
    if division in (Division.REPLICAS, Division.EQUAL_PARTS) and (case.is_latency_critical or case.isolation == "hard"):
        wish = "latency" if case.is_latency_critical else "isolation"
        return case.refuse(kind, "neighbours_unknown", backend=name, wish=wish)
    return None


def _unbounded(case: Case, kind: RecommendationKind) -> Refusal | None:
    """A server that takes its share of what it sees at its start, and sees more than its slice.

    vLLM alone can be given its share of a card that others use; of SGLang, LMDeploy, TensorRT-LLM and TGI the share
    depends on what others hold when it starts.
    """
    record = case.capability
    server = next((grant.server for grant in case.grants if grant.kv_cache_pool_bytes is not None), None)
    if server is None or (record.shows_limit if record.holds_framebuffer else server == "vllm"):
        return None
    return case.refuse(kind, "server_sees_card", server=server, backend=record.backend)


ESTIMATED_CONFIDENCE_MAX = 0.75
"""Advice that rests on an estimated KV cache is no low risk, however long the history."""
ISOLATIONS = frozenset({"soft", "hard"})


class Slice:
    """Every workload of one card per pod may be cut whose need shows and whose counters hold."""

    kind = RecommendationKind.SLICE
    shares = True
    spares_critical = False

    def applies(self, case: Case) -> bool:
        """Every workload."""
        return True

    def refusal(self, case: Case) -> Refusal | None:
        """What can't be cut, and what must not be cut yet."""
        general = untouchable(case)
        if general is not None:
            return general
        return (
            self._refuse_shape(case)
            or unshareable(case, self.kind)
            or untrusted(case, self.kind)
            or self._refuse_need(case)
        )

    def _refuse_shape(self, case: Case) -> Refusal | None:
        if any(grant.mig_profile for grant in case.grants):
            return case.refuse(self.kind, "mig")
        cards = Counter(grant.pod for grant in case.grants)
        pod, most = cards.most_common(1)[0]
        if most > 1:
            return case.refuse(self.kind, "multi_card", pod=pod, slices=most)
        models = sorted({(grant.card_model, grant.framebuffer_bytes) for grant in case.grants})
        if len(models) > 1:
            names = ", ".join(f"{name or 'cards without a name'} ({size / GIB:.0f} GiB)" for name, size in models)
            return case.refuse(self.kind, "several_card_models", card_models=names)
        if case.isolation not in ISOLATIONS:
            return case.refuse(self.kind, "unknown_isolation", isolation=case.isolation[:63])
        return None

    def _refuse_need(self, case: Case) -> Refusal | None:
        if case.lends:
            return case.refuse(self.kind, "lent_hides_need")
        if not case.has_need:
            return case.refuse(self.kind, "preallocation_hides_need")
        if case.is_estimated and len({grant.pod_id for grant in case.grants}) == 1:
            # One pod tries the slice before the others follow: here nobody would.
            return case.refuse(self.kind, "pool_estimated")
        return None

    def propose(self, solution: Solution) -> Sequence[Draft]:
        """Cuts in place first, then with the batch in which the workload moves; and pods that join by their peaks."""
        cuts = [_cut(solution, number, name) for number, name in enumerate(sorted(solution.arrangement.cuts), start=1)]
        cut_of = {cut.workloads[0]: cut for cut in cuts}
        together = {name for names in solution.arrangement.together for name in names}
        in_place = [cut for name, cut in cut_of.items() if name not in together and not solution.waits(name)]
        drafts = [Draft(title=sentence("slice"), recommendations=in_place)] if in_place else []
        for number, names in enumerate(solution.batches, start=1):
            made = [cut_of[name] for name in names if name in cut_of and (name in together or solution.waits(name))]
            drafts += (
                [Draft(title=batch_title(solution, number), recommendations=made, batch=number, turn=1)] if made else []
            )
        return [*drafts, *joins(solution, self.kind)]


def _cut(solution: Solution, number: int, name: WorkloadId) -> Recommendation:
    rows = solution.problem.rows_of[name]
    cut = solution.arrangement.cuts[name]
    first = solution.grants[rows[0]]
    evidence = solution.evidence(name)
    doubt, lends = _doubt(solution, rows), solution.lending(rows)
    confidence = min(confidence_of(evidence), ESTIMATED_CONFIDENCE_MAX if doubt else 1.0)
    return Recommendation(
        id=f"slice-{number:04d}",
        kind=RecommendationKind.SLICE,
        workloads=(name,),
        pods=solution.pods(rows),
        cards_freed=0,
        saving_per_week=saved(()),
        risk_level=level_of(0.0, confidence),
        confidence=confidence,
        evidence=evidence,
        needs=needs_of(is_hard=cut.is_hard, lends=bool(lends)),
        why=(
            *doubt,
            *_pool_why(solution, rows[0], cut),
            *lends,
            _why(
                solution,
                cut,
                pods=len(rows),
                whole_bytes=first.framebuffer_bytes,
                is_low=first.priority is Priority.LOW,
                lifted=_lifted(solution, rows, cut),
            ),
        ),
    )


def _lifted(solution: Solution, rows: Sequence[int], cut: Cut) -> int | None:
    """The core limit of pods that keep their framebuffer and their cards, and are to have none; None for any others."""
    grants = [solution.grants[row] for row in rows]
    percent = max(round(grant.compute_granted_ratio * 100) for grant in grants)
    is_same = all(grant.framebuffer_granted_bytes == cut.framebuffer_bytes for grant in grants)
    stays = grants[0].workload_id not in solution.moves_of
    return percent if is_same and cut.compute_ratio is None and percent < 100 and stays else None


def _doubt(solution: Solution, rows: Sequence[int]) -> tuple[Sentence, ...]:
    """That the need of any of these rows goes by an estimated KV cache; `apply` lets a pod try the slice first then."""
    sizes = [
        (grant.kv_cache_pool_bytes or 0, grant.kv_cache_pool_max_bytes)
        for grant in (solution.grants[row] for row in rows)
        if grant.kv_cache_pool_max_bytes is not None
    ]
    if not sizes:
        return ()
    least, most = min(size for size, _ in sizes), max(size for _, size in sizes)
    return (sentence("slice_pool_estimated", least_bytes=least, most_bytes=most),)


def _pool_why(solution: Solution, row: int, cut: Cut) -> tuple[Sentence, ...]:
    """What becomes of the KV cache of a pre-allocating server, and what somebody must set who keeps its arguments."""
    grant, sees_limit = solution.grants[row], solution.problem.capability.holds_framebuffer
    card = grant.framebuffer_bytes
    found = pool_cut(solution.problem.demand, row, cut.framebuffer_bytes, card_bytes=card, sees_limit=sees_limit)
    if found is None:
        return ()
    sizes = {"pool_before_bytes": found.pool_bytes + found.cut_bytes, "pool_bytes": found.pool_bytes}
    if sees_limit:
        return (sentence("slice_pool", **sizes),)
    return (sentence("slice_sees_card", **sizes, cut_ratio=found.cut_bytes / card),)


def _why(solution: Solution, cut: Cut, *, pods: int, whole_bytes: int, is_low: bool, lifted: int | None) -> Sentence:
    """What is granted, as the backend enforces it: a limit, a share that is sure, or none.

    Args:
        lifted: core limit that alone goes, percent; None where the slice is another one.
    """
    values: dict[str, Value] = {
        "pods": pods,
        "need_bytes": round(cut.shown_bytes),
        "framebuffer_bytes": cut.framebuffer_bytes,
        "whole_bytes": whole_bytes,
    }
    if lifted is not None:
        return sentence("slice_lift", pods=pods, percent=lifted)
    if cut.compute_ratio is not None:
        # Low priority has its share only as far as others leave it.
        name = "compute_ratio" if cut.is_hard or is_low else "compute_min_ratio"
        return sentence("slice", **values, **{name: cut.compute_ratio})
    if solution.problem.capability.framebuffer_isolation is FramebufferIsolation.NONE:
        return sentence("slice_unlimited", **values)
    return sentence("slice", **values)
