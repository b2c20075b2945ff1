"""What a tool of the assistant is, what it is asked, and the checks of both; no protocol, no socket.

A tool reads the ports of the person who asks (`access/scoped`), so it decides on no right that these know. Called by
`dashboards.assistant.server`; tools that need a whole data folder come from `gputide.assistant`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from dashboards.access.people import NotAllowed, Person
from dashboards.api.operations import OPERATIONS, Asked, fits, wanted
from dashboards.queries import Views
from fleet.errors import Misconfigured, NotEnoughData

ROWS = 20
"""Rows of the list that a tool is asked for, unless it is asked for more or fewer."""
ROWS_MAX = 50
_SHOWN_CHARS_MAX = 80

LIMIT: Mapping[str, Any] = {
    "type": "integer", "minimum": 1, "maximum": ROWS_MAX, "default": ROWS,
    "description": f"Most rows of a list, 1 to {ROWS_MAX}; `left_out` counts the others.",
}  # fmt: skip
NAME: Mapping[str, Any] = {"type": "string", "minLength": 1, "maxLength": 700}
CLUSTER: Mapping[str, Any] = {**NAME, "description": "A cluster; the first that you may see unless given."}
PLAN_ID: Mapping[str, Any] = {
    "type": "string", "minLength": 4, "maxLength": 64, "pattern": "^[0-9a-f]+$",
    "description": "Id of a plan, or its first digits; the newest plan of the cluster unless given.",
}  # fmt: skip

_OPERATIONS = {operation.name: operation for operation in OPERATIONS}


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A call of a tool.

    Attributes:
        views: what the person who asks may see.
        asked: arguments, checked against the tool's schema.
    """

    views: Views
    person: Person
    asked: Mapping[str, Any]

    @property
    def limit(self) -> int:
        """Most rows of a list."""
        return int(self.asked.get("limit", ROWS))

    def cluster(self) -> str:
        """The cluster that is meant.

        Raises:
            NotEnoughData: no cluster has data, or the person may see none.
        """
        named = self.asked.get("cluster")
        if named is not None:
            return str(named)
        known = self.views.fleet.clusters()
        if not known:
            raise NotEnoughData("no cluster has sent data yet, or you may see none")
        return known[0]

    def whole_cluster(self, what: str) -> str:
        """The cluster that is meant, for somebody who may see all of it.

        Args:
            what: what is asked, for the message.

        Raises:
            NotAllowed: they may see some namespaces alone, and the answer counts the cluster as a whole.
            NotEnoughData: there is no such cluster, or they may not see it.
        """
        cluster = self.cluster()
        if cluster not in self.views.fleet.clusters():
            raise NotEnoughData(f"there is no such cluster, or you may not see it: {cluster!r}")
        if self.person.namespaces_seen(cluster) is not None:
            raise NotAllowed(
                f"cannot show {what} of cluster {cluster}: it counts the cluster as a whole, and you may see some "
                "namespaces of it"
            )
        return cluster

    def operation(self, name: str, **path: str) -> Mapping[str, Any]:
        """What the operation of this name in the API (`dashboards.api.operations`) answers to the same person."""
        asked = Asked(path=path, query={}, stages=(), by=self.person.name)
        return _OPERATIONS[name].answer(self.views, asked)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a tool found.

    Attributes:
        cluster: whose data it is made from.
        data: the content; JSON values, keys in lower case.
        left_out: rows that a list would have had beside those shown, by its key.
    """

    cluster: str
    data: Mapping[str, Any]
    left_out: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """One tool.

    Attributes:
        name: by which an assistant calls it.
        says: what it answers, for the assistant; holds no text of a tenant.
        parameters: argument → JSON schema.
        required: arguments that must be given.
        data: key of `data` → JSON schema.
    """

    name: str
    says: str
    answer: Callable[[Question], Found]
    data: Mapping[str, Mapping[str, Any]]
    parameters: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    required: tuple[str, ...] = ()

    @property
    def input_schema(self) -> dict[str, Any]:
        """JSON schema of its arguments."""
        return {
            "type": "object",
            "properties": {name: dict(schema) for name, schema in self.parameters.items()},
            "required": list(self.required),
            "additionalProperties": False,
        }

    def checked(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """The arguments, where they are what it takes.

        Raises:
            Misconfigured: one is unknown, missing or not what its schema says; the message says what is expected.
        """
        for name, value in arguments.items():
            if name not in self.parameters:
                known = ", ".join(self.parameters) or "none"
                raise Misconfigured(f"cannot use argument {_shown(name)} of {self.name}: expected {known}")
            if not fits(value, self.parameters[name]):
                words = _expected(self.parameters[name])
                raise Misconfigured(f"cannot use {name}={_shown(value)} of {self.name}: expected {words}")
        for name in self.required:
            if name not in arguments:
                words = _expected(self.parameters[name])
                raise Misconfigured(f"cannot call {self.name} without {name}: expected {words}")
        return arguments


def rows(key: str, found: list[dict[str, Any]], limit: int, **more: Any) -> tuple[dict[str, Any], dict[str, int]]:
    """`data` and `left_out` of an answer that is one list, cut to its first rows, beside `more`."""
    return {key: found[:limit], **more}, {key: len(found) - limit} if len(found) > limit else {}


def listed(*names: str) -> dict[str, Any]:
    """JSON schema of a list of objects that have some keys."""
    return {"type": "array", "items": {"type": "object", "required": list(names)}}


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARS_MAX else f"{text[:_SHOWN_CHARS_MAX]}…"


def _expected(schema: Mapping[str, Any]) -> str:
    """What a schema expects, in words."""
    if "enum" in schema:
        return f"one of {', '.join(schema['enum'])}"
    kind = schema["type"]
    if kind == "integer":
        return wanted(schema)
    if kind == "boolean":
        return "true or false"
    if kind == "array":
        return f"{schema['minItems']} to {schema['maxItems']} items, each {_expected(schema['items'])}"
    if kind == "object":
        return f"an object of at most {schema['maxProperties']} texts"
    pattern = f" that fits {schema['pattern']}" if "pattern" in schema else ""
    return f"a text of {schema['minLength']} to {schema['maxLength']} characters{pattern}"
