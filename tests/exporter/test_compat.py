"""Under another exporter's names a figure means what it means there: whoever reads it back has ours again."""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest

from exporter.card_families import CARD_FAMILIES
from exporter.collector import Snapshot
from exporter.compat.figures import SHOWN_FIGURES
from exporter.compat.names import WRITTEN_LABELS, NameSource, names_of
from exporter.compat.translation import Compat, CompatFamilies
from exporter.families import Family, FamilyKind
from exporter.reader import Reading
from fleet.inventory import CardId, CardModelName, Grant, Priority
from fleet.schema import CARD_MEASURES, SLICE_MEASURES, Measure
from fleet.series import Subject, meaning_of_name, resolve
from fleet.units import GIB
from fleet.usage import CardKey, SliceKey
from tests.exporter.builders import T0

A100 = CardModelName("NVIDIA A100-SXM4-80GB")
CARDS = tuple(CardKey(cluster="c1", node="node-a", card=CardId(f"GPU-{name}"), card_model=A100) for name in "abc")


def tenant(pod: str, card: str) -> SliceKey:
    return SliceKey(
        cluster="c1",
        namespace="team",
        pod=pod,
        container="server",
        node="node-a",
        card=CardId(card),
        card_model=A100,
    )


SLICES = (tenant("alone-0", "GPU-a"), tenant("left-0", "GPU-b"), tenant("right-0", "GPU-b"))


def grant(key: SliceKey) -> Grant:
    return Grant(
        cluster=key.cluster,
        namespace=key.namespace,
        pod=key.pod,
        container=key.container,
        workload=key.pod,
        workload_kind="Deployment",
        node=key.node,
        card=key.card,
        card_model=A100,
        framebuffer_bytes=80 * GIB,
        framebuffer_granted_bytes=10 * GIB,
        compute_granted_ratio=0.3,
        priority=Priority.NORMAL,
        started_at=T0,
    )


def gauge(name: str, label_names: tuple[str, ...], *rows: tuple[tuple[str, ...], float]) -> Family:
    return Family(
        name=name,
        kind=FamilyKind.GAUGE,
        help_text="A figure.",
        label_names=label_names,
        labels=tuple(labels for labels, _ in rows),
        values=np.array([value for _, value in rows], np.float64),
    )


CARD_LABELS = ("node", "card", "card_model")
HARDWARE = gauge(
    "gputide_card_hardware_info",
    (*CARD_LABELS, "index", "minor_number", "pci_bus_id", "serial"),
    (("node-a", "GPU-a", A100, "0", "3", "00000000:01:00.0", ""), 1.0),
)
DRIVER = gauge("gputide_driver_info", ("node", "driver", "nvml", "cuda"), (("node-a", "550.54", "12.550", "12.4"), 1.0))


def snapshot(*families: Family, number: int = 1) -> Snapshot:
    rng = np.random.default_rng(7)

    def column(measure: Measure, rows: int) -> np.ndarray:
        return np.round(rng.random(rows) * (80 * GIB if measure is Measure.FRAMEBUFFER_USED else 1.0), 4)

    reading = Reading(
        at=T0 + timedelta(seconds=15 * number),
        slices=SLICES,
        slice_values={one.measure: column(one.measure, len(SLICES)) for one in SLICE_MEASURES},
        cards=CARDS,
        card_values={one.measure: column(one.measure, len(CARDS)) for one in CARD_MEASURES},
    )
    return Snapshot(
        number=number,
        reading=reading,
        cards=(),
        nodes=(),
        grants=tuple(map(grant, SLICES)),
        taken_at_seconds=0.0,
        families=families,
    )


def series(families: tuple[Family, ...]) -> dict[str, list[tuple[dict[str, str], float]]]:
    return {
        family.name: [
            ({name: text for name, text in zip(family.label_names, labels, strict=True) if text}, value)
            for labels, value in zip(family.labels, family.values.tolist(), strict=True)
        ]
        for family in families
    }


@pytest.mark.parametrize("compat", Compat)
def test_what_is_read_back_is_what_was_measured(compat: Compat) -> None:
    now = snapshot()
    shown = series(CompatFamilies(compat).of(now))
    assert len(shown) >= 8
    facts = {"framebuffer_granted_bytes": 10.0 * GIB, "compute_granted_ratio": 0.3}
    for name, rows in shown.items():
        for number, (labels, value) in enumerate(rows):
            meaning = resolve(name, labels)
            assert meaning is not None, (name, labels)
            whole = value * meaning.factor
            if meaning.fact is not None:
                assert whole == pytest.approx(facts[meaning.fact], rel=1e-9)
                assert (meaning.identity.pod, meaning.identity.card) == (SLICES[number].pod, SLICES[number].card)
                continue
            assert meaning.measure is not None
            is_card = meaning.subject is Subject.CARD
            measured = (now.reading.card_values if is_card else now.reading.slice_values)[meaning.measure][number]
            assert whole == pytest.approx(measured, rel=1e-8, abs=1e-8)
            key = (CARDS if is_card else SLICES)[number]
            assert meaning.identity.card == key.card
            if is_card:
                assert (meaning.identity.node, meaning.identity.card_model) == ("node-a", A100)
            else:
                assert meaning.identity.pod == SLICES[number].pod


def test_every_measure_that_another_exporter_names_is_shown() -> None:
    assert set(series(CompatFamilies(Compat.DCGM).of(snapshot()))) == {
        "DCGM_FI_DEV_DEC_UTIL",
        "DCGM_FI_DEV_ENC_UTIL",
        "DCGM_FI_DEV_FB_USED",
        "DCGM_FI_DEV_GPU_TEMP",
        "DCGM_FI_DEV_GPU_UTIL",
        "DCGM_FI_DEV_POWER_USAGE",
        "DCGM_FI_PROF_DRAM_ACTIVE",
        "DCGM_FI_PROF_SM_ACTIVE",
    }
    shown = series(CompatFamilies(Compat.HAMI).of(snapshot()))
    pairs = [
        ("hami_vgpu_memory_used_bytes", "vGPU_device_memory_usage_in_bytes"),
        ("hami_host_gpu_utilization_ratio", "HostCoreUtilization"),
        ("hami_vgpu_memory_limit_bytes", "vGPU_device_memory_limit_in_bytes"),
        ("hami_vgpu_core_allocated_ratio", "vGPUCoreAllocated"),
    ]
    for new, old in pairs:
        assert [value for _, value in shown[new]] == [value for _, value in shown[old]]


def test_a_card_names_its_tenant_only_where_it_has_one() -> None:
    rows = series(CompatFamilies(Compat.DCGM).of(snapshot()))["DCGM_FI_DEV_GPU_UTIL"]
    assert [labels.get("pod") for labels, _ in rows] == ["alone-0", None, None]
    assert len(rows) == len(CARDS)


def test_a_figure_that_nobody_measured_is_not_shown() -> None:
    now = snapshot()
    bare = replace(now, reading=replace(now.reading, card_values={}, slice_values={}), grants=())
    assert [family for compat in Compat for family in CompatFamilies(compat).of(bare)] == []


def test_units_are_those_of_the_other_exporter() -> None:
    labels = ("node-a", "GPU-a", A100)
    told = (
        gauge("gputide_card_sm_clock_hertz", CARD_LABELS, (labels, 1.41e9)),
        gauge("gputide_card_energy_joules_total", CARD_LABELS, (labels, 12.5)),
        gauge("gputide_card_framebuffer_free_bytes", CARD_LABELS, (labels, 3.0 * GIB)),
        gauge("gputide_card_memory_copy_ratio", CARD_LABELS, (labels, 0.29)),
    )
    dcgm = series(CompatFamilies(Compat.DCGM).of(snapshot(*told)))
    assert dcgm["DCGM_FI_DEV_SM_CLOCK"][0][1] == 1410.0
    assert dcgm["DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"][0][1] == 12500.0
    assert dcgm["DCGM_FI_DEV_FB_FREE"][0][1] == 3072.0
    assert dcgm["DCGM_FI_DEV_MEM_COPY_UTIL"][0][1] == 29.0
    hami = series(CompatFamilies(Compat.HAMI).of(snapshot(*told)))
    assert hami["hami_host_gpu_memory_controller_utilization_ratio"][0][1] == 29.0


def test_boards_and_driver_are_named_as_there() -> None:
    now = snapshot(HARDWARE, DRIVER)
    labels, _ = series(CompatFamilies(Compat.DCGM).of(now))["DCGM_FI_DEV_GPU_UTIL"][0]
    assert labels == {
        "Hostname": "node-a",
        "UUID": "GPU-a",
        "modelName": A100,
        "gpu": "0",
        "pci_bus_id": "00000000:01:00.0",
        "device": "nvidia3",
        "DCGM_FI_DRIVER_VERSION": "550.54",
        "namespace": "team",
        "pod": "alone-0",
        "container": "server",
    }
    labels, _ = series(CompatFamilies(Compat.HAMI).of(now))["hami_host_gpu_utilization_ratio"][0]
    assert labels == {
        "node": "node-a",
        "device_uuid": "GPU-a",
        "device_type": f"NVIDIA-{A100}",
        "device_index": "0",
        "zone": "vGPU",
    }


@pytest.mark.parametrize("compat", Compat)
def test_labels_stay_the_same_object_while_nothing_changes(compat: Compat) -> None:
    families = CompatFamilies(compat)
    first, again = families.of(snapshot(HARDWARE, DRIVER)), families.of(snapshot(HARDWARE, DRIVER, number=2))
    assert all(one.labels is other.labels for one, other in zip(first, again, strict=True))


def test_a_pod_that_left_is_named_no_more() -> None:
    dcgm, hami, now = CompatFamilies(Compat.DCGM), CompatFamilies(Compat.HAMI), snapshot()
    dcgm.of(now)
    hami.of(now)
    later = replace(now, grants=now.grants[1:])
    assert "pod" not in series(dcgm.of(later))["DCGM_FI_DEV_GPU_UTIL"][0][0]
    rows = series(hami.of(later))["hami_vgpu_memory_limit_bytes"]
    assert [labels["pod"] for labels, _ in rows] == ["left-0", "right-0"]


def test_no_gauge_of_the_last_xid_is_shown() -> None:
    # It shows the last code for ever, and two events of one code look like one.
    xids = gauge("gputide_card_xid_errors_total", (*CARD_LABELS, "xid"), (("node-a", "GPU-a", A100, "79"), 2.0))
    assert [name for name in series(CompatFamilies(Compat.DCGM).of(snapshot(xids))) if "XID" in name] == []


def test_names_beyond_the_alias_table_are_no_second_list_of_it() -> None:
    aliased = {name.name for source in NameSource for name in names_of(source)}
    shown = [figure.name for figure in SHOWN_FIGURES]
    assert aliased.isdisjoint(shown)
    assert len(set(shown)) == len(shown)
    cards = {family.name for family in CARD_FAMILIES}
    assert [
        one.family for one in SHOWN_FIGURES if one.family.startswith("gputide_card_") and one.family not in cards
    ] == []


def test_labels_are_written_as_they_are_read() -> None:
    for source in NameSource:
        assert names_of(source)
        for name in names_of(source):
            meaning = meaning_of_name(name.name)
            assert meaning is not None
            assert (meaning.measure, meaning.factor) == (name.measure, name.factor)
        assert len(set(WRITTEN_LABELS[source].values())) == 6


def test_the_counters_that_users_are_told_to_keep_are_those_that_are_understood(repository: Path) -> None:
    page = (repository / "docs" / "exporter.md").read_text(encoding="utf-8")
    rows = page.partition("```csv\n")[2].partition("```")[0].splitlines()
    told = {name for name, kind, _ in (row.split(", ", 2) for row in rows) if kind == "gauge"}
    assert told == {name.name for name in names_of(NameSource.DCGM)} | {"DCGM_FI_PROF_GR_ENGINE_ACTIVE"}
