"""Notes of seats: as many workloads as tenants like leave a fixed number of leases, each of bounded length."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from enforcer.kubernetes.cluster import ClusterPlace, KubernetesCluster
from enforcer.kubernetes.seat_claims import GIVEN_ANNOTATION, LEASES_MAX, SeatClaims, lease_of
from fleet.inventory import WorkloadId
from tests.enforcer.scripted_api import Heard, ScriptedApi, Told

Leases = dict[str, dict[str, Any]]


@pytest.fixture
def leases() -> Leases:
    return {}


@pytest.fixture
def claims(tmp_path: Path, leases: Leases) -> Iterator[SeatClaims]:
    def answer(heard: Heard, number: int) -> Told:
        del number
        if heard.method != "GET":
            leases[heard.body["metadata"]["name"]] = heard.body
            return Told(document=heard.body)
        found = leases.get(heard.path.rpartition("/")[2])
        return Told(status=404, document={"kind": "Status"}) if found is None else Told(document=found)

    api = ScriptedApi(tmp_path, answer)
    cluster = KubernetesCluster(ClusterPlace(kubeconfig=api.kubeconfig))
    try:
        yield cluster.seat_claims("gputide-seats")
    finally:
        cluster.close()
        api.close()


def test_runs_of_a_cron_job_are_noted_on_a_fixed_number_of_leases_and_told_apart(
    claims: SeatClaims, leases: Leases
) -> None:
    runs = [WorkloadId(f"team/Job/nightly-{number}") for number in range(20 * LEASES_MAX)]
    assert len({lease_of(run) for run in runs}) == LEASES_MAX
    sharing = [run for run in runs if lease_of(run) == lease_of(runs[0])][:3]
    assert all(claims.take(run, "nightly-0", 10.0) for run in sharing)
    assert list(leases) == [lease_of(runs[0])]
    assert not any(claims.take(run, "nightly-0", 10.0) for run in sharing)
    assert claims.take(runs[0], "nightly-1", 10.0)


def test_name_of_a_seat_that_a_tenant_made_up_does_not_fill_a_lease(claims: SeatClaims, leases: Leases) -> None:
    assert claims.take(WorkloadId("team/Deployment/web"), "x" * 200_000, 10.0)
    (lease,) = leases.values()
    assert len(lease["metadata"]["annotations"][GIVEN_ANNOTATION]) < 100
