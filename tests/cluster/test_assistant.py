"""An assistant that asks everything about a real cluster: its API server writes down no write of ours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.cluster.api import Api
from tests.cluster.audit import AuditLog, Write
from tests.cluster.placed_fleet import Ground, Operator, clear_away
from tests.cluster.played_backends import played_backends
from tests.cluster.standing_fleet import stand_up
from tests.control_plane import ControlPlane, KubernetesPrograms
from tests.gputide.assistant_client import asked
from tests.gputide.conftest import Program
from tests.recommender.builders import Service

pytestmark = pytest.mark.cluster

NAMESPACE = "asked"
SERVICES = (Service(name="a", replicas=2, level=0.15, used_gib=4.0), Service(name="b", level=0.3, used_gib=8.0))
ARGUMENTS: dict[str, dict[str, Any]] = {
    "workload": {"workload": f"{NAMESPACE}/Deployment/a"},
    "why": {"workload": f"{NAMESPACE}/Deployment/a"},
    "draft_policy": {"namespace": NAMESPACE, "name": "quiet", "opt_out": True},
    "what_if": {"assumptions": ["risk.preset=low"]},
    "backtest": {"train_days": 2, "test_days": 1},
}


def asked_all(operator: Operator, audit: AuditLog) -> tuple[list[Write], dict[str, str]]:
    """What was written by us while an assistant asked everything, and what it was not answered."""
    ground = operator.ground
    ground.api.create("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
    begun = audit.size()
    operator.planned(stand_up(ground.api, NAMESPACE, *SERVICES, prefix=NAMESPACE, spare_cards=2, played=ground.played))
    # Who made the plan wrote it down there, so that a write of theirs would be seen.
    ours = {write.user for write in audit.writes(begun) if write.resource == "gpuplans"}
    assert ours
    begun = audit.size()
    flags = operator.flags(ground.approver)
    tools = asked(operator.data, [], *flags).tools
    said = asked(operator.data, [(name, ARGUMENTS.get(name, {})) for name in tools], *flags)
    faults = {name: answer["error"] for name, answer in zip(tools, said.answers, strict=True) if "error" in answer}
    return [write for write in audit.writes(begun) if write.user in ours], faults


def test_no_tool_writes_to_the_cluster(
    control_plane: ControlPlane, programs: KubernetesPrograms, api: Api, writer_kubeconfig: Path, caller: Program,
    audit: AuditLog, tmp_path: Path,
) -> None:  # fmt: skip
    played = next(one for one in played_backends() if one.name == "hami")
    ground = Ground(
        api=api, approver=control_plane.kubeconfig(), writer=writer_kubeconfig, played=played, folder=tmp_path,
        program=caller,
    )  # fmt: skip
    operator = Operator(ground=ground, namespace=NAMESPACE, gaps_allowed=True)
    with played.running(control_plane, programs, api, tmp_path):
        try:
            writes, faults = asked_all(operator, audit)
        finally:
            clear_away(operator)
    assert faults == {}
    assert writes == []
