"""Feishu's and Lark's custom bots: a card of `plain_text`, signed.

Source: open.feishu.cn, document/client-docs/bot-v3/add-custom-bot: the key of the HMAC-SHA256 is TIMESTAMP NEWLINE
SECRET and its message is empty; the timestamp is in seconds; a body has 20 KB at most; answers carry `code`, older ones
`StatusCode`; 9499 and 11232 are too many requests.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from datetime import datetime
from typing import Any

from dashboards.notify.message import Message, lines_of, title_of, within_bytes
from dashboards.notify.outgoing import Hook, Outgoing, code_in, json_bytes

_TEXT_BYTES_MAX = 16_000
_TOO_MANY = frozenset({9499, 11232})


def outgoing(message: Message, hook: Hook, at: datetime) -> Outgoing:
    """The POST, signed for the moment `at` where there is a key; the service takes it for an hour."""
    elements: list[dict[str, Any]] = []
    lines = within_bytes(message, lines_of(message), _TEXT_BYTES_MAX)
    if lines:
        elements.append({"tag": "div", "text": _plain_text("\n".join(lines))})
    if message.link is not None:
        button = {"tag": "button", "text": _plain_text(message.link_text), "url": message.link, "type": "primary"}
        elements.append({"tag": "action", "actions": [button]})
    content: dict[str, Any] = {
        "msg_type": "interactive",
        "card": {
            "config": {"wide_screen_mode": True},
            "header": {"title": _plain_text(title_of(message)), "template": "turquoise"},
            "elements": elements,
        },
    }
    if hook.secret is not None:
        timestamp = str(int(at.timestamp()))
        content |= {"timestamp": timestamp, "sign": sign(timestamp, hook.secret)}
    return Outgoing(url=hook.url, body=json_bytes(content), refusal_of=code_in("code", "StatusCode", passing=_TOO_MANY))


def sign(timestamp: str, secret: str) -> str:
    """The signature of a moment (epoch seconds), base64."""
    return base64.b64encode(hmac.new(f"{timestamp}\n{secret}".encode(), b"", hashlib.sha256).digest()).decode()


def _plain_text(text: str) -> dict[str, str]:
    return {"tag": "plain_text", "content": text}
