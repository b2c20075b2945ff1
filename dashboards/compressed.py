"""Answers are sent compressed where the browser takes it: a page of a large fleet is a megabyte of repeating JSON.

What a callback or the API answers is packed quickly, files of this release once and well. What carries the token of
the person's page goes as it is, and is small: the length of something packed tells of what is in it (BREACH,
breachattack.com). gzip is RFC 1952; called by `app`.
"""

from __future__ import annotations

import gzip
import hashlib
import threading
from collections import OrderedDict

from flask import Flask, Response, request

BYTES_MIN = 4096
"""Answers below this are sent as they are."""
_MADE_FOR_THE_READER = ("/_dash-update-component", "/api/")
_WITH_TOKEN = "/api/v1/me"
_OF_THE_RELEASE = "/_dash-component-suites/"
_QUICK, _GOOD = 1, 6
_FILES_MAX = 64
_ENCODING = "gzip"


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
            or response.direct_passthrough
            or "Content-Encoding" in response.headers
            or not request.accept_encodings[_ENCODING]
        ):
            return response
        content = response.get_data()
        if len(content) < BYTES_MIN:
            return response
        response.set_data(_of_file(content) if is_file else gzip.compress(content, _QUICK, mtime=0))
        response.headers["Content-Encoding"] = _ENCODING
        return response

    server.after_request(_packed)
