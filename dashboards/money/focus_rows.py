"""Rows of bills in FOCUS, checked: CSV, CSV.gz and Parquet in batches, so that millions of rows need little memory.

Columns, types and allowed values are those of versions 1.0 to 1.2 of the FinOps Open Cost and Usage Specification
(FinOps-Open-Cost-and-Usage-Spec/FOCUS_Spec:specification/columns), as AWS Data Exports, Google Cloud and Azure write
them. Amounts may be negative in every category: refunds are (specification/columns/chargecategory.md). Rows are
counted from 1, the heading left out. Called by `dashboards.money.import_bill`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as arrow_csv
import pyarrow.parquet as pq

from fleet.errors import Corrupt

AMOUNT_MAX = 1e12
"""Largest amount of a row, of either sign."""
TEXT_LENGTH_MAX = 2048
"""Characters of a text that names an account, an invoice or a resource."""
BLOCK_BYTES = 2**20
"""Read of a CSV file at once; no row may be longer."""
_BATCH_ROWS = 8_192
_SHOWN_MAX = 80
"""Characters of a wrong value that a message shows."""
CATEGORIES = ("Usage", "Purchase", "Tax", "Credit", "Adjustment")

AMOUNTS = ("BilledCost", "EffectiveCost")
TIMES = ("BillingPeriodStart", "BillingPeriodEnd", "ChargePeriodStart", "ChargePeriodEnd")
MUST = (*AMOUNTS, *TIMES, "BillingAccountId", "BillingCurrency", "ChargeCategory", "ResourceId")
MAY = ("CommitmentDiscountId", "InvoiceId", "InvoiceIssuerName", "ProviderName", "ResourceName", "SubAccountId")
_TEXTS = ("BillingAccountId", "ResourceId", *MAY)
_AMOUNT = r"^-?([0-9]{1,20}(\.[0-9]{0,40})?|\.[0-9]{1,40})([eE][+-]?[0-3]?[0-9])?$"
_TIME = r"^[12][0-9]{3}-[0-9]{2}-[0-9]{2}([T ][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,9})?( ?UTC|Z|\+00:?00)?)?$"
_SECONDS = pa.timestamp("s")
_SECONDS_FORMAT = "%Y-%m-%d %H:%M:%S"


@dataclass(frozen=True, slots=True, kw_only=True)
class FocusRows:
    """Some rows of a file, checked.

    Attributes:
        file: name of the file.
        first_row: number of its first row.
        texts: columns of `MUST` and `MAY` as texts, those of times as timestamps of seconds, UTC; a missing text is
            empty.
        whole: all columns of the file, as it has them.
    """

    file: str
    first_row: int
    texts: pa.Table
    whole: pa.Table


def read_rows(path: Path) -> Iterator[FocusRows]:
    """Rows of a file, in order.

    Raises:
        Corrupt: it can't be read, is cut off, lacks a column, or a row breaks the specification; with file, row,
            column, value and what is allowed.
    """
    with _reading(path):
        first = 1
        for batch in _parquet(path) if _is_parquet(path) else _csv(path):
            whole = pa.Table.from_batches([batch])
            if whole.num_rows:
                yield FocusRows(file=str(path), first_row=first, texts=_checked(path, first, whole), whole=whole)
            first += whole.num_rows
    if first == 1:
        raise Corrupt(f"cannot import {path}: it holds no rows")


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, EOFError, ValueError, pa.ArrowException) as exc:
        raise Corrupt(f"cannot import {path}: {' '.join(str(exc).split())[:_SHOWN_MAX]}") from exc


def _is_parquet(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) == b"PAR1"


def _parquet(path: Path) -> Iterator[pa.RecordBatch]:
    # Row groups of providers hold hundreds of megabytes: read through, they are never held as a whole.
    with pq.ParquetFile(path, buffer_size=BLOCK_BYTES, pre_buffer=False) as file:
        _need(path, file.schema_arrow.names)
        yield from file.iter_batches(batch_size=_BATCH_ROWS, use_threads=False)


def _csv(path: Path) -> Iterator[pa.RecordBatch]:
    with pa.input_stream(path, compression="detect") as probe:
        names = _heading(path, probe.read(BLOCK_BYTES))
    with pa.input_stream(path, compression="detect") as stream:
        yield from arrow_csv.open_csv(
            stream,
            read_options=arrow_csv.ReadOptions(block_size=BLOCK_BYTES, use_threads=False),
            parse_options=arrow_csv.ParseOptions(newlines_in_values=True),
            convert_options=arrow_csv.ConvertOptions(column_types=dict.fromkeys(names, pa.string())),
        )


def _heading(path: Path, start: bytes) -> list[str]:
    """Names of the columns, from a file's first bytes."""
    line = start.removeprefix(b"\xef\xbb\xbf").partition(b"\n")[0].rstrip(b"\r")
    table = arrow_csv.read_csv(
        pa.BufferReader(line + b"\n"), read_options=arrow_csv.ReadOptions(autogenerate_column_names=True)
    )
    names = [str(column[0].as_py()) for column in table.columns] if table.num_rows else []
    _need(path, names)
    return names


def _need(path: Path, names: list[str]) -> None:
    missing = [name for name in MUST if name not in names]
    if missing:
        raise Corrupt(
            f"cannot import {path}: no column {', '.join(missing)}; a bill in FOCUS 1.0 to 1.2 has {', '.join(MUST)}"
        )
    twice = sorted({name for name in (*MUST, *MAY) if names.count(name) > 1})
    if twice:
        raise Corrupt(f"cannot import {path}: column {twice[0]} stands there twice")


def _checked(path: Path, first: int, whole: pa.Table) -> pa.Table:
    """The columns that count, as texts and times."""
    check = _Check(path=path, first=first)
    columns = {
        name: _text(whole.column(name)) if name in whole.column_names else pa.array([""] * whole.num_rows, pa.string())
        for name in (*MUST, *MAY)
    }
    for name in AMOUNTS:
        check.that(name, columns[name], pc.match_substring_regex(columns[name], _AMOUNT), "a decimal number")
        size = pc.abs(pc.cast(columns[name], pa.float64()))
        check.that(name, columns[name], pc.less_equal(size, AMOUNT_MAX), f"at most {AMOUNT_MAX:.0e}, of either sign")
    check.that(
        "BillingCurrency", columns["BillingCurrency"],
        pc.match_substring_regex(columns["BillingCurrency"], "^[A-Z]{3}$"), "a code of ISO 4217, such as USD",
    )  # fmt: skip
    is_allowed = pc.is_in(columns["ChargeCategory"], value_set=pa.array(CATEGORIES))
    check.that("ChargeCategory", columns["ChargeCategory"], is_allowed, f"one of {', '.join(CATEGORIES)}")
    for name in _TEXTS:
        is_short = pc.less_equal(pc.utf8_length(columns[name]), TEXT_LENGTH_MAX)
        check.that(name, columns[name], is_short, f"at most {TEXT_LENGTH_MAX} characters")
    account = columns["BillingAccountId"]
    check.that("BillingAccountId", account, pc.not_equal(account, ""), "not empty")
    times = {name: _time(check, name, columns[name]) for name in TIMES}
    for what in ("BillingPeriod", "ChargePeriod"):
        start, end = f"{what}Start", f"{what}End"
        check.that(end, columns[end], pc.greater(times[end], times[start]), f"later than {start}")
    return pa.table({**columns, **times})


def _text(column: pa.ChunkedArray) -> pa.Array:
    return pc.fill_null(pc.cast(column, pa.string()), "").combine_chunks()


def _time(check: _Check, name: str, texts: pa.Array) -> pa.Array:
    allowed = "a time of ISO 8601 in UTC, such as 2026-01-05T00:00:00Z"
    check.that(name, texts, pc.match_substring_regex(texts, _TIME), allowed)
    seconds = pc.replace_substring(pc.utf8_slice_codeunits(texts, 0, 19), "T", " ")
    is_day = pc.equal(pc.utf8_length(seconds), 10)
    whole = pc.if_else(is_day, pc.binary_join_element_wise(seconds, "00:00:00", " "), seconds)
    found = pc.strptime(whole, format=_SECONDS_FORMAT, unit="s", error_is_null=True)
    # It takes the 30th of February for the 2nd of March.
    check.that(name, texts, pc.equal(pc.strftime(found, format=_SECONDS_FORMAT), whole), allowed)
    return pc.cast(found, _SECONDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Check:
    """Where rows stand.

    Attributes:
        first: number of the first of them.
    """

    path: Path
    first: int

    def that(self, name: str, values: pa.Array, is_right: pa.Array, allowed: str) -> None:
        """Refuse the first row that is not right."""
        place = pc.index(pc.fill_null(is_right, False), False).as_py()
        if place >= 0:
            shown = values[place].as_py()
            raise Corrupt(
                f"cannot import {self.path}: row {self.first + place}: {name}={shown[:_SHOWN_MAX]!r}: must be {allowed}"
            )
