"""A PostgreSQL of one's own, of the programs that the machine has: the catalogue of Iceberg tables for bars with kills.

It answers on a port of this machine and lets everybody in. Called by `bench/bars/scale-kills`.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

from sqlalchemy import create_engine
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import NullPool

from fleet.errors import Unavailable
from gputide.operate.engines import free_port

_USER = "gputide"
_START_SECONDS_MAX = 120.0
_POLL_SECONDS = 0.2


class Postgres:
    """One server with one database in a folder of its own; mutable: it is started, killed and started again.

    Args:
        log: where it writes.

    Raises:
        Unavailable: the programs are not installed.
    """

    def __init__(self, log: Path) -> None:
        for name in ("initdb", "postgres"):
            if shutil.which(name) is None:
                raise Unavailable(f"cannot start PostgreSQL: no program {name} on the path")
        self._port = free_port()
        self._log = log
        # The server refuses to run as root, and another user may not see into folders of ours.
        self._user = "nobody" if os.getuid() == 0 else None
        self._process: subprocess.Popen[bytes] | None = None
        self._folder = Path(tempfile.mkdtemp(prefix="postgres-"))
        if self._user is not None:
            os.chown(self._folder, pwd.getpwnam(self._user).pw_uid, -1)
        command = ["initdb", "-D", str(self._folder), "-U", _USER, "--auth=trust", "-E", "UTF8", "--no-sync"]
        made = subprocess.run(command, user=self._user, cwd=self._folder, capture_output=True, text=True, check=False)
        if made.returncode != 0:
            self.close()
            raise Unavailable(f"cannot start PostgreSQL: {made.stderr[-500:]}")

    def close(self) -> None:
        """Ends it, and removes what it has written."""
        self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def address(self) -> str:
        """What `iceberg.database` calls it."""
        return f"postgresql+pg8000://{_USER}@127.0.0.1:{self._port}/postgres"

    def start(self) -> None:
        """Starts it, and returns when it answers.

        Raises:
            Unavailable: it does not.
        """
        command = ["postgres", "-D", str(self._folder), "-p", str(self._port)]
        command += ["-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories="]
        with self._log.open("ab") as output:
            self._process = subprocess.Popen(
                command, user=self._user, cwd=self._folder, stdout=output, stderr=output, start_new_session=True
            )
        end = time.monotonic() + _START_SECONDS_MAX
        while not self._answers():
            if time.monotonic() > end:
                raise Unavailable(f"cannot start PostgreSQL: see {self._log}")
            time.sleep(_POLL_SECONDS)

    def kill(self) -> None:
        """Ends it and all its processes as a power cut would."""
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def _answers(self) -> bool:
        try:
            create_engine(self.address, poolclass=NullPool).connect().close()
        except SQLAlchemyError:
            return False
        return True
