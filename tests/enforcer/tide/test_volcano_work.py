"""The tide beside work that others start and stop: gangs and Jobs of Volcano, and Jobs of a JobSet."""

from __future__ import annotations

from typing import Any

import pytest

from enforcer.backends.volcano import GROUP_ANNOTATION
from enforcer.cluster import FieldChange
from enforcer.tide.letting_in import TIDE_LABEL, letting_in
from fleet.inventory import WorkloadId
from tests.enforcer.tide import test_runner
from tests.enforcer.tide.test_runner import World, a_night_job

world = test_runner.world

GROUP = {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "PodGroup"}


def a_group(world: World, name: str, *pods: str, **spec: Any) -> None:
    metadata: dict[str, Any] = {"namespace": "team", "name": name}
    world.cluster.create({**GROUP, "metadata": metadata, "spec": spec})
    for pod in pods:
        found = world.cluster.get("Pod", "team", pod)
        assert found is not None
        change = FieldChange(field=f"metadata.annotations[{GROUP_ANNOTATION}]", value=name)
        world.cluster.patch("Pod", "team", pod, [change], found["metadata"]["resourceVersion"])


@pytest.mark.parametrize(
    ("pods", "least", "scaled"),
    [(("a-0", "a-1"), 2, False), (("a-0", "a-1"), 1, True), (("a-0", "a-1", "book-0"), 2, True), (("b-0",), 9, True)],
    ids=["a gang of two", "one is enough", "others make up the gang", "a gang of others"],
)
def test_service_keeps_as_many_pods_as_its_gang_is_placed_with(
    world: World, pods: tuple[str, ...], least: int, scaled: bool
) -> None:
    a_group(world, "gang", *pods, minMember=least)
    left = dict(world.runner().would_scale().left)
    why = "PodGroup gang has its pods placed only 2 together, so one that dies at night would wait"
    assert left.get(WorkloadId("team/Deployment/a")) == (None if scaled else why)


def left(world: World) -> dict[str, str]:
    now = world.cluster.now()
    policy = world.runner()._policy
    return dict(letting_in(world.cluster, policy, now, now.replace(hour=7), None).left)


def test_marked_job_of_volcano_is_named_and_left_to_it(world: World) -> None:
    owner = {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "name": "mpi", "uid": "u", "controller": True}
    for name, owners in (("mpi-u", [owner]), ("other", [{**owner, "apiVersion": "batch/v1", "name": "by-suspend"}])):
        metadata = {"namespace": "team", "name": name, "labels": {TIDE_LABEL: "night"}, "ownerReferences": owners}
        world.cluster.create({**GROUP, "metadata": metadata, "spec": {"minMember": 1}})
    assert left(world) == {
        "team/Job/mpi": "a Job of batch.volcano.sh can't be suspended; make it one of batch/v1 with "
        "schedulerName: volcano"
    }


@pytest.mark.parametrize(("kind", "is_left"), [("JobSet", True), ("CronJob", False)])
def test_marked_job_that_another_kind_owns_is_left_to_it_where_that_undoes_what_others_write(
    world: World, kind: str, is_left: bool
) -> None:
    a_night_job(world)
    job = world.cluster.get("Job", "team", "train")
    assert job is not None
    job["metadata"]["ownerReferences"] = [{"kind": kind, "name": "all", "controller": True}]
    world.cluster.create(job)
    assert left(world) == ({"team/Job/train": "JobSet all starts and stops it"} if is_left else {})
