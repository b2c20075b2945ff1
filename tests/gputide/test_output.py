"""Where answers go: files are replaced whole, what is no file stays what it is, and only a terminal cuts tables."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest

from fleet.errors import Corrupt
from gputide.output import TABLE_ROWS_MAX, Answer, Format, Listing, print_answer

ROWS = TABLE_ROWS_MAX + 5
ANSWER = Answer(
    document={"rows": ROWS},
    listings=(Listing(title="Many", columns=("number",), rows=[(number,) for number in range(ROWS)]),),
)


def test_a_pipe_that_is_named_as_output_file_stays_a_pipe(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    print_answer(ANSWER, form=Format.JSON, target=pipe)
    reader.join(10)
    assert read == [f'{{\n "rows": {ROWS}\n}}\n']
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_a_folder_that_is_named_as_output_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Corrupt, match="cannot write"):
        print_answer(ANSWER, form=Format.JSON, target=tmp_path)


def test_a_table_in_a_file_has_every_row(tmp_path: Path) -> None:
    print_answer(ANSWER, form=Format.TABLE, target=tmp_path / "table.txt")
    text = (tmp_path / "table.txt").read_text()
    assert f" {ROWS - 1} " in text
    assert "more:" not in text


def test_a_table_on_a_pipe_has_every_row(capsys: pytest.CaptureFixture[str]) -> None:
    print_answer(ANSWER, form=Format.TABLE, target=None)
    assert f" {ROWS - 1} " in capsys.readouterr().out
