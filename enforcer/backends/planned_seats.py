"""Planned seats as fields of an owner, for every backend: places on the owner itself, only their hash in its template.

Pure. A template that does not change with new seats would not roll; one that named their cards and nodes would keep its
pods from starting for good once one of these is lost.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from enforcer.admission import (
    PLAN_ANNOTATION,
    SEATING_ANNOTATION,
    SEATS_ANNOTATION,
    WITHOUT_SEATING,
    PlannedSeat,
    parse_seats,
    seating_mark,
    seats_text,
)
from enforcer.manifest import Manifest, field_of
from fleet.errors import Corrupt

SEATS_FIELD = f"metadata.annotations[{SEATS_ANNOTATION}]"
TEMPLATE_ANNOTATIONS = "spec.template.metadata.annotations"


def seat_marks(
    kind: str, seats: Mapping[str, PlannedSeat], plan_id: str, grant: Mapping[str, str | None] | None = None
) -> dict[str, str | None]:
    """The seats of the pods of one template as fields of their owner, and the marks of the template.

    Args:
        seats: by the names that the pods have now.
        grant: resources that the template gives to each container that asks for cards; None where pods name no card.
    """
    fields: dict[str, str | None] = {SEATS_FIELD: seats_text(seats)}
    if kind not in WITHOUT_SEATING:
        marks = {PLAN_ANNOTATION: plan_id, SEATING_ANNOTATION: seating_mark(seats, grant or {})}
        fields.update({f"{TEMPLATE_ANNOTATIONS}[{name}]": value for name, value in marks.items()})
    return fields


def merged_seats(owner: Manifest, seats_of_roles: Mapping[str, str]) -> str:
    """The seats of all templates of an owner in one text.

    Args:
        owner: the owner as it stands; what it has for other roles stays, unless it can't be read: anybody may write
            there, and no pod is seated by it.
        seats_of_roles: seats of the templates that change, by the template's role.
    """
    try:
        kept = parse_seats(field_of(owner, SEATS_FIELD) or "{}")
    except Corrupt:
        kept = {}
    seats = {name: seat for name, seat in kept.items() if seat.role not in seats_of_roles}
    for role, text in seats_of_roles.items():
        seats.update({name: replace(seat, role=role) for name, seat in parse_seats(text).items()})
    return seats_text(seats)
