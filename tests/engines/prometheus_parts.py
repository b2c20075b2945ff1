"""What tests of senders are built from: the reference client's one call, and questions to a Prometheus."""

from __future__ import annotations

import json
import subprocess
from typing import Any
from urllib.parse import quote

from tests.engines.go_peers import GoPeers
from tests.waiting import text_of

SERIES, SAMPLES = 5, 4
"""What one call of the reference client sends: series, and samples of each."""


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
