"""What the node exporter needs rights for, and what it says where it lacks them: as a process, with rights taken away.

Users other than root can't take rights away from a process of theirs; the tests are skipped for them.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from exporter.process_stat import ProcessStats
from tests.exporter.kubelet import StandInKubelet, container, device, pod
from tests.exporter.nvml.standin import DATA_VARIABLE, GIB, GPM, H100, StandInWorld, library_file, uuid
from tests.gputide.test_node_exporter import GPUTIDE, SECONDS_MAX, Exporting

pytestmark = pytest.mark.long

NOBODY = 65534
PAGE = Path(__file__).resolve().parents[2] / "docs" / "exporter.md"
needs_root = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("setpriv") is None or shutil.which("unshare") is None,
    reason="needs root, setpriv and unshare to take rights away from the exporter",
)


class Node:
    """One node with a card, a kubelet whose socket is root's, and a process that the driver lists."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.world = StandInWorld(folder / "world.txt").card(**H100, gpm=GPM, util=60)
        self.world.line("proc", dev=0, pid=os.getpid(), mem=GIB, sm=10).write()
        self.kubelet = StandInKubelet(folder / "kubelet.sock")
        self.kubelet.pods = [pod("team", "web-0", container("main", device("nvidia.com/gpu", uuid(0))))]
        self.kubelet.start()
        self.kubelet.path.chmod(0o600)
        (folder / "no-proc").mkdir()

    def exporting(self, *, user: int, proc: str = "/proc") -> Exporting:
        """The exporter as some user, without any capability; of uid 0 as root that may no more than others."""
        library = library_file()
        library.parent.chmod(0o755)
        settings = (
            f"exporter.nvml_library={library}",
            f"exporter.pod_resources_socket={self.kubelet.path}",
            f"exporter.containers_folder={self.folder / 'none'}",
            f"exporter.proc_folder={proc}",
            "exporter.node=gpu-1",
            "exporter.api_server=off",
        )
        log = self.folder / "log"
        with log.open("wb") as target:
            process = subprocess.Popen(
                [
                    "unshare", "--mount", "--propagation", "private", "sh", "-ec", _opened_folders(self.folder), "sh",
                    "setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", "--bounding-set=-all",
                    "--inh-caps=-all", "--no-new-privs", *GPUTIDE,
                    *(word for setting in settings for word in ("--set", setting)),
                    "run", "export", "node", "--listen", "127.0.0.1:0", "--interval", "0.5", "--processes", "5",
                ],
                stderr=target, env={**os.environ, DATA_VARIABLE: str(self.world.file), "HOME": "/"},
            )  # fmt: skip
        return Exporting(process, log)


def _opened_folders(scratch: Path) -> str:
    """A script that makes this Python reachable for other users, in a mount namespace of its own, and goes on."""
    needed = [Path(sys.base_prefix).resolve(), Path(sys.prefix).resolve(), PAGE.parents[1]]
    closed = {parent for path in needed for parent in path.parents if not parent.stat().st_mode & stat.S_IXOTH}
    lines = []
    for shut in sorted(closed)[:1]:
        within = [path for path in needed if shut in path.parents]
        for number, path in enumerate(within):
            keep = scratch / f"kept-{number}"
            keep.mkdir()
            lines.append(f"mount --bind '{path}' '{keep}'")
        lines.append(f"mount -t tmpfs -o mode=0755 none '{shut}'")
        for number, path in enumerate(within):
            lines.append(f"mkdir -p '{path}'; mount --move '{scratch / f'kept-{number}'}' '{path}'")
    return "\n".join([*lines, 'exec "$@"'])


@pytest.fixture
def node() -> Iterator[Node]:
    # Not pytest's own folder, which is its user's alone.
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        made = Node(Path(folder))
        yield made
        made.kubelet.stop()


def ended(exporter: Exporting) -> None:
    exporter.process.send_signal(signal.SIGTERM)
    assert exporter.process.wait(SECONDS_MAX) == 0, exporter.said()


@needs_root
def test_ordinary_user_shows_cards_and_says_what_it_may_not_ask(node: Node) -> None:
    exporter = node.exporting(user=NOBODY, proc=str(node.folder / "no-proc"))
    try:
        text = exporter.until_shown(r'^gputide_card_duty_cycle_ratio\{.*node="gpu-1".* 0\.6$')
        assert exporter.ask("/healthz")[0] == 200
        for source in ("kubelet", "processes"):
            labels = rf'\{{.*source="{source}"\}}'
            assert re.search(rf"^gputide_node_source_failures_total{labels} [1-9]", text, re.MULTILINE), source
            assert not re.search(rf"^gputide_node_source_age_seconds{labels}", text, re.MULTILINE), source
        # What can't be known is not zero.
        assert "gputide_slice_" not in text
        assert re.search(rf'^gputide_process_info\{{.*pid="{os.getpid()}",kind="compute"\}} 1$', text, re.MULTILINE)
        said = exporter.said()
        assert str(node.kubelet.path) in said
        assert "Permission denied" in said
        assert "exporter.proc_folder" in said
        ended(exporter)
    finally:
        exporter.process.kill()
        exporter.process.wait()


@needs_root
@pytest.mark.skipif(not ProcessStats().sees_host(), reason="no host's processes in /proc: a PID namespace of its own")
def test_root_without_any_capability_sees_all_of_the_node(node: Node) -> None:
    exporter = node.exporting(user=0)
    try:
        text = exporter.until_shown(r'^gputide_slice_duty_cycle_ratio\{.*pod="web-0".* 0\.6$')
        assert not re.search(r"^gputide_node_source_failures_total\{.* [1-9]", text, re.MULTILINE)
        assert "WARN" not in exporter.said().upper()
        ended(exporter)
    finally:
        exporter.process.kill()
        exporter.process.wait()


def test_unit_of_the_page_is_one_that_systemd_takes(tmp_path: Path) -> None:
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("no systemd-analyze on PATH")
    text = PAGE.read_text(encoding="utf-8").partition("```ini\n")[2].partition("```")[0]
    # Verified with this machine's program: the page's is where a user puts it.
    (tmp_path / "gputide.service").write_text(re.sub(r"(?m)^ExecStart=\S+", f"ExecStart={GPUTIDE[0]}", text))
    said = subprocess.run(
        [program, "verify", "--man=no", str(tmp_path / "gputide.service")],
        capture_output=True, text=True, timeout=SECONDS_MAX, check=False,
    )  # fmt: skip
    assert (said.returncode, said.stderr) == (0, "")
