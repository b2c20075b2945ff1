"""Blocks become series: named once, in order, with ends that can't be mistaken for values."""

from pathlib import Path

import numpy as np

from exporter.replay.reader import ReplayReader
from exporter.series_blocks import STALE_NAN_BITS, SeriesBlock, SeriesBlocks
from exporter.trace.trace import epoch_ms, open_trace
from fleet.schema import Measure
from fleet.series import SLICE_INFO, Subject, resolve
from tests.exporter.builders import TraceFiles, at, pod, row


def series(files: TraceFiles, folder: Path, steps: int = 1) -> list[SeriesBlock]:
    named = SeriesBlocks()
    return [named.of(block) for block in ReplayReader(open_trace(files.write(folder))).blocks(steps)]


def samples(blocks: list[SeriesBlock], name: str, **labels: str) -> list[tuple[int, float]]:
    found = []
    for block in blocks:
        for number, ts, value in zip(block.series, block.ts_ms, block.values, strict=True):
            given = dict(block.labels[number])
            if given["__name__"] == name and labels.items() <= given.items():
                found.append((int(ts), float(value)))
    return found


def long_files() -> TraceFiles:
    pods = [pod("web-0", "GPU-a", ended_at=at(120)), pod("web-1", "GPU-b", started_at=at(90), labels={"app": 'a"b'})]
    usage = [row(minutes, "web-0", "GPU-a") for minutes in range(10, 130, 10)]
    usage += [row(minutes, "web-1", "GPU-b") for minutes in range(100, 260, 10)]
    return TraceFiles(pods=pods, usage=sorted(usage, key=lambda entry: entry["ts"]))


def test_every_series_means_what_it_was_made_of(tmp_path: Path) -> None:
    block = series(TraceFiles(), tmp_path, 100)[-1]
    meanings = [resolve(dict(labels)["__name__"], dict(labels)) for labels in block.labels]
    assert all(meaning is not None for meaning in meanings)
    subjects = {meaning.subject for meaning in meanings if meaning is not None}
    assert subjects == {Subject.SLICE, Subject.CARD, Subject.SLICE_INFO, Subject.CARD_INFO, Subject.NODE_INFO}


def test_labels_are_sorted_and_never_empty(tmp_path: Path) -> None:
    for labels in series(long_files(), tmp_path, 100)[-1].labels:
        assert list(labels) == sorted(labels)
        assert all(name and value for name, value in labels)


def test_samples_of_a_series_lie_together_and_in_order(tmp_path: Path) -> None:
    for block in series(long_files(), tmp_path, 7):
        assert (np.diff(block.series) >= 0).all()
        assert (np.diff(block.ts_ms)[np.diff(block.series) == 0] > 0).all()


def test_blocks_of_any_length_give_the_same_series(tmp_path: Path) -> None:
    def told(steps: int) -> set[tuple[object, int, int]]:
        return {
            (block.labels[number], int(ts), int(bits))
            for block in series(long_files(), tmp_path, steps)
            for number, ts, bits in zip(block.series, block.ts_ms, block.values.view(np.uint64), strict=True)
        }

    assert told(1) == told(5) == told(100)


def test_a_missing_value_is_no_sample(tmp_path: Path) -> None:
    files = TraceFiles()
    files.usage[0]["sm_active_ratio"] = None
    found = samples(series(files, tmp_path), f"gputide_slice_{Measure.SM_ACTIVE}", pod="web-0")
    assert len(found) == 5


def test_info_is_sent_at_the_start_and_at_every_full_hour(tmp_path: Path) -> None:
    found = samples(series(long_files(), tmp_path), SLICE_INFO, pod="web-1")
    assert found == [(epoch_ms(at(minutes)), 1.0) for minutes in (90, 120, 180, 240)]


def test_a_grant_that_ends_gets_one_stale_marker_after_its_last_sighting(tmp_path: Path) -> None:
    blocks = series(long_files(), tmp_path)
    marks = [
        int(ts)
        for block in blocks
        for number, ts, bits in zip(block.series, block.ts_ms, block.values.view(np.uint64), strict=True)
        if bits == STALE_NAN_BITS and dict(block.labels[number])["pod"] == "web-0"
    ]
    sightings = [ts for ts, value in samples(blocks, SLICE_INFO, pod="web-0") if value == 1.0]
    # The end falls on a full hour, where a sighting may have been sent already: the marker stands just after it.
    assert marks == [epoch_ms(at(120)) + 1]
    assert max(sightings) < marks[0]


def test_facts_travel_as_label_values(tmp_path: Path) -> None:
    block = series(long_files(), tmp_path, 100)[-1]
    infos = [dict(labels) for labels in block.labels if dict(labels)["__name__"] == SLICE_INFO]
    info = next(labels for labels in infos if labels["pod"] == "web-1")
    assert info["started_at"] == "2026-01-05T01:30:00+00:00"
    assert info["labels"] == '{"app":"a\\"b"}'
    assert info["compute_granted_ratio"] == "1"
    assert info["framebuffer_granted_bytes"] == str(24 * 2**30)
    assert "kv_cache_pool_bytes" not in info


def test_a_grant_that_lived_between_two_blocks_is_told_and_ended(tmp_path: Path) -> None:
    files = long_files()
    files.pods[1] |= {"started_at": at(91), "ended_at": at(99)}
    blocks = series(files, tmp_path, 100)
    found = samples(blocks, SLICE_INFO, pod="web-1")
    assert [ts for ts, _ in found] == [epoch_ms(at(91)), epoch_ms(at(99))]
