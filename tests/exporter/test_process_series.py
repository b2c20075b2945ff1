"""Single processes are shown where they are asked for: bounded, named as far as a name can be shown, or not at all."""

import os
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.attribution.records import AttributedSlice, GrantSource
from exporter.families import Family, FamilyKind
from exporter.nvml.figures import CardFigures, ProcessFigures, ProcessKind, Spread
from exporter.process_series import FAMILIES, ProcessSeries
from exporter.process_stat import ProcessStats, printable
from fleet.inventory import Card, CardId, CardModelName, Grant, Priority
from tests.exporter.host_processes import HostProcesses

H100 = CardModelName("NVIDIA H100 80GB HBM3")
CARD = Card(card=CardId("GPU-a"), card_model=H100, framebuffer_bytes=80, node="gpu-1", cluster="c")
TICKS = os.sysconf("SC_CLK_TCK")
HALF = Spread(mean=0.5, peak=0.75, samples=2)


@pytest.fixture
def host(tmp_path: Path) -> HostProcesses:
    return HostProcesses(tmp_path / "proc")


def stats(host: HostProcesses) -> ProcessStats:
    return ProcessStats(str(host.folder))


def process(pid: int, held: int | None = None, **more: object) -> ProcessFigures:
    return ProcessFigures(
        pid=pid, kinds=frozenset({ProcessKind.COMPUTE}), framebuffer_bytes=held, **more  # type: ignore[arg-type]
    )  # fmt: skip


def of_tenant(*pids: int) -> AttributedSlice:
    grant = Grant(
        cluster="c",
        namespace="team",
        pod="train-0",
        container="main",
        workload="train",
        workload_kind="Job",
        node="gpu-1",
        card=CARD.card,
        card_model=H100,
        framebuffer_bytes=80,
        framebuffer_granted_bytes=40,
        compute_granted_ratio=0.5,
        priority=Priority.NORMAL,
        started_at=datetime(2026, 1, 5, tzinfo=UTC),
    )
    return AttributedSlice(
        grant=grant,
        pod_uid="u",
        instances=(),
        sources=(GrantSource.POD_RESOURCES,),
        is_certain=True,
        is_amount_known=True,
        pids=pids,
    )


def shown(
    host: HostProcesses, *processes: ProcessFigures, processes_max: int = 10, slices: tuple[AttributedSlice, ...] = ()
) -> Mapping[str, Family]:
    series = ProcessSeries(node="gpu-1", processes_max=processes_max, stats=stats(host))
    families = series.of({CARD.card: CardFigures(processes=processes)}, {CARD.card: CARD}, slices)
    return {family.name.removeprefix("gputide_process_"): family for family in families}


def values(family: Family) -> dict[str, float]:
    """Value by process id."""
    place = family.label_names.index("pid")
    return {labels[place]: value for labels, value in zip(family.labels, family.values.tolist(), strict=True)}


def info(families: Mapping[str, Family]) -> list[dict[str, str]]:
    return [dict(zip(families["info"].label_names, labels, strict=True)) for labels in families["info"].labels]


def test_a_process_has_its_figures_its_name_and_its_container(host: HostProcesses) -> None:
    host.put(100, name=b"python3", user=3 * TICKS, system=TICKS, started=50 * TICKS, pages=10)
    told = process(
        100, 30, framebuffer_peak_bytes=40, sm_busy=HALF, memory_busy=HALF, encoder_busy=HALF, decoder_busy=HALF,
        accounted_sm_busy=0.3, accounted_memory_busy=0.03,
    )  # fmt: skip
    families = shown(host, told, slices=(of_tenant(100),))
    assert set(families) == {family.name.removeprefix("gputide_process_") for family in FAMILIES}
    (labels,) = info(families)
    assert (labels["name"], labels["kind"]) == ("python3", "compute")
    assert (labels["namespace"], labels["pod"], labels["container"]) == ("team", "train-0", "main")
    assert values(families["framebuffer_used_bytes"]) == {"100": 30.0}
    assert values(families["duty_cycle_ratio"]) == {"100": 0.5}
    assert values(families["lifetime_duty_cycle_ratio"]) == {"100": 0.3}
    assert values(families["lifetime_memory_copy_ratio"]) == {"100": 0.03}
    assert values(families["cpu_seconds_total"]) == {"100": 4.0}
    assert families["cpu_seconds_total"].kind is FamilyKind.COUNTER
    assert values(families["resident_bytes"]) == {"100": 10.0 * os.sysconf("SC_PAGE_SIZE")}
    assert values(families["started_timestamp_seconds"]) == {"100": 1_700_000_050.0}


def test_of_too_many_those_that_hold_most_are_shown_and_the_rest_is_counted(host: HostProcesses) -> None:
    families = shown(host, *(process(pid, held=pid) for pid in range(1, 8)), processes_max=3)
    assert set(values(families["framebuffer_used_bytes"])) == {"7", "6", "5"}
    assert families["left_out_count"].values.tolist() == [4.0]


def test_what_the_driver_does_not_tell_is_absent_and_not_zero(host: HostProcesses) -> None:
    assert set(shown(host, process(100))) == {"info", "left_out_count"}


def test_where_the_hosts_processes_are_not_seen_nobody_gets_anothers_name(host: HostProcesses) -> None:
    # In a namespace of its own the driver's process id is some other process, or the exporter itself.
    host.hide_host()
    host.put(100, name=b"gputide")
    families = shown(host, process(100, 30))
    assert info(families)[0]["name"] == ""
    assert set(families) == {"info", "framebuffer_used_bytes", "left_out_count"}


def test_process_on_two_instances_is_two_series_and_one_process(host: HostProcesses) -> None:
    host.put(100, name=b"python3", user=TICKS)
    families = shown(host, *(process(100, 5, gpu_instance=number, compute_instance=0) for number in (1, 2)))
    assert [labels[3] for labels in families["framebuffer_used_bytes"].labels] == ["1", "2"]
    assert values(families["cpu_seconds_total"]) == {"100": 1.0}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (b'") 1 (x "\\\n', '") 1 (x "\\?'),
        (b"\x1b[2J\x07\x00", "?[2J??"),
        (b"\xff\xfe", "??"),
        ("\u202eevil\u200b".encode(), "?evil?"),
        ("训练 1".encode(), "训练 1"),
    ],
)
def test_hostile_name_is_shown_without_what_cannot_be_printed(host: HostProcesses, name: bytes, text: str) -> None:
    host.put(100, name=name, pages=7)
    families = shown(host, process(100, 30))
    assert info(families)[0]["name"] == text
    assert values(families["resident_bytes"]) == {"100": 7.0 * os.sysconf("SC_PAGE_SIZE")}


@given(st.binary(max_size=40))
def test_any_name_becomes_printable_text(name: bytes) -> None:
    assert printable(name).isprintable()


@given(st.binary(max_size=300))
def test_no_line_is_too_odd_to_be_read(tmp_path_factory: pytest.TempPathFactory, line: bytes) -> None:
    folder = tmp_path_factory.getbasetemp() / "odd"
    (folder / "7").mkdir(parents=True, exist_ok=True)
    (folder / "7" / "stat").write_bytes(line)
    found = ProcessStats(str(folder)).of(7)
    assert found is None or found.resident_bytes >= 0


def test_process_that_is_gone_has_the_drivers_figures_alone(host: HostProcesses) -> None:
    families = shown(host, process(4711, 30))
    assert set(families) == {"info", "framebuffer_used_bytes", "left_out_count"}


def test_labels_are_the_same_objects_until_a_process_comes(host: HostProcesses) -> None:
    series = ProcessSeries(node="gpu-1", processes_max=9, stats=stats(host))
    one, two = CardFigures(processes=(process(1, 1),)), CardFigures(processes=(process(1, 2),))
    first, again = (series.of({CARD.card: told}, {CARD.card: CARD}, ()) for told in (one, two))
    assert all(before.labels is now.labels for before, now in zip(first, again, strict=True))
