"""Ten thousand hostile regions in the quick tier; `python -m tests.fuzz.run_region_fuzz` takes a million."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fleet.regions.doubts import RegionDoubt
from tests.fuzz.judged_regions import JudgedRegions
from tests.regions.plain_regions import MIB, PlainProcess, PlainRegion, judge, write_region

pytestmark = pytest.mark.long

REGIONS_PER_ROUND = 500
ROUNDS = 4
SEEDS = range(5)
# What no change to the bytes of a file can bring about.
NOT_OF_BYTES = {
    RegionDoubt.NOT_A_FILE, RegionDoubt.TOO_MANY_FILES, RegionDoubt.UNREADABLE, RegionDoubt.KEEPS_CHANGING,
    RegionDoubt.TOO_MANY_PROCESSES,
}  # fmt: skip


@pytest.mark.parametrize("seed", SEEDS)
def test_no_hostile_region_is_trusted_against_its_bytes(seed: int, tmp_path: Path) -> None:
    judged = JudgedRegions(tmp_path, seed, REGIONS_PER_ROUND)
    for number in range(ROUNDS):
        fault = judged.round()
        assert fault is None, f"seed {seed}, round {number}, {fault}"
    judged.close()
    told = judged.told
    # The claim is empty unless both answers come up often, and every doubt at all.
    assert REGIONS_PER_ROUND < told["trusted"] < REGIONS_PER_ROUND * (ROUNDS - 1)
    assert {str(doubt) for doubt in RegionDoubt} - told.keys() == {str(doubt) for doubt in NOT_OF_BYTES}


@pytest.mark.parametrize(
    "process",
    [
        PlainProcess(total=1),
        PlainProcess(data=-4096),
        PlainProcess(context=2**63 - 1, module=2**63 - 1, data=2 + 100 * MIB, total=100 * MIB),
        PlainProcess(pid=-1),
        PlainProcess(status=3),
        PlainProcess(sm_util=101),
        PlainProcess(monitor=2**50),
    ],
)
def test_naive_reader_doubts_what_no_process_can_be(process: PlainProcess, tmp_path: Path) -> None:
    write_region(tmp_path / "region", PlainRegion(processes=(process,)))
    fd = os.open(tmp_path / "region", os.O_RDONLY)
    assert not judge(fd, {}).is_trusted
    os.close(fd)


def test_naive_reader_trusts_what_the_library_writes(tmp_path: Path) -> None:
    write_region(tmp_path / "region", PlainRegion())
    fd = os.open(tmp_path / "region", os.O_RDONLY)
    verdict = judge(fd, {})
    assert verdict.is_trusted
    assert [card.used for card in verdict.cards.values()] == [1320 * MIB]
    os.close(fd)
