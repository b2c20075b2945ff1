"""What the weekly report leaves out and why: workloads that get no advice, counters that are not believed.

Called by `report`, in whose language it speaks.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from dashboards.shown.rows import RefusalGroup, refusal_groups
from dashboards.words.advice import refusal_words, refused_words
from dashboards.words.report import Words
from fleet.decisions import Plan
from fleet.profiles import Profiles
from fleet.units import format_count


def refused_in(plan: Plan | None, words: Words) -> tuple[RefusalGroup, ...]:
    """Who a plan leaves alone, each reason with its example in the report's language; none without a plan."""
    groups = () if plan is None else refusal_groups(plan.refused)
    return tuple(
        replace(
            group,
            detail=refused_words(group.reason.replace(" ", "_"), group.detail, group.values, words.language),
        )
        for group in groups
    )


def data_notes(profiles: Profiles, words: Words) -> tuple[str, ...]:
    """Counters that failed a cross-check, thin coverage, and advice that is withheld, one sentence each."""
    distrusted = Counter(finding.check for profile in profiles.workloads for finding in profile.trust)
    notes = [
        words.say("data.check", check=words.code("check", check), count=format_count(count))
        for check, count in distrusted.most_common()
    ]
    if profiles.coverage_ratio < 0.9:
        notes.append(words.say("data.coverage", ratio=words.percent(profiles.coverage_ratio, 1)))
    notes += [
        words.say(
            "data.withheld",
            kind=words.code("kind", item.kind.value),
            detail=refusal_words(item, words.language),
        )
        for item in profiles.withheld
    ]
    return tuple(notes)
