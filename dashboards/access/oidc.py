"""People known by an OpenID Connect provider: authorization code with PKCE, and an ID token that is checked.

Sources: OpenID Connect Core 1.0 §3.1 (code flow, §3.1.3.7 checks of the ID token), Discovery 1.0 §4, RFC 7636 (PKCE),
RFC 9700 (state bound to the browser, one use). Authlib words the requests, our HTTP client sends them by the rules of
every other request (no proxy of the environment, no redirect, bounds on time and bytes), joserfc checks signatures.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, parse_qsl, urlencode, urlsplit

from authlib.common.errors import AuthlibBaseError
from authlib.oauth2.auth import ClientAuth
from authlib.oauth2.client import OAuth2Client
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import KeySet

from dashboards.access.sessions import Identity
from fleet.errors import Refused, Unavailable
from wire.credentials import FixedHeader
from wire.http_answer import TooLarge, read_body
from wire.http_client import HttpClient, Request, endpoint_of
from wire.own_network import is_own_network
from wire.tls import Tls

TIMEOUT_SECONDS = 10.0
DOCUMENT_SECONDS = 3600.0
"""How long the provider's discovery document and keys are kept."""
KEYS_SECONDS_MIN = 30.0
"""An unknown key makes us ask again, no more often than this."""
PENDING_SECONDS_MAX = 600.0
"""How long somebody may take to sign in."""
PENDING_MAX = 2000
LEEWAY_SECONDS = 60
ANSWER_BYTES_MAX = 2**20
ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
"""Signatures by a key that only the provider has; never `none`, never a shared secret."""
_NAME_LENGTH_MAX = 253
_GROUPS_MAX = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Provider:
    """The provider, and what this app is to it.

    Attributes:
        issuer: address below which the discovery document lies.
        client_secret: its secret; None for a public client.
        redirect_url: where browsers come back to.
        ca_file: authorities that its certificate is checked with; None for those of the machine.
    """

    issuer: str
    client_id: str
    client_secret: str | None
    redirect_url: str
    scopes: tuple[str, ...]
    name_claim: str
    groups_claim: str
    ca_file: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pending:
    verifier: str
    nonce: str
    next_path: str
    browser: bytes
    begun: float


class OidcSignIn:
    """Signs people in by the provider."""

    def __init__(self, provider: Provider, clock: Callable[[], float] = time.monotonic) -> None:
        self._provider, self._clock = provider, clock
        self._lock = threading.Lock()
        self._pending: dict[str, _Pending] = {}
        self._document: tuple[float, Mapping[str, Any]] | None = None
        self._keys: tuple[float, KeySet] | None = None

    def begin(self, next_path: str) -> tuple[str, str]:
        """Start to sign somebody in.

        Args:
            next_path: where they want to go.

        Returns:
            The address at the provider, and a secret for the browser's cookie: only the browser that began may finish.

        Raises:
            Unavailable: the provider can't be asked.
        """
        document = self._discovered()
        verifier, nonce, browser = (secrets.token_urlsafe(48) for _ in range(3))
        url, state = self._client().create_authorization_url(
            document["authorization_endpoint"], code_verifier=verifier, nonce=nonce
        )
        now = self._clock()
        with self._lock:
            for key in [key for key, found in self._pending.items() if now - found.begun > PENDING_SECONDS_MAX]:
                del self._pending[key]
            while len(self._pending) >= PENDING_MAX:
                del self._pending[next(iter(self._pending))]
            self._pending[state] = _Pending(
                verifier=verifier, nonce=nonce, next_path=next_path, browser=_digest(browser), begun=now
            )
        return str(url), browser

    def finish(self, url: str, browser: str | None) -> tuple[Identity, str]:
        """End it, with the address that the provider sent the browser back to.

        Args:
            browser: secret of the browser's cookie; None where it has none.

        Returns:
            Who it is, and where they wanted to go.

        Raises:
            Refused: the provider said no, or nothing of ours fits: state, browser, nonce, signature, audience, time.
            Unavailable: the provider can't be asked.
        """
        query = parse_qs(urlsplit(url).query)
        pending = self._taken((query.get("state") or [""])[0], browser)
        if "error" in query:
            raise Refused(f"cannot sign in: the provider says {query['error'][0][:200]!r}")
        document = self._discovered()
        try:
            token = self._client().fetch_token(
                document["token_endpoint"], authorization_response=url, code_verifier=pending.verifier
            )
        except (AuthlibBaseError, ValueError) as exc:
            raise Refused(f"cannot sign in: the provider did not take the code: {str(exc)[:200]}") from exc
        claims = self._checked(str(token.get("id_token") or ""), pending.nonce)
        return self._identity(claims), pending.next_path

    def _taken(self, state: str, browser: str | None) -> _Pending:
        """What was begun under a state, once."""
        with self._lock:
            found = self._pending.pop(state, None)
        if found is None or self._clock() - found.begun > PENDING_SECONDS_MAX:
            raise Refused("cannot sign in: this was begun too long ago, or not here; try again")
        if browser is None or not hmac.compare_digest(found.browser, _digest(browser)):
            raise Refused("cannot sign in: it was begun in another browser; try again")
        return found

    def _checked(self, id_token: str, nonce: str) -> Mapping[str, Any]:
        document = self._discovered()
        offered = document.get("id_token_signing_alg_values_supported") or ["RS256"]
        algorithms = [name for name in ALGORITHMS if name in offered]
        registry = jwt.JWTClaimsRegistry(
            now=lambda: int(time.time()),
            leeway=LEEWAY_SECONDS,
            iss={"essential": True, "value": str(document["issuer"])},
            aud={"essential": True, "value": self._provider.client_id},
            sub={"essential": True},
            exp={"essential": True},
            iat={"essential": True},
            nonce={"essential": True, "value": nonce},
        )
        try:
            try:
                token = jwt.decode(id_token, self._key_set(KEYS_SECONDS_MIN * 1e9), algorithms=algorithms)
            except (JoseError, ValueError):
                # The provider may have new keys.
                token = jwt.decode(id_token, self._key_set(KEYS_SECONDS_MIN), algorithms=algorithms)
            registry.validate(token.claims)
        except (JoseError, ValueError) as exc:
            raise Refused(f"cannot sign in: the ID token is not good: {type(exc).__name__}: {str(exc)[:200]}") from exc
        audience = token.claims["aud"]
        if isinstance(audience, list) and len(audience) > 1 and token.claims.get("azp") != self._provider.client_id:
            raise Refused("cannot sign in: the ID token is for several apps, and azp is not us")
        return token.claims

    def _identity(self, claims: Mapping[str, Any]) -> Identity:
        if self._provider.name_claim == "email" and claims.get("email_verified") is False:
            # Anybody may write the address of somebody who has rights (OpenID Connect Core 1.0 §5.7).
            raise Refused("cannot sign in: the provider says that this mail address was not verified")
        name = claims.get(self._provider.name_claim) or claims["sub"]
        if not isinstance(name, str) or not name.isprintable() or not 0 < len(name) <= _NAME_LENGTH_MAX:
            raise Refused(
                f"cannot sign in: claim {self._provider.name_claim} is no name of 1 to {_NAME_LENGTH_MAX} letters"
            )
        groups = claims.get(self._provider.groups_claim)
        listed = groups if isinstance(groups, list) else []
        return Identity(name=name, groups=frozenset(item for item in listed[:_GROUPS_MAX] if isinstance(item, str)))

    def _client(self) -> OAuth2Client:
        place = self._provider
        return OAuth2Client(
            _Asking(place.ca_file),
            place.client_id,
            place.client_secret,
            scope=" ".join(place.scopes),
            redirect_uri=place.redirect_url,
            code_challenge_method="S256",
            token_endpoint_auth_method="none" if place.client_secret is None else "client_secret_basic",
        )

    def _discovered(self) -> Mapping[str, Any]:
        with self._lock:
            kept = self._document
        if kept is not None and self._clock() - kept[0] < DOCUMENT_SECONDS:
            return kept[1]
        url = f"{self._provider.issuer}/.well-known/openid-configuration"
        found = _json_at(url, self._provider.ca_file)
        for name in ("issuer", "authorization_endpoint", "token_endpoint", "jwks_uri"):
            if not isinstance(found.get(name), str):
                raise Unavailable(f"cannot use {url}: it has no {name}")
            if name != "issuer" and not _is_safe(str(found[name]), self._provider.issuer):
                raise Refused(
                    f"cannot use {url}: its {name} {str(found[name])[:200]!r} is not https, or of this machine"
                )
        if str(found["issuer"]).rstrip("/") != self._provider.issuer:
            raise Refused(
                f"cannot use {url}: it is of issuer {str(found['issuer'])[:200]!r}, dashboard.oidc_issuer="
                f"{self._provider.issuer}"
            )
        with self._lock:
            self._document = (self._clock(), found)
        return found

    def _key_set(self, seconds_max: float) -> KeySet:
        """The provider's keys, no older than this."""
        with self._lock:
            kept = self._keys
        if kept is not None and self._clock() - kept[0] < min(seconds_max, DOCUMENT_SECONDS):
            return kept[1]
        found = _json_at(str(self._discovered()["jwks_uri"]), self._provider.ca_file)
        keys = KeySet.import_key_set(found)  # type: ignore[arg-type]
        with self._lock:
            self._keys = (self._clock(), keys)
        return keys


@dataclass(frozen=True, slots=True)
class _Said:
    """An answer, in the words by which Authlib asks for it."""

    url: str
    status_code: int
    body: bytes

    def json(self) -> Any:
        """The JSON value.

        Raises:
            ValueError: it is none.
        """
        try:
            return json.loads(self.body)
        except RecursionError as exc:
            raise ValueError("it is nested too deeply") from exc

    def raise_for_status(self) -> None:
        """Raises `Unavailable` for a status that is an error."""
        if self.status_code >= HTTPStatus.BAD_REQUEST:
            raise Unavailable(f"cannot use {self.url}: HTTP status {self.status_code}")


@dataclass(frozen=True, slots=True)
class _Asking:
    """What Authlib sends its requests by."""

    ca_file: Path | None

    def post(self, url: str, data: Mapping[str, str], headers: Mapping[str, str], auth: ClientAuth) -> _Said:
        """A form, with the name and the secret of this app where `auth` puts them."""
        _, signed, form = auth.prepare("POST", url, dict(headers), urlencode(data))
        return _said(url, self.ca_file, form=form.encode(), authorization=signed.get("Authorization"))


def _said(url: str, ca_file: Path | None, *, form: bytes | None = None, authorization: str | None = None) -> _Said:
    """What the provider says.

    Raises:
        Unavailable: it can't be reached, or says too much.
    """
    parts = urlsplit(url)
    endpoint = endpoint_of(
        f"{parts.scheme}://{parts.netloc}",
        setting="dashboard.oidc_issuer",
        tls=Tls(authority_file=ca_file),
        credentials=FixedHeader(authorization),
    )
    asked = Request(
        path=parts.path,
        query=dict(parse_qsl(parts.query, keep_blank_values=True)),
        seconds_max=TIMEOUT_SECONDS,
        method="GET" if form is None else "POST",
        body=form,
        content_type="application/x-www-form-urlencoded",
    )
    with HttpClient(endpoint, "gputide-dashboard", is_kept=False).ask(asked) as answer:
        try:
            return _Said(url, answer.status, bytes(read_body(answer, ANSWER_BYTES_MAX)))
        except TooLarge as exc:
            raise Unavailable(f"cannot read {url}: more than {ANSWER_BYTES_MAX} bytes") from exc


def _json_at(url: str, ca_file: Path | None) -> dict[str, Any]:
    said = _said(url, ca_file)
    if said.status_code != HTTPStatus.OK:
        raise Unavailable(f"cannot read {url}: HTTP status {said.status_code}")
    try:
        found = said.json()
    except ValueError as exc:
        raise Unavailable(f"cannot read {url}: not JSON") from exc
    if not isinstance(found, dict):
        raise Unavailable(f"cannot read {url}: not a JSON object")
    return found


def _is_safe(endpoint: str, issuer: str) -> bool:
    """Whether what a provider names may be asked: by https, and on this machine only where the provider is there too.

    A document that somebody else has slipped in could name what answers to nobody but us.
    """
    try:
        parts, home = urlsplit(endpoint), urlsplit(issuer)
        host = parts.hostname or ""
        _ = parts.port
    except ValueError:
        return False
    if "\\" in endpoint or "@" in parts.netloc:
        return False  # anybody who asks may take another part of it for the host than we do
    if is_own_network(host):
        return host == home.hostname and parts.scheme == home.scheme
    return parts.scheme == "https" and bool(host)


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
