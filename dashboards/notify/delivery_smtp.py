"""Sends mail by SMTP: STARTTLS or TLS with verified certificates, and a password never in plain text."""

from __future__ import annotations

import smtplib
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from email.message import EmailMessage
from email.utils import format_datetime, make_msgid
from html import escape

from dashboards.notify.delivery import TryAgain
from dashboards.notify.delivery_http import checked_contexts
from dashboards.notify.message import Message, lines_of, title_of
from dashboards.tokens import FONT_STACK, LIGHT
from fleet.errors import Misconfigured, Unavailable
from fleet.settings.notify import ChannelSettings, MailSecurity
from wire.tls import Tls, why_untrusted


class SmtpDelivery:
    """`Delivery` by mail.

    Args:
        channel: its name in the settings, for messages.
        password: content of its `secret_file`; None for nobody who logs in.
    """

    def __init__(
        self,
        *,
        channel: str,
        server: ChannelSettings,
        password: str | None,
        timeout_seconds: float,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._channel, self._server, self._password = channel, server, password
        self._host, self._sender = server.host or "", server.sender or ""
        self._timeout_seconds = timeout_seconds
        self._now = now
        tls = Tls(authority_file=server.ca_file, certificate_file=server.certificate_file, key_file=server.key_file)
        self._contexts = checked_contexts(tls, channel)

    def send(self, message: Message) -> None:
        """Hand the mail over; see `Delivery`."""
        mail = mail_of(message, sender=self._sender, recipients=self._server.recipients, at=self._now())
        where = f"{self._host}:{self._server.port} of channel {self._channel}"
        try:
            with self._session() as session:
                refused = session.send_message(mail, self._sender, list(self._server.recipients))
        except smtplib.SMTPAuthenticationError as exc:
            raise Misconfigured(f"cannot log in at {where}: {exc.smtp_code}; look at user and secret_file") from exc
        except smtplib.SMTPNotSupportedError as exc:
            raise Misconfigured(f"cannot send by {where}: {exc}; set security to what the server offers") from exc
        except smtplib.SMTPRecipientsRefused as exc:
            codes = {code for code, _ in exc.recipients.values()}
            raise _refused(where, max(codes), "no recipient was taken") from exc
        except smtplib.SMTPResponseException as exc:
            raise _refused(where, exc.smtp_code, str(exc.smtp_error)[:200]) from exc
        except UnicodeError as exc:
            # Its text may quote what could not be sent.
            raise Misconfigured(
                f"cannot send by {where}: host, user or password hold letters that SMTP can't carry, expected ASCII; "
                "look at host, user and secret_file"
            ) from exc
        except (smtplib.SMTPException, OSError) as exc:
            why = why_untrusted(exc)
            if why is not None:
                raise Misconfigured(
                    f"cannot trust {where}: {why}; a private certificate authority goes into "
                    f"notify.channels.{self._channel}.ca_file"
                ) from exc
            raise Unavailable(f"cannot send by {where}: {exc}") from exc
        if refused:
            # The others have it: sending again would give it to them twice.
            raise Misconfigured(f"{where} did not take mail for {', '.join(sorted(refused))}; the others got it")

    def _session(self) -> smtplib.SMTP:
        server = self._server
        if server.security is MailSecurity.TLS:
            session: smtplib.SMTP = smtplib.SMTP_SSL(
                self._host, server.port, timeout=self._timeout_seconds, context=self._contexts.context()
            )
        else:
            session = smtplib.SMTP(self._host, server.port, timeout=self._timeout_seconds)
        try:
            if server.security is MailSecurity.STARTTLS:
                session.starttls(context=self._contexts.context())
            if server.user is not None and self._password is not None:
                session.login(server.user, self._password)
        except BaseException:
            session.close()
            raise
        return session


def mail_of(message: Message, *, sender: str, recipients: Sequence[str], at: datetime) -> EmailMessage:
    """The mail as plain text, and as HTML in which nothing foreign is markup. Sources: RFC 5322, RFC 3834."""
    title, lines = title_of(message), lines_of(message)
    mail = EmailMessage()
    mail["Subject"] = title
    mail["From"] = sender
    mail["To"] = ", ".join(recipients)
    mail["Date"] = format_datetime(at)
    mail["Message-ID"] = make_msgid(domain=sender.rpartition("@")[2])
    # So that out-of-office answers stay away.
    mail["Auto-Submitted"] = "auto-generated"
    link = [] if message.link is None else ["", f"{message.link_text}: {message.link}"]
    mail.set_content("\n".join([title, "", *lines, *link]) + "\n")
    anchor = (
        ""
        if message.link is None
        else f'<p><a href="{escape(message.link)}" style="color:{LIGHT["accent"]}">{escape(message.link_text)}</a></p>'
    )
    items = "".join(f"<p>{escape(line)}</p>" for line in lines)
    mail.add_alternative(
        f'<!doctype html><html><body style="font-family:{escape(FONT_STACK)};color:{LIGHT["ink"]}">'
        f'<h1 style="font-size:18px">{escape(title)}</h1>{items}{anchor}</body></html>\n',
        subtype="html",
    )
    return mail


def _refused(where: str, code: int, words: str) -> TryAgain | Misconfigured:
    """4xx passes, 5xx does not (RFC 5321, section 4.2.1)."""
    text = f"{where} refused the mail with {code}: {words}"
    return TryAgain(text) if code < 500 else Misconfigured(text)
