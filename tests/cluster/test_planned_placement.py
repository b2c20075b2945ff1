"""A plan for a fleet comes true on schedulers that share no code with gputide: pods on their cards, cards free.

The doubles agree with what the real schedulers of HAMi, Volcano, KAI and vgpu-manager decided (`test_*_decisions.py`);
for DRA it is the control plane's own scheduler. What KAI's mode `NvFractions` adds is by its page alone.
"""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from enforcer.backends.register import BACKENDS
from tests.cluster.api import Api
from tests.cluster.placed_fleet import Ground, Operator, carry_out, clear_away
from tests.cluster.played_backends import CUT_PLAYED, PlayedBackend, played_backends
from tests.cluster.served_admission import ServedAdmission
from tests.control_plane import ControlPlane, KubernetesPrograms
from tests.gputide.conftest import Program
from tests.recommender.builders import Service

RULES = ("hami_rules", "volcano_rules", "kai_rules", "vgpu_manager_rules", "scheduler_double", "backend_doubles")
RUNNERS = ("hami_double", "played_backends")
"""What runs the rules next to a control plane, whose processes `gputide.operate` starts."""
DECIDING = ("analyzer", "dashboards", "enforcer", "exporter", "pipeline", "recommender")
OURS = (*DECIDING, "fleet", "gputide", "wire")
SERVICES = (
    Service(name="a", replicas=2, level=0.15, used_gib=4.0),
    Service(name="b", level=0.3, used_gib=8.0),
    Service(name="c", level=0.2, used_gib=3.0),
    Service(name="d", replicas=2, level=0.1, used_gib=2.0, hours=(0, 8)),
)
"""Replicas on several cards name all of these in one claim: which instances they take is the scheduler's choice."""
POOLS: dict[str, dict[str, Any]] = {"dra_mig": {"card_model": "NVIDIA A100-SXM4-80GB", "card_gib": 80}}


def imported(name: str, packages: tuple[str, ...]) -> list[str]:
    """Those of some packages that a module of this folder imports, itself or by what it imports."""
    modules = "{m.split('.')[0] for m in sys.modules}"
    said = f"import sys, tests.cluster.{name}; print(*sorted(set({packages!r}) & {modules}))"
    return subprocess.run([sys.executable, "-c", said], capture_output=True, text=True, check=True).stdout.split()


@pytest.mark.parametrize("name", RULES)
def test_rules_import_nothing_that_gputide_ships(name: str) -> None:
    assert imported(name, OURS) == []


@pytest.mark.parametrize("name", RUNNERS)
def test_what_runs_the_rules_imports_nothing_of_gputide_that_decides(name: str) -> None:
    assert imported(name, DECIDING) == []


def test_an_import_by_way_of_another_module_is_seen() -> None:
    assert "enforcer" in imported("placed_fleet", DECIDING)


@pytest.mark.cluster
@pytest.mark.parametrize("played", [*played_backends(), CUT_PLAYED], ids=lambda played: played.name)
def test_pods_come_to_their_planned_cards_as_many_are_free_as_planned_and_undo_takes_all_back(
    played: PlayedBackend, control_plane: ControlPlane, programs: KubernetesPrograms, api: Api,
    writer_kubeconfig: Path, caller: Program, tmp_path: Path,
) -> None:  # fmt: skip
    namespace = f"placed-{played.name.replace('_', '-')}"
    ground = Ground(
        api=api, approver=control_plane.kubeconfig(), writer=writer_kubeconfig, played=played, folder=tmp_path,
        program=caller,
    )  # fmt: skip
    operator = Operator(ground=ground, namespace=namespace, gaps_allowed=True)
    admission = ServedAdmission(control_plane, api, dict(BACKENDS)[played.name](datetime.now(UTC)).dialect)
    with played.running(control_plane, programs, api, tmp_path):
        admission.start()
        try:
            found = carry_out(operator, SERVICES, 2, and_back=True, **POOLS.get(played.name, {}))
        finally:
            admission.stop()
            clear_away(operator)
    assert found.faults == ()
    assert found.promised >= 1
    assert (found.arrived, found.freed) == (found.planned, found.promised)
    assert found.kept == ()
