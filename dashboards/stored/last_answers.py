"""The last answer about a cluster, shown while a thread makes the next: a web app waits little, verbs to the end.

An answer is of a version, and is made anew when that changes. Each cluster's is made by one thread at a time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from dashboards.queries import NotMadeYet
from fleet.errors import GputideError
from fleet.logs import logger

T = TypeVar("T")
_log = logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How answers of one kind are waited for.

    Attributes:
        what: what they are, for the log.
        not_yet: what is said while the first one of `{cluster}` is made.
        first_seconds: how long after it was begun a page still waits for the first one.
        quick_seconds: a page waits for an answer that took no longer last time, so that of a small fleet is the newest.
        rest_ratio: rest after an answer over the time that it took.
        outlives_faults: whether the last answer is still shown when the next can't be made.
    """

    what: str
    not_yet: str
    first_seconds: float
    quick_seconds: float = 0.0
    rest_ratio: float = 0.0
    outlives_faults: bool = False


@dataclass(slots=True)
class _Kept(Generic[T]):
    """The answer about one cluster; mutable: the thread that makes it replaces what is here."""

    making: threading.Lock = field(default_factory=threading.Lock)
    made: tuple[object, T] | None = None
    fault: Exception | None = None
    worker: threading.Thread | None = None
    begun_at: float = 0.0
    rests_until: float = 0.0
    took_seconds: float = 0.0


class LastAnswers(Generic[T]):
    """Answers by cluster.

    Args:
        is_patient: True to wait for the newest answer; else the last one is given while the next is made.
    """

    def __init__(self, make: Callable[[str], T], patience: Patience, *, is_patient: bool) -> None:
        self._make = make
        self._patience = patience
        self._is_patient = is_patient
        self._lock = threading.Lock()
        self._kept: dict[str, _Kept[T]] = {}

    def of(self, cluster: str, version: object) -> T:
        """The newest answer, or the last one.

        Raises:
            NotMadeYet: the first one is still being made.
            Exception: it could not be made.
        """
        with self._lock:
            kept = self._kept.setdefault(cluster, _Kept())
        if self._is_patient:
            with kept.making:
                if kept.made is None or kept.made[0] != version:
                    kept.made = version, self._make(cluster)
                return kept.made[1]
        made = kept.made if kept.fault is None or self._patience.outlives_faults else None
        if made is None or made[0] != version:
            self._begin(cluster, kept, version)
        if made is None:
            return self._first(cluster, kept)
        if made[0] != version and kept.worker is not None and kept.took_seconds <= self._patience.quick_seconds:
            kept.worker.join(self._patience.quick_seconds)
        return made[1] if kept.made is None else kept.made[1]

    def _begin(self, cluster: str, kept: _Kept[T], version: object) -> None:
        """Start a thread that makes it, unless one does or has just done so."""
        with kept.making:
            is_busy = kept.worker is not None and kept.worker.is_alive()
            if is_busy or (kept.made is not None and time.monotonic() < kept.rests_until):
                return
            kept.begun_at = time.monotonic()
            kept.worker = threading.Thread(
                target=self._work,
                args=(cluster, kept, version),
                name=f"{self._patience.what} of {cluster}",
                daemon=True,
            )
            kept.worker.start()

    def _work(self, cluster: str, kept: _Kept[T], version: object) -> None:
        try:
            made = version, self._make(cluster)
            kept.fault, kept.made = None, made
        except GputideError as exc:
            kept.fault = exc
            _log.warning("an answer could not be made", what=self._patience.what, cluster=cluster, reason=str(exc))
        except Exception as exc:  # noqa: BLE001 - a bug of ours, raised again for the reader
            kept.fault = exc
            _log.exception("a bug ended an answer", what=self._patience.what, cluster=cluster)
        ended = time.monotonic()
        kept.took_seconds = ended - kept.begun_at
        kept.rests_until = ended + self._patience.rest_ratio * kept.took_seconds

    def _first(self, cluster: str, kept: _Kept[T]) -> T:
        # Who asks later is answered at once: pages that come again take no thread from others.
        if kept.worker is not None:
            kept.worker.join(max(0.0, kept.begun_at + self._patience.first_seconds - time.monotonic()))
        if kept.fault is not None:
            raise kept.fault
        if kept.made is not None:
            return kept.made[1]
        why = self._patience.not_yet.format(cluster=repr(cluster))
        raise NotMadeYet(f"{why} since {time.monotonic() - kept.begun_at:.0f} s")
