"""A change of a plan's status leaves the events that say what happened, and one that stays as it is leaves none."""

from __future__ import annotations

from typing import Any

import pytest

from enforcer.kubernetes.events import events_between


def status(*stages: str, why: str = "", refused: str = "", departed: str = "") -> dict[str, Any]:
    """A status with stages from 1 on."""
    return {
        "stages": [
            {"stage": number, "state": state, "reason": why if state == "restored" else ""}
            for number, state in enumerate(stages, start=1)
        ],
        "conditions": [
            {"type": "Applied", "status": "False", "reason": "Refused" if refused else "Waiting", "message": refused},
            {"type": "Departed", "status": "True" if departed else "False", "reason": "x", "message": departed},
        ],
    }


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ({}, status("proposed", "proposed"), []),
        (status("open"), status("promoted"), [("Promoted", "kept stage 1")]),
        (
            status("restoring"),
            status("restored", why="b-0 restarts"),
            [("TakenBack", "took back stage 1: b-0 restarts")],
        ),
        (status("undoing", "undoing"), status("undone", "undone"), [("Undone", "undid stage 1, 2")]),
        (status("open"), status("open", refused="it is Sunday"), [("Refused", "it is Sunday")]),
        (status("open", refused="it is Sunday"), status("open", refused="it is Sunday"), []),
        (status("open", refused="it is Sunday"), status("open", refused="it is night"), [("Refused", "it is night")]),
        (status("promoted"), status("promoted", departed="a: node-1 is gone"), [("Departed", "a: node-1 is gone")]),
        (status("promoted", departed="a: node-1 is gone"), status("promoted", departed="a: node-1 is gone"), []),
        (status("promoted", departed="a: node-1 is gone"), status("promoted"), []),
    ],
)
def test_events_say_what_changed_and_once(
    before: dict[str, Any], after: dict[str, Any], told: list[tuple[str, str]]
) -> None:
    assert [(event.reason, event.message) for event in events_between(before, after)] == told
    assert not list(events_between(after, after))
