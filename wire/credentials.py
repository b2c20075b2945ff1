"""What a client's requests are signed with: a fixed header, a file that is read anew when it changes, a plugin.

`wire.http_client` asks before each request; `wire.kubernetes.access` finds out what a kubeconfig wants. No message of
an error shows a secret.

Source: kubernetes/client-go:transport/token_source.go, plugin/pkg/client/auth/exec,
kubernetes/client-go:pkg/apis/clientauthentication/v1/types.go (ExecCredential).

A plugin that hangs, prints without an end, or leaves children behind must cost this process no more than its time.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import IO, Protocol

from fleet.errors import Misconfigured
from wire.replaced_files import ReplacedFiles

PLUGIN_SECONDS_MAX = 30.0
"""Longest time that a plugin may take."""

_TOKEN_BYTES_MAX = 64 * 1024
# RFC 6750, section 2.1, and what else stands in real tokens; above all no line ends, which would be further headers.
_TOKEN = re.compile(r"[\x21-\x7e]+", re.ASCII)
_PLUGIN_VERSIONS = tuple(f"client.authentication.k8s.io/{version}" for version in ("v1", "v1beta1", "v1alpha1"))
_EARLY_SECONDS = 30.0


class Credentials(Protocol):
    """What a request is signed with; called from several threads."""

    def header(self) -> str | None:
        """Value of the header `Authorization`; None for none.

        Raises:
            Misconfigured: there is nothing to sign with.
        """
        ...

    def renew(self) -> bool:
        """After the server did not know who asked: looks again.

        Returns:
            Whether there is something else to sign with by now.
        """
        ...


class FixedHeader:
    """The same header for ever.

    Args:
        value: the header; None for none, as where a client certificate says who asks.
    """

    def __init__(self, value: str | None) -> None:
        self._value = value

    def header(self) -> str | None:
        """See `Credentials`."""
        return self._value

    def renew(self) -> bool:
        """See `Credentials`."""
        return False


class TokenFile:
    """A token that somebody puts into a file, and replaces before it ends, as the kubelet does."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._header = ReplacedFiles((path,), self._read)

    def header(self) -> str | None:
        """See `Credentials`; the file is looked at each time, and read where it is another one."""
        return self._header.now()

    def renew(self) -> bool:
        """See `Credentials`."""
        return self._header.forget() != self.header()

    def _read(self) -> str:
        try:
            with self._path.open("rb") as file:
                token = file.read(_TOKEN_BYTES_MAX)
        except OSError as exc:
            raise Misconfigured(f"cannot read the token of file {self._path}: {exc.strerror}") from exc
        return bearer(token.decode(errors="replace"), f"file {self._path}")


class PluginToken:
    """A token that a program hands out, until the time that it names or the server refuses it.

    Args:
        command: the program, as the kubeconfig writes it.
        environ: what is added to the environment.
        folder: of the kubeconfig: a command with a slash is looked for from there.

    Raises:
        Misconfigured: a version that is not understood.
    """

    def __init__(
        self,
        command: str,
        arguments: Sequence[str],
        environ: Mapping[str, str],
        *,
        version: str,
        folder: Path,
        now: Callable[[], float] = time.time,
    ) -> None:
        if version not in _PLUGIN_VERSIONS:
            known = ", ".join(_PLUGIN_VERSIONS)
            raise Misconfigured(f"cannot use the kubeconfig's exec plugin {command}: {version!r} is none of {known}")
        self._command = str(folder / command) if "/" in command else command
        self._arguments = tuple(arguments)
        self._environ = dict(environ)
        self._version = version
        self._now = now
        self._lock = threading.Lock()
        self._token: str | None = None
        self._until: float | None = None

    def header(self) -> str | None:
        """See `Credentials`."""
        with self._lock:
            if self._token is None or (self._until is not None and self._now() >= self._until - _EARLY_SECONDS):
                self._ask()
            return self._token

    def renew(self) -> bool:
        """See `Credentials`."""
        with self._lock:
            before, self._token = self._token, None
        return self.header() != before

    def _ask(self) -> None:
        info = {"apiVersion": self._version, "kind": "ExecCredential", "spec": {"interactive": False}}
        what = f"exec plugin {self._command}"
        try:
            done = run_program(
                [self._command, *self._arguments],
                environ={**os.environ, **self._environ, "KUBERNETES_EXEC_INFO": json.dumps(info)},
                seconds_max=PLUGIN_SECONDS_MAX,
            )
        except TimeoutError as exc:
            raise Misconfigured(
                f"cannot run the kubeconfig's {what}: it took longer than {PLUGIN_SECONDS_MAX:.0f} s"
            ) from exc
        except (OSError, ValueError, TooMuchPrinted) as exc:
            reason = exc.strerror if isinstance(exc, OSError) else str(exc)
            raise Misconfigured(f"cannot run the kubeconfig's {what}: {reason}") from exc
        if done.status != 0:
            said = done.errors[-300:].decode(errors="replace").strip()
            raise Misconfigured(f"cannot use the kubeconfig's {what}: it ended with status {done.status}: {said}")
        try:
            status = json.loads(done.output)["status"]
            token, ends = status.get("token"), status.get("expirationTimestamp")
            until = None if ends is None else datetime.fromisoformat(ends).timestamp()
        except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError):
            # What it printed may hold the token: it stands in no message and in no chain of errors.
            raise Misconfigured(f"cannot use the kubeconfig's {what}: it printed no ExecCredential") from None
        if not isinstance(token, str):
            # A certificate of a plugin's, which we would have to give to the next connection, is not understood.
            raise Misconfigured(f"cannot use the kubeconfig's {what}: it gave no token")
        self._token, self._until = bearer(token, what), until


def bearer(token: str, where: str) -> str:
    """The header of a token.

    Args:
        where: where it comes from, for the message.

    Raises:
        Misconfigured: no token, or one that can't stand in a header.
    """
    stripped = token.strip()
    if not _TOKEN.fullmatch(stripped):
        raise Misconfigured(f"cannot use the token of {where}: it is empty, or holds blanks or no ASCII")
    return f"Bearer {stripped}"


def basic(user: str, password: str) -> str:
    """The header of a name and a password."""
    return f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"


PRINTED_BYTES_MAX = 1024 * 1024
"""Most bytes that a program may print, on each of its two outputs."""

_PART_BYTES = 64 * 1024


class TooMuchPrinted(Exception):
    """A program printed more than is read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Printed:
    """A program that has ended.

    Attributes:
        status: its exit status; negative for the signal that ended it.
    """

    status: int
    output: bytes
    errors: bytes


def run_program(command: Sequence[str], *, environ: Mapping[str, str], seconds_max: float) -> Printed:
    """Runs a program to its end; where that does not come, neither it nor what it started in its group runs on.

    Raises:
        OSError: it can't be started.
        ValueError: it can't be started by any system, as with a NUL in an argument.
        TimeoutError: it took longer.
        TooMuchPrinted: it printed more than `PRINTED_BYTES_MAX`.
    """
    until = time.monotonic() + seconds_max
    # A session of its own makes it the head of a group, which is ended as a whole.
    with subprocess.Popen(
        command, env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0,
        start_new_session=True,
    ) as process:  # fmt: skip
        try:
            output, errors = _printed((process.stdout, process.stderr), until)
            status = _status(process, until)
        except BaseException:
            # Nobody has waited for it, so its number is still its own, and its group's.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            raise
    return Printed(status=status, output=output, errors=errors)


def _status(process: subprocess.Popen[bytes], until: float) -> int:
    try:
        return process.wait(max(0.0, until - time.monotonic()))
    except subprocess.TimeoutExpired as exc:
        raise TimeoutError("not over in time") from exc


def _printed(pipes: tuple[IO[bytes] | None, ...], until: float) -> list[bytes]:
    """What came out of each pipe until all were closed."""
    found = [bytearray() for _ in pipes]
    with selectors.DefaultSelector() as selector:
        for pipe, into in zip(pipes, found, strict=True):
            if pipe is not None:
                selector.register(pipe, selectors.EVENT_READ, into)
        while selector.get_map():
            left = until - time.monotonic()
            ready = selector.select(left) if left > 0 else []
            if not ready:
                raise TimeoutError("not over in time")
            for key, _ in ready:
                part = os.read(key.fd, _PART_BYTES)
                key.data.extend(part)
                if not part:
                    selector.unregister(key.fileobj)
                elif len(key.data) > PRINTED_BYTES_MAX:
                    raise TooMuchPrinted(f"it printed more than {PRINTED_BYTES_MAX} bytes")
    return [bytes(one) for one in found]
