"""A plan's request in words: title and body as people of the repository read them, and what the command line prints."""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import Decimal

from dashboards.words.advice import reason_words
from enforcer.forge.forge import ForgeRequest
from enforcer.forge.pull_request import Draft
from enforcer.record.request_log import KeptRequest
from fleet.decisions import Plan, Recommendation, Saving
from fleet.units import format_count, format_time
from fleet.words import Language, Words
from gputide.output import Answer

_ADVICE_SHOWN = 30
_FILES_SHOWN = 100
_MARKS = re.compile(r"([\\`*_{}\[\]()<>#+!|~])")


def request_title(plan: Plan, stages: Sequence[int], language: Language) -> str:
    """One line, that of the commit too."""
    words = Words(language=language)
    freed = sum(stage.cards_freed for stage in plan.stages if stage.stage in stages)
    return words.say("request.title", plan=plan.plan_id, cards=words.cards(freed))


def request_body(plan: Plan, stages: Sequence[int], draft: Draft, language: Language) -> str:
    """What changes, what it saves, what it risks and how to undo it, in Markdown that no name of a tenant breaks."""
    words = Words(language=language)
    chosen = [stage for stage in plan.stages if stage.stage in stages]
    ids = {name for stage in chosen for name in stage.recommendations}
    advice = [item for item in plan.recommendations if item.id in ids]
    freed = sum(stage.cards_freed for stage in chosen)
    numbers = words.say("mark.list").join(str(stage.stage) for stage in chosen)
    lines = [
        words.say(
            "request.lead", plan=plan.plan_id, cluster=_plain(plan.cluster), stages=numbers, branch=draft.base_branch
        ),
        f"### {words.say('request.changes')}",
        "\n".join(f"- {_code(one.file)}: {_code(one.object)}" for one in draft.placed[:_FILES_SHOWN]),
    ]
    if draft.component is not None:
        lines.append(words.say("request.component", folder=_code(draft.component)))
    lines += [
        f"### {words.say('request.saves')}",
        words.say("request.saving", cards=words.cards(freed), money=words.saving(_sum(advice), plan.currency)),
        f"### {words.say('request.risks')}",
        words.say(
            "request.harm", harm=words.percent(plan.totals.predicted_violation_ratio),
            moves=sum(stage.moves for stage in chosen),
        ),
        "\n".join(
            f"- {_code(item.id)}: {_plain(reason_words(item, language))} "
            f"({words.say('level.' + item.risk_level.value)})"
            for item in advice[:_ADVICE_SHOWN]
        ),
        f"### {words.say('request.undo')}",
        words.say("request.revert"),
    ]  # fmt: skip
    return "\n\n".join(line for line in lines if line) + "\n"


def draft_answer(plan: Plan, draft: Draft, title: str, body: str) -> Answer:
    """What a dry run prints."""
    files = format_count(len(draft.files))
    if draft.request is not None:
        what = f"would add {files} files to {draft.request.url} ({draft.request.state.value})"
        if not draft.files:
            what = f"nothing to add to {draft.request.url} ({draft.request.state.value})"
    else:
        what = f"would open a request of {files} files from branch {draft.branch} to {draft.base_branch}"
    return Answer(
        document={
            "plan_id": plan.plan_id,
            "branch": draft.branch,
            "base_branch": draft.base_branch,
            "request": None if draft.request is None else _request(draft.request),
            "title": title,
            "body": body,
            "files": [{"path": one.path, "is_new": one.was is None, "text": one.text} for one in draft.files],
        },
        headline=(f"plan {plan.short_id}: {what}",),
        texts=(draft.text.splitlines(), [title, "", *body.splitlines()]),
        footnotes=(*_unplaced(draft), "nothing was sent; --yes sends it"),
    )


def sent_answer(plan: Plan, draft: Draft, request: ForgeRequest, *, is_changed: bool) -> Answer:
    """What was sent."""
    what = "sent" if is_changed else "nothing was left to send"
    return Answer(
        document={"plan_id": plan.plan_id, "branch": draft.branch, "request": _request(request), "changed": is_changed},
        headline=(f"plan {plan.short_id}: {what}: {request.url} ({request.state.value})",),
        footnotes=(*_unplaced(draft), f"its state later: gputide plan show --plan {plan.short_id} --pull-request"),
    )


def kept_line(kept: KeptRequest) -> str:
    """The request of a plan, where the plan is shown."""
    return f"pull request: {kept.url} ({kept.state.value} since {format_time(kept.seen_at)})"


def _request(request: ForgeRequest) -> dict[str, object]:
    return {"number": request.number, "url": request.url, "state": request.state.value}


def _unplaced(draft: Draft) -> tuple[str, ...]:
    if draft.component is None:
        return ()
    patched = [f"{one.object} ({one.why})" for one in draft.placed if not one.is_edited]
    return (
        *(f"a patch, not an edit: {one}" for one in patched[:10]),
        f"name {draft.component} in `components` of the overlay that holds these objects, or the patches do nothing",
    )


def _sum(advice: Sequence[Recommendation]) -> Saving:
    """What advice saves together; None where one of them is unknown."""

    def total(amounts: list[Decimal | None]) -> Decimal | None:
        known = [amount for amount in amounts if amount is not None]
        return sum(known, Decimal(0)) if known and len(known) == len(amounts) else None

    return Saving(
        amortised=total([item.saving_per_week.amortised for item in advice]),
        marginal=total([item.saving_per_week.marginal for item in advice]),
    )


def _code(text: str) -> str:
    """A name in Markdown: nothing in it is a link, a mention or markup."""
    return f"`{' '.join(text.replace('`', ' ').split())}`"


def _plain(text: str) -> str:
    """A sentence with names in it: neither markup nor a mention, which the sign after @ breaks."""
    return _MARKS.sub(r"\\\1", " ".join(text.split())).replace("@", "@\u200b")
