"""What the options before the verb say: data folder, settings, clock, quietness. One per call of the program."""

from __future__ import annotations

import os
import pwd
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Protocol

import typer
from platformdirs import user_data_path

from fleet.data_folder import DataFolder, open_data_folder
from fleet.errors import Misconfigured
from fleet.settings.settings import ClusterChoice, Settings, changed_settings
from gputide.replay.clock import now_of

_KEY_BYTES_MIN = 32


class Tick(Protocol):
    """Called by long work to show how far it is."""

    def __call__(self, done: int, total: int) -> None:
        """Show that `done` of `total` pieces are done."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """The options of the whole program.

    Attributes:
        is_quiet: True for no progress.
        bare_settings: the settings without what the price book adds; None where it adds nothing to this verb.
    """

    data_path: Path
    settings: Settings
    now_override: datetime | None
    is_quiet: bool
    bare_settings: Settings | None = None

    def folder(self, *, create: bool = False) -> DataFolder:
        """The data folder, checked; made when `create`, and where a real cluster keeps what matters of it."""
        is_copy = self.settings.enforcer.cluster is ClusterChoice.KUBERNETES
        return _with_trust(open_data_folder(self.data_path, create=create or is_copy), self.settings)

    def now(self) -> datetime:
        """The moment all verbs take as now, UTC."""
        return now_of(self.folder(), self.now_override)

    def with_overrides(self, assignments: Sequence[str]) -> Session:
        """The session with some settings changed for one call, each by a text `NAME=VALUE`.

        Raises:
            Misconfigured: unknown name or bad value.
        """
        if not assignments:
            return self
        return replace(self, settings=changed_settings(self.settings, assigned(assignments)))

    @contextmanager
    def progress(self, title: str) -> Iterator[Tick]:
        """A progress bar on standard error; silent when asked for or when nobody looks."""
        if self.is_quiet or not sys.stderr.isatty():
            yield _unseen
            return
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task(title, total=None)

            def show(done: int, total: int) -> None:
                bar.update(task, completed=done, total=total)

            yield show


def session_of(context: typer.Context) -> Session:
    """The session that the options before the verb made."""
    found = context.find_object(Session)
    if found is None:
        raise TypeError("a verb was called without the options of the program")
    return found


def default_data_path() -> Path:
    """Where state lives unless `--data-dir` or `GPUTIDE_DATA_DIR` says otherwise."""
    named = os.environ.get("GPUTIDE_DATA_DIR")
    return Path(named) if named else user_data_path("gputide", appauthor=False)


def assigned(texts: Sequence[str]) -> dict[str, str]:
    """Values of settings by dotted names, from texts `NAME=VALUE`.

    Raises:
        Misconfigured: a text has no `=`.
    """
    found = {}
    for text in texts:
        name, sign, value = text.partition("=")
        if not sign:
            raise Misconfigured(f"cannot use the setting {text!r}: expected NAME=VALUE, such as risk.preset=low")
        found[name.strip()] = value
    return found


def who() -> str:
    """Name of the operating system's user who runs this process, for approvals and the audit log.

    By the number that the system gives, since everybody may set LOGNAME and USER as they like.
    """
    number = os.getuid()
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"uid-{number}"


def _unseen(done: int, total: int) -> None:
    """Progress that nobody sees."""


def _with_trust(folder: DataFolder, settings: Settings) -> DataFolder:
    """The data folder with the key and the anchor that the settings name.

    Raises:
        Misconfigured: the key can't be read, is too short, or either lies in the folder.
    """
    key_file, anchor_file = settings.enforcer.ledger_key_file, settings.enforcer.ledger_anchor_file
    for name, path in (("ledger_key_file", key_file), ("ledger_anchor_file", anchor_file)):
        if path is not None and path.resolve().is_relative_to(folder.path.resolve()):
            raise Misconfigured(
                f"cannot use enforcer.{name}={path}: it lies in data folder {folder.path}; name another"
            )
    if key_file is None:
        return replace(folder, anchor_file=anchor_file)
    try:
        key = key_file.read_bytes().strip()
    except OSError as exc:
        raise Misconfigured(f"cannot read enforcer.ledger_key_file={key_file}: {exc.strerror}") from exc
    if len(key) < _KEY_BYTES_MIN:
        raise Misconfigured(
            f"cannot use enforcer.ledger_key_file={key_file}: it has {len(key)} bytes, fewer than {_KEY_BYTES_MIN}"
        )
    return replace(folder, ledger_key=key, anchor_file=anchor_file)
