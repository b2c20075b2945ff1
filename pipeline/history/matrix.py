"""Reads the JSON answer of a query that gave a matrix: labels as texts, samples as columns.

Samples are nearly all of such an answer, and a Python object for each number would take ten times its memory: one pass
takes them out into arrays, and what remains is small and read as the JSON that it is. Called by `prometheus`.

Format: prometheus/prometheus:web/api/v1/json_codec.go and docs/querying/api.md (`[<unix time>, "<value>"]`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from fleet.errors import Corrupt
from pipeline.history.source import SampleBlock
from wire.prometheus_query import labels_of, read_object, warnings_of

_SAMPLE_BYTES_MIN = 8
"""Least that a sample takes: `[0,"1"],`."""
_EXACT_POWER = 22
_POWERS = np.array([10.0**power for power in range(_EXACT_POWER + 1)])
_VALUES_KEY = np.frombuffer(b'"values"', dtype=np.uint8)


class _Columns(NamedTuple):
    """Samples as the compiled functions fill them in.

    Attributes:
        ts_ms: times.
        odd: (2 × samples, 3), numbers that are not exact in one division: first byte, end, place of the value, or -1 -
            that of the time.
    """

    ts_ms: NDArray[np.int64]
    values: NDArray[np.float64]
    odd: NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixAnswer:
    """An answer.

    Attributes:
        warnings: what the server said about an answer that it gave in part.
    """

    block: SampleBlock
    warnings: tuple[str, ...]


def read_matrix(body: bytes | bytearray) -> MatrixAnswer:
    """The samples of an answer.

    Args:
        body: JSON of a successful query.

    Raises:
        Corrupt: it is cut, or no matrix.
    """
    data = np.frombuffer(body, dtype=np.uint8)
    room = len(data) // _SAMPLE_BYTES_MIN + 1
    rest = np.empty(len(data) + 1, dtype=np.uint8)
    # A sample has two numbers, and either may be odd.
    columns = _Columns(
        ts_ms=np.empty(room, dtype=np.int64), values=np.empty(room), odd=np.empty((2 * room, 3), dtype=np.int64)
    )
    ts_ms, values, odd = columns
    runs = np.zeros(len(data) // len(_VALUES_KEY) + 2, dtype=np.int64)
    rest_bytes, run_count, odd_count, wrong_at = _take_out_samples(data, _VALUES_KEY, _POWERS, rest, runs, columns)
    if wrong_at >= 0:
        raise Corrupt(f"cannot read an answer of {len(data)} bytes: no samples at byte {wrong_at}")
    for start, end, place in odd[:odd_count].tolist():
        try:
            number = float(bytes(data[start:end]))
            if place >= 0:
                values[place] = number
            else:
                ts_ms[-1 - place] = round(number * 1000)
        except (ValueError, OverflowError) as exc:
            raise Corrupt(f"cannot read an answer of {len(data)} bytes: no number at byte {start}") from exc
    document = read_object(bytes(rest[:rest_bytes]), len(data))
    found = document.get("data")
    results = found.get("result") if isinstance(found, dict) and found.get("resultType") == "matrix" else None
    if not isinstance(results, list):
        raise Corrupt(f"cannot read an answer of {len(data)} bytes: it is no matrix")
    # A series without sample values carries native histograms. We export none, so skip it.
    labels = tuple(_labels(item, len(data)) for item in results if isinstance(item, dict) and "values" in item)
    if len(labels) != run_count:
        raise Corrupt(f"cannot read an answer of {len(data)} bytes: {run_count} runs of samples, {len(labels)} series")
    samples = int(runs[run_count])
    return MatrixAnswer(
        # Copies: the arrays above have room for more than came.
        block=SampleBlock(
            labels=labels,
            starts=runs[: run_count + 1].copy(),
            ts_ms=ts_ms[:samples].copy(),
            values=values[:samples].copy(),
        ),
        warnings=warnings_of(document),
    )


def _labels(item: dict[str, Any], size: int) -> dict[str, str]:
    found = labels_of(item.get("metric"))
    if found is None:
        raise Corrupt(f"cannot read an answer of {size} bytes: a series without labels")
    return found


@njit(cache=True, nogil=True)
def _skip_blanks(data: Any, at: int) -> int:
    while at < len(data) and (data[at] == 32 or data[at] == 10 or data[at] == 13 or data[at] == 9):
        at += 1
    return at


@njit(cache=True, nogil=True)
def _take_out_samples(data: Any, key: Any, powers: Any, rest: Any, runs: Any, columns: Any) -> Any:
    """Copies all but the samples, which go to columns.

    Args:
        data: (bytes,) the answer.
        key: bytes of the key that samples stand behind, quotes included.
        powers: exact powers of ten.
        rest: (bytes + 1,) filled: the answer with `0` in the place of each array of samples.
        runs: filled: where the samples of each array begin; one more for the end.
        columns: filled: the samples.

    Returns:
        Bytes of `rest`, arrays of samples, odd numbers, and where something is wrong (-1 for nowhere).
    """
    size = len(data)
    at = out = count = run = odd_count = 0
    while at < size:
        if data[at] != 34:
            rest[out] = data[at]
            out += 1
            at += 1
            continue
        start = at
        at += 1
        while at < size and data[at] != 34:
            at += 2 if data[at] == 92 else 1
        if at >= size:
            return out, run, odd_count, start
        at += 1
        rest[out : out + at - start] = data[start:at]
        out += at - start
        if at - start != len(key) or not (data[start:at] == key).all():
            continue
        place = _skip_blanks(data, at)
        if place >= size or data[place] != 58:
            continue
        place = _skip_blanks(data, place + 1)
        if place >= size or data[place] != 91:
            continue
        rest[out] = 58
        rest[out + 1] = 48
        out += 2
        runs[run] = count
        at, count, odd_count, is_wrong = _take_array(data, place + 1, powers, columns, count, odd_count)
        if is_wrong:
            return out, run, odd_count, at
        run += 1
        runs[run] = count
    return out, run, odd_count, -1


@njit(cache=True, nogil=True)
def _take_array(data: Any, place: int, powers: Any, columns: Any, count: int, odd_count: int) -> Any:
    """Takes out `[time, "value"]` after `[time, "value"]` up to the bracket that closes them.

    Returns:
        The place behind the bracket, samples and odd numbers so far, and whether the place is where something is wrong.
    """
    ts_ms, values, odd = columns
    size = len(data)
    place = _skip_blanks(data, place)
    while place < size and data[place] != 93:
        if data[place] != 91:
            return place, count, odd_count, True
        first = _skip_blanks(data, place + 1)
        ts_ms[count], place, is_exact = _time_at(data, first)
        if place == first:
            return place, count, odd_count, True
        if not is_exact:
            odd[odd_count, 0], odd[odd_count, 1], odd[odd_count, 2] = first, place, -1 - count
            odd_count += 1
        place = _skip_blanks(data, place)
        if place >= size or data[place] != 44:
            return place, count, odd_count, True
        place = _skip_blanks(data, place + 1)
        if place >= size or data[place] != 34:
            return place, count, odd_count, True
        first = place + 1
        values[count], place, is_exact = _value_at(data, first, powers)
        if not is_exact:
            odd[odd_count, 0], odd[odd_count, 1], odd[odd_count, 2] = first, place, count
            odd_count += 1
        count += 1
        place = _skip_blanks(data, place + 1)
        if place >= size or data[place] != 93:
            return place, count, odd_count, True
        place = _skip_blanks(data, place + 1)
        if place < size and data[place] == 44:
            place = _skip_blanks(data, place + 1)
            if place < size and data[place] == 93:
                return place, count, odd_count, True
    return place + 1, count, odd_count, place >= size


@njit(cache=True, nogil=True)
def _time_at(data: Any, at: int) -> Any:
    """Seconds at a place, as whole milliseconds; the place behind them; whether that is all that they say."""
    size, place = len(data), at
    whole, decimals, digits, is_fraction = np.int64(0), 0, 0, False
    while place < size:
        digit = np.int64(data[place]) - 48
        if 0 <= digit <= 9 and digits < (40 if is_fraction else 15):
            digits += 1
            if not is_fraction:
                whole = whole * 10 + digit
            elif decimals < 3:
                whole = whole * 10 + digit
                decimals += 1
        elif data[place] == 46 and not is_fraction:
            is_fraction = True
        else:
            break
        place += 1
    while decimals < 3:
        whole *= 10
        decimals += 1
    if digits == 0:
        return whole, at, True
    if place < size and (data[place] == 101 or data[place] == 69):
        # 1.767571e+09, as Go writes a number where nobody asks for another form.
        while place < size and data[place] != 44 and data[place] != 32:
            place += 1
        return whole, place, False
    return whole, place, True


@njit(cache=True, nogil=True)
def _value_at(data: Any, at: int, powers: Any) -> Any:
    """The number at a place, the place of the quote behind it, and whether the number is what stands there.

    It is where the text is a whole number below 2⁵³, or such a one over an exact power of ten.
    """
    size, place = len(data), at
    is_negative = False
    if place < size and (data[place] == 45 or data[place] == 43):
        is_negative = data[place] == 45
        place += 1
    mantissa, power, digits, is_fraction, is_plain = np.int64(0), 0, 0, False, True
    while place < size and data[place] != 34:
        digit = np.int64(data[place]) - 48
        if 0 <= digit <= 9:
            digits += 1
            if mantissa < 900_000_000_000_000:
                mantissa = mantissa * 10 + digit
                if is_fraction:
                    power -= 1
            else:
                is_plain = False
        elif data[place] == 46 and not is_fraction:
            is_fraction = True
        else:
            is_plain = False
        place += 1
    if not is_plain or digits == 0 or power < -22:
        return 0.0, place, False
    value = np.float64(mantissa) / powers[-power]
    return -value if is_negative else value, place, True
