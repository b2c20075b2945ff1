"""The API server takes the manifests of the pages as they stand, every field of them known."""

from __future__ import annotations

import urllib.error
from pathlib import Path

import pytest
import yaml

from tests.cluster.api import Api

pytestmark = pytest.mark.cluster

DOCS = Path(__file__).resolve().parents[2] / "docs"
MANIFEST = DOCS / "daemonset.yaml"


def test_daemonset_of_the_page_is_taken_without_a_warning(api: Api) -> None:
    manifest = yaml.safe_load(MANIFEST.read_text(encoding="utf-8"))
    api.create("/api/v1/namespaces", {"metadata": {"name": "gputide"}})
    path = "/apis/apps/v1/namespaces/gputide/daemonsets?dryRun=All&fieldValidation=Strict"
    made = api.ask("POST", path, manifest)
    assert made["metadata"]["name"] == "gputide-exporter"
    container, asked = made["spec"]["template"]["spec"]["containers"][0], manifest["spec"]["template"]["spec"]
    assert container["securityContext"] == asked["containers"][0]["securityContext"]
    assert made["spec"]["template"]["spec"]["hostPID"] is True
    manifest["spec"]["template"]["spec"]["hostPid"] = True
    with pytest.raises(urllib.error.HTTPError, match="400"):
        api.ask("POST", path, manifest)


@pytest.mark.parametrize("page", ["admission.yaml", "agent.yaml", "rbac-relief.yaml", "rbac-writer.yaml"])
def test_manifests_of_the_enforcer_are_taken_without_a_warning(api: Api, page: str) -> None:
    documents = list(yaml.safe_load_all((DOCS / page).read_text(encoding="utf-8")))
    api.create("/api/v1/namespaces", {"metadata": {"name": "gputide"}})
    for manifest in documents:
        if manifest["kind"] == "Namespace":
            api.create("/api/v1/namespaces", manifest)
        else:
            made = api.apply(manifest, query="?dryRun=All&fieldValidation=Strict")
            assert made["metadata"]["name"] == manifest["metadata"]["name"]
    of_webhook = [manifest for manifest in documents if manifest["kind"] == "MutatingWebhookConfiguration"]
    for manifest in of_webhook:
        manifest["webhooks"][0]["failurePolicies"] = "Ignore"
        with pytest.raises(urllib.error.HTTPError, match="400"):
            api.apply(manifest, query="?dryRun=All&fieldValidation=Strict")
