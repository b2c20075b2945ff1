"""Under another exporter's names a figure means what it means there: whoever reads it back has ours again."""

import math
from collections import Counter
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics

from docs.metrics_catalogue import CATALOGUE
from exporter.collector import CollectorState, Snapshot
from exporter.compat.figures import SHOWN_FIGURES, Of
from exporter.compat.names import WRITTEN_LABELS, NameSource, names_of
from exporter.compat.translation import Compat, CompatFamilies
from exporter.exposition.readings import READING_FAMILIES
from exporter.exposition.rendering import OWN_FAMILIES, Exposition, TextFormat
from exporter.families import Family, FamilyKind
from exporter.reader import Reading
from fleet.inventory import Card, CardId, CardModelName, Grant
from fleet.schema import CARD_MEASURES, SLICE_MEASURES, Measure
from fleet.series import Subject, meaning_of_name, resolve
from fleet.units import GIB
from fleet.usage import CardKey, SliceKey
from tests.exporter.builders import T0, grant_of

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
    return grant_of(key, framebuffer_bytes=80 * GIB, framebuffer_granted_bytes=10 * GIB, compute_granted_ratio=0.3)


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
LABELS = ("node-a", "GPU-a", A100)
INVENTORY = tuple(
    Card(card=key.card, card_model=A100, framebuffer_bytes=80 * GIB, node=key.node, cluster=key.cluster)
    for key in CARDS
)
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


def state(now: Snapshot) -> CollectorState:
    return CollectorState(snapshot=now, age_seconds=0.0, readings=1, failures=0)


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
    beyond = {figure.name for figure in SHOWN_FIGURES if figure.of is not Of.MIG}
    shown = {name: rows for name, rows in series(CompatFamilies(compat).of(now)).items() if name not in beyond}
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


def test_figures_of_the_same_cards_share_their_labels() -> None:
    told = [
        gauge(name, CARD_LABELS, (LABELS, 1.0), (("node-a", "GPU-b", A100), 2.0))
        for name in sorted({figure.family for figure in SHOWN_FIGURES if figure.of is Of.CARD})
    ]
    shown = [
        family
        for family in CompatFamilies(Compat.DCGM).of(snapshot(HARDWARE, DRIVER, *told))
        if len(family.labels) == 2
    ]
    assert len(shown) > 40
    assert len({id(family.labels) for family in shown}) == 1


def test_a_pod_that_left_is_named_no_more() -> None:
    dcgm, hami, now = CompatFamilies(Compat.DCGM), CompatFamilies(Compat.HAMI), snapshot()
    dcgm.of(now)
    hami.of(now)
    later = replace(now, grants=now.grants[1:])
    assert "pod" not in series(dcgm.of(later))["DCGM_FI_DEV_GPU_UTIL"][0][0]
    rows = series(hami.of(later))["hami_vgpu_memory_limit_bytes"]
    assert [labels["pod"] for labels, _ in rows] == ["left-0", "right-0"]


def test_last_xid_is_shown_and_0_says_that_there_was_none() -> None:
    last = gauge("gputide_card_last_xid", CARD_LABELS, (LABELS, 79.0), (("node-a", "GPU-b", A100), 0.0))
    rows = series(CompatFamilies(Compat.DCGM).of(snapshot(last)))["DCGM_FI_DEV_XID_ERRORS"]
    assert [(labels["UUID"], value) for labels, value in rows] == [("GPU-a", 79.0), ("GPU-b", 0.0)]


MIG_LABELS = (*CARD_LABELS, "mig_profile", "mig", "gpu_instance", "compute_instance")
INSTANCES = tuple(
    ("node-a", "GPU-b", A100, profile, f"MIG-{number}", number, compute)
    for profile, number, compute in (("1g.10gb", "7", "0"), ("1c.2g.20gb", "3", "0"), ("1c.2g.20gb", "3", "1"))
)
OF_INSTANCES = (
    gauge("gputide_card_mig_framebuffer_used_bytes", MIG_LABELS, *((row, 2.0 * GIB) for row in INSTANCES)),
    gauge("gputide_card_mig_graphics_active_ratio", MIG_LABELS, *((row, 0.5) for row in INSTANCES)),
)


def tenants_of_instances(*rows: tuple[str, str, str]) -> Family:
    """Who was granted which instance: pod, number, compute instance."""
    names = ("cluster", "namespace", "pod", "container", "node", "card", "card_model")
    return gauge(
        "gputide_slice_mig_info",
        (*names, "mig", "mig_profile", "gpu_instance", "compute_instance"),
        *(
            (("c1", "team", pod, "server", "node-a", "GPU-b", A100, f"MIG-{number}", "1g.10gb", number, compute), 1.0)
            for pod, number, compute in rows
        ),
    )


def test_mig_instances_stand_under_dcgms_names_once_each_with_their_tenant() -> None:
    granted = tenants_of_instances(("left-0", "7", "0"), ("right-0", "3", "0"), ("other-0", "3", "1"))
    shown = series(CompatFamilies(Compat.DCGM).of(snapshot(HARDWARE, *OF_INSTANCES, granted)))
    rows = [(labels, value) for labels, value in shown["DCGM_FI_PROF_GR_ENGINE_ACTIVE"] if "GPU_I_ID" in labels]
    assert [(labels["GPU_I_ID"], labels["GPU_I_PROFILE"], labels["UUID"]) for labels, _ in rows] == [
        ("7", "1g.10gb", "GPU-b"),
        ("3", "1c.2g.20gb", "GPU-b"),
    ]
    # An instance of two tenants is named after neither.
    assert [labels.get("pod") for labels, _ in rows] == ["left-0", None]
    meanings = [resolve("DCGM_FI_PROF_GR_ENGINE_ACTIVE", labels) for labels, _ in rows]
    assert meanings[0] is not None
    assert (meanings[0].subject, meanings[0].measure) == (Subject.SLICE, Measure.DUTY_CYCLE)
    assert (meanings[0].identity.pod, meanings[0].identity.mig_profile) == ("left-0", "1g.10gb")
    assert meanings[1] is None


def test_a_card_and_its_instances_under_one_name_are_one_valid_family() -> None:
    shown = CompatFamilies(Compat.DCGM).of(snapshot(*OF_INSTANCES))
    used = [family for family in shown if family.name == "DCGM_FI_DEV_FB_USED"]
    assert [len(family.labels) for family in used] == [len(CARDS), 2]
    text = Exposition((Compat.DCGM,)).render(state(snapshot(*OF_INSTANCES)), TextFormat.OPENMETRICS)
    (parsed,) = (one for one in parse_openmetrics(text.decode()) if one.name == "DCGM_FI_DEV_FB_USED")
    assert len(parsed.samples) == len(CARDS) + 2


def test_who_has_a_mig_instance_is_not_named_for_the_whole_card() -> None:
    now = snapshot()
    cut = replace(now, grants=(replace(now.grants[0], mig_profile="1g.10gb"), *now.grants[1:]))
    rows = series(CompatFamilies(Compat.DCGM).of(cut))["DCGM_FI_DEV_POWER_USAGE"]
    assert [labels.get("pod") for labels, _ in rows] == [None, None, None]


def test_counters_are_none_in_openmetrics_and_counters_in_the_older_format() -> None:
    held = gauge("gputide_card_held_back_by_power_seconds_total", CARD_LABELS, (LABELS, 1.5))
    ecc = gauge("gputide_card_ecc_lifetime_corrected_errors_total", CARD_LABELS, (LABELS, 4.0))
    worse = gauge("gputide_card_ecc_lifetime_uncorrected_errors_total", CARD_LABELS, (LABELS, 1.0))
    now = snapshot(held, ecc, worse)
    rows = series(CompatFamilies(Compat.DCGM).of(now))
    assert rows["DCGM_FI_DEV_POWER_VIOLATION"][0][1] == 1.5e9
    both = Exposition(Compat)
    plain, open_metrics = (both.render(state(now), one) for one in (TextFormat.PROMETHEUS, TextFormat.OPENMETRICS))
    assert b"# TYPE DCGM_FI_DEV_POWER_VIOLATION counter\n" in plain
    assert b"# TYPE DCGM_FI_DEV_POWER_VIOLATION unknown\n" in open_metrics
    (errors,) = (one for one in parse_openmetrics(open_metrics.decode()) if one.name == "hami_host_gpu_ecc_errors")
    assert errors.type == "counter"
    assert [(one.labels["error_type"], one.value) for one in errors.samples] == [("corrected", 4), ("uncorrected", 1)]


REGION_LABELS = ("cluster", "namespace", "pod", "container", "node", "card", "card_model", "pod_uid")


def test_figures_of_regions_name_the_container_and_not_the_card_alone() -> None:
    rows = (("left-0", "u1"), ("right-0", "u2"), ("right-0", "u3"))
    context = gauge(
        "gputide_slice_framebuffer_context_bytes",
        REGION_LABELS,
        *((("c1", "team", pod, "server", "node-a", "GPU-b", A100, uid), 7.0) for pod, uid in rows),
    )
    shown = series(CompatFamilies(Compat.HAMI).of(snapshot(context)))["hami_vgpu_memory_context_bytes"]
    # Two lives of one pod would be the same series twice, which breaks a scrape.
    assert [labels for labels, _ in shown] == [
        {"namespace": "team", "pod": pod, "container": "server", "device_uuid": "GPU-b", "zone": "vGPU"}
        for pod in ("left-0", "right-0")
    ]


def test_what_hamis_scheduler_adds_up_follows_from_the_grants() -> None:
    asked = gauge("gputide_node_source_age_seconds", ("cluster", "node", "source"), (("c1", "node-a", "kubelet"), 1.0))
    now = replace(snapshot(asked), cards=INVENTORY)
    shown = series(CompatFamilies(Compat.HAMI).of(now))
    for name in ("hami_gpu_shared_count", "GPUDeviceSharedNum"):
        assert [value for _, value in shown[name]] == [1.0, 2.0, 0.0]
    assert [value for _, value in shown["hami_gpu_memory_allocated_bytes"]] == [10.0 * GIB, 20.0 * GIB, 0.0]


@pytest.mark.parametrize("told", [(("api_server", math.nan),), (("hami_regions", 1.0),), ()])
def test_nobody_is_called_free_while_nobody_says_who_was_granted_what(told: tuple[tuple[str, float], ...]) -> None:
    rows = [(("c1", "node-a", source), age) for source, age in told]
    asked = gauge("gputide_node_source_age_seconds", ("cluster", "node", "source"), *rows)
    shown = series(CompatFamilies(Compat.HAMI).of(replace(snapshot(asked), cards=INVENTORY, grants=())))
    assert [name for name in shown if "allocated" in name.lower() or "shared" in name.lower()] == []


def test_last_kernel_and_mig_instance_of_a_container_stand_under_hamis_names() -> None:
    idle = gauge(
        "gputide_container_since_last_kernel_seconds",
        ("cluster", "namespace", "pod", "container", "node", "pod_uid"),
        (("c1", "team", "left-0", "server", "node-a", "u1"), 12.0),
    )
    shown = series(CompatFamilies(Compat.HAMI).of(snapshot(idle, tenants_of_instances(("left-0", "7", "0")))))
    assert shown["hami_container_last_kernel_elapsed_seconds"][0][1] == 12.0
    (labels, _), *_ = shown["hami_mig_device_info"]
    assert (labels["mig_uuid"], labels["profile"], labels["gpu_instance_id"]) == ("MIG-7", "1g.10gb", "7")
    (labels, _), *_ = shown["MigInfo"]
    assert (labels["podname"], labels["instanceid"]) == ("left-0", "7")


@pytest.mark.parametrize("text_format", TextFormat)
def test_no_series_is_shown_twice_whatever_tells_ours_apart(text_format: TextFormat) -> None:
    own = {family.name for family in (*OWN_FAMILIES, *READING_FAMILIES)}
    catalogued = {family.name: family for section in CATALOGUE for family in section.families if family.name not in own}
    families = []
    for family in catalogued.values():
        rows = [tuple(f"{name}-{number}" for name in family.label_names) for number in range(2)]
        # The last label of a family is one that another exporter may not have.
        rows += [(*rows[0][:-1], "another")] if family.label_names else []
        families.append(family.of(tuple(dict.fromkeys(rows)), np.ones(len(dict.fromkeys(rows)))))
    text = Exposition(Compat).render(state(replace(snapshot(*families), cards=INVENTORY)), text_format).decode()
    shown = [line.rpartition(" ")[0] for line in text.splitlines() if not line.startswith("#")]
    assert [series for series, count in Counter(shown).items() if count > 1] == []
    assert sum(line.startswith("DCGM_") for line in shown) > 100
    heads = [line for line in text.splitlines() if line.startswith("# TYPE ")]
    assert len(set(heads)) == len(heads)


def test_names_beyond_the_alias_table_are_no_second_list_of_it() -> None:
    aliased = {name.name for source in NameSource for name in names_of(source)}
    # The alias table knows instances too: what it says of an instance is read with its labels.
    assert aliased.isdisjoint(figure.name for figure in SHOWN_FIGURES if figure.of is not Of.MIG)
    keys = [(figure.name, figure.of, figure.constant) for figure in SHOWN_FIGURES]
    assert len(set(keys)) == len(keys)
    catalogued = {family.name for section in CATALOGUE for family in section.families}
    assert [one.family for one in SHOWN_FIGURES if one.family not in catalogued] == []


def test_labels_are_written_as_they_are_read() -> None:
    for source in NameSource:
        assert names_of(source)
        for name in names_of(source):
            meaning = meaning_of_name(name.name)
            assert meaning is not None
            assert (meaning.measure, meaning.factor) == (name.measure, name.factor)
        assert len(set(WRITTEN_LABELS[source].values())) == len(WRITTEN_LABELS[source])


def test_the_counters_that_users_are_told_to_keep_are_those_that_are_understood(repository: Path) -> None:
    page = (repository / "docs" / "exporter.md").read_text(encoding="utf-8")
    rows = page.partition("```csv\n")[2].partition("```")[0].splitlines()
    told = {name for name, kind, _ in (row.split(", ", 2) for row in rows) if kind == "gauge"}
    assert told == {name.name for name in names_of(NameSource.DCGM)} | {"DCGM_FI_PROF_GR_ENGINE_ACTIVE"}
