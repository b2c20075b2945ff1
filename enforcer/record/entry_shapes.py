"""What stands in the entries of each ledger: fields and their types, checked as an entry is read.

A chain of hashes shows who edited an entry only where a key or an anchor does; whoever may write the file may chain
anything. So journals find in every content what stands here. Events that are not named are kept, and nobody reads them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from enforcer.backend import NodeOwner
from fleet.errors import Corrupt, GputideError
from fleet.settings.faults import fault_words
from fleet.tiers import Tier
from fleet.units import parse_time

_YEARS = range(1970, 2200)
"""Times at the ends of the calendar overflow once somebody adds to them."""


def moment_of(text: str) -> datetime:
    """A stored time, UTC.

    Raises:
        Corrupt: it is none, or of no year from 1970 to 2199.
    """
    try:
        found = parse_time(text)
    except GputideError as exc:
        raise Corrupt(str(exc)) from exc
    if found.year not in _YEARS:
        raise Corrupt(f"cannot read {text!r} as a time: expected a year from {_YEARS.start} to {_YEARS.stop - 1}")
    return found


def _is_moment(text: str) -> str:
    try:
        is_aware = datetime.fromisoformat(text).tzinfo is not None
        moment_of(text)
    except (Corrupt, ValueError) as exc:
        raise ValueError("expected a time such as 2026-12-24T09:00:00+00:00") from exc
    if not is_aware:
        raise ValueError("expected a time with its offset from UTC")
    return text


def _is_workload(text: str) -> str:
    if text.count("/") != 2:
        raise ValueError("expected namespace/Kind/name")
    return text


def _is_day(text: str) -> str:
    if len(text) != len("2026-12-24"):
        raise ValueError("expected a day such as 2026-12-24")
    _is_moment(f"{text}T00:00:00+00:00")
    return text


def _is_slice(share: list[str | int | None]) -> list[str | int | None]:
    """Container, card, MiB, percent, priority; node and resource where they name no card."""
    kinds = (str, str | None, int, int, str | None, str | None, str | None)
    if len(share) not in (5, 7) or not all(map(isinstance, share, kinds)):
        raise ValueError("expected container, card, MiB, percent and priority")
    return share


_Count = Annotated[int, Field(ge=0, le=10**12)]
_Day = Annotated[str, AfterValidator(_is_day)]
Moment = Annotated[str, AfterValidator(_is_moment)]
"""A text that `moment_of` reads, with its offset."""
_Seconds = Annotated[float, Field(ge=0, le=1e9)]
_Workload = Annotated[str, AfterValidator(_is_workload)]
# What is written as a tuple is a list once it was JSON.
_Lists = Field(strict=False)
_Pair = Annotated[tuple[str, str], _Lists]
_Sized = Annotated[tuple[str, _Count], _Lists]
_Slice = Annotated[list[str | _Count | None], AfterValidator(_is_slice)]


class _Shape(BaseModel):
    """Fields that a journal reads; there may be more."""

    model_config = ConfigDict(strict=True, defer_build=True)


class _Sentence(_Shape):
    code: str
    values: dict[str, str | bool | int | float | _Sentence]


_Said = _Sentence | str | None


class _Object(_Shape):
    kind: str
    namespace: str
    name: str
    resource_version: str
    recommendation: str
    fields: list[Annotated[tuple[str, str | None, str | None], _Lists]]
    holds: list[Annotated[tuple[str, str | None, str | None, str | None], _Lists]] = []
    generation: int | None = None
    parts: dict[str, str] | None = None
    owners: list[dict[str, Any]] = []


class _Scaling(_Object):
    """How many replicas stay is the new value of the first field."""

    @field_validator("fields")
    @classmethod
    def _is_count(cls, value: list[tuple[str, str | None, str | None]]) -> list[tuple[str, str | None, str | None]]:
        if not value or not re.fullmatch(r"\d{1,9}", value[0][2] or "0", re.ASCII):
            raise ValueError("expected a number of replicas")
        return value


class _Move(_Shape):
    namespace: str
    pod: str
    workload: _Workload
    recommendation: str
    old: list[_Slice]
    new: list[_Slice]
    called: str | None = None


class _Staged(_Shape):
    stage: _Count


class _StagedObject(_Object, _Staged):
    pass


class _StagedMove(_Move, _Staged):
    pass


class _Departure(_Shape):
    model_config = ConfigDict(strict=True, extra="forbid", defer_build=True)

    owner: Annotated[NodeOwner, Field(strict=False)]
    machine: Annotated[tuple[str, str, str], _Lists]
    newest: str = ""


class _NodeStep(_Staged):
    model_config = ConfigDict(strict=True, extra="forbid", defer_build=True)

    node: str
    empty_cards: list[str] = []
    restarts: list[_Pair] = []
    done_field: str | None = None
    done_value: str | None = None
    done_mode: str | None = None
    failed_value: str | None = None
    leaving: list[_Pair] = []
    advertised: list[_Pair] = []
    back: list[_Pair] = []
    registers_mib: list[_Sized] = []
    registered_mib: list[_Sized] = []
    offered_before: list[_Pair] = []
    departure: _Departure | None = None


class _Begin(_Shape):
    stages: list[_Count]
    by: str
    cards_granted: list[str]
    cluster: str | None = None


class _Stage(_Staged):
    canary: list[str]


class _Watched(_Staged):
    batch: str
    complaints: list[_Said]


class _Restoring(_Staged):
    reason: _Said


class _Restored(_Staged):
    kept: list[_Said]


class _UndoBegin(_Shape):
    stages: list[_Count]
    recommendation: str | None
    objects: list[_Object]
    moves: list[_Move]


class _Undone(_Shape):
    stages: list[_Count]
    recommendation: str | None
    kept: list[_Said]


class _By(_Shape):
    by: str


class _TideBegin(_Shape):
    night: _Day
    ends_at: Moment
    services: list[_Workload]
    scale: list[_Scaling]
    left: list[_Pair]
    workloads: list[_Workload]
    cards: _Count
    marks: list[_Object] = []
    frees: list[_Pair] = []

    @model_validator(mode="after")
    def _has_one_scale_each(self) -> _TideBegin:
        if len(self.services) != len(self.scale):
            raise ValueError("expected one scale for each service")
        return self


class _TideAdmit(_Shape):
    admission: list[_Object]
    tiers: list[Annotated[Tier, Field(strict=False)]] | None = None
    freed: list[str]
    machines: list[str] = []
    until: Moment | None = None


class _TideHomeEarly(_Shape):
    needs: dict[str, str]


class _TideTakeBack(_Shape):
    cards: list[str]


class _TideEnd(_Shape):
    seconds: _Seconds
    late: bool
    kept: list[_Said] = []


class _Squeeze(_Shape):
    node: str
    card: str
    containers: list[_Pair]


class _Release(_Shape):
    node: str
    card: str


class _MoveBegin(_Shape):
    move: str
    namespace: str
    pod: str
    pod_uid: str
    workload: _Workload
    maker: str
    replica: str
    from_node: str
    from_card: str
    to_card: str
    framebuffer_mib: _Count
    manner: Literal["warm", "restart"]
    home: bool
    reason: _Sentence
    overloaded_at: Moment


class _MovePhase(_Shape):
    move: str
    phase: Literal["begun", "ready", "leaving", "back", "done", "taken_back"]
    why: _Sentence | None


class _RequestIntent(_By):
    branch: str
    stages: list[_Count]


class _RequestSeen(_Shape):
    number: _Count
    url: str
    state: Literal["open", "merged", "closed"]


Shapes = Mapping[str, type[BaseModel]]
"""Contents by event."""

CHANGES: Shapes = {
    "begin": _Begin, "stage_begin": _Staged, "intent": _StagedObject, "move": _StagedMove, "node_step": _NodeStep,
    "stage": _Stage, "watched": _Watched, "promoted": _Staged, "restoring": _Restoring, "restored": _Restored,
    "undo_begin": _UndoBegin, "undone": _Undone,
}  # fmt: skip
"""What apply and undo write: the ledger of a folder, and the `GpuChange` objects of a cluster."""

_OF_FILES: Mapping[str, Shapes] = {
    "ledger.jsonl": CHANGES,
    "freezes.jsonl": {"frozen": _By, "thawed": _By},
    "requests.jsonl": {"request_intent": _RequestIntent, "request_seen": _RequestSeen},
    "tide.jsonl": {
        "tide_begin": _TideBegin, "tide_admit": _TideAdmit, "tide_home_early": _TideHomeEarly,
        "tide_take_back": _TideTakeBack, "tide_end": _TideEnd,
    },
    "relief.jsonl": {"squeeze": _Squeeze, "release": _Release, "move_begin": _MoveBegin, "move": _MovePhase},
}  # fmt: skip


def shapes_of(file: str) -> Shapes:
    """What stands in the entries of a ledger of that name (`fleet.data_folder`); of another one nobody knows."""
    return _OF_FILES.get(file, {})


def check_content(shapes: Shapes, event: str, content: Mapping[str, Any]) -> None:
    """Nothing, where a content holds what its event has.

    Raises:
        Corrupt: it does not, with the fields.
    """
    shape = shapes.get(event)
    if shape is None:
        return
    try:
        shape.model_validate(content)
    except ValidationError as exc:
        raise Corrupt(f"of a {event!r} it says {fault_words(exc, shape)}") from exc
