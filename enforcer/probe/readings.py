"""What one probe found out, and the driver that it asks, as a port.

Every figure is measured or None; None says that it was not tried, or that what it needs is not there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


class Gpu(Protocol):
    """One card of this container."""

    @property
    def card(self) -> str:
        """UUID."""
        ...

    def memory_info(self) -> tuple[int, int]:
        """Free and total framebuffer as programs see them, bytes."""
        ...

    def allocate(self, size: int, *, managed: bool = False) -> int | None:
        """Address of a new allocation; None where it was refused."""
        ...

    def free(self, address: int) -> None:
        """Give an allocation back."""
        ...

    def fill(self, address: int, size: int) -> None:
        """Write every byte of an allocation, and wait."""
        ...

    def spin(self, nanoseconds: int) -> None:
        """Keep the whole card busy for a time; not waited for."""
        ...

    def record_spin_graph(self, nanoseconds: int) -> bool:
        """Record the same as a graph; False where that can't be done."""
        ...

    def spin_by_graph(self) -> None:
        """Launch the recorded graph; not waited for."""
        ...

    def wait(self) -> None:
        """Wait for everything that was launched."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class FramebufferReading:
    """How framebuffer is limited.

    Attributes:
        granted_bytes: what the container was granted; None where nobody said.
        told_bytes: total framebuffer as programs see it.
        allocated_bytes: most that could be allocated, to the byte that the driver rounds to.
        is_refused: True where an allocation was refused before the card was full.
        managed_escapes: True where unified memory was given beyond that; None where it was not tried.
        spilled_bytes: what was given beyond the card's own framebuffer; 0 where nothing was, None where the card's
            size is not known.
        spill_bytes_per_second: how fast what lies beyond is written; None where nothing does.
    """

    granted_bytes: int | None
    told_bytes: int
    allocated_bytes: int
    is_refused: bool
    managed_escapes: bool | None
    spilled_bytes: int | None
    spill_bytes_per_second: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeReading:
    """How compute is limited.

    Attributes:
        granted_ratio: share of the card, 0-1; None where there is no limit, or nobody said.
        launched_ratio: share of the time in which kernels ran, launched one by one, 0-1.
        graph_ratio: the same, launched as graphs; None where graphs can't be recorded.
        seconds: how long each was measured.
    """

    granted_ratio: float | None
    launched_ratio: float
    graph_ratio: float | None
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PauseReading:
    """How a pause through the shared region works.

    Attributes:
        pause_seconds: from the write until no kernel was launched any more, the worst of several; None where it never
            came to that.
        resume_seconds: from the write until the next launch, likewise.
        graph_pauses: True where launches of graphs stop as well; None where graphs can't be recorded.
    """

    pause_seconds: float | None
    resume_seconds: float | None
    graph_pauses: bool | None
