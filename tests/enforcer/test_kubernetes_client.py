"""The enforcer against an API server that forgets, is busy, breaks off, changes its mind, or is not what it says."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from enforcer.cluster import FieldChange
from enforcer.kubernetes.cluster import ClusterPlace, KubernetesCluster
from enforcer.manifest import Manifest
from fleet.errors import Misconfigured, Refused, Unavailable
from tests.enforcer.scripted_api import Heard, Script, ScriptedApi, Told

NOTE = FieldChange(field="metadata.annotations[note]", value="x")
Start = Callable[..., tuple[KubernetesCluster, ScriptedApi]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Return a starter of a scripted server and of a cluster that speaks to it."""
    running: list[tuple[KubernetesCluster, ScriptedApi]] = []

    def begin(script: Script, **place: Any) -> tuple[KubernetesCluster, ScriptedApi]:
        api = ScriptedApi(tmp_path, script)
        chosen = {"requests_per_second": 1000.0, "requests_burst": 1000, **place}
        running.append((KubernetesCluster(ClusterPlace(kubeconfig=api.kubeconfig, **chosen)), api))
        return running[-1]

    yield begin
    for cluster, api in running:
        cluster.close()
        api.close()


def an_object(version: str, *, name: str = "a", replicas: int = 2, ready: int = 0) -> Manifest:
    metadata = {"namespace": "team", "name": name, "uid": "u1", "resourceVersion": version, "annotations": {"a": "b"}}
    managed = {**metadata, "managedFields": [{"manager": "helm"}]}
    return {"metadata": managed, "spec": {"replicas": replicas}, "status": {"ready": ready}}


def a_page(*names: str, token: str = "", version: str = "1") -> Told:
    metadata = {"resourceVersion": version, **({"continue": token} if token else {})}
    return Told(document={"metadata": metadata, "items": [an_object("1", name=name) for name in names]})


def names_of(found: Sequence[Manifest]) -> list[str]:
    return [item["metadata"]["name"] for item in found]


def test_list_that_the_server_forgot_on_the_way_is_read_from_the_start(start: Start) -> None:
    def script(heard: Heard, number: int) -> Told:
        if number == 2:
            return Told(status=410, document={"message": "The provided continue parameter is too old"})
        if "continue" not in heard.query:
            return a_page("c", "a", token="next")
        return a_page("b")

    cluster, api = start(script)
    assert names_of(cluster.list_objects("Deployment")) == ["a", "b", "c"]
    assert ["continue" in heard.query for heard in api.heard] == [False, True, False, True]


def test_list_that_is_forgotten_every_time_is_unavailable(start: Start) -> None:
    def script(heard: Heard, number: int) -> Told:
        return Told(status=410, document={}) if "continue" in heard.query else a_page("a", token="next")

    with pytest.raises(Unavailable, match="forgot the list"):
        start(script)[0].list_objects("Deployment")


def test_page_that_is_too_large_is_asked_for_with_fewer_objects(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wire.kubernetes.read.PAGE_BYTES_MAX", 2000)

    def script(heard: Heard, number: int) -> Told:
        first = int(heard.query.get("continue", "0"))
        last = min(first + int(heard.query["limit"]), 40)
        return a_page(*(f"d{n:02}" for n in range(first, last)), token=str(last) if last < 40 else "")

    found = start(script)[0].list_objects("Deployment")
    assert names_of(found) == [f"d{n:02}" for n in range(40)]


def test_object_comes_with_its_kind_and_without_what_only_the_server_keeps(start: Start) -> None:
    cluster, api = start(lambda heard, number: Told(document=an_object("1")))
    found = cluster.get("Deployment", "team", "a")
    assert found is not None
    assert (found["kind"], found["apiVersion"]) == ("Deployment", "apps/v1")
    assert "managedFields" not in found["metadata"]
    assert api.heard[0].agent == "gputide-enforcer"


def test_custom_resource_that_is_not_served_is_asked_for_once(start: Start) -> None:
    cluster, api = start(lambda heard, number: Told(status=404, document={}))
    assert cluster.list_objects("Notebook") == ()
    assert cluster.get("Notebook", "team", "a") is None
    assert {heard.path for heard in api.heard} == {"/apis/kubeflow.org/v1", "/apis/kubeflow.org/v1beta1"}
    assert len(api.heard) == 2


def test_custom_resource_is_read_in_the_version_that_is_served(start: Start) -> None:
    def script(heard: Heard, number: int) -> Told:
        if heard.path.endswith("/v1beta1"):
            return Told(document={"resources": [{"name": "notebooks"}, 7]})
        return Told(document=an_object("1")) if "namespaces" in heard.path else Told(status=404, document={})

    cluster, api = start(script)
    for _ in range(2):
        assert cluster.get("Notebook", "team", "a") is not None
    assert [heard.path for heard in api.heard][2:] == ["/apis/kubeflow.org/v1beta1/namespaces/team/notebooks/a"] * 2


def test_write_needs_one_request_after_the_read_that_it_depends_on(start: Start) -> None:
    def script(heard: Heard, number: int) -> Told:
        return Told(document=an_object("1" if heard.method == "GET" else "2"))

    cluster, api = start(script)
    cluster.get("Deployment", "team", "a")
    assert cluster.patch("Deployment", "team", "a", [NOTE], "1") == "2"
    assert [heard.method for heard in api.heard] == ["GET", "PATCH"]
    assert api.heard[1].query == {"fieldManager": "gputide", "fieldValidation": "Strict"}
    assert api.heard[1].body == [
        {"op": "replace", "path": "/metadata/resourceVersion", "value": "1"},
        {"op": "add", "path": "/metadata/annotations/note", "value": "x"},
    ]


def test_fields_that_stand_already_are_not_written(start: Start) -> None:
    cluster, api = start(lambda heard, number: Told(document=an_object("1")))
    same = FieldChange(field="metadata.annotations[a]", value="b")
    assert cluster.patch("Deployment", "team", "a", [same], "1") == "1"
    assert [heard.method for heard in api.heard] == ["GET"]


def test_status_that_changes_between_look_and_write_is_looked_at_again(start: Start) -> None:
    def script(heard: Heard, number: int) -> Told:
        if heard.method == "GET":
            return Told(document=an_object("1" if number == 1 else "2", ready=number))
        return Told(document=an_object("3")) if number > 2 else Told(status=409, document={"message": "modified"})

    cluster, api = start(script)
    cluster.get("Deployment", "team", "a")
    assert cluster.patch("Deployment", "team", "a", [NOTE], "1") == "3"
    assert api.heard[-1].body[0]["value"] == "2"


def test_spec_that_changes_between_look_and_write_is_refused(start: Start) -> None:
    def script(heard: Heard, number: int) -> Told:
        if heard.method == "GET":
            return Told(document=an_object("1") if number == 1 else an_object("2", replicas=5))
        return Told(status=409, document={"message": "modified"})

    cluster, api = start(script)
    with pytest.raises(Refused, match="resourceVersion=1, now 2"):
        cluster.patch("Deployment", "team", "a", [NOTE], "1")
    assert [heard.method for heard in api.heard].count("PATCH") == 1


def test_object_whose_status_never_rests_is_unavailable_and_not_forced(start: Start) -> None:
    def script(heard: Heard, number: int) -> Told:
        if heard.method == "GET":
            return Told(document=an_object(str(number), ready=number))
        return Told(status=409, document={"message": "modified"})

    cluster, api = start(script)
    with pytest.raises(Unavailable, match="status changes faster"):
        cluster.patch("Deployment", "team", "a", [NOTE], "1")
    assert all(heard.body[0]["path"] == "/metadata/resourceVersion" for heard in api.heard if heard.body)


def test_write_whose_answer_is_lost_is_not_sent_again_by_itself(start: Start) -> None:
    def script(heard: Heard, number: int) -> Told:
        return Told(document=an_object("1")) if heard.method == "GET" else Told(status=0)

    cluster, api = start(script)
    with pytest.raises(Unavailable):
        cluster.patch("Deployment", "team", "a", [NOTE], "1")
    assert [heard.method for heard in api.heard] == ["GET", "PATCH"]


def test_eviction_means_the_pod_that_was_seen(start: Start) -> None:
    def script(heard: Heard, number: int) -> Told:
        if heard.method == "GET":
            return Told(document=an_object("1"))
        return Told(status=409, document={"message": "the UID in the precondition (u1) does not match"})

    cluster, api = start(script)
    assert cluster.evict("team", "a")
    assert api.heard[1].body["deleteOptions"] == {"preconditions": {"uid": "u1"}}


def test_server_that_asks_for_rest_gets_it_whoever_asks_next(start: Start) -> None:
    moments: list[float] = []

    def script(heard: Heard, number: int) -> Told:
        moments.append(time.monotonic())
        if number == 1:
            return Told(status=429, document={"message": "too many"}, headers=(("Retry-After", "1"),))
        return Told(document=an_object("1"))

    cluster, _ = start(script)
    with pytest.raises(Unavailable, match="429"):
        cluster.get("Deployment", "team", "a")
    cluster.get("Deployment", "team", "b")
    assert moments[1] - moments[0] >= 1.0


def test_requests_under_way_at_once_are_bounded(start: Start) -> None:
    lock, now, most = threading.Lock(), [0], [0]

    def script(heard: Heard, number: int) -> Told:
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        time.sleep(0.05)
        with lock:
            now[0] -= 1
        return Told(document=an_object("1"))

    cluster, _ = start(script, parallel_requests_max=2)
    threads = [threading.Thread(target=cluster.get, args=("Deployment", "team", f"d{n}")) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [2]


def test_rate_is_kept(start: Start) -> None:
    cluster, _ = start(lambda heard, number: Told(document=an_object("1")), requests_per_second=50.0, requests_burst=5)
    began = time.monotonic()
    for _ in range(15):
        cluster.get("Deployment", "team", "a")
    assert time.monotonic() - began >= 10 / 50.0


@pytest.mark.parametrize("document", [None, 7, [], "x"])
def test_answer_that_is_no_object_is_unavailable(start: Start, document: object) -> None:
    cluster, _ = start(lambda heard, number: Told(document=document))
    with pytest.raises(Unavailable):
        cluster.get("Deployment", "team", "a")
    with pytest.raises(Unavailable):
        cluster.list_objects("Deployment")


def test_lease_that_is_held_is_believed_for_a_third_of_its_length(start: Start) -> None:
    lease: dict[str, Any] = {}

    def script(heard: Heard, number: int) -> Told:
        if heard.method in ("POST", "PUT"):
            lease.update(heard.body)
            lease["metadata"] = {**lease["metadata"], "resourceVersion": str(number)}
        return Told(document=lease) if lease else Told(status=404, document={})

    cluster, api = start(script)
    for _ in range(50):
        assert cluster.acquire("one", 30.0)
    assert [heard.method for heard in api.heard] == ["GET", "POST"]
    assert not cluster.acquire("two", 30.0)


def test_lease_without_its_namespace_says_which_setting_names_it(start: Start) -> None:
    cluster, _ = start(lambda heard, number: Told(status=404, document={}))
    with pytest.raises(Misconfigured, match=r"'gputide'.*enforcer\.namespace"):
        cluster.acquire("one", 30.0)
