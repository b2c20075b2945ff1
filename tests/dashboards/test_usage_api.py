"""What the API server is answered: over TLS, to its front proxy alone, cut to the namespace that was asked for."""

from __future__ import annotations

import http.client
import json
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from dashboards.queries import NotMadeYet
from dashboards.usage_api.names import API_VERSION
from dashboards.usage_api.server import UsageApi, UsageServer
from dashboards.view_models.slice_uses import price_ratios
from fleet.errors import GputideError, Misconfigured, NotEnoughData
from fleet.inventory import CardId, CardModelName, Grant, Priority
from fleet.listener_files import ListenerFiles
from fleet.settings.settings import load_settings
from fleet.units import GIB
from tests.dashboards.embedded import NOW, make_views
from tests.security.authority import Authority, Pair
from wire.listener_tls import ListenerContexts

ROOT = f"/apis/{API_VERSION}"


class Asker:
    """The API server's side of one port.

    Args:
        port: where the API is served.
        authority: signed the port's certificate.
        front_proxy: what the API server shows.
    """

    def __init__(self, port: int, authority: Authority, front_proxy: Pair) -> None:
        self._port, self._authority, self._pair = port, authority, front_proxy

    def __call__(
        self, path: str, *, pair: Pair | None = None, user: str = "ann", accept: str = "application/json"
    ) -> tuple[int, Any]:
        context = ssl.create_default_context(cafile=str(self._authority.file))
        shown = pair or self._pair
        context.load_cert_chain(shown.certificate, shown.key)
        line = http.client.HTTPSConnection("localhost", self._port, context=context, timeout=20)
        try:
            line.request("GET", path, headers={"X-Remote-User": user, "Accept": accept})
            answer = line.getresponse()
            body = answer.read()
            return answer.status, json.loads(body) if body.startswith(b"{") else body.decode()
        finally:
            line.close()


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"), "authority")


@pytest.fixture(scope="module")
def ask(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asker]:
    (cluster,) = make_views()[0].fleet.clusters()
    with served(authority, tmp_path_factory.mktemp("proxies"), lambda: cluster) as asker:
        yield asker


@contextmanager
def served(authority: Authority, folder: Path, cluster: Callable[[], str]) -> Iterator[Asker]:
    """Serve a fleet in memory."""
    views, _ = make_views()
    own, proxies = authority.pair("server"), Authority(folder, "front-proxy-ca")
    files = ListenerFiles(
        section="usage_api", certificate_file=str(own.certificate), key_file=str(own.key),
        client_ca_file=str(proxies.file),
    )  # fmt: skip
    tls = ListenerContexts(files, needs_client=True, now_seconds=time.monotonic)
    api = UsageApi(views, cluster=cluster, front_proxy_names=("front-proxy-client",))
    with UsageServer(api, host="127.0.0.1", port=0, tls=tls.context) as server:
        asker = Asker(server.address[1], authority, proxies.pair("front-proxy-client"))
        asker.stranger = proxies.pair("kubelet")  # type: ignore[attr-defined]
        yield asker


def test_discovery_names_every_resource(ask: Asker) -> None:
    status, found = ask(ROOT)
    assert status == 200
    assert {one["name"]: one["namespaced"] for one in found["resources"]} == {
        "gpupods": True, "gpucards": False, "gpucosts": True, "gpupods/advice": True,
    }  # fmt: skip
    assert ask("/apis")[1]["groups"][0]["preferredVersion"]["groupVersion"] == API_VERSION


def test_certificate_of_another_name_gets_no_answer(ask: Asker) -> None:
    status, said = ask(f"{ROOT}/gpupods", pair=ask.stranger)  # type: ignore[attr-defined]
    assert status == 403
    assert "only the API server's front proxy may ask here" in said


def test_request_in_nobodys_name_gets_no_answer(ask: Asker) -> None:
    assert ask(f"{ROOT}/gpupods", user="")[0] == 401


def test_certificate_of_another_authority_ends_the_handshake(ask: Asker, tmp_path: Path) -> None:
    forged = Authority(tmp_path, "front-proxy-ca").pair("front-proxy-client")
    with pytest.raises((ssl.SSLError, ConnectionError)):
        ask(f"{ROOT}/gpupods", pair=forged)


def test_namespace_has_its_pods_and_no_other(ask: Asker) -> None:
    every = ask(f"{ROOT}/gpupods")[1]["items"]
    namespaces = {one["metadata"]["namespace"] for one in every}
    assert len(namespaces) > 1
    for namespace in namespaces:
        own = ask(f"{ROOT}/namespaces/{namespace}/gpupods")[1]["items"]
        assert own == [one for one in every if one["metadata"]["namespace"] == namespace]
        (cost,) = ask(f"{ROOT}/namespaces/{namespace}/gpucosts")[1]["items"] or [None]
        assert cost is None or cost["metadata"]["namespace"] == namespace
    assert ask(f"{ROOT}/namespaces/nobodys/gpupods")[1]["items"] == []


def test_advice_of_a_namespace_names_no_workload_of_another(ask: Asker) -> None:
    every = ask(f"{ROOT}/gpupods")[1]["items"]
    seen = 0
    for pod in every[:40]:
        namespace, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
        status, found = ask(f"{ROOT}/namespaces/{namespace}/gpupods/{name}/advice")
        assert status == 200, found["message"]
        assert found["workload"] == pod["workload"]
        seen += len(found["recommendations"])
        text = json.dumps(found)
        assert not [
            one["workload"] for one in every if one["metadata"]["namespace"] != namespace and one["workload"] in text
        ]
    assert seen


def test_table_has_a_row_per_object(ask: Asker) -> None:
    every = ask(f"{ROOT}/gpucards")[1]["items"]
    accept = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
    status, found = ask(f"{ROOT}/gpucards?limit=500", accept=accept)
    assert (status, found["kind"]) == (200, "Table")
    assert len(found["rows"]) == len(every)
    assert {len(row["cells"]) for row in found["rows"]} == {len(found["columnDefinitions"])}


@pytest.mark.parametrize(
    ("path", "status", "said"),
    [
        (f"{ROOT}/gpupods?watch=1", 400, "watch='1'"),
        (f"{ROOT}/gpupods?labelSelector=a%3Db", 400, "labelSelector='a=b'"),
        (f"{ROOT}/gpupods?" + "&".join(f"limit={number}" for number in range(40)), 400, "32 parameters"),
        (f"{ROOT}/gpuwishes", 404, "there is nothing at"),
        (f"{ROOT}/namespaces/a/gpucards", 404, "there is nothing at"),
        (f"{ROOT}/gpupods/x", 404, "gpupods are of a namespace"),
        (f"{ROOT}/namespaces/a/gpupods/x", 404, 'gpupods.usage.gputide.io "x" not found'),
        (f"{ROOT}/namespaces/a/gpupods/x/log", 404, "gpupods have no log"),
        ("/metrics", 404, "there is nothing at"),
    ],
)
def test_what_is_not_answered_is_a_status_of_the_api(ask: Asker, path: str, status: int, said: str) -> None:
    found = ask(path)
    assert found[0] == found[1]["code"] == status
    assert said in found[1]["message"]


def test_slices_of_a_card_pay_for_what_they_were_granted() -> None:
    def grant(pod: str, card: str, compute: float, framebuffer: int) -> Grant:
        return Grant(
            cluster="c", namespace="n", pod=pod, container="m", workload="w", workload_kind="Deployment", node="n1",
            card=CardId(card), card_model=CardModelName("NVIDIA A10"), framebuffer_bytes=24 * GIB,
            framebuffer_granted_bytes=framebuffer, compute_granted_ratio=compute, priority=Priority.NORMAL,
            started_at=NOW,
        )  # fmt: skip

    grants = (grant("a", "1", 1.0, 24 * GIB), grant("b", "2", 0.5, 6 * GIB), grant("c", "2", 0.25, 6 * GIB))
    found = [Decimal(str(ratio)) for ratio in price_ratios(grants, compute_ratio=0.5)]
    assert found == [Decimal("1.0"), Decimal("0.375"), Decimal("0.25")]
    assert price_ratios((), compute_ratio=0.5) == ()


@pytest.mark.parametrize("included", ["None", "Metadata", "Object"])
def test_rows_have_of_their_objects_what_is_asked_for(ask: Asker, included: str) -> None:
    """`kubectl get --sort-by` asks for tables whose rows have the objects whole."""
    every = ask(f"{ROOT}/gpucards")[1]["items"]
    status, found = ask(f"{ROOT}/gpucards?limit=500&includeObject={included}", accept="application/json;as=Table")
    assert status == 200, found
    expected = {
        "None": [None] * len(every), "Metadata": [one["metadata"] for one in every], "Object": every,
    }  # fmt: skip
    rows = [row.get("object") for row in found["rows"]]
    assert [row["metadata"] if included == "Metadata" else row for row in rows] == expected[included]


@pytest.mark.parametrize(
    ("fault", "status", "said"),
    [
        (
            Misconfigured("cannot choose: data came of secret-cluster; see /secrets/x"),
            503,
            "the log of `gputide serve`",
        ),
        (NotEnoughData("nothing was collected yet"), 503, "nothing was collected yet"),
        (NotMadeYet("it is being made"), 503, "it is being made"),
    ],
)
def test_what_cannot_be_answered_names_nothing_of_ours(
    authority: Authority, tmp_path: Path, fault: GputideError, status: int, said: str
) -> None:
    def cluster() -> str:
        raise fault

    with served(authority, tmp_path, cluster) as asker:
        found = asker(f"{ROOT}/namespaces/n/gpupods")
        assert (found[0], found[1]["code"]) == (status, status)
        assert said in found[1]["message"]
        assert "secret" not in found[1]["message"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "needs tls_certificate_file, tls_key_file and client_ca_file"),
        ({"tls_certificate_file": "a", "tls_key_file": "b"}, "needs tls_certificate_file, tls_key_file and client_ca"),
        ({"tls_certificate_file": "a", "tls_key_file": "b", "client_ca_file": "c"}, "needs front_proxy_names, such as"),
    ],
)
def test_port_that_would_believe_anybody_is_refused(given: dict[str, str], said: str) -> None:
    settings = {f"usage_api.{name}": value for name, value in {"listen": "127.0.0.1:0", **given}.items()}
    with pytest.raises(Misconfigured, match=said):
        load_settings(None, settings, {})
