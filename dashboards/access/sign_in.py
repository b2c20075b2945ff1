"""Access to the web app: finds out who asks before anything is answered, signs people in and out.

A request vouches for itself (a token in `Authorization: Bearer`, a header of the trusted proxy) or carries the cookie
of a session. A person without a session is sent to sign in; a program gets 401. Nothing but static files,
the sign-in itself and the provider's way back is answered without a name.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from html import escape
from typing import Protocol
from urllib.parse import quote, urlsplit

from flask import Flask, Response, g, redirect, request
from werkzeug.http import parse_cookie
from werkzeug.wrappers import Response as AnyResponse

from dashboards.access.people import Person, everything
from dashboards.access.proxy import TrustedProxy
from dashboards.access.roster import Roster
from dashboards.access.sessions import Identity, Sessions
from dashboards.tokens import css_variables
from dashboards.words.reading import READING, say
from fleet.errors import GputideError, Misconfigured, Refused
from fleet.sentences import sentence

SIGN_IN_PATH = "/sign-in"
SIGN_OUT_PATH = "/sign-out"
RETURN_PATH = "/signed-in"
HEALTH_PATH = "/healthz"
"""Says that the app answers, to a kubelet that nobody signs in."""
FORM_BYTES_MAX = 8192
OPEN_PREFIXES = ("/_dash-component-suites/", "/assets/", "/_favicon.ico")
"""Files of this release, the same for everybody."""
API_PREFIX = "/api/"
_BEARER_LENGTH_MAX = 4096
_BEARER = "bearer "


class SignIn(Protocol):
    """Somebody else who signs people in, and sends the browser back."""

    def begin(self, next_path: str) -> tuple[str, str]:
        """Address to send the browser to, and a secret for its cookie.

        Raises:
            Unavailable: the sign-in provider can't be asked.
        """
        ...

    def finish(self, url: str, browser: str | None) -> tuple[Identity, str]:
        """Who came back by an address, and where they wanted to go.

        Raises:
            Refused: nobody who began here, or not vouched for.
            Unavailable: the sign-in provider can't be asked.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Ways:
    """How people are known; none of them: anybody who reaches the app is its operator.

    Attributes:
        operator: name of that operator; None where people must be known.
        sessions: who is signed in; None where every request vouches for itself.
        proxy: proxy whose header is believed.
        is_secure: True where browsers come by HTTPS: cookies are for HTTPS alone.
    """

    operator: str | None = None
    roster: Roster | None = None
    sessions: Sessions | None = None
    proxy: TrustedProxy | None = None
    provider: SignIn | None = None
    is_secure: bool = False


@dataclass(frozen=True, slots=True)
class Access:
    """Who asks, and whether a request is theirs.

    Attributes:
        pages: paths of pages: anybody who asks for one of them is sent to sign in, and back to it.
    """

    ways: Ways
    pages: frozenset[str] = frozenset({"/"})
    _key: bytes = field(default_factory=lambda: secrets.token_bytes(32))

    @property
    def cookie(self) -> str:
        """Name of the session's cookie; the prefix binds it to this host and to HTTPS."""
        return "__Host-gputide" if self.ways.is_secure else "gputide"

    def who(self) -> Person:
        """Who asks, in the request that is being answered."""
        found: Person = g.person
        return found

    def page_token(self) -> str:
        """What a page of this person must carry to change anything: another site can't know it.

        Empty where nobody asks: Dash looks at the layout once before the first request.
        """
        bound_to = g.get("bound_to")
        return "" if bound_to is None else hmac.new(self._key, str(bound_to).encode(), hashlib.sha256).hexdigest()

    def is_page_token(self, given: object) -> bool:
        """Whether this is the token of the person who asks; what is no text is wrong."""
        token = self.page_token()
        return token != "" and hmac.compare_digest(str(given).encode("utf-8", "surrogatepass"), token.encode())

    def check_page_token(self, given: object) -> None:
        """Refuse a change that does not come from a page of the person who asks.

        Raises:
            Refused: it comes from elsewhere.
        """
        if not self.is_page_token(given):
            raise Refused(sentence("access.page_of_another"))

    def is_own_request(self, given: str | None) -> bool:
        """Whether a change was meant by the person: a bearer always means it, a session by its page's token."""
        return str(g.get("bound_to", "")).startswith(_BEARER) or self.is_page_token(given or "")

    def can_sign_out(self) -> bool:
        """Whether there is a session to end."""
        return self.ways.sessions is not None

    def guard(self, server: Flask) -> None:
        """Stand before an app."""
        server.before_request(self._check)
        if self.ways.sessions is not None:
            server.add_url_rule(SIGN_IN_PATH, "sign_in", self._sign_in, methods=["GET", "POST"])
            server.add_url_rule(SIGN_OUT_PATH, "sign_out", self._sign_out, methods=["POST"])
        if self.ways.provider is not None:
            server.add_url_rule(RETURN_PATH, "signed_in", self._come_back, methods=["GET"])

    def _check(self) -> AnyResponse | None:
        if request.path.startswith(OPEN_PREFIXES) or request.path in self._open_paths():
            return None
        try:
            secret = request.cookies.get(self.cookie)
            person, bound_to = self._person(request.headers.get, secret, request.remote_addr)
        except Misconfigured as exc:
            return plain_answer(str(exc), 503)
        except Refused as exc:
            return plain_answer(str(exc), 403)
        if person is None:
            return self._turned_away()
        g.person, g.bound_to = person, bound_to
        if not person.rights and request.path != SIGN_OUT_PATH:
            return plain_answer(
                f"cannot show anything to {person.name}: nobody gave you a right; ask who keeps dashboard.rights_file",
                403,
            )
        return None

    def _open_paths(self) -> tuple[str, ...]:
        if self.ways.sessions is None:
            return ()
        return (SIGN_IN_PATH,) if self.ways.provider is None else (SIGN_IN_PATH, RETURN_PATH)

    def is_known(self, fields: Mapping[str, str], address: str) -> bool:
        """Whether a request comes from somebody who is signed in; asked before its body is read.

        Args:
            fields: header fields, their names in lower case.
        """
        cookies = parse_cookie(fields.get("cookie"))
        try:
            return self._person(lambda name: fields.get(name.lower()), cookies.get(self.cookie), address)[0] is not None
        except (Misconfigured, Refused):
            return False

    def _person(
        self, get: Callable[[str], str | None], secret: str | None, address: str | None
    ) -> tuple[Person | None, str]:
        """Who asks, and what their page's token is bound to.

        Args:
            get: a header field by its name.
            secret: of the session.
        """
        ways = self.ways
        if ways.operator is not None:
            return everything(ways.operator), ""
        roster = ways.roster
        if roster is None:
            raise Misconfigured("cannot know anybody: dashboard.rights_file=none")
        kind, _, token = (get("Authorization") or "").partition(" ")
        if kind.lower() == "bearer" and 0 < len(token) <= _BEARER_LENGTH_MAX:
            holder = roster.holder(token.strip())
            return (None, "") if holder is None else (roster.of_token(holder), f"{_BEARER}{holder.name}")
        if ways.proxy is not None:
            identity = ways.proxy.identity(get, address)
            return (None if identity is None else roster.person(identity.name, identity.groups)), (
                "" if identity is None else f"person {identity.name}"
            )
        identity = None if secret is None or ways.sessions is None else ways.sessions.find(secret)
        if identity is None:
            return None, ""
        if identity.token_sha256 is not None:
            return roster.of_token(identity), f"session {secret}"
        return roster.person(identity.name, identity.groups), f"session {secret}"

    def _turned_away(self) -> AnyResponse:
        if self.ways.sessions is None:
            return plain_answer("cannot answer: you are not known here; come by the proxy that signs people in", 401)
        if request.method == "GET" and request.path in self.pages:
            target = request.full_path if request.query_string else request.path
            return redirect(f"{SIGN_IN_PATH}?next={quote(target, safe='')}")
        answer = plain_answer("cannot answer: you are not signed in, or your session has ended", 401)
        answer.headers["WWW-Authenticate"] = "Bearer"
        return answer

    def _sign_in(self) -> AnyResponse:
        next_path = own_path(request.args.get("next"), self.pages)
        provider = self.ways.provider
        if provider is not None:
            try:
                url, browser = provider.begin(next_path)
            except GputideError as exc:
                return plain_answer(str(exc), 503)
            answer = redirect(url)
            self._set(answer, f"{self.cookie}-begun", browser, path="/")
            return answer
        if request.method == "GET":
            return _form(next_path, "")
        if (request.content_length or 0) > FORM_BYTES_MAX:
            return plain_answer(f"cannot sign in: more than {FORM_BYTES_MAX} bytes", 413)
        next_path = own_path(request.form.get("next"), self.pages)
        try:
            roster = self.ways.roster
            holder = None if roster is None else roster.holder(request.form.get("token", "").strip())
        except Misconfigured as exc:
            return plain_answer(str(exc), 503)
        if holder is None:
            return _form(next_path, say("frame.token_not_known_or_has_expired"))
        return self._signed_in(holder, next_path)

    def _come_back(self) -> AnyResponse:
        provider = self.ways.provider
        if provider is None:
            return plain_answer("cannot sign in: no provider is set", 404)
        try:
            url = f"{request.base_url}?{request.query_string.decode('latin-1')}"
            identity, next_path = provider.finish(url, request.cookies.get(f"{self.cookie}-begun"))
        except Refused as exc:
            return plain_answer(str(exc), 403)
        except GputideError as exc:
            return plain_answer(str(exc), 503)
        return self._signed_in(identity, next_path)

    def _signed_in(self, identity: Identity, next_path: str) -> AnyResponse:
        sessions = self.ways.sessions
        if sessions is None:
            return plain_answer("cannot sign in: every request vouches for itself here", 404)
        before = request.cookies.get(self.cookie)
        if before is not None:
            sessions.end(before)
        answer = redirect(next_path)
        self._set(answer, self.cookie, sessions.begin(identity), path="/")
        answer.delete_cookie(
            f"{self.cookie}-begun", path="/", secure=self.ways.is_secure, httponly=True, samesite="Lax"
        )
        return answer

    def _sign_out(self) -> AnyResponse:
        secret = request.cookies.get(self.cookie)
        if secret is not None and self.ways.sessions is not None:
            self.ways.sessions.end(secret)
        said = {"out": say("frame.you_signed_out"), "again": say("frame.sign_in_again")}
        answer = Response(_SIGNED_OUT.format(tokens=css_variables(), language=READING.get(), **said))
        answer.delete_cookie(self.cookie, path="/", secure=self.ways.is_secure, httponly=True, samesite="Lax")
        return answer

    def _set(self, answer: AnyResponse, name: str, value: str, *, path: str) -> None:
        answer.set_cookie(name, value, path=path, secure=self.ways.is_secure, httponly=True, samesite="Lax")


def own_path(text: str | None, pages: frozenset[str]) -> str:
    """A path of this app, as an address names it; `/` for whatever else stands there."""
    if not text or not text.startswith("/") or text.startswith(("//", "/\\")) or not text.isprintable():
        return "/"
    parts = urlsplit(text)
    return "/" if parts.scheme or parts.netloc or parts.path not in pages else text


def plain_answer(text: str, status: int) -> Response:
    """A sentence as the whole answer: text for people, JSON below the API."""
    if request.path.startswith(API_PREFIX):
        return Response(json.dumps({"error": text}) + "\n", status=status, mimetype="application/json")
    return Response(f"{text}\n", status=status, mimetype="text/plain")


def _form(next_path: str, error: str) -> Response:
    message = f'<p role="alert">{escape(error)}</p>' if error else ""
    said = {"language": READING.get(), "label": say("frame.access_token"), "enter": say("frame.sign_in")}
    text = _FORM.format(tokens=css_variables(), next=escape(next_path, quote=True), message=message, **said)
    return Response(text, status=401 if error else 200)


_HEAD = """<!DOCTYPE html>
<html lang="{language}"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>gputide</title><style>{tokens}</style><link rel="stylesheet" href="/assets/pages.css"></head>
<body class="sign-in"><main><h1><span class="mark">◒</span> gputide</h1>
"""
_FORM = (
    _HEAD
    + """<form method="post" action="/sign-in">
<label for="token">{label}</label>
<input id="token" name="token" type="password" autocomplete="current-password" required autofocus>
<input type="hidden" name="next" value="{next}">{message}
<button class="button primary">{enter}</button></form></main></body></html>
"""
)
_SIGNED_OUT = (
    _HEAD
    + """<p>{out}</p><p><a href="/">{again}</a></p></main></body></html>
"""
)
