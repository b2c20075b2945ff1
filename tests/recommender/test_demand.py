"""Demand: the busiest engine of a card counts, whatever its SMs do."""

from dataclasses import replace

import numpy as np

from fleet.decisions import Plan, RecommendationKind
from fleet.schema import Measure
from fleet.usage import History
from recommender.demand import demand_of
from tests.recommender.builders import Service, cluster, plan_of

CODERS = cluster(*(Service(name=f"coder-{n}", replicas=2, level=0.02) for n in range(2)))


def coding(history: History, level: float, *, at_night: float | None = None) -> History:
    """The history with every pod's encoder as busy as said."""
    hour = np.arange(history.slices.steps) * history.slices.step_seconds // 3600 % 24
    busy = np.where((hour >= 8) & (hour < 20), level, level if at_night is None else at_night)
    encoder = np.broadcast_to(busy, (len(history.slices.keys), len(busy))).astype(np.float32)
    seen = {**history.slices.mean, Measure.ENCODER: encoder}
    return replace(history, slices=replace(history.slices, mean=seen, peak=seen))


def shared(plan: Plan) -> int:
    return max(len(card.slices) for card in plan.placement)


def test_a_transcoder_demands_its_encoder() -> None:
    demand = demand_of(coding(CODERS, 0.7))
    np.testing.assert_allclose(demand.compute, 0.7)
    assert demand.by_sm.all()
    assert np.nanmax(demand.counted) < 0.03


def test_two_transcoders_do_not_share_an_encoder_that_one_fills() -> None:
    assert shared(plan_of(CODERS)) > 1
    assert shared(plan_of(coding(CODERS, 0.7))) == 1


def test_evidence_names_the_counter_that_it_shows() -> None:
    plan = plan_of(coding(CODERS, 0.2))
    (advice, *_) = [item for item in plan.recommendations if item.kind is RecommendationKind.SLICE]
    assert dict(advice.evidence.numbers)["sm_active_max_ratio"] < 0.03


def test_replicas_that_transcode_by_day_step_back_at_night_only() -> None:
    fleet = cluster(Service(name="coder", replicas=6, level=0.02, used_gib=20.0))
    (round_the_clock,) = [plan_of(coding(fleet, 0.7))]
    assert round_the_clock.schedule == ()
    (scheduled,) = plan_of(coding(fleet, 0.7, at_night=0.05)).schedule
    assert (scheduled.start, scheduled.end) == ("20:00", "08:00")
