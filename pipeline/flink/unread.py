"""From the files with what a Flink job could not read to the dead letters, and how many there were.

A record that a job has put into such a file is told by its place on the topic; a row of one also by its table. Called
by `flink.publish` before the batch is appended: whoever is killed between puts it again, which dead letters allow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from fleet.errors import Corrupt
from fleet.logs import logger
from pipeline.bus.bus import DeadLetters

_log = logger(__name__)
_COLUMNS = ["payload", "kind", "reason", "from_partition", "from_offset"]


def keep_unread(paths: Sequence[Path], dead_letters: DeadLetters | None, *, source_of: Callable[[int], str]) -> int:
    """Puts what lies in some files with the dead letters; gives the number of records and rows.

    Args:
        paths: finished files of the job's folder `unread`.
        dead_letters: where they are kept; None counts them only.
        source_of: the name of a partition of the topic that the job reads.

    Raises:
        Unavailable: they can't be kept now; the same are put again later.
        Corrupt: a file can't be read, or storage can't take one.
    """
    count = 0
    for path in paths:
        for batch in _batches(path):
            count += batch.num_rows
            if dead_letters is None:
                continue
            for row in batch.to_pylist():
                of_row = "" if row["kind"] == "record" else f"{row['kind']}: "
                dead_letters.put(
                    row["payload"] or b"",
                    reason=f"cannot read bus record: {of_row}{row['reason']}",
                    source=source_of(row["from_partition"]),
                    offset=row["from_offset"],
                )
    if count:
        _log.error("flink could not read records or rows; they are dead letters", count=count)
    return count


def _batches(path: Path) -> list[pa.RecordBatch]:
    try:
        found = pq.ParquetFile(path).read()
    except (OSError, pa.ArrowException) as exc:
        raise Corrupt(f"cannot read {path}: {exc}") from exc
    if found.column_names != _COLUMNS:
        raise Corrupt(f"cannot read {path}: its columns are not {_COLUMNS}")
    return list(found.to_batches())
