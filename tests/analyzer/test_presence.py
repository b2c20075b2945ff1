"""What was seen, what was missed, and what silence means."""

from dataclasses import replace
from datetime import timedelta

import numpy as np
import pytest

from analyzer.node_reports import joined_reports, nodes_seen
from fleet.inventory import Priority
from fleet.profiles import WorkloadState
from fleet.schema import Measure
from tests.analyzer.build import MONDAY, Slice, history, profile, profiles, work
from tests.english import english

ZERO = {Measure.SM_ACTIVE: 0.0, Measure.DUTY_CYCLE: 0.0}


def test_a_slow_source_is_covered_in_full() -> None:
    every_fifth = np.where(np.arange(288 * 5) % 5 == 4, 0.5, np.nan)
    slow = profile(history([Slice(usage=work(every_fifth))], days=1440 * 60 / 86400, step_seconds=60))
    assert slow.coverage_ratio == pytest.approx(1.0)
    assert slow.state is not WorkloadState.UNKNOWN


def test_a_slice_that_loses_every_other_sample_is_not_called_slow() -> None:
    seen = np.ones((3, 100), bool)
    seen[0, ::2] = False
    shown = nodes_seen(["node"] * 3, seen, seen, asks_alive=False)
    assert joined_reports([shown]).row_stride == {"node": 1}


def test_coverage_counts_from_the_grants_start() -> None:
    level = np.where(np.arange(288) < 144, np.nan, 0.6)
    young = history([Slice(usage=work(level), started_at=MONDAY + timedelta(days=1))])
    assert profile(young).coverage_ratio == pytest.approx(1.0)


def test_half_seen_is_unknown() -> None:
    level = np.full(288, 0.6)
    level[np.random.default_rng(3).random(288) < 0.5] = np.nan
    said = profile(history([Slice(usage=work(level, framebuffer=np.where(np.isnan(level), np.nan, 2e10)))]))
    assert said.state is WorkloadState.UNKNOWN
    assert "windows" in english(said)


def test_a_slice_that_never_touched_cuda_is_idle_when_its_card_reports_zero() -> None:
    given = history([Slice(has_row=False)], cards={"GPU-000": ZERO})
    assert profile(given).state is WorkloadState.IDLE


def test_a_slice_without_rows_is_not_idle_when_its_card_works() -> None:
    given = history([Slice(has_row=False)], cards={"GPU-000": work(0.4)})
    said = profile(given)
    assert said.state not in {WorkloadState.IDLE, WorkloadState.IDLE_HELD}
    assert said.compute.p95 == pytest.approx(1 - 0.6**3, abs=0.01)


def test_a_slice_without_rows_is_idle_with_less_confidence_when_only_its_nodes_exporter_lives() -> None:
    neighbour = Slice(workload="other", usage=work(0.5))
    said = profile(history([Slice(has_row=False), neighbour]))
    assert said.state is WorkloadState.IDLE
    assert said.confidence <= 0.2


def test_a_slice_without_rows_is_unknown_when_nothing_would_have_shown_it() -> None:
    elsewhere = Slice(workload="other", node="node-9", usage=work(0.5))
    assert profile(history([Slice(has_row=False), elsewhere])).state is WorkloadState.UNKNOWN


def test_a_silent_slice_on_a_shared_card_is_unknown_without_the_cards_own_counters() -> None:
    pair = [
        Slice(workload="quiet", has_row=False, card="GPU-shared", compute=0.5),
        Slice(workload="loud", usage=work(0.5), card="GPU-shared", compute=0.5),
    ]
    assert profile(history(pair), "quiet").state is WorkloadState.UNKNOWN


def test_a_row_under_another_container_name_still_belongs_to_the_grant() -> None:
    given = history([Slice(usage=work(0.6)), Slice(workload="other", usage=work(0.6))])
    renamed = tuple(
        type(key)(
            cluster=key.cluster,
            namespace=key.namespace,
            pod=key.pod,
            container="main",
            node=key.node,
            card=key.card,
            card_model=key.card_model,
        )
        for key in given.slices.keys
    )
    grid = type(given.slices)(
        keys=renamed,
        since=given.slices.since,
        step_seconds=given.slices.step_seconds,
        steps=given.slices.steps,
        mean=given.slices.mean,
        peak=given.slices.peak,
    )
    said = profile(type(given)(inventory=given.inventory, slices=grid))
    assert said.compute.p95 == pytest.approx(0.6, abs=0.01)


def test_rows_of_a_pod_whose_grant_ended_make_no_profile() -> None:
    ended = Slice(workload="ghost", usage=work(0.5), ended_at=MONDAY + timedelta(days=1))
    names = [one.workload for one in profiles(history([ended, Slice(usage=work(0.5))])).workloads]
    assert names == ["team/Deployment/svc"]


def test_earlier_pods_of_a_workload_count_as_its_history() -> None:
    turn = MONDAY + timedelta(days=1, hours=18)
    level = np.full(288, 0.6)
    before, after = level.copy(), level.copy()
    before[252:], after[:252] = np.nan, np.nan
    pods = [
        Slice(pod="old", usage=work(before), ended_at=turn),
        Slice(pod="new", usage=work(after), started_at=turn),
    ]
    said = profile(history(pods))
    assert said.pods == ("new",)
    assert said.state is not WorkloadState.UNKNOWN


def test_low_priority_work_that_gives_way_is_not_idle() -> None:
    busy = Slice(workload="online", usage=work(0.8), card="GPU-shared", compute=0.5)
    low = Slice(workload="offline", usage=work(0.0), card="GPU-shared", compute=0.5, priority=Priority.LOW)
    said = profile(history([busy, low]), "offline")
    assert said.state is WorkloadState.UNKNOWN
    assert "giving way" in english(said)


def test_a_grant_that_was_given_and_taken_back_does_not_hold() -> None:
    whole = history([Slice(usage=work(0.5))], days=4)
    grant = whole.inventory.grants[0]
    between = replace(
        grant,
        framebuffer_granted_bytes=grant.framebuffer_granted_bytes // 4,
        started_at=MONDAY + timedelta(days=1),
        ended_at=MONDAY + timedelta(days=2),
    )
    given = replace(whole, inventory=replace(whole.inventory, grants=(grant, between)))
    assert profile(given).framebuffer.granted == grant.framebuffer_granted_bytes
