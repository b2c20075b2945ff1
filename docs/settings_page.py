"""The page about settings: every setting with its default, range and meaning, made from the settings' own records.

Called by `docs/generate.py`.
"""

from __future__ import annotations

import json
from enum import StrEnum

from pydantic.fields import FieldInfo

from fleet.settings.settings import setting_fields

_INTRODUCTION = """\
Defaults < TOML file (`--config`) < environment < `--set NAME=VALUE`. Sizes and durations take units (`64MiB`, `15m`). \
`gputide --check` validates and exits.
"""


def settings_page() -> str:
    """The Markdown page."""
    lines = [
        "# Settings\n",
        _INTRODUCTION,
        "| setting | environment | default | range | meaning |",
        "|---|---|---|---|---|",
    ]
    for name, field in setting_fields():
        default = field.get_default(call_default_factory=False)
        value = "none" if default is None else json.dumps(default, default=str)
        meaning = " ".join((field.description or "").split())
        variable = "GPUTIDE_" + name.upper().replace(".", "__")
        lines.append(f"| `{name}` | `{variable}` | `{value}` | {_range(field)} | {meaning} |")
    return "\n".join(lines) + "\n"


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
