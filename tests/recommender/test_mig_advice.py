"""MIG advice: who gets which instance on which card, who is left alone, and that no card is cut under anybody."""

from dataclasses import replace
from decimal import Decimal

import numpy as np
import pytest

from fleet.capabilities.register import DRA_MIG, HAMI, WHOLE_CARDS, Capabilities, CorePolicy
from fleet.decisions import Need, Recommendation, RecommendationKind
from fleet.documents import plan_from_json, plan_to_json, seal_plan
from fleet.inventory import LATENCY_CRITICAL_LABEL, OPT_OUT_LABEL, Node, Priority
from fleet.schema import Measure
from fleet.units import GIB
from fleet.usage import History
from recommender.mig.card_cutting import layout_now
from tests.english import english
from tests.recommender.builders import ANY_CONFIDENCE, PER_DAY, Service, cluster, plan_of
from tests.recommender.mig_builders import holder, mig_plan, on_a100, placed, reasons_of
from tests.recommender.test_mig_geometry import FAMILIES

SMALL = tuple(Service(name=f"s{n}", level=0.08, used_gib=6.0) for n in range(7))
FULL = Service(name="full", level=0.9, used_gib=60.0)
CRITICAL = ((LATENCY_CRITICAL_LABEL, "true"),)
ONLY = RecommendationKind.MIG


def said(item: Recommendation) -> set[str]:
    """Codes of what is said for an advice."""
    return {one.code for one in item.why}


def with_load(history: History, pod: str, since: int, until: int, level: float) -> History:
    """The history with another load of one pod in some steps, up to `level`."""
    row = next(number for number, key in enumerate(history.slices.keys) if key.pod == pod)
    for measure in (Measure.SM_ACTIVE, Measure.DUTY_CYCLE):
        history.slices.mean[measure][row, since:until] = np.linspace(0.9 * level, level, until - since)
    return history


def test_seven_small_pods_share_one_card_in_instances_of_their_own() -> None:
    plan = mig_plan(on_a100(*SMALL, FULL))
    assert plan.totals.cards_freed == 6
    assert plan.totals.moves == 8, "mig-manager resets all cards of the machine, so the full one is made anew as well"
    assert plan.totals.saving_per_week.amortised == Decimal("1512.00")  # 6 × 1.50 × 168 h
    assert {item.kind for item in plan.recommendations} == {RecommendationKind.MIG}
    assert sum(item.cards_freed for item in plan.recommendations) == 6
    assert all(item.needs == (Need.FRAMEBUFFER_LIMIT, Need.CORE_LIMIT) for item in plan.recommendations)
    (cut,) = [card for card in plan.placement if len(card.slices) > 1]
    assert cut.node_mode == "mig"
    assert {part.mig_profile for part in cut.slices} == {"1g.10gb"}
    assert {part.framebuffer_bytes for part in cut.slices} == {int(9.5 * GIB)}
    assert {part.compute_ratio for part in cut.slices} == {round(14 / 108, 4)}
    assert {part.core_policy for part in cut.slices} == {CorePolicy.HARD}
    (other,) = [card for card in plan.placement if len(card.slices) == 1]
    assert (other.node_mode, other.slices[0].mig_profile, other.slices[0].compute_ratio) == (None, None, 1.0)


@pytest.mark.parametrize("capability", [HAMI, WHOLE_CARDS], ids=lambda record: record.backend)
def test_other_backends_hear_nothing_of_mig(capability: Capabilities) -> None:
    plan = plan_of(on_a100(*SMALL), capability=capability)
    said = {item.kind for item in plan.recommendations} | {item.kind for item in plan.refused}
    assert RecommendationKind.MIG not in said | {item.kind for item in plan.withheld}


def test_sharing_is_withheld_for_what_the_backend_is() -> None:
    plan = mig_plan(on_a100(*SMALL))
    assert {item.reason for item in plan.withheld} == {"backend_cuts_by_mig"}
    assert all("fixed profiles" in english(item) for item in plan.withheld)


@pytest.mark.parametrize(
    ("service", "days", "profile"),
    [
        (Service(name="a", level=0.1), 7, "1g.10gb"),
        (Service(name="a", level=0.1), 2, "2g.20gb"),
        (Service(name="a", level=0.05, used_gib=9.0), 7, "1g.20gb"),
        (Service(name="a", level=0.3, used_gib=30.0), 7, "3g.40gb"),
    ],
    ids=["a tenth of a card", "the same, seen for two days", "framebuffer with its headroom", "a third"],
)
def test_the_smallest_instance_that_holds_the_need_with_its_margin(service: Service, days: int, profile: str) -> None:
    plan = mig_plan(on_a100(service, replace(service, name="b"), days=days))
    assert {found for _, found in placed(plan).values()} == {profile}
    assert plan.totals.cards_freed == 1


def test_harm_is_foretold_by_leaving_each_day_out() -> None:
    history = on_a100(Service(name="a", level=0.06), Service(name="b", level=0.06))
    plan = mig_plan(with_load(history, "a-0", 3 * PER_DAY, 3 * PER_DAY + 4, 0.2))
    (advice,) = [item for item in plan.recommendations if item.workloads == ("team/Deployment/a",)]
    # From the other days a 1g.10gb (13 %) would have been chosen; all days together ask for a 2g.20gb.
    assert placed(plan)["a-0"][1] == "2g.20gb"
    assert advice.violation_ratio == pytest.approx(4 / (7 * PER_DAY))
    assert plan.totals.predicted_violation_ratio == pytest.approx(4 / (14 * PER_DAY))


def test_an_instance_grows_until_the_risk_is_met() -> None:
    history = on_a100(Service(name="a", level=0.06), Service(name="b", level=0.06))
    plan = mig_plan(with_load(history, "a-0", 3 * PER_DAY, 3 * PER_DAY + 4, 0.2), risk="low")
    (advice,) = [item for item in plan.recommendations if item.workloads == ("team/Deployment/a",)]
    # Twice the need of any six days covers the seventh; of all seven that is a 4g.40gb.
    assert placed(plan)["a-0"][1] == "4g.40gb"
    assert advice.violation_ratio == 0.0


def test_a_day_unlike_all_others_is_refused() -> None:
    history = on_a100(Service(name="a", level=0.06), *SMALL)
    plan = mig_plan(with_load(history, "a-0", 3 * PER_DAY, 4 * PER_DAY, 0.6), only=ONLY)
    assert placed(plan)["a-0"][1] is None
    assert "no_instance_fits" in reasons_of(plan, "a")


def test_who_must_answer_fast_gets_an_instance_only_where_it_stays_fast() -> None:
    fast = Service(name="fast", level=0.1, labels=CRITICAL)
    history = on_a100(fast, replace(fast, name="fast-too"), *SMALL)
    strict = mig_plan(history, only=ONLY)
    assert placed(strict)["fast-0"][1] is None
    (refusal,) = [item for item in strict.refused if item.workload == "team/Deployment/fast"]
    assert "more than 1.5 times that alone (risk.latency_inflation_max)" in english(refusal)
    patient = mig_plan(history, only=ONLY, settings={"risk": {"preset": "high", "latency_inflation_max": 20.0}})
    # In a 1g.10gb it would queue: larger than its need alone asks for.
    assert placed(patient)["fast-0"][1] == "2g.20gb"
    (advice,) = [item for item in patient.recommendations if item.workloads == ("team/Deployment/fast",)]
    assert 1.5 < dict(advice.evidence.numbers)["latency_p99_inflation_ratio"] <= 20.0


@pytest.mark.parametrize(
    ("odd", "code"),
    [
        (Service(name="odd", cards_per_pod=2), "multi_card"),
        (Service(name="odd", server="vllm", pool_gib=18.0, used_gib=21.6), "preallocation_hides_need"),
        (
            Service(
                name="odd",
                server="tgi",
                pool_gib=12.0,
                used_gib=21.6,
                cache_ratio=0.1,
                changes={"kv_cache_pool_max_bytes": 15 * GIB},
            ),
            "pool_estimated",
        ),
        (Service(name="odd", age_days=1.5), "history_too_short"),
        (Service(name="odd", level=0.9), "no_instance_fits"),
        (Service(name="odd", changes={"framebuffer_bytes": 24 * GIB}), "unlike_its_model"),
        (Service(name="odd", changes={"framebuffer_bytes": 82 * GIB}), "unlike_its_model"),
        (Service(name="odd", labels=((OPT_OUT_LABEL, "true"),)), "opt_out"),
        (holder("odd", "9g.90gb", 0), "unknown_profile"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_refusal_names_its_reason_and_the_pod_keeps_what_it_has(odd: Service, code: str) -> None:
    plan = mig_plan(on_a100(odd, *SMALL), only=ONLY)
    assert code in reasons_of(plan, "odd")
    assert {profile for pod, (_, profile) in placed(plan).items() if pod.startswith("odd-")} == {odd.mig_profile}
    assert plan.totals.cards_freed == 6


def test_a_model_without_mig_is_refused_by_name() -> None:
    plan = mig_plan(cluster(Service(name="a", level=0.05), Service(name="b", level=0.05)), only=ONLY)
    assert reasons_of(plan, "a") == {"no_mig"}
    assert "NVIDIA A10" in next(english(item) for item in plan.refused)
    assert plan.recommendations == ()


def test_a_running_job_is_not_asked() -> None:
    job = Service(name="train", kind="Job", level=0.05, priority=Priority.LOW)
    plan = mig_plan(on_a100(job, *SMALL), only=ONLY)
    assert placed(plan)["train-0"][1] is None
    assert not [item for item in plan.refused if item.workload.endswith("/train")]


def test_nobody_is_restarted_to_sit_alone() -> None:
    plan = mig_plan(on_a100(Service(name="alone", level=0.05), FULL))
    assert plan.recommendations == ()
    assert plan.totals.moves == 0
    odd = mig_plan(on_a100(*SMALL, Service(name="half", level=0.35, used_gib=30.0), FULL))
    assert placed(odd)["half-0"][1] is None


def test_replicas_are_spread_over_the_cards_that_are_needed_anyway() -> None:
    plan = mig_plan(on_a100(*(Service(name=f"s{n}", level=0.08, replicas=2) for n in range(7))))
    assert plan.totals.cards_after == 2
    for card in plan.placement:
        assert len({part.workload for part in card.slices}) == 7


def test_whole_nodes_fall_free_and_busy_ones_are_kept() -> None:
    # Cards 0-3, 4-7, 8-11: only the last node has a pod that stays as it is.
    small = tuple(Service(name=f"s{n}", level=0.08) for n in range(11))
    plan = mig_plan(on_a100(*small, FULL))
    assert plan.totals.cards_after == 3
    assert {card.node for card in plan.placement} == {"node-2"}
    assert plan.totals.nodes_freed == 2


def test_a_node_without_memory_takes_nobody_in() -> None:
    history = on_a100(*(replace(each, changes={"memory_request_bytes": GIB}) for each in SMALL))
    tight = tuple(Node(node=node.node, cluster="c", memory_bytes=4 * GIB) for node in history.inventory.nodes)
    plan = mig_plan(replace(history, inventory=replace(history.inventory, nodes=tight)))
    before = {grant.pod: grant.node for grant in history.inventory.grants}
    assert all(before[part.pod] == card.node for card in plan.placement for part in card.slices)
    assert 0 < plan.totals.cards_freed < 6


def test_beside_an_instance_of_unknown_size_nobody_is_cut_and_is_told() -> None:
    odd = replace(holder("odd", "9g.90gb", 0), labels=((OPT_OUT_LABEL, "true"),))
    plan = mig_plan(on_a100(odd, holder("a", "3g.40gb", 0, level=0.1), *SMALL), only=ONLY)
    assert reasons_of(plan, "a") == {"no_card_to_cut"}
    assert placed(plan)["a-0"] == ("GPU-0000", "3g.40gb")
    assert plan.totals.cards_freed == 6


def test_oversized_instances_shrink_and_join() -> None:
    plan = mig_plan(on_a100(holder("a", "3g.40gb", 0, level=0.2), holder("b", "7g.80gb", 1, level=0.1)))
    assert {found for _, found in placed(plan).values()} == {"1g.10gb"}
    assert plan.totals.cards_freed == 1
    assert any("t holds 7g.80gb now" in english(item) for item in plan.recommendations)


def test_load_of_an_instance_is_a_share_of_that_instance() -> None:
    # Half of a 3g.40gb is 19 % of the card: more than a 1g.10gb (13 %) has.
    plan = mig_plan(on_a100(holder("a", "3g.40gb", 0, level=0.5), holder("b", "3g.40gb", 1, level=0.5)))
    assert {found for _, found in placed(plan).values()} == {"2g.20gb"}


def test_an_instance_that_is_used_up_is_not_shrunk() -> None:
    plan = mig_plan(on_a100(holder("a", "2g.20gb", 0, level=1.0), holder("b", "2g.20gb", 1, level=1.0)))
    assert {found for _, found in placed(plan).values()} == {"2g.20gb"}
    assert plan.totals.cards_freed == 1
    assert all("keeps its instance" in english(item) for item in plan.recommendations)


def test_pods_on_instances_that_stay_are_not_restarted() -> None:
    there = tuple(holder(f"h{n}", "1g.10gb", 0, level=0.6) for n in range(7))
    third = tuple(Service(name=f"t{n}", level=0.3, used_gib=30.0) for n in range(2))
    plan = mig_plan(on_a100(*there, *third))
    assert {item.workloads[0] for item in plan.recommendations} == {"team/Deployment/t0", "team/Deployment/t1"}
    assert plan.totals.moves == 2
    assert plan.totals.cards_freed == 1
    assert all(placed(plan)[f"h{n}-0"] == ("GPU-0000", "1g.10gb") for n in range(7))


def test_a_card_with_somebody_who_stays_is_not_cut() -> None:
    stays = replace(holder("stays", "3g.40gb", 0, level=0.5), labels=((OPT_OUT_LABEL, "true"),))
    plan = mig_plan(on_a100(stays, holder("a", "3g.40gb", 0, level=0.2), *SMALL[:3]))
    assert placed(plan)["stays-0"] == ("GPU-0000", "3g.40gb")
    on_it = [part.pod for card in plan.placement if card.card == "GPU-0000" for part in card.slices]
    assert set(on_it) == {"stays-0"}, "what a leaves is a 3g.40gb, and nobody takes that"


def test_nobody_waits_where_a_card_was_given_back_before() -> None:
    idle = Service(name="book", kind="Notebook", level=0.0, priority=Priority.NORMAL, server="jupyter")
    plan = mig_plan(on_a100(idle, *SMALL), settings=ANY_CONFIDENCE)
    kinds = [item.kind for item in plan.recommendations]
    assert kinds[0] is RecommendationKind.RECLAIM
    assert plan.totals.cards_freed == 7
    assert {card.card for card in plan.placement} == {"GPU-0000"}
    assert "waits" not in " ".join(map(english, plan.stages))


def test_waiting_for_a_cut_is_said() -> None:
    plan = mig_plan(on_a100(*SMALL), capability=DRA_MIG)
    assert "with a spare card, or 1 pod must wait" in english(plan.stages[0])
    assert sum("mig_waits" in said(item) for item in plan.recommendations) == 1


def test_whoever_is_on_a_machine_that_is_cut_is_named_and_keeps_its_card() -> None:
    plan = mig_plan(on_a100(*SMALL, FULL))
    (card,) = [card for card in plan.placement if len(card.slices) > 1]
    (whole,) = [card for card in plan.placement if len(card.slices) == 1]
    assert whole.node == card.node
    assert whole.slices[0].mig_profile is None
    (advice,) = [item for item in plan.recommendations if whole.slices[0].pod_id in item.pods]
    assert "for 1 pod beside it this means a restart" in english(advice).lower()
    assert [stage.recommendations for stage in plan.stages if advice.id in stage.recommendations] == [
        tuple(item.id for item in plan.recommendations)
    ], "a machine is emptied once"


@pytest.mark.parametrize("wish", [("gputide.io/opt-out", "true"), ("gputide.io/latency-critical", "true")])
def test_a_machine_is_not_cut_beside_somebody_who_must_not_be_restarted(wish: tuple[str, str]) -> None:
    plan = mig_plan(on_a100(*SMALL[:3], replace(FULL, labels=(wish,))))
    assert not plan.stages
    assert len(mig_plan(on_a100(*SMALL[:3], replace(FULL, labels=(wish,))), capability=DRA_MIG).stages) > 0


def test_one_card_is_waited_for_and_the_rest_was_emptied_before() -> None:
    sizes = ((0.08, 6.0), (0.2, 15.0), (0.3, 30.0))
    fleet = on_a100(
        *(Service(name=f"s{n}", replicas=3, level=sizes[n % 3][0], used_gib=sizes[n % 3][1]) for n in range(12))
    )
    plan = mig_plan(fleet, capability=DRA_MIG)
    # 12 of 3g, 2g and 1g each, two, three and seven a card: which lies where is chosen, so each on cards of its own.
    assert plan.totals.cards_after == 12
    profiles_on: dict[str, set[str | None]] = {}
    for card in plan.placement:
        profiles_on.setdefault(str(card.card), set()).update(part.mig_profile for part in card.slices)
    assert all(len(profiles) == 1 for profiles in profiles_on.values())
    assert sum("mig_waits" in said(item) for item in plan.recommendations) == 1


def test_a_card_is_not_cut_into_what_its_own_pod_cannot_use() -> None:
    # The two that need a third of a card come first; seven small ones would fill the first card that is cut.
    third = tuple(Service(name=f"a{n}", level=0.3, used_gib=30.0) for n in range(2))
    plan = mig_plan(on_a100(*third, *SMALL), capability=DRA_MIG)
    assert plan.totals.cards_after == 2
    assert sum("mig_waits" in said(item) for item in plan.recommendations) == 1
    assert {tuple(sorted({part.mig_profile or "" for part in card.slices})) for card in plan.placement} == {
        ("1g.10gb",),
        ("3g.40gb",),
    }


def test_the_plan_survives_its_document_and_is_the_same_again() -> None:
    first, second = (plan_to_json(seal_plan(mig_plan(on_a100(*SMALL, FULL)))) for _ in range(2))
    assert first == second
    read = plan_from_json(first)
    assert {card.node_mode for card in read.placement} == {"mig", None}
    assert {part.mig_profile for card in read.placement for part in card.slices} == {"1g.10gb", None}


def test_moves_limit_it() -> None:
    plan = mig_plan(on_a100(*SMALL), moves_max=4)
    assert plan.totals.moves == 4
    assert plan.totals.cards_freed == 3
    assert sum(item.reason == "moves_max" for item in plan.refused) == 3


def test_layout_of_what_is_held_is_found_or_denied() -> None:
    family = FAMILIES["a100-80gb"]
    assert len(layout_now(family, ["1g.10gb", "3g.40gb", "2g.20gb"]) or ()) == 3
    assert layout_now(family, []) == ()
    assert layout_now(family, ["4g.40gb", "4g.40gb"]) is None
    assert layout_now(family, ["1g.5gb"]) is None


def test_pods_never_seen_at_work_get_none() -> None:
    history = on_a100(*SMALL)
    history.slices.mean[Measure.FRAMEBUFFER_USED][0] = np.nan
    plan = mig_plan(history, only=ONLY)
    assert reasons_of(plan, "s0") & {"no_samples", "preallocation_hides_need"}
