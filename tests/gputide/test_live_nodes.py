"""A plan knows the nodes of its cluster as they are now: their modes, and which of them workloads leave out."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fleet.data_folder import DataFolder
from fleet.errors import Misconfigured
from fleet.gpu_policy import deciders, own_labels
from fleet.inventory import BY_POLICY_LABEL, LATENCY_CRITICAL_LABEL, NODE_MODE_LABEL, OPT_OUT_LABEL, WorkloadId
from fleet.settings.settings import ClusterChoice, Settings
from fleet.usage import History
from gputide.container.live_nodes import with_live_nodes
from tests.enforcer.scripted_api import Heard, ScriptedApi, Told
from tests.gputide.conftest import CUT, Program
from tests.recommender.builders import Service, cluster

GROUP = "/apis/gputide.io/v1alpha1"
NODES = {"node-0": {NODE_MODE_LABEL: "whole", "zone": "b"}, "node-1": {"zone": "a"}, "node-2": {}}
IN_ZONE_A = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}
AFFINITY = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [IN_ZONE_A]}}}
WORDS: dict[str, dict[str, Any]] = {
    "web": {"nodeSelector": {"zone": "b"}}, "batch": {"affinity": AFFINITY}, "free": {},
}  # fmt: skip
NONSENSE: tuple[Any, ...] = ({"template": {}}, {"template": {"spec": {"nodeSelector": "b"}}})
"""What may stand in objects that no API server checks."""


def asked(tmp_path: Path, refused: str | None, *, needs_policies: bool = False) -> tuple[History, tuple[str, ...]]:
    """What is known once an API server was asked that refuses one path."""

    def listed(*items: dict[str, Any]) -> Told:
        return Told(document={"metadata": {"resourceVersion": "1"}, "items": list(items)})

    def script(heard: Heard, _number: int) -> Told:
        if heard.path == refused:
            return Told(status=403, document={"kind": "Status", "message": "user ann cannot list these"})
        if heard.path == "/api/v1/nodes":
            return listed(*({"metadata": {"name": name, "labels": labels}} for name, labels in NODES.items()))
        if heard.path == "/apis/apps/v1/deployments":
            specs = {name: {"template": {"spec": word}} for name, word in WORDS.items()}
            specs |= {f"nonsense-{number}": spec for number, spec in enumerate(NONSENSE)}
            return listed(*(
                {"metadata": {"namespace": "team", "name": name}, "spec": spec} for name, spec in specs.items()
            ))  # fmt: skip
        if heard.path == GROUP:
            return Told(document={"resources": [{"name": "clustergpupolicies"}]})
        if heard.path == f"{GROUP}/clustergpupolicies":
            return listed({"metadata": {"name": "base"}, "spec": {"latencyCritical": True}})
        if heard.path == "/apis/gputide.io":
            return Told(document={"versions": [{"version": "v1alpha1"}]})
        return Told(status=403, document={"kind": "Status", "message": f"{heard.path} is none of these"})

    names = (*WORDS, *(f"nonsense-{number}" for number in range(len(NONSENSE))))
    history = cluster(*(Service(name=name) for name in names))
    node = replace(history.inventory.nodes[0], labels=((NODE_MODE_LABEL, "vgpu"), ("zone", "a")))
    stale = {LATENCY_CRITICAL_LABEL: "true", OPT_OUT_LABEL: "true"}
    note = json.dumps(
        {OPT_OUT_LABEL: ["GpuPolicy team/gone"], LATENCY_CRITICAL_LABEL: ["GpuPolicy team/gone", "false"]}
    )
    labels = tuple(sorted({**stale, BY_POLICY_LABEL: note}.items()))
    grants = tuple(replace(grant, labels=labels) for grant in history.inventory.grants)
    history = replace(history, inventory=replace(history.inventory, nodes=(node,), grants=grants))
    with closing(ScriptedApi(tmp_path, script)) as api:
        settings = Settings.model_validate(
            {
                "enforcer": {"cluster": ClusterChoice.KUBERNETES, "kubeconfig": api.kubeconfig},
                "cluster": {"name": history.inventory.cluster},
            }
        )
        return with_live_nodes(history, DataFolder(path=tmp_path / "data"), settings, needs_policies=needs_policies)


def labels_of(history: History) -> dict[str, str]:
    return dict(history.inventory.nodes[0].labels)


def test_nodes_are_in_the_modes_that_the_cluster_says_now_and_keep_their_other_labels(tmp_path: Path) -> None:
    found, notes = asked(tmp_path, refused=None)
    assert labels_of(found) == {NODE_MODE_LABEL: "whole", "zone": "a"}
    # Owners of nonsense keep nobody else from a plan.
    assert [note.split(" selects ")[0].removeprefix("which nodes ") for note in notes] == [
        f"team/Deployment/nonsense-{number}" for number in range(len(NONSENSE))
    ]


def test_pods_carry_what_policies_decide_now_and_not_what_one_that_is_gone_did(tmp_path: Path) -> None:
    found, _ = asked(tmp_path, refused=None)
    labels = dict(found.inventory.grants[0].labels)
    assert deciders(labels) == {LATENCY_CRITICAL_LABEL: "ClusterGpuPolicy base"}
    assert own_labels(labels) == {LATENCY_CRITICAL_LABEL: "false"}
    assert OPT_OUT_LABEL not in labels


def test_policies_that_may_not_be_read_stay_as_they_were_collected(tmp_path: Path) -> None:
    found, notes = asked(tmp_path, refused=f"{GROUP}/clustergpupolicies")
    assert labels_of(found)[NODE_MODE_LABEL] == "whole"
    assert dict(found.inventory.grants[0].labels)[OPT_OUT_LABEL] == "true"
    assert notes[-1].startswith("policies are those that were collected")


@pytest.mark.parametrize("refused", [f"{GROUP}/clustergpupolicies", "/api/v1/nodes"])
def test_plan_that_is_said_to_follow_policies_is_not_made_without_them(refused: str, tmp_path: Path) -> None:
    with pytest.raises(Misconfigured, match="user ann cannot list these"):
        asked(tmp_path, refused=refused, needs_policies=True)


def test_selector_and_affinity_of_a_template_leave_nodes_out(tmp_path: Path) -> None:
    found, _ = asked(tmp_path, refused=None)
    assert found.inventory.kept_off == {
        WorkloadId("team/Deployment/web"): {"node-1", "node-2"},
        WorkloadId("team/Deployment/batch"): {"node-0", "node-2"},
    }


def test_templates_that_may_not_be_read_leave_the_modes_known_and_are_named(tmp_path: Path) -> None:
    found, notes = asked(tmp_path, refused="/apis/apps/v1/deployments")
    assert labels_of(found)[NODE_MODE_LABEL] == "whole"
    assert found.inventory.kept_off == {}
    assert notes[0].startswith("which nodes workloads of kind Deployment select is not known")
    assert "user ann cannot list these" in notes[0]


def test_nodes_that_may_not_be_read_stay_as_they_were_collected(tmp_path: Path) -> None:
    found, notes = asked(tmp_path, refused="/api/v1/nodes")
    assert labels_of(found) == {NODE_MODE_LABEL: "vgpu", "zone": "a"}
    assert "user ann cannot list these" in notes[0]


@pytest.mark.long
def test_no_card_is_advised_that_the_template_of_its_pod_leaves_out(
    small_fleet: Path, program: Program, tmp_path: Path
) -> None:
    whole = ("--set", "enforcer.backend=whole_cards", "--set", "enforcer.experimental=true")
    data = tmp_path / "data"
    assert program(data, *whole, "admin", "replay", str(small_fleet), "--until", CUT).status == 0
    assert program(data, *whole, "plan", "make").status == 0
    plan = json.loads(program(data, *whole, "plan", "show", "--format", "json").out)
    # The replayed workloads select the model of their cards, so a cheaper one is out of reach.
    assert "rehome" not in {part["kind"] for part in plan["recommendations"]}
