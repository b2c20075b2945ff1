"""The one module that knows CUDA's driver interface: loads `libcuda.so.1` as any program does, by ctypes.

Loaded by its bare name, so that whatever a backend puts before it (`/etc/ld.so.preload`, `LD_PRELOAD`) stands before it
here too: that is what is to be measured. Calls have the names of cuda.h; entry points with a `_v2` are those that
programs of today are linked against. One context on one card, used by one thread at a time.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from fleet.errors import Refused, Unavailable

LIBRARY_NAME = "libcuda.so.1"

OUT_OF_MEMORY = 2
"""`CUDA_ERROR_OUT_OF_MEMORY`: the one refusal that a limit gives."""

_ATTACH_GLOBAL = 1
_CAPTURE_RELAXED = 2
_UUID_BYTES = 16

SPIN_PTX = b"""
.version 6.0
.target sm_50
.address_size 64
.visible .entry spin(.param .u64 nanoseconds)
{
    .reg .u64 %rd<5>;
    .reg .pred %p<2>;
    ld.param.u64 %rd1, [nanoseconds];
    mov.u64 %rd2, %globaltimer;
LOOP:
    mov.u64 %rd3, %globaltimer;
    sub.u64 %rd4, %rd3, %rd2;
    setp.lt.u64 %p1, %rd4, %rd1;
    @%p1 bra LOOP;
    ret;
}
\0"""
"""A kernel that keeps its threads busy for a time; any card since Maxwell compiles it (PTX ISA 6.0, sm_50)."""

THREADS_PER_BLOCK = 256
BLOCKS_PER_MULTIPROCESSOR = 4
"""Enough that no multiprocessor is without work while the kernel runs."""

_ATTRIBUTE_MULTIPROCESSORS = 16


class CudaFault(Exception):
    """A call failed.

    Attributes:
        code: value of `CUresult`.
    """

    def __init__(self, code: int, function: str) -> None:
        super().__init__(f"{function} returned CUDA error {code}")
        self.code = code
        self.function = function


class CudaDriver:
    """One card of this container through CUDA's driver.

    Args:
        path: file of the library; None for the loader's own search.

    Raises:
        Unavailable: there is no library, no driver or no such card.
    """

    def __init__(self, path: str | None = None) -> None:
        try:
            self._library = ctypes.CDLL(path or LIBRARY_NAME)
        except OSError as exc:
            raise Unavailable(f"cannot load CUDA's driver: {exc}; run it in a container that has a card") from exc
        try:
            self._call("cuInit", 0)
            device = ctypes.c_int()
            self._call("cuDeviceGet", ctypes.byref(device), 0)
            self._device = device
            context = ctypes.c_void_p()
            self._call("cuCtxCreate_v2", ctypes.byref(context), 0, device)
            self._context = context
            self._kernel = self._loaded_kernel()
            self._stream = self._made("cuStreamCreate", 1)
        except CudaFault as exc:
            raise Unavailable(f"cannot start CUDA: {exc}") from exc
        self._graph: ctypes.c_void_p | None = None
        self._blocks = self._attribute(_ATTRIBUTE_MULTIPROCESSORS) * BLOCKS_PER_MULTIPROCESSOR

    @property
    def card(self) -> str:
        """UUID of the card, as the driver says it."""
        raw = (ctypes.c_ubyte * _UUID_BYTES)()
        self._call("cuDeviceGetUuid", ctypes.byref(raw), self._device)
        text = bytes(raw).hex()
        return f"GPU-{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"

    def memory_info(self) -> tuple[int, int]:
        """Free and total framebuffer, bytes, as programs in this container see them."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self._call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value, total.value

    def allocate(self, size: int, *, managed: bool = False) -> int | None:
        """Allocate framebuffer.

        Args:
            managed: as unified memory, which the driver may keep on the host.

        Returns:
            Its address; None where it was refused for want of memory.

        Raises:
            CudaFault: it failed for another reason.
        """
        address = ctypes.c_uint64()
        try:
            if managed:
                self._call("cuMemAllocManaged", ctypes.byref(address), ctypes.c_size_t(size), _ATTACH_GLOBAL)
            else:
                self._call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
        except CudaFault as exc:
            if exc.code == OUT_OF_MEMORY:
                return None
            raise
        return address.value

    def free(self, address: int) -> None:
        """Give framebuffer back."""
        self._call("cuMemFree_v2", ctypes.c_uint64(address))

    def fill(self, address: int, size: int) -> None:
        """Write every byte, and wait until it is done."""
        self._call("cuMemsetD8_v2", ctypes.c_uint64(address), ctypes.c_ubyte(1), ctypes.c_size_t(size))
        self._call("cuCtxSynchronize")

    def spin(self, nanoseconds: int) -> None:
        """Launch a kernel that keeps the whole card busy for a time; it is not waited for."""
        argument = ctypes.c_uint64(nanoseconds)
        arguments = (ctypes.c_void_p * 1)(ctypes.cast(ctypes.byref(argument), ctypes.c_void_p))
        grid = (self._blocks, 1, 1, THREADS_PER_BLOCK, 1, 1)
        self._call("cuLaunchKernel", self._kernel, *grid, 0, self._stream, arguments, None)

    def record_spin_graph(self, nanoseconds: int) -> bool:
        """Record the same launch as a graph, for `spin_by_graph`; False where this driver can't."""
        graph, executable = ctypes.c_void_p(), ctypes.c_void_p()
        try:
            self._call("cuStreamBeginCapture_v2", self._stream, _CAPTURE_RELAXED)
            try:
                self.spin(nanoseconds)
            finally:
                self._call("cuStreamEndCapture", self._stream, ctypes.byref(graph))
            self._call("cuGraphInstantiateWithFlags", ctypes.byref(executable), graph, ctypes.c_uint64(0))
        except (CudaFault, Unavailable):
            return False
        self._graph = executable
        return True

    def spin_by_graph(self) -> None:
        """Launch the recorded graph; it is not waited for."""
        if self._graph is None:
            raise Refused("cannot launch a graph that was not recorded")
        self._call("cuGraphLaunch", self._graph, self._stream)

    def wait(self) -> None:
        """Wait until everything that was launched is done."""
        self._call("cuCtxSynchronize")

    def close(self) -> None:
        """Give the card back; more than once does no harm."""
        if self._context is not None:
            self._call("cuCtxDestroy_v2", self._context)
            self._context = None  # type: ignore[assignment]

    def _loaded_kernel(self) -> ctypes.c_void_p:
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        self._call("cuModuleLoadData", ctypes.byref(module), ctypes.c_char_p(SPIN_PTX))
        self._call("cuModuleGetFunction", ctypes.byref(function), module, ctypes.c_char_p(b"spin"))
        return function

    def _made(self, function: str, *arguments: Any) -> ctypes.c_void_p:
        handle = ctypes.c_void_p()
        self._call(function, ctypes.byref(handle), *arguments)
        return handle

    def _attribute(self, number: int) -> int:
        value = ctypes.c_int()
        try:
            self._call("cuDeviceGetAttribute", ctypes.byref(value), number, self._device)
        except CudaFault as exc:
            raise Unavailable(f"cannot start CUDA: {exc}") from exc
        return max(1, value.value)

    def _call(self, function: str, *arguments: Any) -> None:
        try:
            entry: Callable[..., int] = getattr(self._library, function)
        except AttributeError as exc:
            raise Unavailable(f"cannot use CUDA's driver: it has no {function}; it is too old") from exc
        code = entry(*arguments)
        if code != 0:
            raise CudaFault(code, function)
