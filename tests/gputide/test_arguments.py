"""Common options may stand before and after the verb; what is wrong is said in words of ours."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.core import TyperGroup
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


@pytest.mark.parametrize("words", [("--log-format", "nope", "plan", "list"), ("report", "--lang", "nope")])
def test_value_that_an_option_does_not_know_is_named_in_plain_words(words: tuple[str, ...]) -> None:
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 2
    assert ": 'nope' is not one of '" in done.output


def verbs_that_write_a_file() -> list[tuple[str, ...]]:
    """The words of every verb with `-o`, and after them a text for each argument that it must have."""
    return sorted(_writing(typer.main.get_command(app), ()))


def _writing(command: Any, words: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    context = typer.Context(command)
    if words and any("-o" in param.opts for param in command.params):
        yield words
    if isinstance(command, TyperGroup):
        for name in command.list_commands(context):
            yield from _writing(command.get_command(context, name), (*words, name))


@pytest.mark.parametrize("words", verbs_that_write_a_file(), ids=" ".join)
def test_every_verb_refuses_a_file_whose_ending_it_cannot_write_and_names_those_that_it_can(
    words: tuple[str, ...], tmp_path: Path
) -> None:
    target = tmp_path / "x.docx"
    done = CliRunner().invoke(app, [*words, "-o", str(target), "--data-dir", str(tmp_path / "none")])
    assert isinstance(done.exception, Misconfigured), done.output
    assert f"{target}: no format has the ending .docx; use ." in str(done.exception)
    assert list(tmp_path.iterdir()) == []


def test_verbs_that_write_a_file_are_found() -> None:
    found = set(verbs_that_write_a_file())
    assert {("report",), ("report", "clusters"), ("cost", "export"), ("admin", "probe", "run"), ("apply",)} <= found
    assert len(found) > 30
