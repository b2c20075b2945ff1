import os
import socket
from pathlib import Path

import pytest

from fleet.regions.doubts import RegionDoubt
from fleet.regions.files import open_region, size_of


@pytest.fixture
def directory(tmp_path: Path) -> int:
    return os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)


def test_regular_file_is_opened_for_reading_only(tmp_path: Path, directory: int) -> None:
    (tmp_path / "a.cache").write_bytes(b"region")
    fd = open_region("a.cache", directory)
    assert isinstance(fd, int)
    assert (os.pread(fd, 10, 0), size_of(fd)) == (b"region", 6)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.write(fd, b"x")
    os.close(fd)


def test_link_is_never_followed(tmp_path: Path, directory: int) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"of the host")
    (tmp_path / "a.cache").symlink_to(secret)
    assert open_region("a.cache", directory) is RegionDoubt.NOT_A_FILE
    assert open_region(str(tmp_path / "a.cache")) is RegionDoubt.NOT_A_FILE


def test_pipe_is_not_waited_for(tmp_path: Path, directory: int) -> None:
    os.mkfifo(tmp_path / "a.cache")
    assert open_region("a.cache", directory) is RegionDoubt.NOT_A_FILE


def test_socket_and_folder_are_no_region(tmp_path: Path, directory: int) -> None:
    (tmp_path / "folder.cache").mkdir()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket.cache"))
        assert open_region("socket.cache", directory) is RegionDoubt.NOT_A_FILE
    assert open_region("folder.cache", directory) is RegionDoubt.NOT_A_FILE


def test_device_is_not_touched(tmp_path: Path, directory: int) -> None:
    assert open_region("/dev/null", directory) is RegionDoubt.NOT_A_FILE


@pytest.mark.parametrize("name", ["absent.cache", "with\0nul.cache", "x" * 300])
def test_name_that_can_not_be_opened_is_unreadable(name: str, directory: int) -> None:
    assert open_region(name, directory) is RegionDoubt.UNREADABLE


def test_nothing_stays_open_behind_a_refusal(tmp_path: Path, directory: int) -> None:
    os.mkfifo(tmp_path / "a.cache")
    before = len(os.listdir("/proc/self/fd"))
    for name in ("a.cache", "absent.cache"):
        open_region(name, directory)
    assert len(os.listdir("/proc/self/fd")) == before


def test_writable_file_has_no_other_name(tmp_path: Path, directory: int) -> None:
    (tmp_path / "a.cache").write_bytes(b"region")
    fd = open_region("a.cache", directory, writable=True)
    assert isinstance(fd, int)
    assert os.pwrite(fd, b"R", 0) == 1
    os.close(fd)
    (tmp_path / "b.cache").hardlink_to(tmp_path / "a.cache")
    assert open_region("b.cache", directory, writable=True) is RegionDoubt.NOT_A_FILE
    assert (tmp_path / "a.cache").read_bytes() == b"Region"
