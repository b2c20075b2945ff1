"""Reviews of new pods: each gets a seat of its own, nobody is held up, and what is no review is refused."""

from __future__ import annotations

import base64
import http.client
import json
import shutil
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from enforcer.admission import (
    SEAT_ANNOTATION,
    SEATING_ANNOTATION,
    SEATS_ANNOTATION,
    UNPINNED_ANNOTATION,
    PlannedSeat,
    parse_seats,
    seating_of,
    seats_text,
)
from enforcer.kubernetes.admission_probe import ASKED_ANNOTATION
from enforcer.kubernetes.admission_review import UNSEEN_SECONDS_MAX, PodAdmission
from enforcer.kubernetes.admission_server import REVIEW_BYTES_MAX, AdmissionMetrics, AdmissionServer
from enforcer.kubernetes.departures import Departure
from enforcer.manifest import Manifest
from fleet.errors import Corrupt, Misconfigured, Unavailable
from fleet.grammars.hami import (
    DEVICES_ALLOCATED_ANNOTATION,
    NODE_REGISTER_ANNOTATION,
    RegisteredDevice,
    render_node_register,
)
from fleet.inventory import WorkloadId
from tests.enforcer.plugin_cluster import StandingCluster
from tests.scraping import scraped
from wire.own_metrics import OwnMetrics, own_port

CERTIFICATES = Path(__file__).parents[1] / "pipeline" / "certificates"
USE = "nvidia.com/use-gpuuuid"
SEATS = seats_text({f"web-{n}": PlannedSeat(node="n1", cards=(f"GPU-{n}",)) for n in range(3)})

LOST = seats_text({"lost-0": PlannedSeat(node="gone", cards=("GPU-9",))})


class Ticks:
    """A monotonic clock that is set by hand."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


class Away(StandingCluster):
    """A cluster that can't be reached."""

    def list_objects(self, kind: str, namespace: str | None = None) -> tuple[Manifest, ...]:
        raise Unavailable(f"cannot list {kind} of {namespace}")


def a_node(*cards: int, name: str = "n1", **spec: Any) -> Manifest:
    devices = [
        RegisteredDevice(
            card=f"GPU-{card}", slices_max=10, framebuffer_mib=24_576, core_percent=100, device_type="NVIDIA-A10",
            numa=0, is_healthy=True, index=card, mode="hami-core",
        )
        for card in cards
    ]  # fmt: skip
    annotations = {NODE_REGISTER_ANNOTATION: render_node_register(devices)}
    return {"kind": "Node", "metadata": {"name": name, "annotations": annotations}, "spec": spec}


def an_owner(seats: str = SEATS, kind: str = "Deployment", name: str = "web", replicas: int = 3) -> Manifest:
    metadata = {"namespace": "team", "name": name, "annotations": {SEATS_ANNOTATION: seats}}
    return {"kind": kind, "metadata": metadata, "spec": {"replicas": replicas}}


def a_cluster(*objects: Manifest, seats: str = SEATS, replicas: int = 3) -> StandingCluster:
    return StandingCluster([a_node(0, 1, 2), an_owner(seats, replicas=replicas), *objects])


def a_pod(
    name: str | None,
    *,
    seats: str | None = SEATS,
    owner: tuple[str, str] = ("ReplicaSet", "web-5d4f"),
    more: dict[str, str] | None = None,
) -> Manifest:
    named = {"generateName": "web-5d4f-"} if name is None else {"name": name, "namespace": "team"}
    marks = {} if seats is None else {SEATING_ANNOTATION: seating_of(parse_seats(seats))}
    metadata: Manifest = {
        **named,
        "annotations": marks | (more or {}),
        "labels": {"pod-template-hash": "5d4f"} if owner[0] == "ReplicaSet" else {},
        "ownerReferences": [{"kind": owner[0], "name": owner[1], "controller": True}],
    }
    container = {"name": "server", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    return {"kind": "Pod", "metadata": metadata, "spec": {"containers": [container]}}


def a_review(pod: Manifest, **request: Any) -> Manifest:
    return {"request": {"uid": "7", "namespace": "team", "object": pod, **request}}


def patch_of(answer: Manifest) -> list[Any]:
    assert answer["response"]["allowed"] is True
    assert answer["response"]["uid"] == "7"
    return list(json.loads(base64.b64decode(answer["response"].get("patch", "W10="))))


def cards_of(answer: Manifest) -> str | None:
    added = {entry["path"]: entry.get("value") for entry in patch_of(answer)}
    found = added.get("/metadata/annotations/nvidia.com~1use-gpuuuid")
    return None if found is None else str(found)


class Notes:
    """What another replica gave is known here."""

    def __init__(self, *taken: str) -> None:
        self.taken = set(taken)

    def take(self, workload: WorkloadId, seat: str, seconds: float) -> bool:
        assert (workload, seconds) == ("team/Deployment/web", UNSEEN_SECONDS_MAX)
        is_free = seat not in self.taken
        self.taken.add(seat)
        return is_free


def test_seat_that_another_replica_has_just_given_is_passed_over() -> None:
    notes = Notes("web-0")
    admission = PodAdmission(a_cluster(), notes=notes)
    assert cards_of(admission.review(a_review(a_pod(None)))) == "GPU-1"
    assert cards_of(admission.review(a_review(a_pod(None)))) == "GPU-2"
    # One more than there are seats: a creation has failed and is tried again, in a seat that was ours to give.
    assert cards_of(admission.review(a_review(a_pod(None)))) == "GPU-1"


def test_pod_that_is_not_pinned_is_a_departure_from_the_plan_of_its_owner() -> None:
    found: list[Departure] = []
    gone = StandingCluster([an_owner()])
    PodAdmission(gone, departed=found.append).review(a_review(a_pod(None)))
    why = "node n1 is gone"
    assert found == [Departure(kind="Deployment", namespace="team", name="web", plan_id=None, why=why)]


def test_pod_that_is_pinned_and_one_that_is_only_tried_are_no_departures() -> None:
    found: list[Departure] = []
    PodAdmission(a_cluster(), departed=found.append).review(a_review(a_pod(None)))
    PodAdmission(StandingCluster([an_owner()]), departed=found.append).review(a_review(a_pod(None), dryRun=True))
    assert found == []


def test_dry_run_notes_nothing() -> None:
    notes = Notes()
    PodAdmission(a_cluster(), notes=notes).review(a_review(a_pod(None), dryRun=True))
    assert notes.taken == set()


def test_card_is_chosen_by_the_annotation_that_the_plan_says() -> None:
    seats = seats_text({
        f"web-{n}": PlannedSeat(node="n1", cards=(f"GPU-{n}",), annotation="example.com/only") for n in range(2)
    })  # fmt: skip
    admission = PodAdmission(a_cluster(seats=seats))
    patches = [patch_of(admission.review(a_review(a_pod(None, seats=seats)))) for _ in range(2)]
    added = [{entry["path"]: entry.get("value") for entry in patch} for patch in patches]
    assert [found["/metadata/annotations/example.com~1only"] for found in added] == ["GPU-0", "GPU-1"]


def test_pod_goes_to_the_node_of_its_seat_alone() -> None:
    patch = patch_of(PodAdmission(a_cluster()).review(a_review(a_pod(None))))
    (affinity,) = (entry["value"] for entry in patch if entry["path"] == "/spec/affinity")
    assert "metadata.name" in json.dumps(affinity)
    assert "n1" in json.dumps(affinity)


SPREAD = {
    f"/metadata/annotations/hami.io~1{what}-scheduler-policy": "spread" for what in ("gpu", "node")
}  # fmt: skip


@pytest.mark.parametrize(
    ("node", "why"),
    [
        (None, "node n1 is gone"),
        (a_node(0, 1, 2, unschedulable=True), "node n1 is cordoned"),
        (a_node(1, 2), "node n1 offers card GPU-0 no more"),
    ],
)
def test_pod_whose_seat_is_lost_is_not_pinned_and_says_why(node: Manifest | None, why: str) -> None:
    seats = seats_text({"web-0": PlannedSeat(node="n1", cards=("GPU-0",))})
    cluster = StandingCluster([an_owner(seats), *([] if node is None else [node])])
    answer = PodAdmission(cluster).review(a_review(a_pod(None, seats=seats)))
    assert {entry["path"]: entry["value"] for entry in patch_of(answer)} == {
        "/metadata/annotations/gputide.io~1seat": "web-0", "/metadata/annotations/gputide.io~1unpinned": why, **SPREAD,
    }  # fmt: skip
    assert answer["response"]["warnings"] == [f"gputide: the pod is not pinned: {why}"]


SHARES = seats_text({f"web-{n}": PlannedSeat(node="n1", cards=("GPU-0",), shares=((8_192, 0),)) for n in range(2)})
FULL = "others took the room on card GPU-0 that was planned for it"


def a_holder(mib: int, *, owner: str = "other-5d4f", **annotations: str) -> Manifest:
    """A pod on node n1 with a share of card GPU-0."""
    pod = a_pod(f"{owner}-x", seats=None, owner=("ReplicaSet", owner))
    granted = f"GPU-0,NVIDIA,{mib},0:;"
    pod["metadata"]["annotations"] |= {DEVICES_ALLOCATED_ANNOTATION: granted}
    pod["metadata"]["annotations"] |= {f"gputide.io/{name}": value for name, value in annotations.items()}
    pod["spec"]["nodeName"] = "n1"
    return pod


def why_not_pinned(*others: Manifest, **owner_marks: str) -> str | None:
    owner = an_owner(SHARES)
    owner["metadata"]["annotations"] |= {f"gputide.io/{name}": value for name, value in owner_marks.items()}
    cluster = StandingCluster([a_node(0, 1, 2), owner, *others])
    patch = patch_of(PodAdmission(cluster).review(a_review(a_pod(None, seats=SHARES))))
    return next((str(entry["value"]) for entry in patch if entry["path"].endswith("unpinned")), None)


def test_pod_whose_planned_card_is_full_is_not_pinned_to_wait_there_for_ever() -> None:
    assert why_not_pinned(a_holder(16_384)) is None
    assert why_not_pinned(a_holder(16_385)) == FULL


def test_pod_that_leaves_its_card_does_not_fill_it() -> None:
    going = a_holder(20_000)
    going["metadata"]["deletionTimestamp"] = "x"
    assert why_not_pinned(going) is None
    # Its own workload's pods of before the plan make room for those that come.
    assert why_not_pinned(a_holder(20_000, owner="web-5d4f")) is None


def test_while_a_stage_is_under_way_only_pods_that_it_placed_fill_a_card() -> None:
    marks = {"held": "{}", "plan-id": "p"}
    assert why_not_pinned(a_holder(20_000), **marks) is None
    assert why_not_pinned(a_holder(20_000, **{"seat": "other-0", "plan-id": "before"}), **marks) is None
    assert why_not_pinned(a_holder(20_000, **{"seat": "other-0", "plan-id": "p"}), **marks) == FULL
    assert why_not_pinned(a_holder(20_000, **{"unpinned": "node n2 is gone", "plan-id": "p"}), **marks) == FULL


def test_pods_beyond_the_planned_ones_are_not_pinned_but_spread() -> None:
    there = [seated(f"web-5d4f-{number}", f"web-{number}") for number in range(3)]
    admission = PodAdmission(a_cluster(*there, replicas=6))
    for _ in range(3):
        paths = {entry["path"] for entry in patch_of(admission.review(a_review(a_pod(None))))}
        assert paths == {f"/metadata/annotations/{UNPINNED_ANNOTATION.replace('/', '~1')}", *SPREAD}


def test_pods_that_come_at_once_beyond_the_planned_ones_get_no_seat_twice() -> None:
    admission = PodAdmission(a_cluster(replicas=6))
    found = [cards_of(admission.review(a_review(a_pod(None)))) for _ in range(6)]
    assert found == ["GPU-0", "GPU-1", "GPU-2", None, None, None]


def test_pod_of_an_older_template_gets_no_seat() -> None:
    older = seats_text({"web-0": PlannedSeat(node="n1", cards=("GPU-2",))})
    assert patch_of(PodAdmission(a_cluster()).review(a_review(a_pod(None, seats=older)))) == []


def test_node_is_looked_at_anew_for_every_pod() -> None:
    cluster = StandingCluster([an_owner()])
    admission = PodAdmission(cluster)
    for node, card in ((a_node(0, 1, 2), "GPU-0"), (a_node(0, unschedulable=True), None), (a_node(0), "GPU-0")):
        cluster.put(node)
        assert cards_of(admission.review(a_review(a_pod(None), dryRun=True))) == card


def test_seats_are_found_on_whoever_keeps_the_maker_of_a_pod() -> None:
    deployment: Manifest = {
        "kind": "Deployment",
        "metadata": {
            "namespace": "team", "name": "web",
            "ownerReferences": [{"kind": "InferenceService", "name": "llm", "controller": True}],
        },
    }  # fmt: skip
    cluster = StandingCluster([a_node(0, 1, 2), deployment, an_owner(kind="InferenceService", name="llm")])
    assert cards_of(PodAdmission(cluster).review(a_review(a_pod(None)))) == "GPU-0"


def seated(name: str, seat: str) -> Manifest:
    return a_pod(name, seats=None, more={SEAT_ANNOTATION: seat})


def test_pods_that_come_at_once_get_seats_of_their_own() -> None:
    admission = PodAdmission(a_cluster())
    found: list[str | None] = []
    threads = [
        threading.Thread(target=lambda: found.append(cards_of(admission.review(a_review(a_pod(None))))))
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(map(str, found)) == ["GPU-0", "GPU-1", "GPU-2"]


def test_seat_of_a_pod_that_is_there_is_not_given_again() -> None:
    cluster = a_cluster(seated("web-5d4f-a", "web-0"), seated("web-5d4f-b", "web-2"))
    assert cards_of(PodAdmission(cluster).review(a_review(a_pod(None)))) == "GPU-1"


def test_pod_of_another_replica_set_of_the_workload_is_a_sibling_and_of_another_workload_is_none() -> None:
    old = a_pod("web-0", seats=None, owner=("ReplicaSet", "web-777"))
    old["metadata"]["labels"] = {"pod-template-hash": "777"}
    stranger = seated("other-1", "web-1")
    stranger["metadata"]["ownerReferences"][0]["name"] = "other-5d4f"
    # web-0 was not moved yet, so its seat is kept; the stranger holds none of these seats.
    assert cards_of(PodAdmission(a_cluster(old, stranger)).review(a_review(a_pod(None)))) == "GPU-1"


@pytest.mark.parametrize("leaving", [{"metadata": {"deletionTimestamp": "x"}}, {"status": {"phase": "Failed"}}])
def test_pod_that_leaves_makes_room(leaving: Manifest) -> None:
    going = seated("web-5d4f-a", "web-0")
    going["metadata"] |= leaving.get("metadata", {})
    going |= {"status": leaving.get("status", {})}
    assert cards_of(PodAdmission(a_cluster(going)).review(a_review(a_pod(None)))) == "GPU-0"


def test_seat_of_a_pod_that_never_came_is_free_after_a_while() -> None:
    clock = Ticks()
    admission = PodAdmission(a_cluster(), clock)
    assert cards_of(admission.review(a_review(a_pod(None)))) == "GPU-0"
    clock.now = UNSEEN_SECONDS_MAX - 1
    assert cards_of(admission.review(a_review(a_pod(None)))) == "GPU-1"
    clock.now = UNSEEN_SECONDS_MAX + 1
    assert cards_of(admission.review(a_review(a_pod(None)))) == "GPU-0"


def test_creation_that_fails_again_and_again_does_not_use_up_the_seats() -> None:
    admission = PodAdmission(a_cluster())
    found = [cards_of(admission.review(a_review(a_pod(None)))) for _ in range(6)]
    assert found == ["GPU-0", "GPU-1", "GPU-2"] * 2


def test_grant_of_a_seat_stands_in_requests_too_which_the_server_filled_in_before() -> None:
    """What is no overcommitted resource must be requested as it is limited, or the pod is refused."""
    limits = (("nvidia.com/gpumem", "4000"), ("nvidia.com/gpucores", None))
    seats = seats_text({"web-0": PlannedSeat(node="n1", cards=("GPU-0",), limits=limits)})
    pod = a_pod(None, seats=seats)
    asked = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "9000", "nvidia.com/gpucores": "30"}
    pod["spec"]["containers"][0]["resources"] = {"limits": asked, "requests": {**asked, "cpu": "1"}}
    written = {entry["path"]: entry for entry in patch_of(PodAdmission(a_cluster(seats=seats)).review(a_review(pod)))}
    for part in ("limits", "requests"):
        place = f"/spec/containers/0/resources/{part}"
        assert written[f"{place}/nvidia.com~1gpumem"]["value"] == "4000"
        assert written[f"{place}/nvidia.com~1gpucores"]["op"] == "remove"


def test_dry_run_takes_no_seat() -> None:
    admission = PodAdmission(a_cluster())
    assert cards_of(admission.review(a_review(a_pod(None), dryRun=True))) == "GPU-0"
    assert cards_of(admission.review(a_review(a_pod(None)))) == "GPU-0"


def test_dry_run_forgets_nothing_that_was_given() -> None:
    admission = PodAdmission(a_cluster(), notes=Notes())
    for _ in range(3):
        admission.review(a_review(a_pod(None)))
    admission.review(a_review(a_pod(None), dryRun=True))
    # A creation has failed and is tried again: its seat was ours to give.
    assert cards_of(admission.review(a_review(a_pod(None)))) == "GPU-0"


@pytest.mark.parametrize("request_", [{"operation": "UPDATE"}, {"operation": "CREATE", "subResource": "binding"}])
def test_only_a_pod_that_is_made_gets_a_seat(request_: dict[str, str]) -> None:
    """A pod's containers can't be changed later, so a patch would stop whoever only wanted to set a label."""
    admission = PodAdmission(a_cluster())
    assert patch_of(admission.review(a_review(a_pod("web-0"), **request_))) == []
    assert cards_of(admission.review(a_review(a_pod("web-0"), operation="CREATE"))) == "GPU-0"


def test_pod_of_a_job_takes_the_seat_that_stands_on_the_job() -> None:
    admission = PodAdmission(a_cluster(an_owner(kind="Job", name="train")))
    assert cards_of(admission.review(a_review(a_pod(None, seats=None, owner=("Job", "train"))))) == "GPU-0"


def test_pod_of_a_notebook_takes_the_seat_that_stands_on_the_notebook() -> None:
    admission = PodAdmission(a_cluster(an_owner(kind="Notebook", name="book")))
    pod = a_pod(None, seats=None, owner=("StatefulSet", "book"))
    assert patch_of(admission.review(a_review(pod))) == []
    pod["metadata"]["labels"] = {"notebook-name": "book"}
    assert cards_of(admission.review(a_review(pod))) == "GPU-0"


def test_patch_names_no_pod_and_leaves_all_else_as_it_came() -> None:
    pod = a_pod(None)
    paths = {entry["path"] for entry in patch_of(PodAdmission(a_cluster()).review(a_review(pod)))}
    annotation = "/metadata/annotations/"
    assert paths == {
        f"{annotation}nvidia.com~1use-gpuuuid", f"{annotation}gputide.io~1seat", "/spec/affinity",
    }  # fmt: skip


def test_pod_without_a_plan_passes_as_it_is_and_nobody_is_asked() -> None:
    assert patch_of(PodAdmission(Away([])).review(a_review(a_pod(None, seats=None)))) == []


@pytest.mark.parametrize("seats", ["{", "[]", '{"a": 7}', '{"a": {"cards": 7}}', "[" * 100_000])
def test_seats_that_a_tenant_made_up_hold_no_pod_up(seats: str) -> None:
    answer = PodAdmission(a_cluster(seats=seats)).review(a_review(a_pod(None)))
    assert patch_of(answer) == []
    assert len(answer["response"]["warnings"][0]) < 300


@pytest.mark.parametrize(
    "broken",
    [
        {"spec": {"containers": 7}},
        {"spec": None},
        {"metadata": {"annotations": [], "ownerReferences": 7}},
    ],
)
def test_pod_that_no_api_server_would_send_is_corrupt(broken: Manifest) -> None:
    with pytest.raises(Corrupt, match="not formed"):
        PodAdmission(a_cluster()).review(a_review({**a_pod(None), **broken}))


def test_cluster_that_is_away_holds_no_pod_up() -> None:
    answer = PodAdmission(Away([an_owner()])).review(a_review(a_pod(None)))
    assert patch_of(answer) == []
    assert "cannot list Pod" in answer["response"]["warnings"][0]


@pytest.mark.parametrize("review", [{}, {"request": None}, {"request": {}}, {"request": {"uid": "1", "object": 7}}])
def test_what_is_no_review_is_corrupt(review: Manifest) -> None:
    with pytest.raises(Corrupt):
        PodAdmission(a_cluster()).review(review)


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    certificate, key = tmp_path / "tls.crt", tmp_path / "tls.key"
    shutil.copy(CERTIFICATES / "receiver.pem", certificate)
    shutil.copy(CERTIFICATES / "receiver.key.pem", key)
    return certificate, key


Ask = Callable[..., http.client.HTTPResponse]


@pytest.fixture
def own() -> OwnMetrics:
    return OwnMetrics("admission")


@pytest.fixture
def ask(files: tuple[Path, Path], own: OwnMetrics) -> Iterator[Ask]:
    """Return a caller of a running server."""
    server = AdmissionServer(
        PodAdmission(a_cluster(an_owner(LOST, name="lost"))),
        AdmissionMetrics(own),
        host="127.0.0.1",
        port=0,
        certificate_file=files[0],
        key_file=files[1],
    )
    serving = threading.Thread(target=server.serve)
    serving.start()
    context = ssl.create_default_context(cafile=str(CERTIFICATES / "authority.pem"))
    made: list[http.client.HTTPSConnection] = []

    def call(method: str, path: str, body: bytes | None = None, **headers: str) -> http.client.HTTPResponse:
        made.append(http.client.HTTPSConnection(*server.address, context=context, timeout=10))
        made[-1].request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
        return made[-1].getresponse()

    yield call
    for one in made:
        one.close()
    server.stop()
    serving.join()


def test_review_is_answered_over_tls(ask: Ask) -> None:
    answer = ask("POST", "/pods?timeout=5s", json.dumps(a_review(a_pod(None))).encode())
    assert answer.status == 200
    assert cards_of(json.loads(answer.read())) == "GPU-0"
    assert ask("GET", "/healthz").status == 200


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", "/pods", b"{", 400),
        ("POST", "/pods", b"[]", 400),
        ("POST", "/pods", b"[" * 200_000, 400),
        ("POST", "/other", b"{}", 404),
        ("GET", "/pods", None, 405),
    ],
)
def test_what_is_no_review_is_refused_and_the_next_is_answered(
    ask: Ask, method: str, path: str, body: bytes | None, status: int
) -> None:
    assert ask(method, path, body).status == status
    assert ask("GET", "/healthz").status == 200


def test_a_scraper_sees_what_became_of_reviews(ask: Ask, own: OwnMetrics) -> None:
    lost = a_pod(None, seats=LOST, owner=("ReplicaSet", "lost-5d4f"))
    lease = {"kind": "Lease", "metadata": {"annotations": {ASKED_ANNOTATION: "now"}}}
    asked = {"request": {"uid": "u", "kind": {"kind": "Lease"}, "object": lease}}
    for body in (a_review(a_pod(None)), a_review(a_pod(None, seats=None)), a_review(lost), asked, {}):
        ask("POST", "/pods", json.dumps(body).encode()).read()
    with own_port(own.text, "127.0.0.1", 0, setting="exporter.own_listen") as (host, port):
        found = scraped(f"http://{host}:{port}/metrics")
    results = {name.split('"')[1]: value for name, value in found.items() if "_reviews_total" in name}
    assert results == {"seated": 1, "unchanged": 1, "unpinned": 1, "asked": 1, "unreadable": 1}
    assert found["gputide_admission_review_seconds_count"] == 5


def test_review_that_is_too_long_is_refused_unread(ask: Ask) -> None:
    assert ask("POST", "/pods", b"{}", Content_Length=str(REVIEW_BYTES_MAX + 1)).status == 413


def test_certificate_that_was_renewed_is_shown_without_a_restart(ask: Ask, files: tuple[Path, Path]) -> None:
    assert ask("GET", "/healthz").status == 200
    shutil.copy(CERTIFICATES / "stranger.pem", files[0])
    shutil.copy(CERTIFICATES / "stranger.key.pem", files[1])
    with pytest.raises(ssl.SSLCertVerificationError):
        ask("GET", "/healthz")


def test_certificate_that_is_none_is_said_with_its_option(tmp_path: Path) -> None:
    nothing = tmp_path / "none.pem"
    with pytest.raises(Misconfigured, match="--certificate"):
        AdmissionServer(
            PodAdmission(a_cluster()),
            AdmissionMetrics(OwnMetrics("admission")),
            host="127.0.0.1",
            port=0,
            certificate_file=nothing,
            key_file=nothing,
        )
