"""Runs checks beside each other, and waits for none longer than its time: what hangs is said to hang.

A check runs in a thread that nobody waits for at the end of the process. Called by `gputide.verbs.doctor`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fleet.errors import GputideError
from gputide.doctor.finding import Area, Check, Diagnosis, Severity, State, unchecked

PARALLEL_MAX = 8
"""Most checks at once; one that outstays its time makes room for the next."""


@dataclass(slots=True, kw_only=True)
class _Run:
    """One check under way; mutable: its thread fills it."""

    check: Check
    until: float
    found: tuple[Diagnosis, ...] | None = None
    bug: BaseException | None = None


def run_checks(
    checks: Sequence[Check],
    *,
    parallel_max: int = PARALLEL_MAX,
    clock: Callable[[], float] = time.monotonic,
    tell: Callable[[int, int], None] = lambda _done, _total: None,
) -> tuple[Diagnosis, ...]:
    """Look at everything.

    Args:
        checks: what to look at; `needs` names another of the same area.
        parallel_max: most looks at once.
        clock: monotonic seconds.
        tell: is told how many checks are done, of how many.

    Returns:
        What was found, in the order of the checks. A check that is not done in its time, that fails, or that needs one
        which found an error, is unchecked.
    """
    found: dict[tuple[Area, str], tuple[Diagnosis, ...]] = {}
    first = [check for check in checks if check.needs is None]
    _run_together(first, found, parallel_max, clock, lambda: tell(len(found), len(checks)))
    second = []
    for check in checks:
        if check.needs is None:
            continue
        before = found.get((check.area, check.needs), ())
        if before and not any(_blocks(diagnosis) for diagnosis in before):
            second.append(check)
        else:
            why = f"the check {check.needs!r} must succeed first"
            found[check.area, check.name] = (unchecked(check.area, check.name, why),)
    _run_together(second, found, parallel_max, clock, lambda: tell(len(found), len(checks)))
    return tuple(diagnosis for check in checks for diagnosis in found[check.area, check.name])


def _blocks(diagnosis: Diagnosis) -> bool:
    if diagnosis.kind is not None:
        return diagnosis.kind.severity is Severity.ERROR
    return diagnosis.state is State.UNCHECKED


def _run_together(
    checks: Sequence[Check],
    found: dict[tuple[Area, str], tuple[Diagnosis, ...]],
    parallel_max: int,
    clock: Callable[[], float],
    tell: Callable[[], None],
) -> None:
    turn = threading.Condition()
    waiting, running = list(checks), list[_Run]()
    with turn:
        while waiting or running:
            while waiting and len(running) < parallel_max:
                check = waiting.pop(0)
                run = _Run(check=check, until=clock() + check.seconds_max)
                running.append(run)
                threading.Thread(target=_look, args=(run, turn), name=f"doctor {check.name}", daemon=True).start()
            for run in list(running):
                if run.bug is not None:
                    raise run.bug
                if run.found is None and clock() < run.until:
                    continue
                running.remove(run)
                late = unchecked(run.check.area, run.check.name, f"not done in {run.check.seconds_max:g} s")
                found[run.check.area, run.check.name] = (late,) if run.found is None else run.found
                tell()
            if running and not (waiting and len(running) < parallel_max):
                turn.wait(max(0.0, min(run.until for run in running) - clock()))


def _look(run: _Run, turn: threading.Condition) -> None:
    check = run.check
    found: tuple[Diagnosis, ...] | None = None
    bug: BaseException | None = None
    try:
        found = tuple(check.look())
    except GputideError as exc:
        found = (unchecked(check.area, check.name, str(exc)),)
    except Exception as exc:  # noqa: BLE001 - a bug of ours ends the program in the thread that answers for it
        bug = exc
    with turn:
        run.found, run.bug = found, bug
        turn.notify_all()
