"""The API server holds the writer to the fields that plans change, whatever its roles say."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.api import Api
from tests.cluster.kind_doubles import define
from tests.cluster.other_writes import (
    CUSTOM,
    WRITES_MIN,
    OtherWrite,
    Writer,
    clear,
    other_writes,
    owner_of,
    path_of,
    planned_writes,
    tried,
    with_all_rights,
)
from tests.control_plane import ControlPlane

pytestmark = pytest.mark.cluster


@pytest.fixture
def writer(control_plane: ControlPlane, writer_kubeconfig: Path) -> Iterator[Writer]:
    found = Writer(control_plane.url, control_plane.ca, writer_kubeconfig)
    yield found
    found.close()


@pytest.fixture
def admin(control_plane: ControlPlane) -> Iterator[Writer]:
    found = Writer(control_plane.url, control_plane.ca, control_plane.kubeconfig())
    yield found
    found.close()


def test_other_writes_are_refused_even_where_the_account_has_every_right(
    api: Api, namespace: str, writer: Writer, admin: Writer
) -> None:
    for kind in CUSTOM:
        define(api, kind)
    with with_all_rights(api):
        found = tried(other_writes(api, namespace), admin, writer)
        planned = [(one.what, *writer.send(one)) for one in planned_writes(api, namespace)]
    clear(api)
    for kind in CUSTOM:
        api.delete(path_of(kind, namespace, "mine"))
    assert [one for one in planned if one[1] != 200] == []
    assert found.let_through == []
    assert found.refused >= WRITES_MIN


def test_arguments_change_by_the_framebuffer_of_a_server_alone(api: Api, namespace: str, writer: Writer) -> None:
    api.create(path_of("Deployment", namespace), owner_of("Deployment"))
    here = path_of("Deployment", namespace, "mine")

    def status(arguments: list[str]) -> int:
        containers = owner_of("Deployment")["spec"]["template"]["spec"]["containers"]
        containers[0]["args"] = arguments
        # Whole, as the server has it: a merge takes a list as it is given.
        standing = api.ask("GET", here)["spec"]["template"]["spec"]["containers"]
        whole = [
            {**old, "args": new["args"]} if "args" in new else old
            for old, new in zip(standing, containers, strict=True)
        ]
        body = {"spec": {"template": {"spec": {"containers": whole}}}}
        return writer.send(OtherWrite(what="arguments", method="PATCH", path=here, body=body))[0]

    assert status(["--gpu-memory-utilization", "0.4", "--port", "8000"]) == 200
    assert status(["--gpu-memory-utilization", "0.9", "--port", "8000", "--kv-cache-memory-bytes=1000"]) == 200
    assert status(["--gpu-memory-utilization", "0.4", "--port", "80"]) == 403
    assert status(["--gpu-memory-utilization", "0.4 --port 80", "--port", "8000"]) == 403
