"""What tests of senders and boards are built from: the reference client's one call, a Prometheus, questions to it."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import yaml

from dashboards.grafana.shipped import rule_files
from fleet.settings.settings import Settings
from gputide.operate.engine_process import kill_process, start_process, wait_until
from gputide.operate.engines import free_port
from tests.engines.go_peers import GoPeers
from tests.waiting import text_of

SERIES, SAMPLES = 5, 4
"""What one call of the reference client sends: series, and samples of each."""
CHOICES = {
    "$__rate_interval": "5m", "$cluster": ".*", "$namespace": ".*", "$model": ".*", "$card": ".*", "$workload": ".*",
}  # fmt: skip
"""Everything chosen, as Grafana would send it."""


def send(peers: GoPeers, url: str, *options: str, status: int = 0) -> dict[str, Any]:
    """Let the reference client send its series to a server, and return what it says of that."""
    done = subprocess.run(
        [str(peers.sender), "-url", url, "-series", str(SERIES), "-samples", str(SAMPLES), *options],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == status, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def answer_of(url: str, expression: str) -> list[dict[str, Any]]:
    """What an expression is now; empty where the server does not answer."""
    text = text_of(f"{url}/api/v1/query?query={quote(expression)}")
    found: list[dict[str, Any]] = json.loads(text)["data"]["result"] if text else []
    return found


def chosen(expression: str, **choices: str) -> str:
    """An expression of a board with everything chosen, but for what is named."""
    for variable, value in {**CHOICES, **{f"${name}": value for name, value in choices.items()}}.items():
        expression = expression.replace(variable, value)
    return expression


@contextmanager
def evaluating(peers: GoPeers, folder: Path, settings: Settings, *targets: str) -> Iterator[str]:
    """Run a Prometheus on the data in `folder/tsdb`: every second it evaluates the shipped rules and scrapes."""
    rules = {name: yaml.safe_load(text) for name, text in rule_files(settings).items()}
    for name, content in rules.items():
        for group in content["groups"]:
            group["interval"] = "1s"
        (folder / name).write_text(yaml.safe_dump(content), encoding="utf-8")
    config = {
        "global": {"scrape_interval": "1s"},
        "rule_files": sorted(rules),
        "scrape_configs": [
            {"job_name": "gputide", "honor_labels": True, "static_configs": [{"targets": list(targets)}]}
        ],
    }
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config), encoding="utf-8")
    url = f"http://127.0.0.1:{free_port()}"
    command = [
        str(peers.prometheus), "--config.file=prometheus.yml", "--storage.tsdb.path=tsdb",
        f"--web.listen-address={url.removeprefix('http://')}",
    ]  # fmt: skip
    process = start_process(
        "prometheus", command, folder=folder, log=folder / "prometheus.log", environ=dict(os.environ)
    )
    try:
        wait_until(lambda: bool(answer_of(url, "vector(1)")), process, seconds_max=60)
        yield url
    finally:
        kill_process(process)
