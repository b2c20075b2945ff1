"""WeCom's group robots: Markdown of 4,096 bytes.

Source: developer.work.weixin.qq.com, document/path/91770: msgtype markdown, content of 4,096 bytes in UTF-8 at most,
20 messages a minute; answers carry `errcode`; 45009 is over that rate. A mention is written `<@user>`.
"""

from __future__ import annotations

from datetime import datetime

from dashboards.notify.chat_markdown import harmless
from dashboards.notify.message import Message, lines_of, title_of, within_bytes
from dashboards.notify.outgoing import Hook, Outgoing, code_in, json_bytes

_CONTENT_BYTES_MAX = 4096
_TOO_MANY = frozenset({45009, -1})


def outgoing(message: Message, hook: Hook, at: datetime) -> Outgoing:
    """The POST; `at` is of no meaning here."""
    del at
    link = "" if message.link is None else f"\n[{message.link_text}]({message.link})"
    lines = [f"### {harmless(title_of(message))}", *(f"> {harmless(line)}" for line in lines_of(message))]
    text = "\n".join(within_bytes(message, lines, _CONTENT_BYTES_MAX - len(link.encode()))) + link
    return Outgoing(
        url=hook.url,
        body=json_bytes({"msgtype": "markdown", "markdown": {"content": text}}),
        refusal_of=code_in("errcode", passing=_TOO_MANY),
    )
