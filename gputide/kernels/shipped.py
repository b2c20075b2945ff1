"""Where numba finds machine code that was compiled beforehand, when the folder of the modules cannot be written to.

Numba keeps compiled kernels beside their module only where it may also write there; in a container image, whose root
is read-only, it would compile everything again at every start, and fail where no other folder is writable. The image
names this class in `NUMBA_CACHE_LOCATOR_CLASSES` (numba's documentation, "Environment variables"; the protocol of a
locator is that of `numba.core.caching`). Nothing else uses it.
"""

from __future__ import annotations

import functools
import os
import stat
import tempfile
from pathlib import Path

from numba.core.caching import InTreeCacheLocator

_KERNEL_SUFFIXES = (".nbi", ".nbc")


class ShippedKernels(InTreeCacheLocator):
    """Reads kernels beside their module, and writes new ones to a private folder among temporary files.

    The private folder holds a link to each shipped file; numba replaces a file by renaming a new one over its name,
    so a link is replaced and what it points to stays. A kernel whose source, numba or processor differs is compiled
    as ever.
    """

    def ensure_cache_path(self) -> None:
        """Choose the folder and see that it can be written to.

        Raises:
            OSError: it can't be; numba then asks the next locator.
        """
        shipped = Path(self._cache_path)
        if not os.access(shipped, os.W_OK):
            self._cache_path = str(_linked(shipped, Path(tempfile.gettempdir())))
        super().ensure_cache_path()  # type: ignore[no-untyped-call]  # numba carries no types


@functools.cache
def _linked(shipped: Path, scratch: Path) -> Path:
    """Link every shipped kernel into the private folder that stands for its folder; returns that folder.

    Raises:
        PermissionError: somebody else owns the private folder, or others may write to it: code read from there would
            be theirs.
    """
    private = scratch / f"gputide-kernels-{os.geteuid()}"
    private.mkdir(mode=0o700, exist_ok=True)
    found = private.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise PermissionError(f"cannot keep kernels in {private}: it belongs to somebody else")
    folder = private / str(InTreeCacheLocator.get_suitable_cache_subpath(str(shipped)))  # type: ignore[no-untyped-call]
    folder.mkdir(mode=0o700, exist_ok=True)
    if not shipped.is_dir():
        return folder
    for kernel in shipped.iterdir():
        link = folder / kernel.name
        if kernel.suffix in _KERNEL_SUFFIXES and not link.exists():
            # Of two processes that start at once one is second; a link into an image that is gone is made anew.
            made = folder / f"{kernel.name}.{os.getpid()}"
            made.symlink_to(kernel)
            made.replace(link)
    return folder
