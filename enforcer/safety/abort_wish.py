"""How a stage that is under way is ended: somebody no longer wants it, or takes back the approval that it needs.

The wish stands with the plan: in `spec.apply` of its `GpuPlan`, or in the folder of a simulated cluster's plans
(`enforcer.record.plan_store.Wish`); so do approvals. So it is said from any machine. The process that applies looks
before every write and while it waits, takes the open stage back and ends its run; where none applies, the process that
asks for it does so (`enforcer.rollout.abort`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol, TypeVar

from enforcer.record.plan_store import Approval, Wish
from fleet.data_folder import DataFolder, writing
from fleet.durable import FolderLock, Held
from fleet.errors import Refused, Unavailable
from fleet.sentences import Sentence, sentence

STOP_SECONDS_MAX = 60.0
"""How long is waited for a process that applies to stop: it looks every second, and then takes its stage back."""

LOOK_SECONDS = 1.0
"""Longest pause between two looks for somebody who no longer wants a stage; a cluster is not asked more often."""

APPROVALS_LOOK_SECONDS = 5.0
"""The same for approvals, of which a cluster lists those of all plans; who keeps a stage looks anew before."""

_AWAY_SECONDS = 10.0
_LOCK_LOOK_SECONDS = 0.2


class Aborted(Refused):
    """Somebody asked to end the run."""


def aborted_by(name: str) -> Sentence:
    """Why a stage is taken back that somebody ended; an empty name is not known."""
    return sentence("rollout.aborted", who=name or sentence("rollout.somebody"))


class Wishes(Protocol):
    """Says which stages are wanted, and who approved them.

    Each call raises:
        Unavailable: nobody can be asked now.
    """

    def wish(self, plan_id: str) -> Wish:
        """The stages of a plan that are wanted in force."""
        ...

    def approvals(self, plan_id: str) -> tuple[Approval, ...]:
        """Approvals of a plan that stand, oldest first."""
        ...


Answer = TypeVar("Answer")


class SeldomAsked:
    """Wishes of a cluster that is asked once a second, for approvals in five, and less often while it is away."""

    def __init__(self, inner: Wishes, clock: Callable[[], float] = time.monotonic) -> None:
        self._inner = inner
        self._clock = clock
        self._wishes: dict[str, tuple[float, Wish | None]] = {}
        self._approvals: dict[str, tuple[float, tuple[Approval, ...] | None]] = {}

    def renew(self) -> None:
        """The next answers are fresh."""
        self._wishes.clear()
        self._approvals.clear()

    def wish(self, plan_id: str) -> Wish:
        """See `Wishes`; as it was a moment ago."""
        return self._asked(self._inner.wish, plan_id, self._wishes, LOOK_SECONDS)

    def approvals(self, plan_id: str) -> tuple[Approval, ...]:
        """See `Wishes`; as they were a moment ago."""
        return self._asked(self._inner.approvals, plan_id, self._approvals, APPROVALS_LOOK_SECONDS)

    def _asked(
        self, ask: Callable[[str], Answer], plan_id: str, seen: dict[str, tuple[float, Answer | None]], seconds: float
    ) -> Answer:
        until, known = seen.get(plan_id, (None, None))
        if until is not None and self._clock() < until:
            if known is None:
                raise Unavailable(f"cannot ask what is wanted of plan {plan_id}: the cluster was away a moment ago")
            return known
        try:
            found = ask(plan_id)
        except Unavailable:
            seen[plan_id] = self._clock() + _AWAY_SECONDS, known
            raise
        seen[plan_id] = self._clock() + seconds, found
        return found


@contextmanager
def stopped(folder: DataFolder, plan_id: str, *, pause: Callable[[float], None] = time.sleep) -> Iterator[None]:
    """Hold a folder for writing once the process that applies a plan from it has taken its stage back.

    Raises:
        Unavailable: it has not stopped by then, with its process id; the wish stays.
        Corrupt: the folder is read-only or the disk is full.
    """
    waited = 0.0
    while True:
        try:
            FolderLock(folder.path, "writer").release()
            break
        except Held as exc:
            if waited >= STOP_SECONDS_MAX:
                raise Unavailable(
                    f"cannot see plan {plan_id} end: process {exc.holder}, which applies it, still takes its stage "
                    f"back after {STOP_SECONDS_MAX:.0f} s, for example because pods don't start again; the wish is "
                    "noted, and it goes on; call again to see it end, or stop that process and call again to do it "
                    "from here"
                ) from exc
            pause(_LOCK_LOOK_SECONDS)
            waited += _LOCK_LOOK_SECONDS
    with writing(folder):
        yield
