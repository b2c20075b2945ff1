"""Opens files that a tenant put where a region should be, so that they can be read and written without harm.

The node exporter reads them, the node agent writes single fields of them. Needs `/proc`; standard library only.

**Why they are not mapped.** A tenant may cut the file short at any moment, and touching a mapped page behind the end of
its file kills the process (SIGBUS), which Python can't catch. `preadv` into memory of our own returns fewer bytes
instead. Two calls per region, some 5 µs together, are the price; a mapping would cost 1 µs.

**Why open in two steps.** The directory is the tenant's, and a container may hold the capability to make device nodes:
opening one can act on the host's hardware, opening a pipe can hang. So a name is first opened as a mere place
(`O_PATH`, which touches nothing behind it), and only what proves to be a regular file is opened, by that place and not
by its name again. `O_NONBLOCK` keeps a lease that the tenant holds from making us wait.
"""

from __future__ import annotations

import os
import stat

from fleet.regions.doubts import RegionDoubt

_PLACE_FLAGS = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_OPEN_FLAGS = os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


def open_region(name: str, directory_fd: int | None = None, *, writable: bool = False) -> int | RegionDoubt:
    """Opens a regular file; follows no link in the last part of its name.

    Args:
        writable: for reading and writing. A file that has another name elsewhere is refused then: a tenant could have
            linked one that is not his.

    Returns:
        A file descriptor, which the caller closes; or why there is none.
    """
    try:
        place = os.open(name, _PLACE_FLAGS, dir_fd=directory_fd)
    except (OSError, ValueError):  # a name with a NUL byte in it is a ValueError
        return RegionDoubt.UNREADABLE
    try:
        status = os.fstat(place)
        if not stat.S_ISREG(status.st_mode) or (writable and status.st_nlink != 1):
            return RegionDoubt.NOT_A_FILE
        return os.open(f"/proc/self/fd/{place}", _OPEN_FLAGS | (os.O_RDWR if writable else os.O_RDONLY))
    except OSError:
        return RegionDoubt.UNREADABLE
    finally:
        os.close(place)


def size_of(fd: int) -> int:
    """Size of an open file, bytes."""
    return os.fstat(fd).st_size
