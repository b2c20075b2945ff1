"""The API server takes the manifest of the page as it stands, every field of it known."""

from __future__ import annotations

import urllib.error
from pathlib import Path

import pytest
import yaml

from tests.cluster.api import Api

pytestmark = pytest.mark.cluster

MANIFEST = Path(__file__).resolve().parents[2] / "docs" / "daemonset.yaml"


def test_daemonset_of_the_page_is_taken_without_a_warning(api: Api) -> None:
    manifest = yaml.safe_load(MANIFEST.read_text(encoding="utf-8"))
    path = "/apis/apps/v1/namespaces/default/daemonsets?dryRun=All&fieldValidation=Strict"
    made = api.ask("POST", path, manifest)
    assert made["metadata"]["name"] == "gputide-exporter"
    container, asked = made["spec"]["template"]["spec"]["containers"][0], manifest["spec"]["template"]["spec"]
    assert container["securityContext"] == asked["containers"][0]["securityContext"]
    assert made["spec"]["template"]["spec"]["hostPID"] is True
    manifest["spec"]["template"]["spec"]["hostPid"] = True
    with pytest.raises(urllib.error.HTTPError, match="400"):
        api.ask("POST", path, manifest)
