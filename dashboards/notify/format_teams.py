"""Microsoft Teams by a Workflow ("when a Teams webhook request is received"): an adaptive card of text runs.

A TextRun shows its text as it stands, where a TextBlock would read Markdown; a mention needs an entity beside the text,
and there is none. Source: learn.microsoft.com, power-automate/teams/send-a-message-in-teams, adaptive-cards 1.4
(RichTextBlock), and the limit of 28 KB of microsoftteams/platform/webhooks-and-connectors.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from dashboards.notify.message import Message, lines_of, title_of
from dashboards.notify.outgoing import Hook, Outgoing, json_bytes, takes_all

_BODY_BYTES_MAX = 28_000


def outgoing(message: Message, hook: Hook, at: datetime) -> Outgoing:
    """The POST; `at` is of no meaning here."""
    del at
    lines = lines_of(message)
    body = _body(message, lines)
    while len(body) > _BODY_BYTES_MAX and lines:
        lines = [*lines[: max(0, len(lines) - 2)], "…"] if len(lines) > 1 else []
        body = _body(message, lines)
    return Outgoing(url=hook.url, body=body, refusal_of=takes_all)


def _body(message: Message, lines: list[str]) -> bytes:
    card: dict[str, Any] = {
        "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
        "type": "AdaptiveCard",
        "version": "1.4",
        "body": [_block(title_of(message), size="large", weight="bolder"), *(_block(line) for line in lines)],
    }
    if message.link is not None:
        card["actions"] = [{"type": "Action.OpenUrl", "title": message.link_text, "url": message.link}]
    attachment = {
        "contentType": "application/vnd.microsoft.card.adaptive", "contentUrl": None, "content": card,
    }  # fmt: skip
    return json_bytes({"type": "message", "attachments": [attachment]})


def _block(text: str, **style: str) -> dict[str, Any]:
    return {"type": "RichTextBlock", "inlines": [{"type": "TextRun", "text": text, **style}]}
