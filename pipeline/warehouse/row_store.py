"""Where a warehouse's row files lie: a folder of this machine, or a file system that Arrow knows (HDFS, S3).

A file is in its place wholly or not at all. `warehouse.files` writes and removes through this, `parquet_reads` and
`warehouse.compact` read. Paths are relative, below the store's own place; names that begin with a dot are hidden from
all readers, Hive's included.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, Any, Protocol

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from fleet.durable import sync_folder
from fleet.errors import Corrupt, Misconfigured, Unavailable

if TYPE_CHECKING:
    import pyarrow.dataset as ds

_OBJECT_STORES = ("s3", "gcs", "abfs")
"""A file appears there when it is closed, and to rename it would be to copy it."""


class RowStore(Protocol):
    """Keeps row files. What a disk refuses is raised as OSError, a file system that does not answer as Unavailable."""

    def write(self, below: Path, fill: Callable[[Any], None]) -> None:
        """Puts a file in place: `fill` writes it aside, then it gets its name."""
        ...

    def settle(self, below: Iterable[Path]) -> None:
        """Makes the names of files durable."""
        ...

    def remove(self, below: Path) -> bool:
        """Removes a file, and its folder when it was the last; False where there was none."""
        ...

    def found(self, top: str) -> list[Path]:
        """Every file of partitions (`TOP/dt=…/cluster=…/FILE`), half-written ones too."""
        ...

    def opened(self, below: Path) -> pq.ParquetFile:
        """A file, for reading.

        Raises:
            Corrupt: it can't be read.
        """
        ...

    def size_bytes(self, below: Path) -> int:
        """How large a file is."""
        ...

    def relation(self, below: Sequence[str]) -> list[str] | ds.Dataset:
        """Files as DuckDB reads them: names of local files, or a dataset."""
        ...


class LocalRows:
    """Row files in a folder.

    Args:
        crash_point: called with a name at every moment at which a crash would matter.
    """

    def __init__(self, folder: Path, *, crash_point: Callable[[str], None] = lambda _name: None) -> None:
        self._folder = folder
        self._crash_point = crash_point

    def __reduce__(self) -> tuple[type[LocalRows], tuple[Path]]:
        # A copy in another process reads the same files.
        return LocalRows, (self._folder,)

    def write(self, below: Path, fill: Callable[[Any], None]) -> None:
        """Puts a file in place; its bytes are durable before it has its name."""
        path = self._folder / below
        aside = path.with_name(f".{path.name}.new")
        try:
            with self._begun(aside) as file:
                fill(file)
                file.flush()
                os.fsync(file.fileno())
            self._crash_point("before rename")
            aside.replace(path)
        finally:
            aside.unlink(missing_ok=True)

    def _begun(self, path: Path) -> IO[bytes]:
        """A new file; its folder may go with the last file of it, which another process removes, until it is there."""
        while True:
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                return path.open("wb")
            except FileNotFoundError:
                if path.parent.exists():
                    raise

    def settle(self, below: Iterable[Path]) -> None:
        """Syncs the folders of files, and those above them."""
        folders = {self._folder / folder for path in below for folder in path.parents}
        for folder in sorted(folders, reverse=True):
            sync_folder(folder)

    def remove(self, below: Path) -> bool:
        """Removes a file, and its folder when it was the last."""
        path = self._folder / below
        if not path.exists():
            return False
        path.unlink()
        with suppress(OSError):  # others lie in it, or another process has just put one there
            path.parent.rmdir()
        return True

    def found(self, top: str) -> list[Path]:
        """Every file of partitions."""
        paths = (self._folder / top).glob("dt=*/cluster=*/*")
        return [path.relative_to(self._folder) for path in paths if path.is_file()]

    def opened(self, below: Path) -> pq.ParquetFile:
        """A file, for reading."""
        return _parquet(self._folder / below, self._folder / below)

    def size_bytes(self, below: Path) -> int:
        """How large a file is."""
        return (self._folder / below).stat().st_size

    def relation(self, below: Sequence[str]) -> list[str]:
        """Full names."""
        return [str(self._folder / path) for path in below]


class ArrowRows:
    """Row files on a file system of Arrow's.

    Args:
        base: folder or prefix on it.
        crash_point: called with a name at every moment at which a crash would matter.
    """

    def __init__(
        self, file_system: pafs.FileSystem, base: str, *, crash_point: Callable[[str], None] = lambda _name: None
    ) -> None:
        self._file_system = file_system
        self._base = PurePosixPath(base)
        self._crash_point = crash_point
        self._has_whole_writes = file_system.type_name in _OBJECT_STORES

    def __reduce__(self) -> tuple[type[ArrowRows], tuple[pafs.FileSystem, str]]:
        return ArrowRows, (self._file_system, str(self._base))

    def write(self, below: Path, fill: Callable[[Any], None]) -> None:
        """Puts a file in place; where closing a file makes it appear, without a rename."""
        path = self._base / below
        aside = path if self._has_whole_writes else path.with_name(f".{path.name}.new")
        with self._answering():
            if not self._has_whole_writes:
                self._file_system.create_dir(str(path.parent), recursive=True)
            with self._file_system.open_output_stream(str(aside), compression=None) as stream:
                fill(stream)
            self._crash_point("before rename")
            if aside != path:
                self._file_system.move(str(aside), str(path))

    def settle(self, below: Iterable[Path]) -> None:
        """Nothing: a closed file of these systems is durable, and so is its name."""

    def remove(self, below: Path) -> bool:
        """Removes a file, and its folder when it was the last and there are folders."""
        path = self._base / below
        with self._answering():
            if self._file_system.get_file_info(str(path)).type is pafs.FileType.NotFound:
                return False
            self._file_system.delete_file(str(path))
            if not self._has_whole_writes and not self._listed(path.parent, recursive=False):
                self._file_system.delete_dir(str(path.parent))
        return True

    def found(self, top: str) -> list[Path]:
        """Every file of partitions."""
        with self._answering():
            listed = self._listed(self._base / top, recursive=True)
        files = [Path(info.path).relative_to(self._base) for info in listed if info.type is pafs.FileType.File]
        depth = len(Path(top).parts) + 3
        return [path for path in files if len(path.parts) == depth]

    def opened(self, below: Path) -> pq.ParquetFile:
        """A file, for reading."""
        path = self._base / below
        return _parquet(str(path), path, self._file_system)

    def size_bytes(self, below: Path) -> int:
        """How large a file is."""
        with self._answering():
            return int(self._file_system.get_file_info(str(self._base / below)).size)

    def relation(self, below: Sequence[str]) -> ds.Dataset:
        """A dataset of the files, none of whose columns comes from a name."""
        import pyarrow.dataset as ds  # noqa: PLC0415 - a warehouse on a disk does without

        paths = [str(self._base / path) for path in below]
        try:
            return ds.dataset(paths, filesystem=self._file_system, format="parquet", partitioning=None)
        except (OSError, pa.ArrowException) as exc:
            raise Corrupt(f"cannot read {len(paths)} files below {self._base}: {exc}") from exc

    @contextmanager
    def _answering(self) -> Iterator[None]:
        try:
            yield
        except OSError as exc:
            raise Unavailable(f"cannot use the files at {self._base}: {exc.strerror or exc}") from exc

    def _listed(self, folder: PurePosixPath, *, recursive: bool) -> list[pafs.FileInfo]:
        selector = pafs.FileSelector(str(folder), allow_not_found=True, recursive=recursive)
        return list(self._file_system.get_file_info(selector))


def arrow_rows(location: str, *, crash_point: Callable[[str], None] = lambda _name: None) -> ArrowRows:
    """The row files at a URI, as Hive writes it: `hdfs://nameservice/path`, `s3a://bucket/prefix`.

    Raises:
        Misconfigured: Arrow knows no such file system, or can't reach it.
    """
    scheme, colon, rest = location.partition(":")
    uri = f"s3{colon}{rest}" if scheme in ("s3a", "s3n") else location
    try:
        file_system, base = _file_system(uri)
    except (OSError, pa.ArrowException) as exc:
        raise Misconfigured(
            f"cannot put files at hive.location={location}: {' '.join(str(exc).split())[:300]}; set hive.folder where "
            "it is mounted, or name a file system that Arrow knows and can reach"
        ) from exc
    return ArrowRows(file_system, base, crash_point=crash_point)


@cache
def _file_system(uri: str) -> tuple[pafs.FileSystem, str]:
    # Opening one may take several questions over the network, and each page that reads the warehouse opens it.
    file_system, base = pafs.FileSystem.from_uri(uri)
    return file_system, base


def row_group_levels(file: pq.ParquetFile) -> Iterator[int]:
    """The level of each row group, in seconds: each holds windows of one length, and its statistics say which."""
    place = file.schema_arrow.get_field_index("window_seconds")
    for group in range(file.num_row_groups):
        yield int(file.metadata.row_group(group).column(place).statistics.min)


def _parquet(source: Any, shown: Any, file_system: pafs.FileSystem | None = None) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(source, filesystem=file_system)
    except (OSError, pa.ArrowException) as exc:
        raise Corrupt(f"cannot read {shown}: {exc}") from exc
