"""Where answers go: files are replaced whole, what is no file stays what it is; only standard output cuts tables."""

from __future__ import annotations

import os
import stat
import threading
from dataclasses import replace
from pathlib import Path

import openpyxl
import pytest

from enforcer.preview import StagePreview
from enforcer.rollout.holding import Way
from fleet.errors import Corrupt, Misconfigured
from gputide.answers.plan import preview_answer, rolls
from gputide.output import (
    ENDINGS,
    TABLE_ROWS_MAX,
    Answer,
    Format,
    Listing,
    form_for,
    print_answer,
    show_everything,
)
from tests.enforcer.builders import standard_plan

ROWS = TABLE_ROWS_MAX + 5
ANSWER = Answer(
    document={"rows": ROWS},
    listings=(Listing(title="Many", columns=("number", "as text"), rows=[(n, f"n{n}") for n in range(ROWS)]),),
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
    assert "--all" not in text


def test_a_table_in_a_spreadsheet_has_every_row(tmp_path: Path) -> None:
    print_answer(ANSWER, form=Format.EXCEL, target=tmp_path / "table.xlsx")
    sheet = openpyxl.load_workbook(tmp_path / "table.xlsx").active
    assert [row[0].value for row in sheet.iter_rows()] == ["number", *range(ROWS)]
    print_answer(ANSWER, form=Format.TSV, target=tmp_path / "table.tsv")
    assert (tmp_path / "table.tsv").read_text().splitlines()[1:] == [f"{n}\tn{n}" for n in range(ROWS)]


def test_a_workbook_on_standard_output_is_refused() -> None:
    with pytest.raises(Misconfigured, match="name a file with -o"):
        print_answer(ANSWER, form=Format.EXCEL, target=None)


def test_a_table_on_standard_output_has_ten_rows_and_says_how_many_there_are(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_answer(ANSWER, form=Format.TABLE, target=None)
    out = capsys.readouterr().out
    assert f" {TABLE_ROWS_MAX - 1} " in out
    assert f" {TABLE_ROWS_MAX} " not in out.partition("10 of")[0]
    assert f"10 of {ROWS}; --all or -o FILE shows the rest" in out


def test_everything_is_shown_where_it_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    show_everything(True)
    try:
        print_answer(ANSWER, form=Format.TABLE, target=None)
    finally:
        show_everything(False)
    out = capsys.readouterr().out
    assert f" {ROWS - 1} " in out
    assert "--all" not in out


@pytest.mark.parametrize("columns", [1, 2])
def test_a_listing_that_the_headline_says_is_shown_in_files_alone(
    columns: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (many,) = ANSWER.listings
    rows = [row[-columns:] for row in many.rows]
    listing = replace(many, columns=many.columns[-columns:], rows=rows, is_said=True)
    said = replace(ANSWER, headline=("15 of 15 applied",), listings=(listing,))
    print_answer(said, form=Format.TABLE, target=None)
    assert capsys.readouterr().out == "15 of 15 applied\n"
    print_answer(said, form=Format.TABLE, target=tmp_path / "table.txt")
    assert f"n{ROWS - 1}" in (tmp_path / "table.txt").read_text()


def test_a_table_of_one_column_is_a_line_a_row_and_is_cut_as_any_other(capsys: pytest.CaptureFixture[str]) -> None:
    kept = Listing(title="Kept", columns=("why",), rows=[(f"[bold]pod {number}",) for number in range(ROWS)])
    print_answer(Answer(document={}, listings=(kept,)), form=Format.TABLE, target=None)
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["Kept: [bold]pod 0", "Kept: [bold]pod 1"]
    assert lines[TABLE_ROWS_MAX:] == ["… 5 more lines; --all or -o FILE shows the rest"]


def test_objects_that_roll_with_a_gap_have_a_line_each_and_come_first() -> None:
    found = rolls([("a", Way.SURGE), ("b", Way.GAP), ("c", Way.SURGE), ("d", Way.GAP_AT_ONCE), ("e", Way.GAP)])
    assert found == [
        "rolls with a gap, all pods at once: d",
        "rolls with a gap, one pod at a time: b",
        "rolls with a gap, one pod at a time: e",
        "rolls surge-first: 2 objects: a, c",
    ]


def test_long_texts_and_cells_are_cut_on_standard_output_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    listing = Listing(title="One", columns=("name", "why"), rows=[("a", "w" * 300)])
    answer = Answer(document={}, listings=(listing,), texts=([f"line {number}" for number in range(12)],))
    print_answer(answer, form=Format.TABLE, target=None)
    out = capsys.readouterr().out
    assert "w…" in out
    assert "… 2 more lines; --all or -o FILE shows the rest" in out
    print_answer(answer, form=Format.TABLE, target=tmp_path / "all.txt")
    whole = (tmp_path / "all.txt").read_text()
    assert whole.count("w") == 300 + len("why") - 2
    assert "line 11" in whole


@pytest.mark.parametrize(
    ("name", "given", "meant"),
    [("a.json", None, Format.JSON), ("a.YML", None, Format.YAML), ("a", None, None), ("a", Format.CSV, Format.CSV),
     ("a.csv", Format.CSV, Format.CSV), (None, Format.JSON, Format.JSON)],
)  # fmt: skip
def test_the_ending_of_a_file_says_its_format(name: str | None, given: Format | None, meant: Format | None) -> None:
    assert form_for(None if name is None else Path(name), given, ENDINGS) is meant


@pytest.mark.parametrize(("name", "given"), [("a.docx", None), ("a.docx", Format.JSON), ("a.csv", Format.JSON)])
def test_an_ending_that_fits_no_format_or_another_is_refused(name: str, given: Format | None) -> None:
    with pytest.raises(Misconfigured, match="cannot write"):
        form_for(Path(name), given, ENDINGS)


def test_warning_of_many_stages_is_shown_whole_with_the_stages_behind_it(capsys: pytest.CaptureFixture[str]) -> None:
    long = f"{' '.join(['word'] * 60)} end"

    def stage(number: int, *warnings: str) -> StagePreview:
        return StagePreview(
            stage=number, objects=(), moves=(), cards=(), cards_freed=0, warnings=warnings, refusal=None
        )  # fmt: skip

    stages = [*(stage(number, long, "short") for number in range(1, 61)), stage(61), stage(62, "short", "other")]
    plan = standard_plan()
    plan = replace(plan, stages=tuple(replace(plan.stages[0], stage=one.stage) for one in stages))
    print_answer(preview_answer(plan, stages, no_cluster=None), form=Format.TABLE, target=None)
    out = capsys.readouterr().out
    notes = " ".join(out[out.index("note: ") :].split())
    assert notes.startswith(f"note: {long} (stages 1-60) note: short (stages 1-60, 62) note: other (stage 62) ")
