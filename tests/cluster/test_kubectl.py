"""The API server serves what pods use and cost, to whom RBAC lets; `kubectl gputide` shows it and the plans."""

from __future__ import annotations

import json
import os
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from enforcer.kubernetes.cluster import ClusterPlace, KubernetesCluster
from enforcer.record.plan_store import WishChange
from exporter.synthetic.writer import write_synthetic_fleet
from fleet.documents import seal_plan
from gputide.operate.engines import free_port
from tests.cluster.aggregation import FrontProxy, register
from tests.cluster.api import Api
from tests.cluster.plugin import kubectl_gputide
from tests.control_plane import ControlPlane, KubernetesPrograms, User
from tests.enforcer.builders import NOW, standard_plan
from tests.gputide.conftest import CUT, DAYS, Program, Said
from tests.security.authority import Authority
from tests.waiting import until

pytestmark = pytest.mark.cluster

USAGE = "/apis/usage.gputide.io/v1alpha1"
DOCS = Path(__file__).resolve().parents[2] / "docs"
ROLES = "/apis/rbac.authorization.k8s.io/v1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A data folder whose use the API server serves."""

    data: Path
    port: int
    authority: Path


@pytest.fixture(scope="module")
def served(
    control_plane: ControlPlane, caller: Program, tmp_path_factory: pytest.TempPathFactory, front_proxy: FrontProxy
) -> Iterator[Served]:
    """Serve a small fleet, for which a plan was made, to the API server."""
    folder = tmp_path_factory.mktemp("served")
    data = folder / "data"
    (folder / "trace").mkdir()
    write_synthetic_fleet(folder / "trace", cards=60, days=DAYS)
    for words in (("admin", "replay", str(folder / "trace"), "--until", CUT), ("plan", "make")):
        said = caller(data, *words)
        assert said.status == 0, said.err
    own = Authority(folder, "own")
    pair, port = own.pair("gputide-usage.default.svc"), free_port()
    settings = {
        "usage_api.listen": f"127.0.0.1:{port}",
        "usage_api.tls_certificate_file": str(pair.certificate),
        "usage_api.tls_key_file": str(pair.key),
        "usage_api.client_ca_file": str(front_proxy.authority_file),
        "usage_api.front_proxy_names": "front-proxy-client",
        "dashboard.port": "0",
    }
    flags = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    command = [sys.executable, "-c", "from gputide.cli import main; main()", "--data-dir", str(data), *flags, "serve"]
    serving = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(DOCS.parent)})
    try:
        asker = Api(control_plane.url, control_plane.ca, control_plane.kubeconfig())
        register(asker, port, own.file)
        until(lambda: is_analysed(asker), seconds_max=120.0)
        yield Served(data=data, port=port, authority=own.file)
    finally:
        serving.terminate()
        serving.wait()


def is_analysed(api: Api) -> bool:
    try:
        api.ask("GET", f"{USAGE}/gpupods")
    except urllib.error.HTTPError as exc:
        if exc.code != 503:
            raise
        return False
    return True


@pytest.fixture
def call(control_plane: ControlPlane, tmp_path: Path) -> Any:
    """Return a caller of the plugin with an administrator's rights, or a kubeconfig's."""

    def run(*arguments: str, kubeconfig: Path | None = None) -> Said:
        return kubectl_gputide(kubeconfig or control_plane.kubeconfig(), tmp_path, *arguments)

    return run


def kubectl(programs: KubernetesPrograms, kubeconfig: Path, *arguments: str) -> str:
    command = [str(programs.kt), "kubectl", "--kubeconfig", str(kubeconfig), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_kubectl_lists_what_pods_use_and_cost_without_a_plugin(
    served: Served, api: Api, caller: Program, programs: KubernetesPrograms, control_plane: ControlPlane
) -> None:
    known = caller(served.data, "workloads", "--format", "json").document
    pods = {(one["namespace"], name) for one in known["workloads"] for name in one["pods"]}
    found = api.ask("GET", f"{USAGE}/gpupods")["items"]
    assert {(one["metadata"]["namespace"], one["metadata"]["name"]) for one in found} == pods
    shown = kubectl(programs, control_plane.kubeconfig(), "get", "gpupods", "-A")
    assert len(shown.splitlines()) == len(pods) + 1
    for one in found[:5]:
        assert one["metadata"]["name"] in shown
    by_name = kubectl(programs, control_plane.kubeconfig(), "get", "gpupods", "-A", "--sort-by=.metadata.name")
    assert [line.split()[1] for line in by_name.splitlines()[1:]] == sorted(name for _, name in pods)
    cards = kubectl(programs, control_plane.kubeconfig(), "get", "gpucards", "-o", "json")
    assert {one["metadata"]["name"] for one in json.loads(cards)["items"]} == {one["card"] for one in known["cards"]}


def test_costs_of_namespaces_are_those_of_the_program(served: Served, api: Api, caller: Program) -> None:
    told = caller(served.data, "cost", "show", "--format", "json").document
    found = {one["metadata"]["namespace"]: one for one in api.ask("GET", f"{USAGE}/gpucosts")["items"]}
    assert found.keys() == {row["name"] for row in told["rows"]}
    for row in told["rows"]:
        assert float(found[row["name"]]["cost"]) == pytest.approx(row["cost_allocation"], abs=0.02)


def test_person_of_one_namespace_sees_its_pods_and_no_other(
    served: Served, api: Api, control_plane: ControlPlane, call: Any
) -> None:
    every = api.ask("GET", f"{USAGE}/gpupods")["items"]
    own = every[0]["metadata"]["namespace"]
    other = next(one["metadata"]["namespace"] for one in every if one["metadata"]["namespace"] != own)
    api.create("/api/v1/namespaces", {"metadata": {"name": own}})
    api.apply(
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRole",
            "metadata": {"name": "usage-viewer"},
            "rules": [{"apiGroups": ["usage.gputide.io"], "resources": ["*"], "verbs": ["get", "list"]}],
        }
    )
    api.create(
        f"{ROLES}/namespaces/{own}/rolebindings",
        {
            "metadata": {"name": "usage-viewer"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "usage-viewer"},
            "subjects": [{"kind": "User", "name": User.STRANGER.value}],
        },
    )
    stranger = control_plane.kubeconfig(User.STRANGER)
    until(lambda: call("top", "-n", own, kubeconfig=stranger).status == 0, seconds_max=60.0)
    shown = call("top", "-n", own, "-f", "json", kubeconfig=stranger).document["items"]
    assert shown == [one for one in every if one["metadata"]["namespace"] == own]
    assert shown
    for words in (("top", "-A"), ("top", "-n", other), ("top", "cards"), ("cost", "-A")):
        refused = call(*words, kubeconfig=stranger)
        assert refused.status == 2, words
        assert "RBAC lacks verb list on resource gpu" in refused.err
    assert call("why", shown[0]["metadata"]["name"], "-n", own, kubeconfig=stranger).status == 0


def test_nobody_but_the_api_server_may_ask_in_anothers_name(served: Served, tmp_path: Path) -> None:
    trusted = ssl.create_default_context(cafile=str(served.authority))
    asked = urllib.request.Request(
        f"https://localhost:{served.port}{USAGE}/gpupods", headers={"X-Remote-User": "system:admin"}
    )
    with pytest.raises((urllib.error.URLError, ConnectionError, ssl.SSLError)):
        urllib.request.urlopen(asked, context=trusted, timeout=10)
    forger = Authority(tmp_path, "front-proxy-ca").pair("front-proxy-client")
    trusted.load_cert_chain(forger.certificate, forger.key)
    with pytest.raises((urllib.error.URLError, ConnectionError, ssl.SSLError)):
        urllib.request.urlopen(asked, context=trusted, timeout=10)


def test_top_why_and_cost_say_it_in_words(served: Served, api: Api, call: Any) -> None:
    pods = api.ask("GET", f"{USAGE}/gpupods")["items"]
    top = call("top", "-A")
    assert top.status == 0, top.err
    assert f"{len(pods)} pods hold " in top.out
    idle = next(pod for pod in pods if pod["isIdle"])
    why = call("why", idle["metadata"]["name"], "-n", idle["metadata"]["namespace"])
    assert why.status == 0, why.err
    assert f"is of {idle['workload']}, {idle['state']}" in why.out
    assert " of plan " in why.out
    assert "namespaces cost " in call("cost", "-A").out
    none = call("why", "nobody", "-n", "nowhere")
    assert none.status == 3
    assert "pod nowhere/nobody is on no card that gputide knows of" in none.err
    both = call("top", "-A", "-n", "x")
    assert both.status == 2
    assert "cannot use -n x with -A" in both.err


def test_what_the_api_does_not_answer_is_refused_with_its_name(served: Served, api: Api) -> None:
    for query, said in (("?labelSelector=app%3Dx", "labelSelector='app=x'"), ("?watch=true", "watch='true'")):
        with pytest.raises(urllib.error.HTTPError) as refused:
            api.ask("GET", f"{USAGE}/gpupods{query}")
        assert refused.value.code == 400
        assert said in refused.value.read().decode()


def test_plans_and_their_stages_are_shown_and_followed(
    api: Api, writer_kubeconfig: Path, control_plane: ControlPlane, call: Any
) -> None:
    plan = seal_plan(replace(standard_plan(), expires_at=NOW + timedelta(days=400)))
    cluster = KubernetesCluster(ClusterPlace(kubeconfig=control_plane.kubeconfig()))
    path = f"/apis/gputide.io/v1alpha1/gpuplans/plan-{plan.plan_id}"
    try:
        cluster.plans.add(plan, None)
        listed = call("plan", "-f", "json")
        assert plan.plan_id in [one["spec"]["plan"] for one in listed.document]
        shown = call("plan", plan.plan_id[:12])
        assert shown.status == 0, shown.err
        assert f"plan {plan.plan_id[:12]} for c1: Proposed" in shown.out
        assert call("watch", plan.plan_id[:12]).out == f"plan {plan.plan_id[:12]}: Proposed\n"
        cluster.plans.change_wish(plan.plan_id, WishChange(add=frozenset({1}), by="ann"))
        assert [one["apply"] for one in (api.ask("GET", path)["spec"],)] == [[1]]
        wrong = call("plan", "zzzz")
        assert wrong.status == 2
        assert "cannot use plan 'zzzz': no plan begins so" in wrong.err
    finally:
        cluster.close()
        api.delete(path)
