"""A webhook that would not be asked about every new pod of a plan counts as not registered."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from enforcer.kubernetes.admission_probe import ANSWERED_ANNOTATION, ASKED_ANNOTATION, LEASES_WEBHOOK, PODS_WEBHOOK
from enforcer.kubernetes.cluster import ClusterPlace, KubernetesCluster
from tests.enforcer.scripted_api import Heard, ScriptedApi, Told

RULE: dict[str, Any] = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
CLIENT = {"caBundle": "x"}


def why(folder: Path, **changes: Any) -> str | None:
    """What the probe says of a webhook that answers, with some of its fields otherwise."""
    pods = {"name": PODS_WEBHOOK, "rules": [RULE], "failurePolicy": "Ignore", "clientConfig": CLIENT, **changes}
    hooks = [pods, {"name": LEASES_WEBHOOK, "clientConfig": CLIENT}]

    def script(heard: Heard, _: int) -> Told:
        if heard.path.endswith("mutatingwebhookconfigurations"):
            return Told(document={"items": [{"webhooks": hooks}]})
        if heard.method == "GET":
            return Told(document={"metadata": {"name": "a", "labels": {}}})
        annotations = heard.body["metadata"]["annotations"]
        annotations[ANSWERED_ANNOTATION] = annotations[ASKED_ANNOTATION]
        return Told(document=heard.body)

    api = ScriptedApi(folder, script)
    cluster = KubernetesCluster(ClusterPlace(kubeconfig=api.kubeconfig))
    try:
        said = cluster.why_unseated(["team"])
        return None if said is None else str(said)
    finally:
        cluster.close()
        api.close()


@pytest.mark.parametrize(
    "rule",
    [
        {},
        {"operations": ["*"]},
        {"apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*"], "scope": "*"},
        {"resources": ["*/*"], "scope": "Namespaced"},
    ],
)
def test_webhook_that_is_asked_about_every_new_pod_is_registered(tmp_path: Path, rule: dict[str, Any]) -> None:
    assert why(tmp_path, rules=[{**RULE, **rule}]) is None


@pytest.mark.parametrize(
    "rule",
    [
        {"operations": ["UPDATE"]},
        {"apiGroups": ["apps"]},
        {"apiVersions": ["v2"]},
        {"resources": ["pods/eviction"]},
        {"scope": "Cluster"},
    ],
)
def test_webhook_that_is_not_asked_about_new_pods_is_refused(tmp_path: Path, rule: dict[str, Any]) -> None:
    assert why(tmp_path, rules=[{**RULE, **rule}]) == f"{PODS_WEBHOOK} has no rule for the creation of pods"


@pytest.mark.parametrize(
    "narrowing",
    [
        {"objectSelector": {"matchLabels": {"a": "b"}}},
        {"matchConditions": [{"name": "no", "expression": "false"}]},
    ],
)
def test_webhook_that_may_leave_out_pods_is_refused(tmp_path: Path, narrowing: dict[str, Any]) -> None:
    assert next(iter(narrowing)) in str(why(tmp_path, **narrowing))


def test_narrowing_that_the_server_writes_empty_is_none(tmp_path: Path) -> None:
    assert why(tmp_path, objectSelector={}, matchConditions=[]) is None


HAMI: dict[str, Any] = {
    "name": "vgpu.hami.io", "rules": [RULE], "clientConfig": CLIENT,
    "namespaceSelector": {"matchExpressions": [{"key": "ns", "operator": "NotIn", "values": ["ignore"]}]},
    "objectSelector": {"matchExpressions": [{"key": "hami", "operator": "NotIn", "values": ["ignore"]}]},
}  # fmt: skip


@pytest.mark.parametrize(
    ("hook", "namespace", "labels", "reason"),
    [
        (HAMI, {}, {}, None),
        ({**HAMI, "name": "other"}, {}, {}, "no MutatingWebhookConfiguration has the webhook vgpu.hami.io"),
        ({**HAMI, "rules": []}, {}, {}, "vgpu.hami.io has no rule for the creation of pods"),
        ({**HAMI, "clientConfig": {}}, {}, {}, "vgpu.hami.io has no caBundle"),
        (HAMI, {"ns": "ignore"}, {}, "the namespaceSelector of vgpu.hami.io leaves out namespace team"),
        (HAMI, {}, {"hami": "ignore"}, "the objectSelector of vgpu.hami.io leaves out pods of namespace team"),
    ],
)
def test_backends_own_webhook_must_be_asked_about_the_pods_that_are_to_come(
    tmp_path: Path, hook: dict[str, Any], namespace: dict[str, str], labels: dict[str, str], reason: str | None
) -> None:
    def script(heard: Heard, _: int) -> Told:
        if heard.path.endswith("mutatingwebhookconfigurations"):
            return Told(document={"items": [{"webhooks": [hook]}]})
        return Told(document={"metadata": {"name": "team", "labels": namespace}})

    api = ScriptedApi(tmp_path, script)
    cluster = KubernetesCluster(ClusterPlace(kubeconfig=api.kubeconfig))
    try:
        said = cluster.left_out("vgpu.hami.io", [("team", labels)])
    finally:
        cluster.close()
        api.close()
    assert said is None if reason is None else reason in str(said)
