"""What the cluster would not take stands beside the stage in a preview, before anybody approves it."""

from __future__ import annotations

from pathlib import Path

from enforcer.backends.hami import HamiBackend
from enforcer.preview import preview
from enforcer.record.journal import ObjectIntent
from fleet.errors import Refused
from tests.enforcer.builders import NOW, a_cluster, standard_plan


def test_refusal_of_the_cluster_is_told_with_what_it_is_about(tmp_path: Path) -> None:
    cluster, plan = a_cluster(tmp_path), standard_plan()
    asked: list[str] = []

    def rehearse(intent: ObjectIntent) -> None:
        asked.append(intent.workload)
        raise Refused(f"admission webhook denied {intent.workload}")

    found = preview(plan, cluster, HamiBackend(NOW), rehearse=rehearse)
    told = [stage for stage in found if stage.objects]
    assert told
    assert all(stage.refusal is not None and "admission webhook denied" in str(stage.refusal) for stage in told)
    # One that is refused is enough: the server is not asked about all others.
    assert len(asked) == len(told)


def test_every_change_is_rehearsed_and_what_is_taken_is_no_refusal(tmp_path: Path) -> None:
    asked: list[tuple[str, str, str]] = []
    found = preview(
        standard_plan(), a_cluster(tmp_path), HamiBackend(NOW), rehearse=lambda intent: asked.append(intent.key)
    )
    assert [stage.refusal for stage in found] == [None] * len(found)
    assert asked == [(item.kind, item.namespace, item.name) for stage in found for item in stage.objects]
