"""The page's manifest mounts what the exporter's defaults read, and gives it no right that it does without."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from fleet.settings.exporter import ExporterSettings


@pytest.fixture(scope="module")
def pod(repository: Path) -> dict[str, Any]:
    manifest = yaml.safe_load((repository / "docs" / "daemonset.yaml").read_text(encoding="utf-8"))
    found: dict[str, Any] = manifest["spec"]["template"]["spec"]
    return found


def test_every_default_path_of_the_host_is_mounted_at_itself_and_read_only(pod: dict[str, Any]) -> None:
    defaults = ExporterSettings()
    folders = {
        *(str(folder) for folder in (defaults.containers_folder, defaults.claims_folder)),
        str(defaults.pod_resources_socket.parent),
    }
    (container,) = pod["containers"]
    hosts = {volume["name"]: volume["hostPath"]["path"] for volume in pod["volumes"]}
    assert {mount["mountPath"] for mount in container["volumeMounts"]} == folders
    assert all(mount["readOnly"] and hosts[mount["name"]] == mount["mountPath"] for mount in container["volumeMounts"])


def test_it_sees_the_hosts_processes_and_may_nothing_else(pod: dict[str, Any]) -> None:
    (container,) = pod["containers"]
    rights = container["securityContext"]
    assert pod["hostPID"] is True
    assert rights["capabilities"] == {"drop": ["ALL"]}
    assert (rights["allowPrivilegeEscalation"], rights["readOnlyRootFilesystem"]) == (False, True)
    # A card that is requested is a card that is taken.
    assert not any("gpu" in name for asked in container["resources"].values() for name in asked)


def test_its_account_is_the_one_that_the_rules_are_for(pod: dict[str, Any], repository: Path) -> None:
    rules = list(yaml.safe_load_all((repository / "docs" / "rbac-reader.yaml").read_text(encoding="utf-8")))
    accounts = {rule["metadata"]["name"] for rule in rules if rule["kind"] == "ServiceAccount"}
    assert pod["serviceAccountName"] in accounts
