"""The reader against regions that a C program writes through the library's structs, at rest and while they change."""

from __future__ import annotations

import re
import time
from pathlib import Path

import numpy as np
import pytest

from exporter.regions.reader import HamiReader
from fleet.regions.fields import RegionField
from fleet.regions.layouts import LAYOUTS, LayoutName, locate
from tests.exporter.region_record import read_region
from tests.regions.plain_regions import MIB
from tests.regions.writer import RegionWriter

DIRECTORY = "0f1e2d3c-0000-4000-8000-000000000001_main"
REGION = "0f1e2d3c-1111-4000-8000-000000000001.cache"
TRUSTED_READINGS = 40
TOTALS = 10
CHURN_SECONDS_MAX = 60
UTIL_PERCENT = 20
"""Of every process on its first card, as the writer sets it."""


def test_every_field_stands_where_the_compiler_puts_it(region_writer: RegionWriter) -> None:
    layouts = {layout.name.value: layout for layout in LAYOUTS}
    fields = {field.value: field for field in RegionField}
    compared = set()
    for line in region_writer.offsets().splitlines():
        name, field, offset = line.split()
        if field == "=":
            assert layouts[name].region_bytes == int(offset)
            continue
        slot = re.fullmatch(r"procs\[(\d+)\]\.(.+)", field)
        process, rest = (int(slot[1]), slot[2]) if slot else (0, field)
        card = int(found[1]) if (found := re.search(r"\[(\d+)\]", rest)) else 0
        bare = fields[re.sub(r"\[\d+\]", "", rest)]
        assert locate(layouts[name], bare, card=card, process=process) == int(offset), line
        compared.add((name, bare))
    assert compared >= {
        (layout.name.value, field)
        for layout in LAYOUTS
        for field in layout.fields
        if field is not RegionField.POSTINIT_SEMAPHORE
    }


@pytest.mark.parametrize("layout", LayoutName)
def test_region_is_read_as_it_was_written(layout: LayoutName, region_writer: RegionWriter, tmp_path: Path) -> None:
    path = tmp_path / REGION
    before = int(time.time()) - 1  # the writer's time() reads the kernel's coarse clock, which lags by a tick
    region_writer.write(layout, path, cards=3, processes=4)
    record = read_region(path, framebuffers={}, now_seconds=time.time())
    assert (record.layout, record.doubts) == (layout, ())
    assert [card.card for card in record.cards] == [
        f"GPU-{number:08x}-0000-4000-8000-{number:012x}" for number in (1, 2, 3)
    ]
    has_util = layout is not LayoutName.PRE_V0
    for number, card in enumerate(record.cards):
        context = sum(pid * 10 + number for pid in (1, 2, 3, 4)) * MIB
        assert card.framebuffer_context_bytes == context
        assert card.framebuffer_module_bytes == 10 * MIB
        assert card.framebuffer_data_bytes == 1000 * MIB
        assert card.framebuffer_used_bytes == context + 1010 * MIB
        assert card.framebuffer_of_driver_bytes == 2000 * MIB
        assert card.framebuffer_limit_bytes == (number + 1) * 1000 * MIB
        assert card.compute_limit_ratio == (10 + number) / 100
        assert card.duty_cycle_ratio == ((4 * (UTIL_PERCENT + number)) / 100 if has_util else None)
    assert [(process.pid, process.host_pid) for process in record.processes] == [
        (pid, 100000 + pid) for pid in (1, 2, 3, 4)
    ]
    assert record.processes[1].framebuffer_used_bytes == tuple((2 * 10 + card + 2 + 200) * MIB for card in range(3))
    assert (record.priority, record.is_blocked, record.is_compute_limited) == (1, False, True)
    if layout in (LayoutName.PRE_V0, LayoutName.V0):
        assert record.last_kernel_at_seconds is None
    else:
        assert record.last_kernel_at_seconds is not None
        assert before <= record.last_kernel_at_seconds <= time.time()


@pytest.mark.parametrize("layout", LayoutName)
def test_changing_region_is_never_seen_half_changed(
    layout: LayoutName, region_writer: RegionWriter, tmp_path: Path
) -> None:
    directory = tmp_path / DIRECTORY
    directory.mkdir()
    reader = HamiReader(tmp_path)
    trusted = 0
    totals: set[float] = set()
    with region_writer.churning(layout, directory / REGION, cards=2):
        until = time.monotonic() + CHURN_SECONDS_MAX
        # A busy machine may not let the writer run for many readings, so those that differ count too.
        while (trusted < TRUSTED_READINGS or len(totals) < TOTALS) and time.monotonic() < until:
            reading = reader.read({}, now_seconds=time.time(), deadline_seconds=10)
            assert reading.containers.layouts == (layout,)
            if reading.containers.doubts[0]:
                continue  # a busy machine may stop the writer in the middle of an update, and that is told
            trusted += 1
            slices = reading.slices
            parts = slices.framebuffer_context + slices.framebuffer_module + slices.framebuffer_data
            assert np.array_equal(parts, slices.framebuffer_used)
            totals.update(slices.framebuffer_used.tolist())
            pids = reading.processes.pids.tolist()
            assert 1 in pids
            assert 2 <= len(pids) <= 3
            assert len(set(pids)) == len(pids)
            assert (reading.processes.host_pids - reading.processes.pids).tolist() == [100000] * len(pids)
    reader.close()
    assert trusted >= TRUSTED_READINGS
    assert len(totals) >= TOTALS
