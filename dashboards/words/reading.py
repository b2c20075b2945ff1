"""Sentences in the language of the reader whose web request is being answered."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from types import MappingProxyType

from fleet.words import Language, Words

LANGUAGES: Mapping[Language, str] = MappingProxyType({Language.EN: "English", Language.ZH: "中文"})
"""Each language by its own name."""

READING: ContextVar[Language] = ContextVar("READING", default=Language.EN)
"""Language of the web request that is being answered, set by `request_hooks`; English outside of one."""


def say(message_id: str, **values: object) -> str:
    """A message in the reader's language, see `Words.say`."""
    return reader_words().say(message_id, **values)


def say_code(group: str, code: str) -> str:
    """A code of a closed list in the reader's language, see `Words.code`."""
    return reader_words().code(group, code)


def reader_words() -> Words:
    """The words of the reader's language."""
    return Words(language=READING.get())
