"""Every rule against its golden file, and every refusal by its code."""

import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from enforcer.record.plan_store import Approval
from enforcer.safety.guard import Guard, GuardPolicy
from fleet.capabilities.register import HAMI, MIG, WHOLE_CARDS
from fleet.decisions import POOL_ESTIMATED, Recommendation, RecommendationKind, RiskLevel
from fleet.documents import document, plan_from_json, plan_to_json, seal_plan
from fleet.errors import Refused
from fleet.inventory import Priority
from fleet.priority_holds import Holders
from fleet.schema import Measure
from fleet.usage import History
from recommender.past_outcomes import OwnPast
from tests.english import english
from tests.recommender.builders import ANY_CONFIDENCE, PER_DAY, Service, cluster, plan_of
from tests.recommender.mig_builders import holder, on_a100
from tests.recommender.test_rehome import PRICES, SMALL
from tests.recommender.test_rehome import on_a100 as on_a100_beside_l4
from tests.recommender.test_sleeping import WAIT, asked, model

GOLDEN = Path(__file__).parent / "golden"

CASES = {
    "fewer_cards": cluster(Service(name="greedy", replicas=2, level=0.9, used_gib=20.0, cards_per_pod=4, idle_cards=3)),
    "tide": cluster(Service(name="by-day", replicas=6, level=0.9, used_gib=20.0, hours=(8, 20))),
    "reclaim": cluster(
        Service(name="idle-book", kind="Notebook", level=0.0, priority=Priority.NORMAL, server="jupyter"),
        Service(name="busy", level=0.9, used_gib=20.0),
        days=28,
    ),
    "slice": cluster(Service(name="small-a", replicas=2, level=0.1), Service(name="small-b", replicas=2, level=0.1)),
    "oversubscribe": cluster(*(Service(name=f"peaky-{n}", level=0.9, hours=(3 * n, 3 * n + 1)) for n in range(4))),
    "colocate": cluster(
        Service(name="web", level=0.3),
        Service(name="train", kind="Job", level=0.9, priority=Priority.LOW, server="pytorch"),
    ),
    "offpeak_pair": cluster(
        Service(name="by-day", level=0.9, hours=(8, 18)),
        Service(name="by-night", level=0.9, hours=(20, 24)),
        Service(name="full", replicas=8, level=0.9, used_gib=20.0),
        days=21,
    ),
    "mig": on_a100(
        *(Service(name=f"small-{n}", replicas=2, level=0.08, used_gib=6.0) for n in range(3)),
        holder("roomy", "3g.40gb", 6, level=0.2),
        Service(name="full", level=0.9, used_gib=60.0),
    ),
    "rehome": on_a100_beside_l4(SMALL, Service(name="full", level=0.9, used_gib=60.0)),
    "sleep": asked(
        model("seldom"), model("rare"), model("often", level=0.3), model("never"), rate={"often": 0.5, "never": 0.0}
    ),
}
OPTIONS: dict[str, dict[str, Any]] = {
    "colocate": {"past": OwnPast(holders=Holders(agents=frozenset({"node-0"})))},
    "mig": {"capability": MIG},
    "rehome": {"settings": PRICES, "only": RecommendationKind.REHOME},
    "sleep": {"settings": WAIT, "only": RecommendationKind.SLEEP},
}


def test_every_kind_has_a_golden_file() -> None:
    assert {file.stem for file in GOLDEN.glob("*.json")} == set(CASES) == {kind.value for kind in RecommendationKind}


@pytest.mark.parametrize("name", sorted(CASES))
def test_rule_proposes_what_its_golden_file_says(name: str) -> None:
    plan = plan_of(CASES[name], **OPTIONS.get(name, {}))
    kind = RecommendationKind(name)
    found = {
        "recommendations": [document(item) for item in plan.recommendations if item.kind is kind],
        "refused": [document(item) for item in plan.refused],
        "cards_after": plan.totals.cards_after,
    }
    assert found["recommendations"], [item.kind for item in plan.recommendations]
    assert found == json.loads((GOLDEN / f"{name}.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", sorted(CASES))
def test_plan_keeps_its_id_after_writing_and_reading(name: str) -> None:
    """The guard seals the plan that it read anew: an integer for a number would make it an edited one."""
    plan = seal_plan(plan_of(CASES[name], **OPTIONS.get(name, {})))
    assert seal_plan(plan_from_json(plan_to_json(plan))).plan_id == plan.plan_id


ESTIMATED = Service(
    name="odd", level=0.1, server="tgi", pool_gib=12.0, used_gib=21.6, cache_ratio=0.1,
    changes={"kv_cache_pool_max_bytes": 15 * 2**30},
)  # fmt: skip
"""A single pod: nobody could try a slice before it."""


@pytest.mark.parametrize(
    ("odd", "code"),
    [
        (Service(name="odd", labels=(("gputide.io/opt-out", "true"),)), "opt_out"),
        (Service(name="odd", namespace="kube-system"), "opt_out"),
        (Service(name="odd", kind="DaemonSet"), "unknown_owner"),
        (Service(name="odd", cards_per_pod=2), "multi_card"),
        (Service(name="odd", mig_profile="1g.10gb"), "mig"),
        (Service(name="odd", labels=(("gputide.io/isolation", "lead"),)), "unknown_isolation"),
        (Service(name="odd", server="vllm", pool_gib=18.0, used_gib=21.6), "preallocation_hides_need"),
        (ESTIMATED, "pool_estimated"),
        (Service(name="odd", age_days=0.5), "history_too_short"),
        (Service(name="odd", kind="Job", priority=Priority.LOW, age_days=0.3), "history_too_short"),
    ],
)
def test_refusal_names_its_reason_and_the_pods_keep_their_whole_cards(odd: Service, code: str) -> None:
    plan = plan_of(cluster(odd, Service(name="other", replicas=2, level=0.05)))
    reasons = {item.reason for item in plan.refused if item.workload.endswith("/odd")}
    assert code in reasons
    mine = [(card, part) for card in plan.placement for part in card.slices if part.pod.startswith("odd-")]
    assert len(mine) == odd.cards_per_pod
    assert all(len(card.slices) == 1 and part.framebuffer_bytes == card.framebuffer_bytes for card, part in mine)


def test_a_slice_that_rests_on_an_estimate_says_so_and_is_no_low_risk() -> None:
    def cut(most: int | None) -> Recommendation:
        own = Service(
            name="llm", level=0.1, replicas=2, server="tgi", pool_gib=12.0, used_gib=21.6, cache_ratio=0.1,
            changes={"kv_cache_pool_max_bytes": most},
        )  # fmt: skip
        plan = plan_of(cluster(own, Service(name="web", level=0.05)))
        (found,) = [
            one for one in plan.recommendations if one.kind is RecommendationKind.SLICE and "llm" in one.workloads[0]
        ]
        return found

    known, estimated = cut(None), cut(15 * 2**30)
    assert POOL_ESTIMATED not in {reason.code for reason in known.why}
    assert "between 12.0 and 15.0 GiB" in english(estimated)
    assert estimated.confidence < known.confidence
    assert estimated.risk_level is not RiskLevel.LOW


@pytest.mark.parametrize("label", ["gputide.io/latency-critical", "gputide.io/min-replicas-warm"])
def test_standby_is_not_reclaimed_but_may_share(label: str) -> None:
    standby = Service(name="standby", level=0.0, priority=Priority.NORMAL, labels=((label, "1"),))
    plan = plan_of(cluster(standby, Service(name="web", level=0.2)))
    assert {item.kind for item in plan.recommendations} == {RecommendationKind.SLICE}
    assert plan.totals.cards_after == 1
    assert any(item.kind is RecommendationKind.RECLAIM for item in plan.refused)


def test_hard_isolated_pod_shares_with_its_own_namespace_alone() -> None:
    hard = (("gputide.io/isolation", "hard"),)
    plan = plan_of(
        cluster(
            Service(name="mine", namespace="a", level=0.1, labels=hard),
            Service(name="mine-too", namespace="a", level=0.1, labels=hard),
            Service(name="theirs", namespace="b", level=0.1),
            Service(name="theirs-too", namespace="b", level=0.1),
        )
    )
    assert plan.totals.cards_after == 2
    for card in plan.placement:
        assert len({part.namespace for part in card.slices}) == 1
        policies = {part.core_policy.value for part in card.slices}
        assert policies == ({"hard"} if card.slices[0].namespace == "a" else {"burst"})


def test_backend_that_cannot_share_withholds_sharing_and_names_the_fact() -> None:
    plan = plan_of(CASES["slice"], capability=WHOLE_CARDS)
    # Stepping back in quiet hours needs no sharing.
    assert {item.kind for item in plan.recommendations} <= {RecommendationKind.TIDE}
    assert {item.reason for item in plan.withheld} == {"backend_cannot_share"}
    assert all("slices_per_card_max: 1" in english(item) for item in plan.withheld)


def test_backend_without_priorities_co_locates_nobody() -> None:
    plan = plan_of(CASES["colocate"], capability=replace(HAMI, priority_levels=1))
    assert not plan.recommendations
    assert "backend_has_no_priority" in {item.reason for item in plan.refused}


def test_accounting_backend_never_oversubscribes_framebuffer() -> None:
    plan = plan_of(CASES["oversubscribe"])
    assert all(card.framebuffer_oversubscription_ratio <= 1 for card in plan.placement)
    assert "framebuffer_not_oversubscribed" in {item.reason for item in plan.withheld}


def test_whoever_uses_video_engines_keeps_the_cards_that_have_them() -> None:
    history = cluster(
        Service(name="greedy", replicas=2, level=0.9, used_gib=20.0, cards_per_pod=4, idle_cards=3),
        Service(name="coder", level=0.05),
    )
    working = np.where(np.isnan(history.slices.mean[Measure.SM_ACTIVE]), np.nan, 0.5).astype(np.float32)
    seen = {**history.slices.mean, Measure.ENCODER: working}
    plan = plan_of(replace(history, slices=replace(history.slices, mean=seen, peak=seen)))
    assert RecommendationKind.FEWER_CARDS not in {item.kind for item in plan.recommendations}
    (refusal,) = [item for item in plan.refused if item.kind is RecommendationKind.REHOME and "coder" in item.workload]
    assert refusal.reason == "video_engines"


def worked(history: History, pod: str, *, until_day: float) -> History:
    """The pod works from 8 to 18 h of every day, Monday to Friday, up to that day of the history."""
    row = next(row for row, key in enumerate(history.slices.keys) if key.pod == pod)
    mean = {measure: values.copy() for measure, values in history.slices.mean.items()}
    ends = np.arange(1, history.slices.steps + 1)
    day, hour = (ends - 1) // PER_DAY, (ends - 1) % PER_DAY // 6
    works = ((history.slices.since.weekday() + day) % 7 < 5) & (hour >= 8) & (hour < 18) & (ends <= until_day * PER_DAY)
    for measure in (Measure.SM_ACTIVE, Measure.DUTY_CYCLE):
        mean[measure][row] = np.where(works, mean[measure][row], 0.0)
    return replace(history, slices=replace(history.slices, mean=mean, peak=mean))


@pytest.mark.parametrize("kind", ["Notebook", "Job", "Deployment"])
@pytest.mark.parametrize(("least", "is_stopped"), [(0.0, True), (1.0, False)])
def test_nothing_is_stopped_unless_ones_like_it_stayed_idle(kind: str, least: float, is_stopped: bool) -> None:
    dead = Service(name="dead", replicas=2, level=0.0, priority=Priority.NORMAL, kind=kind)
    settings = {"recommender": {"reclaim_confidence_min": least}}
    plan = plan_of(cluster(dead, Service(name="busy", level=0.9, used_gib=20.0)), settings=settings)
    assert (RecommendationKind.RECLAIM in {item.kind for item in plan.recommendations}) is is_stopped
    told = [english(item) for item in plan.refused if item.reason == "likely_to_wake"]
    assert ["recommender.reclaim_confidence_min is 100 %" in detail for detail in told] == (
        [] if is_stopped else [True]
    )


@pytest.mark.parametrize("kind", ["Notebook", "Job", "Deployment"])
def test_a_silent_weekend_stops_nothing_but_may_share(kind: str) -> None:
    book = Service(name="book", level=0.4, priority=Priority.NORMAL, kind=kind)
    history = cluster(book, Service(name="small", level=0.1), days=28)
    plan = plan_of(worked(history, "book-0", until_day=28), settings=ANY_CONFIDENCE)
    (refusal,) = [item for item in plan.refused if item.kind is RecommendationKind.RECLAIM]
    assert refusal.reason == "idle_too_short"
    assert "idle for 2.2 days, not yet seen idle on Mon, Tue, Wed, Thu, Fri:" in english(refusal)
    assert dict(refusal.values) == {"idle_days": 2.2, "weekdays": "Mon, Tue, Wed, Thu, Fri"}
    kinds = {item.kind for item in plan.recommendations if item.workloads == (refusal.workload,)}
    assert kinds == {RecommendationKind.SLICE}


def test_silence_on_all_days_of_earlier_work_is_reclaimed() -> None:
    book = Service(name="book", level=0.4, priority=Priority.NORMAL, kind="Notebook")
    history = cluster(book, Service(name="busy", level=0.9, used_gib=20.0), days=28)
    still = worked(history, "book-0", until_day=21)
    assert [item.kind for item in plan_of(still, settings=ANY_CONFIDENCE).recommendations] == [
        RecommendationKind.RECLAIM
    ]


@pytest.mark.parametrize(("days", "is_stopped"), [(5, False), (7, True)])
def test_what_was_never_active_is_stopped_after_a_week_in_which_it_was_seen(days: int, is_stopped: bool) -> None:
    dead = Service(name="dead", level=0.0, priority=Priority.NORMAL, kind="Notebook")
    plan = plan_of(cluster(dead, Service(name="busy", level=0.9, used_gib=20.0), days=days), settings=ANY_CONFIDENCE)
    assert (RecommendationKind.RECLAIM in {item.kind for item in plan.recommendations}) is is_stopped
    details = [english(item) for item in plan.refused if item.reason == "idle_too_short"]
    assert ["idle for 5 days, not yet seen idle on Mon, Tue:" in detail for detail in details] == (
        [] if is_stopped else [True]
    )


@pytest.mark.parametrize(("days", "is_asked"), [(5, False), (7, True)])
def test_cards_are_spare_after_a_week_in_which_they_did_nothing(days: int, is_asked: bool) -> None:
    greedy = Service(name="greedy", replicas=2, level=0.9, used_gib=20.0, cards_per_pod=4, idle_cards=3)
    plan = plan_of(cluster(greedy, days=days))
    assert (RecommendationKind.FEWER_CARDS in {item.kind for item in plan.recommendations}) is is_asked
    reasons = {item.reason for item in plan.refused if item.kind is RecommendationKind.FEWER_CARDS}
    assert reasons == (set() if is_asked else {"history_too_short"})


def test_the_guard_takes_the_tide_of_a_plan_as_it_was_made_and_read_back() -> None:
    made = seal_plan(plan_of(CASES["tide"]))
    plan = plan_from_json(plan_to_json(made), name="plan")
    assert plan.schedule
    (stage,) = plan.tide_stages
    yes = Approval(plan_id=plan.plan_id, stages=(stage,), by="ada", at=plan.created_at)
    guard = Guard(GuardPolicy())
    guard.check_tide(plan, [yes], plan.created_at, freed=0, age_max=timedelta(days=14))
    other = seal_plan(replace(plan, schedule=tuple(replace(one, replicas=one.replicas + 1) for one in plan.schedule)))
    with pytest.raises(Refused, match="than its stage shows"):
        guard.check_tide_approved(other, [replace(yes, plan_id=other.plan_id)])
