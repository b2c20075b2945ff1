"""A cache folder of things that take long to fetch or build; each is there whole or not at all.

An entry is filled in its own place under a lock between processes, and stamped as the last step: what a killed process
left has no stamp and is made anew. The name of an entry carries the hash of all that decides its content (lock files,
versions of tools), so a newer gputide never takes an older one's. Called by `gputide.operate.engine_stock`.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from platformdirs import user_cache_path

from fleet.durable import unwritable, write_durably

_STAMP = "COMPLETE"


def default_cache_path() -> Path:
    """Where entries lie unless somebody says otherwise: `$XDG_CACHE_HOME/gputide/engines` on Linux."""
    return user_cache_path("gputide") / "engines"


def key_of(*contents: bytes) -> str:
    """Sixteen hexadecimal digits that differ as soon as one of the contents does."""
    digest = hashlib.sha256()
    for content in contents:
        digest.update(len(content).to_bytes(8, "big") + content)
    return digest.hexdigest()[:16]


def is_stocked(cache: Path, name: str, key: str) -> bool:
    """Whether the entry is there, whole."""
    return (cache / f"{name}-{key}" / _STAMP).is_file()


def stocked(cache: Path, name: str, key: str, fill: Callable[[Path], None], *, tell: Callable[[str], None]) -> Path:
    """The folder of an entry, filled first where it is not there whole.

    Args:
        cache: folder of all entries, made where it is missing.
        name: what the entry is, such as `kafka-jars`.
        fill: makes the content in the empty folder it is given; whatever it raises leaves the entry absent.
        tell: is told in a sentence what takes time.

    Raises:
        Corrupt: the cache can't be written.
    """
    folder = cache / f"{name}-{key}"
    stamp = folder / _STAMP
    if stamp.is_file():
        return folder
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with _locked(cache / f"{name}-{key}.lock", lambda: tell(f"waiting for another process to fetch {name}")):
            if stamp.is_file():
                return folder
            if folder.exists():
                shutil.rmtree(folder)
            folder.mkdir()
            try:
                fill(folder)
                write_durably(stamp, b"")
            finally:
                if not stamp.exists():
                    shutil.rmtree(folder)
    except OSError as exc:
        raise unwritable(folder, exc) from exc
    return folder


@contextmanager
def _locked(path: Path, when_waiting: Callable[[], None]) -> Iterator[None]:
    """Hold a file's lock; the kernel lets go of it with the process, however that ends."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            when_waiting()
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
