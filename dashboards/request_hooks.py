"""What is done before and after every request: its language is chosen, its answer is compressed, both are counted.

A page is in the language that its address says, else that the reader chose before, else that the browser asks for. A
callback's request has no address of its own; the page that sends it is named in `Referer`.

A page of a large fleet is a megabyte of repeating JSON, so answers are compressed where the browser takes it: those of
callbacks and of the API quickly, files of this release once and well. The answer with the token of the person's page is
sent as it is, because the length of a compressed answer discloses its content (BREACH, breachattack.com). gzip is RFC
1952.

The counts are shown at `/metrics`, behind the same sign-in as every page: a scraper shows a token of
`dashboard.rights_file`, of any role. Called by `app`.
"""

from __future__ import annotations

import gzip
import hashlib
import threading
import time
from collections import OrderedDict
from urllib.parse import parse_qsl, urlsplit

from flask import Flask, Response, g, request

from dashboards.access.sign_in import HEALTH_PATH
from dashboards.words.reading import LANGUAGES, READING
from fleet.words import Language
from wire.own_metrics import CONTENT_TYPE, PATH, OwnMetrics
from wire.telemetry import TRACEPARENT, record, show

COOKIE = "gputide_lang"
PARAMETER = "lang"
"""Value of the address that names a language."""
KEPT_SECONDS = 365 * 86400
"""For how long a choice is kept."""
BYTES_MIN = 4096
"""Answers below this are sent as they are."""
_MADE_FOR_THE_READER = ("/_dash-update-component", "/_dash-dependencies", "/api/", "/rows/")
_WITH_TOKEN = "/api/v1/me"
_OF_THE_RELEASE = ("/_dash-component-suites/", "/assets/")
_QUICK, _GOOD = 1, 6
_FILES_MAX = 64
_ENCODING = "gzip"
_SECONDS_BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_KINDS = (
    ("/_dash-update-component", "page"),
    ("/_dash", "file"),
    ("/assets/", "file"),
    ("/_favicon", "file"),
    ("/api/", "api"),
    (PATH, "metrics"),
    (HEALTH_PATH, "health"),
)
"""What is asked for, by the beginning of its path; other paths are pages."""


def speak(server: Flask, *, is_secure: bool) -> None:
    """Set the language of every request before it is answered, and keep a choice that an address makes.

    Args:
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


def compress(server: Flask) -> None:
    """Pack the answers of an app."""
    files: OrderedDict[bytes, bytes] = OrderedDict()
    lock = threading.Lock()

    def _of_file(content: bytes) -> bytes:
        # By content, not by address: anybody may ask for one file under many addresses.
        name = hashlib.blake2b(content, digest_size=16).digest()
        with lock:
            packed = files.get(name)
        if packed is None:
            packed = gzip.compress(content, _GOOD, mtime=0)
            with lock:
                files[name] = packed
                while len(files) > _FILES_MAX:
                    files.popitem(last=False)
        return packed

    def _packed(response: Response) -> Response:
        is_file = request.path.startswith(_OF_THE_RELEASE)
        is_made = request.path.startswith(_MADE_FOR_THE_READER) and request.path != _WITH_TOKEN
        if not is_file and not is_made:
            return response
        response.headers["Vary"] = ", ".join(filter(None, (response.headers.get("Vary"), "Accept-Encoding")))
        if (
            response.status_code != 200
            or "Content-Encoding" in response.headers
            or not request.accept_encodings[_ENCODING]
        ):
            return response
        response.direct_passthrough = False  # a file is read, not handed through
        content = response.get_data()
        if len(content) < BYTES_MIN:
            return response
        response.set_data(_of_file(content) if is_file else gzip.compress(content, _QUICK, mtime=0))
        response.headers["Content-Encoding"] = _ENCODING
        return response

    server.after_request(_packed)


class WebMetrics:
    """The metrics of one app."""

    def __init__(self, own: OwnMetrics) -> None:
        self.requests = own.counter(
            "requests_total", "Requests by what was asked for and the status of the answer.", "kind", "code"
        )
        self.seconds = own.histogram(
            "request_seconds",
            "Time from the last byte of a request to its answer, seconds.",
            "kind",
            buckets=_SECONDS_BOUNDS,
        )


def measure(server: Flask) -> None:
    """Count the requests of an app, and show the counts. Called before anything may turn a request away."""
    own = OwnMetrics("web")
    metrics = WebMetrics(own)
    show(own)

    def _begin() -> None:
        g.began = time.perf_counter()

    def _count(response: Response) -> Response:
        kind = next((kind for start, kind in _KINDS if request.path.startswith(start)), "page")
        metrics.requests.labels(kind, str(response.status_code)).inc()
        seconds = time.perf_counter() - g.began
        metrics.seconds.labels(kind).observe(seconds)
        record(f"gputide.web.{kind}", seconds, request.headers.get(TRACEPARENT), status=response.status_code)
        return response

    server.before_request(_begin)
    server.after_request(_count)
    server.add_url_rule(PATH, "own_metrics", lambda: Response(own.text(), content_type=CONTENT_TYPE), methods=["GET"])
