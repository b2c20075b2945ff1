"""`gputide run admission` serves until it is told to stop, and says what is wrong before it begins."""

from __future__ import annotations

import http.client
import os
import re
import signal
import ssl
import subprocess
import sys
from pathlib import Path

import pytest

from tests.exporter.kubeconfigs import write_kubeconfig
from tests.gputide.conftest import Program
from tests.scraping import OWN_PORT, scraped

pytestmark = pytest.mark.long

CERTIFICATES = Path(__file__).parents[1] / "pipeline" / "certificates"
CODE = "from gputide.cli import main; main()"


def arguments(folder: Path, key: Path) -> list[str]:
    kubeconfig = write_kubeconfig(folder, "http://127.0.0.1:1")
    options = ["--set", f"enforcer.kubeconfig={kubeconfig}", "run", "admission", "--listen", "127.0.0.1:0"]
    files = ["--certificate", str(CERTIFICATES / "receiver.pem"), "--key", str(key)]
    return [*options, *files]


def test_it_answers_probes_and_a_scraper_until_a_signal_stops_it(tmp_path: Path) -> None:
    own = ["--data-dir", str(tmp_path), *OWN_PORT, *arguments(tmp_path, CERTIFICATES / "receiver.key.pem")]
    command = [sys.executable, "-c", CODE, *own]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as running:
        assert running.stderr is not None
        url = re.search(r"metrics of admission at (\S+)", running.stderr.readline())
        assert url is not None
        assert scraped(url[1])["gputide_admission_api_requests_total"] == 0
        port = re.search(r"https://127\.0\.0\.1:(\d+)/pods", running.stderr.readline())
        assert port is not None
        context = ssl.create_default_context(cafile=str(CERTIFICATES / "authority.pem"))
        asked = http.client.HTTPSConnection("127.0.0.1", int(port[1]), context=context, timeout=10)
        asked.request("GET", "/healthz")
        assert asked.getresponse().status == 200
        asked.close()
        os.kill(running.pid, signal.SIGTERM)
        assert "stopped" in running.stderr.read()
    assert running.returncode == 0


def test_key_that_is_not_there_is_wrong_use(program: Program, tmp_path: Path) -> None:
    said = program(tmp_path, *arguments(tmp_path, tmp_path / "none.pem"))
    assert said.status == 2
    assert "--key" in said.err
