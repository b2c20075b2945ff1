"""How one gets into a cluster: a pod's service account, every kind of kubeconfig, and what is refused by its name."""

from __future__ import annotations

import base64
import json
import os
import ssl
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fleet.errors import Misconfigured
from tests.waiting import until
from wire.credentials import PluginToken, TokenFile, bearer
from wire.http_client import Endpoint
from wire.kubernetes.access import context_namespace, find_access
from wire.tls import TlsContexts

SETTING = "exporter.kubeconfig"
CERTIFICATES = Path(__file__).parents[1] / "pipeline" / "certificates"
IN_CLUSTER = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}
Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Return a writer of kubeconfigs."""

    def made(user: dict[str, Any] | None = None, cluster: dict[str, Any] | None = None, **more: Any) -> Path:
        document = {
            "current-context": "t",
            "clusters": [{"name": "c", "cluster": {"server": "https://api.example:6443", **(cluster or {})}}],
            "users": [{"name": "u", "user": {"token": "secret"} if user is None else user}],
            "contexts": [{"name": "t", "context": {"cluster": "c", "user": "u"}}],
            **more,
        }
        path = tmp_path / "kubeconfig"
        path.write_text(json.dumps(document), encoding="utf-8")
        return path

    return made


def access(path: Path, context: str | None = None) -> Endpoint:
    return find_access(path, context, setting=SETTING, environ={})


def in_base64(name: str) -> str:
    return base64.b64encode((CERTIFICATES / name).read_bytes()).decode()


def test_service_account_of_a_pod_comes_before_any_kubeconfig(tmp_path: Path, write: Write) -> None:
    (tmp_path / "token").write_text("of-the-pod\n")
    found = find_access(
        None,
        None,
        setting=SETTING,
        environ={**IN_CLUSTER, "KUBECONFIG": str(write())},
        service_account=tmp_path,
    )
    assert (found.server, found.credentials.header()) == ("https://10.0.0.1:443", "Bearer of-the-pod")
    assert found.tls is not None
    assert found.tls.authority_file == tmp_path / "ca.crt"


def test_namespace_is_that_of_the_context_and_in_a_pod_its_own(tmp_path: Path, write: Write) -> None:
    def namespace_of(path: Path | None, context: str | None = None) -> str:
        return context_namespace(path, context, setting=SETTING, environ={}, service_account=tmp_path / "account")

    contexts = [
        {"name": name, "context": {"cluster": "c", "user": "u", **more}}
        for name, more in (("t", {}), ("search", {"namespace": "team-search"}))
    ]
    kubeconfig = write(contexts=contexts)
    assert namespace_of(kubeconfig) == "default"
    assert namespace_of(kubeconfig, "search") == "team-search"
    with pytest.raises(Misconfigured, match=r"there is no context 'none' in it; see exporter\.kubeconfig"):
        namespace_of(kubeconfig, "none")
    (tmp_path / "account").mkdir()
    for name, text in (("token", "secret"), ("namespace", "gputide\n")):
        (tmp_path / "account" / name).write_text(text)
    assert namespace_of(None) == "gputide"
    assert namespace_of(kubeconfig) == "default"


def test_service_account_of_an_ipv6_cluster_is_addressed_in_brackets(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("t")
    environ = {**IN_CLUSTER, "KUBERNETES_SERVICE_HOST": "fd00::1"}
    assert (
        find_access(None, None, setting=SETTING, environ=environ, service_account=tmp_path).server
        == "https://[fd00::1]:443"
    )


def test_service_account_without_an_address_is_said_so(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("t")
    with pytest.raises(Misconfigured, match="KUBERNETES_SERVICE_HOST=None"):
        find_access(None, None, setting=SETTING, environ={}, service_account=tmp_path)


def test_kubeconfig_of_the_environment_is_found_and_several_are_refused(tmp_path: Path, write: Write) -> None:
    environ = {"KUBECONFIG": str(write())}
    assert (
        find_access(None, None, setting=SETTING, environ=environ, service_account=tmp_path).server
        == "https://api.example:6443"
    )
    with pytest.raises(Misconfigured, match="several files"):
        find_access(
            None,
            None,
            setting=SETTING,
            environ={"KUBECONFIG": f"a{os.pathsep}b"},
            service_account=tmp_path,
        )


def test_token_that_is_put_into_the_file_anew_is_used_from_the_next_request_on(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("first")
    token = TokenFile(file)
    assert token.header() == "Bearer first"
    assert not token.renew()
    # As the kubelet does it: another folder is filled, and a link swapped.
    (tmp_path / "new").write_text("other")
    (tmp_path / "new").replace(file)
    assert token.header() == "Bearer other"
    file.unlink()
    with pytest.raises(Misconfigured, match="token"):
        token.header()


@pytest.mark.parametrize(
    "content", ["", " \n", "secret\nAuthorization: x", "secret b", "secret\x00", "secretschlüssel"]
)
def test_token_that_could_not_stand_in_a_header_is_refused_and_not_shown(tmp_path: Path, content: str) -> None:
    (tmp_path / "token").write_text(content)
    with pytest.raises(Misconfigured, match="token of file") as refused:
        TokenFile(tmp_path / "token").header()
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("user", "header"),
    [
        ({"token": "secret"}, "Bearer secret"),
        ({"username": "me", "password": "pass"}, "Basic bWU6cGFzcw=="),
        ({"token": "secret", "username": "me", "password": "pass"}, "Bearer secret"),
        ({}, None),
    ],
)
def test_users_of_a_kubeconfig_are_understood(write: Write, user: dict[str, str], header: str | None) -> None:
    assert access(write(user)).credentials.header() == header


def test_token_file_of_a_kubeconfig_lies_beside_it_and_comes_first(write: Write, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("of-the-file")
    assert access(write({"tokenFile": "mine", "token": "other"})).credentials.header() == "Bearer of-the-file"


def test_yaml_is_read_as_json_is(tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(
        "current-context: t\nclusters: [{name: c, cluster: {server: 'https://h/k8s/clusters/c-1/'}}]\n"
        "users: [{name: u, user: {token: x}}]\ncontexts: [{name: t, context: {cluster: c, user: u}}]\n"
    )
    found = access(path)
    assert (found.server, found.path) == ("https://h:443/k8s/clusters/c-1", "/k8s/clusters/c-1")


def test_context_is_chosen_by_its_name(write: Write) -> None:
    path = write(contexts=[{"name": "other", "context": {"cluster": "c", "user": "u"}}])
    assert access(path, "other").host == "api.example"
    with pytest.raises(Misconfigured, match="no context 't'"):
        access(path)


@pytest.mark.parametrize(
    ("part", "named"),
    [
        ({"cluster": {"proxy-url": "http://proxy"}}, "proxy-url"),
        ({"user": {"auth-provider": {"name": "gcp"}}}, "auth-provider"),
        ({"user": {"token": "x", "as": "root"}}, "as of the user"),
        ({"user": {"exec": {"apiVersion": "client.authentication.k8s.io/v9", "command": "aws"}}}, "v9"),
        ({"user": {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "a",
                            "interactiveMode": "Always"}}}, "exec plugins that speak to a person"),
        ({"user": {"exec": {"apiVersion": "client.authentication.k8s.io/v1"}}}, "exec has no command"),
        ({"cluster": {"server": "ftp://h"}}, "ftp://h"),
        ({"cluster": {"server": "https://h:99999"}}, "99999"),
        ({"cluster": {"certificate-authority-data": "%%%"}}, "certificate-authority-data is not in base64"),
        ({"user": {"client-certificate-data": "AAAA"}}, "client-key is missing"),
    ],
)  # fmt: skip
def test_what_is_not_understood_is_refused_by_its_name(write: Write, part: dict[str, Any], named: str) -> None:
    with pytest.raises(Misconfigured, match=named):
        access(write(**part))


def test_broken_kubeconfig_is_not_quoted(tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text("users:\n- user: {token: very-secret\n  bad: [")
    with pytest.raises(Misconfigured) as refused:
        access(path)
    assert "line" in str(refused.value)
    assert "very-secret" not in str(refused.value)
    assert refused.value.__cause__ is None or "very-secret" not in str(refused.value.__cause__)


@pytest.mark.parametrize("form", ["file", "data", "mixed"])
def test_client_certificate_is_loaded_from_files_and_from_text(write: Write, form: str) -> None:
    in_files = {
        "client-certificate": str(CERTIFICATES / "edge-1.pem"), "client-key": str(CERTIFICATES / "edge-1.key.pem"),
    }  # fmt: skip
    in_text = {
        "client-certificate-data": in_base64("edge-1.pem"),
        "client-key-data": in_base64("edge-1.key.pem"),
    }
    mixed = {"client-certificate": in_files["client-certificate"], "client-key-data": in_text["client-key-data"]}
    user = {"file": in_files, "data": in_text, "mixed": mixed}[form]
    authority = {"certificate-authority-data": in_base64("authority.pem")}
    tls = access(write(user, authority)).tls
    assert tls is not None
    context = TlsContexts(tls).context()
    assert [one["subject"] for one in context.get_ca_certs()] == [((("commonName", "authority of tests"),),)]


def test_certificate_that_does_not_fit_its_key_is_the_users_to_mend(write: Write) -> None:
    user = {
        "client-certificate": str(CERTIFICATES / "edge-1.pem"), "client-key": str(CERTIFICATES / "receiver.key.pem"),
    }  # fmt: skip
    tls = access(write(user)).tls
    assert tls is not None
    with pytest.raises(Misconfigured, match=r"receiver\.key\.pem"):
        TlsContexts(tls).context()


def test_authority_that_is_put_into_the_file_anew_is_trusted(tmp_path: Path, write: Write) -> None:
    file = tmp_path / "ca.crt"
    file.write_bytes((CERTIFICATES / "authority.pem").read_bytes())
    tls = access(write(cluster={"certificate-authority": "ca.crt"})).tls
    assert tls is not None
    contexts = TlsContexts(tls)
    first = contexts.context()
    assert contexts.context() is first
    (tmp_path / "new").write_bytes((CERTIFICATES / "stranger.pem").read_bytes())
    (tmp_path / "new").replace(file)
    assert contexts.context() is not first


def test_authority_is_checked_as_other_clients_of_kubernetes_check_it(write: Write, monkeypatch) -> None:
    # From Python 3.13 on a default context refuses what RFC 5280 forbids and Go accepts, as an authority without a key
    # identifier, which older clusters have.
    default = ssl.create_default_context

    def strict(**more: Any) -> ssl.SSLContext:
        context = default(**more)
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        return context

    monkeypatch.setattr(ssl, "create_default_context", strict)
    tls = access(write(cluster={"certificate-authority-data": in_base64("authority.pem")})).tls
    assert tls is not None
    context = TlsContexts(tls).context()
    assert not context.verify_flags & ssl.VERIFY_X509_STRICT
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)


def test_no_secret_stands_in_what_a_program_shows_of_an_access(write: Write) -> None:
    user = {"client-certificate-data": in_base64("edge-1.pem"), "client-key-data": in_base64("edge-1.key.pem")}
    shown = repr(access(write({**user, "token": "very-secret"})))
    assert "PRIVATE KEY" not in shown
    assert "very-secret" not in shown


def test_home_that_nobody_knows_is_the_users_to_mend() -> None:
    with pytest.raises(Misconfigured, match="no-such-user"):
        access(Path("~no-such-user-here/.kube/config"))


@pytest.mark.parametrize("port", ["²", "0", "70000", "tcp://10.0.0.1:443"])
def test_port_that_is_none_is_said_so(tmp_path: Path, port: str) -> None:
    (tmp_path / "token").write_text("t")
    environ = {**IN_CLUSTER, "KUBERNETES_SERVICE_PORT": port}
    with pytest.raises(Misconfigured, match="KUBERNETES_SERVICE_PORT"):
        find_access(None, None, setting=SETTING, environ=environ, service_account=tmp_path)


def test_authority_without_content_does_not_turn_into_those_that_the_machine_trusts(write: Write) -> None:
    with pytest.raises(Misconfigured, match="certificate-authority-data"):
        access(write(cluster={"certificate-authority-data": " "}))


def plugin(folder: Path, script: str) -> Path:
    path = folder / "plugin"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def credential(token: str, until: str = "") -> str:
    status = {"token": token, **({"expirationTimestamp": until} if until else {})}
    return json.dumps({"kind": "ExecCredential", "apiVersion": "client.authentication.k8s.io/v1", "status": status})


def test_plugin_is_asked_once_until_its_token_ends_or_is_refused(tmp_path: Path, write: Write) -> None:
    plugin(
        tmp_path,
        'test "$1" = get-token -a "$REGION" = eu || exit 3\n'
        'case "$KUBERNETES_EXEC_INFO" in *client.authentication.k8s.io/v1beta1*) ;; *) exit 4;; esac\n'
        f"echo x >> {tmp_path}/calls\n"
        f"cat <<END\n{credential('from-plugin', '2026-03-04T12:00:00Z')}\nEND",
    )
    path = write({
        "exec": {"apiVersion": "client.authentication.k8s.io/v1beta1", "command": "./plugin", "args": ["get-token"],
                 "env": [{"name": "REGION", "value": "eu"}]}
    })  # fmt: skip
    assert access(path).credentials.header() == "Bearer from-plugin"
    calls = tmp_path / "calls"
    calls.unlink()
    now = [1772625000.0]  # 2026-03-04T11:50:00Z
    token = PluginToken(
        "./plugin", ["get-token"], {"REGION": "eu"}, version="client.authentication.k8s.io/v1beta1", folder=tmp_path,
        now=lambda: now[0],
    )  # fmt: skip
    token.header()
    token.header()
    assert calls.read_text() == "x\n"
    now[0] += 599
    token.header()
    assert calls.read_text() == "x\nx\n"
    assert not token.renew()
    assert calls.read_text() == "x\nx\nx\n"


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo not logged in >&2; exit 7", "status 7: not logged in"),
        ("echo secret-but-no-json", "printed no ExecCredential"),
        ('echo \'{"status": {"clientCertificateData": "x"}}\'', "gave no token"),
        ('echo \'{"status": {"token": "t", "expirationTimestamp": 5}}\'', "printed no ExecCredential"),
    ],
)
def test_plugin_that_fails_is_named_with_what_it_said(tmp_path: Path, write: Write, script: str, said: str) -> None:
    plugin(tmp_path, script)
    path = write({"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "./plugin"}})
    with pytest.raises(Misconfigured, match=said) as refused:
        access(path).credentials.header()
    assert "secret" not in str(refused.value)


def test_plugin_that_prints_without_an_end_is_ended_before_it_fills_the_memory(tmp_path: Path, write: Write) -> None:
    plugin(tmp_path, "exec cat /dev/zero")
    path = write({"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "./plugin"}})
    with pytest.raises(Misconfigured, match="printed more than 1048576 bytes"):
        access(path).credentials.header()


def test_plugin_that_hangs_is_ended_with_what_it_started(tmp_path: Path, write: Write, monkeypatch) -> None:
    monkeypatch.setattr("wire.credentials.PLUGIN_SECONDS_MAX", 2.0)
    plugin(tmp_path, f"sleep 600 & echo $! > {tmp_path}/child; wait")
    path = write({"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "./plugin"}})
    with pytest.raises(Misconfigured, match="took longer than 2 s"):
        access(path).credentials.header()
    child = Path(f"/proc/{(tmp_path / 'child').read_text().strip()}/stat")
    until(lambda: not child.exists() or child.read_text().rpartition(")")[2].split()[0] == "Z")


@pytest.mark.parametrize("more", [{"args": ["a\0b"]}, {"env": [{"name": "A=B", "value": "c"}]}, {"command": "a\0b"}])
def test_plugin_that_no_system_can_start_is_the_users_to_mend(tmp_path: Path, write: Write, more: dict) -> None:
    plugin(tmp_path, "true")
    path = write({"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "./plugin", **more}})
    with pytest.raises(Misconfigured, match="cannot run the kubeconfig's exec plugin"):
        access(path).credentials.header()


def test_plugin_that_is_not_installed_is_named(write: Write) -> None:
    path = write({"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "no-such-plugin-here"}})
    with pytest.raises(Misconfigured, match="no-such-plugin-here"):
        access(path).credentials.header()


def test_token_is_signed_with_as_it_stands() -> None:
    assert bearer(" abc.def-_~+/= \n", "here") == "Bearer abc.def-_~+/="
