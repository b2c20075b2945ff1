"""An object's change in the file that keeps it: the fewest characters, comments and order left as they are.

Two steps. `desired` works on values: a field that says what the cluster had is changed, one that says what the plan
wants is left, and one that says something else is a conflict, because somebody decided that. `edited` works on the
text: it follows the parser's marks to the values that differ and replaces these alone. What comes out is read again
and must be what was desired, with every other document as it was, else the file is not edited at all. Pure.

Source: yaml.org/spec/1.1 (block and flow style, indentation).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from enforcer.emit.object_patch import ObjectPatch
from fleet.errors import Misconfigured
from fleet.units import quantity_equal
from fleet.yaml_text import yaml_documents


@dataclass(frozen=True, slots=True, kw_only=True)
class Conflict:
    """A field of a file that says neither what the cluster had nor what the plan wants.

    Attributes:
        place: the field, with dots.
        found: what it says; None where the file lacks what the change is made in, such as a container.
    """

    place: str
    found: str | None
    expected: str


_SHOWN_MAX = 100

Document = tuple[yaml.Node, Any]


def documents(content: bytes) -> list[Document]:
    """The documents of a file; none where it is no YAML that could be edited, such as a chart's template."""
    try:
        return yaml_documents(content.decode())
    except (yaml.YAMLError, ValueError, ArithmeticError):
        return []


def holds(value: Any, patch: ObjectPatch) -> bool:
    """Whether a document is the object of a patch; one without a namespace gets it elsewhere."""
    metadata = value.get("metadata") if isinstance(value, dict) else None
    if not isinstance(metadata, dict) or not isinstance(value.get("apiVersion"), str):
        return False
    group = value["apiVersion"].rpartition("/")[0]
    named = (value.get("kind"), group, metadata.get("name"))
    return (
        named == (patch.kind.kind, patch.kind.group, patch.name)
        and metadata.get("namespace", patch.namespace) == patch.namespace
    )


def desired(here: Mapping[str, Any], patch: ObjectPatch) -> tuple[dict[str, Any], tuple[Conflict, ...]]:
    """The object of a file as the plan wants it, and what speaks against it."""
    conflicts: list[Conflict] = []
    return _merged(here, patch.before, patch.merge_patch, "", conflicts), tuple(conflicts)


def edited(text: str, number: int, wanted: Mapping[str, Any]) -> str | None:
    """A file with one document changed; None where that can't be done by changing values alone.

    Args:
        number: of the document, as `documents` gives them, from 0.
    """
    before = yaml_documents(text)
    node, value = before[number]
    try:
        edits = list(_edits(text, node, value, wanted))
        found = _with(text, edits)
        after = yaml_documents(found)
    except (yaml.YAMLError, ValueError, ArithmeticError):
        return None
    others = [one for _, one in before]
    others[number] = dict(wanted)
    return found if [one for _, one in after] == others else None


def _merged(
    here: Mapping[str, Any], before: Mapping[str, Any], patch: Mapping[str, Any], at: str, conflicts: list[Conflict]
) -> dict[str, Any]:
    found = dict(here)
    for key, value in patch.items():
        place, now, old = f"{at}.{key}" if at else key, here.get(key), before.get(key)
        if isinstance(value, Mapping) and isinstance(now, Mapping | None):
            found[key] = _merged(now or {}, old if isinstance(old, Mapping) else {}, value, place, conflicts)
        elif _is_named(value) and _is_named(now or []) and _is_named(old or []):
            found[key] = _merged_items(now or [], old or [], value, place, conflicts)
        elif now is None or _alike(now, value):
            # What the file leaves out is what the server fills in.
            if value is not None and now is None:
                found[key] = value
        elif not _alike(now, old):
            conflicts.append(Conflict(place=place, found=_shown(now), expected=_shown(old)))
        elif value is None:
            del found[key]
        else:
            found[key] = value
    return found


def _merged_items(
    here: Sequence[Any], before: Sequence[Any], patch: Sequence[Any], at: str, conflicts: list[Conflict]
) -> list[Any]:
    found = {item["name"]: item for item in here}
    old = {item["name"]: item for item in before}
    for item in patch:
        name, place = item["name"], f"{at}[{item['name']}]"
        if item.get("$patch") == "delete":
            found.pop(name, None)
        elif name in old and name not in found:
            conflicts.append(Conflict(place=place, found=None, expected=name))
        else:
            found[name] = _merged(found.get(name, {"name": name}), old.get(name, {}), item, place, conflicts)
    return list(found.values())


def _shown(value: Any) -> str:
    """A value in a message: a file may hold anything."""
    return " ".join(str(value)[:_SHOWN_MAX].split())


def _is_named(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(item, Mapping) and "name" in item for item in value)


def _alike(one: Any, other: Any) -> bool:
    """Whether two values mean the same to Kubernetes, which takes `1` for a quantity and for a count."""
    if one == other:
        return isinstance(one, bool) is isinstance(other, bool)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_alike, one, other))
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(_alike(one[key], other[key]) for key in one)
    if not isinstance(one, str | int | float) or not isinstance(other, str | int | float):
        return False
    if isinstance(one, bool) or isinstance(other, bool):
        return False
    try:
        return quantity_equal(one, other)
    except Misconfigured:
        return False


Edit = tuple[int, int, str]
"""Start and end in the text, and what stands there instead."""


def _edits(text: str, node: Any, now: Any, wanted: Any) -> Iterator[Edit]:
    """The changes of a text that make the value at a node another one."""
    if type(now) is type(wanted) and now == wanted:
        return
    is_block = isinstance(node, yaml.CollectionNode) and not node.flow_style
    # Of a key that stands twice the node may be another than the value is of.
    is_map, is_list = isinstance(node, yaml.MappingNode), isinstance(node, yaml.SequenceNode)
    if is_block and is_map and isinstance(now, dict) and isinstance(wanted, Mapping) and now.keys() & wanted.keys():
        yield from _map_edits(text, node, now, wanted)
    elif (
        is_block and is_list and isinstance(now, list) and isinstance(wanted, list)
        and len(node.value) == len(now) == len(wanted)
    ):  # fmt: skip
        for inner, old, new in zip(node.value, now, wanted, strict=True):
            yield from _edits(text, inner, old, new)
    elif is_block:
        raise ValueError("a block is replaced as a whole only where its key is known")
    else:
        yield node.start_mark.index, node.end_mark.index, _flow(wanted)


def _map_edits(text: str, node: yaml.MappingNode, now: dict[str, Any], wanted: Mapping[str, Any]) -> Iterator[Edit]:
    for place, (key, value) in enumerate(node.value):
        name = key.value
        if not isinstance(name, str) or name not in now:
            raise ValueError("a key stands twice, or is no text")
        if name not in wanted:
            # From the key to the next one, or to the end of the mapping: comments between go with it.
            start = key.start_mark.index
            end = node.value[place + 1][0].start_mark.index if place + 1 < len(node.value) else _end(text, value)
            yield (start, end, "") if place + 1 < len(node.value) else (_line_start(text, start), end, "")
        elif (
            isinstance(value, yaml.CollectionNode) and not value.flow_style and not _can_follow(now[name], wanted[name])
        ):
            indent = key.start_mark.column
            start, end = key.start_mark.index, _end(text, value)
            yield start, end, _block({name: wanted[name]}, indent).lstrip(" ")
        else:
            yield from _edits(text, value, now[name], wanted[name])
    added = {name: value for name, value in wanted.items() if name not in now}
    if added:
        at = _end(text, node.value[-1][1])
        lead = "" if text[at - 1 : at] == "\n" else "\n"
        yield at, at, lead + _block(added, node.start_mark.column)


def _can_follow(now: Any, wanted: Any) -> bool:
    if isinstance(now, dict) and isinstance(wanted, Mapping):
        return bool(now.keys() & wanted.keys())
    return isinstance(now, list) and isinstance(wanted, list) and len(now) == len(wanted)


def _end(text: str, node: Any) -> int:
    """Behind the line on which a value ends; the parser's mark of a block is where the next thing begins."""
    last = node
    while isinstance(last, yaml.CollectionNode) and not last.flow_style and last.value:
        last = last.value[-1][1] if isinstance(last, yaml.MappingNode) else last.value[-1]
    at = last.end_mark.index
    if at and text[at - 1] == "\n":
        return int(at)
    line = text.find("\n", at)
    return len(text) if line < 0 else line + 1


def _line_start(text: str, at: int) -> int:
    start = text.rfind("\n", 0, at) + 1
    return start if not text[start:at].strip() else at


def _flow(value: Any) -> str:
    """A value on one line."""
    return (
        yaml.safe_dump(value, default_flow_style=True, width=2**31, allow_unicode=True)
        .removesuffix("\n...\n")
        .rstrip("\n")
    )


def _block(value: Mapping[str, Any], indent: int) -> str:
    lines = yaml.safe_dump(dict(value), sort_keys=False, width=2**31, allow_unicode=True).splitlines(keepends=True)
    return "".join(" " * indent + line for line in lines)


def _with(text: str, edits: Sequence[Edit]) -> str:
    found = text
    for start, end, new in sorted(edits, reverse=True):
        found = found[:start] + (new.replace("\n", "\r\n") if "\r\n" in text else new) + found[end:]
    return found
