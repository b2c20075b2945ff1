"""Processes of a card: their lists grow while they are read, their utilisation comes in samples."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from exporter.nvml.card import CardReader
from exporter.nvml.figures import ProcessFigures, ProcessKind
from exporter.nvml.library import NvmlLibrary
from tests.exporter.nvml.drivers import card_reader, started_library
from tests.exporter.nvml.standin import A100, DATA_VARIABLE, GIB, T4, StandInWorld

NO_PERMISSION, NOT_SUPPORTED = 4, 3
LISTS = (
    "nvmlDeviceGetComputeRunningProcesses",
    "nvmlDeviceGetGraphicsRunningProcesses",
    "nvmlDeviceGetMPSComputeRunningProcesses",
)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StandInWorld:
    monkeypatch.setenv(DATA_VARIABLE, str(tmp_path / "world.txt"))
    return StandInWorld(tmp_path / "world.txt")


@pytest.fixture
def library(world: StandInWorld) -> Iterator[NvmlLibrary]:
    world.write()
    with started_library() as library:
        yield library


def processes(reader: CardReader) -> dict[int, ProcessFigures]:
    found = reader.read().processes
    assert found is not None
    assert len({(one.pid, one.gpu_instance, one.compute_instance) for one in found}) == len(found)
    return {one.pid: one for one in found}


def test_card_without_processes_has_none_and_says_so(world: StandInWorld, library: NvmlLibrary) -> None:
    world.card(**T4).write()
    assert card_reader(library).read().processes == ()


def test_process_that_appears_between_size_and_list_is_found(world: StandInWorld, library: NvmlLibrary) -> None:
    world.card(**T4).line("proc", dev=0, pid=1, mem=GIB).line("proc", dev=0, pid=2, mem=GIB, late=1).write()
    assert processes(card_reader(library)).keys() == {1, 2}


def test_more_processes_than_there_was_room_for_are_all_found(world: StandInWorld, library: NvmlLibrary) -> None:
    # pynvml leaves room for twice as many and five more; then the driver answers "insufficient size".
    world.card(**T4).line("proc", dev=0, pid=1, mem=GIB)
    for pid in range(2, 60):
        world.line("proc", dev=0, pid=pid, mem=GIB, sm=1, late=1)
    world.write()
    found = processes(card_reader(library))
    assert found.keys() == set(range(1, 60))
    assert all(found[pid].sm_busy is not None for pid in range(2, 60))


def test_process_in_two_lists_is_one_with_both_kinds(world: StandInWorld, library: NvmlLibrary) -> None:
    world.card(**T4)
    for kind in ("compute", "graphics"):
        world.line("proc", dev=0, pid=7, mem=GIB, kind=kind)
    world.line("proc", dev=0, pid=8, mem=2 * GIB, kind="mps").write()
    found = processes(card_reader(library))
    assert found[7].kinds == {ProcessKind.COMPUTE, ProcessKind.GRAPHICS}
    assert found[7].framebuffer_bytes == GIB
    assert found[8].kinds == {ProcessKind.MPS}


def test_framebuffer_that_is_not_told_is_absent(world: StandInWorld, library: NvmlLibrary) -> None:
    world.card(**T4).line("proc", dev=0, pid=7, mem=2**64 - 1).write()
    assert processes(card_reader(library))[7].framebuffer_bytes is None


def test_busy_process_tells_its_share_of_time(world: StandInWorld, library: NvmlLibrary) -> None:
    world.card(**T4).line("proc", dev=0, pid=7, mem=GIB, sm=30, memutil=10, enc=5, dec=2).write()
    found = processes(card_reader(library))[7]
    shares = [found.sm_busy, found.memory_busy, found.encoder_busy, found.decoder_busy]
    assert [share.mean if share else None for share in shares] == pytest.approx([0.3, 0.1, 0.05, 0.02])


def test_share_of_time_above_100_percent_is_absent(world: StandInWorld, library: NvmlLibrary) -> None:
    world.card(**T4).line("proc", dev=0, pid=7, mem=GIB, sm=2**32 - 1, memutil=4).write()
    found = processes(card_reader(library))[7]
    assert found.sm_busy is None
    assert found.memory_busy is not None


def test_process_without_samples_is_idle_only_once_it_was_there_before(
    world: StandInWorld, library: NvmlLibrary
) -> None:
    world.card(**T4).line("proc", dev=0, pid=7, mem=GIB).line(
        "err", fn="nvmlDeviceGetProcessUtilization", ret=6
    ).write()
    reader = card_reader(library)
    assert processes(reader)[7].sm_busy is None
    idle = processes(reader)[7].sm_busy
    assert idle is not None
    assert idle.peak == 0.0


def test_utilisation_that_the_driver_refuses_is_absent_and_not_idle(world: StandInWorld, library: NvmlLibrary) -> None:
    world.card(**T4).line("proc", dev=0, pid=7, mem=GIB)
    world.line("err", fn="nvmlDeviceGetProcessUtilization", ret=NOT_SUPPORTED).write()
    reader = card_reader(library)
    reader.read()
    assert processes(reader)[7].sm_busy is None


def test_peak_of_accounting_is_told_where_it_is_switched_on(world: StandInWorld, library: NvmlLibrary) -> None:
    world.card(**T4, accounting=1).line("proc", dev=0, pid=7, mem=GIB).line("proc", dev=0, pid=8, mem=GIB)
    world.line("acct", dev=0, pid=7, maxmem=3 * GIB, time=5000).write()
    found = processes(card_reader(library))
    assert (found[7].framebuffer_peak_bytes, found[7].accounted_seconds) == (3 * GIB, 5.0)
    assert (found[8].framebuffer_peak_bytes, found[8].accounted_seconds) == (None, None)


def test_accounting_without_a_peak_is_absent(world: StandInWorld, library: NvmlLibrary) -> None:
    world.card(**T4, accounting=1).line("proc", dev=0, pid=7, mem=GIB)
    world.line("acct", dev=0, pid=7, maxmem=2**64 - 1, time=5000).write()
    assert processes(card_reader(library))[7].framebuffer_peak_bytes is None


def test_lists_that_are_refused_are_absent_and_not_empty(world: StandInWorld, library: NvmlLibrary) -> None:
    world.card(**T4).line("proc", dev=0, pid=7, mem=GIB)
    for name in LISTS:
        for version in ("_v2", "_v3"):
            world.line("err", fn=name + version, ret=NO_PERMISSION)
    world.write()
    assert card_reader(library).read().processes is None


def test_driver_without_the_newest_lists_is_asked_for_the_older_ones(world: StandInWorld, library: NvmlLibrary) -> None:
    world.card(**T4).line("proc", dev=0, pid=7, mem=GIB)
    for name in LISTS:
        world.line("err", fn=f"{name}_v3", ret=13)
    world.write()
    assert processes(card_reader(library)).keys() == {7}


def test_processes_under_mig_name_their_instance(world: StandInWorld, library: NvmlLibrary) -> None:
    world.card(**A100, mig=1)
    for gpu_instance in (1, 2):
        world.line("mig", dev=0, uuid=f"MIG-{gpu_instance}", gi=gpu_instance, ci=0, total=5 * GIB, used=GIB)
        world.line("proc", dev=0, pid=10 + gpu_instance, mem=GIB, gi=gpu_instance, ci=0)
    world.write()
    found = processes(card_reader(library))
    assert {(one.pid, one.gpu_instance, one.compute_instance) for one in found.values()} == {(11, 1, 0), (12, 2, 0)}
    assert all(one.sm_busy is None for one in found.values())


def test_processes_under_mig_are_asked_of_the_instances_where_the_card_refuses(
    world: StandInWorld, library: NvmlLibrary
) -> None:
    world.card(**A100, mig=1).line("mig", dev=0, uuid="MIG-1", gi=1, ci=0, total=5 * GIB, used=GIB)
    world.line("proc", dev=0, pid=11, mem=GIB, gi=1, ci=0)
    for name in LISTS:
        for version in ("_v2", "_v3"):
            world.line("err", fn=name + version, ret=NO_PERMISSION, cardsonly=1)
    world.write()
    found = processes(card_reader(library))
    assert {(one.pid, one.gpu_instance) for one in found.values()} == {(11, 1)}
