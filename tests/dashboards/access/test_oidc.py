"""Signing in by an OpenID Connect provider that really checks PKCE and really signs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from joserfc.jwk import OctKey

from dashboards.access.oidc import OidcSignIn, Provider, _is_safe
from dashboards.access.sessions import Identity
from dashboards.access.sign_in import Ways
from fleet.errors import Refused, Unavailable
from tests.dashboards.access.keys import HOST, a_right, a_roster, an_app, some_sessions
from tests.dashboards.access.provider import CLIENT_ID, CLIENT_SECRET, TestingProvider, a_key, running_provider
from tests.dashboards.embedded import CLUSTER, make_views


@pytest.fixture
def provider() -> Iterator[TestingProvider]:
    with running_provider() as found:
        yield found


def a_sign_in(provider: TestingProvider, **changes: Any) -> OidcSignIn:
    values: dict[str, Any] = {
        "issuer": provider.issuer, "client_id": CLIENT_ID, "client_secret": CLIENT_SECRET,
        "redirect_url": "http://127.0.0.1:8050/signed-in", "scopes": ("openid", "groups"),
        "name_claim": "preferred_username", "groups_claim": "groups",
    }  # fmt: skip
    return OidcSignIn(Provider(**{**values, **changes}))


def test_person_is_who_the_provider_says_and_goes_where_they_wanted(provider: TestingProvider) -> None:
    sign_in = a_sign_in(provider)
    url, browser = sign_in.begin("/plan?plan=7")
    identity, next_path = sign_in.finish(provider.authorise(url), browser)
    assert identity == Identity(name="mei", groups=frozenset({"gpu"}))
    assert next_path == "/plan?plan=7"
    assert len(provider.asked[0]["code_verifier"]) >= 43


def test_way_back_can_be_gone_once_and_by_the_browser_that_began(provider: TestingProvider) -> None:
    sign_in = a_sign_in(provider)
    url, browser = sign_in.begin("/")
    back = provider.authorise(url)
    for stranger in (None, "", browser + "x"):
        again, own = sign_in.begin("/")
        with pytest.raises(Refused, match="another browser"):
            sign_in.finish(provider.authorise(again), stranger)
        with pytest.raises(Refused, match="not here"):
            sign_in.finish(provider.authorise(again), own)
    sign_in.finish(back, browser)
    with pytest.raises(Refused, match="not here"):
        sign_in.finish(back, browser)
    assert len(provider.asked) == 1


@pytest.mark.parametrize(
    "claims",
    [
        {"nonce": "other"},
        {"nonce": None},
        {"aud": "another-app"},
        {"iss": "https://evil.example"},
        {"exp": int(time.time()) - 3600},
        {"exp": None},
        {"iat": int(time.time()) + 7200},
        {"sub": None},
        {"aud": [CLIENT_ID, "another-app"]},
        {"preferred_username": "m" * 254},
        {"preferred_username": ["mei"]},
        {"preferred_username": "me\u202ei"},
    ],
)
def test_id_token_that_is_not_for_us_here_and_now_is_refused(
    provider: TestingProvider, claims: dict[str, Any]
) -> None:  # fmt: skip
    provider.claims = claims
    sign_in = a_sign_in(provider)
    url, browser = sign_in.begin("/")
    with pytest.raises(Refused, match="cannot sign in"):
        sign_in.finish(provider.authorise(url), browser)


def test_mail_address_that_nobody_verified_is_no_name(provider: TestingProvider) -> None:
    sign_in = a_sign_in(provider, name_claim="email")
    for verified in (True, False):
        provider.claims = {"email": "mei@example.com", "email_verified": verified}
        url, browser = sign_in.begin("/")
        if verified:
            assert sign_in.finish(provider.authorise(url), browser)[0].name == "mei@example.com"
            continue
        with pytest.raises(Refused, match="not verified"):
            sign_in.finish(provider.authorise(url), browser)


def test_token_for_several_apps_is_taken_where_we_are_the_party(provider: TestingProvider) -> None:
    provider.claims = {"aud": [CLIENT_ID, "another-app"], "azp": CLIENT_ID, "preferred_username": None, "groups": "gpu"}
    sign_in = a_sign_in(provider)
    url, browser = sign_in.begin("/")
    identity, _ = sign_in.finish(provider.authorise(url), browser)
    assert identity == Identity(name="u-1", groups=frozenset())


def test_signature_by_another_key_or_by_a_shared_secret_is_refused(provider: TestingProvider) -> None:
    sign_in = a_sign_in(provider)
    for signer, algorithm in (
        (a_key("one", 1), "RS256"),
        (OctKey.import_key(CLIENT_SECRET * 4, {"kid": "one"}), "HS256"),
    ):
        provider.signer, provider.algorithm = signer, algorithm  # type: ignore[assignment]
        url, browser = sign_in.begin("/")
        with pytest.raises(Refused, match="ID token is not good"):
            sign_in.finish(provider.authorise(url), browser)


def test_new_key_of_the_provider_is_found(provider: TestingProvider, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dashboards.access.oidc.KEYS_SECONDS_MIN", 0.0)
    sign_in = a_sign_in(provider)
    for kid in ("one", "two"):
        provider.key = provider.signer = a_key(kid)
        url, browser = sign_in.begin("/")
        assert sign_in.finish(provider.authorise(url), browser)[0].name == "mei"


def test_provider_that_says_no_or_sends_a_wrong_code_signs_nobody_in(provider: TestingProvider) -> None:
    sign_in = a_sign_in(provider)
    url, browser = sign_in.begin("/")
    with pytest.raises(Refused, match="access_denied"):
        sign_in.finish(provider.authorise(url, error="access_denied"), browser)
    url, browser = sign_in.begin("/")
    with pytest.raises(Refused, match="did not take the code"):
        sign_in.finish(provider.authorise(url, code="guess"), browser)


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({"issuer": "https://evil.example"}, "it has no authorization_endpoint"),
        (b"<html>", "not JSON"),
        ([], "not a JSON object"),
        (None, "HTTP status 404"),
        (b"[" + b" " * (2**20 + 10), "more than 1048576 bytes"),
    ],
)
def test_provider_that_is_none_is_said(provider: TestingProvider, document: Any, words: str) -> None:
    provider.documents["/.well-known/openid-configuration"] = document
    with pytest.raises(Unavailable, match=words):
        a_sign_in(provider).begin("/")


def test_discovery_of_another_issuer_is_refused(provider: TestingProvider) -> None:
    found = provider.document("/.well-known/openid-configuration")
    provider.documents["/.well-known/openid-configuration"] = {**found, "issuer": "https://evil.example"}
    with pytest.raises(Refused, match=r"it is of issuer 'https://evil\.example'"):
        a_sign_in(provider).begin("/")


def test_provider_that_is_away_is_said() -> None:
    with running_provider() as provider:
        gone = a_sign_in(provider)
    with pytest.raises(Unavailable, match="cannot reach"):
        gone.begin("/")


def test_proxy_of_the_environment_is_not_used(provider: TestingProvider, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    sign_in = a_sign_in(provider)
    url, browser = sign_in.begin("/")
    assert sign_in.finish(provider.authorise(url), browser)[0].name == "mei"


@pytest.mark.parametrize("answer", [b"x" * (2**20 + 10), b"[" * 100_000])
def test_token_that_is_none_signs_nobody_in(provider: TestingProvider, answer: bytes) -> None:
    provider.token_answer = answer
    sign_in = a_sign_in(provider)
    url, browser = sign_in.begin("/")
    with pytest.raises((Refused, Unavailable), match="cannot"):
        sign_in.finish(provider.authorise(url), browser)


def test_browser_signs_in_and_out_by_the_provider(provider: TestingProvider, tmp_path: Path) -> None:
    views, _ = make_views()
    roster = a_roster(tmp_path, a_right("viewer", group="gpu"))
    client = an_app(views, Ways(roster=roster, sessions=some_sessions(), provider=a_sign_in(provider)))
    asked = client.get("/plan?plan=1", headers=HOST)
    assert asked.location == "/sign-in?next=%2Fplan%3Fplan%3D1"
    sent = client.get(asked.location, headers=HOST)
    assert sent.location.startswith(provider.issuer)
    back = client.get(provider.authorise(sent.location).removeprefix("http://127.0.0.1:8050"), headers=HOST)
    assert (back.status_code, back.location) == (302, "/plan?plan=1")
    assert client.get("/api/v1/clusters", headers=HOST).get_json() == {"clusters": [CLUSTER]}
    assert client.get("/api/v1/me", headers=HOST).get_json()["name"] == "mei"
    assert client.post("/sign-out", headers=HOST).status_code == 200
    assert client.get("/api/v1/clusters", headers=HOST).status_code == 401


@pytest.mark.parametrize(
    "endpoint",
    [
        "http://sso.example.com/keys",
        "https://127.1/keys",
        "https://2852039166/keys",
        "https://169.254.169.254\\@sso.example.com/keys",
        "https://sso.example.com@10.0.0.1/keys",
        "https://sso.example.com:x/keys",
        "https:///keys",
    ],
)
def test_endpoint_that_leads_elsewhere_is_not_asked(endpoint: str) -> None:
    assert not _is_safe(endpoint, "https://sso.example.com")
    assert _is_safe("https://keys.example.com/keys", "https://sso.example.com")
