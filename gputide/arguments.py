"""Brings the arguments of a call into the order that Typer parses, so that common options may stand anywhere.

`gputide plan list --data-dir D` means `gputide --data-dir D plan list`, and `gputide --format json plan list` means
`gputide plan list --format json`. An option that a verb has itself belongs to the verb wherever it stands behind it.
Called by `gputide.cli`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from typer.core import TyperGroup

_CLUSTER = "--cluster"
_OF_VERBS = frozenset({"--format", "-f", "--output", "-o", _CLUSTER})
"""Options of verbs that may stand before the verb; each takes one value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arranged:
    """A call in the order that Typer parses.

    Attributes:
        words: the words of the verb, such as `("plan", "list")`; as many as are known.
        arguments: options of the program, the words, options and arguments of the verb.
    """

    words: tuple[str, ...]
    arguments: list[str]


def arranged(program: TyperGroup, context: Any, arguments: Sequence[str]) -> Arranged:
    """Options of the program go before the verb, options of the verb behind it.

    `--cluster` of a verb that has no such option is the setting `cluster.name`. What is unknown stays where it is, for
    Typer to refuse.
    """
    ahead: list[str] = []
    behind: list[str] = []
    postponed: list[list[str]] = []
    words: list[str] = []
    verb_ends = 0
    command: Any = program
    left = deque(arguments)
    while left:
        text = left.popleft()
        if text == "--":
            behind += [text, *left]
            break
        if not text.startswith("-") or text == "-":
            inner = command.get_command(context, text) if isinstance(command, TyperGroup) else None
            behind.append(text)
            if inner is not None:
                command, verb_ends = inner, len(behind)
                words.append(text)
            continue
        name = text.partition("=")[0] if text.startswith("--") else text[:2]
        own = None if command is program else _option(command, context, name)
        of_program = _option(program, context, name)
        has_value = name in _OF_VERBS if own is None and of_program is None else _takes_value(own or of_program)
        whole = [text, left.popleft()] if has_value and text == name and left else [text]
        if own is None and of_program is not None:
            ahead += whole
        elif own is None and name in _OF_VERBS:
            postponed.append(whole)
        else:
            behind += whole
    for whole in postponed:
        if whole[0].startswith(_CLUSTER) and _option(command, context, _CLUSTER) is None:
            value = whole[1] if len(whole) > 1 else whole[0].partition("=")[2]
            ahead += ["--set", f"cluster.name={value}"]
        else:
            behind[verb_ends:verb_ends] = whole
            verb_ends += len(whole)
    return Arranged(words=tuple(words), arguments=[*ahead, *behind])


def _option(command: Any, context: Any, name: str) -> Any:
    """The option of a command that has a name such as `--now` or `-o`; None where there is none."""
    for param in command.get_params(context):
        if name in (*param.opts, *param.secondary_opts) and name.startswith("-"):
            return param
    return None


def _takes_value(option: Any) -> bool:
    return not option.is_flag and not getattr(option, "count", False)
