"""What every GPU-sharing backend must do with a plan; adapters' tests inherit these claims."""

from __future__ import annotations

from typing import Any

import pytest

from enforcer.backend import Backend
from enforcer.kinds.register import is_template_field
from enforcer.manifest import field_of, values_equal
from enforcer.snapshot import take_snapshot
from enforcer.write_scope import BACKEND_NAMES, is_in_scope
from fleet.capabilities.register import capabilities_of
from fleet.errors import Refused


class BackendContract:
    """Needs fixtures `backend`, `cluster`, and `plan`, which the backend can carry out."""

    def test_capabilities_are_those_of_the_table(self, backend: Backend) -> None:
        assert backend.capabilities == capabilities_of(backend.capabilities.backend)

    def test_rendering_changes_nothing(self, backend: Backend, cluster: Any, plan: Any) -> None:
        before = cluster.list_objects("Deployment"), cluster.list_objects("Pod")
        backend.render(plan, 1, take_snapshot(cluster, backend.dialect))
        assert (cluster.list_objects("Deployment"), cluster.list_objects("Pod")) == before

    def test_old_values_and_versions_are_the_clusters(self, backend: Backend, cluster: Any, plan: Any) -> None:
        for stage in plan.stages:
            for change in backend.render(plan, stage.stage, take_snapshot(cluster, backend.dialect)).changes:
                found = cluster.get(change.kind, change.namespace, change.name)
                assert values_equal(change.field, field_of(found, change.field), change.old), change.field
                assert found["metadata"]["resourceVersion"] == change.resource_version
                assert not values_equal(change.field, change.old, change.new), change.field

    def test_fields_are_those_that_the_writers_policy_lets_through(
        self, backend: Backend, cluster: Any, plan: Any
    ) -> None:
        names = BACKEND_NAMES[backend.capabilities.backend]
        for stage in plan.stages:
            rendered = backend.render(plan, stage.stage, take_snapshot(cluster, backend.dialect))
            assert [one for one in rendered.changes if not is_in_scope(one.kind, one.field, names)] == []

    def test_pods_that_no_recommendation_names_stay(self, backend: Backend, cluster: Any, plan: Any) -> None:
        named = {pod for entry in plan.recommendations for pod in entry.pods}
        for stage in plan.stages:
            moves = backend.render(plan, stage.stage, take_snapshot(cluster, backend.dialect)).moves
            assert {move.pod_id for move in moves} <= named

    def test_stage_that_is_not_there_is_refused(self, backend: Backend, cluster: Any, plan: Any) -> None:
        with pytest.raises(Refused, match="stage 99"):
            backend.render(plan, 99, take_snapshot(cluster, backend.dialect))

    def test_no_template_names_a_node_or_a_card(self, backend: Backend, cluster: Any, plan: Any) -> None:
        """A pod made from it later would wait for good once that node or card is lost."""
        snapshot = take_snapshot(cluster, backend.dialect)
        places = [*snapshot.nodes, *snapshot.cards]
        for stage in plan.stages:
            changes = backend.render(plan, stage.stage, snapshot).changes
            written = [entry for entry in changes if is_template_field(entry.kind, entry.field)]
            found = [
                (entry.field, place)
                for entry in written
                for place in places
                if place in entry.field or place in (entry.new or "")
            ]
            assert found == []
