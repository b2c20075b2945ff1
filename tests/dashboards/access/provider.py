"""A small OpenID Connect provider on loopback: discovery, keys, and a token endpoint that checks PKCE itself."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from joserfc import jwt
from joserfc.jwk import KeySet, RSAKey

CLIENT_ID = "gputide"
CLIENT_SECRET = "s3cret & more"


@cache
def a_key(kid: str, number: int = 0) -> RSAKey:
    """A key, made once: making one takes a while."""
    del number
    return RSAKey.generate_key(2048, {"kid": kid})


class TestingProvider:
    """What the provider knows; a test changes what it answers.

    Attributes:
        claims: claims of the next ID token, over the good ones; None takes one away.
        algorithm: what it signs by.
        signer: key that it signs by.
        asked: forms that came to the token endpoint.
        token_answer: what the token endpoint says instead; None for a token.
    """

    __test__ = False

    def __init__(self) -> None:
        self.key = a_key("one")
        self.signer = self.key
        self.algorithm = "RS256"
        self.claims: dict[str, Any] = {}
        self.asked: list[dict[str, str]] = []
        self.token_answer: bytes | None = None
        self.documents: dict[str, Any] = {}
        self.issuer = ""
        self._codes: dict[str, dict[str, str]] = {}
        self._lock = threading.Lock()

    def authorise(self, url: str, **more: str) -> str:
        """Play the browser and the person: the address that the provider sends them back to."""
        query = {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()}
        assert query["response_type"] == "code"
        assert query["code_challenge_method"] == "S256"
        with self._lock:
            code = f"code-{len(self._codes)}"
            self._codes[code] = query
        given = {"code": code, "state": query["state"], **more}
        return query["redirect_uri"] + "?" + "&".join(f"{name}={value}" for name, value in given.items())

    def exchange(self, form: dict[str, str], authorization: str) -> tuple[int, Any]:
        """The token endpoint."""
        self.asked.append(form)
        if self.token_answer is not None:
            return 200, self.token_answer
        with self._lock:
            query = self._codes.pop(form.get("code", ""), None)
        expected = "Basic " + base64.b64encode(f"{CLIENT_ID}:{CLIENT_SECRET}".encode()).decode()
        digest = hashlib.sha256(form.get("code_verifier", "").encode()).digest()
        challenge = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        if query is None or challenge != query["code_challenge"] or authorization != expected:
            return 400, {"error": "invalid_grant"}
        now = int(time.time())
        good: dict[str, Any] = {
            "iss": self.issuer, "aud": CLIENT_ID, "sub": "u-1", "preferred_username": "mei", "groups": ["gpu"],
            "nonce": query["nonce"], "iat": now, "exp": now + 300,
        }  # fmt: skip
        claims = {name: value for name, value in {**good, **self.claims}.items() if value is not None}
        header = {"alg": self.algorithm, "kid": str(self.signer.kid)}
        token = jwt.encode(header, claims, self.signer, algorithms=[self.algorithm])
        return 200, {"access_token": "x", "token_type": "Bearer", "id_token": token}

    def document(self, path: str) -> Any:
        """What stands at a path; None for nothing."""
        if path in self.documents:
            return self.documents[path]
        if path == "/.well-known/openid-configuration":
            return {
                "issuer": self.issuer, "authorization_endpoint": f"{self.issuer}/authorize",
                "token_endpoint": f"{self.issuer}/token", "jwks_uri": f"{self.issuer}/keys",
                "id_token_signing_alg_values_supported": ["RS256", "HS256", "none"],
            }  # fmt: skip
        if path == "/keys":
            return KeySet([self.key]).as_dict(private=False)
        return None


@contextmanager
def running_provider() -> Iterator[TestingProvider]:
    """The provider, listening on a free port of loopback."""
    provider = TestingProvider()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = provider.document(self.path)
            self._answer(404 if found is None else 200, found)

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            form = {name: values[0] for name, values in parse_qs(body).items()}
            self._answer(*provider.exchange(form, self.headers.get("Authorization", "")))

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

        def _answer(self, status: int, content: Any) -> None:
            body = content if isinstance(content, bytes) else json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    provider.issuer = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield provider
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
