"""The simulator begins the moves that the enforcer begins: same pods, same cards, same minutes."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest

from enforcer.relief.warm_replica import RELIEF_LABEL
from fleet.relief.rules import ReliefRules
from fleet.settings.settings import Settings
from fleet.units import GIB
from gputide.container.relief import relief_policy
from recommender.simulate.play import play
from recommender.simulate.stage import Stage, cut_history, whole_cards
from tests.enforcer.builders import NOW, a_cluster, a_grant, card_id
from tests.enforcer.relief.builders import POLICY, World, views_of
from tests.recommender.builders import NOW as HISTORY_END
from tests.recommender.builders import Service, cluster

pytestmark = pytest.mark.long

PODS, PER_CARD, MINUTES, LOOK_SECONDS = 8, 2, 12, 2.0
GRANT_BYTES = 6 * GIB
RULES = ReliefRules(sustain_seconds=4.0, rest_seconds=120, home_seconds=180)
Order = tuple[int, str, int, int, bool]
"""Minute, workload, card that it leaves, card that it goes to, and whether it returns."""


def some_use(seed: int) -> np.ndarray:
    """What pods would use in every minute, (pods, minutes): calm, with bursts of a few minutes."""
    random = np.random.default_rng(seed)
    use = random.uniform(0.02, 0.3, (PODS, MINUTES))
    for pod in random.choice(PODS, PODS // 2, replace=False):
        start = int(random.integers(0, MINUTES - 4))
        use[pod, start : start + int(random.integers(2, 5))] = random.uniform(0.7, 0.95)
    return use


def name_of(pod: int) -> str:
    return f"s{pod:02d}"


def enforced(folder: Path, use: np.ndarray, rules: ReliefRules) -> tuple[list[Order], float]:
    """Orders of the enforcer's relief on a simulated cluster, and how long a move took."""
    grants = [a_grant(name_of(pod), 0, pod // PER_CARD, framebuffer_bytes=GRANT_BYTES) for pod in range(PODS)]
    world = World(folder, a_cluster(folder, grants, cards=PODS), policy=replace(POLICY, rules=rules))
    number = {card_id(card): card for card in range(PODS)}
    while (passed := (world.cluster.now() - NOW).total_seconds()) < 60 * MINUTES:
        wanted = {name_of(pod): float(use[pod, int(passed // 60)]) for pod in range(PODS)}
        # A second replica serves nothing before the first one is gone.
        loading = {
            pod["metadata"]["uid"]
            for pod in world.cluster.list_objects("Pod")
            if RELIEF_LABEL in pod["metadata"].get("labels", {}) and not pod["metadata"].get("ownerReferences")
        }
        world.runner.look(views_of(world.cluster, wanted, asleep=loading))
        world.cluster.pause(LOOK_SECONDS)
    records = world.journal.moves()
    took = {
        (record.ended_at - record.begun_at).total_seconds() for record in records if record.ended_at is not None
    } or {20.0}
    assert len(took) == 1
    return [
        (
            int((record.begun_at - NOW).total_seconds() // 60),
            str(record.order.workload).rpartition("/")[2],
            number[record.order.from_card],  # type: ignore[index]
            number[record.order.to_card],  # type: ignore[index]
            record.order.is_home,
        )
        for record in records
    ], took.pop()


def staged(use: np.ndarray) -> Stage:
    """The same pods and minutes, as the simulator takes them."""
    history = cluster(*(Service(name=name_of(pod)) for pod in range(PODS)), days=2)
    found = cut_history(history, cut=HISTORY_END - timedelta(days=1), until=HISTORY_END)
    compute = np.concatenate([np.zeros((PODS, 1)), use], axis=1).astype(np.float32)
    need = np.full(compute.shape, 0.8 * GRANT_BYTES, np.float32)
    return replace(found, past=1, demand=replace(found.demand, compute=compute, need_bytes=need, step_seconds=60))


def simulated(use: np.ndarray, rules: ReliefRules, load_seconds: float) -> list[Order]:
    """Orders of relief in a play."""
    stage = staged(use)
    opening = replace(
        whole_cards(stage), card=np.arange(PODS) // PER_CARD, granted_bytes=np.full(PODS, float(GRANT_BYTES))
    )
    played = play(stage, opening, replace(rules, load_bytes_per_second=GRANT_BYTES / load_seconds))
    return [
        (
            int(move.begun_seconds // 60),
            name_of(move.pod[0]),  # type: ignore[index]
            int(move.from_card),  # type: ignore[call-overload]
            int(move.to_card),  # type: ignore[call-overload]
            move.is_home,
        )
        for move in played.orders
    ]


@pytest.mark.parametrize("seed", range(4))
def test_simulator_and_enforcer_give_the_same_orders_at_the_same_minutes(tmp_path: Path, seed: int) -> None:
    use = some_use(seed)
    expected, took = enforced(tmp_path, use, RULES)
    assert expected
    assert simulated(use, RULES, took) == expected


def test_limits_hold_in_both_alike(tmp_path: Path) -> None:
    use = np.full((PODS, MINUTES), 0.6)
    rules = replace(RULES, moves_at_once_max=1, moves_per_day_max=1)
    expected, took = enforced(tmp_path, use, rules)
    assert len(expected) == PODS // PER_CARD
    assert simulated(use, rules, took) == expected


def test_settings_as_shipped_are_the_rules_that_both_play_by() -> None:
    assert relief_policy(Settings()).rules == ReliefRules()
