"""Jobs in processes beside this one: in order, with their errors, and ended with who started them."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from fleet.errors import Corrupt, Unavailable
from gputide.container.workers import open_workers


def doubled(number: int) -> int:
    """Twice a number; of 13 an error, as of a file that can't be read."""
    if number == 13:
        raise Corrupt("cannot read 13")
    return 2 * number


def killed(_number: int) -> int:
    """What the system does with a process where memory ends."""
    os.kill(os.getpid(), signal.SIGKILL)
    return 0


def noted(folder: Path, number: int) -> None:
    """Leave the process's number in a folder, and stay for a minute."""
    (folder / f"{number}.txt").write_text(str(os.getpid()))
    time.sleep(60)


@pytest.mark.parametrize("processes", [1, 2])
def test_answers_come_in_the_order_of_the_jobs_and_errors_as_they_were_raised(processes: int) -> None:
    with open_workers(processes, "analyzer.processes") as run:
        assert list(run(doubled, range(9))) == [2 * number for number in range(9)]
        with pytest.raises(Corrupt, match="cannot read 13"):
            list(run(doubled, [1, 13, 2]))


def test_a_killed_process_is_said_with_the_setting() -> None:
    with (
        pytest.raises(Unavailable, match=r"one of the processes of analyzer\.processes=2 was killed"),
        open_workers(2, "analyzer.processes") as run,
    ):
        list(run(killed, [1]))


def test_jobs_that_have_not_begun_are_dropped_when_the_block_ends(tmp_path: Path) -> None:
    with open_workers(2, "analyzer.processes") as run:
        answers = run(partial(_written, tmp_path), range(200))
        next(answers)
    assert len(list(tmp_path.iterdir())) < 100


def _written(folder: Path, number: int) -> None:
    (folder / str(number)).touch()
    time.sleep(0.02)


_MAIN = """
from functools import partial
from pathlib import Path
import sys
from gputide.container.workers import open_workers
from tests.gputide.test_workers import noted
if __name__ == "__main__":
    with open_workers(2, "analyzer.processes") as run:
        list(run(partial(noted, Path(sys.argv[1])), range(2)))
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_processes_end_with_who_started_them(tmp_path: Path, how: signal.Signals, repository: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(_MAIN)
    folder = tmp_path / "noted"
    folder.mkdir()
    started = subprocess.Popen(
        [sys.executable, str(program), str(folder)],
        cwd=repository,
        env={**os.environ, "PYTHONPATH": str(repository)},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    numbers = wait_for(lambda: [text for path in folder.iterdir() if (text := path.read_text())], 2)
    if how == signal.SIGINT:
        os.killpg(started.pid, how)  # as a terminal does
    else:
        started.send_signal(how)
    assert wait_for(lambda: [number for number in numbers if not Path(f"/proc/{number}").exists()], 2) == numbers
    _, said = started.communicate(timeout=30)
    assert started.returncode == -how
    assert said.count("Traceback") == (how == signal.SIGINT), "only who started them says something"


def wait_for(look: Callable[[], list[str]], count: int) -> list[str]:
    """What a look finds once it is so many, within half a minute."""
    until = time.monotonic() + 30
    while len(found := look()) < count and time.monotonic() < until:
        time.sleep(0.05)
    return found
