"""The one module that knows pynvml: loads the driver's library, calls it, and names what went wrong.

Everything else of the NVML reader speaks through `NvmlLibrary.call` with the names of nvml.h. Structures that pynvml
makes are read here where it pays to keep them (GPM, field values); numbers of constants are those of nvml.h, as
nvidia-ml-py states them.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pynvml

from exporter.nvml.figures import LibraryVersions
from fleet.errors import Unavailable

LIBRARY_NAME = "libnvidia-ml.so.1"

LIBRARY_PATHS = (
    "/run/nvidia/driver/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1",
    "/run/nvidia/driver/usr/lib/aarch64-linux-gnu/libnvidia-ml.so.1",
    "/run/nvidia/driver/usr/lib64/libnvidia-ml.so.1",
    "/usr/local/nvidia/lib64/libnvidia-ml.so.1",
)
"""Where the library lies when the loader doesn't find it by name: NVIDIA's driver container
(NVIDIA/gpu-operator:assets/state-driver), and driver volumes as they are mounted into containers."""

NOT_SUPPORTED_CODES = frozenset({2, 3, 4, 13, 25, 26})
"""Invalid argument (an older driver's word for an id it doesn't know), not supported, no permission, function not
found, argument version mismatch, deprecated: asking again soon will not help."""

EMPTY_CODES = frozenset({0, 6, 21})
"""Success with nothing in it (pynvml raises it for a list of no process samples), not found, no data."""

CARD_LOST_CODES = frozenset({15, 16, 28})
"""GPU is lost, GPU requires reset, GPU not found."""

LIBRARY_LOST_CODES = frozenset({1, 9, 18})
"""Uninitialized, driver not loaded, library and driver versions differ: the driver was restarted."""

INSUFFICIENT_SIZE = 7
TIMED_OUT = 10

_UINT_NONE = 2**32 - 1
_ULONG_NONE = 2**64 - 1


GpmMetrics = Callable[[object, object, Sequence[int]], list[float | None]]
"""Values between an earlier and a later sample, in the order of the metrics; None for one that is not supported."""


class NvmlFault(Exception):
    """A call into the library failed.

    Attributes:
        code: value of `nvmlReturn_t`.
    """

    def __init__(self, code: int, function: str) -> None:
        super().__init__(f"{function} returned {error_word(code)}")
        self.code = code
        self.function = function


class NvmlLibrary:
    """The driver's library, loaded and initialised.

    pynvml keeps one library per process, so there is one of these at a time. Calls may come from several threads, each
    within `calling()`; `start_anew` waits until none is under way.

    Args:
        path: file of the library; None looks for it by name and then in `LIBRARY_PATHS`.
    """

    def __init__(self, path: str | None = None) -> None:
        self._path = path
        self._functions: dict[str, Callable[..., Any]] = {}
        self._turn = threading.Condition()
        self._callers = 0
        self._is_starting = False
        self.generation = 0
        """Counts initialisations; a handle belongs to the one in which it was obtained."""

    def start(self) -> None:
        """Loads and initialises the library.

        Raises:
            Unavailable: there is no library, or no driver behind it.
        """
        self._load()
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as exc:
            raise Unavailable(_why_not_started(_code(exc))) from exc
        self.generation += 1

    def start_anew(self, wait_seconds: float) -> bool:
        """Gives the library back and initialises it again, so that cards that came back are found.

        Args:
            wait_seconds: longest time to wait for calls under way.

        Returns:
            False where calls were still under way, and nothing was done.

        Raises:
            Unavailable: it could not be initialised again.
        """
        with self._turn:
            self._is_starting = True
            is_quiet = self._turn.wait_for(lambda: self._callers == 0, wait_seconds)
        try:
            if is_quiet:
                self._stop()
                self.start()
            return is_quiet
        finally:
            with self._turn:
                self._is_starting = False
                self._turn.notify_all()

    def stop(self) -> None:
        """Gives the library back, unless a call is still under way."""
        with self._turn:
            if self._callers == 0:
                self._stop()

    @contextmanager
    def calling(self) -> Iterator[None]:
        """Within it calls may be made; entering waits while the library is started anew."""
        with self._turn:
            self._turn.wait_for(lambda: not self._is_starting)
            self._callers += 1
        try:
            yield
        finally:
            with self._turn:
                self._callers -= 1
                self._turn.notify_all()

    def call(self, function: str, *arguments: Any) -> Any:
        """Calls pynvml's wrapper of one function of nvml.h.

        Raises:
            NvmlFault: the library returned anything but success, or has no such function.
        """
        try:
            wrapper = self._functions.get(function)
            if wrapper is None:
                wrapper = self._functions[function] = getattr(pynvml, function)
            return wrapper(*arguments)
        except pynvml.NVMLError as exc:
            raise NvmlFault(_code(exc), function) from exc
        except pynvml.NVMLLibraryMismatchError as exc:
            raise NvmlFault(13, function) from exc
        except AttributeError as exc:
            raise NvmlFault(13, function) from exc
        except (UnicodeDecodeError, TypeError) as exc:
            # A name that is no text; or accounting without a peak, where pynvml writes None into its structure.
            raise NvmlFault(999, function) from exc

    def versions(self) -> LibraryVersions:
        """What the library says of itself and the driver."""
        cuda = self._or_none("nvmlSystemGetCudaDriverVersion_v2")
        return LibraryVersions(
            driver=self._or_none("nvmlSystemGetDriverVersion"),
            library=self._or_none("nvmlSystemGetNVMLVersion"),
            # nvml.h: 1000 × major + 10 × minor.
            cuda=f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda is not None else None,
        )

    def field_values(self, handle: object, fields: Sequence[tuple[int, int]]) -> list[tuple[int, float | None]]:
        """Many field values in one call.

        Args:
            fields: id and scope of each.

        Returns:
            For each field the code of its own result, and its value; None where it is not there.
        """
        answers = self.call("nvmlDeviceGetFieldValues", handle, list(fields))
        return [(answer.nvmlReturn, _value_of(answer)) for answer in answers]

    def gpm_metrics(self) -> GpmMetrics:
        """A function that computes GPM metrics; it keeps its structure, so one serves one thread."""
        get = pynvml.c_nvmlGpmMetricsGet_t()

        def metrics(earlier: object, later: object, ids: Sequence[int]) -> list[float | None]:
            get.version = pynvml.NVML_GPM_METRICS_GET_VERSION
            get.numMetrics = len(ids)
            get.sample1, get.sample2 = earlier, later
            slots = get.metrics
            for number, metric in enumerate(ids):
                slots[number].metricId = metric
            self.call("nvmlGpmMetricsGet", get)
            found: list[float | None] = []
            for number in range(len(ids)):
                slot = slots[number]
                found.append(slot.value if slot.nvmlReturn == 0 else None)
            return found

        return metrics

    def _or_none(self, function: str) -> Any:
        try:
            return self.call(function)
        except NvmlFault:
            return None

    def _load(self) -> None:
        # pynvml opens the library by its bare name. Once a file with that soname is loaded the name leads to it, so
        # loading the file first is all that a path of one's own takes (man dlopen).
        paths = (self._path,) if self._path is not None else (LIBRARY_NAME, *LIBRARY_PATHS)
        reasons = []
        for path in paths:
            try:
                ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
                return
            except OSError as exc:
                reasons.append(str(exc))
        raise Unavailable(
            f"cannot load NVIDIA's library: {reasons[0]}; install the driver, or name the file by exporter.nvml_library"
        )

    def _stop(self) -> None:
        try:
            pynvml.nvmlShutdown()
        except pynvml.NVMLError as exc:
            # A restarted driver has forgotten us already.
            if _code(exc) not in LIBRARY_LOST_CODES:
                raise Unavailable(f"cannot give NVIDIA's library back: {error_word(_code(exc))}") from exc


def error_word(code: int) -> str:
    """The name of an `nvmlReturn_t`, in lower case: `not_supported`."""
    return _ERROR_WORDS.get(code, f"error_{code}")


def number_or_none(value: int) -> int | None:
    """A number of the library; None for the patterns with which it says "not available", and for ones beyond reason."""
    return value if 0 <= value < 2**63 and value not in (_UINT_NONE, _ULONG_NONE) else None


def instance_or_none(value: int) -> int | None:
    """The id of a MIG instance; None outside MIG."""
    return value if 0 <= value < 2**16 else None


_ERROR_WORDS = {
    getattr(pynvml, name): name.removeprefix("NVML_ERROR_").lower()
    for name in dir(pynvml)
    if name.startswith("NVML_ERROR_") and isinstance(getattr(pynvml, name), int)
}

_VALUE_MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
"""Members of `nvmlValue_t` by `nvmlValueType_t`."""


def sample_value(value_type: int, value: Any) -> float | None:
    """The number in an `nvmlValue_t`; None for a type that nvml.h doesn't know or a value that is not there."""
    if not 0 <= value_type < len(_VALUE_MEMBERS):
        return None
    number: float = getattr(value, _VALUE_MEMBERS[value_type])
    if isinstance(number, float):
        return number if abs(number) < 1e18 else None
    return number if abs(number) < 2**63 and number != _UINT_NONE else None


def _value_of(answer: Any) -> float | None:
    return sample_value(answer.valueType, answer.value) if answer.nvmlReturn == 0 else None


def _code(exc: Any) -> int:
    return int(exc.value)


def _why_not_started(code: int) -> str:
    if code == 18:
        return "cannot start NVIDIA's library: the driver was replaced by another version; start the exporter again"
    if code == 12:
        return f"cannot load NVIDIA's library: {LIBRARY_NAME} is not found; name the file by exporter.nvml_library"
    return f"cannot start NVIDIA's library: {error_word(code)}"
