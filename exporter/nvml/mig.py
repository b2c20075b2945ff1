"""MIG devices of one card: which there are, and what each does.

Which instances there are may change at any time, so every reading looks; names and sizes of one that stays are asked
for once. Called by `exporter.nvml.cards`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from exporter.nvml.activity import SpreadTally, framebuffer
from exporter.nvml.calls import CardCalls
from exporter.nvml.figures import MigFigures
from exporter.nvml.gpm import GpmSampler, card_supports_gpm

MIG_DEVICES_MAX = 16
"""MIG devices per card; cards of today have 7."""

_PROFILE = re.compile(r"MIG ((?:\d{1,2}c\.)?\d{1,2}g\.\d{1,4}gb(?:[+-][a-z.]{1,12})?)$", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Instance:
    """A MIG device, with the figures that stay as they are while it is there."""

    handle: object
    figures: MigFigures


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sampled:
    """A GPU instance that is sampled, and the MIG devices in it: another instance may get its number."""

    migs: frozenset[str]
    sampler: GpmSampler
    tally: SpreadTally


class MigReader:
    """Reads the MIG devices of one card."""

    def __init__(self, calls: CardCalls) -> None:
        self._calls = calls
        self._metrics = calls.library.gpm_metrics()
        self._instances: dict[str, _Instance] = {}
        self._sampled: dict[int, _Sampled] = {}

    @property
    def handles(self) -> tuple[object, ...]:
        """Handles of the MIG devices that the last reading found."""
        return tuple(instance.handle for instance in self._instances.values())

    def mode(self) -> bool | None:
        """True where MIG is on, None where the card doesn't know it."""
        answer = self._calls.ask("nvmlDeviceGetMigMode")
        return None if answer is None else answer[0] == 1

    def sample(self) -> None:
        """Takes one sub-sample of every GPU instance that can be sampled."""
        for sampled in self._sampled.values():
            sampled.sampler.sample(sampled.tally.add)

    def read(self) -> tuple[MigFigures, ...]:
        """The MIG devices as they are now, with what was sampled since the reading before."""
        self._instances = {instance.figures.mig: instance for instance in self._found()}
        there: dict[int, set[str]] = {}
        for instance in self._instances.values():
            there.setdefault(instance.figures.gpu_instance, set()).add(instance.figures.mig)
        self._forget({number for number, one in self._sampled.items() if one.migs.isdisjoint(there.get(number, ()))})
        activities = {number: sampled.tally.take() for number, sampled in self._sampled.items()}
        self._follow(there)
        figures = [
            replace(
                instance.figures,
                framebuffer=framebuffer(self._calls, instance.handle),
                activities=activities.get(instance.figures.gpu_instance, {}),
            )
            for instance in self._instances.values()
        ]
        return tuple(sorted(figures, key=lambda one: (one.gpu_instance, one.compute_instance)))

    def close(self) -> None:
        """Gives back what the library allocated, and forgets the MIG devices."""
        self._instances = {}
        self._forget(self._sampled.keys())

    def _forget(self, gpu_instances: Collection[int]) -> None:
        for gone in tuple(gpu_instances):
            self._sampled.pop(gone).sampler.close()

    def _follow(self, there: Mapping[int, set[str]]) -> None:
        """Samples these GPU instances from now on; one that was sampled before and stays goes on."""
        for number in self._sampled.keys() & there.keys():
            self._sampled[number] = replace(self._sampled[number], migs=frozenset(there[number]))
        new = there.keys() - self._sampled.keys()
        if new and card_supports_gpm(self._calls):
            for number in new:
                sampler, tally = GpmSampler(self._calls, self._metrics, number), SpreadTally()
                self._sampled[number] = _Sampled(migs=frozenset(there[number]), sampler=sampler, tally=tally)
                sampler.sample(tally.add)

    def _found(self) -> list[_Instance]:
        count = self._calls.ask("nvmlDeviceGetMaxMigDeviceCount") or 0
        found = []
        for number in range(min(count, MIG_DEVICES_MAX)):
            # Numbers without a device are answered by "not found", which is no failure.
            handle = self._calls.try_to(f"MIG device {number}", partial(self._handle, number))
            uuid = None if handle is None else self._of(handle, "nvmlDeviceGetUUID")
            if uuid is None:
                continue
            known = self._instances.get(uuid)
            instance = replace(known, handle=handle) if known is not None else self._described(uuid, handle)
            if instance is not None:
                found.append(instance)
        return found

    def _handle(self, number: int) -> object:
        return self._call("nvmlDeviceGetMigDeviceHandleByIndex", self._calls.handle, number)

    def _described(self, uuid: str, handle: object) -> _Instance | None:
        gpu_instance = self._of(handle, "nvmlDeviceGetGpuInstanceId")
        compute_instance = self._of(handle, "nvmlDeviceGetComputeInstanceId")
        if gpu_instance is None or compute_instance is None:
            return None
        attributes = self._of(handle, "nvmlDeviceGetAttributes_v2")
        figures = MigFigures(
            mig=uuid,
            mig_profile=profile_of(self._of(handle, "nvmlDeviceGetName"), attributes),
            gpu_instance=gpu_instance,
            compute_instance=compute_instance,
            sm_count=attributes.multiprocessorCount if attributes is not None else None,
        )
        return _Instance(handle=handle, figures=figures)

    def _of(self, handle: object, function: str) -> Any:
        return self._calls.try_to(f"{function} of MIG", lambda: self._call(function, handle))

    def _call(self, function: str, *arguments: object) -> Any:
        return self._calls.library.call(function, *arguments)


def profile_of(name: str | None, attributes: Any) -> str:
    """The profile of a MIG device; `unknown` where neither says.

    Args:
        name: the device's name, which ends in it (`NVIDIA A100-SXM4-40GB MIG 1g.5gb`); None where not reported.
        attributes: `nvmlDeviceAttributes_t`, for a name without it; None where not reported.
    """
    told = _PROFILE.search(name or "")
    if told is not None:
        return told.group(1)
    if attributes is None:
        return "unknown"
    slices, compute = attributes.gpuInstanceSliceCount, attributes.computeInstanceSliceCount
    part = "" if compute == slices else f"{compute}c."
    return f"{part}{slices}g.{-(-attributes.memorySizeMB // 1024)}gb"
