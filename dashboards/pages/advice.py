"""Sentences of analyzer and recommender on the pages, in the reader's language.

Called by every page that shows a reason or a refusal.
"""

from __future__ import annotations

from dashboards.shown.rows import RefusalGroup
from dashboards.words.advice import (
    change_words,
    reason_words,
    refusal_words,
    state_words,
)
from dashboards.words.reading import READING
from fleet.decisions import Recommendation, Refusal, Withheld
from fleet.profiles import Profile


def reason(item: Recommendation) -> str:
    """Why an advice is given."""
    return reason_words(item, READING.get())


def change_of_mind(item: Recommendation) -> str:
    """What would change an advice."""
    return change_words(item, READING.get())


def detail(item: Refusal | Withheld) -> str:
    """Why an advice is not given."""
    return refusal_words(item, READING.get())


def group_detail(group: RefusalGroup) -> str:
    """Why the first of a group gets no advice."""
    return refusal_words(group, READING.get())


def state_reason(profile: Profile) -> str:
    """Why a workload is in its state."""
    return state_words(profile, READING.get())
