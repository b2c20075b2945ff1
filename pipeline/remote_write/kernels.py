"""The inner loop that scans remote write's raw protobuf bytes, both versions of the message.

Compiled by numba and cached beside this file, so that a process pays for compilation once. Called by
`remote_write.decode`; `remote_write.encode` writes the same messages. Wire numbers:
prometheus/prometheus:prompb/remote.proto, prompb/types.proto and prompb/io/prometheus/write/v2/types.proto.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from pipeline.remote_write.byte_words import address, load8, load64, store8, trailing_zeros

OK, CUT, BAD_WIRE, SPLIT_LABELS, OTHER_VERSION, NO_ROOM = 0, 1, 2, 3, 4, 5
"""What a scan ends with: fine; a field reaches beyond its message; a wire type that does not exist or does not fit; the
labels of one series don't stand together; a field that only the other version's message has; the output arrays are too
short, or more series came than may."""

LABELS_START, LABELS_END, SAMPLES_START, SAMPLES_END, HISTOGRAMS = range(5)
"""Columns of the per-series output of `scan`; the labels are version 1's label fields, or version 2's references."""
SERIES_COLUMNS = 5


@njit(cache=True, nogil=True, forceinline=True)
def varint_of(at: Any, end: Any) -> Any:
    """Value and position after it; position -1 where the varint is cut or too long."""
    if at + 8 <= end:
        # Eight bytes at once: the lowest byte without its high bit ends the number, the other high bits are squeezed
        # out in three steps.
        word = load64(at)
        stops = ~word & np.uint64(0x8080808080808080)
        if stops != 0:
            last = trailing_zeros(stops)
            word &= np.uint64(0x7F7F7F7F7F7F7F7F) & (np.uint64(0xFFFFFFFFFFFFFFFF) >> (np.uint64(63) - last))
            word = (word & np.uint64(0x007F007F007F007F)) | ((word & np.uint64(0x7F007F007F007F00)) >> np.uint64(1))
            word = (word & np.uint64(0x00003FFF00003FFF)) | ((word & np.uint64(0x3FFF00003FFF0000)) >> np.uint64(2))
            word = (word & np.uint64(0x000000000FFFFFFF)) | ((word & np.uint64(0x0FFFFFFF00000000)) >> np.uint64(4))
            return word, at + np.int64(last >> np.uint64(3)) + 1
    value = np.uint64(0)
    shift = 0
    while at < end and shift < 70:
        byte = np.uint64(load8(at))
        at += 1
        value |= (byte & np.uint64(127)) << np.uint64(shift)
        if byte < 128:
            return value, at
        shift += 7
    return value, -1


@njit(cache=True, nogil=True, forceinline=True)
def small_number(at: Any, end: Any) -> Any:
    """As `varint_of`, for numbers that mostly take one byte or two."""
    if at + 2 <= end:
        first = np.uint64(load8(at))
        if first < 128:
            return first, at + 1
        second = np.uint64(load8(at + 1))
        if second < 128:
            return (first & np.uint64(127)) | (second << np.uint64(7)), at + 2
    return varint_of(at, end)


@njit(cache=True, nogil=True, forceinline=True)
def payload_of(at: Any, end: Any, wire: Any) -> Any:
    """Start and end of a field's payload of any wire type; start -1 where it is cut, -2 where the type is unknown."""
    if wire == 2:
        length, at = small_number(at, end)
        if at < 0 or length > np.uint64(end - at):
            return -1, 0
        return at, at + np.int64(length)
    if wire == 0:
        _, after = varint_of(at, end)
        return (at, after) if after >= 0 else (-1, 0)
    if wire in (1, 5):
        after = at + (8 if wire == 1 else 4)
        return (at, after) if after <= end else (-1, 0)
    return -2, 0


@njit(cache=True, nogil=True, forceinline=True)
def _sample(at: Any, end: Any) -> Any:
    """Status, timestamp and the value's bits of one Sample message; absent fields are zero, as proto3 has them."""
    if at + 11 <= end and load8(at) == 9 and load8(at + 9) == 16:
        value, after = varint_of(at + 10, end)
        if after == end:
            return OK, np.int64(value), load64(at + 1)
    bits = np.uint64(0)
    timestamp = np.int64(0)
    while at < end:
        tag, at = varint_of(at, end)
        if at < 0:
            return CUT, timestamp, bits
        start, stop = payload_of(at, end, np.int64(tag & np.uint64(7)))
        if start < 0:
            return -start, timestamp, bits
        if tag == 9:
            bits = load64(start)
        elif tag == 16:
            value, _ = varint_of(start, stop)
            timestamp = np.int64(value)
        elif tag >> np.uint64(3) in (1, 2):
            return BAD_WIRE, timestamp, bits
        at = stop
    return OK, timestamp, bits


@njit(cache=True, nogil=True, forceinline=True)
def _plain_places(at: Any, end: Any) -> Any:
    """Takes a version-2 series apart if it is laid out as most senders do.

    That is: references, one sample with value and time and nothing else, at most one more field (metadata), every
    length in one byte.

    Returns:
        End of the references, -1 for any other layout; time of the sample; whether there is metadata.
    """
    zero = np.uint64(0)
    if at + 2 > end or load8(at) != 10 or load8(at + 1) > 127:
        return -1, zero, False
    refs_end = at + 2 + np.int64(load8(at + 1))
    if refs_end + 13 > end or load8(refs_end) != 18 or load8(refs_end + 1) > 127:
        return -1, zero, False
    sample_end = refs_end + 2 + np.int64(load8(refs_end + 1))
    if sample_end > end or sample_end < refs_end + 13 or load8(refs_end + 2) != 9 or load8(refs_end + 11) != 16:
        return -1, zero, False
    time, time_end = varint_of(refs_end + 12, sample_end)
    if time_end != sample_end:
        return -1, zero, False
    if sample_end == end:
        return refs_end, time, False
    if sample_end + 2 > end or load8(sample_end) != 42 or load8(sample_end + 1) > 127:
        return -1, zero, False
    return (refs_end, time, True) if sample_end + 2 + np.int64(load8(sample_end + 1)) == end else (-1, zero, False)


@njit(cache=True, nogil=True)
def _span_length(at: Any, end: Any) -> Any:
    """Buckets that one BucketSpan message stands for; -1 where it is cut."""
    length = np.int64(0)
    while at < end:
        tag, at = varint_of(at, end)
        if at < 0:
            return np.int64(-1)
        start, stop = payload_of(at, end, np.int64(tag & np.uint64(7)))
        if start < 0:
            return np.int64(-1)
        if tag == 16:
            value, _ = varint_of(start, stop)
            length = np.int64(value & np.uint64(0xFFFFFFFF))
        at = stop
    return length


@njit(cache=True, nogil=True, forceinline=True)
def _is_negative(bits: Any) -> Any:
    """Whether the bits of a double are those of a number below 0."""
    return np.uint64(0x8000000000000000) < bits <= np.uint64(0xFFF0000000000000)


@njit(cache=True, nogil=True)
def _is_histogram(at: Any, end: Any) -> Any:  # noqa: C901, PLR0911, PLR0912 - one branch per field of the message
    """Whether a Histogram message holds together: as many buckets as spans say, none below 0, and their sum the count.

    Observations that are no number make the sum NaN and lie in no bucket: then there may be fewer. Counts that are
    floats need not add up. Source: prometheus/prometheus:model/histogram/histogram.go (Validate), float_histogram.go.
    """
    count = total = np.uint64(0)
    is_float = is_nan = False
    spans = np.zeros(2, np.int64)
    buckets = np.zeros(2, np.int64)
    held = np.zeros(2, np.int64)
    while at < end:
        tag, at = varint_of(at, end)
        if at < 0:
            return False
        wire, number = np.int64(tag & np.uint64(7)), np.int64(tag >> np.uint64(3))
        start, stop = payload_of(at, end, wire)
        if start < 0:
            return False
        side = np.int64(number > 10)
        if tag == 8:
            count, _ = varint_of(start, stop)
        elif tag == 48:
            value, _ = varint_of(start, stop)
            total += value
        elif tag in (17, 57):
            is_float = True
            if _is_negative(load64(start)):
                return False
        elif tag == 25:
            is_nan = (load64(start) & np.uint64(0x7FFFFFFFFFFFFFFF)) > np.uint64(0x7FF0000000000000)
        elif number in (8, 11) and wire == 2:
            length = _span_length(start, stop)
            if length < 0:
                return False
            spans[side] += length
        elif number in (9, 12) and wire in (0, 2):
            while start < stop:
                value, start = varint_of(start, stop)
                if start < 0:
                    return False
                held[side] += np.int64(value >> np.uint64(1)) ^ -np.int64(value & np.uint64(1))
                if held[side] < 0:
                    return False
                total += np.uint64(held[side])
                buckets[side] += 1
        elif number in (10, 13) and wire in (1, 2):
            is_float = True
            if (stop - start) % 8:
                return False
            while start < stop:
                if _is_negative(load64(start)):
                    return False
                start += 8
                buckets[side] += 1
        at = stop
    if buckets[0] != spans[0] or buckets[1] != spans[1]:
        return False
    return is_float or (total <= count if is_nan else total == count)


@njit(cache=True, nogil=True, inline="always")
def _scan_series(  # noqa: C901, PLR0912, PLR0913, PLR0915, PLR0917 - one branch per field of the message
    base: Any,
    at: Any,
    end: Any,
    version: int,
    loose: Any,
    room_end: Any,
    samples: Any,
    series: Any,
    out: Any,
    ts_ms: Any,
    value_bits: Any,
) -> Any:
    """Walks a series into its row; status, position, samples, loose bytes, metadata, histograms, unsound, exemplars."""
    first_sample = samples
    labels_start: Any = base
    labels_end: Any = base
    labels = histograms = unsound = exemplars = metadata = 0
    status = OK
    position = at
    while at < end:
        position = at
        if at + 1 < end and load8(at) < 128 and load8(at) & 7 == 2 and load8(at + 1) < 128:
            # Nearly every field: one byte of tag, one byte of length.
            tag = np.uint64(load8(at))
            start: Any = at + 2
            stop: Any = start + np.int64(load8(at + 1))
            if tag < 8 or stop > end:
                status = CUT if stop > end else BAD_WIRE
                break
            if tag == 10 and version == 1 and (labels == 0 or labels_end == position):
                if labels == 0:
                    labels_start = position
                labels += 1
                at = stop
                while at + 1 < end and load8(at) == 10:
                    length = np.int64(load8(at + 1))
                    if length > 127 or length > end - at - 2:
                        break
                    at += 2 + length
                    labels += 1
                labels_end = at
                continue
        else:
            tag, at = small_number(at, end)
            if at < 0 or tag < 8:
                status = CUT if at < 0 else BAD_WIRE
                break
            start, stop = payload_of(at, end, np.int64(tag & np.uint64(7)))
        number = tag >> np.uint64(3)
        if start < 0:
            status = -start
        elif tag == 10 and version == 1:
            if labels == 0:
                labels_start = position
            elif labels_end != position:
                status = SPLIT_LABELS
            labels_end = stop
            labels += 1
        elif tag == 18:
            if samples == len(ts_ms):
                status = NO_ROOM
            else:
                status, ts_ms[samples], value_bits[samples] = _sample(start, stop)
                samples += 1
        elif version == 2 and tag in (8, 10):
            if tag == 10 and labels_end == labels_start:
                labels_start, labels_end = start, stop
            else:
                # References in several fields, or not packed: they are brought together behind the message.
                if labels_end != base + loose:
                    status, labels_start, labels_end = _moved(labels_start, labels_end, base + loose, room_end)
                if status == OK:
                    status, _, labels_end = _moved(start, stop, labels_end, room_end)
                loose = labels_end - base
            if status == OK and stop > start and load8(stop - 1) > 127:
                status = CUT
        elif number in (1, 2):
            status = BAD_WIRE
        elif number == (4 if version == 1 else 3):
            histograms, unsound = histograms + 1, unsound + (not _is_histogram(start, stop))
        elif number == (3 if version == 1 else 4):
            exemplars += 1
        elif version == 2 and number == 5:
            metadata += 1
        if status != OK:
            break
        at = stop
    _put_series(out, series, labels_start - base, labels_end - base, first_sample, samples, histograms)
    return status, position, samples, loose, metadata, histograms, unsound, exemplars


@njit(cache=True, nogil=True)
def _moved(start: Any, end: Any, to: Any, room_end: Any) -> Any:
    """Copies bytes; status, where they begin and end now."""
    if to + end - start > room_end:
        return NO_ROOM, to, to
    for at in range(end - start):
        store8(to + at, load8(start + at))
    return OK, to, to + end - start


@njit(cache=True, nogil=True, inline="always")
def _put_series(
    out: Any,
    series: Any,
    labels_start: int,
    labels_end: int,
    samples_start: int,
    samples_end: int,
    histograms: int,
) -> Any:
    out[series, LABELS_START] = labels_start
    out[series, LABELS_END] = labels_end
    out[series, SAMPLES_START] = samples_start
    out[series, SAMPLES_END] = samples_end
    out[series, HISTOGRAMS] = histograms


@njit(cache=True, nogil=True)
def scan(  # noqa: C901, PLR0912, PLR0915 - one branch per field of the message
    data: Any, size: int, version: int, met_max: int, series_out: Any, ts_ms: Any, value_bits: Any, symbols: Any
) -> Any:
    """Walks one message. A series that has neither samples nor histograms is left out.

    Args:
        data: the message, uint8, and room behind it for references that don't stand together: as much again is enough.
        met_max: most series that the message may have, those that are left out too.
        series_out: (room, SERIES_COLUMNS) int32.
        ts_ms: (room,) int64.
        value_bits: (room,) uint64, the bits of the doubles.
        symbols: (room, 2) int32, start and end of each symbol's bytes.

    Returns:
        status, position, series, samples, symbols, end of the message and of what was put behind it, metadata entries,
        histograms, those of them that don't hold together, exemplars.
    """
    base = address(data)
    at: Any = base
    end: Any = base + size
    begin: Any = base
    room_end = base + len(data)
    loose = size
    status = OK
    met = series = samples = symbol = metadata = histograms = unsound = exemplars = 0
    series_tag = np.uint64(10 if version == 1 else 42)
    while at < end:
        begin = at
        tag, at = small_number(at, end)
        if at < 0 or tag < 8:
            status = CUT if at < 0 else BAD_WIRE
            break
        start, stop = payload_of(at, end, np.int64(tag & np.uint64(7)))
        if start < 0:
            status = -start
        elif tag == series_tag:
            refs_end, time, has_metadata = _plain_places(start, stop) if version == 2 else (-1, np.uint64(0), False)
            met += 1
            if series == len(series_out) or samples == len(ts_ms) or met > met_max:
                status = NO_ROOM
            elif refs_end >= 0:
                if refs_end > start + 2 and load8(refs_end - 1) > 127:
                    status = CUT
                ts_ms[samples], value_bits[samples] = np.int64(time), load64(refs_end + 3)
                _put_series(series_out, series, start + 2 - base, refs_end - base, samples, samples + 1, 0)
                metadata += has_metadata
                samples += 1
                series += 1
            else:
                before = samples
                status, begin, samples, loose, metadata_met, histograms_met, unsound_met, exemplars_met = _scan_series(
                    base, start, stop, version, loose, room_end, samples, series, series_out, ts_ms, value_bits
                )
                metadata += metadata_met
                histograms += histograms_met
                unsound += unsound_met
                exemplars += exemplars_met
                series += samples > before or histograms_met > 0
        elif version == 2 and tag == 34:
            if symbol == len(symbols):
                status = NO_ROOM
            else:
                symbols[symbol, 0], symbols[symbol, 1] = start - base, stop - base
                symbol += 1
        elif version == 1 and tag == 26:
            metadata += 1
        elif (version == 1 and tag in (34, 42)) or (version == 2 and tag in (10, 26)):
            status = OTHER_VERSION
        elif tag >> np.uint64(3) == series_tag >> np.uint64(3) or (version == 2 and tag >> np.uint64(3) == 4):
            status = BAD_WIRE
        if status != OK:
            break
        at = stop
    return status, begin - base, series, samples, symbol, loose, metadata, histograms, unsound, exemplars
