"""Days of fleets with one thing wrong are played without nonsense: shares stay shares, work stays within the cards."""

from datetime import timedelta

import numpy as np
import pytest

from fleet.capabilities.register import HAMI
from fleet.relief.rules import ReliefRules
from fleet.settings.settings import Settings
from recommender.simulate.policies import Policy, Table, perform
from recommender.simulate.stage import cut_history
from tests.recommender.hostile_histories import HOSTILE

TABLE = Table(settings=Settings(), capability=HAMI, relief=ReliefRules(sustain_seconds=120.0))
POLICIES = (Policy.PERCENTILE, Policy.IDLE_CULLER, Policy.TIDE_TABLE, Policy.GPUTIDE)


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("name", HOSTILE)
def test_history_with_one_thing_wrong_is_played(name: str) -> None:
    history = HOSTILE[name]()
    stage = cut_history(history, cut=history.slices.until - timedelta(hours=8), until=history.slices.until)
    for policy in POLICIES:
        got = perform(policy, stage, TABLE)
        assert 0 <= got.violation_ratio <= 1
        assert 0 <= got.lost_work_ratio <= 1
        assert got.cards_peak <= max(got.cards_before, got.cards_opening)
        assert np.isfinite(got.low_priority_gpu_hours)
        assert 0 <= got.low_priority_gpu_hours <= 8 * got.cards_before + 1e-6
        assert got.evictions_per_worker_hour >= 0
