"""Common options may stand before and after the verb; what is wrong is said in words of ours."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from fleet.errors import Misconfigured
from gputide.cli import app, arranged
from gputide.verbs import nearest_verb


def words_of(*arguments: str) -> list[str]:
    program = typer.main.get_command(app)
    return arranged(program, typer.Context(program), arguments).arguments  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("plan list --data-dir D", "--data-dir D plan list"),
        ("plan --data-dir=D list", "--data-dir=D plan list"),
        ("--format json plan list", "plan list --format json"),
        ("-o a.csv plan list --quiet", "--quiet plan list -o a.csv"),
        ("plan list --all --set risk.preset=low", "--all --set risk.preset=low plan list"),
        ("--cluster a workloads", "workloads --cluster a"),
        ("undo --cluster a", "--set cluster.name=a undo"),
        ("report --format md --lang zh --config c.toml", "--config c.toml report --format md --lang zh"),
        ("plan explain -- --now", "plan explain -- --now"),
        ("cost prices set any 1 --cluster a", "cost prices set any 1 --cluster a"),
    ],
)
def test_options_before_and_after_the_verb_mean_the_same(given: str, meant: str) -> None:
    assert words_of(*given.split()) == meant.split()


def test_an_option_that_a_verb_lacks_is_refused_wherever_it_stands() -> None:
    for arguments in (["--format", "json", "serve"], ["serve", "--format", "json"]):
        done = CliRunner().invoke(app, arguments)
        assert done.exit_code == 2
        assert "No such option: --format" in done.output


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["recieve"], "gputide run receive"),
        (["receive"], "gputide run receive"),
        (["plan", "aprove"], "gputide plan approve"),
        (["verfy"], "gputide verify"),
        (["xyzzy"], None),
    ],
)
def test_the_verb_that_was_meant_is_named(words: list[str], meant: str | None) -> None:
    assert nearest_verb(words) == meant


def test_an_unknown_verb_ends_with_status_2_and_the_nearest_one() -> None:
    done = CliRunner().invoke(app, ["rollup", "--drain"])
    assert done.exit_code == 2
    assert "did you mean `gputide run rollup`?" in done.output


@pytest.mark.parametrize(
    "arguments",
    [["report", "-o", "x.docx"], ["plan", "list", "-o", "x.docx"], ["cost", "export", "-o", "x.docx"]],
)
def test_an_ending_that_fits_no_format_is_refused_before_anything_is_read(arguments: list[str], tmp_path: Path) -> None:
    done = CliRunner().invoke(app, [*arguments, "--data-dir", str(tmp_path / "none")])
    assert isinstance(done.exception, Misconfigured)
    assert "x.docx: no format has the ending .docx" in str(done.exception)
