"""DingTalk's custom robots: Markdown, signed in the address.

Source: open.dingtalk.com, document/robots/custom-robot-access and customize-robot-security-settings: the signature is
base64 of HMAC-SHA256(SECRET, TIMESTAMP NEWLINE SECRET) with the timestamp in milliseconds, both as query; a body has
20,000 bytes at most; answers carry `errcode`; 130101 and 410100 say too many requests.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from datetime import datetime
from urllib.parse import urlencode

from dashboards.notify.chat_markdown import harmless
from dashboards.notify.message import Message, lines_of, title_of, within_bytes
from dashboards.notify.outgoing import Hook, Outgoing, code_in, json_bytes

_TEXT_BYTES_MAX = 18_000
_TOO_MANY = frozenset({130101, 410100})


def outgoing(message: Message, hook: Hook, at: datetime) -> Outgoing:
    """The POST, signed for the moment `at` where there is a key; the service takes it for an hour."""
    title = harmless(title_of(message))
    lines = [f"### {title}", *(harmless(line) for line in lines_of(message))]
    text = "\n\n".join(within_bytes(message, lines, _TEXT_BYTES_MAX, separator="\n\n"))
    if message.link is not None:
        text += f"\n\n[{message.link_text}]({message.link})"
    content = {"msgtype": "markdown", "markdown": {"title": title, "text": text}, "at": {"isAtAll": False}}
    url = hook.url
    if hook.secret is not None:
        timestamp = str(round(at.timestamp() * 1000))
        query = urlencode({"timestamp": timestamp, "sign": sign(timestamp, hook.secret)})
        url += f"{'&' if '?' in url else '?'}{query}"
    return Outgoing(url=url, body=json_bytes(content), refusal_of=code_in("errcode", passing=_TOO_MANY))


def sign(timestamp: str, secret: str) -> str:
    """The signature of a moment (epoch milliseconds), base64 and not yet quoted."""
    digest = hmac.new(secret.encode(), f"{timestamp}\n{secret}".encode(), hashlib.sha256).digest()
    return base64.b64encode(digest).decode()
