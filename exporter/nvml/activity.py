"""What a card does from second to second: sub-samples between two readings, kept as mean and peak.

A scrape every 15 s that asks once sees one moment; a burst of a second is lost to it. So a few cheap figures are asked
for every second and folded up here until the next reading takes them. Called by `exporter.nvml.cards`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from exporter.nvml.calls import CardCalls
from exporter.nvml.figures import Activities, Activity, ClockReason, Framebuffer, Spread
from exporter.nvml.gpm import GpmSampler, card_supports_gpm
from exporter.nvml.library import INSUFFICIENT_SIZE, NvmlFault, number_or_none, sample_value

MEMORY_V2 = 0x02000028
"""Version of `nvmlMemory_v2_t`: its size, and 2 in the uppermost byte."""

_GPU_UTILIZATION_SAMPLES = 1

_ENGINES: Mapping[Activity, str] = MappingProxyType(
    {
        Activity.ENCODER: "nvmlDeviceGetEncoderUtilization",
        Activity.DECODER: "nvmlDeviceGetDecoderUtilization",
        Activity.JPEG: "nvmlDeviceGetJpgUtilization",
        Activity.OPTICAL_FLOW: "nvmlDeviceGetOfaUtilization",
    }
)

_PCIE = ((Activity.PCIE_TRANSMIT, 0), (Activity.PCIE_RECEIVE, 1))
"""Counters of `nvmlPcieUtilCounter_t`, reported in KiB/s (XuehaiPan/nvitop:nvitop/api/device.py reads them so)."""

_REASON_BITS: Mapping[int, ClockReason] = MappingProxyType(
    {
        0x1: ClockReason.IDLE,
        0x2: ClockReason.APPLICATION_CLOCKS,
        0x4: ClockReason.SOFTWARE_POWER_CAP,
        0x8: ClockReason.HARDWARE_SLOWDOWN,
        0x10: ClockReason.SYNC_BOOST,
        0x20: ClockReason.SOFTWARE_THERMAL,
        0x40: ClockReason.HARDWARE_THERMAL,
        0x80: ClockReason.HARDWARE_POWER_BRAKE,
        0x100: ClockReason.DISPLAY_CLOCKS,
        0x200: ClockReason.BOARD_LIMIT,
        0x400: ClockReason.RELIABILITY,
    }
)


class SpreadTally:
    """Folds sub-samples up until they are taken."""

    def __init__(self) -> None:
        self._sums: dict[Activity, float] = {}
        self._peaks: dict[Activity, float] = {}
        self._counts: dict[Activity, int] = {}

    def add(self, activity: Activity, value: float) -> None:
        """Counts one sub-sample in."""
        self._sums[activity] = self._sums.get(activity, 0.0) + value
        self._counts[activity] = self._counts.get(activity, 0) + 1
        if value > self._peaks.get(activity, -1.0):
            self._peaks[activity] = value

    def take(self) -> dict[Activity, Spread]:
        """What was folded up since it was last taken."""
        taken = {
            activity: Spread(
                mean=total / self._counts[activity], peak=self._peaks[activity], samples=self._counts[activity]
            )
            for activity, total in self._sums.items()
        }
        self._sums.clear()
        self._peaks.clear()
        self._counts.clear()
        return taken


class ActivitySampler:
    """Samples one whole card."""

    def __init__(self, calls: CardCalls) -> None:
        self._calls = calls
        self._metrics = calls.library.gpm_metrics()
        self._tally = SpreadTally()
        self._gpm: GpmSampler | None = None
        self._reasons: dict[ClockReason, int] = {}
        self._reason_samples = 0
        self._seen_us = 0

    def sample(self) -> None:
        """Takes one sub-sample of everything that is cheap."""
        self._sample_utilisation()
        self._sample_power()
        self._sample_reasons()
        memory = framebuffer(self._calls)
        if memory is not None:
            self._tally.add(Activity.FRAMEBUFFER_USED, memory.used_bytes)
        self._sample_gpm()

    def take(self) -> Activities:
        """What was sampled since it was last taken; duty cycle from the driver's own buffer where it keeps one."""
        taken = self._tally.take()
        buffered = self._buffered_duty_cycle()
        sampled = taken.get(Activity.DUTY_CYCLE)
        if buffered is not None:
            # The buffer is finer than the sub-samples, so its mean counts; but it may be short, so the peaks meet.
            peak = buffered.peak if sampled is None else max(buffered.peak, sampled.peak)
            samples = buffered.samples if sampled is None else max(buffered.samples, sampled.samples)
            mean = buffered.mean if sampled is None or buffered.samples >= sampled.samples else sampled.mean
            taken[Activity.DUTY_CYCLE] = Spread(mean=mean, peak=peak, samples=samples)
        for activity, counter in _PCIE:
            if activity not in taken:
                taken.update(self._pcie(activity, counter))
        return taken

    def take_held_back(self) -> Mapping[ClockReason, float] | None:
        """Per reason the share of sub-samples in which it held the clocks down; None where the card doesn't report."""
        count, reasons = self._reason_samples, self._reasons
        self._reason_samples, self._reasons = 0, {}
        if count == 0:
            return None
        return {reason: reasons.get(reason, 0) / count for reason in ClockReason}

    def close(self) -> None:
        """Gives back what the library allocated."""
        if self._gpm is not None:
            self._gpm.close()
            self._gpm = None

    def _sample_utilisation(self) -> None:
        rates = self._calls.ask("nvmlDeviceGetUtilizationRates")
        if rates is not None:
            self._add_percent(Activity.DUTY_CYCLE, rates.gpu)
            self._add_percent(Activity.MEMORY_COPY, rates.memory)
        for activity, function in _ENGINES.items():
            answer = self._calls.ask(function)
            if answer is not None:
                self._add_percent(activity, answer[0])

    def _sample_power(self) -> None:
        milliwatts = self._calls.ask("nvmlDeviceGetPowerUsage")
        if milliwatts is not None and number_or_none(milliwatts) is not None:
            self._tally.add(Activity.POWER, milliwatts / 1000)

    def _sample_reasons(self) -> None:
        bits = self._calls.ask("nvmlDeviceGetCurrentClocksEventReasons")
        if bits is None:
            # Its name before driver 535.
            bits = self._calls.ask("nvmlDeviceGetCurrentClocksThrottleReasons")
        if bits is None or number_or_none(bits) is None:
            return
        self._reason_samples += 1
        if bits:
            for bit, reason in _REASON_BITS.items():
                if bits & bit:
                    self._reasons[reason] = self._reasons.get(reason, 0) + 1

    def _sample_gpm(self) -> None:
        if self._calls.is_silent("GPM of the card"):
            return
        if self._gpm is None:
            if not card_supports_gpm(self._calls):
                self._calls.silence("GPM of the card")
                return
            self._gpm = GpmSampler(self._calls, self._metrics)
        self._gpm.sample(self._add_from_gpm)

    def _add_from_gpm(self, activity: Activity, value: float) -> None:
        # The engines' own functions speak of all engines of a kind together; where they answer, they count.
        function = _ENGINES.get(activity)
        if function is None or self._calls.is_silent(function):
            self._tally.add(activity, value)

    def _add_percent(self, activity: Activity, percent: int) -> None:
        if 0 <= percent <= 100:
            self._tally.add(activity, percent / 100)

    def _pcie(self, activity: Activity, counter: int) -> dict[Activity, Spread]:
        # Without GPM: each call looks at 20 ms of traffic, and takes as long, so it is made once per reading.
        told = self._calls.ask("nvmlDeviceGetPcieThroughput", counter)
        if told is None or number_or_none(told) is None:
            return {}
        return {activity: Spread(mean=told * 1024.0, peak=told * 1024.0, samples=1)}

    def _buffered_duty_cycle(self) -> Spread | None:
        answer = self._calls.try_to("nvmlDeviceGetSamples", self._samples)
        if answer is None:
            return None
        value_type, samples = answer
        values = []
        for sample in samples:
            value = sample_value(value_type, sample.sampleValue)
            if sample.timeStamp > self._seen_us and value is not None and 0 <= value <= 100:
                values.append(value / 100)
        self._seen_us = max([self._seen_us, *(sample.timeStamp for sample in samples)])
        if not values:
            return None
        return Spread(mean=sum(values) / len(values), peak=max(values), samples=len(values))

    def _samples(self) -> Any:
        arguments = self._calls.handle, _GPU_UTILIZATION_SAMPLES, self._seen_us
        try:
            return self._calls.library.call("nvmlDeviceGetSamples", *arguments)
        except NvmlFault as exc:
            # The buffer has grown since its size was asked.
            if exc.code != INSUFFICIENT_SIZE:
                raise
            return self._calls.library.call("nvmlDeviceGetSamples", *arguments)


def framebuffer(calls: CardCalls, handle: object = None) -> Framebuffer | None:
    """Framebuffer of a card, or of the MIG device behind `handle`; None where it isn't reported or makes no sense."""
    name = "nvmlDeviceGetMemoryInfo" if handle is None else "nvmlDeviceGetMemoryInfo of MIG"

    def memory(*version: int) -> Any:
        return calls.library.call("nvmlDeviceGetMemoryInfo", calls.handle if handle is None else handle, *version)

    told = calls.try_to(f"{name}_v2", lambda: memory(MEMORY_V2))
    reserved = number_or_none(told.reserved) if told is not None else None
    if told is None:
        told = calls.try_to(name, memory)
    if told is None:
        return None
    total, used, free = number_or_none(told.total), number_or_none(told.used), number_or_none(told.free)
    if not total or used is None or free is None or used > total or free > total:
        return None
    return Framebuffer(total_bytes=total, used_bytes=used, free_bytes=free, reserved_bytes=reserved)
