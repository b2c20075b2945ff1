"""Heads of ledgers in a real cluster: by the writer's rights, beside a lease that is held, of several folders."""

from __future__ import annotations

import threading
import urllib.error
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from enforcer.kubernetes.cluster import ClusterPlace, KubernetesCluster
from enforcer.kubernetes.ledger_anchor import HEADS_ANNOTATION
from enforcer.record.anchor import Head
from enforcer.record.ledger import ledger_at
from fleet.data_folder import DataFolder, open_data_folder
from fleet.errors import Refused, Unavailable
from gputide.container.ledgers import AnchoredFolder
from tests.cluster.api import Api
from tests.enforcer.builders import NOW

pytestmark = pytest.mark.cluster

LEASE = "/apis/coordination.k8s.io/v1/namespaces/gputide/leases/enforcer"
NONE = Head(number=0, sha256="")


@pytest.fixture
def cluster(writer_kubeconfig: Path, api: Api) -> Iterator[KubernetesCluster]:
    """Return the cluster, with the writer's rights, and no lease that another test left held."""
    with suppress(urllib.error.HTTPError):
        api.ask("DELETE", LEASE)
    opened = KubernetesCluster(
        ClusterPlace(kubeconfig=writer_kubeconfig, requests_per_second=500.0, requests_burst=500)
    )
    yield opened
    opened.close()


def a_head(number: int) -> Head:
    return Head(number=number, sha256=f"{number:064x}")


def test_heads_stay_while_the_lease_is_taken_renewed_and_given_back(cluster: KubernetesCluster, api: Api) -> None:
    anchor = cluster.anchor("here")
    anchor.move("ledger.jsonl", NONE, a_head(1))
    assert cluster.acquire("ann", 30.0)
    anchor.move("ledger.jsonl", a_head(1), a_head(2))
    assert cluster.acquire("ann", 31.0)
    cluster.release("ann")
    assert cluster.anchor("here").heads() == {"ledger.jsonl": a_head(2)}
    assert cluster.anchor("there").heads() == {}
    assert HEADS_ANNOTATION in api.ask("GET", LEASE)["metadata"]["annotations"]
    with pytest.raises(Refused, match="the head there is another one"):
        anchor.move("ledger.jsonl", a_head(1), a_head(3))


def test_lease_goes_on_being_held_by_who_holds_it_while_others_anchor(cluster: KubernetesCluster) -> None:
    stop, anchored = threading.Event(), []

    def anchor(owner: str) -> None:
        number = 0
        while not stop.is_set():
            with suppress(Unavailable):  # others write it: it says to call again
                cluster.anchor(owner).move("ledger.jsonl", a_head(number) if number else NONE, a_head(number + 1))
                number += 1
            stop.wait(0.05)
        anchored.append((owner, number))

    threads = [threading.Thread(target=anchor, args=(f"folder {number}",)) for number in range(2)]
    for thread in threads:
        thread.start()
    held = [cluster.acquire("bob", 1.0 + turn % 2) for turn in range(30)]
    stop.set()
    for thread in threads:
        thread.join(30)
    cluster.release("bob")
    assert all(held)
    for owner, number in anchored:
        assert cluster.anchor(owner).heads() == {"ledger.jsonl": a_head(number)}
    assert len(anchored) == 2


def test_folder_that_lost_or_changed_entries_is_found(cluster: KubernetesCluster, tmp_path: Path) -> None:
    folder = DataFolder(path=open_data_folder(tmp_path / "data", create=True).path)
    for path in (folder.ledger, folder.freezes):
        for _ in range(3):
            ledger_at(folder, path).append(
                [("begin", {"by": "ann", "stages": [1], "cards_granted": []})], plan_id="p", at=NOW
            )
    owner = str(folder.path)
    AnchoredFolder(folder, cluster.anchor(owner)).keep()
    assert AnchoredFolder(folder, cluster.anchor(owner)).broken() == {}
    for path in (folder.ledger, folder.ledger.with_name("ledger.jsonl.head"), folder.freezes):
        path.unlink()
    broken = AnchoredFolder(folder, cluster.anchor(owner))
    assert broken.broken().keys() == {"ledger.jsonl", "freezes.jsonl"}
    broken.keep()
    assert AnchoredFolder(folder, cluster.anchor(owner)).broken().keys() == {"ledger.jsonl", "freezes.jsonl"}
    for path in (folder.ledger, folder.freezes):
        path.with_name(path.name + ".head").unlink(missing_ok=True)
    AnchoredFolder(folder, cluster.anchor(owner)).accept()
    assert AnchoredFolder(folder, cluster.anchor(owner)).broken() == {}
