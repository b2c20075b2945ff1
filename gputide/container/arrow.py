"""Keeps Arrow from loading pandas, which nothing between bus and plan uses.

pyarrow imports pandas with the first array that is made, where it is installed (`pandas-shim.pxi` of its sources): a
fifth of a start and 60 MiB in each process, for answers about objects that we never hand over.
"""

from __future__ import annotations

import sys
import threading
from functools import cache


@cache
def load_arrow() -> None:
    """Load pyarrow, and have it take its one look for pandas while this thread sees none; the first call does.

    A later `to_pandas` still finds pandas.
    """
    import pyarrow as pa

    hidden = _Hidden("pandas", threading.get_ident())
    sys.meta_path.insert(0, hidden)
    try:
        pa.array([])
    finally:
        sys.meta_path.remove(hidden)


class _Hidden:
    """A finder by which one module is not there, for one thread; see `importlib.abc.MetaPathFinder`."""

    def __init__(self, name: str, thread: int) -> None:
        self._name, self._thread = name, thread

    def find_spec(self, name: str, _path: object = None, _target: object = None) -> None:
        """None, which leaves other modules to the next finder.

        Raises:
            ModuleNotFoundError: it is the hidden module.
        """
        if name == self._name and threading.get_ident() == self._thread:
            raise ModuleNotFoundError(f"{name} is hidden from this import", name=name)
