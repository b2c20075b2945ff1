"""The pages about settings: every setting with its default, range and meaning, made from the settings' own records.

Called by `docs/generate.py`.
"""

from __future__ import annotations

import ast
import inspect
import json
from enum import StrEnum
from itertools import pairwise

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from fleet.settings.settings import Settings, setting_fields

_INTRODUCTION = """\
Defaults < TOML file (`--config`) < environment < `--set NAME=VALUE`. Sizes and durations take units (`64MiB`, `15m`). \
`gputide --check` validates and exits.
"""


def settings_pages() -> dict[str, str]:
    """`settings.md`, which lists the sections, and a page for each of them: file name to Markdown."""
    meanings = setting_meanings()
    by_section: dict[str, list[str]] = {}
    for name, field in setting_fields():
        by_section.setdefault(name.partition(".")[0], []).append(_setting(name, field, meanings[name]))
    index = ["# Settings\n", _INTRODUCTION, "| section | settings | what it is about |", "|---|---|---|"]
    pages = {}
    for section, settings in by_section.items():
        about = _about(section)
        index.append(f"| [`{section}`](settings/{section}.md) | {len(settings)} | {about} |")
        pages[f"settings/{section}.md"] = "\n".join((f"# Settings: {section}\n", f"{about}\n", *settings))
    return {"settings.md": "\n".join(index) + "\n", **pages}


def _about(section: str) -> str:
    """What a section is about: the first line of its record's docstring."""
    record = Settings.model_fields[section].annotation
    return (inspect.getdoc(record) or "").partition("\n")[0]


def _setting(name: str, field: FieldInfo, meaning: str) -> str:
    default = field.get_default(call_default_factory=False)
    value = "none" if default is None else json.dumps(default, default=str)
    variable = "GPUTIDE_" + name.upper().replace(".", "__")
    known = (f"`{variable}`", f"default `{value}`", _range(field))
    return f"## `{name}`\n\n{meaning}\n\n{' · '.join(filter(None, known))}\n"


def setting_meanings() -> dict[str, str]:
    """What each setting means, by its dotted name: the text below its field, in one line."""
    return {
        f"{name}.{leaf}": " ".join(text.split())
        for name, section in Settings.model_fields.items()
        if isinstance(section.annotation, type)
        for model in reversed(section.annotation.__mro__)
        if issubclass(model, BaseModel) and model is not BaseModel
        for leaf, text in _texts_below_fields(model).items()
    }


def _texts_below_fields(model: type[BaseModel]) -> dict[str, str]:
    # Pydantic would read them too, but at every start of the program.
    found = {}
    for field, text in pairwise(ast.parse(inspect.getsource(model)).body[0].body):  # type: ignore[attr-defined]
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(text, ast.Expr):
            found[field.target.id] = ast.literal_eval(text.value)
    return found


def _range(field: FieldInfo) -> str:
    words = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
    bounds = [
        f"{sign} {getattr(item, attribute)}"
        for item in field.metadata
        for attribute, sign in words.items()
        if getattr(item, attribute, None) is not None
    ]
    annotation = field.annotation
    if isinstance(annotation, type) and issubclass(annotation, StrEnum):
        return ", ".join(annotation)
    return ", ".join(bounds)
