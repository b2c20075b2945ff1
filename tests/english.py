"""The English of what analyzer and recommender record as codes."""

from __future__ import annotations

from dashboards.words.advice import reason_words, refusal_words, state_words
from fleet.decisions import Recommendation, Refusal, Stage, Withheld
from fleet.profiles import Profile
from fleet.words import Language, Words


def english(item: Recommendation | Refusal | Withheld | Profile | Stage) -> str:
    """Why an advice is given or not, why a workload is in its state, or the title of a stage."""
    match item:
        case Recommendation():
            return reason_words(item, Language.EN)
        case Profile():
            return state_words(item, Language.EN)
        case Stage():
            return Words(language=Language.EN).stage(item.title)
        case _:
            return refusal_words(item, Language.EN)
