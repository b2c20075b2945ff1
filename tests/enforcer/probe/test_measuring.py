"""Each measurement against a stand-in of CUDA's driver whose limits are known."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from enforcer.probe.cuda_driver import CudaDriver
from enforcer.probe.framebuffer import (
    FramebufferReading,
    LendingReading,
    measure_framebuffer,
    measure_lending,
    spill_bytes_left,
)
from enforcer.probe.run import (
    granted_by_environment,
    measure_compute,
    measure_gate,
    measure_pause,
    probe,
)
from fleet.errors import Refused, Unavailable
from fleet.units import MIB
from tests.regions.plain_regions import PlainProcess, PlainRegion, write_region

Maker = Callable[..., CudaDriver]
GIB = 1024 * MIB
CARD = 80 * GIB
SECONDS = 0.4
PATIENCE = 1.5
TRIES = 4


def framebuffer(gpu: CudaDriver, spill: int = 0) -> FramebufferReading:
    return measure_framebuffer(gpu, granted_bytes=4 * GIB, card_bytes=CARD, spill_bytes_max=spill)


def test_card_tells_its_uuid(gpu: Maker) -> None:
    assert gpu().card == "GPU-00112233-4455-6677-8899-aabbccddeeff"


def test_limit_is_found_to_the_byte_and_everything_is_given_back(gpu: Maker) -> None:
    card = gpu(limit_mib=4096)
    found = framebuffer(card)
    assert (found.told_bytes, found.allocated_bytes, found.is_refused) == (4 * GIB, 4 * GIB, True)
    assert (found.managed_escapes, found.spilled_bytes) == (False, 0)
    assert card.memory_info()[0] == 4 * GIB - 300 * MIB


def test_card_without_a_limit_is_filled_and_refuses_only_then(gpu: Maker) -> None:
    found = framebuffer(gpu())
    assert (found.allocated_bytes, found.spilled_bytes) == (CARD, 0)


def test_unified_memory_that_passes_by_the_limit_is_told(gpu: Maker) -> None:
    assert framebuffer(gpu(limit_mib=4096, managed=1)).managed_escapes is True


def lending(gpu: CudaDriver, *, card: int = 2 * GIB) -> LendingReading | None:
    found = measure_framebuffer(gpu, granted_bytes=None, card_bytes=card, spill_bytes_max=4 * GIB)
    return measure_lending(gpu, found, card)


def test_what_is_given_beyond_the_card_is_bounded(gpu: Maker) -> None:
    found = framebuffer(gpu(limit_mib=90 * 1024, spill=1), spill=2 * GIB)
    assert (found.spilled_bytes, found.is_refused) == (2 * GIB, False)


@pytest.mark.parametrize(
    ("meminfo", "files", "left_gib"),
    [
        ("MemTotal: 99 kB\nMemAvailable:   41943040 kB\n", {}, 20),
        ("MemAvailable: 41943040 kB\n", {"memory.max": "max", "memory.current": str(GIB)}, 20),
        ("MemAvailable: 41943040 kB\n", {"memory.max": str(9 * GIB), "memory.current": str(GIB)}, 4),
        ("MemAvailable: 41943040 kB\n", {"memory.max": str(GIB), "memory.current": str(2 * GIB)}, 0),
        ("MemAvailable: 4194304 kB\n",
         {"memory/memory.limit_in_bytes": str(9 * GIB), "memory/memory.usage_in_bytes": str(GIB)}, 2),
        ("MemTotal: 41943040 kB\n", {}, 0),
    ],
)  # fmt: skip
def test_host_keeps_half_of_what_it_has_left(
    tmp_path: Path, meminfo: str, files: dict[str, str], left_gib: int
) -> None:
    (tmp_path / "memory").mkdir()
    for name, text in {"meminfo": meminfo, **files}.items():
        (tmp_path / name).write_text(text)
    assert spill_bytes_left(tmp_path, tmp_path) == left_gib * GIB


@pytest.mark.parametrize("kept_mib", [0, 512])
def test_what_stays_on_the_card_and_how_fast_the_rest_comes_back_is_measured(gpu: Maker, kept_mib: int) -> None:
    """The context stays as well; of twice the card all that takes turns has to move."""
    found = lending(gpu(card_mib=2048, limit_mib=4096, spill=1, kept_mib=kept_mib, link_mb=20000))
    assert found is not None
    part = 4 * GIB / 64
    assert (kept_mib + 300) * MIB <= found.kept_bytes <= (kept_mib + 300) * MIB + 2 * part
    # A busy machine sleeps too long, never too short.
    assert 0.6 * 20e9 < found.bytes_per_second < 1.05 * 20e9


@pytest.mark.parametrize(
    ("settings", "card"),
    [({"spill": 1, "limit_mib": 2300}, 2 * GIB), ({"spill": 2, "limit_mib": 4096}, 2 * GIB), ({}, GIB)],
    ids=["too_little_lies_beyond", "it_stays_on_the_host", "the_card_is_larger_than_was_said"],
)
def test_what_does_not_take_turns_on_the_card_is_no_lending(gpu: Maker, settings: dict[str, object], card: int) -> None:
    assert lending(gpu(card_mib=2048, link_mb=20000, **settings), card=card) is None


@pytest.mark.parametrize("percent", [100, 50, 25])
def test_share_of_compute_is_measured(gpu: Maker, percent: int) -> None:
    card, granted = gpu(core_percent=percent), percent / 100
    most = granted * 1.25 + 0.01
    found = []
    # A busy machine wakes us late or makes the whole card seem slow; it does so at times, a wrong measure always.
    for _ in range(TRIES):
        found.append(measure_compute(card, granted_ratio=granted, seconds=SECONDS))
        if granted * 0.5 < found[-1].launched_ratio < most and (found[-1].graph_ratio or most) < most:
            break
    else:
        pytest.fail(f"never within {granted * 0.5} and {most}: {found}")


def test_graphs_that_pass_by_the_limiter_are_told(gpu: Maker) -> None:
    found = measure_compute(gpu(core_percent=20, graph_escapes=1), granted_ratio=0.2, seconds=SECONDS)
    assert found.launched_ratio < 0.3
    assert found.graph_ratio is not None
    assert found.graph_ratio > 2 * found.launched_ratio


def test_driver_without_graphs_leaves_them_out(gpu: Maker) -> None:
    assert measure_compute(gpu(no_graphs=1), granted_ratio=None, seconds=SECONDS).graph_ratio is None


@pytest.fixture
def region(tmp_path: Path) -> Path:
    path = tmp_path / "0f1e2d3c-1111-4000-8000-000000000001.cache"
    write_region(path, PlainRegion(processes=(PlainProcess(),)))
    return path


def test_pause_and_resume_are_timed(gpu: Maker, region: Path) -> None:
    found = measure_pause(gpu(region=region), region)
    assert found.pause_seconds is not None
    assert found.resume_seconds is not None
    assert found.pause_seconds < 0.5
    assert found.resume_seconds < 0.5
    assert found.graph_pauses is True


def test_graphs_that_do_not_pause_are_told(gpu: Maker, region: Path) -> None:
    found = measure_pause(gpu(region=region, graph_escapes=1), region, patience_seconds=PATIENCE)
    assert (found.graph_pauses, found.pause_seconds is not None) == (False, True)


def test_process_that_does_not_mind_its_region_never_pauses(gpu: Maker, region: Path) -> None:
    found = measure_pause(gpu(no_graphs=1), region, patience_seconds=PATIENCE)
    assert (found.pause_seconds, found.resume_seconds, found.graph_pauses) == (None, None, None)


def test_gate_that_launches_wait_at_is_found_and_open_again(gpu: Maker, region: Path) -> None:
    card = gpu(region=region, gate=1)
    assert measure_gate(card, region, patience_seconds=PATIENCE)
    card.spin(1000)
    card.wait()


def test_launches_that_pass_the_gate_are_told(gpu: Maker, region: Path) -> None:
    assert not measure_gate(gpu(region=region), region, patience_seconds=PATIENCE)


@pytest.mark.parametrize(
    ("policy", "percent", "holds"), [("force", "30", False), ("", "30", None), ("", "0", False), ("force", "0", False)]
)
def test_gate_that_stands_open_for_a_limit_that_is_not_forced_says_nothing(
    gpu: Maker, region: Path, policy: str, percent: str, holds: bool | None
) -> None:
    granted = granted_by_environment(
        {
            "CUDA_DEVICE_SM_LIMIT": percent,
            "GPU_CORE_UTILIZATION_POLICY": policy,
            "CUDA_DEVICE_MEMORY_SHARED_CACHE": str(region),
        }
    )
    found = probe(
        gpu(region=region, limit_mib=64, no_graphs=1), granted, backend="hami", node="n1",
        now=datetime(2026, 3, 4, tzinfo=UTC), seconds=0.2, spill_bytes_max=0,
    )  # fmt: skip
    assert found.gate_holds is holds


def test_region_in_doubt_is_refused_before_anybody_sleeps(gpu: Maker, region: Path) -> None:
    region.write_bytes(b"")
    with pytest.raises(Refused, match="unknown_size"):
        measure_pause(gpu(), region)


def test_container_without_cuda_is_told(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="cannot load CUDA's driver"):
        CudaDriver(path=str(tmp_path / "libcuda.so.1"))
