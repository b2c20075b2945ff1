"""One release of the chart, by the real helm: rendered, installed, upgraded, rolled back, removed."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.cluster.api import Manifest

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "deploy" / "helm" / "gputide"
SECONDS_MAX = 180


@dataclass(frozen=True, slots=True, kw_only=True)
class HelmRelease:
    """What helm is told.

    Attributes:
        helm: the program.
        kubeconfig: of whom it acts for; None where it only renders.
        home: where helm keeps what it keeps.
        name: of the release.
        namespace: of the release, which is there.
    """

    helm: Path
    kubeconfig: Path | None
    home: Path
    name: str
    namespace: str

    def install(self, values: Manifest, *arguments: str) -> None:
        """Install or upgrade."""
        self._with_values(["upgrade", "--install", self.name, str(CHART), *arguments], values)

    def roll_back(self, revision: int, *arguments: str) -> None:
        """Go back to a revision."""
        self.run("rollback", self.name, str(revision), *arguments)

    def remove(self) -> None:
        """Uninstall."""
        self.run("uninstall", self.name, "--wait")

    def template(self, values: Manifest, *arguments: str) -> list[Manifest]:
        """The manifests, rendered without a cluster."""
        text = self._with_values(["template", self.name, str(CHART), *arguments], values)
        return [manifest for manifest in yaml.safe_load_all(text) if manifest]

    def refused(self, values: Manifest) -> str:
        """What helm says of values that it does not render; fails where it does."""
        command, environ = self._command(["template", self.name, str(CHART), "--values", "-"])
        done = subprocess.run(
            command, env=environ, input=yaml.safe_dump(values), capture_output=True, text=True, check=False, timeout=60
        )
        assert done.returncode != 0, f"helm took {values}"
        return done.stderr

    def run(self, *words: str, given: str | None = None) -> str:
        """Any of helm's commands."""
        command, environ = self._command(words)
        done = subprocess.run(
            command, env=environ, input=given, capture_output=True, text=True, check=False, timeout=SECONDS_MAX
        )
        assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
        return done.stdout

    def _with_values(self, words: Sequence[str], values: Manifest) -> str:
        return self.run(*words, "--values", "-", given=yaml.safe_dump(values))

    def _command(self, words: Sequence[str]) -> tuple[list[str], dict[str, str]]:
        environ = {"HOME": str(self.home), "PATH": "/usr/bin:/bin"}
        if self.kubeconfig is not None:
            environ["KUBECONFIG"] = str(self.kubeconfig)
        return [str(self.helm), *words, "--namespace", self.namespace], environ


def merged(*parts: Manifest) -> Manifest:
    """Values, the later winning, as helm puts several files together."""
    found: dict[str, Any] = {}
    for part in parts:
        for name, value in part.items():
            both = isinstance(value, dict) and isinstance(found.get(name), dict)
            found[name] = merged(found[name], value) if both else value
    return found


def pods_of(manifests: Sequence[Manifest]) -> dict[str, Manifest]:
    """`Kind/name` → pod template of everything that makes pods."""
    found: dict[str, Manifest] = {}
    for manifest in manifests:
        spec = manifest.get("spec", {})
        template = spec.get("jobTemplate", {}).get("spec", {}).get("template") or spec.get("template")
        if manifest["kind"] in ("Deployment", "DaemonSet", "CronJob", "Job"):
            found[f"{manifest['kind']}/{manifest['metadata']['name']}"] = template
    return found


def profile(name: str) -> Manifest:
    """The values of a profile of the chart."""
    found: Manifest = yaml.safe_load((CHART / f"values-{name}.yaml").read_text(encoding="utf-8"))
    return found


EVERYTHING: Manifest = {
    "image": {"repository": "registry.example.com/gputide", "digest": f"sha256:{'ab' * 32}", "pullSecrets": ["pull"]},
    "cluster": {"name": "prod", "timeZone": "Asia/Shanghai"},
    "receiver": {"tokensSecret": "senders", "tlsSecret": "receiver-tls", "clientCaSecret": "clients"},
    "dashboard": {
        "access": "oidc", "publicUrl": "https://gpus.example.com", "rightsSecret": "rights", "tlsSecret": "web-tls",
        "ingress": {"enabled": True, "className": "nginx", "tlsSecret": "gpus-tls"},
    },
    "usageApi": {
        "enabled": True, "certManagerIssuer": {"kind": "ClusterIssuer", "name": "internal"},
        "frontProxyCa": "-----BEGIN CERTIFICATE-----", "frontProxyNames": ["front-proxy-client"],
    },
    "scraping": {"tokensSecret": "scrapers", "tlsSecret": "exporter-tls"},
    "telemetry": {"endpoint": "https://otel-collector.observability:4318"},
    "notify": {"enabled": True},
    "enforcer": {
        "enabled": True, "controller": True, "impersonatedUsers": ["ann"], "tide": True,
        "console": {"access": "token", "rightsSecret": "rights", "tlsSecret": "web-tls", "clientCaSecret": "web-ca"},
    },
    "relief": {"enabled": True},
    "router": {
        "groups": {
            "a100-3": {
                "cardBytes": "80GiB", "tlsSecret": "chat-tls", "clientCaSecret": "chat-clients",
                "priorityClassName": "chat",
                "models": [
                    {"name": "chat-qwen", "port": 80, "server": "http://qwen-server.chat.svc:8000", "limit": "24GiB"},
                    {"name": "chat-llama", "server": "http://llama-server.chat.svc:8000", "limit": "39.5GiB"},
                ],
            },
        },
    },
    "agent": {
        "enabled": True, "tokensSecret": "readers", "tlsSecret": "agent-tls", "settings": {"agent.give_way": "strict"},
    },
    "clusterExporter": {"settings": {"exporter.device_resources": "example.com/gpu"}},
    "admission": {
        "enabled": True, "clientCaSecret": "api-server",
        "certManagerIssuer": {"kind": "ClusterIssuer", "name": "internal"},
    },
    "nodeExporter": {"settings": {"exporter.interval_seconds": 30}, "compat": ["dcgm"], "runtimeClassName": "nvidia"},
    "monitoring": {"podMonitors": True, "rules": True, "dashboards": True, "labels": {"release": "prometheus"}},
    "priorityClassName": "platform",
    "secrets": [{"name": "slack", "secretName": "slack-hook"}],
    "settings": {
        "dashboard": {"oidc_issuer": "https://sso.example.com/realms/main", "oidc_client_id": "gputide"},
        "notify": {
            "channels": {"ops": {"kind": "slack", "url_file": "/secrets/slack/url"}}, "everything": ["ops"],
        },
        "receiver": {"series_max": 200000, "senders": {"east": {"cluster": "east", "series_max": 100000}}},
        "prices": {"overrides": {"NVIDIA A10": "0.85"}},
        "risk": {"preset": "low"},
        "router": {"wait_seconds": 12},
    },
}  # fmt: skip
"""Values that turn every part on."""
