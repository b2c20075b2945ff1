"""GPM: what the card's own counters saw between two samples; SM and memory activity come from nowhere else.

Hopper and later cards have it, whole cards and MIG instances alike. Every sample ends one span and begins the next, so
nothing lies between two spans. Metric ids and units: `nvmlGpmMetricId_t` of nvml.h, as nvidia-ml-py states them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from types import MappingProxyType

from exporter.nvml.calls import CardCalls
from exporter.nvml.figures import Activity
from exporter.nvml.library import GpmMetrics, NvmlFault

MIB = 1024 * 1024
_PERCENT = 0.01

_METRICS: Mapping[Activity, tuple[tuple[int, ...], float]] = MappingProxyType(
    {
        Activity.GRAPHICS_ACTIVE: ((1,), _PERCENT),
        Activity.SM_ACTIVE: ((2,), _PERCENT),
        Activity.SM_OCCUPANCY: ((3,), _PERCENT),
        Activity.TENSOR_ACTIVE: ((5,), _PERCENT),
        Activity.MEMORY_ACTIVE: ((10,), _PERCENT),
        Activity.FP64_ACTIVE: ((11,), _PERCENT),
        Activity.FP32_ACTIVE: ((12,), _PERCENT),
        Activity.FP16_ACTIVE: ((13,), _PERCENT),
        Activity.PCIE_TRANSMIT: ((20,), MIB),
        Activity.PCIE_RECEIVE: ((21,), MIB),
        Activity.DECODER: (tuple(range(30, 38)), _PERCENT),
        Activity.JPEG: (tuple(range(40, 48)), _PERCENT),
        Activity.OPTICAL_FLOW: ((50, 51), _PERCENT),
        Activity.NVLINK_RECEIVE: ((60,), MIB),
        Activity.NVLINK_TRANSMIT: ((61,), MIB),
    }
)
"""Per activity its metrics, of which the largest counts (engines that exist more than once), and the factor."""

_IDS = tuple(metric for ids, _ in _METRICS.values() for metric in ids)


def card_supports_gpm(calls: CardCalls) -> bool:
    """True where the card, or its MIG instances, can be sampled."""
    support = calls.ask("nvmlGpmQueryDeviceSupport")
    return support is not None and bool(support.isSupportedDevice)


class GpmSampler:
    """Samples one card, or one GPU instance of it.

    Args:
        metrics: computes metrics; one per thread.
        gpu_instance: id of the GPU instance; None for the whole card.
    """

    def __init__(self, calls: CardCalls, metrics: GpmMetrics, gpu_instance: int | None = None) -> None:
        self._calls = calls
        self._metrics = metrics
        self._gpu_instance = gpu_instance
        # A sample belongs to a subject, so a refusal is remembered per subject.
        self._name = "nvmlGpmSampleGet" if gpu_instance is None else f"nvmlGpmMigSampleGet {gpu_instance}"
        self._earlier: object = None
        self._spare: object = None

    def sample(self, add: Callable[[Activity, float], None]) -> None:
        """Ends the span that began with the sample before, and begins the next.

        Args:
            add: takes what the span held; not called for the first sample and for what isn't supported.
        """
        if not self._calls.is_silent(self._name):
            self._calls.try_to(self._name, lambda: self._sample(add))

    def close(self) -> None:
        """Gives the samples' memory back."""
        for sample in (self._earlier, self._spare):
            if sample is not None:
                # The memory is the library's own: whether the card still lives makes no difference.
                with suppress(NvmlFault):
                    self._call("nvmlGpmSampleFree", sample)
        self._earlier = self._spare = None

    def _sample(self, add: Callable[[Activity, float], None]) -> None:
        later = self._spare if self._spare is not None else self._call("nvmlGpmSampleAlloc")
        self._spare = later
        if self._gpu_instance is None:
            self._call("nvmlGpmSampleGet", self._calls.handle, later)
        else:
            self._call("nvmlGpmMigSampleGet", self._calls.handle, self._gpu_instance, later)
        earlier, self._earlier, self._spare = self._earlier, later, self._earlier
        if earlier is not None:
            values = self._metrics(earlier, later, _IDS)
            self._tell(dict(zip(_IDS, values, strict=True)), add)

    def _tell(self, values: Mapping[int, float | None], add: Callable[[Activity, float], None]) -> None:
        for activity, (ids, factor) in _METRICS.items():
            there = [value for metric in ids if (value := values.get(metric)) is not None and value >= 0]
            if there and (factor != _PERCENT or max(there) <= 100):
                add(activity, max(there) * factor)

    def _call(self, function: str, *arguments: object) -> object:
        return self._calls.library.call(function, *arguments)
