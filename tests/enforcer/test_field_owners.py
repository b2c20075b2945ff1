"""Fields that were written back go to their former owners, with everything else owned as before."""

from __future__ import annotations

import copy
from typing import Any

from enforcer.kubernetes.field_owners import disowned, owned_by_others

GRANT = "spec.template.spec.containers[server].resources.limits[nvidia.com/gpumem]"
OTHER = {"manager": "kubectl", "operation": "Update", "fieldsV1": {"f:spec": {"f:replicas": {}}}}
STATUS = {"manager": "gputide", "subresource": "status", "fieldsV1": {"f:spec": {"f:minReadySeconds": {}}}}
OURS: dict[str, Any] = {
    "manager": "gputide",
    "operation": "Update",
    "fieldsV1": {
        "f:metadata": {"f:annotations": {".": {}, "f:gputide.io/plan-id": {}, "f:gputide.io/seats": {}}},
        "f:spec": {
            "f:minReadySeconds": {},
            "f:template": {
                "f:spec": {
                    "f:affinity": {},
                    "f:containers": {
                        'k:{"name":"server"}': {"f:resources": {"f:limits": {"f:nvidia.com/gpumem": {}}}},
                        'k:{"name":"side"}': {"f:env": {'k:{"name":"A"}': {".": {}, "f:name": {}, "f:value": {}}}},
                    },
                }
            },
        },
    },
}


def test_fields_that_were_written_back_are_nobodys_and_all_others_keep_their_owner() -> None:
    fields = ["metadata.annotations[gputide.io/plan-id]", "spec.minReadySeconds", GRANT]
    first, status, ours = disowned([OTHER, STATUS, OURS], "gputide", fields)
    assert (first, status) == (OTHER, STATUS)
    template = {"f:spec": copy.deepcopy(OURS["fieldsV1"]["f:spec"]["f:template"]["f:spec"])}
    del template["f:spec"]["f:containers"]['k:{"name":"server"}']
    assert ours["fieldsV1"] == {
        "f:metadata": {"f:annotations": {".": {}, "f:gputide.io/seats": {}}},
        "f:spec": {"f:template": template},
    }


def test_manager_of_nothing_more_is_left_out() -> None:
    every = [
        "metadata.annotations[gputide.io/plan-id]", "metadata.annotations[gputide.io/seats]", "spec.minReadySeconds",
        GRANT, "spec.template.spec.affinity.nodeAffinity.preferred", "spec.template.spec.containers[side].env[A]",
    ]  # fmt: skip
    assert disowned([OTHER, OURS], "gputide", every) == [OTHER]
    assert disowned([OURS], "gputide", every) == [{}]


def test_fields_that_are_not_ours_change_nothing() -> None:
    assert disowned([OTHER, OURS], "gputide", ["spec.replicas", "spec.strategy.type"]) == [OTHER, OURS]


def helm(fields: dict[str, Any], operation: str = "Update") -> dict[str, Any]:
    return {"manager": "helm", "operation": operation, "apiVersion": "apps/v1", "fieldsV1": fields}


def limits(*names: str) -> dict[str, Any]:
    own: dict[str, Any] = {'k:{"name":"server"}': {"f:resources": {"f:limits": {f"f:{name}": {} for name in names}}}}
    return {"f:spec": {"f:template": {"f:spec": {"f:containers": own}}}}


def test_fields_that_were_written_back_are_their_former_owners_again() -> None:
    before = helm({**limits("nvidia.com/gpu", "nvidia.com/gpumem")})
    former = owned_by_others([OTHER, before], "gputide", [GRANT, "spec.minReadySeconds"])
    assert [entry["fieldsV1"] for entry in former] == [limits("nvidia.com/gpumem")]
    now = [OTHER, helm(limits("nvidia.com/gpu")), OURS]
    assert disowned(now, "gputide", [GRANT], former)[:2] == [OTHER, before]


def test_owner_of_nothing_but_what_was_taken_comes_back_with_the_operation_that_it_had() -> None:
    before = helm(limits("nvidia.com/gpumem"), "Apply")
    former = owned_by_others([OTHER, before], "gputide", [GRANT])
    assert disowned([OTHER, OURS, helm({"f:spec": {"f:paused": {}}})], "gputide", [GRANT], former)[-1] == before


def test_map_of_which_every_field_was_taken_is_its_former_owners_again() -> None:
    rolling: dict[str, Any] = {"f:spec": {"f:rollingUpdate": {".": {}, "f:maxSurge": {}, "f:maxUnavailable": {}}}}
    fields = ["spec.rollingUpdate.maxSurge", "spec.rollingUpdate.maxUnavailable"]
    ours = {**OURS, "fieldsV1": {"f:spec": {"f:rollingUpdate": {"f:maxSurge": {}, "f:maxUnavailable": {}}}}}
    former = owned_by_others([helm(rolling)], "gputide", fields)
    assert disowned([OTHER, ours], "gputide", fields, former) == [OTHER, helm(rolling)]


def test_field_that_somebody_has_set_since_stays_theirs() -> None:
    former = owned_by_others([helm(limits("nvidia.com/gpumem"))], "gputide", [GRANT])
    edit = {"manager": "kubectl-edit", "operation": "Update", "fieldsV1": limits("nvidia.com/gpumem")}
    assert disowned([OTHER, edit], "gputide", [GRANT], former) == [OTHER, edit]


def test_own_fields_of_an_earlier_stage_have_no_former_owner() -> None:
    assert owned_by_others([OURS, OTHER], "gputide", [GRANT]) == ()
