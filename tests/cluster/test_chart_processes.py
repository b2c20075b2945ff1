"""What the chart installs works: its containers run for real, from start to the first page of advice.

kwok lets pods look alive that run nothing. Here the pod templates that helm put into the API server are run on this
machine (`pod_double`): samples go in by the service's port with the secret's token, advice comes out of the web app.
"""

from __future__ import annotations

import base64
import http.client
import json
import tempfile
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
import yaml

from exporter.replay.reader import ReplayReader
from exporter.synthetic.writer import CARDS_MIN, write_synthetic_fleet
from exporter.trace.trace import open_trace
from fleet.units import GIB
from gputide.operate.engines import free_port
from gputide.replay.sender import ReplaySender
from tests.cluster.api import Api, Manifest
from tests.cluster.helm_release import HelmRelease
from tests.cluster.pod_double import Installed, needs_root
from tests.control_plane import ControlPlane, KubernetesPrograms
from tests.scraping import scraped
from tests.sleeping_servers import SleepingServer, sleeping_servers
from tests.waiting import text_of, until

pytestmark = [pytest.mark.cluster, needs_root]

NODE = "node-chart"
STOP_SECONDS_MAX = 45.0
"""Below the pod's time of grace, on a machine that is busy."""


class TokenSender(ReplaySender):
    """Sends as a Prometheus that was given a token."""

    def __init__(self, url: str, token: str) -> None:
        super().__init__(url, sleep=time.sleep)
        self._token = token

    def _answer(self, body: bytes, headers: dict[str, str]) -> tuple[int, str, float]:
        return super()._answer(body, {**headers, "Authorization": f"Bearer {self._token}"})


Models = dict[str, SleepingServer]


@pytest.fixture
def models() -> Iterator[Models]:
    """Servers that sleep, on a card that holds one of them awake."""
    with sleeping_servers({"chat-qwen": 18 * GIB, "chat-llama": 18 * GIB}, 24 * GIB) as (servers, book):
        yield servers
        assert not book.faults


@pytest.fixture
def installed(
    programs: KubernetesPrograms, control_plane: ControlPlane, api: Api, namespace: str, models: Models
) -> Iterator[tuple[Installed, dict[str, int]]]:
    ports = {name: free_port() for name in ("receiver", "dashboard", "savings", "clusterExporter", "rollup", "router")}
    routed = [{"name": one.name, "server": one.origin, "limit": "18GiB"} for one in models.values()]
    # Not pytest's own folder, which is its user's alone.
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        folder.chmod(0o755)
        release = HelmRelease(
            helm=programs.helm, kubeconfig=control_plane.kubeconfig(), home=folder / "helm", name="run",
            namespace=namespace,
        )  # fmt: skip
        values: Manifest = {name: {"port": port} for name, port in ports.items() if name != "rollup"}
        values["ownMetrics"] = {"rollup": ports["rollup"], "router": free_port()}
        values["router"]["groups"] = {"a": {"cardBytes": "24GiB", "models": routed}}
        release.install(values | {"cluster": {"name": "prod"}, "nodeExporter": {"enabled": False}})
        found = Installed(api, control_plane, namespace, folder, "run-gputide-data")
        try:
            yield found, ports
        finally:
            found.end()
            release.remove()
            if api.has(f"/api/v1/nodes/{NODE}"):
                api.delete(f"/api/v1/nodes/{NODE}")


def test_containers_as_installed_lead_from_samples_to_the_first_advice(
    installed: tuple[Installed, Mapping[str, int]], tmp_path: Path
) -> None:
    release, ports = installed
    server = release.pod("deployments/run-gputide")
    prepared = server.start("prepare")
    assert prepared.ended() == 0, prepared.said()
    containers = [server.start(name) for name in ("receiver", "rollup", "dashboard", "savings")]
    receiver = containers[0]
    receiver.wait_ready()

    send_fleet(release, ports["receiver"], tmp_path)
    until(lambda: freshness(ports["dashboard"]), seconds_max=120.0, pause_seconds=0.5)
    job = release.pod("cronjobs/run-gputide-recommend").start("recommend")
    assert job.ended() == 0, job.said()

    plans = asked(ports["dashboard"], "/api/v1/clusters/prod/plans")
    (plan,) = plans["plans"] if isinstance(plans, dict) else plans
    assert plan["totals"]["cards_freed"] > 0
    assert "<title>" in text_of(f"http://127.0.0.1:{ports['dashboard']}/plan")
    containers[3].wait_ready()
    until(lambda: scraped(f"http://127.0.0.1:{ports['rollup']}/metrics")["gputide_rollup_samples_total"] > 0)
    until(lambda: "gputide_plan_" in text_of(f"http://127.0.0.1:{ports['savings']}/metrics"), seconds_max=60.0)

    for container in containers:
        assert container.stop(STOP_SECONDS_MAX) < STOP_SECONDS_MAX, container.said()
    assert "everything acknowledged is on the bus" in receiver.said()
    assert "nothing is lost" in containers[1].said()


def test_cluster_exporter_as_installed_shows_what_schedulers_granted(
    installed: tuple[Installed, Mapping[str, int]], api: Api
) -> None:
    release, ports = installed
    api.node(NODE, cards=2)
    api.pod(release.namespace, "tenant", nodeName=NODE)
    container = release.pod("deployments/run-gputide-cluster-exporter").start("cluster-exporter")
    container.wait_ready()
    text = text_of(f"http://127.0.0.1:{ports['clusterExporter']}/metrics")
    assert f'namespace="{release.namespace}",pod="tenant"' in text
    assert 'cluster="prod"' in text
    assert "forbidden" not in container.said().lower()
    assert container.stop(STOP_SECONDS_MAX) < STOP_SECONDS_MAX


def test_helm_test_ends_well_once_pods_are_ready_and_says_what_is_wrong(
    installed: tuple[Installed, Mapping[str, int]],
    programs: KubernetesPrograms,
    control_plane: ControlPlane,
    api: Api,
    tmp_path: Path,
) -> None:
    release, ports = installed
    helm = HelmRelease(
        helm=programs.helm, kubeconfig=control_plane.kubeconfig(), home=tmp_path, name="run",
        namespace=release.namespace,
    )  # fmt: skip
    hook = yaml.safe_load(helm.run("get", "hooks", "run"))
    assert hook["metadata"]["annotations"]["helm.sh/hook"] == "test"
    hook["spec"]["containers"][0]["args"][-1] = "0"
    release.pod("deployments/run-gputide-cluster-exporter").start("cluster-exporter").wait_ready()
    base = f"/api/v1/namespaces/{release.namespace}/pods"

    def report(status: str) -> None:
        """Report of every pod that it is ready, as its kubelet would; it runs on this machine."""
        for pod in api.ask("GET", base)["items"]:
            ready = {"type": "Ready", "status": status, "message": "waits"}
            change = {"podIP": "127.0.0.1", "podIPs": [{"ip": "127.0.0.1"}], "conditions": [ready]}
            api.patch(f"{base}/{pod['metadata']['name']}/status", {"status": change})

    until(lambda: len(api.ask("GET", base)["items"]) >= 2, seconds_max=60.0)
    report("True")
    well = release.hook(hook).start("test")
    assert well.ended() == 0, well.said()
    assert f"http://127.0.0.1:{ports['clusterExporter']}/metrics" in well.said()

    report("False")
    hook["spec"]["containers"][0]["args"].append("--usage-api")
    ill = release.hook(hook).start("test")
    assert ill.ended() == 1, ill.said()
    assert "not ready: waits" in ill.said()
    assert "usage.gputide.io" in ill.said()


def test_router_as_installed_wakes_the_model_that_is_asked(
    installed: tuple[Installed, Mapping[str, int]], models: Models
) -> None:
    release, ports = installed
    router = release.pod("deployments/run-gputide-router-a").start("router")
    router.wait_ready()
    for place, model in enumerate(models.values()):
        connection = http.client.HTTPConnection("127.0.0.1", ports["router"] + place, timeout=60)
        connection.request("POST", "/v1/completions", body="{}")
        answer = connection.getresponse()
        assert (answer.status, json.load(answer)["model"]) == (200, model.name)
        connection.close()
    assert [one.is_asleep for one in models.values()] == [True, False]
    assert router.stop(STOP_SECONDS_MAX) < STOP_SECONDS_MAX, router.said()
    assert "models stay as they are" in router.said()


def send_fleet(release: Installed, port: int, folder: Path) -> None:
    """Send three days and today of a small fleet, as the sender of the chart's token."""
    secret = release.api.ask("GET", f"/api/v1/namespaces/{release.namespace}/secrets/run-gputide-senders")
    token = base64.b64decode(secret["data"]["token"]).decode()
    now = datetime.now(UTC)
    since = now.replace(hour=0, minute=0, second=0, microsecond=0) - timedelta(days=3)
    write_synthetic_fleet(folder / "trace", cards=CARDS_MIN, days=4, since=since)
    url = f"http://127.0.0.1:{port}/api/v1/write"
    with pytest.raises(HTTPError, match="401"):
        urlopen(Request(url, data=b"", method="POST"), timeout=10)
    sender = TokenSender(url, token)
    for block in ReplayReader(open_trace(folder / "trace"), since=since, until=now).blocks():
        sender.add(block)
    sender.send()
    sender.close()
    assert sender.samples > 10_000


def freshness(port: int) -> Any:
    """What the web app knows of the age of its figures; nothing before there are any."""
    try:
        return asked(port, "/api/v1/clusters/prod/freshness")
    except OSError:
        return None


def asked(port: int, path: str) -> Any:
    with urlopen(f"http://127.0.0.1:{port}{path}", timeout=60) as answer:
        return json.load(answer)
