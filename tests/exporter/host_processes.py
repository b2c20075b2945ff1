"""A host's `/proc` as a folder: processes with their lines, their cgroups, and what tells that they are the host's."""

from pathlib import Path


def stat_line(pid: int, name: bytes, *, user: int = 0, system: int = 0, started: int = 0, pages: int = 0) -> bytes:
    """What the kernel says of a process in one line; times in clock ticks."""
    before = " ".join(["S", *["1"] * 10, str(user), str(system), *["0"] * 6, str(started), "4096", str(pages)])
    return b"%d (%s) %s %s\n" % (pid, name, before.encode(), b" ".join([b"0"] * 28))


class HostProcesses:
    """The processes of a host; the kernel's own thread by which a host is known is among them.

    Args:
        folder: becomes the `/proc`.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "stat").write_bytes(b"cpu 1 2 3\nintr 0\nbtime 1700000000\nprocesses 9\n")
        self.put(2, name=b"kthreadd")

    def put(self, pid: int, *, name: bytes = b"python", cgroup: str = "/", **figures: int) -> None:
        """Starts a process, or makes another one of it; `cgroup` is the path of version 2."""
        place = self.folder / str(pid)
        place.mkdir(exist_ok=True)
        (place / "stat").write_bytes(stat_line(pid, name, **figures))
        (place / "cgroup").write_text(f"0::{cgroup}\n")

    def hide_host(self) -> None:
        """From now on these are the processes of some container alone."""
        self.put(2, name=b"sh")
