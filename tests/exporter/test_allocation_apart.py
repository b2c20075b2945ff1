"""What a pod's specification says is told beside it: anti-affinity against its own kind, and no library."""

from __future__ import annotations

from typing import Any

import pytest

from exporter.allocation.manifest import Shared
from exporter.allocation.pods import kept_apart, pod_record
from fleet.inventory import KEPT_APART_LABEL, LIBRARY_OFF_LABEL
from tests.exporter.allocation_manifests import pod

LABELS = {"app": "web", "tier": "front"}
HOST, ZONE = "kubernetes.io/hostname", "topology.kubernetes.io/zone"
OWN: dict[str, Any] = {"matchLabels": {"app": "web"}}


def term(selector: Any = OWN, key: Any = HOST, **more: Any) -> dict[str, Any]:
    return {"labelSelector": selector, "topologyKey": key, **more}


def spec(*terms: Any, rule: str = "requiredDuringSchedulingIgnoredDuringExecution") -> dict[str, Any]:
    return {"affinity": {"podAntiAffinity": {rule: list(terms)}}}


@pytest.mark.parametrize(
    ("terms", "found"),
    [
        ([term()], HOST),
        ([term({})], HOST),
        ([term(key=ZONE)], ZONE),
        ([term(), term(key=ZONE)], ZONE),
        ([term({"matchExpressions": [{"key": "app", "operator": "In", "values": ["web", "api"]}]})], HOST),
        ([term({"matchExpressions": [{"key": "tier", "operator": "Exists"}]})], HOST),
        ([term({"matchExpressions": [{"key": "gpu", "operator": "DoesNotExist"}]})], HOST),
        ([term({"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["api"]}]})], HOST),
        ([term(namespaces=["other", "team"])], HOST),
        ([term(namespaceSelector={})], HOST),
        ([], None),
        ([term(None)], None),
        ([term({"matchLabels": {"app": "api"}})], None),
        ([term({"matchExpressions": [{"key": "app", "operator": "In", "values": "web"}]})], None),
        ([term({"matchExpressions": [{"key": "app", "operator": "Gt", "values": ["1"]}]})], None),
        ([term(namespaces=["other"])], None),
        ([term(namespaceSelector={"matchLabels": {"team": "a"}})], None),
        ([term(mismatchLabelKeys=["tier"])], None),
        ([term(key="")], None),
        ([term(key="k" * 400)], None),
        ([term(key=7)], None),
        (["text", None, 7], None),
    ],
)
def test_pod_minds_its_own_kind_where_it_says_so(terms: list[Any], found: str | None) -> None:
    assert kept_apart(spec(*terms), "team", LABELS) == found


@pytest.mark.parametrize("affinity", [None, "x", [], {"podAntiAffinity": []}, {"podAntiAffinity": {"required": 3}}])
def test_affinity_of_another_shape_is_none(affinity: Any) -> None:
    assert kept_apart({"affinity": affinity}, "team", LABELS) is None


def test_what_a_pod_only_prefers_binds_nobody() -> None:
    wish = {"weight": 100, "podAffinityTerm": term()}
    assert kept_apart(spec(wish, rule="preferredDuringSchedulingIgnoredDuringExecution"), "team", LABELS) is None


def test_it_is_told_among_the_labels_and_goes_before_what_a_tenant_wrote() -> None:
    manifest = pod(labels={**LABELS, KEPT_APART_LABEL: "mine"}, annotations={KEPT_APART_LABEL: "mine, too"})
    written = pod_record(manifest, Shared())
    manifest["spec"].update(spec(term()))
    read = pod_record(manifest, Shared())
    assert written is not None
    assert read is not None
    assert dict(written.labels)[KEPT_APART_LABEL] == "mine"
    assert dict(read.labels)[KEPT_APART_LABEL] == HOST
    assert dict(read.labels)["app"] == "web"


@pytest.mark.parametrize(
    ("env", "told"),
    [
        ([{"name": "CUDA_DISABLE_CONTROL", "value": "true"}], "hami,volcano"),
        ([{"name": "CUDA_DISABLE_CONTROL", "valueFrom": {"fieldRef": {}}}], "hami,volcano"),
        # Volcano's plugin goes by the name alone.
        ([{"name": "CUDA_DISABLE_CONTROL", "value": "false"}], "volcano"),
        ([{"name": "CUDA_DISABLE_CONTROL", "value": ["true"]}], "volcano"),
        ([{"name": "OTHER", "value": "true"}, "text", None], "mine"),
        ("text", "mine"),
    ],
)
def test_container_that_keeps_the_library_out_is_told_whatever_its_labels_say(env: Any, told: str) -> None:
    manifest = pod()
    manifest["metadata"]["labels"] = {LIBRARY_OFF_LABEL: "mine"}
    manifest["spec"]["containers"][0]["env"] = env
    record = pod_record(manifest, Shared())
    assert record is not None
    assert dict(record.labels)[LIBRARY_OFF_LABEL] == told
