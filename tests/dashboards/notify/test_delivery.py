"""What goes over the wire, and what is done with each answer, against servers on loopback."""

from __future__ import annotations

import email
import email.policy
import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from dashboards.notify.chat_formats import Hook, dingtalk, feishu, slack, webhook
from dashboards.notify.delivery import Patience, TryAgain, send_patiently
from dashboards.notify.delivery_http import HttpDelivery
from dashboards.notify.delivery_smtp import SmtpDelivery
from fleet.errors import Misconfigured, Unavailable
from fleet.settings.notify import ChannelKind, ChannelSettings
from tests.dashboards.notify.build import message
from tests.dashboards.notify.local_services import AUTHORITY, Answer, chat_service, mail_server


def http(url: str, form: Any = slack, *, ca_file: Path | None = None) -> HttpDelivery:
    """Return a delivery to an address."""
    return HttpDelivery(
        channel="ops", hook=Hook(url=url, secret="sesame"), outgoing=form, timeout_seconds=5, ca_file=ca_file
    )


def patience(pauses: list[float], tries_max: int = 4) -> Patience:
    """Return a patience that only notes how long it would wait."""
    return Patience(tries_max=tries_max, pause_seconds_max=60, pause=pauses.append)


def test_a_message_comes_over_the_wire_as_its_format_says() -> None:
    with chat_service() as service:
        http(f"{service.url}/services/T0?x=1", webhook).send(message())
    (got,) = service.received
    assert got.path == "/services/T0?x=1"
    assert got.headers["Content-Type"] == "application/json; charset=utf-8"
    assert got.headers["X-Gputide-Signature"].startswith("sha256=")
    assert json.loads(got.body)["title"] == message().title


def test_dingtalks_signature_comes_in_the_query() -> None:
    with chat_service() as service:
        http(f"{service.url}/robot/send?access_token=t", dingtalk).send(message())
    (got,) = service.received
    assert got.path.startswith("/robot/send?access_token=t&timestamp=")
    assert "&sign=" in got.path


def test_passing_failures_are_tried_again_with_the_pause_that_is_asked_for() -> None:
    pauses: list[float] = []
    answers = (Answer(status=429, headers={"Retry-After": "7"}), Answer(status=503), Answer())
    with chat_service(*answers) as service:
        send_patiently(http(service.url), message(), patience(pauses))
    assert pauses == [7, 2]
    assert len(service.received) == 3


def test_a_pause_as_a_date_is_understood() -> None:
    answer = Answer(status=429, headers={"Retry-After": "Thu, 01 Jan 2026 00:00:30 GMT"})
    with chat_service(answer) as service:
        delivery = HttpDelivery(
            channel="ops", hook=Hook(url=service.url), outgoing=slack, timeout_seconds=5, ca_file=None,
            now=lambda: datetime(2026, 1, 1, tzinfo=UTC),
        )  # fmt: skip
        with pytest.raises(TryAgain) as caught:
            delivery.send(message())
    assert caught.value.pause_seconds == 30


@pytest.mark.parametrize("asked", ["Thu, 01 Jan 99999999999999999999 00:00:00 GMT", "soon", "9" * 400, "\u00b2"])
def test_a_pause_that_makes_no_sense_is_no_crash(asked: str) -> None:
    with chat_service(Answer(status=429, headers={"Retry-After": asked})) as service, pytest.raises(TryAgain):
        http(service.url).send(message())


@pytest.mark.parametrize(
    ("form", "answer"),
    [
        (
            slack,
            Answer(status=404, body=b"Cannot POST /services/T0SECRET/B0SECRET/abcSECRETdef?key=querySECRET"),
        ),
        (slack, Answer(status=400, body=b"x" * 180 + b" no hook abcSECRETdef")),
        (dingtalk, Answer(body=b'{"errcode":1,"errmsg":"invalid token querySECRET of /services/T0SECRET"}')),
    ],
)
def test_what_a_service_says_of_the_address_is_not_repeated(form: Any, answer: Answer) -> None:
    """Many servers put the path that they did not find into their answer, and this path is the key of the hook."""
    with chat_service(answer) as service, pytest.raises(Misconfigured) as caught:
        http(f"{service.url}/services/T0SECRET/B0SECRET/abcSECRETdef?key=querySECRET", form).send(message())
    assert "SECRET" not in str(caught.value)
    assert "refused the message" in str(caught.value)


def test_too_long_a_pause_is_left_to_the_next_run() -> None:
    pauses: list[float] = []
    with chat_service(Answer(status=429, headers={"Retry-After": "86400"})) as service, pytest.raises(Unavailable):
        send_patiently(http(service.url), message(), patience(pauses))
    assert not pauses
    assert len(service.received) == 1


def test_tries_end() -> None:
    pauses: list[float] = []
    with chat_service(Answer(status=500)) as service, pytest.raises(Unavailable):
        send_patiently(http(service.url), message(), patience(pauses, tries_max=3))
    assert pauses == [1, 2]


@pytest.mark.parametrize(
    ("form", "body", "kind"),
    [
        (feishu, b'{"code":19021,"msg":"sign match fail"}', Misconfigured),
        (feishu, b'{"code":9499,"msg":"too many requests"}', TryAgain),
        (dingtalk, b'{"errcode":310000,"errmsg":"sign not match"}', Misconfigured),
        (dingtalk, b'{"errcode":130101,"errmsg":"send too fast"}', TryAgain),
        (dingtalk, b"<html>login</html>", Misconfigured),
        (dingtalk, b"{}", Misconfigured),
        (dingtalk, b"17", Misconfigured),
        (dingtalk, b"null", Misconfigured),
        (dingtalk, b'["errcode"]', Misconfigured),
        (dingtalk, b'{"errcode":[0]}', Misconfigured),
        (dingtalk, b"[" * 60_000, Misconfigured),
    ],
)
def test_a_refusal_in_a_200_is_none_the_less_one(form: Any, body: bytes, kind: type[Exception]) -> None:
    with chat_service(Answer(body=body)) as service, pytest.raises(kind):
        http(service.url, form).send(message())


def test_a_redirect_is_not_followed() -> None:
    with (
        chat_service() as inner,
        chat_service(Answer(status=307, headers={"Location": inner.url})) as service,
        pytest.raises(Misconfigured, match="redirects are not followed"),
    ):
        http(service.url).send(message())
    assert not inner.received


def test_a_certificate_that_nobody_vouches_for_is_refused() -> None:
    with chat_service(has_tls=True) as service:
        with pytest.raises(Misconfigured, match="ca_file"):
            http(service.url).send(message())
        assert not service.received
        http(service.url, ca_file=AUTHORITY).send(message())
    assert len(service.received) == 1


@pytest.mark.parametrize(
    "url",
    [
        "http://hooks.slack.com/services/T0", "ftp://127.0.0.1/", "file:///etc/passwd", "https://", "hooks.slack.com",
        "https://user:pass@example.com/", "https://example.com/a b", "https://example.com:99999/", "http://127.0.0.1@evil/",
    ],
)  # fmt: skip
def test_addresses_that_would_leak_are_refused_without_showing_them(url: str) -> None:
    with pytest.raises(Misconfigured) as caught:
        http(url)
    assert url.removeprefix("https://") not in str(caught.value) or url == "https://"


def smtp(port: int, **more: Any) -> SmtpDelivery:
    """Return a delivery to a mail server on loopback."""
    password = more.pop("password", None)
    settings = ChannelSettings(
        kind=ChannelKind.MAIL, host="127.0.0.1", port=port, ca_file=more.pop("ca_file", AUTHORITY), **more,
        sender="gputide@example.com", recipients=("a@example.com", "b@example.com"), secret_file=Path("password"),
    )  # fmt: skip
    return SmtpDelivery(channel="mail", server=settings, password=password, timeout_seconds=5)


def test_mail_goes_out_by_starttls_and_the_password_not_before() -> None:
    with mail_server(has_starttls=True) as server:
        smtp(server.port, user="gputide", password="sesame").send(message())
    (mail,) = server.mails
    parsed = email.message_from_bytes(mail, policy=email.policy.default)
    assert parsed["Subject"] == message().title
    logins = [is_secret for command, is_secret in server.commands if command.startswith("AUTH")]
    assert logins == [True]
    recipients = [command.lower() for command, _ in server.commands if command.lower().startswith("rcpt")]
    assert recipients == ["rcpt to:<a@example.com>", "rcpt to:<b@example.com>"]


def test_mail_is_not_sent_where_starttls_is_missing_or_its_certificate_unknown() -> None:
    with mail_server() as server, pytest.raises(Misconfigured, match="security"):
        smtp(server.port).send(message())
    with mail_server(has_starttls=True) as server, pytest.raises(Misconfigured, match="ca_file"):
        smtp(server.port, ca_file=None).send(message())
    assert not server.mails


@pytest.mark.parametrize(
    ("answers", "kind"),
    [
        ({"DATA": "451 later"}, TryAgain),
        ({"DATA": "554 never"}, Misconfigured),
        ({"RCPT": "450 busy"}, TryAgain),
        ({"RCPT": "550 nobody"}, Misconfigured),
        ({"AUTH": "535 no"}, Misconfigured),
    ],
)
def test_a_mail_servers_refusal_passes_or_does_not(answers: dict[str, str], kind: type[Exception]) -> None:
    with mail_server(has_starttls=True, answers=answers) as server, pytest.raises(kind):
        smtp(server.port, user="u", password="p").send(message())
    assert not server.mails


def test_a_password_that_the_login_can_not_carry_is_said_without_it() -> None:
    with mail_server(has_starttls=True) as server, pytest.raises(Misconfigured, match="secret_file") as caught:
        smtp(server.port, user="gputide", password="s\u00e9same").send(message())
    assert "same" not in str(caught.value)


@pytest.mark.parametrize("make", [lambda: http("http://127.0.0.1:9/"), lambda: smtp(9)])
def test_a_service_that_is_not_there_is_unavailable(make: Callable[[], Any]) -> None:
    with pytest.raises(Unavailable):
        make().send(message())
