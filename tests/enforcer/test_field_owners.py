"""Fields that were written back are given up: nobody's, with everything else owned as before."""

from __future__ import annotations

import copy
from typing import Any

from enforcer.kubernetes.field_owners import disowned

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
