"""The inner loops of remote write over raw protobuf bytes: scanning and writing both versions of the message.

Compiled by numba and cached beside this file, so that a process pays for compilation once. Called by `remote_write`
(scan) and `remote_write_encode` (sizes and writing). Wire numbers: prometheus/prometheus:prompb/remote.proto,
prompb/types.proto and prompb/io/prometheus/write/v2/types.proto.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

OK, CUT, BAD_WIRE, SPLIT_LABELS, OTHER_VERSION = 0, 1, 2, 3, 4
"""What a scan ends with: fine; a field reaches beyond its message; a wire type that does not exist or does not fit; the
labels of one series don't stand together; a field that only the other version's message has."""

LABELS_START, LABELS_END, LABELS, SAMPLES_START, SAMPLES_END, HISTOGRAMS, EXEMPLARS, BAD_REFS = range(8)
"""Columns of the per-series output of `scan`; for version 2 the label columns count references, not bytes."""
SERIES_COLUMNS = 8


@njit(cache=True, nogil=True)
def _varint(data: Any, at: int, end: int) -> Any:
    """Value and position after it; position -1 where the varint is cut or too long."""
    value = np.uint64(0)
    shift = 0
    while at < end and shift < 70:
        byte = np.uint64(data[at])
        at += 1
        value |= (byte & np.uint64(127)) << np.uint64(shift)
        if byte < 128:
            return value, at
        shift += 7
    return value, -1


@njit(cache=True, nogil=True)
def _payload(data: Any, at: int, end: int, wire: Any) -> Any:
    """Start and end of a field's payload of any wire type; start -1 where it is cut, -2 where the type is unknown."""
    if wire == 2:
        length, at = _varint(data, at, end)
        if at < 0 or length > np.uint64(end - at):
            return -1, 0
        return at, at + np.int64(length)
    if wire == 0:
        _, after = _varint(data, at, end)
        return (at, after) if after >= 0 else (-1, 0)
    if wire in (1, 5):
        after = at + (8 if wire == 1 else 4)
        return (at, after) if after <= end else (-1, 0)
    return -2, 0


@njit(cache=True, nogil=True)
def _sample(data: Any, at: int, end: int) -> Any:
    """Status, timestamp and the value's bits of one Sample message; absent fields are zero, as proto3 has them."""
    bits = np.uint64(0)
    timestamp = np.int64(0)
    while at < end:
        tag, at = _varint(data, at, end)
        if at < 0:
            return CUT, timestamp, bits
        start, stop = _payload(data, at, end, np.int64(tag & np.uint64(7)))
        if start < 0:
            return -start, timestamp, bits
        if tag == 9:
            bits = np.uint64(0)
            for byte in range(8):
                bits |= np.uint64(data[start + byte]) << np.uint64(8 * byte)
        elif tag == 16:
            value, _ = _varint(data, start, stop)
            timestamp = np.int64(value)
        elif tag >> np.uint64(3) in (1, 2):
            return BAD_WIRE, timestamp, bits
        at = stop
    return OK, timestamp, bits


@njit(cache=True, nogil=True)
def _references(data: Any, at: int, end: int, fill: bool, symbol_count: int, refs: Any, ref: int) -> Any:
    """Reads packed label references; position (-1 where one is cut), references so far, how many are out of range."""
    bad_refs = 0
    while at < end:
        index, at = _varint(data, at, end)
        if at < 0:
            return -1, ref, bad_refs
        if fill:
            if index < np.uint64(symbol_count):
                refs[ref] = np.int64(index)
            else:
                refs[ref] = 0
                bad_refs += 1
        ref += 1
    return at, ref, bad_refs


@njit(cache=True, nogil=True)
def _scan_series(  # noqa: C901, PLR0912, PLR0913, PLR0915, PLR0917 - one branch per field of the message
    data: Any,
    at: int,
    end: int,
    version: int,
    fill: bool,
    symbol_count: int,
    samples: int,
    ref: int,
    row: Any,
    ts_ms: Any,
    value_bits: Any,
    refs: Any,
) -> Any:
    """Walks one TimeSeries message and fills its row; status, position, samples and references so far, metadata."""
    first_sample, first_ref = samples, ref
    labels_start: Any = np.int64(-1)
    labels_end: Any = np.int64(-1)
    labels = histograms = exemplars = bad_refs = metadata = 0
    status = OK
    position = at
    while at < end:
        position = at
        tag, at = _varint(data, at, end)
        if at < 0 or tag < 8:
            status = CUT if at < 0 else BAD_WIRE
            break
        start, stop = _payload(data, at, end, np.int64(tag & np.uint64(7)))
        number = tag >> np.uint64(3)
        if start < 0:
            status = -start
        elif tag == 18:
            if fill:
                status, ts_ms[samples], value_bits[samples] = _sample(data, start, stop)
            samples += 1
        elif tag == 10 and version == 1:
            if labels_start < 0:
                labels_start = position
            elif labels_end != position:
                status = SPLIT_LABELS
            labels_end = stop
            labels += 1
        elif version == 2 and tag in (8, 10):
            after, ref, bad = _references(data, start, stop, fill, symbol_count, refs, ref)
            bad_refs += bad
            if after < 0:
                status = CUT
        elif number in (1, 2):
            status = BAD_WIRE
        elif number == (4 if version == 1 else 3):
            histograms += 1
        elif number == (3 if version == 1 else 4):
            exemplars += 1
        elif version == 2 and number == 5:
            metadata += 1
        if status != OK:
            break
        at = stop
    if fill and status == OK:
        row[LABELS_START] = labels_start if version == 1 else first_ref
        row[LABELS_END] = labels_end if version == 1 else ref
        row[LABELS] = labels if version == 1 else ref - first_ref
        row[SAMPLES_START] = first_sample
        row[SAMPLES_END] = samples
        row[HISTOGRAMS] = histograms
        row[EXEMPLARS] = exemplars
        row[BAD_REFS] = bad_refs
    return status, position, samples, ref, metadata


@njit(cache=True, nogil=True)
def scan(
    data: Any,
    version: int,
    fill: bool,
    symbol_count: int,
    series_out: Any,
    ts_ms: Any,
    value_bits: Any,
    symbols: Any,
    refs: Any,
) -> Any:
    """Walks one message; with `fill` false it only counts.

    Args:
        data: the message, uint8.
        version: 1 or 2.
        fill: whether the output arrays are written.
        symbol_count: number of symbols (version 2), known after counting; references are checked against it.
        series_out: (series, SERIES_COLUMNS) int64.
        ts_ms: (samples,) int64.
        value_bits: (samples,) uint64, the bits of the doubles.
        symbols: (symbols, 2) int64, start and end of each symbol's bytes.
        refs: (references,) int64; a reference out of range is written as 0 and counted in BAD_REFS.

    Returns:
        status, position, series, samples, symbols, references, metadata entries.
    """
    at, end, begin = 0, len(data), 0
    status = OK
    series = samples = symbol = ref = metadata = 0
    series_tag = np.uint64(10 if version == 1 else 42)
    no_row = np.empty(0, dtype=np.int64)
    while at < end:
        begin = at
        tag, at = _varint(data, at, end)
        if at < 0 or tag < 8:
            status = CUT if at < 0 else BAD_WIRE
            break
        start, stop = _payload(data, at, end, np.int64(tag & np.uint64(7)))
        if start < 0:
            status = -start
        elif version == 2 and tag == 34:
            if fill:
                symbols[symbol, 0], symbols[symbol, 1] = start, stop
            symbol += 1
        elif version == 1 and tag == 26:
            metadata += 1
        elif tag == series_tag:
            row = series_out[series] if fill else no_row
            status, begin, samples, ref, more = _scan_series(
                data, start, stop, version, fill, symbol_count, samples, ref, row, ts_ms, value_bits, refs
            )
            metadata += more
            series += 1
        elif (version == 1 and tag in (34, 42)) or (version == 2 and tag in (10, 26)):
            status = OTHER_VERSION
        elif tag >> np.uint64(3) == series_tag >> np.uint64(3) or (version == 2 and tag >> np.uint64(3) == 4):
            status = BAD_WIRE
        if status != OK:
            break
        at = stop
    return status, begin, series, samples, symbol, ref, metadata


@njit(cache=True, nogil=True)
def _varint_size(value: Any) -> Any:
    size = 1
    while value >= 128:
        value >>= np.uint64(7)
        size += 1
    return size


@njit(cache=True, nogil=True)
def _put_varint(out: Any, at: int, value: Any) -> Any:
    while value >= 128:
        out[at] = np.uint8((value & np.uint64(127)) | np.uint64(128))
        value >>= np.uint64(7)
        at += 1
    out[at] = np.uint8(value)
    return at + 1


@njit(cache=True, nogil=True)
def write_series(
    out: Any,
    at: int,
    tag: Any,
    runs: Any,
    run_series: Any,
    prefixes: Any,
    prefix_starts: Any,
    ts_ms: Any,
    value_bits: Any,
) -> Any:
    """Writes one TimeSeries message per run of samples; with an empty `out` it only counts bytes.

    Args:
        out: uint8, large enough, or empty.
        at: where to begin.
        tag: field tag of the series, 10 (version 1) or 42 (version 2).
        runs: (runs + 1,) int64, sample ranges.
        run_series: (runs,) int64, which prefix each run takes.
        prefixes: uint8, the label fields of all series one after another.
        prefix_starts: (series + 1,) int64.
        ts_ms: (samples,) int64.
        value_bits: (samples,) uint64.

    Returns:
        The position after the last byte.
    """
    fill = len(out) > 0
    for run in range(len(run_series)):
        prefix_start, prefix_end = prefix_starts[run_series[run]], prefix_starts[run_series[run] + 1]
        size = prefix_end - prefix_start
        for index in range(runs[run], runs[run + 1]):
            size += 12 + _varint_size(np.uint64(ts_ms[index]))
        if not fill:
            at += 1 + _varint_size(np.uint64(size)) + size
            continue
        out[at] = tag
        at = _put_varint(out, at + 1, np.uint64(size))
        for index in range(prefix_start, prefix_end):
            out[at] = prefixes[index]
            at += 1
        for index in range(runs[run], runs[run + 1]):
            out[at] = 18
            # At most 9 + 1 + 10 bytes: the length is one byte itself.
            out[at + 1] = np.uint8(10 + _varint_size(np.uint64(ts_ms[index])))
            out[at + 2] = 9
            bits = value_bits[index]
            for byte in range(8):
                out[at + 3 + byte] = np.uint8((bits >> np.uint64(8 * byte)) & np.uint64(255))
            out[at + 11] = 16
            at = _put_varint(out, at + 12, np.uint64(ts_ms[index]))
    return at
