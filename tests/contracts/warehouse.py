"""What every warehouse must do; adapters' tests inherit these claims."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

from fleet.errors import Corrupt, NotEnoughData
from fleet.schema import INVENTORY_NODES
from pipeline.warehouse.warehouse import AppendName, Part

NOON = datetime(2026, 1, 5, 12, tzinfo=UTC)


def node_part(name: str, seen: datetime, cluster: str = "c1") -> Part:
    """One sighting of one node."""
    seen_ms = round(seen.timestamp() * 1000)
    texts = dict.fromkeys(INVENTORY_NODES.keys, "") | {"cluster": cluster, "node": name}
    arrays = [pa.array([texts[column]]).dictionary_encode() for column in INVENTORY_NODES.keys]
    arrays += [pa.array([seen_ms]), pa.array([seen_ms]), pa.array([None], pa.int64())]
    names = [column.name for column in INVENTORY_NODES.columns]
    rows = pa.Table.from_arrays(arrays, names=names)
    return Part(table=INVENTORY_NODES, date=seen.date().isoformat(), cluster=cluster, rows=(rows,))


def name_of(start: int, end: int, source: str = "bus") -> tuple[AppendName, ...]:
    """Name of an append of one lane."""
    return (AppendName(source=source, start=start, end=end),)


class WarehouseContract:
    """Needs fixtures `warehouse` and `reopened` (gives up the warehouse and opens it anew)."""

    def nodes(self, warehouse: Any, cluster: str = "c1", as_of: datetime | None = None) -> list[str]:
        """Names of the nodes that are known."""
        return [node.node for node in warehouse.inventory(cluster, as_of=as_of).nodes]

    def test_empty_warehouse_answers_plainly(self, warehouse: Any) -> None:
        assert warehouse.clusters() == ()
        assert self.nodes(warehouse) == []
        assert warehouse.applied_offset("bus") == 0
        with pytest.raises(NotEnoughData, match="no sample"):
            warehouse.history("c1")

    def test_append_is_seen_at_once_by_other_readers_and_after_reopening(self, warehouse: Any, reopened: Any) -> None:
        assert warehouse.append(name_of(0, 10), (node_part("a", NOON),))
        assert self.nodes(warehouse) == ["a"]
        again = reopened()
        assert self.nodes(again) == ["a"]
        assert again.applied_offset("bus") == 10

    def test_append_of_the_same_offsets_happens_once(self, warehouse: Any, reopened: Any) -> None:
        warehouse.append(name_of(0, 10), (node_part("a", NOON),))
        assert not warehouse.append(name_of(0, 10), (node_part("b", NOON),))
        assert not reopened().append(name_of(0, 10), (node_part("b", NOON),))
        assert self.nodes(warehouse) == ["a"]

    def test_overlapping_offsets_are_refused(self, warehouse: Any) -> None:
        warehouse.append(name_of(0, 10), (node_part("a", NOON),))
        with pytest.raises(Corrupt, match="up to 10 already"):
            warehouse.append(name_of(5, 20), (node_part("b", NOON),))

    def test_offsets_of_another_bus_are_counted_apart(self, warehouse: Any) -> None:
        warehouse.append(name_of(0, 10), (node_part("a", NOON),))
        assert warehouse.append(name_of(0, 5, "other"), (node_part("b", NOON),))
        assert self.nodes(warehouse) == ["a", "b"]

    def test_append_of_several_lanes_is_known_by_each_of_them(self, warehouse: Any, reopened: Any) -> None:
        both = (*name_of(0, 10), *name_of(3, 5, "other"))
        assert warehouse.append(both, (node_part("a", NOON),))
        again = reopened()
        assert (again.applied_offset("bus"), again.applied_offset("other")) == (10, 5)
        assert not again.append(both, (node_part("b", NOON),))
        with pytest.raises(Corrupt, match="up to 5 already"):
            again.append((*name_of(10, 20), *name_of(3, 5, "other")), (node_part("b", NOON),))
        assert self.nodes(again) == ["a"]

    def test_part_that_fails_takes_the_whole_append_with_it(self, warehouse: Any) -> None:
        def parts() -> Any:
            yield node_part("a", NOON)
            raise Corrupt("cannot make the second part")

        with pytest.raises(Corrupt, match="second part"):
            warehouse.append(name_of(0, 10), parts())
        assert self.nodes(warehouse) == []
        assert warehouse.append(name_of(0, 10), (node_part("b", NOON),))
        assert self.nodes(warehouse) == ["b"]

    @pytest.mark.parametrize(
        "cluster", ["..", ".", "a/b", "/etc", "a\\b", "x" * 2000, "dt=1", "%2E", "\u4e2d", "\n", "*"]
    )
    def test_hostile_cluster_names_are_harmless_and_distinct(self, warehouse: Any, cluster: str) -> None:
        warehouse.append(name_of(0, 10), (node_part("a", NOON, cluster), node_part("b", NOON, "c1")))
        assert self.nodes(warehouse, cluster) == ["a"]
        assert self.nodes(warehouse, "c1") == ["b"]

    def test_inventory_knows_nothing_later_than_its_moment(self, warehouse: Any) -> None:
        later = NOON + timedelta(days=1)
        warehouse.append(name_of(0, 10), (node_part("a", NOON), node_part("b", later)))
        assert self.nodes(warehouse, as_of=NOON) == ["a"]
        assert self.nodes(warehouse, as_of=later) == ["a", "b"]
