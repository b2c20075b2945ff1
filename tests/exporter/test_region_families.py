from pathlib import Path

import numpy as np

from exporter.families import Family
from exporter.regions.columns import HamiReading
from exporter.regions.families import FAMILIES, NodeNames, RegionFamilies
from exporter.regions.reader import HamiReader
from tests.regions.plain_regions import MIB, NOW, PlainProcess, PlainRegion, write_region

POD = "00000001-0000-4000-8000-000000000000"
CARD = PlainRegion().cards[0]
NAMES = NodeNames(pods={POD: ("shop", "search-0")}, card_models={CARD: "NVIDIA A10"})
NOBODY = NodeNames(pods={}, card_models={})
CONTAINER = ("idc-1", "shop", "search-0", "main", "node-1", POD)


def reading_of(root: Path, *regions: PlainRegion | None) -> tuple[HamiReader, HamiReading]:
    for number, region in enumerate(regions, 1):
        made = root / f"{number:08x}-0000-4000-8000-000000000000_main"
        made.mkdir()
        if region is not None:
            write_region(made / f"{number:08x}-1111-4000-8000-000000000000.cache", region)
    reader = HamiReader(root)
    return reader, reader.read({}, now_seconds=NOW, deadline_seconds=30)


def families_of(reading: HamiReading, names: NodeNames = NAMES) -> dict[str, Family]:
    return {family.name: family for family in RegionFamilies(cluster="idc-1", node="node-1").of(reading, names)}


def values(family: Family) -> dict[tuple[str, ...], float]:
    return dict(zip(family.labels, family.values.tolist(), strict=True))


def test_every_family_is_catalogued_and_has_a_value_per_series(tmp_path: Path) -> None:
    _, reading = reading_of(tmp_path, PlainRegion(), None, PlainRegion(magic=0))
    made = RegionFamilies(cluster="idc-1", node="node-1").of(reading, NAMES)
    assert [(family.name, family.label_names) for family in made] == [
        (line.name, line.label_names) for line in FAMILIES
    ]
    for family in made:
        assert family.values.shape == (len(family.labels),)
        assert len(set(family.labels)) == len(family.labels)
        assert all(len(label) == len(family.label_names) for label in family.labels)


def test_slice_and_container_carry_the_names_of_their_pod(tmp_path: Path) -> None:
    _, reading = reading_of(tmp_path, PlainRegion(recent_kernel=-1))
    families = families_of(reading)
    slice_labels = ("idc-1", "shop", "search-0", "main", "node-1", CARD, "NVIDIA A10", POD)
    assert values(families["gputide_slice_framebuffer_limit_bytes"]) == {slice_labels: 4000.0 * MIB}
    assert values(families["gputide_slice_framebuffer_context_bytes"]) == {slice_labels: 300.0 * MIB}
    assert values(families["gputide_slice_compute_limit_ratio"]) == {slice_labels: 0.3}
    assert values(families["gputide_container_priority"]) == {CONTAINER: 1.0}
    assert values(families["gputide_container_blocked"]) == {CONTAINER: 1.0}
    assert values(families["gputide_container_recently_active"]) == {CONTAINER: 0.0}
    assert values(families["gputide_container_since_last_kernel_seconds"]) == {CONTAINER: 12.0}
    assert values(families["gputide_container_processes"]) == {CONTAINER: 1.0}


def test_clock_a_little_behind_the_tenants_gives_no_negative_age(tmp_path: Path) -> None:
    _, reading = reading_of(tmp_path, PlainRegion(last_kernel_time=int(NOW) + 3))
    assert values(families_of(reading)["gputide_container_since_last_kernel_seconds"]) == {CONTAINER: 0.0}


def test_trusted_region_is_1_and_each_doubt_is_0_with_its_reason(tmp_path: Path) -> None:
    _, reading = reading_of(
        tmp_path, PlainRegion(layout="v1.1-odd"), None, PlainRegion(sm_limit=400, priority=-3), PlainRegion(magic=7)
    )
    trusted = values(families_of(reading)["gputide_region_trusted"])
    told = {(labels[5][:8], *labels[6:]): value for labels, value in trusted.items()}
    assert told == {
        ("00000001", "v1.1-odd", ""): 1.0,
        ("00000003", "v1.2", "compute_limit_impossible"): 0.0,
        ("00000003", "v1.2", "state_impossible"): 0.0,
        ("00000004", "", "uninitialised"): 0.0,
    }


def test_untrusted_duty_cycle_is_told_with_its_reason_and_a_refill_is_none(tmp_path: Path) -> None:
    _, reading = reading_of(
        tmp_path,
        PlainRegion(),
        PlainRegion(layout="pre-v0"),
        PlainRegion(processes=(PlainProcess(sm_util=0, monitor=0, host_pid=0),)),
        PlainRegion(processes=(PlainProcess(sm_util=0, monitor=0),)),
        PlainRegion(processes=(PlainProcess(sm_util=300),)),
    )
    trusted = values(families_of(reading)["gputide_slice_duty_cycle_trusted"])
    assert {(labels[7][:8], labels[8]): value for labels, value in trusted.items()} == {
        ("00000001", ""): 1.0,
        ("00000002", "not_recorded"): 0.0,
        ("00000003", "no_host_pid"): 0.0,
        ("00000005", "impossible"): 0.0,
    }


def test_regions_are_counted_by_layout_and_containers_without_one_too(tmp_path: Path) -> None:
    _, reading = reading_of(tmp_path, PlainRegion(), PlainRegion(layout="v0"), None, PlainRegion(), None)
    (tmp_path / "lost+found").mkdir()
    families = families_of(reading)
    counts = {labels[-1]: value for labels, value in values(families["gputide_regions"]).items()}
    assert counts == {"pre-v0": 0, "v0": 1, "v1.1": 0, "v1.1-dev": 0, "v1.1-odd": 0, "v1.2": 2}
    assert families["gputide_containers_without_region"].values.tolist() == [2.0]
    assert families["gputide_region_foreign_directories"].values.tolist() == [0.0]


def test_container_without_region_has_no_figure(tmp_path: Path) -> None:
    _, reading = reading_of(tmp_path, None)
    families = families_of(reading)
    assert np.isnan(families["gputide_container_processes"].values).all()
    assert families["gputide_slice_framebuffer_limit_bytes"].labels == ()


def test_labels_are_kept_until_names_or_containers_change(tmp_path: Path) -> None:
    reader, first = reading_of(tmp_path, PlainRegion())
    names = RegionFamilies(cluster="idc-1", node="node-1")
    before = names.of(first, NAMES)
    again = names.of(reader.read({}, now_seconds=NOW + 1, deadline_seconds=30), NAMES)
    assert all(old.labels is new.labels for old, new in zip(before[:6], again[:6], strict=True))
    renamed = names.of(reader.read({}, now_seconds=NOW + 2, deadline_seconds=30), NOBODY)
    assert renamed[0].labels == (("idc-1", "", "", "main", "node-1", CARD, "", POD),)
