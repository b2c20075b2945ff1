"""Processes of a card: their lists grow while they are read, their utilisation comes in samples."""

import time

import pytest

from exporter.nvml.calls import CardCalls
from exporter.nvml.cards import CardReader
from exporter.nvml.figures import ProcessFigures, ProcessKind
from exporter.nvml.library import NvmlLibrary
from exporter.nvml.processes import ProcessReader
from tests.exporter.nvml.drivers import card_reader, identity
from tests.exporter.nvml.standin import A100, GIB, T4, StandInWorld

NO_PERMISSION, NOT_SUPPORTED, UNKNOWN = 4, 3, 999
LISTS = (
    "nvmlDeviceGetComputeRunningProcesses",
    "nvmlDeviceGetGraphicsRunningProcesses",
    "nvmlDeviceGetMPSComputeRunningProcesses",
)


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
    assert found[7].framebuffer_peak_bytes == 3 * GIB
    assert found[8].framebuffer_peak_bytes is None


def test_accounting_tells_how_busy_a_process_was_all_its_life(world: StandInWorld, library: NvmlLibrary) -> None:
    world.card(**T4, accounting=1)
    for pid, busy in ((7, 30), (8, 2**32 - 1)):
        world.line("proc", dev=0, pid=pid, mem=GIB).line("acct", dev=0, pid=pid, util=busy, memutil=3, maxmem=GIB)
    world.write()
    found = processes(card_reader(library))
    assert (found[7].accounted_sm_busy, found[7].accounted_memory_busy) == (0.3, 0.03)
    assert found[8].accounted_sm_busy is None


def test_clock_that_is_set_back_makes_nobody_idle(world: StandInWorld, library: NvmlLibrary) -> None:
    now = [time.time()]
    reader = ProcessReader(CardCalls(library, identity(0)), wall_clock=lambda: now[0])
    world.card(**T4).line("proc", dev=0, pid=7, mem=GIB, sm=60).write()
    reader.read(())
    # The driver's stamps follow the host's clock, so nothing is newer than what was seen before.
    now[0] -= 3600
    world.line("err", fn="nvmlDeviceGetProcessUtilization", ret=6).write()
    (found,) = reader.read(()) or ()
    assert found.sm_busy is None
    world.without("err").write()
    (found,) = reader.read(()) or ()
    assert found.sm_busy is not None
    assert found.sm_busy.mean == pytest.approx(0.6)


def test_reading_that_comes_before_the_drivers_next_look_calls_nobody_idle(
    world: StandInWorld, library: NvmlLibrary
) -> None:
    now = [time.time()]
    reader = ProcessReader(CardCalls(library, identity(0)), wall_clock=lambda: now[0])
    world.card(**T4).line("proc", dev=0, pid=7, mem=GIB, sm=60).write()
    reader.read(())
    world.line("err", fn="nvmlDeviceGetProcessUtilization", ret=6).write()
    for seconds, busy in ((0.5, None), (4.0, 0.0)):
        now[0] += seconds
        (found,) = reader.read(()) or ()
        assert (None if found.sm_busy is None else found.sm_busy.mean) == busy


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


@pytest.mark.parametrize("name", LISTS)
def test_a_list_that_fails_this_time_is_not_taken_for_no_processes(
    world: StandInWorld, library: NvmlLibrary, name: str
) -> None:
    world.card(**T4).line("proc", dev=0, pid=7, mem=GIB, kind="mps")
    for version in ("_v2", "_v3"):
        world.line("err", fn=name + version, ret=UNKNOWN)
    world.write()
    reader = card_reader(library)
    assert reader.read().processes is None
    world.without("err").write()
    assert processes(reader).keys() == {7}


def test_processes_that_compute_are_listed_or_none_are(world: StandInWorld, library: NvmlLibrary) -> None:
    world.card(**T4).line("proc", dev=0, pid=7, mem=GIB)
    for version in ("_v2", "_v3"):
        world.line("err", fn=LISTS[0] + version, ret=NO_PERMISSION)
    world.write()
    assert card_reader(library).read().processes is None


def test_card_that_lists_no_graphics_or_mps_at_all_lists_the_rest(world: StandInWorld, library: NvmlLibrary) -> None:
    world.card(**T4).line("proc", dev=0, pid=7, mem=GIB)
    for name in LISTS[1:]:
        for version in ("_v2", "_v3"):
            world.line("err", fn=name + version, ret=NOT_SUPPORTED)
    world.write()
    assert processes(card_reader(library)).keys() == {7}


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
