"""Writes what of the chart is made from the code, and the manifests of the documentation, made from the chart.

    python deploy/helm/generate.py            # after a change of settings, dashboards, rules or templates

Dashboards and rules are those of `gputide admin grafana export`; the schema knows every name of a setting, so that a
misspelt one fails at `helm install` and not in a pod. `docs/*.yaml` are templates of the chart as helm renders them,
for those who use kubectl alone. helm is taken from PATH, else from the cache of the tests. Tests hold all of it to what
this writes.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
CHART = HERE / "gputide"
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT)]

import yaml  # noqa: E402 - the path is set above, so that the script runs anywhere
from pydantic import BaseModel  # noqa: E402

from dashboards.grafana.shipped import boards, prometheus_rule, yaml_text  # noqa: E402
from deploy.helm.writer_policy import backend_names, policy_template  # noqa: E402
from fleet.settings.settings import Settings  # noqa: E402

IMAGE = "registry.example.com/gputide"
_CHART_LABELS = re.compile(r"^ *(helm\.sh/chart|app\.kubernetes\.io/(managed-by|instance|version|part-of)): .*\n", re.M)
_NAMESPACE = "apiVersion: v1\nkind: Namespace\nmetadata:\n  name: gputide\n---\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestPage:
    """A manifest of the documentation.

    Attributes:
        template: file of the chart's templates.
        namespace: of the release that it is rendered for.
        values: what is set beside the chart's own values.
        is_with_namespace: True to make the namespace too.
    """

    template: str
    namespace: str
    values: tuple[str, ...]
    is_with_namespace: bool = False


PAGES: dict[str, ManifestPage] = {
    "daemonset.yaml": ManifestPage(
        template="node-exporter.yaml", namespace="gputide", values=("nodes.namespace=gputide",)
    ),
    "rbac-reader.yaml": ManifestPage(
        template="rbac-reader.yaml", namespace="gputide", values=("nodes.namespace=gputide",), is_with_namespace=True
    ),
    "rbac-writer.yaml": ManifestPage(
        template="rbac-writer.yaml", namespace="gputide", values=("enforcer.enabled=true",), is_with_namespace=True
    ),
    "writer-policy.yaml": ManifestPage(
        template="writer-policy.yaml",
        namespace="gputide",
        values=(
            "enforcer.enabled=true",
            "relief.enabled=true",
            "agent.enabled=true",
            "nodes.namespace=gputide",
            "enforcer.formerBackends={*}",
        ),
    ),
    "custom-resources.yaml": ManifestPage(
        template="custom-resources.yaml", namespace="gputide", values=("enforcer.enabled=true",)
    ),
    "usage-api.yaml": ManifestPage(
        template="usage-api.yaml",
        namespace="gputide",
        values=(
            "usageApi.enabled=true",
            "usageApi.tlsSecret=gputide-usage-tls",
            "usageApi.caBundle=AUTHORITY-OF-THE-SECRET-IN-BASE64",
            "usageApi.frontProxyCa=AUTHORITY-OF-THE-FRONT-PROXY",
            "usageApi.frontProxyNames={front-proxy-client}",
        ),
    ),
    "gpu-policy.yaml": ManifestPage(template="gpu-policy.yaml", namespace="default", values=()),
    "rbac-relief.yaml": ManifestPage(
        template="rbac-relief.yaml", namespace="gputide", values=("enforcer.enabled=true", "relief.enabled=true")
    ),
    "agent.yaml": ManifestPage(
        template="agent.yaml",
        namespace="gputide",
        values=("nodes.namespace=gputide", "agent.enabled=true"),
        is_with_namespace=True,
    ),
    "admission.yaml": ManifestPage(
        template="admission.yaml",
        namespace="gputide",
        values=("admission.enabled=true", "admission.tlsSecret=gputide-admission-tls", "admission.caBundle=Cg=="),
    ),
}
"""Pages of `docs/` by file name."""


def chart_files() -> dict[str, str]:
    """Path below the chart → text, of every file that is made from the code."""
    defaults = Settings()
    rules = prometheus_rule(defaults, namespace="")["spec"]
    return {
        "files/rules.yaml": yaml_text(rules),
        **{f"files/dashboards/{name}.json": _packed(text) for name, text in boards().items()},
        "files/writer-names.json": backend_names(),
        "templates/writer-policy.yaml": policy_template(),
        "values.schema.json": _schema(),
        "Chart.yaml": _chart(),
    }


def manifest_pages(helm: Path) -> dict[str, str]:
    """File name in `docs/` → text, as helm renders them; comments stay.

    Args:
        helm: the program.
    """
    return {name: _page(helm, page) for name, page in PAGES.items()}


def _page(helm: Path, page: ManifestPage) -> str:
    command = [str(helm), "template", "gputide", str(CHART), "--namespace", page.namespace]
    for value in (f"image.repository={IMAGE}", *page.values):
        command += ["--set", value]
    command += ["--show-only", f"templates/{page.template}"]
    text = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    # Helm tells of each document where it is from, in a line that says nothing here.
    text = re.sub(r"^# Source: .*\n", "", text, flags=re.M)
    text = _CHART_LABELS.sub("", text).replace(": Cg==\n", ': ""\n').replace(': "Cg=="\n', ': ""\n')
    text = re.sub(r"(?:[ \t]*\n)+", "\n", text).strip().removeprefix("---\n") + "\n"
    head, sign, rest = text.partition("apiVersion: ")
    made = "# Made by deploy/helm/generate.py from the chart; docs/helm.md says how to install it with helm.\n"
    return made + head + (_NAMESPACE if page.is_with_namespace else "") + sign + rest


def _schema() -> str:
    """The chart's schema, with the names of all settings as they are now."""
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    schema["properties"]["settings"] = _names(Settings)
    return json.dumps(schema, indent=1) + "\n"


def _names(model: type[BaseModel]) -> dict[str, Any]:
    """Names of settings alone: their values are read by the program, which takes units and words too."""
    fields: dict[str, Any] = {}
    for name, field in model.model_fields.items():
        kind: Any = field.annotation
        fields[name] = _names(kind) if isinstance(kind, type) and issubclass(kind, BaseModel) else {}
    return {"type": "object", "additionalProperties": False, "properties": dict(sorted(fields.items()))}


def _chart() -> str:
    """Chart.yaml with the version of the program."""
    version = re.search(r'^version = "([^"]+)"', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.M)
    if version is None:
        raise ValueError("pyproject.toml names no version")
    text = (CHART / "Chart.yaml").read_text(encoding="utf-8")
    return re.sub(r"^(version|appVersion): .*$", rf"\1: {version[1]}", text, flags=re.M)


def _packed(text: str) -> str:
    # In one line, as `admin grafana export --format configmap` has it: objects of Kubernetes end at a mebibyte.
    return json.dumps(json.loads(text), sort_keys=True, ensure_ascii=False, separators=(",", ":")) + "\n"


def _helm() -> Path:
    on_path = shutil.which("helm")
    if on_path is not None:
        return Path(on_path)
    from gputide.operate.engine_cache import default_cache_path  # noqa: PLC0415 - only where helm must be built
    from tests.control_plane import kubernetes_programs  # noqa: PLC0415

    return kubernetes_programs(default_cache_path(), tell=lambda told: print(told, file=sys.stderr)).helm


def write_chart_files() -> None:
    """Writes what is made from the code."""
    for place, text in chart_files().items():
        path = CHART / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write_chart_files()
    for name, text in manifest_pages(_helm()).items():
        assert list(yaml.safe_load_all(text)), name
        (ROOT / "docs" / name).write_text(text, encoding="utf-8")
