"""A file is put in place whole, also where others write it at the same moment."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from fleet.durable import write_durably


def test_several_that_write_one_file_at_once_leave_it_whole_and_nothing_beside_it(tmp_path: Path) -> None:
    file = tmp_path / "approvals.jsonl"
    texts = [bytes([65 + number]) * 50_000 for number in range(4)]
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda number: write_durably(file, texts[number % 4]), range(200)))
    assert file.read_bytes() in texts
    assert list(tmp_path.iterdir()) == [file]
