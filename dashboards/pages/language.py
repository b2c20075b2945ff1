"""Which language a page is in: what its address says, else what the reader chose before, else what their browser asks.

A callback's request has no address of its own; the page that sends it stands in `Referer`. Called by `app`.
"""

from __future__ import annotations

from urllib.parse import parse_qsl, urlsplit

from flask import Flask, Response, request

from dashboards.words.catalogue import LANGUAGES, READING, Language

COOKIE = "gputide_lang"
PARAMETER = "lang"
"""Value of the address that names a language."""
KEPT_SECONDS = 365 * 86400
"""For how long a choice is kept."""


def speak(server: Flask, *, is_secure: bool) -> None:
    """Set the language of every request before it is answered, and keep a choice that an address makes.

    Args:
        server: the app's server.
        is_secure: whether the cookie is for HTTPS alone.
    """

    def _before() -> None:
        READING.set(asked_language())

    def _after(response: Response) -> Response:
        chosen = request.args.get(PARAMETER)
        if chosen is None or chosen not in LANGUAGES:
            return response
        if request.method == "GET" and chosen != request.cookies.get(COOKIE):
            response.set_cookie(COOKIE, chosen, max_age=KEPT_SECONDS, secure=is_secure, httponly=True, samesite="Lax")
        return response

    server.before_request(_before)
    server.after_request(_after)


def asked_language() -> Language:
    """The language of the request that is being answered."""
    for chosen in (request.args.get(PARAMETER), _of_page(request.referrer), request.cookies.get(COOKIE)):
        if chosen is not None and chosen in LANGUAGES:
            return Language(chosen)
    # A browser asks for zh-CN, zh-TW …: what it wants most and we speak.
    for tag, _ in request.accept_languages:
        primary = tag.partition("-")[0].lower()
        if primary in LANGUAGES:
            return Language(primary)
    return Language.EN


def _of_page(referrer: str | None) -> str | None:
    """What the page that asks says in its own address."""
    try:
        query = urlsplit(referrer or "").query
    except ValueError:
        return None
    return dict(parse_qsl(query)).get(PARAMETER)
