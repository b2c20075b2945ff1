"""Foreign text in the Markdown of chats whose dialect has no escape: what could act becomes its full-width twin.

`[x](http://y)` stays readable as `［x］（http:／／y）` and is neither link, picture, heading nor mention. Called by the
formats of DingTalk and WeCom.
"""

from __future__ import annotations

_TWINS = str.maketrans(
    {sign: chr(ord(sign) + 0xFEE0) for sign in "<>[]()!#*`@&\\|~"}  # the block of full-width forms, U+FF01 and on
)


def harmless(text: str) -> str:
    """The text with nothing left that a chat would obey, bare addresses included."""
    quiet = text.translate(_TWINS).replace("://", ":／／").replace("www.", "www．")
    # A line that begins so would be a list, a quotation or a rule.
    return f"\u200b{quiet}" if quiet[:1] in "-+=_0123456789" and quiet else quiet
