"""What an engine is to the verb that starts it: parts in the order of starting, each with a command and a question.

The engines' own modules (`engine_kafka`, `engine_flink`, `engine_hive`) describe themselves as an `EngineKind`;
`gputide.operate.engines` starts, asks and stops them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from gputide.operate.engine_tools import Tell


class Engine(StrEnum):
    """The engines that can be started here."""

    KAFKA = "kafka"
    FLINK = "flink"
    HIVE = "hive"


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """How one process of an engine is started.

    Attributes:
        name: what people call it, such as `broker`.
        start_seconds_max: how long its first answer may take; generous, for machines that do much else.
    """

    name: str
    command: list[str]
    environ: Mapping[str, str] = field(repr=False)
    start_seconds_max: float = 180.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """How one process of an engine is asked whether it answers.

    Attributes:
        ask: takes that port; whether a real call came back.
    """

    port_name: str
    ask: Callable[[int], bool]


class LayOut(Protocol):
    """Makes everything ready in a run's folder."""

    def __call__(self, cache: Path, folder: Path, ports: Mapping[str, int], *, tell: Tell) -> tuple[Part, ...]:
        """Write settings and empty storage where they are missing, and return the parts in the order of starting.

        Raises:
            Unavailable: a tool or a file is missing and can't be fetched.
            Corrupt: what was fetched is not what the lock names.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineKind:
    """One engine.

    Attributes:
        questions: for every part that it can have, by the part's name.
        prepare: fetches what it is made of into the cache.
        lay_out: makes a run's folder ready.
    """

    engine: Engine
    port_names: tuple[str, ...]
    questions: Mapping[str, Question]
    prepare: Callable[..., object]
    lay_out: LayOut
