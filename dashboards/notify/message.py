"""One message in plain text, whatever service carries it.

The texts come from plans and analyses and so from tenants: names of workloads and namespaces. They are data until a
format has written them in its service's own way, and none of them ever becomes an address.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from datetime import datetime

from fleet.inventory import WorkloadId
from fleet.settings.notify import NoticeTopic
from fleet.words import Language, Words

TITLE_LENGTH_MAX = 140
"""Characters of a title; Slack's header takes 150."""
LINE_LENGTH_MAX = 400
"""Characters of a line."""
LINES_MAX = 20
"""Lines of a message; a digest says how many more there are."""

_BIDI_CONTROLS = frozenset("\u200e\u200f\u061c\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
_SPACES = re.compile(r"\s+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message.

    Attributes:
        key: the same for the same news: it is sent once.
        link: address of a page of ours; None for none.
        cluster: whom it concerns.
        namespaces: whom it concerns in the cluster; empty for everybody.
        workloads: the same by workload.
        teams: teams whom it concerns by their name.
        leads: whether it stands first in a digest and gives it its title: a service is over its harm budget.
    """

    key: str
    topic: NoticeTopic
    title: str
    lines: tuple[str, ...]
    link: str | None
    link_text: str
    cluster: str
    namespaces: tuple[str, ...]
    workloads: tuple[WorkloadId, ...]
    at: datetime
    teams: tuple[str, ...] = ()
    language: Language = Language.EN
    leads: bool = False


def plain(text: str, length_max: int = LINE_LENGTH_MAX) -> str:
    """A text in one line, without what controls a terminal, a line break or the direction of writing.

    Args:
        length_max: characters; a longer one is cut and ends in an ellipsis.
    """
    joined = _SPACES.sub(" ", text).strip()
    kept = "".join(
        sign
        for sign in joined
        if sign not in _BIDI_CONTROLS and unicodedata.category(sign) not in ("Cc", "Cs", "Co", "Cn")
    )
    return kept if len(kept) <= length_max else kept[: length_max - 1] + "…"


def title_of(message: Message) -> str:
    """The title, ready for a format."""
    return plain(message.title, TITLE_LENGTH_MAX)


def lines_of(message: Message) -> list[str]:
    """The lines, ready for a format; of too many the first, and how many more there are."""
    shown = [plain(line) for line in message.lines[:LINES_MAX]]
    left_out = len(message.lines) - len(shown)
    return [*shown, _rest(message, left_out)] if left_out else shown


def within_bytes(message: Message, lines: list[str], bytes_max: int, *, separator: str = "\n") -> list[str]:
    """As many of the first lines as fit, and how many do not.

    Args:
        lines: as the format writes them.
        bytes_max: bytes of them all in UTF-8, with separators.
    """
    if len(separator.join(lines).encode()) <= bytes_max:
        return lines
    kept: list[str] = []
    for line in lines:
        rest = _rest(message, len(lines) - len(kept) - 1)
        if len(separator.join([*kept, line, rest]).encode()) > bytes_max:
            break
        kept.append(line)
    return [*kept, _rest(message, len(lines) - len(kept))]


def _rest(message: Message, count: int) -> str:
    return Words(language=message.language).say("notice.rest", count=count)
