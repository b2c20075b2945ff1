"""A message as each chat service takes it: one POST, signed as the service documents, before anybody sends it.

A format is a function of message, hook and moment; `delivery_http` sends what it made, a dry run writes it to a file.
Names come from tenants, and no service obeys them: they go into fields of plain text where the service has such
fields, else into Markdown from which `_harmless` took everything that could act. Nobody's link is unfurled.

Sources: docs.slack.dev (messaging/sending-messages-using-incoming-webhooks, reference/block-kit/blocks,
messaging/formatting-message-text), learn.microsoft.com (power-automate/teams/send-a-message-in-teams, adaptive-cards
1.4, microsoftteams/platform/webhooks-and-connectors), open.feishu.cn (document/client-docs/bot-v3/add-custom-bot),
open.dingtalk.com (document/robots/custom-robot-access, customize-robot-security-settings),
developer.work.weixin.qq.com (document/path/91770).
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType
from typing import Any
from urllib.parse import urlencode

from dashboards.notify.message import Message, lines_of, title_of, within_bytes
from fleet.documents import iso
from fleet.settings.notify import ChannelKind

_SLACK_SECTION_LENGTH_MAX = 3000
_TEAMS_BODY_BYTES_MAX = 28_000
_FEISHU_TEXT_BYTES_MAX = 16_000
"""A body has 20 KB at most."""
_FEISHU_TOO_MANY = frozenset({9499, 11232})
_DINGTALK_TEXT_BYTES_MAX = 18_000
"""A body has 20,000 bytes at most."""
_DINGTALK_TOO_MANY = frozenset({130101, 410100})
_WECOM_CONTENT_BYTES_MAX = 4096
_WECOM_TOO_MANY = frozenset({45009, -1})
"""20 messages a minute."""
_TWINS = str.maketrans(
    {sign: chr(ord(sign) + 0xFEE0) for sign in "<>[]()!#*`@&\\|~"}  # the block of full-width forms, U+FF01 and on
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hook:
    """Where a service takes messages, as its owner gave it; both are secrets.

    Attributes:
        secret: signing key; None where the service or its owner wants none.
    """

    url: str = field(repr=False)
    secret: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outgoing:
    """One POST.

    Attributes:
        url: address, with what the service wants signed in it.
        refusal_of: reads the service's answer (its body) and says why the message was not taken; None where it was.
    """

    url: str = field(repr=False)
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)
    refusal_of: Callable[[bytes], Refusal | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why a service that answered 200 did not take a message.

    Attributes:
        is_passing: True where the same message may be taken later: too many at once.
    """

    reason: str
    is_passing: bool


def slack(message: Message, hook: Hook, at: datetime) -> Outgoing:
    """Slack's incoming webhooks: blocks of `plain_text`, which knows no mention and no link; not signed."""
    del at
    title, lines = title_of(message), lines_of(message)
    blocks: list[dict[str, Any]] = [{"type": "header", "text": _slack_text(title)}]
    if lines:
        text = "\n".join(within_bytes(message, lines, _SLACK_SECTION_LENGTH_MAX))
        blocks.append({"type": "section", "text": _slack_text(text)})
    if message.link is not None:
        link = f"<{message.link}|{_slack_escaped(message.link_text)}>"
        blocks.append({"type": "section", "text": {"type": "mrkdwn", "text": link, "verbatim": True}})
    # What a phone shows before the message is opened is read as mrkdwn.
    content = {"text": _slack_escaped(title), "blocks": blocks, "unfurl_links": False, "unfurl_media": False}
    return Outgoing(url=hook.url, body=_json_bytes(content), refusal_of=_takes_all)


def teams(message: Message, hook: Hook, at: datetime) -> Outgoing:
    """Microsoft Teams by a Workflow ("when a Teams webhook request is received"): an adaptive card; not signed.

    A TextRun shows its text as it stands, where a TextBlock would read Markdown; a mention needs an entity beside the
    text, and there is none.
    """
    del at
    lines = lines_of(message)
    body = _teams_body(message, lines)
    while len(body) > _TEAMS_BODY_BYTES_MAX and lines:
        lines = [*lines[: max(0, len(lines) - 2)], "…"] if len(lines) > 1 else []
        body = _teams_body(message, lines)
    return Outgoing(url=hook.url, body=body, refusal_of=_takes_all)


def feishu(message: Message, hook: Hook, at: datetime) -> Outgoing:
    """Feishu's and Lark's custom bots: a card of `plain_text`; a signature in the body is taken for an hour.

    Answers carry `code`, older ones `StatusCode`.
    """
    elements: list[dict[str, Any]] = []
    lines = within_bytes(message, lines_of(message), _FEISHU_TEXT_BYTES_MAX)
    if lines:
        elements.append({"tag": "div", "text": _feishu_text("\n".join(lines))})
    if message.link is not None:
        button = {"tag": "button", "text": _feishu_text(message.link_text), "url": message.link, "type": "primary"}
        elements.append({"tag": "action", "actions": [button]})
    content: dict[str, Any] = {
        "msg_type": "interactive",
        "card": {
            "config": {"wide_screen_mode": True},
            "header": {"title": _feishu_text(title_of(message)), "template": "turquoise"},
            "elements": elements,
        },
    }
    if hook.secret is not None:
        timestamp = str(int(at.timestamp()))
        content |= {"timestamp": timestamp, "sign": _feishu_signature(timestamp, hook.secret)}
    refusal_of = code_in("code", "StatusCode", passing=_FEISHU_TOO_MANY)
    return Outgoing(url=hook.url, body=_json_bytes(content), refusal_of=refusal_of)


def dingtalk(message: Message, hook: Hook, at: datetime) -> Outgoing:
    """DingTalk's custom robots: Markdown; a signature in the address is taken for an hour."""
    title = _harmless(title_of(message))
    lines = [f"### {title}", *(_harmless(line) for line in lines_of(message))]
    text = "\n\n".join(within_bytes(message, lines, _DINGTALK_TEXT_BYTES_MAX, separator="\n\n"))
    if message.link is not None:
        text += f"\n\n[{message.link_text}]({message.link})"
    content = {"msgtype": "markdown", "markdown": {"title": title, "text": text}, "at": {"isAtAll": False}}
    url = hook.url
    if hook.secret is not None:
        timestamp = str(round(at.timestamp() * 1000))
        query = urlencode({"timestamp": timestamp, "sign": _dingtalk_signature(timestamp, hook.secret)})
        url += f"{'&' if '?' in url else '?'}{query}"
    return Outgoing(url=url, body=_json_bytes(content), refusal_of=code_in("errcode", passing=_DINGTALK_TOO_MANY))


def wecom(message: Message, hook: Hook, at: datetime) -> Outgoing:
    """WeCom's group robots: Markdown, in which a mention is written `<@user>`; not signed."""
    del at
    link = "" if message.link is None else f"\n[{message.link_text}]({message.link})"
    lines = [f"### {_harmless(title_of(message))}", *(f"> {_harmless(line)}" for line in lines_of(message))]
    text = "\n".join(within_bytes(message, lines, _WECOM_CONTENT_BYTES_MAX - len(link.encode()))) + link
    content = {"msgtype": "markdown", "markdown": {"content": text}}
    return Outgoing(url=hook.url, body=_json_bytes(content), refusal_of=code_in("errcode", passing=_WECOM_TOO_MANY))


def webhook(message: Message, hook: Hook, at: datetime) -> Outgoing:
    """Any program of your own: the message as JSON (`gputide.notice/v1`), signed in headers.

    `X-Gputide-Timestamp` (epoch seconds) is signed too, so that an old message can't be sent again.
    """
    body = _json_bytes(
        {
            "schema": "gputide.notice/v1",
            "key": message.key,
            "topic": message.topic.value,
            "cluster": message.cluster,
            "namespaces": list(message.namespaces),
            "title": title_of(message),
            "lines": lines_of(message),
            "link": message.link,
            "at": iso(message.at),
        }
    )
    headers: dict[str, str] = {}
    if hook.secret is not None:
        timestamp = str(int(at.timestamp()))
        signature = f"sha256={_webhook_signature(timestamp, body, hook.secret)}"
        headers = {"X-Gputide-Timestamp": timestamp, "X-Gputide-Signature": signature}
    return Outgoing(url=hook.url, body=body, headers=headers, refusal_of=_takes_all)


CHAT_FORMATS: Mapping[ChannelKind, Callable[[Message, Hook, datetime], Outgoing]] = MappingProxyType(
    {
        ChannelKind.SLACK: slack,
        ChannelKind.TEAMS: teams,
        ChannelKind.FEISHU: feishu,
        ChannelKind.DINGTALK: dingtalk,
        ChannelKind.WECOM: wecom,
        ChannelKind.WEBHOOK: webhook,
    }
)
"""The format of each kind of channel that takes a POST; a signature is made for the moment that is handed in."""


def code_in(*names: str, passing: frozenset[int]) -> Callable[[bytes], Refusal | None]:
    """A reader of answers that carry a number, 0 for taken.

    Args:
        *names: fields that may hold it; the first that is there counts.
        passing: numbers that say: too many at once.
    """

    def refusal_of(body: bytes) -> Refusal | None:
        try:
            content = json.loads(body)
        except (ValueError, RecursionError):
            content = None
        if not isinstance(content, dict):
            return Refusal(reason="the answer is no JSON object: is this the address of the hook?", is_passing=False)
        found = next((content[name] for name in names if name in content), None)
        if found == 0:
            return None
        words = next((str(content[name]) for name in ("errmsg", "msg", "StatusMessage") if name in content), "")
        return Refusal(
            reason=f"{str(found)[:20]}: {words[:200]}", is_passing=isinstance(found, int) and found in passing
        )

    return refusal_of


def _takes_all(_: bytes) -> Refusal | None:
    """For services that say everything with the status."""
    return None


def _json_bytes(content: Mapping[str, Any]) -> bytes:
    """Compact JSON in UTF-8."""
    return json.dumps(content, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()


def _harmless(text: str) -> str:
    """Text for Markdown that knows no escape: what a chat would obey becomes its full-width twin, addresses included.

    `[x](http://y)` stays readable as `［x］（http:／／y）` and is neither link, picture, heading nor mention.
    """
    quiet = text.translate(_TWINS).replace("://", ":／／").replace("www.", "www．")
    # A line that begins so would be a list, a quotation or a rule.
    return f"\u200b{quiet}" if quiet[:1] in "-+=_0123456789" and quiet else quiet


def _slack_text(text: str) -> dict[str, Any]:
    return {"type": "plain_text", "text": text, "emoji": False}


def _slack_escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _teams_body(message: Message, lines: list[str]) -> bytes:
    title = _teams_block(title_of(message), size="large", weight="bolder")
    card: dict[str, Any] = {
        "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
        "type": "AdaptiveCard",
        "version": "1.4",
        "body": [title, *map(_teams_block, lines)],
    }
    if message.link is not None:
        card["actions"] = [{"type": "Action.OpenUrl", "title": message.link_text, "url": message.link}]
    attachment = {"contentType": "application/vnd.microsoft.card.adaptive", "contentUrl": None, "content": card}
    return _json_bytes({"type": "message", "attachments": [attachment]})


def _teams_block(text: str, **style: str) -> dict[str, Any]:
    return {"type": "RichTextBlock", "inlines": [{"type": "TextRun", "text": text, **style}]}


def _feishu_text(text: str) -> dict[str, str]:
    return {"tag": "plain_text", "content": text}


def _feishu_signature(timestamp: str, secret: str) -> str:
    """The signature of a moment (epoch seconds), base64: the key is TIMESTAMP NEWLINE SECRET, the message empty."""
    return base64.b64encode(hmac.new(f"{timestamp}\n{secret}".encode(), b"", hashlib.sha256).digest()).decode()


def _dingtalk_signature(timestamp: str, secret: str) -> str:
    """The signature of a moment (epoch milliseconds), base64 and not yet quoted; its message is as Feishu's key."""
    digest = hmac.new(secret.encode(), f"{timestamp}\n{secret}".encode(), hashlib.sha256).digest()
    return base64.b64encode(digest).decode()


def _webhook_signature(timestamp: str, body: bytes, secret: str) -> str:
    """HMAC-SHA256 of TIMESTAMP, a full stop and the body, hexadecimal."""
    return hmac.new(secret.encode(), timestamp.encode() + b"." + body, hashlib.sha256).hexdigest()
