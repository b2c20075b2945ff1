"""What is kept with an answer: made once, never another's, gone with it."""

from __future__ import annotations

import gc
import threading
from dataclasses import replace

import pytest

from dashboards.access.namespace_cut import cut_profiles
from dashboards.view_models.made_once import MadeOnce
from fleet.profiles import Profiles
from tests.dashboards.embedded import make_profiles

PROFILES = make_profiles()


def test_same_answer_is_worked_on_once_even_by_many_at_once() -> None:
    kept = MadeOnce()
    made: list[int] = []
    gate = threading.Barrier(4)

    def count() -> int:
        made.append(1)
        return len(PROFILES.cards)

    def ask() -> None:
        gate.wait()
        kept.of((PROFILES,), "count", count)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made == [1]
    assert kept.of((PROFILES,), "count", lambda: 0) == len(PROFILES.cards)


def test_each_cut_and_each_new_analysis_has_its_own() -> None:
    kept = MadeOnce()

    def teams(profiles: Profiles) -> set[str]:
        return kept.of((profiles,), "teams", lambda: {profile.namespace for profile in profiles.workloads})

    one = cut_profiles(PROFILES, frozenset({"team-3"}))
    assert len(teams(PROFILES)) > 1
    assert teams(one) == {"team-3"}
    assert teams(replace(PROFILES, workloads=())) == set()


def test_what_was_made_is_let_go_of_with_its_answer() -> None:
    kept = MadeOnce()
    for count in range(50):
        passing = replace(PROFILES, coverage_ratio=count / 100)
        assert kept.of((passing,), "coverage", lambda ratio=passing.coverage_ratio: ratio) == count / 100  # type: ignore[misc]
        del passing
    gc.collect()
    kept.of((PROFILES,), "other", lambda: 1)
    assert len(kept._kept) == 1


def test_the_longest_unused_goes_first() -> None:
    kept = MadeOnce(kept_max=2)
    for name in ("a", "b", "a", "c"):
        kept.of((PROFILES,), name, lambda name=name: name)  # type: ignore[misc]
    assert kept.of((PROFILES,), "a", lambda: "anew") == "a"
    assert kept.of((PROFILES,), "b", lambda: "anew") == "anew"


def test_what_could_not_be_made_is_tried_again() -> None:
    kept = MadeOnce()
    with pytest.raises(ZeroDivisionError):
        kept.of((PROFILES,), "fails", lambda: 1 // 0)
    assert kept.of((PROFILES,), "fails", lambda: 2) == 2
