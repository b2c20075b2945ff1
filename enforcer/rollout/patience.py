"""Calls that are made again while the cluster can't take them: for hours, with growing pauses.

An API server that is upgraded, or a way to it that is cut, is no reason to leave a stage half done: the run goes on
when it is back. Until a server that has just started has read all roles it refuses what it allowed before, so a run
asks again for a minute. Called by everything that rollout and undo do in the cluster once a run has begun.

Source: kubernetes/kubernetes:plugin/pkg/auth/authorizer/rbac (roles come from informers, which start with the server).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from enforcer.cluster import Pause
from enforcer.record.ledger import Overtaken
from fleet.errors import GputideError, Unavailable
from wire.kubernetes.backoff import Backoff
from wire.kubernetes.refusals import Forbidden

Answer = TypeVar("Answer")

ABSENCE_SECONDS_MAX = 6 * 3600.0
"""How long a run waits for a cluster that does not answer."""

RIGHTS_SECONDS_MAX = 60.0
"""How long a run asks again for what it was allowed before."""

_PAUSE_SECONDS_MIN = 2.0
_PAUSE_SECONDS_MAX = 60.0


def _unsaid(_: GputideError, _seconds: float) -> None:
    """Nobody reads what is waited for."""


def _unasked() -> None:
    """Nothing is to be looked at before a call is made again."""


class Patience:
    """Makes calls, and makes them again while the cluster can't take them.

    Args:
        say: called before each pause with what went wrong and for how many seconds it has.
        before_again: called before a call is made again; what it raises ends the waiting.
        rights_seconds_max: for how long at most where a right is missing.
    """

    def __init__(
        self,
        pause: Pause,
        *,
        say: Callable[[GputideError, float], None] = _unsaid,
        before_again: Callable[[], None] = _unasked,
        seconds_max: float = ABSENCE_SECONDS_MAX,
        rights_seconds_max: float = 0.0,
    ) -> None:
        self._pause = pause
        self._say = say
        self._before_again = before_again
        self._seconds_max = seconds_max
        self._rights_seconds_max = rights_seconds_max

    def __call__(self, call: Callable[[], Answer], *, seconds_max: float | None = None) -> Answer:
        """The answer to a call.

        Raises:
            Unavailable: the cluster could not take it to the last, or another enforcer went on (`Overtaken`).
            Forbidden: a right is missing.
        """
        backoff = Backoff(seconds_min=_PAUSE_SECONDS_MIN, seconds_max=_PAUSE_SECONDS_MAX)
        longest, waited = self._seconds_max if seconds_max is None else seconds_max, 0.0
        while True:
            try:
                return call()
            except (Unavailable, Forbidden) as exc:
                most = min(longest, self._rights_seconds_max) if isinstance(exc, Forbidden) else longest
                if waited >= most or isinstance(exc, Overtaken):
                    raise
                self._say(exc, waited)
            seconds = min(backoff.failed(), most - waited)
            self._pause(seconds)
            waited += seconds
            self._before_again()
