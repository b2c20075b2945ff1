"""The traps of GPU telemetry that an exporter can fall into, one named test each; it fails where the trap catches us.

| trap | what it is | where it is tested |
|---|---|---|
| 1 | the duty cycle says 100 % for one tiny kernel | here; `test_cross_checks` (spinning: one-tiny-kernel) |
| 2 | ranks that wait in NCCL look busy | `test_cross_checks` (spinning: ranks-wait) |
| 3 | pre-allocated framebuffer | here |
| 4 | no series is not 0 | here; `test_attribution`, `test_reader_node` (pod that never used its card) |
| 5 | 0 is not idle (HAMi on Blackwell) | here; `test_reader_hami` (zero on a busy card), `test_cross_checks` |
| 6 | labels missing under time-slicing | here; `test_attribution` (replicas) |
| 7 | MIG has no duty cycle | here; `test_nvml_card` (card under MIG) |
| 8 | profiling counters that another client holds | here |
| 9 | names that change with the driver's release | here; those of other exporters in `test_compat` |
| 10 | several processes in one container | `test_cross_checks` (more than granted); sums in `test_region_record` |
| 11 | telemetry is not inventory | here; `test_attribution` (an inventory is counted by grants) |
| 12 | the sum of a card taken for the figure of a pod | here; `test_reader_node` (tenants of one card) |
| 13 | young and short pods | `test_attribution_periods`, `test_attribution_owners` |
| 14 | phases that look idle, 18: bursts between scrapes | here; `test_nvml_card` (burst) |
| 15 | warm standby | not an exporter's to judge |
| 16 | an outage of the checker | here; `test_reader_node` (kubelet that falls silent), `test_nvml_cards` (hung card) |
| 17 | the gauge of the last XID | here; `test_nvml_events` |
| 18 | counters and gauges | here; `test_exposition_catalogue` |
| 19 | numbers that move: reboot, UUID, MIG cut anew | here; `test_nvml_card`, `test_nvml_mig`, `test_attribution` |
| 20 | idle beside one's neighbour is as it should be | `test_cross_checks` (an idle container beside a busy one) |
| 21 | a transcoder that looks idle | here; `test_nvml_card`, `test_cross_checks` |
"""

from collections.abc import Sequence
from dataclasses import replace
from types import MappingProxyType

import numpy as np
import pytest

from exporter.attribution.attributor import attribute
from exporter.attribution.cards import KnownInstance
from exporter.attribution.records import AttributedSlice, NodeView, ProcessOnCard
from exporter.card_families import CARD_FAMILIES, CardFamilies
from exporter.cluster.reader import Watched
from exporter.cross_checks.checks import CrossChecks
from exporter.families import FamilyKind
from exporter.node.slices import CardsNow, slice_values
from exporter.nvml.cards import CardReader
from exporter.nvml.figures import (
    Activity,
    CardFigures,
    CardReading,
    CardsReading,
    CardState,
    Framebuffer,
    LibraryVersions,
    MigFigures,
    ProcessFigures,
    ProcessKind,
    Spread,
)
from exporter.nvml.library import NvmlLibrary
from exporter.series_blocks import grant_info_labels
from fleet.schema import Measure
from tests.exporter.allocation_manifests import container, grant, of
from tests.exporter.allocation_manifests import node as node_manifest
from tests.exporter.allocation_manifests import pod as pod_manifest
from tests.exporter.node import (
    CARD_BYTES,
    GIB,
    NOW,
    card_id,
    facts,
    handed,
    instance_id,
    known,
    place,
    row,
    view,
)
from tests.exporter.nvml.drivers import card_reader, identity
from tests.exporter.nvml.standin import GPM, H100, StandInWorld
from tests.exporter.test_cross_checks import DUTY, SM, after, checks_of, findings, repeated, tenant

IN_USE = 19
CAPABLE = {**H100, "gpm": GPM}


@pytest.fixture
def reader(world: StandInWorld, library: NvmlLibrary) -> CardReader:
    world.card(**CAPABLE).write()
    return card_reader(library)


def spread(mean: float) -> Spread:
    return Spread(mean=mean, peak=mean, samples=1)


def process(pid: int, held: int | None = GIB, busy: float | None = 0.0) -> ProcessFigures:
    return ProcessFigures(
        pid=pid,
        kinds=frozenset({ProcessKind.COMPUTE}),
        framebuffer_bytes=held,
        sm_busy=None if busy is None else spread(busy),
    )


def figures(*processes: ProcessFigures, duty: float = 0.6, **more: object) -> CardFigures:
    told = CardFigures(
        activities=MappingProxyType({Activity.DUTY_CYCLE: spread(duty)}),
        framebuffer=Framebuffer(total_bytes=CARD_BYTES, used_bytes=40 * GIB, free_bytes=CARD_BYTES - 40 * GIB),
        processes=processes,
    )
    return replace(told, **more)  # type: ignore[arg-type]


def shared_card(pods: int, *runs: tuple[int, int]) -> NodeView:
    """Pods that share the first card by replicas; each run is a pod's number and a process of it."""
    ids = [f"{card_id(0)}::{number}" for number in range(pods)]
    return view(
        rows=[row(f"pod-{number}", handed(ids[number])) for number in range(pods)],
        pods=[facts(f"pod-{number}", number) for number in range(pods)],
        allocatable=ids,
        processes=tuple(ProcessOnCard(pid=pid, card=card_id(0), places=(place(number),)) for number, pid in runs),
    )


def shown(
    slices: Sequence[AttributedSlice], told: CardFigures, *, sees_processes: bool = True
) -> dict[str, dict[Measure, float]]:
    """What is told of each pod; what is absent is left out."""
    now = CardsNow(
        figures={found.grant.card: told for found in slices},
        shared=frozenset(),
        sees_processes=sees_processes,
        regions=None,
    )
    columns = slice_values(slices, now)
    return {
        found.grant.pod: {
            measure: float(column[number]) for measure, column in columns.items() if not np.isnan(column[number])
        }
        for number, found in enumerate(slices)
    }


def test_trap_1_a_card_with_one_tiny_kernel_tells_that_its_sms_rest(world: StandInWorld, reader: CardReader) -> None:
    world.card(0, util=100, gpm={**GPM, 2: 1}).write()
    reader.read()
    told = reader.read().activities
    assert told[Activity.DUTY_CYCLE].mean == 1.0
    assert told[Activity.SM_ACTIVE].mean == pytest.approx(0.01)


def test_trap_3_preallocated_framebuffer_is_held_and_its_holder_at_rest() -> None:
    attribution = attribute(shared_card(2, (0, 100)), NOW)
    told = shown(attribution.slices, figures(process(100, held=72 * GIB, busy=0.0)))
    # Held and at rest are two figures, so that nobody takes the one for the other.
    assert told["pod-0"][Measure.FRAMEBUFFER_USED] == 72 * GIB
    assert told["pod-0"][Measure.DUTY_CYCLE] == 0.0


def test_trap_4_a_container_that_never_touched_its_card_is_there_and_at_zero() -> None:
    attribution = attribute(shared_card(2, (0, 100)), NOW)
    assert [found.grant.pod for found in attribution.slices] == ["pod-0", "pod-1"]
    told = shown(attribution.slices, figures(process(100, busy=0.5)))
    assert (told["pod-1"][Measure.DUTY_CYCLE], told["pod-1"][Measure.FRAMEBUFFER_USED]) == (0.0, 0.0)


def test_trap_4_where_nobody_can_look_nothing_is_called_zero() -> None:
    attribution = attribute(shared_card(2), NOW)
    assert shown(attribution.slices, figures(process(100)), sees_processes=False) == {"pod-0": {}, "pod-1": {}}


def test_trap_5_two_tenants_at_zero_on_a_busy_card_are_both_not_believed() -> None:
    one, two = tenant("one-0"), tenant("two-0")
    judged = after(CrossChecks(), repeated({one: {DUTY: 0.0}, two: {DUTY: 0.0}}, {DUTY: 0.97}))
    assert findings(judged) == {(pod, "container_zero_while_card_busy") for pod in ("one-0", "two-0")}


def test_trap_6_every_pod_that_shares_a_card_by_time_slices_has_its_labels() -> None:
    attribution = attribute(shared_card(4, (2, 100)), NOW)
    labels = [dict(grant_info_labels(found.grant)) for found in attribution.slices]
    assert [(one["namespace"], one["pod"], one["container"]) for one in labels] == [
        ("team", f"pod-{number}", "main") for number in range(4)
    ]
    assert {one["card"] for one in labels} == {card_id(0)}


def test_trap_7_a_slice_of_a_card_under_mig_has_the_duty_cycle_of_its_instance() -> None:
    instance = KnownInstance(instance=instance_id(1), profile="1g.10gb", gpu_instance=7, compute_instance=0)
    attribution = attribute(
        view(
            cards=[known(0, instance)],
            rows=[row("cut", handed(instance_id(1)))],
            pods=[facts("cut", 1)],
            processes=(ProcessOnCard(pid=100, card=card_id(0), places=(place(1),)),),
        ),
        NOW,
    )
    mig = MigFigures(
        mig=instance_id(1),
        mig_profile="1g.10gb",
        gpu_instance=7,
        compute_instance=0,
        activities={Activity.GRAPHICS_ACTIVE: spread(0.55), Activity.SM_ACTIVE: spread(0.3)},
    )
    cut = figures(process(100, busy=None), activities={}, mig_mode=True, migs=(mig,))
    told = shown(attribution.slices, cut)
    assert (told["cut"][Measure.DUTY_CYCLE], told["cut"][Measure.SM_ACTIVE]) == (0.55, 0.3)
    silent = shown(attribution.slices, replace(cut, migs=(replace(mig, activities={}),)))
    assert Measure.DUTY_CYCLE not in silent["cut"]


def test_trap_8_counters_that_another_client_holds_are_absent_until_they_are_free(
    world: StandInWorld, reader: CardReader
) -> None:
    world.line("err", fn="nvmlGpmSampleGet", ret=IN_USE).write()
    reader.read()
    held = reader.read().activities
    assert Activity.SM_ACTIVE not in held
    assert Activity.DUTY_CYCLE in held
    world.without("err").write()
    reader.read()
    assert Activity.SM_ACTIVE in reader.read().activities


def test_trap_9_a_driver_that_has_the_older_name_alone_tells_what_holds_clocks_back(
    world: StandInWorld, reader: CardReader
) -> None:
    world.line("err", fn="nvmlDeviceGetCurrentClocksEventReasons", ret=13).card(0, reasons=4).write()
    held_back = reader.read().held_back
    assert held_back is not None
    assert {reason.value for reason, share in held_back.items() if share} == {"software_power_cap"}


def test_trap_11_a_pod_with_many_series_is_one_pod() -> None:
    limits = {"nvidia.com/gpu": "2"}
    both = grant(0, 1000, 10) + grant(1, 1000, 10) + ";"
    pod = pod_manifest(granted=both * 2, containers=[container("one", limits), container("two", limits)])
    found = of((Watched.NODES, node_manifest(cards=2)), (Watched.PODS, pod))
    assert len(found["gputide_slice_framebuffer_granted_bytes"]) == 4
    assert set(found["gputide_card_tenants"].values()) == {1.0}


def test_trap_12_tenants_of_a_card_never_show_more_together_than_the_card() -> None:
    attribution = attribute(shared_card(3, (0, 100), (1, 200)), NOW)
    told = shown(attribution.slices, figures(process(100, 20 * GIB, 0.4), process(200, 10 * GIB, 0.2), duty=0.6))
    assert sum(one[Measure.DUTY_CYCLE] for one in told.values()) == pytest.approx(0.6)
    assert sum(one[Measure.FRAMEBUFFER_USED] for one in told.values()) == 30 * GIB
    assert all(Measure.POWER not in one for one in told.values())


def test_trap_14_a_burst_between_two_readings_stays_in_the_peak(world: StandInWorld, reader: CardReader) -> None:
    reader.read()
    for used, duty in ((10 * GIB, 0), (70 * GIB, 100), (10 * GIB, 0)):
        world.card(0, used=used, util=duty).write()
        reader.sample()
    told = reader.read().activities
    assert (told[Activity.FRAMEBUFFER_USED].peak, told[Activity.DUTY_CYCLE].peak) == (70 * GIB, 1.0)
    assert told[Activity.DUTY_CYCLE].mean < 0.5


def test_trap_16_a_driver_that_fails_to_list_processes_makes_nobody_idle() -> None:
    attribution = attribute(shared_card(2, (0, 100)), NOW)
    told = shown(attribution.slices, figures(processes=None))
    assert told == {"pod-0": {}, "pod-1": {}}


def test_trap_16_a_card_that_hangs_shows_no_figure_and_says_that_it_hangs() -> None:
    reading = CardReading(
        identity=identity(0), state=CardState.HUNG, figures=figures(), age_seconds=90.0, is_new=False, xids={}
    )
    families = {
        family.name: family
        for family in CardFamilies(cluster="c1", node="n1").of(
            CardsReading(versions=LibraryVersions(), cards=(reading,))
        )
    }
    assert "gputide_card_peak_duty_cycle_ratio" not in families
    states = families["gputide_card_reading_state"]
    told = dict(zip((labels[-1] for labels in states.labels), states.values.tolist(), strict=True))
    assert told == {"ok": 0.0, "hung": 1.0, "lost": 0.0}


def test_trap_17_repeats_of_an_xid_grow_a_counter_and_no_event_is_none() -> None:
    names = ("gputide_card_xid_errors_total", "gputide_card_xid_events_total")
    reading = CardReading(
        identity=identity(0), state=CardState.OK, figures=figures(), age_seconds=0.1, is_new=True, xids={79: 3, 31: 1}
    )
    for xids, by_code, events in (({79: 3, 31: 1}, [1.0, 3.0], [4.0]), ({}, None, [0.0]), (None, None, None)):
        cards = CardsReading(versions=LibraryVersions(), cards=(replace(reading, xids=xids),))
        families = {family.name: family for family in CardFamilies(cluster="c1", node="n1").of(cards)}
        told = [families[name].values.tolist() if name in families else None for name in names]
        assert told == [by_code, events]


def test_trap_18_what_only_grows_is_a_counter_and_nothing_else_is() -> None:
    for family in CARD_FAMILIES:
        assert (family.kind is FamilyKind.COUNTER) == family.name.endswith("_total"), family.name


def test_trap_19_cards_that_change_their_numbers_at_a_reboot_keep_their_tenants() -> None:
    rows = [row("a", handed(card_id(0))), row("b", handed(card_id(1)))]
    before = view(cards=[known(0), known(1)], rows=rows, pods=[facts("a", 1), facts("b", 2)])
    swapped = [replace(known(0), index=1, minor=1), replace(known(1), index=0, minor=0)]
    after = replace(before, cards=tuple(swapped))
    assert attribute(after, NOW).slices == attribute(before, NOW).slices


def test_trap_21_a_transcoder_that_answers_by_its_engines_is_believed() -> None:
    video = tenant("video-0")
    own = {DUTY: 0.0, SM: 0.0, Measure.REQUEST_RATE: 40.0}
    for slice_engines, card_engines in (({Measure.ENCODER: 0.8}, {}), ({}, {Measure.DECODER: 0.6})):
        believed = after(CrossChecks(), repeated({video: {**own, **slice_engines}}, {DUTY: 0.0, **card_engines}))
        assert checks_of(believed) == set()
    idle_engines = after(CrossChecks(), repeated({video: own}, {DUTY: 0.0, Measure.ENCODER: 0.0}))
    assert checks_of(idle_engines) == {"zero_while_serving"}


def test_trap_21_a_transcoder_on_a_shared_card_shows_its_engines() -> None:
    attribution = attribute(shared_card(2, (0, 100)), NOW)
    busy = replace(process(100, busy=0.0), encoder_busy=spread(0.7), decoder_busy=spread(0.4))
    told = shown(attribution.slices, figures(busy, duty=0.0))
    assert (told["pod-0"][Measure.ENCODER], told["pod-0"][Measure.DECODER]) == (0.7, 0.4)
    assert told["pod-0"][Measure.DUTY_CYCLE] == 0.0


def test_trap_21_a_transcoder_is_seen_at_its_cards_engines(world: StandInWorld, reader: CardReader) -> None:
    world.card(0, util=0, gpm={**GPM, 2: 0}, enc=80, dec=60).write()
    reader.read()
    told = reader.read().activities
    assert told[Activity.SM_ACTIVE].mean == 0.0
    assert (told[Activity.ENCODER].mean, told[Activity.DECODER].mean) == (0.8, 0.6)
