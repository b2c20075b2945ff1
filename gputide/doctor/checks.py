"""Which checks are made, and how they run: beside each other, and none is waited for longer than its time.

An area's module is loaded only where the area is looked at. A check that hangs is reported so; it runs in a thread that
nobody waits for at the end of the process. Called by `gputide.verbs.doctor`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from importlib import import_module

from fleet.errors import GputideError, Misconfigured
from fleet.sentences import Sentence, sentence
from fleet.settings.pipeline import BusKind, WarehouseKind
from fleet.settings.settings import ClusterChoice, Settings
from gputide.doctor.finding import (
    Area,
    Check,
    Diagnosis,
    FindingKind,
    Severity,
    State,
    catalogue,
    codes_of,
    diagnosed,
    unchecked,
)
from gputide.session import Session


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What somebody wants looked at.

    Attributes:
        areas: areas; empty for those that the settings use.
        only: patterns of codes or names of areas; empty for all.
        roles: roles whose rights in a cluster are looked at; empty for those that the settings use.
        account: whose rights; None for the caller.
    """

    areas: tuple[Area, ...] = ()
    only: tuple[str, ...] = ()
    roles: tuple[str, ...] = ()
    account: str | None = None


def wanted_areas(settings: Settings, wish: Wish) -> tuple[Area, ...]:
    """The areas that are looked at: those named, else those that the settings use."""
    if wish.areas:
        return tuple(dict.fromkeys(wish.areas))
    return tuple(area for area in Area if _USED[area](settings))


def checks_of(session: Session, wish: Wish) -> tuple[Check, ...]:
    """Everything that is looked at.

    Raises:
        Misconfigured: a pattern fits no finding, or there is no such role.
    """
    if wish.roles:
        from gputide.doctor.cluster_rights import checked_roles

        checked_roles(wish.roles, wish.account)
    for pattern in wish.only:
        if not any(_fits(pattern, kind.code, kind.area) for kind in catalogue().values()):
            raise Misconfigured(
                f"cannot look for {pattern!r} only: no finding has that code; `gputide doctor --codes` lists all"
            )
    areas = wanted_areas(session.settings, wish)
    if wish.only and not wish.areas:
        areas = tuple(
            area for area in Area if any(_fits(one, code, area) for one in wish.only for code in codes_of(area))
        )
    found = [check for area in areas for check in _made(session, area, wish)]
    if not wish.only:
        return tuple(found)
    kept = [check for check in found if any(_fits(one, code, check.area) for one in wish.only for code in check.codes)]
    needed = {(check.area, check.needs) for check in kept}
    return tuple(check for check in found if check in kept or (check.area, check.name) in needed)


def is_wanted(kind: FindingKind, wish: Wish) -> bool:
    """Whether a finding is asked for."""
    return not wish.only or any(_fits(one, kind.code, kind.area) for one in wish.only)


def _fits(pattern: str, code: str, area: Area) -> bool:
    return pattern == area.value or fnmatchcase(code, pattern)


def _made(session: Session, area: Area, wish: Wish) -> Sequence[Check]:
    """The checks of an area; where none can be made, one unchecked look says why, unless the area was asked for."""
    try:
        module = import_module(f"gputide.doctor.{_MODULES.get(area, area.value)}")
        make: Callable[..., Sequence[Check]] = getattr(module, f"{area.value}_checks")
        if area is Area.CLUSTER:
            return make(session.settings, roles=wish.roles, account=wish.account)
        return make(session if area in (Area.DATA, Area.HISTORY) else session.settings)
    except GputideError as exc:
        if area in wish.areas:
            raise
        # Bound now: the name is gone with the block.
        said = unchecked(exc.said)
        return (Check(area=area, name="settings", look=lambda: (said,), codes=codes_of(area)),)


_MODULES: Mapping[Area, str] = {
    **dict.fromkeys((Area.KAFKA, Area.FLINK, Area.HIVE), "engines"),
    **dict.fromkeys((Area.DATA, Area.HISTORY), "data"),
    **dict.fromkeys((Area.RECEIVER, Area.RELIEF, Area.DASHBOARD, Area.NOTIFY), "services"),
}
"""Modules of areas that share one; every other area's module has its name. `AREA_checks` makes the checks."""

_USED: Mapping[Area, Callable[[Settings], bool]] = {
    Area.INSTALLATION: lambda _: True,
    # Anybody who can see the kubelet's socket runs on a node, as the exporter's pod does.
    Area.NODE: lambda settings: settings.exporter.pod_resources_socket.exists(),
    Area.CLUSTER: lambda settings: settings.enforcer.cluster is ClusterChoice.KUBERNETES,
    Area.PROMETHEUS: lambda settings: settings.scan.url is not None,
    Area.RECEIVER: lambda _: True,
    Area.KAFKA: lambda settings: settings.bus.kind is BusKind.KAFKA,
    Area.FLINK: lambda settings: settings.flink.rest is not None,
    Area.HIVE: lambda settings: settings.warehouse.kind is WarehouseKind.HIVE,
    Area.DATA: lambda _: True,
    Area.HISTORY: lambda _: True,
    Area.RELIEF: lambda settings: settings.relief.prometheus_url is not None or bool(settings.enforcer.watch_queries),
    Area.DASHBOARD: lambda _: True,
    Area.NOTIFY: lambda settings: bool(settings.notify.channels),
}


def unused_areas(settings: Settings) -> Iterator[Area]:
    """Areas that the settings don't use, and that are looked at only where they are named."""
    return (area for area in Area if not _USED[area](settings))


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
        tell: called with how many checks are done, of how many.

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
            why = sentence("doctor.found.needs", check=f"{check.needs!r}")
            found[check.area, check.name] = _not_made(check, why)
    _run_together(second, found, parallel_max, clock, lambda: tell(len(found), len(checks)))
    return tuple(diagnosis for check in checks for diagnosis in found[check.area, check.name])


def _not_made(check: Check, why: Sentence | str) -> tuple[Diagnosis, ...]:
    return diagnosed(replace(check, look=lambda: (unchecked(why),)))


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
                check, late = run.check, sentence("doctor.found.late", seconds=f"{run.check.seconds_max:g}")
                found[check.area, check.name] = _not_made(check, late) if run.found is None else run.found
                tell()
            if running and not (waiting and len(running) < parallel_max):
                turn.wait(max(0.0, min(run.until for run in running) - clock()))


def _look(run: _Run, turn: threading.Condition) -> None:
    check = run.check
    found: tuple[Diagnosis, ...] | None = None
    bug: BaseException | None = None
    try:
        found = diagnosed(check)
    except GputideError as exc:
        found = _not_made(check, exc.said)
    except Exception as exc:  # noqa: BLE001 - a bug of ours ends the program in the thread that answers for it
        bug = exc
    with turn:
        run.found, run.bug = found, bug
        turn.notify_all()
