"""Mail: plain text, and the same as HTML in which nothing foreign is markup. Sources: RFC 5322, RFC 3834."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from email.message import EmailMessage
from email.utils import format_datetime, make_msgid
from html import escape

from dashboards.notify.message import Message, lines_of, title_of
from dashboards.tokens import FONT_STACK, LIGHT


def mail_of(message: Message, *, sender: str, recipients: Sequence[str], at: datetime) -> EmailMessage:
    """The mail.

    Args:
        message: what is told.
        sender: address that it comes from.
        recipients: addresses that it goes to.
        at: its date, UTC.
    """
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
