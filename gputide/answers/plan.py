"""A plan, and what came of it, as answers of the command line; money and its prices in words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from decimal import Decimal
from shlex import quote

from dashboards.view_models.rows import stage_risk
from dashboards.words.advice import plan_in_english, reason_words, refusal_words, remark_words, verdict_words
from enforcer.preview import StagePreview, place_lines
from enforcer.record.verdict import Standing, Verdict, standing_in, verdict_document
from enforcer.rollout.holding import Way
from fleet.capabilities.register import capabilities_of, records_of
from fleet.capabilities.version import version_note
from fleet.confidence import stage_confidence
from fleet.decisions import Plan, Refusal, Saving, Totals
from fleet.documents import document
from fleet.outcomes import Outcome
from fleet.units import (
    Money,
    format_count,
    format_money,
    format_money_short,
    format_percent,
    format_plan_id,
    format_time,
)
from fleet.words import Language, Words
from gputide.output import Answer, Listing

_MODELS_NAMED_MAX = 5


def plan_answer(plan: Plan, notes: Sequence[str] = ()) -> Answer:
    """What `plan make` and `plan show` print, with further notes first below."""
    totals = plan.totals
    recommendations = Listing.of(
        "Recommendations",
        sorted(plan.recommendations, key=lambda item: item.cards_freed, reverse=True),
        {
            "id": lambda item: item.id,
            "kind": lambda item: item.kind.value,
            "workloads": lambda item: _names(item.workloads),
            "pods": lambda item: len(item.pods),
            "cards freed": lambda item: item.cards_freed,
            "per week": lambda item: saving_text(item.saving_per_week, plan.currency),
            "risk": lambda item: item.risk_level.value,
            "confidence": lambda item: round(item.confidence, 2),
            "why": lambda item: reason_words(item, Language.EN),
        },
    )
    stages = Listing.of(
        "Stages",
        plan.stages,
        {
            "stage": lambda stage: stage.stage,
            "title": lambda stage: Words(language=Language.EN).stage(stage.title),
            "recommendations": lambda stage: len(stage.recommendations),
            "cards freed": lambda stage: stage.cards_freed,
            "moves": lambda stage: stage.moves,
            "risk": lambda stage: stage_risk(plan, stage),
            "confidence": lambda stage: round(stage_confidence(plan, stage), 2),
        },
    )
    return Answer(
        document=plan_in_english(plan),
        headline=(
            (
                f"Plan {plan.short_id} for {plan.cluster}: frees {format_count(totals.cards_freed)} of "
                f"{format_count(totals.cards_before)} cards ({format_count(totals.nodes_freed)} whole nodes), keeps "
                f"{format_count(totals.spare_cards)} spare, moves {format_count(totals.moves)} pods"
            ),
            (
                f"{_worth(plan)}; predicted "
                f"violation {harm_words(totals)} (risk {plan.risk.value}); "
                f"made from {format_time(plan.history.since)} to {format_time(plan.history.until)}, coverage "
                f"{format_percent(plan.history.coverage_ratio, digits=1)}; expires {format_time(plan.expires_at)}"
            ),
            *((_nodes_worth(plan),) if plan.freed_nodes else ()),
            *remark_words(plan, Language.EN),
        ),
        listings=(
            recommendations,
            stages,
            *((freed_nodes_listing(plan),) if plan.freed_nodes else ()),
            *((tide_listing(plan),) if plan.schedule else ()),
            _refusals(plan.refused),
        ),
        footnotes=(
            *notes,
            *_backend_note(plan),
            *_experimental_note(plan.backend),
            *(f"withheld: {item.kind.value}: {refusal_words(item, Language.EN)}" for item in plan.withheld),
            *_proof(plan),
            *_relief(plan),
            *_calibration(plan),
            *tide_needs_yes(plan),
            "next: gputide plan explain ID"
            + (f" · gputide plan diff --plan {plan.short_id} · gputide plan approve" if plan.stages else "")
            + (f" · gputide plan show --plan {plan.short_id} --routers" if plan.by_hand else ""),
        ),
    )


def harm_words(totals: Totals) -> str:
    """Predicted harm with its interval, where there is one, and that on days on which the whole fleet is busier."""
    words = format_percent(totals.predicted_violation_ratio, digits=2)
    if totals.predicted_violation_interval is not None:
        least, most = (format_percent(ratio, digits=2) for ratio in totals.predicted_violation_interval)
        words += f", nine times of ten {least} to {most}"
    if totals.shifted_violation_ratio is not None:
        shifted = format_percent(totals.shifted_violation_ratio, digits=2)
        words += f", {shifted} while the whole fleet is {totals.shift_ratio:.1f} times as busy"
    return words


_FACTOR_SHOWN_MIN = 0.005
"""A factor on forecasts nearer to one than this is not worth a line."""


def tide_listing(plan: Plan) -> Listing:
    """Which services scale in at which hours, as `gputide run tide` plays it night by night."""
    return Listing(
        title="Scales in",
        columns=("workload", "replicas", "from", "until", "zone", "frees"),
        rows=[
            (entry.workload, entry.replicas, entry.start, entry.end, entry.time_zone, len(entry.frees))
            for entry in plan.schedule
        ],
        # Nobody says yes to what is cut off.
        is_whole=True,
    )


def tide_needs_yes(plan: Plan) -> tuple[str, ...]:
    """Says of each stage of the tide that no approval means it that does not name it."""
    return tuple(
        f"stage {stage}: the tide needs a yes of its own: gputide plan approve --plan {plan.short_id} --stage {stage}"
        for stage in sorted(plan.tide_stages)
    )


def _backend_note(plan: Plan) -> tuple[str, ...]:
    """Which version the plan is for, where one was seen, and whether it is newer than what is known."""
    if plan.backend_version is None:
        return ()
    newer = version_note(records_of(plan.backend), plan.backend_version)
    return (f"backend: {plan.backend} {plan.backend_version}" if newer is None else f"backend: {newer}",)


def _experimental_note(backend: str) -> tuple[str, ...]:
    """What is said of a plan for a backend that nothing real has accepted yet; nothing of others."""
    if not capabilities_of(backend).is_experimental:
        return ()
    return (f"experimental: no real scheduler or device plugin of {backend} has accepted such changes in a test yet",)


def _proof(plan: Plan) -> tuple[str, ...]:
    """How much any packing could free beyond the plan's, where that was proven."""
    beyond = next((point.cards_beyond_max for point in plan.frontier if point.is_chosen), None)
    if beyond is None:
        return ()
    cards = "not one card" if beyond == 0 else f"at most {beyond} card{'s' if beyond > 1 else ''}"
    return (f"packing: of the pods that share, no other packing as harmless frees more: {cards} (proven)",)


def _relief(plan: Plan) -> tuple[str, ...]:
    """What a plan that counts on relief asks of it."""
    totals = plan.totals
    if totals.unrelieved_violation_ratio is None:
        return ()
    unrelieved, moves = format_percent(totals.unrelieved_violation_ratio, digits=2), totals.relief_moves_per_pod_day
    pace = "" if moves is None else f"; it is expected to move each pod {moves:.2f} times a day"
    return (f"relief: the plan counts on `gputide run relief`, without it {unrelieved} would be violated{pace}",)


def _calibration(plan: Plan) -> tuple[str, ...]:
    """What earlier plans and trials taught of forecasts, where they taught anything."""
    found: tuple[str, ...] = ()
    tried = plan.backtested
    if tried is not None:
        least, most = (
            format_percent(ratio, digits=2) for ratio in (tried.violation_ratio_min, tried.violation_ratio_max)
        )
        plans = f"{tried.trials} plan{'s' if tried.trials > 1 else ''}"
        harm = least if least == most else f"{least} to {most}"
        found += (
            (
                f"back-test: {plans} as dense, made on earlier days and judged from "
                f"{format_time(tried.since)} to {format_time(tried.until)}, harmed {harm}; "
                f"{tried.within_limit} of {tried.trials} kept the limit"
            ),
        )
    if abs(plan.calibration_ratio - 1.0) > _FACTOR_SHOWN_MIN:
        found += (
            (
                f"calibration: by what came of earlier plans of {plan.cluster} and of plans tried on earlier days, "
                f"forecasts of harm are multiplied by {plan.calibration_ratio:.2f}"
            ),
        )
    return found


def preview_answer(plan: Plan, found: Sequence[StagePreview], *, no_cluster: str | None) -> Answer:
    """What `plan diff` and the dry run of `apply` print.

    Args:
        found: what each stage would change.
        no_cluster: why no cluster was read; None where one was.
    """
    titles = {stage.stage: Words(language=Language.EN).stage(stage.title) for stage in plan.stages}
    moves = format_count(sum(len(stage.moves) for stage in found))
    headline: tuple[str, ...]
    if no_cluster is None:
        objects = format_count(sum(len(stage.objects) for stage in found))
        headline = (f"plan {plan.short_id}: would change {objects} objects and move {moves} pods",)
    else:
        seen = f"by what was seen until {format_time(plan.created_at)}; which objects change is not known"
        headline = (f"plan {plan.short_id}: would move {moves} pods, {seen}", no_cluster)
    return Answer(
        document={"plan_id": plan.plan_id, "stages": document(found)},
        headline=headline,
        listings=(
            Listing.of(
                "Stages",
                found,
                {
                    "stage": lambda stage: stage.stage,
                    "title": lambda stage: titles[stage.stage],
                    "objects": lambda stage: len(stage.objects),
                    "pods": lambda stage: len(stage.moves),
                    "cards freed": lambda stage: stage.cards_freed,
                    "refused": lambda stage: stage.refusal or "",
                },
            ),
        ),
        texts=(
            [line for stage in found for item in (*stage.made, *stage.objects) for line in item.text.splitlines()],
            [
                f"refused: stage {stage.stage}: {item.namespace}/{item.kind}/{item.name}: {item.refusal}"
                for stage in found
                for item in stage.objects
                if item.refusal
            ],
            rolls(
                (f"{item.namespace}/{item.kind}/{item.name} (stage {stage.stage})", item.way)
                for stage in found
                for item in stage.objects
                if item.way is not None
            ),
            [line for stage in found for line in place_lines(stage)],
        ),
        warnings=_warnings(found),
        footnotes=(*_experimental_note(plan.backend), "nothing was changed"),
    )


def rolls(owners: Iterable[tuple[str, Way]]) -> list[str]:
    """How the pods of owners follow each other: those with a gap first, a line each, all others a line per way."""
    by_way: dict[Way, list[str]] = {}
    for name, way in owners:
        by_way.setdefault(way, []).append(name)
    gaps = [way for way in (Way.GAP_AT_ONCE, Way.GAP) if way in by_way]
    return [
        *(f"rolls {way.value}: {name}" for way in gaps for name in by_way[way]),
        *(
            f"rolls {way.value}: {len(names)} objects: {', '.join(names)}"
            for way, names in by_way.items()
            if way not in gaps
        ),
    ]


def _warnings(found: Sequence[StagePreview]) -> list[str]:
    """Each warning once, with the stages that it is about behind it."""
    stages: dict[str, list[int]] = {}
    for stage in found:
        for warning in dict.fromkeys(stage.warnings):
            stages.setdefault(warning, []).append(stage.stage)
    return [
        f"note: {warning} ({'stage' if len(numbers) == 1 else 'stages'} {_ranges(numbers)})"
        for warning, numbers in stages.items()
    ]


def _ranges(numbers: Iterable[int]) -> str:
    """Numbers as `1-3, 5`, sorted."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1][1:] = [number]
        else:
            runs.append([number])
    return ", ".join("-".join(map(str, run)) for run in runs)


def outcome_answer(outcome: Outcome, verdict: Verdict, currency: str) -> Answer:
    """What `verify` prints: the verdict, then what it stands on; harm first where a service is over its budget."""
    span = "final" if outcome.is_final else "interim"
    short_id = format_plan_id(outcome.plan_id)
    amounts = Listing(
        title="Predicted and observed",
        columns=("", "predicted", "observed"),
        rows=[
            ("cards freed", outcome.promised_cards_freed, outcome.realised_cards_freed),
            (
                "saving per week",
                saving_text(outcome.promised_saving_per_week, currency),
                saving_text(outcome.realised_saving_per_week, currency),
            ),
            ("harm", format_percent(verdict.predicted_ratio, digits=2), percent_text(verdict.observed_ratio)),
            ("harm of untouched workloads", "", percent_text(outcome.control_violation_ratio)),
            ("cards given back", "", outcome.given_back),
            ("coverage", "", format_percent(outcome.coverage_ratio, digits=1)),
        ],
    )
    text = verdict_words(verdict, Language.EN)
    standings = [(standing_in(outcome, item), item) for item in outcome.workloads if item.violation_ratio]
    harmed = Listing.of(
        "Most harmed services",
        sorted(standings, key=lambda one: one[0] is not Standing.OVER_BUDGET),
        {
            "service": lambda one: one[1].workload,
            "predicted": lambda one: format_percent(one[1].predicted_violation_ratio, digits=2),
            "observed": lambda one: percent_text(one[1].violation_ratio if one[0].is_judged else None),
            "harm budget": lambda one: one[0].value.replace("_", " "),
            "active windows": lambda one: one[1].active_steps,
            "cause": lambda one: one[1].cause or "",
        },
    )
    return Answer(
        document=verdict_document(outcome, text),
        headline=(
            text,
            f"plan {short_id}, {format_time(outcome.since)} to {format_time(outcome.until)} ({span})",
        ),
        listings=(harmed, amounts) if verdict.is_harmed else (amounts, harmed),
    )


def freed_nodes_listing(plan: Plan) -> Listing:
    """Whole nodes that a plan frees, where nodes are what is paid."""
    return Listing.of(
        "Whole nodes that can go",
        plan.freed_nodes,
        {
            "node": lambda one: one.node,
            "cards": lambda one: one.cards,
            "per week": lambda one: (
                "unknown" if one.per_week is None else format_money(Money(amount=one.per_week, currency=plan.currency))
            ),
        },
    )


def _nodes_worth(plan: Plan) -> str:
    """What leaves the bill of nodes, which are paid for whole."""
    known = [one.per_week for one in plan.freed_nodes if one.per_week is not None]
    amount = format_money(Money(amount=sum(known, Decimal(0)), currency=plan.currency)) if known else "an unknown sum"
    return (
        f"{format_count(len(plan.freed_nodes))} whole nodes can go, which ends {amount} a week where nodes are paid; "
        "single cards of rented nodes end nothing there (once verified: gputide admin node release)"
    )


def _worth(plan: Plan) -> str:
    """What a plan saves, and what one moved pod brings where any moves."""
    saving, moves = plan.totals.saving_per_week, plan.totals.moves
    if saving.amortised is None:
        return f"value unknown: {no_price_words(())}"
    text = f"saves {saving_text(saving, plan.currency)} a week"
    if moves == 0:
        return text
    each = Saving(
        amortised=saving.amortised / moves, marginal=None if saving.marginal is None else saving.marginal / moves
    )
    return f"{text}, {saving_text(each, plan.currency)} per moved pod"


def no_price_words(card_models: Sequence[str]) -> str:
    """What has no price, and the command that sets one: `no price for NVIDIA L20 (set one with …)`."""
    if not card_models:
        return "no price for its cards (set one with `gputide cost prices set`)"
    named = ", ".join(card_models[:_MODELS_NAMED_MAX])
    return f"no price for {named} (set one with `gputide cost prices set {quote(card_models[0])} PRICE`)"


def saving_text(saving: Saving, currency: str) -> str:
    """Amortised money and, where known, what stops being paid at once."""
    if saving.amortised is None:
        return "no price"
    shown = format_money_short(Money(amount=saving.amortised, currency=currency))
    if saving.marginal is None or saving.marginal == saving.amortised:
        return shown
    return f"{shown} ({format_money_short(Money(amount=saving.marginal, currency=currency))} marginal)"


def _refusals(refused: tuple[Refusal, ...]) -> Listing:
    groups: dict[str, list[Refusal]] = {}
    for refusal in refused:
        groups.setdefault(refusal.reason, []).append(refusal)
    counted = [(len({item.workload for item in items}), reason, items) for reason, items in groups.items()]
    return Listing(
        title="Refused",
        columns=("reason", "advice", "workloads", "for example"),
        rows=[
            (
                reason,
                ", ".join(dict.fromkeys("all" if item.kind is None else item.kind.value for item in items)),
                workloads,
                f"{items[0].workload}: {refusal_words(items[0], Language.EN)}",
            )
            for workloads, reason, items in sorted(counted, key=lambda group: -group[0])
        ],
    )


def percent_text(ratio: float | None) -> str:
    """A ratio in percent; a dash where it is unknown."""
    return "–" if ratio is None else format_percent(ratio, digits=2)


def _names(names: Iterable[str]) -> str:
    listed = list(names)
    return listed[0] if len(listed) == 1 else f"{listed[0]} and {len(listed) - 1} more" if listed else ""
