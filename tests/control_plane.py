"""A real Kubernetes control plane on loopback, for tests: etcd, API server, controllers, scheduler, and nodes by kwok.

All parts are one program, `kt`, built with helm from the locked sources in `engines_data/kubernetes` into the cache:
ten minutes of one core, once per version of them and of Go. No kubelet and no container: pods of nodes that kwok plays
turn ready at once. Not among the engines of `gputide admin engines`. Called by the tests of the tier `cluster`.

Sources: kubernetes/kubernetes:cmd/kube-apiserver/app/options, kubernetes-sigs/kwok:pkg/kwok/cmd.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from http import HTTPStatus
from pathlib import Path

import yaml

from fleet.durable import write_durably
from fleet.errors import Unavailable
from gputide.operate.engine_cache import key_of, stocked
from gputide.operate.engine_process import (
    ProcessRecord,
    is_alive,
    kill_process,
    start_process,
    stop_process,
    wait_until,
)
from gputide.operate.engine_tools import Tell, run_tool
from gputide.operate.engines import free_port

KUBERNETES_VERSION = "1.36.3"
"""Of `k8s.io/kubernetes` in `engines_data/kubernetes/go.mod`."""
KWOK_ANNOTATION = "kwok.x-k8s.io/node"
"""Nodes with this annotation, of value `fake`, are played by kwok."""

HOLD_ANNOTATION = "kwok.gputide.io/never-ready"
"""A pod with this annotation is placed and does not turn ready as long as it has it."""

ENDS_WITH_US = ("setpriv", "--pdeathsig", "KILL")
"""Before a command: what it starts is killed where the thread that started it ends, however this process is ended."""

_SOURCES = Path(__file__).with_name("engines_data") / "kubernetes"
_START_SECONDS_MAX = 180.0
_ASK_SECONDS = 5.0


class ControlPart(StrEnum):
    """A part of the control plane, in the order of starting."""

    ETCD = "etcd"
    API_SERVER = "kube-apiserver"
    CONTROLLERS = "kube-controller-manager"
    SCHEDULER = "kube-scheduler"
    KWOK = "kwok"


class User(StrEnum):
    """Who may speak to the API server, by a token of its own."""

    ADMIN = "admin"
    CONTROLLERS = "system:kube-controller-manager"
    SCHEDULER = "system:kube-scheduler"
    KWOK = "kwok"
    STRANGER = "stranger"
    """Known by name, and allowed nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KubernetesPrograms:
    """Paths of what was built.

    Attributes:
        kt: the control plane: `kt PART FLAGS`.
        helm: helm.
    """

    kt: Path
    helm: Path


def find_go() -> str:
    """Path of Go.

    Raises:
        Unavailable: there is none on PATH.
    """
    go = shutil.which("go")
    if go is None:
        raise Unavailable("cannot build Kubernetes: no `go` is on PATH; install Go 1.26 or newer")
    return go


def kubernetes_programs(cache: Path, *, tell: Tell) -> KubernetesPrograms:
    """The programs, built first where they are not in the cache.

    Raises:
        Unavailable: Go is missing or too old, or a module could not be fetched.
    """
    go = find_go()
    go_version = run_tool([go, "version"], purpose="ask Go for its version")
    sources = [path.read_bytes() for path in sorted(_SOURCES.iterdir())]

    def fill(folder: Path) -> None:
        tell(f"building Kubernetes {KUBERNETES_VERSION} with Go (some ten minutes of one core)")
        _build(go, folder / "kt", ".", _version_flags("k8s.io/component-base/version"))
        tell("building helm with Go")
        chart = "helm.sh/helm/v3/pkg/"
        flags = [
            f"-X {chart}{part}.k8sVersion{word}" for part in ("chartutil", "lint/rules") for word in _version_words()
        ]
        _build(go, folder / "helm", "helm.sh/helm/v3/cmd/helm", flags)

    built = stocked(cache, "go-kubernetes", key_of(*sources, go_version.encode()), fill, tell=tell)
    return KubernetesPrograms(kt=built / "kt", helm=built / "helm")


class ControlPlane:
    """One control plane with its data in a folder.

    Args:
        programs: what it is made of.
        folder: for its keys, data and logs; made where it is missing.
        parts: what runs; etcd and the API server always do.
        api_arguments: more flags for the API server.
        controller_arguments: more flags for the controllers.
    """

    def __init__(
        self,
        programs: KubernetesPrograms,
        folder: Path,
        *,
        parts: Sequence[ControlPart] = tuple(ControlPart),
        api_arguments: Sequence[str] = (),
        controller_arguments: Sequence[str] = (),
    ) -> None:
        self._programs = programs
        self._folder = folder.resolve()
        self._parts = parts
        self._api_arguments = tuple(api_arguments)
        self._controller_arguments = tuple(controller_arguments)
        self._ports = {name: free_port() for name in ("etcd", "peer", *ControlPart)}
        self._tokens = {user: secrets.token_hex(16) for user in User}
        self._processes: dict[ControlPart, ProcessRecord] = {}

    @property
    def url(self) -> str:
        """Address of the API server."""
        return f"https://127.0.0.1:{self._ports[ControlPart.API_SERVER]}"

    @property
    def ca(self) -> Path:
        """Certificate that the API server's is checked by."""
        return self._folder / "pki" / "apiserver.crt"

    @property
    def etcd_url(self) -> str:
        """Address of etcd, for what only it can do, such as forgetting old versions."""
        return f"http://127.0.0.1:{self._ports['etcd']}"

    def kubeconfig(self, user: User = User.ADMIN) -> Path:
        """Path of a user's kubeconfig."""
        return self._folder / f"{user.value.rpartition(':')[2]}.kubeconfig"

    def kubeconfig_of_token(self, name: str, token: str) -> Path:
        """Writes a kubeconfig for somebody else's token, such as a service account's, and returns its path."""
        path = self._folder / f"{name}.kubeconfig"
        user = {"name": name, "user": {"token": token}}
        cluster = {"name": "test", "cluster": {"server": self.url, "certificate-authority": str(self.ca)}}
        context = {"name": "test", "context": {"cluster": "test", "user": name, "namespace": "default"}}
        document = {
            "apiVersion": "v1", "kind": "Config", "current-context": "test",
            "clusters": [cluster], "users": [user], "contexts": [context],
        }  # fmt: skip
        write_durably(path, json.dumps(document, indent=1).encode())
        path.chmod(0o600)
        return path

    def start(self) -> None:
        """Starts the parts that do not run, each after the one before it answers.

        Raises:
            Unavailable: a part does not start, or does not answer.
        """
        self._lay_out()
        for part in ControlPart:
            if part not in (ControlPart.ETCD, ControlPart.API_SERVER) and part not in self._parts:
                continue
            if part in self._processes and is_alive(self._processes[part]):
                continue
            # Collecting garbage at twice a heap of nothing is a quarter of what an idle API server does.
            environ = {"PATH": os.environ.get("PATH", "/usr/bin:/bin"), "HOME": str(self._folder), "GOGC": "400"}
            log = self._folder / f"{part.value}.log"
            command = [*ENDS_WITH_US, str(self._programs.kt), part.value, *self._arguments(part)]
            record = start_process(part.value, command, folder=self._folder, log=log, environ=environ)
            self._processes[part] = record
            wait_until(self._question(part), record, seconds_max=_START_SECONDS_MAX)

    def kill(self, part: ControlPart) -> None:
        """Ends a part at once, as a power cut would; `start` brings it back with its data and port."""
        kill_process(self._processes.pop(part))

    def end(self) -> None:
        """Stops all parts, the last started first; data and logs stay."""
        for record in reversed(tuple(self._processes.values())):
            stop_process(record, patience_seconds=5.0)
        self._processes.clear()

    def _lay_out(self) -> None:
        keys = self._folder / "pki"
        keys.mkdir(parents=True, exist_ok=True)
        if not (keys / "sa.key").exists():
            pair = [str(self._programs.kt), "key-pair", str(keys / "sa.key"), str(keys / "sa.pub")]
            run_tool(pair, purpose="make the keys of service accounts")
        groups = {User.ADMIN: "system:masters", User.KWOK: "system:masters"}
        lines = [f'{token},{user.value},{user.name},"{groups.get(user, "")}"\n' for user, token in self._tokens.items()]
        write_durably(keys / "tokens.csv", "".join(lines).encode())
        (keys / "tokens.csv").chmod(0o600)
        for user, token in self._tokens.items():
            self.kubeconfig_of_token(self.kubeconfig(user).stem, token)
        if ControlPart.KWOK in self._parts:
            stages = run_tool([str(self._programs.kt), "kwok-stages"], purpose="ask kwok for its stages")
            write_durably(self._folder / "stages.yaml", _with_hold(stages).encode())

    def _arguments(self, part: ControlPart) -> list[str]:
        keys, port = self._folder / "pki", self._ports[part]
        listening = ["--leader-elect=false", "--bind-address=127.0.0.1", f"--secure-port={port}"]
        match part:
            case ControlPart.ETCD:
                peer = f"http://127.0.0.1:{self._ports['peer']}"
                return [
                    "--name=test", f"--data-dir={self._folder / 'etcd'}", "--unsafe-no-fsync", "--log-level=warn",
                    f"--listen-client-urls={self.etcd_url}", f"--advertise-client-urls={self.etcd_url}",
                    f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}",
                    f"--initial-cluster=test={peer}",
                ]  # fmt: skip
            case ControlPart.API_SERVER:
                return [
                    f"--etcd-servers={self.etcd_url}", f"--cert-dir={keys}", "--bind-address=127.0.0.1",
                    f"--secure-port={port}", "--advertise-address=127.0.0.1",
                    "--service-cluster-ip-range=10.0.0.0/24", "--authorization-mode=RBAC", "--anonymous-auth=false",
                    f"--token-auth-file={keys / 'tokens.csv'}",
                    "--service-account-issuer=https://kubernetes.default.svc",
                    f"--service-account-key-file={keys / 'sa.pub'}",
                    f"--service-account-signing-key-file={keys / 'sa.key'}", "--allow-privileged=true",
                    "--endpoint-reconciler-type=none", "--profiling=false", *self._api_arguments,
                ]  # fmt: skip
            case ControlPart.CONTROLLERS:
                return [
                    f"--kubeconfig={self.kubeconfig(User.CONTROLLERS)}", *listening, f"--cert-dir={keys / 'kcm'}",
                    f"--service-account-private-key-file={keys / 'sa.key'}", f"--root-ca-file={self.ca}",
                    "--use-service-account-credentials=true", *self._controller_arguments,
                ]  # fmt: skip
            case ControlPart.SCHEDULER:
                own = self.kubeconfig(User.SCHEDULER)
                return [
                    f"--kubeconfig={own}", f"--authentication-kubeconfig={own}", f"--authorization-kubeconfig={own}",
                    *listening, f"--cert-dir={keys / 'scheduler'}",
                ]  # fmt: skip
            case ControlPart.KWOK:
                return [
                    f"--kubeconfig={self.kubeconfig(User.KWOK)}", "--manage-all-nodes=false",
                    f"--manage-nodes-with-annotation-selector={KWOK_ANNOTATION}=fake",
                    "--node-lease-duration-seconds=40", f"--server-address=127.0.0.1:{port}",
                    f"--config={self._folder / 'stages.yaml'}",
                ]  # fmt: skip

    def _question(self, part: ControlPart) -> Callable[[], bool]:
        """What shows that a part works: the API server lets a write through, the controllers make the first account.

        A server that says it is ready still answers writes with 403 until its admission plugins have read what they go
        by, so it is asked for one that changes nothing.
        """
        match part:
            case ControlPart.ETCD:
                return lambda: _answers(f"{self.etcd_url}/readyz")
            case ControlPart.API_SERVER:
                written = json.dumps({"metadata": {"name": "asked"}}).encode()
                return lambda: (
                    self._api_answers("/readyz") and self._api_answers("/api/v1/namespaces?dryRun=All", written)
                )
            case ControlPart.CONTROLLERS:
                return lambda: self._api_answers("/api/v1/namespaces/default/serviceaccounts/default")
            case ControlPart.SCHEDULER:
                return lambda: _answers(f"https://127.0.0.1:{self._ports[part]}/readyz", context=_unchecked())
            case ControlPart.KWOK:
                return lambda: _answers(f"http://127.0.0.1:{self._ports[part]}/healthz")

    def _api_answers(self, path: str, written: bytes | None = None) -> bool:
        if not self.ca.exists():
            return False
        headers = {"Authorization": f"Bearer {self._tokens[User.ADMIN]}", "Content-Type": "application/json"}
        trusted = ssl.create_default_context(cafile=str(self.ca))
        return _answers(self.url + path, written, headers=headers, context=trusted)


def _with_hold(stages: str) -> str:
    """Stages by which a pod with the annotation never turns ready, nor ends by itself."""
    found = list(yaml.safe_load_all(stages))
    for stage in found:
        if stage["metadata"]["name"] == "pod-ready":
            key = f'.metadata.annotations["{HOLD_ANNOTATION}"]'
            stage["spec"]["selector"]["matchExpressions"].append({"key": key, "operator": "DoesNotExist"})
    return yaml.safe_dump_all(found)


def _answers(
    url: str,
    written: bytes | None = None,
    *,
    headers: Mapping[str, str] | None = None,
    context: ssl.SSLContext | None = None,
) -> bool:
    request = urllib.request.Request(url, written, headers=dict(headers or {}))
    try:
        with urllib.request.urlopen(request, timeout=_ASK_SECONDS, context=context) as answer:
            return bool(answer.status in (HTTPStatus.OK, HTTPStatus.CREATED))
    except (OSError, urllib.error.URLError):
        return False


def _unchecked() -> ssl.SSLContext:
    """For a part on loopback that signs its own certificate and is asked for nothing but whether it is ready."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _build(go: str, program: Path, package: str, flags: Sequence[str]) -> None:
    # Two at a time: the compiler takes more than a gigabyte for some packages.
    command = [go, "build", "-p", "2", "-trimpath", "-ldflags", f"-s -w {' '.join(flags)}", "-o", str(program), package]
    environ = {**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly -buildvcs=false", "GOWORK": "off"}
    run_tool(command, purpose=f"build {program.name}", folder=_SOURCES, environ=environ)


def _version_flags(package: str) -> list[str]:
    # Without them the API server calls itself v0.0.0-master and the feature gates of that version are all off.
    epoch = "1970-01-01T00:00:00Z"
    words = [f"gitVersion=v{KUBERNETES_VERSION}", "gitTreeState=clean", f"buildDate={epoch}"]
    return [f"-X {package}.{word}" for word in words] + [f"-X {package}.git{word}" for word in _version_words()]


def _version_words() -> tuple[str, str]:
    major, minor, _ = KUBERNETES_VERSION.split(".")
    return f"Major={major}", f"Minor={minor}"
