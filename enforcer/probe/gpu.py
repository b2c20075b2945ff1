"""What a probe asks of the card of its container (a port): `cuda_driver` is CUDA's driver, called by ctypes."""

from __future__ import annotations

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
