"""Families of cards: named once, catalogued, and silent about cards whose reading is not in order."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from exporter.card_families import CARD_FAMILIES, CardFamilies
from exporter.families import Family, FamilyKind
from exporter.nvml.figures import (
    Activity,
    CardFigures,
    CardIdentity,
    CardReading,
    CardsReading,
    CardState,
    ClockReason,
    ComputeMode,
    Counter,
    Framebuffer,
    Gauge,
    LibraryVersions,
    MigFigures,
    ProcessFigures,
    ProcessKind,
    Spread,
)
from fleet.inventory import CardId, CardModelName
from fleet.schema import CARD_MEASURES
from fleet.series import card_series, meaning_of_name

MEMORY = Framebuffer(total_bytes=100, used_bytes=30, free_bytes=60, reserved_bytes=10)
FULL = CardFigures(
    activities={activity: Spread(mean=0.25, peak=0.5, samples=4) for activity in Activity},
    framebuffer=MEMORY,
    gauges=dict.fromkeys(Gauge, 1.0),
    counters=dict.fromkeys(Counter, 7.0),
    held_back=dict.fromkeys(ClockReason, 0.5),
    compute_mode=ComputeMode.PROHIBITED,
    mig_mode=True,
    migs=(
        MigFigures(
            mig="MIG-a",
            mig_profile="1g.10gb",
            gpu_instance=3,
            compute_instance=0,
            framebuffer=MEMORY,
            sm_count=16,
            activities={activity: Spread(mean=0.25, peak=0.5, samples=4) for activity in Activity},
        ),
    ),
    processes=(ProcessFigures(pid=1, kinds=frozenset({ProcessKind.COMPUTE, ProcessKind.GRAPHICS})),),
    failed_calls={("nvmlDeviceGetPowerUsage", "unknown"): 2},
)
CARD = CardReading(
    identity=CardIdentity(card=CardId("GPU-a"), card_model=CardModelName("NVIDIA H100"), index=0, serial="17"),
    state=CardState.OK,
    figures=FULL,
    age_seconds=0.5,
    is_new=True,
    xids={79: 2, -1: 1},
    last_xid=79,
)
LABELS = ("c1", "gpu-1", "GPU-a", "NVIDIA H100")


def reading(*cards: CardReading) -> CardsReading:
    return CardsReading(versions=LibraryVersions(driver="580.65.06", library="13.580"), cards=cards)


def shown(*cards: CardReading) -> Mapping[str, Family]:
    return {family.name: family for family in CardFamilies(cluster="c1", node="gpu-1").of(reading(*cards))}


def value(families: Mapping[str, Family], name: str, *more: str) -> float:
    family = families[f"gputide_card_{name}"]
    return float(family.values[family.labels.index((*LABELS, *more))])


def test_names_are_unique_and_none_is_a_stored_measure() -> None:
    names = [family.name for family in CARD_FAMILIES]
    assert len(set(names)) == len(names)
    assert {card_series(column.measure) for column in CARD_MEASURES}.isdisjoint(names)
    # The receiver takes no family for a measure, an info or a fact of its own.
    assert all(meaning_of_name(name) is None for name in names)


def test_names_end_as_their_kind_asks() -> None:
    for family in CARD_FAMILIES:
        assert family.name.endswith("_total") == (family.kind is FamilyKind.COUNTER)
        assert family.name.endswith("_info") == (family.kind is FamilyKind.INFO)
        assert family.help_text.endswith(".")
        assert "node" in family.label_names


def test_a_card_that_tells_everything_fills_the_whole_catalogue() -> None:
    assert list(shown(CARD)) == [family.name for family in CARD_FAMILIES]


def test_figures_stand_under_their_names() -> None:
    families = shown(CARD)
    assert value(families, "peak_duty_cycle_ratio") == 0.5
    assert value(families, "tensor_active_ratio") == 0.25
    assert value(families, "energy_joules_total") == 7.0
    assert value(families, "framebuffer_reserved_bytes") == 10
    assert value(families, "held_back_ratio", "sync_boost") == 0.5
    assert value(families, "compute_mode", "prohibited") == 1.0
    assert value(families, "compute_mode", "default") == 0.0
    assert value(families, "processes", "graphics") == 1.0
    assert value(families, "processes", "mps") == 0.0
    assert value(families, "xid_errors_total", "79") == 2.0
    assert value(families, "xid_errors_total", "other") == 1.0
    assert value(families, "xid_events_total") == 3.0
    assert value(families, "last_xid") == 79.0
    assert value(families, "mig_sm_active_ratio", "1g.10gb", "MIG-a", "3", "0") == 0.25
    assert value(families, "call_failures_total", "nvmlDeviceGetPowerUsage", "unknown") == 2.0


def test_last_xid_is_0_where_none_came_and_absent_where_nobody_would_tell() -> None:
    assert value(shown(replace(CARD, xids={}, last_xid=None)), "last_xid") == 0.0
    assert "gputide_card_last_xid" not in shown(replace(CARD, xids=None, last_xid=None))


def test_card_that_tells_nothing_has_state_and_age_and_no_zeros() -> None:
    families = shown(replace(CARD, figures=CardFigures(), xids=None))
    assert set(families) == {
        "gputide_card_hardware_info",
        "gputide_driver_info",
        "gputide_card_unnamed_count",
        "gputide_card_data_age_seconds",
        "gputide_card_reading_state",
    }


@pytest.mark.parametrize("state", [CardState.HUNG, CardState.LOST])
def test_card_that_is_hung_or_lost_shows_no_old_figures(state: CardState) -> None:
    families = shown(replace(CARD, state=state, age_seconds=12.0))
    assert value(families, "reading_state", state.value) == 1.0
    assert value(families, "reading_state", "ok") == 0.0
    assert value(families, "data_age_seconds") == 12.0
    assert value(families, "xid_events_total") == 3.0
    assert "gputide_card_energy_joules_total" not in families
    assert "gputide_card_peak_power_watts" not in families


def test_labels_are_the_same_objects_until_a_card_changes() -> None:
    naming = CardFamilies(cluster="c1", node="gpu-1")
    first = {family.name: family for family in naming.of(reading(CARD))}
    again = {family.name: family for family in naming.of(reading(replace(CARD, age_seconds=3.0)))}
    assert all(again[name].labels is family.labels for name, family in first.items())
    other = replace(CARD, identity=replace(CARD.identity, card=CardId("GPU-b")))
    changed = {family.name: family for family in naming.of(reading(CARD, other))}
    assert len(changed["gputide_card_data_age_seconds"].labels) == 2
