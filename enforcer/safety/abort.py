"""The wish to end a stage that is under way: a file in the data folder, which the process that applies looks for.

`gputide apply --abort`, an undo and the plan page write it, because the process that applies holds the folder until it
has stopped. It looks before every write and while it waits, takes the open stage back and ends its run; then the file
is removed. Where no process applies, anybody who asked takes the stage back (`enforcer.rollout.abort`).
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from fleet.data_folder import DataFolder, writing
from fleet.durable import FolderLock, unwritable
from fleet.errors import Corrupt, Refused, Unavailable

STOP_SECONDS_MAX = 60.0
"""How long is waited for a process that applies to stop: it looks every second, and then takes its stage back."""

_LOOK_SECONDS = 0.2


class Aborted(Refused):
    """Somebody asked to end the run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortWish:
    """Who wants which run to end.

    Attributes:
        plan_id: plan of the run.
        by: who.
    """

    plan_id: str
    by: str


def ask_to_abort(path: Path, wish: AbortWish) -> None:
    """Ask the process that applies a plan to take its open stage back.

    Raises:
        Corrupt: storage can't take the file.
    """
    try:
        path.write_text(json.dumps(asdict(wish)), encoding="utf-8")
    except OSError as exc:
        raise unwritable(path, exc) from exc


def abort_wish(path: Path, plan_id: str) -> AbortWish | None:
    """Who asked to end the run of a plan; None where nobody did. A file that can't be read is a wish of somebody."""
    try:
        found = AbortWish(**json.loads(path.read_bytes()))
    except FileNotFoundError:
        return None
    except (OSError, TypeError, ValueError):
        return AbortWish(plan_id=plan_id, by="somebody")
    return found if found.plan_id == plan_id else None


def withdraw_abort(path: Path) -> None:
    """The wish is fulfilled, or void.

    Raises:
        Corrupt: storage keeps the file.
    """
    try:
        path.unlink(missing_ok=True)
    except OSError as exc:
        raise Corrupt(f"cannot remove {path}: {exc.strerror}") from exc


@contextmanager
def stopped(
    folder: DataFolder,
    wish: AbortWish,
    *,
    pause: Callable[[float], None] = time.sleep,
    seconds: float = STOP_SECONDS_MAX,
) -> Iterator[None]:
    """Hold a folder for writing once the process that applies a plan from it has taken its stage back.

    Args:
        pause: lets time pass.
        seconds: for how long at most.

    Raises:
        Unavailable: it has not stopped by then, with its process id; the wish stays.
        Corrupt: the folder is read-only or the disk is full.
    """
    waited = 0.0
    while True:
        # Again and again: a run that begins at this moment takes what was asked before for void.
        ask_to_abort(folder.abort, wish)
        try:
            FolderLock(folder.path, "writer").release()
            break
        except Unavailable as exc:
            if waited >= seconds:
                raise Unavailable(
                    f"cannot end plan {wish.plan_id} yet: {exc}; the wish is noted, and the process takes its stage "
                    "back as soon as it looks; call again to see it end"
                ) from exc
            pause(_LOOK_SECONDS)
            waited += _LOOK_SECONDS
    with writing(folder):
        try:
            yield
        finally:
            withdraw_abort(folder.abort)
