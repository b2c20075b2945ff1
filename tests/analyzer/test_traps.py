"""Every trap of GPU counters that a trace can carry: none may catch us."""

import pytest

from exporter.synthetic.writer import TRAPS, write_synthetic_fleet
from fleet.profiles import WorkloadState
from tests.analyzer.build import profiles
from tests.analyzer.recorded import recorded
from tests.english import english

S = WorkloadState
WASTED = {S.IDLE, S.IDLE_HELD, S.PARTLY_IDLE}
ALLOWED = {
    "tiny-kernels": {S.OVERSIZED},
    "nccl-spin": {S.OVERSIZED, S.BUSY},
    "preallocated": {S.OVERSIZED, S.OFF_PEAK},
    "never-touched-cuda": {S.IDLE},
    "blackwell-zero": {S.UNKNOWN},
    "one-of-two-reports": {S.UNKNOWN},
    "mig-no-duty": {S.OVERSIZED, S.BUSY, S.OFF_PEAK},
    "no-prof-counters": {S.OVERSIZED, S.BUSY, S.OFF_PEAK},
    "counter-vanished": {S.UNKNOWN},
    "per-pod-not-sum": {S.OVERSIZED},
    "young-pod": {S.UNKNOWN},
    "crash-loop": {S.IDLE, S.IDLE_HELD},
    "loading-phases": {S.BUSY, S.OVERSIZED},
    "warm-standby": {S.IDLE_HELD},
    "outage": {S.UNKNOWN},
    "card-replaced": {S.BUSY, S.OVERSIZED, S.OFF_PEAK},
    "offline-squeezed": set(S) - WASTED,
    "transcoder": {S.OVERSIZED, S.BUSY},
    "dead-card": {S.UNKNOWN},
}
NOT_PROFILED = {"ghost-series"}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("synthetic") / "fleet"
    write_synthetic_fleet(folder, cards=48, days=8)
    said = profiles(recorded(folder))
    traps = {workload: name for name, workload in TRAPS.items()}
    by_trap = {traps.get("/".join(one.workload.split("/")[::2])): one for one in said.workloads}
    return {name: one for name, one in by_trap.items() if name is not None}


def test_every_trap_is_judged_here() -> None:
    assert set(TRAPS) == set(ALLOWED) | NOT_PROFILED


@pytest.mark.parametrize("trap", sorted(ALLOWED))
def test_no_trap_catches_us(found, trap: str) -> None:
    said = found[trap]
    assert said.state in ALLOWED[trap], english(said)


def test_a_pod_whose_grant_ended_is_not_in_the_inventory(found) -> None:
    assert NOT_PROFILED.isdisjoint(found)


def test_preallocated_framebuffer_is_not_taken_for_need(found) -> None:
    said = found["preallocated"].framebuffer
    assert said.preallocated
    assert said.need_max < 0.5 * said.used_max


def test_spinning_ranks_are_remarked(found) -> None:
    assert [item.check for item in found["nccl-spin"].trust] == ["spinning"]


def test_duty_cycle_alone_is_called_an_upper_bound(found) -> None:
    assert "upper bound" in english(found["no-prof-counters"])


def test_a_card_that_was_replaced_does_not_shorten_the_history(found) -> None:
    assert found["card-replaced"].coverage_ratio > 0.9
