"""The dashboards and rules as files for people who have a Grafana: plain, or as objects of Kubernetes.

Called by `gputide grafana export`. The dashboards are the committed JSON; the rules are written from the settings, so
that an alert and the analyzer mean the same by idle.
"""

from __future__ import annotations

import json
from enum import StrEnum
from importlib.resources import files
from typing import Any

from dashboards.grafana.derived import Thresholds
from dashboards.grafana.rule_files import prometheus_rule, rule_files, yaml_text


class ShippedForm(StrEnum):
    """What the files are for."""

    JSON = "json"
    """Grafana's provisioning from files, or its import page, and rule files for prometheus.yml."""
    CONFIGMAP = "configmap"
    """ConfigMaps for the sidecar of Grafana's Helm chart, and one PrometheusRule for the Prometheus operator."""


_PROVIDER: dict[str, Any] = {
    "apiVersion": 1,
    "providers": [
        {
            "name": "gputide",
            "folder": "gputide",
            "type": "file",
            "allowUiUpdates": False,
            "options": {"path": "/var/lib/grafana/dashboards/gputide"},
        }
    ],
}
"""Grafana's provisioning (grafana/grafana:docs/sources/administration/provisioning/index.md)."""


def boards() -> dict[str, str]:
    """Name without suffix → JSON text of every dashboard, by name."""
    folder = files("dashboards.grafana").joinpath("boards")
    found = {path.name.removesuffix(".json"): path.read_text("utf-8") for path in folder.iterdir()}
    return dict(sorted(found.items()))


def shipped(
    form: ShippedForm, thresholds: Thresholds, *, namespace: str, docs_url: str | None = None
) -> dict[str, str]:
    """Path below the target folder → text.

    Args:
        form: what the files are for.
        thresholds: the numbers in the rules.
        namespace: namespace of the objects; of no meaning for plain files.
        docs_url: where the documentation is served, for links of the alerts; None for none.
    """
    if form is ShippedForm.JSON:
        return {
            **{f"dashboards/{name}.json": text for name, text in boards().items()},
            "provisioning/gputide.yaml": yaml_text(_PROVIDER),
            **{f"rules/{name}": text for name, text in rule_files(thresholds, docs_url=docs_url).items()},
        }
    return {
        **{f"dashboards/{name}.yaml": yaml_text(_config_map(name, text, namespace)) for name, text in boards().items()},
        "rules/gputide.yaml": yaml_text(prometheus_rule(thresholds, namespace=namespace, docs_url=docs_url)),
    }


def _config_map(name: str, text: str, namespace: str) -> dict[str, Any]:
    """The label is what the sidecar of Grafana's Helm chart looks for unless told otherwise."""
    # In one line: indentation would double what counts against the limit of a mebibyte.
    packed = json.dumps(json.loads(text), sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": {"grafana_dashboard": "1", "app.kubernetes.io/name": "gputide"},
        },
        "data": {f"{name}.json": packed},
    }
