"""The committed dashboards are what their boards say, name only series that somebody gives, and explain emptiness."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from dashboards.grafana.rule import RecordingRule
from dashboards.grafana.shipped import ShippedForm, boards, rule_files, rule_groups, shipped
from dashboards.notify.sending import NotifyMetrics
from dashboards.tokens import STATE_COLOURS
from dashboards.view_models.savings_series import SAVINGS_FAMILIES
from docs.metrics_catalogue import CATALOGUE
from enforcer.agent.loop import AgentMetrics
from enforcer.kubernetes.admission_server import AdmissionMetrics
from enforcer.relief.runner import ReliefMetrics
from enforcer.tide.runner import TideMetrics
from fleet.inventory import READ_LABELS
from fleet.series import known_names
from fleet.settings.settings import AnalyzerSettings, LowPrioritySettings, Settings
from pipeline.bus.bridge_kafka import BridgeMetrics
from pipeline.receiver.counts import OWN_METRICS, PREFIX
from pipeline.rollup.rollup import RollupMetrics
from wire.own_metrics import OwnMetrics

pytestmark = pytest.mark.filterwarnings("ignore:Prefer using dashboardv2")
SETTINGS = Settings()
NAME = re.compile(r"\b(?:gputide[_:][a-z0-9_:]+|DCGM_[A-Z_]+|hami_[a-z_]+|prometheus_[a-z_]+|kube_[a-z_]+)\b")
FOREIGN = {
    "prometheus_remote_storage_highest_timestamp_in_seconds",
    "prometheus_remote_storage_queue_highest_sent_timestamp_seconds",
    "kube_pod_owner", "kube_pod_info", "kube_pod_created", "kube_pod_labels", "kube_pod_container_info",
    "kube_pod_container_resource_requests", "kube_node_status_allocatable", "kube_node_info", "kube_resourcequota",
    # dcgm-exporter and HAMi, beyond what the receiver stores.
    "DCGM_FI_DEV_FB_FREE", "DCGM_FI_DEV_FB_TOTAL", "DCGM_FI_DEV_FB_RESERVED", "DCGM_FI_DEV_XID_ERRORS",
}  # fmt: skip
OTHERS: dict[str, Callable[[OwnMetrics], object]] = {
    "rollup": RollupMetrics,
    "agent": AgentMetrics,
    "admission": AdmissionMetrics,
    "relief": ReliefMetrics,
    "tide": TideMetrics,
    "bridge": BridgeMetrics,
    "notify": NotifyMetrics,
}
LABELS = {"gputide_first", "gputide_owner", "gputide_no_older_name", "gputide_said"} | {
    f"gputide_label_{place}" for place in range(len(READ_LABELS))
}


def given() -> set[str]:
    """Every series that an exporter, a process of ours, a rule or somebody else gives."""
    exported = {family.name for section in CATALOGUE for family in section.families}
    received = {f"{PREFIX}{metric.name}" for metric in OWN_METRICS}
    received |= {f"{name}{ending}" for name in received for ending in ("_total", "_bucket")}
    counted = set()
    for process, register in OTHERS.items():
        own = OwnMetrics(process)
        register(own)
        counted |= {metric.name for metric in own.listed}
        counted |= {f"{metric.name}_bucket" for metric in own.listed if metric.kind == "histogram"}
    recorded = {
        rule.record for group in rule_groups(SETTINGS) for rule in group.rules if isinstance(rule, RecordingRule)
    }
    savings = {one.name for one in SAVINGS_FAMILIES}
    return exported | received | counted | recorded | savings | set(known_names()) | FOREIGN


@pytest.fixture(scope="module")
def drawn_boards() -> dict[str, str]:
    """Draw every board anew."""
    from deploy.grafana.drawn import BOARDS, board_text  # noqa: PLC0415 - the SDK takes a moment

    return {board.uid: board_text(board) for board in BOARDS}


def test_committed_dashboards_are_what_the_boards_say(drawn_boards: dict[str, str]) -> None:
    assert boards() == dict(sorted(drawn_boards.items())), "run python -m deploy.grafana.drawn"


def test_a_dashboard_read_back_by_the_sdk_is_the_same(drawn_boards: dict[str, str]) -> None:
    from grafana_foundation_sdk.cog.encoder import JSONEncoder  # noqa: PLC0415
    from grafana_foundation_sdk.cog.plugins import register_default_plugins  # noqa: PLC0415
    from grafana_foundation_sdk.models.dashboard import Dashboard  # noqa: PLC0415

    register_default_plugins()
    for text in drawn_boards.values():
        again = json.loads(json.dumps(Dashboard.from_json(json.loads(text)), cls=JSONEncoder))
        assert again == json.loads(text)


def panels() -> list[tuple[str, dict[str, Any]]]:
    """Every panel with the name of its dashboard."""
    return [(name, panel) for name, text in boards().items() for panel in json.loads(text)["panels"]]


def test_every_panel_says_why_it_is_empty_and_fits_the_grid() -> None:
    taken: dict[str, set[tuple[int, int]]] = {}
    for name, panel in panels():
        assert len(panel["fieldConfig"]["defaults"]["noValue"]) > 10, panel["title"]
        assert panel["description"]
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert max(x for x, _ in cells) < 24
        assert not cells & taken.setdefault(name, set()), f"{panel['title']} lies on another panel"
        taken[name] |= cells


def test_panels_and_rules_name_only_series_that_somebody_gives() -> None:
    expressions = [target["expr"] for _, panel in panels() for target in panel["targets"]]
    expressions += [rule.expression for group in rule_groups(SETTINGS) for rule in group.rules]
    named = {name for expression in expressions for name in NAME.findall(expression)} - LABELS
    assert len(named) > 60
    assert named <= given()


def test_state_colours_are_the_tokens() -> None:
    coloured = [panel for _, panel in panels() if panel["fieldConfig"]["overrides"] and panel["type"] == "timeseries"]
    assert coloured
    for panel in coloured:
        found = {
            one["matcher"]["options"]: one["properties"][0]["value"]["fixedColor"]
            for one in panel["fieldConfig"]["overrides"]
        }
        assert found == {state.value: colour for state, colour in STATE_COLOURS.items()}


def test_thresholds_of_the_rules_are_the_settings() -> None:
    mine = Settings(
        analyzer=AnalyzerSettings(idle_ratio_max=0.07, idle_seconds=7200),
        low_priority=LowPrioritySettings(watermark_ratio=0.123),
    )
    text = "".join(rule_files(mine).values())
    assert "<= 0.07)" in text
    assert "[7200s]" in text
    assert "< 0.123" in text


def test_recorded_series_have_no_gap_for_prometheus() -> None:
    lookback_seconds = 300
    for group in rule_groups(SETTINGS):
        amount, unit = int(group.interval[:-1]), group.interval[-1]
        assert amount * {"s": 1, "m": 60}[unit] <= lookback_seconds - 60, group.name


def test_objects_of_kubernetes_hold_the_same() -> None:
    plain = shipped(ShippedForm.JSON, SETTINGS, namespace="")
    objects = shipped(ShippedForm.CONFIGMAP, SETTINGS, namespace="watch")
    for name, text in boards().items():
        config_map = yaml.safe_load(objects[f"dashboards/{name}.yaml"])
        assert config_map["metadata"]["namespace"] == "watch"
        assert config_map["metadata"]["labels"]["grafana_dashboard"] == "1"
        assert json.loads(config_map["data"][f"{name}.json"]) == json.loads(text)
        assert len(config_map["data"][f"{name}.json"]) < 1024 * 1024
    groups = [
        group for name, text in plain.items() if name.startswith("rules/") for group in yaml.safe_load(text)["groups"]
    ]
    assert yaml.safe_load(objects["rules/gputide.yaml"])["spec"]["groups"] == groups


def alerts(text: str) -> list[dict[str, Any]]:
    """Every alert of a rule file."""
    return [rule for group in yaml.safe_load(text)["groups"] for rule in group["rules"] if "alert" in rule]


def test_every_alert_names_its_section_of_the_page_operations(repository: Path) -> None:
    page = (repository / "docs" / "operations.md").read_text(encoding="utf-8")
    sections = dict(re.findall(r"^### (\w+)\n\n(.+)$", page, flags=re.MULTILINE))
    found = alerts(rule_files(SETTINGS)["gputide-alerts.rules.yaml"])
    assert {one["alert"] for one in found} == set(sections)
    for one in found:
        assert one["annotations"]["runbook"] == f"docs/operations.md#{one['alert'].lower()}"
        assert "runbook_url" not in one["annotations"]
        assert len(sections[one["alert"]]) > 80, "it says what to do"


def test_alerts_link_the_pages_where_they_are_served() -> None:
    text = rule_files(SETTINGS, docs_url="https://docs.example/gputide/")["gputide-alerts.rules.yaml"]
    urls = {one["alert"]: one["annotations"]["runbook_url"] for one in alerts(text)}
    assert urls["GputideClusterSilent"] == "https://docs.example/gputide/operations.html#gputideclustersilent"
