"""Faults on the real API server end whole: some of the matrix that `bench/bars/enforcer-faults` prints in full."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.fault_words import Fault, Way
from bench.live_cluster import LiveCluster
from bench.live_faults import SLOTS, Wanted, run_cases
from tests.cluster.api import Api
from tests.cluster.audit import AuditLog
from tests.cluster.conftest import UNCONFINED
from tests.cluster.hami_double import HamiDouble
from tests.cluster.served_admission import ServedAdmission
from tests.control_plane import ControlPlane, KubernetesPrograms

pytestmark = pytest.mark.cluster

CASES: tuple[Wanted, ...] = (
    (Way.APPLY, ("patch team/Deployment/b", 1), Fault.KILL),
    (Way.APPLY, ("watched canary", 2), Fault.WATCH_CUT),
    (Way.RESTORE, ("restore team/Deployment/a", 1), Fault.TIME_OUT),
    (Way.UNDO, ("restore team/Deployment/a", 1), Fault.NEVER_READY),
)


@pytest.fixture
def live(
    control_plane: ControlPlane,
    programs: KubernetesPrograms,
    api: Api,
    audit: AuditLog,
    admission: ServedAdmission,
    unconfined_kubeconfig: Path,
    tmp_path: Path,
) -> Iterator[LiveCluster]:
    """Return the session's control plane with HAMi's double."""
    double = HamiDouble(control_plane, programs, api, tmp_path, looks_at_all_nodes=True)
    double.start()
    yield LiveCluster(
        plane=control_plane, api=api, double=double, admission=admission, audit=audit, kubeconfig=unconfined_kubeconfig,
        folder=tmp_path, account=UNCONFINED,
    )  # fmt: skip
    double.stop()
    for slot in range(SLOTS):
        if api.has(f"/api/v1/nodes/slot-{slot}"):
            api.delete(f"/api/v1/nodes/slot-{slot}")


def test_plan_ends_applied_or_restored_whatever_happens_on_the_real_api_server(
    live: LiveCluster, tmp_path: Path
) -> None:
    outcomes = run_cases(live, CASES, tmp_path, print)
    assert {outcome.fault: outcome.verdict.complaints for outcome in outcomes} == {case[2]: () for case in CASES}
    assert all(outcome.writes and not outcome.unwanted for outcome in outcomes)
    ends = {outcome.fault: outcome.verdict.ends for outcome in outcomes}
    assert ends[Fault.KILL] == ("applied", "applied")
    assert all(end.startswith("restored") for end in ends[Fault.NEVER_READY])
