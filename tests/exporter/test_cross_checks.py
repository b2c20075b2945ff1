"""Counters that lie are told from counters that are right about odd work; every trap here has caught somebody."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analyzer import trust
from exporter.collector import Collector, Snapshot
from exporter.cross_checks.checks import CROSS_CHECK_FAMILIES, CrossChecks
from exporter.cross_checks.rules import CHECKS
from exporter.families import Family, FamilyKind
from exporter.reader import InventoryChange, Reading
from fleet.inventory import Card, CardId, CardModelName, Grant
from fleet.schema import Measure
from fleet.units import GIB
from fleet.usage import CardKey, SliceKey
from tests.exporter.builders import T0, grant_of

A10 = CardModelName("NVIDIA A10")
CARD = CardKey(cluster="c1", node="node-a", card=CardId("GPU-a"), card_model=A10)
DUTY, SM, USED, POWER = Measure.DUTY_CYCLE, Measure.SM_ACTIVE, Measure.FRAMEBUFFER_USED, Measure.POWER
SECONDS = 15
REMARKS = {check.name for check in CHECKS if not check.distrusts}


def tenant(pod: str, card: str = "GPU-a") -> SliceKey:
    return SliceKey(
        cluster="c1",
        namespace="team",
        pod=pod,
        container="server",
        node="node-a",
        card=CardId(card),
        card_model=A10,
    )


def grant(key: SliceKey, granted_bytes: int = 24 * GIB) -> Grant:
    return grant_of(key, framebuffer_granted_bytes=granted_bytes)


def snapshot(
    number: int,
    slices: Mapping[SliceKey, Mapping[Measure, float]],
    card: Mapping[Measure, float],
    *,
    grants: Sequence[Grant] | None = None,
    families: tuple[Family, ...] = (),
) -> Snapshot:
    """One card with its tenants, as the collector would hand it over; every tenant has a grant unless told."""
    measures = sorted({measure for values in slices.values() for measure in values})
    reading = Reading(
        at=T0 + timedelta(seconds=SECONDS * number),
        slices=tuple(slices),
        slice_values={
            measure: np.array([values.get(measure, np.nan) for values in slices.values()]) for measure in measures
        },
        cards=(CARD,),
        card_values={measure: np.array([value]) for measure, value in card.items()},
    )
    return Snapshot(
        number=number,
        reading=reading,
        cards=(Card(card=CARD.card, card_model=A10, framebuffer_bytes=24 * GIB, node=CARD.node, cluster=CARD.cluster),),
        nodes=(),
        grants=tuple(grants if grants is not None else map(grant, slices)),
        taken_at_seconds=float(number),
        families=families,
    )


def after(checks: CrossChecks, snapshots: Sequence[Snapshot]) -> dict[tuple[str, str, str], float]:
    """What the last snapshot shows: (pod or "", counter, check) to value, trust and remarks alike."""
    families: tuple[Family, ...] = ()
    for one in snapshots:
        families = checks(one)
    return {
        (labels[family.label_names.index("pod")], labels[-2], labels[-1]): value
        for family in families[:2]
        for labels, value in zip(family.labels, family.values.tolist(), strict=True)
        if not np.isnan(value)
    }


def repeated(
    slices: Mapping[SliceKey, Mapping[Measure, float]], card: Mapping[Measure, float], times: int = 5, **more
) -> list[Snapshot]:
    return [snapshot(number, slices, card, **more) for number in range(times)]


def findings(shown: Mapping[tuple[str, str, str], float]) -> set[tuple[str, str]]:
    """What fails, as (pod or "", check): a check that distrusts is shown as 0, a remark that is made as 1."""
    return {(pod, check) for (pod, _, check), value in shown.items() if check and value == (check in REMARKS)}


def checks_of(shown: Mapping[tuple[str, str, str], float], *, distrusting: bool = True) -> set[str]:
    return {check for _, check in findings(shown) if (check not in REMARKS) is distrusting}


def test_a_zero_under_full_load_is_not_believed() -> None:
    web = tenant("web-0")
    shown = after(CrossChecks(), repeated({web: {DUTY: 0.0}}, {DUTY: 0.97}))
    assert shown["web-0", "duty_cycle_ratio", "container_zero_while_card_busy"] == 0.0
    assert ("web-0", "duty_cycle_ratio", "") not in shown


def test_an_idle_container_beside_a_busy_one_is_believed() -> None:
    idle, busy = tenant("idle-0"), tenant("busy-0")
    shown = after(CrossChecks(), repeated({idle: {DUTY: 0.0}, busy: {DUTY: 0.9}}, {DUTY: 0.92}))
    assert shown["idle-0", "duty_cycle_ratio", ""] == 1.0
    assert shown["busy-0", "duty_cycle_ratio", ""] == 1.0


def test_a_zero_is_not_judged_while_a_tenant_of_the_card_is_unseen() -> None:
    seen, unseen = tenant("seen-0"), tenant("unseen-0")
    checks = CrossChecks()
    shown = after(checks, repeated({seen: {DUTY: 0.0}}, {DUTY: 0.9}, grants=[grant(seen), grant(unseen)]))
    assert findings(shown) == set()


@pytest.mark.parametrize("sm_active", [0.01, 0.15, 0.24], ids=["one-tiny-kernel", "ranks-wait", "just-below"])
def test_a_full_duty_cycle_at_low_sm_activity_is_remarked_and_believed(sm_active: float) -> None:
    train = tenant("train-0")
    checks = CrossChecks()
    shown = after(checks, repeated({train: {DUTY: 1.0, SM: sm_active}}, {DUTY: 1.0, SM: sm_active}))
    assert shown["train-0", "duty_cycle_ratio", "spinning"] == 1.0
    assert shown["train-0", "duty_cycle_ratio", ""] == 1.0
    assert shown["train-0", "sm_active_ratio", ""] == 1.0
    assert checks_of(shown) == set()


def test_a_working_card_is_looked_at_and_not_remarked() -> None:
    shown = after(CrossChecks(), repeated({tenant("train-0"): {DUTY: 1.0, SM: 0.8}}, {DUTY: 1.0, SM: 0.8}))
    assert shown["train-0", "duty_cycle_ratio", "spinning"] == 0.0


def test_a_transcoder_is_believed() -> None:
    video = tenant("video-0")
    engines = {DUTY: 0.0, SM: 0.0, Measure.ENCODER: 0.8, Measure.DECODER: 0.6}
    checks = CrossChecks()
    shown = after(checks, repeated({video: {DUTY: 0.0, SM: 0.0}}, engines))
    assert findings(shown) == set()
    assert shown["", "encoder_ratio", ""] == 1.0


def test_more_framebuffer_than_granted_is_remarked() -> None:
    # Several processes of one container that read a stale count: each stays below the limit, together they don't.
    worker = tenant("worker-0")
    checks = CrossChecks()
    snapshots = repeated({worker: {USED: 14.0 * GIB}}, {USED: 14.5 * GIB}, grants=[grant(worker, 10 * GIB)])
    shown = after(checks, snapshots)
    assert shown["worker-0", "framebuffer_used_bytes", "framebuffer_above_grant"] == 1.0
    assert checks_of(shown) == set()


def test_tenants_that_hold_more_than_their_card_are_not_believed() -> None:
    one, two = tenant("one-0"), tenant("two-0")
    checks = CrossChecks()
    shown = after(checks, repeated({one: {USED: 9.0 * GIB}, two: {USED: 9.0 * GIB}}, {USED: 16.0 * GIB}))
    assert checks_of(shown) == {"containers_above_card"}


def test_processes_that_hold_more_than_their_card_are_not_believed() -> None:
    processes = Family(
        name="gputide_slice_framebuffer_of_driver_bytes",
        kind=FamilyKind.GAUGE,
        help_text="Framebuffer of a container's processes, bytes.",
        label_names=("card", "pod"),
        labels=(("GPU-a", "one-0"), ("GPU-a", "two-0")),
        values=np.array([9.0 * GIB, 9.0 * GIB]),
    )
    checks = CrossChecks()
    shown = after(checks, repeated({}, {USED: 16.0 * GIB}, families=(processes,)))
    assert checks_of(shown) == {"processes_above_card"}
    shown = after(checks, repeated({}, {USED: 18.5 * GIB}, times=20, families=(processes,)))
    assert checks_of(shown) == set()


@pytest.mark.parametrize(
    ("measure", "value", "check"),
    [
        (DUTY, 1.4, "above_one"),
        (DUTY, -0.1, "out_of_range"),
        (USED, float(2**64 - 4096), "out_of_range"),
        (POWER, -1.0, "out_of_range"),
    ],
)
def test_an_impossible_value_is_told_at_once(measure: Measure, value: float, check: str) -> None:
    checks = CrossChecks()
    shown = after(checks, [snapshot(0, {tenant("web-0"): {measure: value}}, {})])
    assert check in checks_of(shown)


def test_more_framebuffer_than_the_card_has_is_not_believed() -> None:
    checks = CrossChecks()
    shown = after(checks, repeated({}, {USED: 25.0 * GIB}))
    assert checks_of(shown) == {"framebuffer_above_card"}


def test_mebibytes_taken_for_bytes_are_not_believed() -> None:
    checks = CrossChecks()
    shown = after(checks, repeated({tenant("web-0"): {USED: 8192.0}}, {}))
    assert checks_of(shown) == {"framebuffer_scale"}


def test_kernels_without_framebuffer_are_not_believed() -> None:
    checks = CrossChecks()
    shown = after(checks, repeated({tenant("web-0"): {DUTY: 0.5, USED: 0.0}}, {DUTY: 0.5}))
    assert checks_of(shown) == {"framebuffer_zero_while_working"}
    idle = CrossChecks()
    shown = after(idle, repeated({tenant("web-0"): {DUTY: 0.0, USED: 0.0}}, {DUTY: 0.0}))
    assert checks_of(shown) == set()


def test_sm_activity_without_kernels_is_not_believed() -> None:
    checks = CrossChecks()
    shown = after(checks, repeated({}, {DUTY: 0.2, SM: 0.6}))
    assert checks_of(shown) == {"sm_active_above_duty_cycle"}


def test_one_odd_reading_is_no_finding() -> None:
    web = tenant("web-0")
    fine = repeated({web: {DUTY: 0.5}}, {DUTY: 0.5}, times=6)
    fine[3] = snapshot(3, {web: {DUTY: 0.0}}, {DUTY: 0.5})
    checks = CrossChecks()
    shown = after(checks, fine)
    assert findings(shown) == set()


def test_trust_comes_back_when_the_odd_readings_are_long_past() -> None:
    web = tenant("web-0")
    checks = CrossChecks()
    shown = after(checks, repeated({web: {DUTY: 0.0}}, {DUTY: 0.9}))
    assert checks_of(shown) == {"container_zero_while_card_busy"}
    shown = after(checks, repeated({web: {DUTY: 0.9}}, {DUTY: 0.9}, times=20))
    assert findings(shown) == set()
    assert shown["web-0", "duty_cycle_ratio", ""] == 1.0


def frozen_run(readings: int, duty: Sequence[float], power: Sequence[float]) -> list[Snapshot]:
    return [
        snapshot(number, {}, {DUTY: duty[number % len(duty)], SM: 0.25, POWER: power[number % len(power)]})
        for number in range(readings)
    ]


def test_a_value_that_stands_still_while_the_power_moves_is_frozen() -> None:
    checks = CrossChecks()
    shown = after(checks, frozen_run(21, [0.37], [110.0, 180.0]))
    assert checks_of(shown) == {"frozen"}
    shown = after(checks, [snapshot(21, {}, {DUTY: 0.38, SM: 0.25, POWER: 110.0})])
    assert checks_of(shown) == set()


@pytest.mark.parametrize(
    ("duty", "power", "readings"),
    [
        pytest.param([0.37], [110.0, 111.0], 60, id="steady-power"),
        pytest.param([0.37, 0.38], [110.0, 180.0], 60, id="moves"),
        pytest.param([0.37], [110.0, 180.0], 19, id="too-short"),
    ],
)
def test_a_steady_load_is_not_frozen(duty: list[float], power: list[float], readings: int) -> None:
    checks = CrossChecks()
    shown = after(checks, frozen_run(readings, duty, power))
    assert findings(shown) == set()


def test_a_card_at_full_load_is_not_frozen() -> None:
    checks = CrossChecks()
    full = [snapshot(number, {}, {DUTY: 1.0, SM: 1.0, POWER: 200.0 + 50 * (number % 2)}) for number in range(40)]
    shown = after(checks, full)
    assert findings(shown) == set()


def test_what_was_not_measured_is_not_judged() -> None:
    shown = after(CrossChecks(), repeated({tenant("web-0"): {USED: 2.0 * GIB}}, {}))
    assert set(shown) == {
        ("web-0", "framebuffer_used_bytes", ""),
        ("web-0", "framebuffer_used_bytes", "framebuffer_above_grant"),
    }


def test_history_follows_its_container_when_rows_move() -> None:
    web, other = tenant("web-0"), tenant("other-0", "GPU-b")
    checks = CrossChecks()
    lying = {web: {DUTY: 0.0}}
    shown = after(checks, repeated(lying, {DUTY: 0.9}, times=2))
    assert findings(shown) == set()
    shown = after(checks, [snapshot(2, {other: {DUTY: 0.5}, **lying}, {DUTY: 0.9})])
    assert findings(shown) == {("web-0", "container_zero_while_card_busy")}


def test_labels_stay_the_same_object_while_outcomes_change() -> None:
    web = tenant("web-0")
    checks = CrossChecks()
    first = checks(snapshot(0, {web: {DUTY: 0.5}}, {DUTY: 0.5}))
    second = checks(snapshot(1, {web: {DUTY: 7.0}}, {DUTY: 0.5}))
    assert all(one.labels is other.labels for one, other in zip(first, second, strict=True))
    assert not np.array_equal(first[0].values, second[0].values, equal_nan=True)


def test_comparisons_and_failures_are_counted() -> None:
    checks = CrossChecks()
    families = {}
    for one in repeated({tenant("web-0"): {DUTY: 0.0}}, {DUTY: 0.9}, times=4):
        families = {family.name: family for family in checks(one)}
    comparisons, failures = (
        dict(zip(families[name].labels, families[name].values.tolist(), strict=True))
        for name in ("gputide_cross_check_comparisons_total", "gputide_cross_check_failures_total")
    )
    assert comparisons["container_zero_while_card_busy",] == 4.0
    assert failures["container_zero_while_card_busy",] == 4.0
    assert comparisons["spinning",] == 0.0
    assert {family.name for family in CROSS_CHECK_FAMILIES} == set(families)


class Told:
    """A reader that gives what a test wants to say."""

    def __init__(self, readings: Sequence[Reading]) -> None:
        self._readings = list(readings)

    def read(self, deadline_seconds: float) -> Reading | None:
        return self._readings.pop(0) if self._readings else None

    def close(self) -> None:
        self._readings = []


def test_the_collector_shows_what_its_derivations_found() -> None:
    web = tenant("web-0")
    told = snapshot(0, {web: {DUTY: 1.5}}, {})
    reading = replace(told.reading, change=InventoryChange(cards=told.cards, grants_started=told.grants))
    collector = Collector(Told([reading]), interval_seconds=0.0, deadline_seconds=1.0, derivations=(CrossChecks(),))
    collector.collect()
    taken = collector.state().snapshot
    assert taken is not None
    trusted = next(family for family in taken.families if family.name == "gputide_counter_trusted")
    assert np.nansum(trusted.values == 0.0) == 1


any_value = st.one_of(
    st.floats(), st.sampled_from([0.0, 1.0, 100.0, -1.0, float(2**64), float(2**63), np.nan]), st.floats(0.0, 1.0)
)


@given(st.lists(st.tuples(any_value, any_value, any_value, any_value), min_size=1, max_size=4))
def test_no_value_is_too_odd_to_be_judged(rows: list[tuple[float, float, float, float]]) -> None:
    checks = CrossChecks()
    for number, (duty, sm, used, power) in enumerate(rows):
        values = {DUTY: duty, SM: sm, USED: used, POWER: power}
        families = checks(snapshot(number, {tenant(f"web-{number}"): values, tenant("stays-0"): values}, values))
        shown = np.concatenate([family.values for family in families[:2]])
        assert set(shown[~np.isnan(shown)].tolist()) <= {0.0, 1.0}


def test_live_readings_and_stored_windows_know_the_same_checks() -> None:
    names = {name for (name,) in CrossChecks()(snapshot(0, {}, {}))[-1].labels}
    # A percentage that was divided twice, or a zero that lasts, shows in a long history only.
    of_days = {"scale_off_by_100"} | {name for name in trust.CHECKS if name.startswith("zero_")} - {
        "zero_while_serving"
    }
    assert names & set(trust.CHECKS) == set(trust.CHECKS) - of_days
