"""The dashboards and rules as files for people who have a Grafana: plain, or as objects of Kubernetes.

Called by `gputide admin grafana export`. The dashboards are the committed JSON; the rules are written from the
settings, so that an alert and the analyzer mean the same by idle.

Rule groups as text: Prometheus rule files, or one PrometheusRule object of the Prometheus operator.
"""

from __future__ import annotations

import json
from enum import StrEnum
from importlib.resources import files
from typing import Any

import yaml

from dashboards.grafana.alerts import alert_groups
from dashboards.grafana.derived import derived_groups
from dashboards.grafana.normalised import normalised_groups
from dashboards.grafana.rule import RecordingRule, RuleGroup
from fleet.settings.settings import Settings


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


def shipped(form: ShippedForm, settings: Settings, *, namespace: str, docs_url: str | None = None) -> dict[str, str]:
    """Path below the target folder → text.

    Args:
        namespace: namespace of the objects; of no meaning for plain files.
        docs_url: where the documentation is served, for links of the alerts; None for none.
    """
    if form is ShippedForm.JSON:
        return {
            **{f"dashboards/{name}.json": text for name, text in boards().items()},
            "provisioning/gputide.yaml": yaml_text(_PROVIDER),
            **{f"rules/{name}": text for name, text in rule_files(settings, docs_url=docs_url).items()},
        }
    return {
        **{f"dashboards/{name}.yaml": yaml_text(_config_map(name, text, namespace)) for name, text in boards().items()},
        "rules/gputide.yaml": yaml_text(prometheus_rule(settings, namespace=namespace, docs_url=docs_url)),
    }


def _config_map(name: str, text: str, namespace: str) -> dict[str, Any]:
    """The label is what the sidecar of Grafana's Helm chart looks for unless set otherwise."""
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


def rule_groups(settings: Settings) -> tuple[RuleGroup, ...]:
    """All groups, in the order in which one builds on the other."""
    return (*normalised_groups(), *derived_groups(settings.analyzer), *alert_groups(settings))


def rule_files(settings: Settings, *, docs_url: str | None = None) -> dict[str, str]:
    """File name to text: what everybody needs, and the alerts, which somebody may want to write anew.

    Args:
        docs_url: where the documentation is served; the alerts link their section of it. None for no link.
    """
    return {
        "gputide-recording.rules.yaml": _file((*normalised_groups(), *derived_groups(settings.analyzer)), None),
        "gputide-alerts.rules.yaml": _file(alert_groups(settings), docs_url),
    }


def prometheus_rule(settings: Settings, *, namespace: str, docs_url: str | None = None) -> dict[str, Any]:
    """The same as one object of the operator (monitoring.coreos.com/v1, prometheus-operator:Documentation/api.md)."""
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {
            "name": "gputide",
            "namespace": namespace,
            "labels": {"app.kubernetes.io/name": "gputide", "role": "alert-rules"},
        },
        "spec": {"groups": [_group(group, docs_url) for group in rule_groups(settings)]},
    }


def yaml_text(content: dict[str, Any]) -> str:
    """A document as people write it: expressions over several lines stay lines."""
    return yaml.dump(content, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=1000)


def runbook(alert: str) -> str:
    """The section that says what to do about an alert, in the documentation's own words for the place."""
    return f"docs/operations.md#{alert.lower()}"


def _link(docs_url: str, alert: str) -> str:
    """The same section where the pages are served, as `mkdocs.yml` has them."""
    return f"{docs_url.rstrip('/')}/operations.html#{alert.lower()}"


def _file(groups: tuple[RuleGroup, ...], docs_url: str | None) -> str:
    head = "# Made by `gputide admin grafana export`; change the settings and export again rather than this file.\n"
    return head + yaml_text({"groups": [_group(group, docs_url) for group in groups]})


def _group(group: RuleGroup, docs_url: str | None) -> dict[str, Any]:
    rules: list[dict[str, Any]] = []
    for rule in group.rules:
        if isinstance(rule, RecordingRule):
            rules.append({"record": rule.record, "expr": rule.expression})
            continue
        rules.append(
            {
                "alert": rule.alert,
                "expr": rule.expression,
                **({"for": rule.hold} if rule.hold else {}),
                "labels": {"severity": rule.severity.value, **group.labels},
                "annotations": {
                    "summary": rule.summary,
                    "description": rule.description,
                    "needs": rule.needs,
                    "runbook": runbook(rule.alert),
                    # The name that the templates of Alertmanager and Grafana make a link of.
                    **({} if docs_url is None else {"runbook_url": _link(docs_url, rule.alert)}),
                },
            }
        )
    return {"name": group.name, "interval": group.interval, "rules": rules}


class _Dumper(yaml.SafeDumper):
    """Writes texts of several lines as blocks."""


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)


_Dumper.add_representer(str, _text)
