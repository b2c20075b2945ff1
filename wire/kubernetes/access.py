"""Where a cluster's API server is and how one gets in: a pod's service account, or a kubeconfig.

What of a kubeconfig is not understood is refused by its name, so that nobody is let in by other rights, or past another
check, than the file says. Called by the exporter's reader and the enforcer's client.

Sources: kubernetes/client-go:rest/config.go (InClusterConfig), tools/clientcmd/api/v1/types.go.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from fleet.errors import Misconfigured
from wire.credentials import Credentials, FixedHeader, PluginToken, TokenFile, basic, bearer
from wire.http_client import Endpoint
from wire.tls import Tls

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")

_KUBECONFIG_BYTES_MAX = 4 * 1024 * 1024
# Not among them is what changes nothing for a reader: extensions, disable-compression, preferences.
_CLUSTER_FIELDS_REFUSED = ("proxy-url",)
_USER_FIELDS_REFUSED = ("auth-provider", "as", "as-uid", "as-groups", "as-user-extra")

_PORT = re.compile(r"[0-9]{1,5}", re.ASCII)

Entry = Mapping[str, object]


def find_access(
    kubeconfig: Path | None,
    context: str | None,
    *,
    setting: str,
    environ: Mapping[str, str] = os.environ,
    service_account: Path = SERVICE_ACCOUNT,
) -> Endpoint:
    """How to get into the cluster.

    Args:
        kubeconfig: path of a kubeconfig; None for the pod's own service account, else `$KUBECONFIG` or
            `~/.kube/config`.
        context: name of a context of it; None for the current one.
        setting: dotted name of the setting that names a kubeconfig, for messages; with `_context` behind it, that of
            the context.
        service_account: folder of the pod's service account.

    Raises:
        Misconfigured: there is nothing, it can't be read, or needs something that is not understood.
    """
    if kubeconfig is None and (service_account / "token").exists():
        return _of_service_account(service_account, environ, setting)
    path = _file(kubeconfig, environ, setting)
    try:
        return _of_kubeconfig(_document(path), context, path.parent, setting)
    except Misconfigured as exc:
        raise Misconfigured(f"cannot use kubeconfig {path}: {exc}; see {setting}") from exc


def context_namespace(
    kubeconfig: Path | None,
    context: str | None,
    *,
    setting: str,
    environ: Mapping[str, str] = os.environ,
    service_account: Path = SERVICE_ACCOUNT,
) -> str:
    """The namespace that a context of a kubeconfig names, `default` where it names none; in a pod the pod's own.

    Args:
        kubeconfig, context, setting, environ, service_account: as of `find_access`.

    Raises:
        Misconfigured: the file can't be read.
    """
    if kubeconfig is None and (service_account / "token").exists():
        return (service_account / "namespace").read_text(encoding="utf-8").strip() or "default"
    path = _file(kubeconfig, environ, setting)
    try:
        document = _document(path)
        return _text(_context(document, context, setting), "namespace") or "default"
    except Misconfigured as exc:
        raise Misconfigured(f"cannot use kubeconfig {path}: {exc}; see {setting}") from exc


def _file(kubeconfig: Path | None, environ: Mapping[str, str], setting: str) -> Path:
    """Path of the kubeconfig that is meant."""
    if kubeconfig is None:
        named = environ.get("KUBECONFIG") or "~/.kube/config"
        if os.pathsep in named:
            raise Misconfigured(f"cannot use KUBECONFIG={named}: several files; name one by {setting}")
        kubeconfig = Path(named)
    try:
        return kubeconfig.expanduser()
    except RuntimeError as exc:
        raise Misconfigured(f"cannot use kubeconfig {kubeconfig}: {exc}; see {setting}") from exc


def _context(document: Entry, context: str | None, setting: str) -> Entry:
    wanted = context or _text(document, "current-context")
    if wanted is None:
        raise Misconfigured(f"it has no current context, and {setting}_context names none")
    return _named(document, "contexts", "context", wanted)


def _of_service_account(folder: Path, environ: Mapping[str, str], setting: str) -> Endpoint:
    host, port = environ.get("KUBERNETES_SERVICE_HOST"), environ.get("KUBERNETES_SERVICE_PORT")
    if not host or port is None or _PORT.fullmatch(port) is None or not 0 < int(port) < 2**16:
        raise Misconfigured(
            f"cannot use service account {folder}: KUBERNETES_SERVICE_HOST={host!r} and "
            f"KUBERNETES_SERVICE_PORT={port!r} name no API server; see {setting}"
        )
    return Endpoint(
        host=host,
        port=int(port),
        path="",
        tls=Tls(authority_file=folder / "ca.crt"),
        credentials=TokenFile(folder / "token"),
    )


def _document(path: Path) -> Entry:
    try:
        with path.open("rb") as file:
            body = file.read(_KUBECONFIG_BYTES_MAX + 1)
    except OSError as exc:
        raise Misconfigured(f"it can't be read: {exc.strerror}") from exc
    if len(body) > _KUBECONFIG_BYTES_MAX:
        raise Misconfigured(f"it is larger than {_KUBECONFIG_BYTES_MAX} bytes")
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        found = _yaml(body)
    if not isinstance(found, dict):
        raise Misconfigured("it holds no object")
    return found


def _yaml(body: bytes) -> object:
    # Loaded where it is needed alone: a node's exporter, which has a service account, keeps a megabyte.
    import yaml  # noqa: PLC0415

    from fleet.yaml_text import load_yaml  # noqa: PLC0415

    try:
        return load_yaml(body)
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError, ValueError) as exc:
        # The parser quotes the line, which may be the one with the token.
        mark = getattr(exc, "problem_mark", None)
        place = "" if mark is None else f" at line {mark.line + 1}"
        raise Misconfigured(f"it is neither JSON nor YAML{place}") from None


def _of_kubeconfig(document: Entry, context: str | None, folder: Path, setting: str) -> Endpoint:
    chosen = _context(document, context, setting)
    named = f"context {context or _text(document, 'current-context')}"
    cluster = _named(document, "clusters", "cluster", _needed(chosen, "cluster", named))
    user = _named(document, "users", "user", _needed(chosen, "user", named))
    _refuse(cluster, _CLUSTER_FIELDS_REFUSED, "cluster")
    _refuse(user, _USER_FIELDS_REFUSED, "user")
    server = _needed(cluster, "server", "cluster")
    try:
        address = urlsplit(server)
        host, port = address.hostname, address.port
    except ValueError as exc:
        raise Misconfigured(f"server {server[:80]!r} is no address") from exc
    if address.scheme not in ("http", "https") or not host:
        raise Misconfigured(f"server {server[:80]!r} is no address of the form https://HOST:PORT")
    is_plain = address.scheme == "http"
    return Endpoint(
        host=host,
        port=port or (80 if is_plain else 443),
        path=address.path.rstrip("/"),
        tls=None if is_plain else _tls(cluster, user, folder),
        credentials=_credentials(user, folder),
    )


def _tls(cluster: Entry, user: Entry, folder: Path) -> Tls:
    authority = _bytes(cluster, "certificate-authority-data")
    certificate = _bytes(user, "client-certificate-data")
    key = _bytes(user, "client-key-data")
    certificate_file, key_file = _path(user, "client-certificate", folder), _path(user, "client-key", folder)
    if certificate is not None or key is not None:
        # Either part may stand in a file, and the library wants both in files or both in one.
        certificate = certificate if certificate is not None else _content(certificate_file, "client-certificate")
        key = key if key is not None else _content(key_file, "client-key")
        certificate_file, key_file = None, None
    try:
        pem = None if authority is None else authority.decode("ascii")
    except ValueError as exc:
        raise Misconfigured("certificate-authority-data is no certificate") from exc
    file = _path(cluster, "certificate-authority", folder)
    return Tls(
        authority_file=None if pem is not None else file,
        authority_pem=pem,
        is_unchecked=cluster.get("insecure-skip-tls-verify") is True,
        server_name=_text(cluster, "tls-server-name"),
        certificate_file=certificate_file,
        key_file=key_file,
        certificate_pem=None if certificate is None or key is None else certificate + b"\n" + key,
    )


def _credentials(user: Entry, folder: Path) -> Credentials:
    token_file = _path(user, "tokenFile", folder)
    if token_file is not None:
        return TokenFile(token_file)
    token = _text(user, "token")
    if token is not None:
        return FixedHeader(bearer(token, "the kubeconfig"))
    plugin = user.get("exec")
    if plugin is not None:
        return _plugin(plugin, folder)
    name, password = _text(user, "username"), _text(user, "password")
    if name is not None and password is not None:
        return FixedHeader(basic(name, password))
    return FixedHeader(None)


def _plugin(plugin: object, folder: Path) -> Credentials:
    if not isinstance(plugin, dict):
        raise Misconfigured("exec is no object")
    if plugin.get("interactiveMode") == "Always" or plugin.get("provideClusterInfo") is True:
        raise Misconfigured("exec plugins that speak to a person or need to know the cluster are not understood")
    arguments, variables = plugin.get("args") or [], plugin.get("env") or []
    if not isinstance(arguments, list) or not isinstance(variables, list):
        raise Misconfigured("args or env of exec is no list")
    environ = {
        _needed(variable, "name", "env of exec"): _text(variable, "value") or ""
        for variable in variables
        if isinstance(variable, dict)
    }
    return PluginToken(
        _needed(plugin, "command", "exec"),
        [str(argument) for argument in arguments],
        environ,
        version=_needed(plugin, "apiVersion", "exec"),
        folder=folder,
    )


def _refuse(entry: Entry, fields: tuple[str, ...], what: str) -> None:
    found = [field for field in fields if entry.get(field)]
    if found:
        raise Misconfigured(f"{', '.join(found)} of the {what} is not understood")


def _named(document: Entry, plural: str, kind: str, name: str) -> Entry:
    entries = document.get(plural)
    for entry in entries if isinstance(entries, list) else ():
        if isinstance(entry, dict) and entry.get("name") == name:
            found = entry.get(kind)
            if isinstance(found, dict):
                return found
    raise Misconfigured(f"there is no {kind} {name[:80]!r} in it")


def _needed(entry: Entry, key: str, what: str) -> str:
    found = _text(entry, key)
    if found is None:
        raise Misconfigured(f"{what} has no {key}")
    return found


def _text(entry: Entry, key: str) -> str | None:
    found = entry.get(key)
    return found if isinstance(found, str) and found else None


def _path(entry: Entry, key: str, folder: Path) -> Path | None:
    found = _text(entry, key)
    return None if found is None else folder / found


def _bytes(entry: Entry, key: str) -> bytes | None:
    found = _text(entry, key)
    if found is None:
        return None
    try:
        content = base64.b64decode("".join(found.split()), validate=True)
    except (binascii.Error, ValueError):
        raise Misconfigured(f"{key} is not in base64") from None
    if not content.strip():
        # As if it were not there, it would mean something else: of an authority, all that this machine trusts.
        raise Misconfigured(f"{key} is empty")
    return content


def _content(path: Path | None, key: str) -> bytes:
    if path is None:
        raise Misconfigured(f"{key} is missing")
    try:
        return path.read_bytes()
    except OSError as exc:
        raise Misconfigured(f"{key} {path} can't be read: {exc.strerror}") from exc
