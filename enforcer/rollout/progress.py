"""News from a rollout or an undo while it runs: what terminals and the plan page show."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from fleet.sentences import Sentence


class ProgressPhase(StrEnum):
    """What the enforcer is doing."""

    CHANGING = "changing"
    MOVING = "moving"
    WATCHING = "watching"
    PROMOTED = "promoted"
    RESTORING = "restoring"
    RESTORED = "restored"


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """One piece of news from a rollout or an undo.

    Attributes:
        stage: stage; 0 for an undo over several.
    """

    at: datetime
    plan_id: str
    stage: int
    phase: ProgressPhase
    said: Sentence
    done: int
    total: int
