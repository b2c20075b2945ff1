"""The writer's role lets every backend read and write its own configuration, and no other ConfigMap."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from enforcer.backends.register import BACKENDS
from enforcer.dialect import ObjectKey
from tests.enforcer.builders import NOW

ROLES = Path(__file__).parents[2] / "docs" / "rbac-writer.yaml"
CONFIGS = sorted({key for _, make in BACKENDS for key in make(NOW).dialect.config_objects if key[0] == "ConfigMap"})


def rules(namespace: str | None) -> list[dict[str, Any]]:
    """Rules about ConfigMaps of the writer's role in a namespace; of its cluster role for None."""
    kind = "ClusterRole" if namespace is None else "Role"
    return [
        rule
        for manifest in yaml.safe_load_all(ROLES.read_text(encoding="utf-8"))
        if manifest and manifest["kind"] == kind and manifest["metadata"].get("namespace") == namespace
        for rule in manifest["rules"]
        if "configmaps" in rule["resources"]
    ]


@pytest.mark.parametrize("key", CONFIGS, ids=lambda key: f"{key[1]}/{key[2]}")
def test_configuration_of_a_backend_may_be_read_and_written(key: ObjectKey) -> None:
    allowed = {
        verb for rule in [*rules(None), *rules(key[1])] if key[2] in rule["resourceNames"] for verb in rule["verbs"]
    }
    assert {"get", "patch"} <= allowed


def test_no_other_config_map_may_be_written() -> None:
    names = {key[2] for key in CONFIGS}
    for rule in [*rules(None), *rules("kube-system")]:
        assert "patch" not in rule["verbs"] or set(rule["resourceNames"]) <= names
        assert set(rule["verbs"]) <= {"get", "patch"}
