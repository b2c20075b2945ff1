"""Each service gets what it documents, signed as it says, within its limits, and nothing a tenant wrote is obeyed."""

from __future__ import annotations

import base64
import email
import email.policy
import hashlib
import hmac
import json
from html.parser import HTMLParser
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from dashboards.notify.chat_formats import Hook, dingtalk, feishu, slack, teams, webhook, wecom
from dashboards.notify.delivery_smtp import mail_of
from dashboards.notify.message import LINES_MAX, plain
from tests.dashboards.notify.build import HOSTILE, NOW, message

HOOK = Hook(url="https://hook.example/send?access_token=t", secret="sesame")
CHATS = [slack, teams, feishu, dingtalk, wecom, webhook]
LONG = message("t" * 500, tuple(f"{number} " + "值" * 5000 for number in range(200)))


def body(module: Any, sent: Any = None, hook: Hook = HOOK) -> dict[str, Any]:
    """Return what a format makes, as JSON."""
    found: dict[str, Any] = json.loads(module(message() if sent is None else sent, hook, NOW).body)
    return found


def test_slack_shows_foreign_text_as_plain_text_and_escapes_the_preview() -> None:
    content = body(slack, message(HOSTILE, (HOSTILE,)))
    header, section, link = content["blocks"]
    assert header["type"] == "header"
    assert header["text"]["type"] == section["text"]["type"] == "plain_text"
    assert "<" not in content["text"]
    assert "&lt;!channel&gt;" in content["text"]
    assert (content["unfurl_links"], content["unfurl_media"]) == (False, False)
    assert link["text"]["text"] == "<https://gputide.example/plan?cluster=c1&plan=p1|Review the plan>"


def test_teams_shows_foreign_text_in_runs_that_know_no_markdown() -> None:
    content = body(teams, message(HOSTILE, (HOSTILE,)))
    (attachment,) = content["attachments"]
    assert content["type"] == "message"
    assert attachment["contentType"] == "application/vnd.microsoft.card.adaptive"
    card = attachment["content"]
    assert {block["type"] for block in card["body"]} == {"RichTextBlock"}
    assert {run["type"] for block in card["body"] for run in block["inlines"]} == {"TextRun"}
    assert "msteams" not in card  # a mention needs an entity there
    assert card["actions"][0]["url"] == message().link


def test_feishu_is_signed_as_documented_and_knows_plain_text_alone() -> None:
    content = body(feishu, message(HOSTILE, (HOSTILE,)))
    timestamp = str(int(NOW.timestamp()))
    # The key is the text and the message empty: the other way round than DingTalk.
    expected = base64.b64encode(hmac.new(f"{timestamp}\nsesame".encode(), b"", hashlib.sha256).digest()).decode()
    assert (content["timestamp"], content["sign"]) == (timestamp, expected)
    assert content["card"]["header"]["title"]["tag"] == "plain_text"
    assert content["card"]["elements"][0]["text"]["tag"] == "plain_text"
    assert "sign" not in body(feishu, hook=Hook(url=HOOK.url))


def test_dingtalk_is_signed_in_the_address_and_mentions_nobody() -> None:
    made = dingtalk(message(HOSTILE, (HOSTILE,)), HOOK, NOW)
    query = parse_qs(urlsplit(made.url).query)
    timestamp = str(round(NOW.timestamp() * 1000))
    digest = hmac.new(b"sesame", f"{timestamp}\nsesame".encode(), hashlib.sha256).digest()
    assert query == {"access_token": ["t"], "timestamp": [timestamp], "sign": [base64.b64encode(digest).decode()]}
    content = json.loads(made.body)
    assert content["at"] == {"isAtAll": False}
    foreign = content["markdown"]["text"].replace(f"[Review the plan]({message().link})", "").removeprefix("### ")
    assert not set("<>[]()`@#*") & set(foreign)
    assert "://" not in foreign
    assert "www." not in foreign


def test_wecom_mentions_nobody_and_keeps_its_link() -> None:
    text = body(wecom, message(HOSTILE, (HOSTILE,)))["markdown"]["content"]
    assert text.endswith(f"[Review the plan]({message().link})")
    foreign = text.replace(f"[Review the plan]({message().link})", "")
    assert not set("<[]()`@*") & set(foreign)
    assert [line[:4] for line in foreign.splitlines()] == ["### ", *[line[:4] for line in foreign.splitlines()[1:]]]
    assert all(line.startswith("> ") for line in foreign.splitlines()[1:])


def test_webhook_is_signed_over_time_and_body() -> None:
    made = webhook(message(), HOOK, NOW)
    timestamp = made.headers["X-Gputide-Timestamp"]
    expected = hmac.new(b"sesame", timestamp.encode() + b"." + made.body, hashlib.sha256).hexdigest()
    assert made.headers["X-Gputide-Signature"] == f"sha256={expected}"
    content = json.loads(made.body)
    assert content["schema"] == "gputide.notice/v1"
    assert content["at"] == "2026-01-22T09:00:00Z"


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def test_mail_has_no_foreign_header_and_no_foreign_markup() -> None:
    made = mail_of(message(HOSTILE, (HOSTILE,)), sender="g@example.com", recipients=["o@example.com"], at=NOW)
    mail = email.message_from_bytes(bytes(made), policy=email.policy.default)
    assert mail["Bcc"] is None
    assert mail["To"] == "o@example.com"
    assert mail["Auto-Submitted"] == "auto-generated"
    assert len(" ".join(mail["Subject"].split())) <= 140
    html = mail.get_body(("html",))
    assert html is not None
    tags = _Tags()
    tags.feed(html.get_content())
    assert {tag for tag, _ in tags.found} == {"html", "body", "h1", "p", "a"}
    assert [attributes["href"] for tag, attributes in tags.found if tag == "a"] == [message().link]


@pytest.mark.parametrize(
    ("module", "bytes_max"),
    [(slack, 30_000), (teams, 28_000), (feishu, 20_000), (dingtalk, 20_000)],
)
def test_long_messages_stay_within_the_services_limits(module: Any, bytes_max: int) -> None:
    made = module(LONG, HOOK, NOW).body
    assert len(made) <= bytes_max
    assert "t" * 100 in made.decode()


def test_limits_of_single_fields() -> None:
    header, section, *_ = body(slack, LONG)["blocks"]
    assert len(header["text"]["text"]) <= 150
    assert len(section["text"]["text"]) <= 3000
    text = body(wecom, LONG)["markdown"]["content"]
    assert len(text.encode()) <= 4096
    assert "more\n[Review the plan]" in text
    assert len(body(webhook, LONG)["lines"]) == LINES_MAX + 1


@pytest.mark.parametrize("module", CHATS)
def test_without_an_address_of_ours_there_is_no_link(module: Any) -> None:
    made = module(message(link=None), HOOK, NOW).body.decode()
    assert "Review the plan" not in made


def test_plain_text_has_one_line_and_one_direction() -> None:
    text = plain("a\r\nb\u2028c\u202ed\x00\x1b[31m")
    assert text == "a b cd[31m"
    assert plain("x" * 50, 10) == "x" * 9 + "…"
