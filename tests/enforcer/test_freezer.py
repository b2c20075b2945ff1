"""The freeze of a cluster: what is said of it is so, whoever lifts it meanwhile and whatever may be read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from enforcer.kubernetes.cluster import ClusterPlace, KubernetesCluster
from enforcer.kubernetes.freezer import ClusterFreezer
from fleet.errors import Refused, Unavailable
from tests.enforcer.scripted_api import Heard, ScriptedApi, Told

Answers = Callable[[int], Told]
THERE = Told(status=409, document={"message": "configmaps already exists"})
GONE = Told(status=404, document={})


@contextmanager
def freezer(folder: Path, created: Answers, read: Told) -> Iterator[ClusterFreezer]:
    """A freezer before an API server; `created` answers the n-th create, from 1."""
    creates = 0

    def script(heard: Heard, _: int) -> Told:
        nonlocal creates
        if heard.path.endswith("/selfsubjectreviews"):
            return Told(status=201, document={"status": {"userInfo": {"username": "ann"}}})
        if heard.path.endswith("/configmaps") and heard.method == "POST":
            creates += 1
            return created(creates)
        return read

    api = ScriptedApi(folder, script)
    cluster = KubernetesCluster(
        ClusterPlace(kubeconfig=api.kubeconfig, requests_per_second=1000.0, requests_burst=1000)
    )
    try:
        yield cluster.freezer()
    finally:
        cluster.close()
        api.close()


def test_freeze_that_is_lifted_while_it_is_looked_at_is_made_anew(tmp_path: Path) -> None:
    """It would be said to hold, by somebody, while nothing is frozen."""
    with freezer(tmp_path, lambda number: THERE if number == 1 else Told(status=201, document={}), GONE) as one:
        assert one.freeze() == "ann"


def test_freeze_that_never_stays_is_no_freeze(tmp_path: Path) -> None:
    with freezer(tmp_path, lambda _: THERE, GONE) as one, pytest.raises(Unavailable, match="lifted again and again"):
        one.freeze()


def test_who_may_freeze_and_not_read_learns_that_it_is_frozen(tmp_path: Path) -> None:
    forbidden = Told(status=403, document={"message": 'configmaps is forbidden: User "ann" cannot get resource'})
    with freezer(tmp_path, lambda _: THERE, forbidden) as one:
        assert one.freeze() == "somebody"
    with freezer(tmp_path, lambda _: THERE, Told(document={"data": {"by": "bob"}})) as one:
        assert one.freeze() == "bob"


def test_missing_namespace_is_named(tmp_path: Path) -> None:
    with freezer(tmp_path, lambda _: GONE, GONE) as one, pytest.raises(Refused, match="no namespace gputide"):
        one.freeze()
