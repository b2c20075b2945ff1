"""What analyzer, recommender and verify say, in a language.

A verdict is message ids with values. Reasons and refusals are recorded in English and, beside it, as a code with the
values in it (`fleet.sentences`), because plans carry them; `locale/LANGUAGE/LC_MESSAGES/advice.po` says each code in
the other languages. A code that is not there, or without a value that its text needs, is said in English. Called by the
report, the messages, the web pages and the command line.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce

from dashboards.words.catalogue import Language, Words
from enforcer.record.verdict import Verdict, headline, sentences
from fleet.decisions import Recommendation, Refusal, Withheld
from fleet.profiles import Profile
from fleet.sentences import Sentence, Value


def reason_words(item: Recommendation, language: Language) -> str:
    """Why an advice is given."""
    return _told(item.sentences, item.reason, language)


def change_words(item: Recommendation, language: Language) -> str:
    """What would change an advice."""
    if language is Language.EN or not item.sentences:
        return item.change_of_mind
    last = item.sentences[-1]
    said = _filled(f"changes.{last.code}", dict(last.values), language)
    return item.change_of_mind if said is None else _ended(said, language)


def refusal_words(item: Refusal | Withheld, language: Language) -> str:
    """Why an advice is not given, with the values that were recorded."""
    return refused_words(item.reason, item.detail, item.values, language)


def refused_words(reason: str, detail: str, values: Sequence[tuple[str, Value]], language: Language) -> str:
    """The same by its parts.

    Args:
        reason: code.
        detail: the English sentence.
        values: what is in it.
        language: language.
    """
    if language is Language.EN:
        return detail
    known = dict(values)
    ways = (f"refused.{reason}{way}" for way in ("", ".1", ".2", ".3"))
    return next((said for way in ways if (said := _filled(way, known, language)) is not None), detail)


def state_words(profile: Profile, language: Language) -> str:
    """Why a workload is in its state."""
    return _told(profile.sentences, profile.reason, language)


def headline_words(verdict: Verdict, language: Language) -> str:
    """What leads wherever a plan is spoken of."""
    return judged_words(headline(verdict), language)


def verdict_words(verdict: Verdict, language: Language) -> str:
    """All that a verdict says, the headline first."""
    return judged_words(sentences(verdict), language)


def judged_words(said: Sequence[Sentence], language: Language) -> str:
    """Sentences of a verdict."""
    words = Words(language=language)
    texts = (words.say(one.code, **dict(one.values)) for one in said)
    return reduce(lambda first, second: words.say("mark.next_sentence", first=first, second=second), texts) + words.say(
        "mark.stop"
    )


def _told(sentences: Sequence[Sentence], english: str, language: Language) -> str:
    if language is Language.EN or not sentences:
        return english
    parts = [_filled(f"said.{one.code}", dict(one.values), language) for one in sentences]
    # Half a sentence would say something else.
    known = [part for part in parts if part]
    clause = Words(language=language).say("mark.clause")
    return _ended(clause.join(known), language) if len(known) == len(parts) else english


def _filled(message_id: str, values: Mapping[str, Value], language: Language) -> str | None:
    """A message with its values; None where there is no such message, or a value is missing."""
    words = Words(language=language)
    try:
        return words.say(message_id, **values) if words.knows(message_id) else None
    except KeyError:
        return None


def _ended(text: str, language: Language) -> str:
    stop = Words(language=language).say("mark.stop")
    return text if text.endswith(stop) else text + stop
