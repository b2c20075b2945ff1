"""Slack's incoming webhooks: blocks whose foreign text is `plain_text`, which knows no mention and no link.

Source: docs.slack.dev, messaging/sending-messages-using-incoming-webhooks, reference/block-kit/blocks (header 150
characters, section 3,000, 50 blocks) and messaging/formatting-message-text (escapes of & < >).
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from dashboards.notify.message import Message, lines_of, title_of, within_bytes
from dashboards.notify.outgoing import Hook, Outgoing, json_bytes, takes_all

_SECTION_LENGTH_MAX = 3000


def outgoing(message: Message, hook: Hook, at: datetime) -> Outgoing:
    """The POST; `at` is of no meaning here."""
    del at
    title, lines = title_of(message), lines_of(message)
    blocks: list[dict[str, Any]] = [{"type": "header", "text": _plain_text(title)}]
    if lines:
        text = "\n".join(within_bytes(message, lines, _SECTION_LENGTH_MAX))
        blocks.append({"type": "section", "text": _plain_text(text)})
    if message.link is not None:
        link = f"<{message.link}|{_escaped(message.link_text)}>"
        blocks.append({"type": "section", "text": {"type": "mrkdwn", "text": link, "verbatim": True}})
    # Nobody's name is looked up on the web.
    quiet = {"unfurl_links": False, "unfurl_media": False}
    # What a phone shows before the message is opened is read as mrkdwn.
    return Outgoing(
        url=hook.url, body=json_bytes({"text": _escaped(title), "blocks": blocks, **quiet}), refusal_of=takes_all
    )


def _plain_text(text: str) -> dict[str, Any]:
    return {"type": "plain_text", "text": text, "emoji": False}


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
