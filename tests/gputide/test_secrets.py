"""What a file of secrets holds goes to the service that it is for, and nowhere else: not even where that repeats it."""

from __future__ import annotations

import base64
import http.client
import json
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from fleet.settings.settings import setting_fields
from tests.gputide.conftest import Program
from tests.security.authority import Authority
from tests.waiting import until

SECRET = {
    "agent.tls_key_file", "agent.tokens_file",
    "enforcer.ledger_key_file", "dashboard.oidc_client_secret_file", "dashboard.tls_key_file",
    "enforcer.kubeconfig", "exporter.kubeconfig", "exporter.scrape_tokens_file", "exporter.tls_key_file",
    "flink.key_file", "forge.token_file", "hive.key_file", "hive.password_file", "iceberg.password_file",
    "kafka.key_file", "kafka.password_file", "probe.key_file",
    "prometheus.bearer_token_file", "prometheus.key_file", "receiver.scrape_tokens_file", "receiver.tls_key_file",
    "receiver.tokens_file", "relief.agents_key_file", "relief.agents_token_file", "router.tls_key_file",
    "scan.bearer_token_file", "scan.headers_file", "scan.key_file", "scan.password_file", "telemetry.headers_file",
    "usage_api.tls_key_file",
}  # fmt: skip
"""Settings that name files with secrets."""
PUBLIC = {
    name
    for name in dict(setting_fields())
    if name.endswith(
        ("ca_file", "certificate_file", "rights_file", "anchor_file")
    )  # of tokens the digests alone stand there
}
TOKENS = ("receiver.tokens_file", "receiver.scrape_tokens_file", "exporter.scrape_tokens_file", "agent.tokens_file")


def canary(name: str) -> str:
    """A secret that says whose it is."""
    return f"canary-{name.replace('.', '-').replace('_', '-')}-4f1d9a7c"


class _Echo(BaseHTTPRequestHandler):
    """A service that refuses, and repeats in its answer what it was shown."""

    def do_GET(self) -> None:
        shown = [self.path, *self.headers.values()]
        _heard.extend(shown)
        body = json.dumps({"status": "error", "errorType": "x", "error": " ".join(shown), "message": " ".join(shown)})
        self.send_response(403)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    def do_POST(self) -> None:
        self.do_GET()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


_heard: list[str] = []
"""What was shown to the services of this test."""


@contextmanager
def echoing() -> Iterator[str]:
    _heard.clear()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Echo)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def settings_file(folder: Path, url: str) -> Path:
    """Write settings in which every secret is set, all services at an address that repeats what it hears."""
    lines: dict[str, list[str]] = {}
    pair = Authority(folder, "authority").pair("all")

    def add(name: str, value: object) -> None:
        section, _, leaf = name.partition(".")
        lines.setdefault(section, []).append(f"{leaf} = {json.dumps(value)}")

    for name in sorted(SECRET):
        path = folder / name
        if name.endswith("key_file") and name != "probe.key_file":
            path.write_bytes(pair.key.read_bytes())
        elif name in TOKENS:
            path.write_text(f"{canary(name)} somebody\n")
        elif name.endswith("kubeconfig"):
            user = {"token": canary(name)}
            path.write_text(json.dumps({
                "current-context": "c", "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
                "clusters": [{"name": "k", "cluster": {"server": url}}], "users": [{"name": "u", "user": user}],
            }))  # fmt: skip
        else:
            path.write_text(f"X-Scope-OrgID: {canary(name)}\n" if name.endswith("headers_file") else canary(name))
        if not name.startswith("scan.p"):
            add(name, str(path))
    for name in ("receiver", "exporter", "agent", "dashboard", "router", "usage_api"):
        add(f"{name}.tls_certificate_file", str(pair.certificate))
    for name in ("kafka", "flink", "hive", "prometheus"):
        add(f"{name}.certificate_file", str(pair.certificate))
    add("relief.agents_certificate_file", str(pair.certificate))
    add("kafka.servers", ["127.0.0.1:1"])
    add("kafka.security", "sasl_plaintext")
    add("kafka.username", "gputide")
    for name, value in {
        "hive.auth": "LDAP", "hive.port": 1, "hive.tls": True,
        "scan.url": url, "relief.prometheus_url": url, "enforcer.watch_prometheus_url": url,
        "enforcer.cluster": "kubernetes", "dashboard.oidc_issuer": url, "dashboard.oidc_client_id": "gputide",
        "scan.attempts_max": 1, "kafka.request_seconds": 1, "dashboard.public_url": url, "notify.tries_max": 1,
        "telemetry.endpoint": url, "notify.everything": ["ops"], "forge.kind": "github", "forge.url": url,
        "forge.repository": "a/b",
    }.items():  # fmt: skip
        add(name, value)
    (folder / "hook").write_text(f"{url}/{canary('hook.path')}\n")
    (folder / "hook-secret").write_text(canary("hook.secret"))
    text = "".join(f"[{section}]\n" + "\n".join(found) + "\n" for section, found in lines.items())
    text += f'[notify.channels.ops]\nkind = "webhook"\nurl_file = "{folder / "hook"}"\n'
    text += f'secret_file = "{folder / "hook-secret"}"\n'
    path = folder / "gputide.toml"
    path.write_text(text)
    return path


def leaks(text: str) -> list[str]:
    """Names of the secrets that stand in a text, as they are or as basic authentication writes them."""
    named = [*SECRET, "hook.path", "hook.secret"]
    found = [name for name in named if canary(name) in text]
    for word in text.replace('"', " ").split():
        try:
            decoded = base64.b64decode(word, validate=True)
        except ValueError:
            continue
        found += [name for name in named if canary(name).encode() in decoded]
    return [*found, *(["a private key"] if "PRIVATE KEY" in text else [])]


def test_every_setting_of_a_file_is_known_to_be_secret_or_public() -> None:
    of_files = {name for name in dict(setting_fields()) if name.endswith(("_file", "kubeconfig"))}
    assert of_files == SECRET | PUBLIC


def test_secrets_are_printed_by_no_verb_and_kept_in_no_data_folder(program: Program, tmp_path: Path) -> None:
    data = tmp_path / "data"
    folder = tmp_path / "secrets"
    folder.mkdir()
    with echoing() as url:
        options = ("--config", str(settings_file(folder, url)), "--log-level", "debug")
        calls = (
            ("--check", "plan", "make"),
            ("doctor", "prometheus", "cluster", "notify", "--format", "json"),
            ("scan", url),
            ("admin", "notify", "test", "ops"),
            ("run", "rollup", "--drain", "--engine", "duckdb"),
            ("--set", "bus.kind=kafka", "run", "rollup", "--drain"),
            ("--set", "warehouse.kind=hive", "admin", "warehouse", "compact"),
        )
        for call in calls:
            said = program(data, *options, *call)
            assert not leaks(said.out + said.err), call
            assert "cannot use setting" not in said.err, said.err
    # They were really used: each service was shown its own.
    heard = leaks(" ".join(_heard))
    for name in ("scan.bearer_token_file", "scan.headers_file", "enforcer.kubeconfig", "hook.path"):
        assert name in heard
    for path in data.rglob("*"):
        if path.is_file():
            assert not leaks(path.read_bytes().decode("latin-1")), path


def test_running_receiver_shows_no_secret_in_answers_logs_or_process_list(program: Program, tmp_path: Path) -> None:
    folder = tmp_path / "secrets"
    folder.mkdir()
    config = settings_file(folder, "http://127.0.0.1:1")
    plain = ("--set", "receiver.tls_certificate_file=none", "--set", "receiver.tls_key_file=none")
    running = program.start(
        tmp_path / "data", "--config", str(config), *plain, "--log-level", "debug", "run", "receive",
        "--listen", "127.0.0.1:0",
    )  # fmt: skip
    until(lambda: "listening on" in running.err.read_text())
    port = int(running.err.read_text().partition("127.0.0.1:")[2].partition("/")[0])
    heard = Path(f"/proc/{running.pid}/cmdline").read_text()
    for token, status in (
        (canary("receiver.scrape_tokens_file"), 200),
        (canary("receiver.tokens_file"), 401),
        ("x", 401),
    ):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        connection.request("GET", "/metrics", headers={"Authorization": f"Bearer {token}"})
        answer = connection.getresponse()
        heard += answer.read().decode() + str(answer.headers)
        assert answer.status == status
        connection.close()
    os.kill(running.pid, signal.SIGTERM)
    said = running.wait()
    assert not leaks(heard + said.out + said.err)


def test_client_secret_of_the_web_app_is_not_told_by_a_provider_that_repeats_it() -> None:
    from dashboards.access.oidc import OidcSignIn, Provider  # noqa: PLC0415
    from fleet.errors import GputideError  # noqa: PLC0415

    secret = canary("dashboard.oidc_client_secret_file")
    with echoing() as url:
        sign_in = OidcSignIn(
            Provider(
                issuer=url, client_id="g", client_secret=secret, redirect_url=f"{url}/signed-in", scopes=("openid",),
                name_claim="sub", groups_claim="groups",
            )
        )  # fmt: skip
        document = dict.fromkeys(("authorization_endpoint", "token_endpoint", "jwks_uri"), f"{url}/x")
        sign_in._document = (1e18, {"issuer": url, **document})
        address, browser = sign_in.begin("/")
        state = address.partition("state=")[2].partition("&")[0]
        with pytest.raises(GputideError) as raised:
            sign_in.finish(f"{url}/signed-in?code=c&state={state}", browser)
    assert not leaks(str(raised.value))
