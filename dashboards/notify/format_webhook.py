"""Any program of your own: the message as JSON (`gputide.notice/v1`), signed.

`X-Gputide-Signature: sha256=HEX` is the HMAC-SHA256 of TIMESTAMP, a full stop and the body; the timestamp (epoch
seconds) stands in `X-Gputide-Timestamp`, so that an old message can't be sent again.
"""

from __future__ import annotations

import hashlib
import hmac
from datetime import datetime

from dashboards.notify.message import Message, lines_of, title_of
from dashboards.notify.outgoing import Hook, Outgoing, json_bytes, takes_all
from fleet.documents import iso

NOTICE_SCHEMA = "gputide.notice/v1"


def outgoing(message: Message, hook: Hook, at: datetime) -> Outgoing:
    """The POST, signed for the moment `at` where there is a key."""
    body = json_bytes(
        {
            "schema": NOTICE_SCHEMA,
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
        headers = {
            "X-Gputide-Timestamp": timestamp,
            "X-Gputide-Signature": f"sha256={sign(timestamp, body, hook.secret)}",
        }
    return Outgoing(url=hook.url, body=body, headers=headers, refusal_of=takes_all)


def sign(timestamp: str, body: bytes, secret: str) -> str:
    """The signature of a body at a moment, hexadecimal."""
    return hmac.new(secret.encode(), timestamp.encode() + b"." + body, hashlib.sha256).hexdigest()
