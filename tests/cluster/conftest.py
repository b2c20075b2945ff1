"""One real control plane for all cluster tests of a session, and a namespace of its own for each.

The tier runs in two workers of pytest, each a session. `tests/run_tiers.py cluster` builds what it is made of and says
where it lies.
"""

from __future__ import annotations

import os
import time
import urllib.error
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import NoReturn

import pytest
import yaml

from exporter.cluster.kubernetes import KubernetesReader
from fleet.errors import Unavailable
from tests.cluster.aggregation import FrontProxy
from tests.cluster.api import Api
from tests.cluster.audit import AuditLog
from tests.cluster.served_admission import ServedAdmission
from tests.control_plane import ControlPart, ControlPlane, KubernetesPrograms, kubernetes_programs
from tests.gputide.conftest import Program

CACHE = os.environ.get("GPUTIDE_CLUSTER_CACHE")  # read before the suite hides the developer's variables
ACCOUNT_SECONDS_MAX = 120.0
_DOCS = Path(__file__).resolve().parents[2] / "docs"
WRITER_RULES, CUSTOM_RESOURCES = _DOCS / "rbac-writer.yaml", _DOCS / "custom-resources.yaml"
WRITER_POLICY = _DOCS / "writer-policy.yaml"
POLICY_SECONDS_MAX = 60.0
UNCONFINED = "unconfined"
_numbers = count(1)


@pytest.fixture(scope="session")
def programs() -> KubernetesPrograms:
    """Return the built programs; skip where there is no Go."""
    if CACHE is None:
        cannot_run("the control plane was not built: `python tests/run_tiers.py cluster` does it")
    try:
        return kubernetes_programs(Path(CACHE), tell=print)
    except Unavailable as absence:
        cannot_run(str(absence))


@pytest.fixture(scope="session")
def front_proxy(tmp_path_factory: pytest.TempPathFactory) -> FrontProxy:
    """Return the certificate that the API server shows to servers behind it."""
    return FrontProxy(tmp_path_factory.mktemp("front-proxy"))


@pytest.fixture(scope="session")
def control_plane(
    programs: KubernetesPrograms, tmp_path_factory: pytest.TempPathFactory, front_proxy: FrontProxy
) -> Iterator[ControlPlane]:
    """Start the control plane that the session shares.

    Quotas have no watch cache, so that etcd itself decides what is too old to watch from.
    """
    folder = tmp_path_factory.mktemp("cluster")
    audit = AuditLog(folder / "audit.log")
    arguments = [
        "--watch-cache-sizes=resourcequotas#0",
        *audit.arguments(folder / "audit-policy.yaml"),
        *front_proxy.arguments(),
    ]
    running = ControlPlane(programs, folder, api_arguments=arguments)
    try:
        running.start()
        yield running
    finally:
        running.end()


@pytest.fixture(scope="session")
def caller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    """Return a caller of the program; it takes seconds of a core to load, once for all tests."""
    made = Program(tmp_path_factory.mktemp("program"))
    yield made
    made.close()


@pytest.fixture
def audit(control_plane: ControlPlane) -> AuditLog:
    """Return what the API server wrote down of all writes."""
    return AuditLog(control_plane.ca.parents[1] / "audit.log")


@pytest.fixture
def writer_kubeconfig(control_plane: ControlPlane, api: Api) -> Path:
    """Return a kubeconfig of the documented writer, which has the documented rights and no others."""
    for page in (CUSTOM_RESOURCES, WRITER_RULES):
        for manifest in yaml.safe_load_all(page.read_text(encoding="utf-8")):
            api.apply(manifest)
    token = api.token("gputide", "gputide-writer")
    confine_writer(api, token)
    return control_plane.kubeconfig_of_token("writer", token)


@pytest.fixture
def unconfined_kubeconfig(control_plane: ControlPlane, api: Api, writer_kubeconfig: Path) -> Path:
    """Return a kubeconfig of an account with the writer's rights that no admission policy knows.

    For tests of how a write is made, whatever its field.
    """
    assert writer_kubeconfig.exists()
    api.create("/api/v1/namespaces/gputide/serviceaccounts", {"metadata": {"name": UNCONFINED}})
    for manifest in yaml.safe_load_all(WRITER_RULES.read_text(encoding="utf-8")):
        if manifest["kind"].endswith("Binding"):
            manifest["metadata"]["name"] += "-unconfined"
            manifest["subjects"][0]["name"] = UNCONFINED
            api.apply(manifest)
    return control_plane.kubeconfig_of_token("unconfined", api.token("gputide", UNCONFINED))


def confine_writer(api: Api, token: str) -> None:
    """Make the documented admission policies, and wait until the server goes by them."""
    if api.has("/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies/gputide-writer"):
        return
    for manifest in yaml.safe_load_all(WRITER_POLICY.read_text(encoding="utf-8")):
        api.apply(manifest)
    api.create("/api/v1/nodes", {"metadata": {"name": "policy-probe"}})
    probe, patch = {"metadata": {"labels": {"probe": "1"}}}, "application/merge-patch+json"
    deadline = time.monotonic() + POLICY_SECONDS_MAX
    try:
        while True:
            api.ask("PATCH", "/api/v1/nodes/policy-probe?dryRun=All", probe, content_type=patch, token=token)
            assert time.monotonic() < deadline, f"the policies were not enforced within {POLICY_SECONDS_MAX:.0f} s"
            time.sleep(0.1)
    except urllib.error.HTTPError as refused:
        if refused.code != 403:
            raise
    finally:
        api.delete("/api/v1/nodes/policy-probe")


@pytest.fixture
def kill_api_server(control_plane: ControlPlane) -> Iterator[Callable[[], None]]:
    """Return what kills the API server; afterwards its clients in the control plane start afresh.

    Each of them would wait for up to a minute before it asks again (backoff of client-go's reflectors: 30 s with a
    jitter of 1), and they wait for one another: the node is ready by one, untainted by the next, chosen by the third.
    """
    yield lambda: control_plane.kill(ControlPart.API_SERVER)
    for part in (ControlPart.CONTROLLERS, ControlPart.SCHEDULER, ControlPart.KWOK):
        control_plane.kill(part)
    control_plane.start()


@pytest.fixture
def api(control_plane: ControlPlane) -> Api:
    """Return an administrator of the running API server."""
    control_plane.start()
    return Api(control_plane.url, control_plane.ca, control_plane.kubeconfig())


@pytest.fixture
def namespace(api: Api) -> Iterator[str]:
    """Return a namespace that nobody else has; it and its pods are gone afterwards."""
    name = f"test-{next(_numbers)}"
    api.create("/api/v1/namespaces", {"metadata": {"name": name}})
    # Pods are refused until the controllers have made the namespace's own account.
    deadline = time.monotonic() + ACCOUNT_SECONDS_MAX
    while not api.has(f"/api/v1/namespaces/{name}/serviceaccounts/default"):
        assert time.monotonic() < deadline, f"the controllers made no service account in {ACCOUNT_SECONDS_MAX:.0f} s"
        time.sleep(0.05)
    yield name
    api.delete(f"/api/v1/namespaces/{name}")


@pytest.fixture
def admission(control_plane: ControlPlane, api: Api, writer_kubeconfig: Path) -> Iterator[ServedAdmission]:
    """Let the API server ask gputide's admission about new pods, without which no plan is applied."""
    assert writer_kubeconfig.exists(), "with the writer comes the namespace"
    running = ServedAdmission(control_plane, api)
    running.start()
    yield running
    running.stop()


@pytest.fixture
def reader(control_plane: ControlPlane, api: Api) -> Iterator[Callable[..., KubernetesReader]]:
    """Return a maker of readers, by the administrator's rights or a kubeconfig's."""
    assert api is not None
    made: list[KubernetesReader] = []

    def make(kubeconfig: Path | None = None, *, watch_seconds: int = 60, node: str | None = None) -> KubernetesReader:
        path = kubeconfig or control_plane.kubeconfig()
        made.append(KubernetesReader(kubeconfig=path, watch_seconds=watch_seconds, node=node))
        return made[-1]

    yield make
    for one in made:
        one.close()


def cannot_run(reason: str) -> NoReturn:
    """Skip with the reason; fail where `CI=true`, so that a missing set-up step cannot pass for a green run."""
    if os.environ.get("CI", "").lower() == "true":
        pytest.fail(reason)
    pytest.skip(reason)
