"""Which processes sit on a card, what framebuffer they hold, and how busy they kept it.

The lists may grow between the call that asks for their size and the one that fetches them; then they are asked for
again. Called by `exporter.nvml.cards`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from exporter.nvml.calls import CardCalls
from exporter.nvml.figures import ProcessFigures, ProcessKind, Spread
from exporter.nvml.library import EMPTY_CODES, INSUFFICIENT_SIZE, NvmlFault, instance_or_none, number_or_none

TRIES = 3
"""How often a list that grew is asked for."""

PROCESSES_MAX = 4096
"""Processes per card; more are not looked at."""

_LISTS = (
    (ProcessKind.COMPUTE, "nvmlDeviceGetComputeRunningProcesses"),
    (ProcessKind.GRAPHICS, "nvmlDeviceGetGraphicsRunningProcesses"),
    (ProcessKind.MPS, "nvmlDeviceGetMPSComputeRunningProcesses"),
)
_VERSIONS = ("_v3", "_v2")
"""Newest first; drivers before 510 have only the second."""

CLOCK_SLACK_US = 5_000_000
"""The driver stamps its samples by the host's clock; a stamp that lies further ahead than this is from before the clock
was set back."""

SAMPLING_US = 2_000_000
"""The driver looks at processes about once a second; within this time none may have been looked at again."""

_USES = (("sm", "smUtil"), ("memory", "memUtil"), ("encoder", "encUtil"), ("decoder", "decUtil"))


@dataclass(slots=True, kw_only=True)
class _Found:
    """One process; mutable: filled from one list of the driver after the other."""

    kinds: set[ProcessKind] = field(default_factory=set)
    framebuffer_bytes: int | None = None


_Key = tuple[int, int | None, int | None]
"""Process id, GPU instance, compute instance."""


class ProcessReader:
    """Reads the processes of one card."""

    def __init__(self, calls: CardCalls, wall_clock: Callable[[], float] = time.time) -> None:
        self._calls = calls
        self._wall_clock = wall_clock
        self._seen_us = 0
        self._known: frozenset[int] = frozenset()

    def read(self, mig_handles: Sequence[object]) -> tuple[ProcessFigures, ...] | None:
        """The processes that sit on the card now.

        Args:
            mig_handles: MIG devices of the card, which are asked where the card itself refuses; the lists of a whole
                card need more rights under MIG.

        Returns:
            One entry per process and MIG instance, by process id; None where the card doesn't list those that compute,
            or failed to list any kind this time: who is missing there is not gone.
        """
        found = self._listed(mig_handles)
        if found is None:
            return None
        uses = self._uses()
        figures = []
        for (pid, gpu_instance, compute_instance), process in sorted(found.items(), key=_order)[:PROCESSES_MAX]:
            use = self._use_of(pid, uses)
            account = self._account_of(pid)
            figures.append(
                ProcessFigures(
                    pid=pid,
                    kinds=frozenset(process.kinds),
                    gpu_instance=gpu_instance,
                    compute_instance=compute_instance,
                    framebuffer_bytes=process.framebuffer_bytes,
                    sm_busy=use.get("sm"),
                    memory_busy=use.get("memory"),
                    encoder_busy=use.get("encoder"),
                    decoder_busy=use.get("decoder"),
                    framebuffer_peak_bytes=(number_or_none(account.maxMemoryUsage) or None) if account else None,
                    accounted_sm_busy=_share_or_none(account.gpuUtilization) if account else None,
                    accounted_memory_busy=_share_or_none(account.memoryUtilization) if account else None,
                )
            )
        self._known = frozenset(key[0] for key in found)
        return tuple(figures)

    def _listed(self, mig_handles: Sequence[object]) -> dict[_Key, _Found] | None:
        found: dict[_Key, _Found] = {}
        for kind, function in _LISTS:
            of = "card"
            entries = self._list(function, [self._calls.handle], of)
            if entries is None and mig_handles:
                of = "MIG"
                entries = self._list(function, mig_handles, of)
            if entries is None and (kind is ProcessKind.COMPUTE or not self._is_refused(function, of)):
                return None
            for entry in entries or ():
                key = entry.pid, instance_or_none(entry.gpuInstanceId), instance_or_none(entry.computeInstanceId)
                process = found.setdefault(key, _Found())
                process.kinds.add(kind)
                held = _bytes_or_none(entry.usedGpuMemory)
                # A process that computes and draws stands in both lists with the same framebuffer.
                if held is not None:
                    process.framebuffer_bytes = max(held, process.framebuffer_bytes or 0)
        return found

    def _is_refused(self, function: str, of: str) -> bool:
        """Whether the driver will not list this kind of process at all, rather than not this time."""
        return all(self._calls.is_silent(f"{function}{version} of {of}") for version in _VERSIONS)

    def _list(self, function: str, handles: Sequence[object], of: str) -> list[Any] | None:
        for version in _VERSIONS:
            name = function + version
            entries = self._calls.try_to(f"{name} of {of}", partial(self._of_all, name, handles))
            if entries is not None:
                return list(entries)
        return None

    def _of_all(self, function: str, handles: Sequence[object]) -> list[Any]:
        return [entry for handle in handles for entry in self._whole(function, handle)]

    def _whole(self, function: str, *arguments: object) -> Iterable[Any]:
        """The answer of a function that lists something; empty where there is nothing."""
        for tried in range(1, TRIES + 1):
            try:
                answer: Iterable[Any] = self._calls.library.call(function, *arguments)
                return answer
            except NvmlFault as exc:
                if exc.code in EMPTY_CODES:
                    return ()
                if exc.code != INSUFFICIENT_SIZE or tried == TRIES:
                    raise
        return ()

    def _uses(self) -> dict[int, list[Any]] | None:
        """Samples by process since the reading before; None where the card has none to give, or took none meanwhile."""
        if self._seen_us > self._wall_clock() * 1e6 + CLOCK_SLACK_US:
            # Nothing would be newer until the clock is there again, and a process that works would look idle.
            self._seen_us, self._known = 0, frozenset()
        since = self._seen_us
        samples = self._calls.try_to(
            "nvmlDeviceGetProcessUtilization",
            lambda: list(self._whole("nvmlDeviceGetProcessUtilization", self._calls.handle, since)),
        )
        if samples is None:
            return None
        by_pid: dict[int, list[Any]] = {}
        for sample in samples:
            # The driver leaves entries of processes that ended, and of times long past, in its buffer.
            if sample.pid and sample.timeStamp > since:
                by_pid.setdefault(sample.pid, []).append(sample)
                self._seen_us = max(self._seen_us, sample.timeStamp)
        is_sampled = bool(by_pid) or self._wall_clock() * 1e6 - since >= SAMPLING_US
        return by_pid if is_sampled else None

    def _use_of(self, pid: int, uses: dict[int, list[Any]] | None) -> dict[str, Spread]:
        if uses is None:
            return {}
        samples = uses.get(pid)
        if samples is None:
            # The driver reports processes that did something (nvml.h). One that was there all the time did nothing.
            nothing = Spread(mean=0.0, peak=0.0, samples=1)
            return {name: nothing for name, _ in _USES} if pid in self._known else {}
        found = {}
        for name, member in _USES:
            values = [value / 100 for sample in samples if 0 <= (value := getattr(sample, member)) <= 100]
            if values:
                found[name] = Spread(mean=sum(values) / len(values), peak=max(values), samples=len(values))
        return found

    def _account_of(self, pid: int) -> Any:
        if not self._is_accounting():
            return None
        # The driver keeps accounts of ended processes too, so those that are there are asked for one by one.
        return self._calls.ask("nvmlDeviceGetAccountingStats", pid)

    def _is_accounting(self) -> bool:
        if self._calls.is_silent("accounting"):
            return False
        is_on = bool(self._calls.ask("nvmlDeviceGetAccountingMode") == 1)
        if not is_on:
            self._calls.silence("accounting")
        return is_on


def _order(item: tuple[_Key, _Found]) -> tuple[int, int, int]:
    pid, gpu_instance, compute_instance = item[0]
    return pid, -1 if gpu_instance is None else gpu_instance, -1 if compute_instance is None else compute_instance


def _share_or_none(percent: int) -> float | None:
    return percent / 100 if 0 <= percent <= 100 else None


def _bytes_or_none(value: int | None) -> int | None:
    return None if value is None else number_or_none(value)
