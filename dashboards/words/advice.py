"""What analyzer, recommender and verify record as codes with values (`fleet.sentences`), in a language.

`fleet/locale/LANGUAGE/LC_MESSAGES/advice.po` holds the texts. Called by the report, the messages, the web pages, the
API and the command line.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import reduce
from typing import Any

from dashboards.view_models.rows import RefusalGroup
from enforcer.record.verdict import Verdict, headline, sentences
from fleet.capabilities.register import capabilities_of
from fleet.decisions import Plan, Recommendation, Refusal, Withheld
from fleet.documents import document, plan_document, profiles_document
from fleet.profiles import Finding, Profile, Profiles
from fleet.sentences import Sentence, sentence
from fleet.words import Language, Words


def reason_words(item: Recommendation, language: Language) -> str:
    """Why an advice is given."""
    return _clauses(item.why, language)


def change_words(item: Recommendation, language: Language) -> str:
    """What would change an advice."""
    last = item.why[-1]
    return _sentence(Words(language=language).said(last, "changes."), language)


def refusal_words(item: Refusal | Withheld | RefusalGroup, language: Language) -> str:
    """Why an advice is not given, with the values that were recorded."""
    return Words(language=language).said(Sentence(code=item.reason, values=item.values), "refused.")


def remark_words(plan: Plan, language: Language) -> tuple[str, ...]:
    """What no total of a plan says: free cards that it needs or could use meanwhile, and advice for people's hands."""
    words = Words(language=language)
    stuck = Counter(
        str(dict(item.values).get("card_model", "")) for item in plan.refused if item.reason == "no_surge_card"
    )
    needed = plan.totals.surge_cards
    shared = {dict(clause.values)["card"] for item in plan.by_hand for clause in item.why if clause.code == "sleep"}
    return (
        *((words.say("plan.surge_cards", count=needed),) if needed else ()),
        *(words.say("plan.surge_would_help", count=count, card_model=model) for model, count in sorted(stuck.items())),
        *(
            (words.say("plan.sleep_by_hand", count=len(plan.by_hand), cards=words.cards(len(shared))),)
            if shared
            else ()
        ),
    )


def state_words(profile: Profile, language: Language) -> str:
    """Why a workload is in its state."""
    return _clauses(profile.why, language)


def finding_words(finding: Finding, language: Language) -> str:
    """What a failed cross-check saw."""
    values = (("check", finding.check), *finding.values)
    return Words(language=language).said(Sentence(code="finding.seen", values=values))


def headline_words(verdict: Verdict, language: Language) -> str:
    """What leads wherever a plan is spoken of."""
    return judged_words(headline(verdict), language)


def verdict_words(verdict: Verdict, language: Language) -> str:
    """All that a verdict says, the headline first."""
    return judged_words(sentences(verdict), language)


def judged_words(said: Sequence[Sentence], language: Language) -> str:
    """Sentences of a verdict."""
    words = Words(language=language)
    whole = reduce(lambda first, second: sentence("mark.next_sentence", first=first, second=second), said)
    return words.said(whole) + words.say("mark.stop")


def plan_in_english(plan: Plan) -> dict[str, Any]:
    """A plan as JSON, with the English of each reason, refusal and stage, and what its backend enforces."""
    found = plan_document(plan)
    enforced = capabilities_of(plan.backend, plan.backend_version)
    found["framebuffer_isolation"] = enforced.framebuffer_isolation.value
    found["compute_isolation"] = enforced.compute_isolation.value
    found["is_experimental"] = enforced.is_experimental
    for item, record in zip(found["recommendations"], plan.recommendations, strict=True):
        item["reason"] = reason_words(record, Language.EN)
        item["change_of_mind"] = change_words(record, Language.EN)
    for item, stage in zip(found["stages"], plan.stages, strict=True):
        item["title"] = Words(language=Language.EN).stage(stage.title)
    _add_details(found["refused"], plan.refused)
    _add_details(found["withheld"], plan.withheld)
    return found


def profile_in_english(profile: Profile) -> dict[str, Any]:
    """A profile as JSON, with the English of its `reason`, and of the `detail` of its findings, beside the codes."""
    found: dict[str, Any] = document(profile)
    _add_english(found, profile)
    return found


def profiles_in_english(profiles: Profiles) -> dict[str, Any]:
    """Profiles as JSON, with the English of each `reason` and `detail` beside their codes."""
    found = profiles_document(profiles)
    for item, profile in zip(found["workloads"], profiles.workloads, strict=True):
        _add_english(item, profile)
    _add_details(found["withheld"], profiles.withheld)
    return found


def _add_english(item: dict[str, Any], profile: Profile) -> None:
    item["reason"] = state_words(profile, Language.EN)
    for one, finding in zip(item["trust"], profile.trust, strict=True):
        one["detail"] = finding_words(finding, Language.EN)


def _add_details(found: Sequence[dict[str, Any]], records: Sequence[Refusal | Withheld]) -> None:
    for item, refusal in zip(found, records, strict=True):
        item["detail"] = refusal_words(refusal, Language.EN)


def _clauses(clauses: Sequence[Sentence], language: Language) -> str:
    words = Words(language=language)
    return _sentence(words.say("mark.clause").join(words.said(one, "said.") for one in clauses), language)


def _sentence(text: str, language: Language) -> str:
    stop = Words(language=language).say("mark.stop")
    return text[:1].upper() + text[1:] + ("" if text.endswith(stop) else stop)
