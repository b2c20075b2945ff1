"""Which GPU-sharing backend a scan plans for: the one that was set, else the one whose series the server holds.

HAMi, Volcano and KAI's GPU fractioning export metrics of their own; others show by the resources that nodes offer or
pods ask for, KAI by its reservation pods. Where none of these is there, whole cards are the guess: it promises nothing
that would have to be installed first. What other backends would free stands beside it. Called by `gputide scan`.

Sources: `fleet.series` for the metrics; kubernetes/kube-state-metrics:docs/metrics for resources, in whose names every
character but letters and digits is an underscore; the records in `fleet.capabilities.register`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from fleet.capabilities.register import CAPABILITIES
from fleet.grammars.kai import METRIC_PREFIXES
from gputide.scanning.scan import Scanned

_OLD_MONITOR = ("vGPU_device_memory_", "Device_utilization_desc_of_container", "HostGPUMemoryUsage")
"""HAMi's old names for what its node monitor measures; Volcano's node monitor writes them, too."""

_SIGNS: tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...] = (
    ("volcano", ("volcano_vgpu_",), ("volcano_sh_vgpu",)),
    ("kai_nvfractions", METRIC_PREFIXES, ()),
    ("kai", (), ()),
    ("mgpu", (), ("vke_volcengine_com_mgpu",)),
    ("vgpu_manager", (), ("nvidia_com_vgpu",)),
    (
        "hami",
        ("hami_", "vGPUMemoryAllocated", "vGPUCoreAllocated", "GPUDeviceMemoryLimit", *_OLD_MONITOR),
        ("nvidia_com_gpumem", "nvidia_com_gpucores"),
    ),
    ("mig", (), ("nvidia_com_mig_",)),
    # MPS under the same name looks alike.
    ("nvidia_time_slicing", (), ("nvidia_com_gpu_shared",)),
)
"""Backend, how names of its metrics begin, how names of its resources begin. The first that is seen is taken."""
WHOLE_CARDS = "whole_cards"
_COMPARED = (WHOLE_CARDS, "nvidia_time_slicing", "hami")
"""What needs nothing, what NVIDIA's device plugin can do, and what needs a scheduler and a library of its own."""


class Basis(StrEnum):
    """Why a backend is taken."""

    SET = "set"
    """Somebody said so."""
    SEEN = "seen"
    """The server holds what only this backend leaves."""
    GUESS = "guess"
    """Nothing says which."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AssumedBackend:
    """The backend that a plan is made for.

    Attributes:
        name: name of its record.
        signs: what the server holds of any backend: backend and the sign, the one that counts first.
    """

    name: str
    basis: Basis
    signs: tuple[tuple[str, str], ...]

    @property
    def sentence(self) -> str:
        """What is said of it, in one line."""
        change = "--backend NAME or --set enforcer.backend=NAME changes it"
        others = [f"{name} ({sign})" for name, sign in self.signs if name != self.name]
        beside = f"; this server also shows {' and '.join(others)}" if others else ""
        match self.basis:
            case Basis.SET:
                return f"backend {self.name}, as set{beside}"
            case Basis.SEEN:
                sign = dict(self.signs)[self.name]
                return f"assuming backend {self.name}, because this server holds {sign}{beside}; {change}"
            case Basis.GUESS:
                known = ", ".join(record.backend for record in CAPABILITIES)
                return (
                    f"GUESSING backend {self.name}: nothing that this server holds shows that cards are shared; what "
                    f"others would free stands below; {change} ({known})"
                )

    @property
    def compared(self) -> tuple[str, ...]:
        """Backends whose plans are set beside each other, this one first."""
        return (self.name, *(name for name in _COMPARED if name != self.name))


def assumed_backend(scanned: Scanned, configured: str, *, is_set: bool) -> AssumedBackend:
    """Choose the backend of a scan.

    Args:
        is_set: somebody set it; False where it is the default.
    """
    signs = _signs(scanned)
    if is_set:
        return AssumedBackend(name=configured, basis=Basis.SET, signs=signs)
    if not signs:
        return AssumedBackend(name=WHOLE_CARDS, basis=Basis.GUESS, signs=())
    return AssumedBackend(name=signs[0][0], basis=Basis.SEEN, signs=signs)


def _signs(scanned: Scanned) -> tuple[tuple[str, str], ...]:
    found: dict[str, str] = {}
    for backend, metrics, resources in _SIGNS:
        own = tuple(start for start in metrics if "volcano" not in found or start not in _OLD_MONITOR)
        named = [name for name in sorted(scanned.names) if name.startswith(own)]
        offered = [name for name in sorted(scanned.facts.resources) if name.startswith(resources)]
        if named:
            found[backend] = named[0]
        elif offered:
            found[backend] = f"resource {offered[0]}"
        elif backend == "kai" and scanned.facts.has_kai_reservations and "kai_nvfractions" not in found:
            found[backend] = "pods that reserve cards for it"
    return tuple(found.items())
