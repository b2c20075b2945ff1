"""Sentences of analyzer and recommender on the pages, in the reader's language; in English where it lacks them.

Called by every page that shows a reason or a refusal.
"""

from __future__ import annotations

from typing import Any

from dashboards.pages.frame import english
from dashboards.shown.rows import RefusalGroup
from dashboards.words.advice import (
    change_words,
    reason_words,
    refusal_words,
    refused_words,
    state_words,
)
from dashboards.words.catalogue import READING
from fleet.decisions import Recommendation, Refusal, Withheld
from fleet.profiles import Profile


def reason(item: Recommendation) -> Any:
    """Why an advice is given."""
    return _shown(reason_words(item, READING.get()), item.reason)


def change_of_mind(item: Recommendation) -> Any:
    """What would change an advice."""
    return _shown(change_words(item, READING.get()), item.change_of_mind)


def detail(item: Refusal | Withheld) -> Any:
    """Why an advice is not given."""
    return _shown(refusal_words(item, READING.get()), item.detail)


def group_detail(group: RefusalGroup) -> Any:
    """Why the first of a group gets no advice."""
    code = group.reason.replace(" ", "_")
    return _shown(refused_words(code, group.detail, group.values, READING.get()), group.detail)


def state_reason(profile: Profile) -> Any:
    """Why a workload is in its state."""
    return _shown(state_words(profile, READING.get()), profile.reason)


def _shown(said: str, recorded: str) -> Any:
    """What is left in English is marked as such, for who hears it."""
    return english(recorded) if said == recorded else said
