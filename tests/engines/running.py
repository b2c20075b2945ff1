"""Engines as tests handle them: each in a folder of its own, made to fail in every way that they do in life."""

from __future__ import annotations

from pathlib import Path

from bench.paused_process import pause_process, resume_process
from gputide.operate.engine_parts import Engine
from gputide.operate.engine_process import (
    ProcessRecord,
    is_alive,
    kill_process,
    log_tail,
    read_register,
    stop_process,
)
from gputide.operate.engines import down, up


class _Running:
    """One engine in a folder.

    Args:
        engine: which.
        folder: for its data, logs and register.
        cache: where what it is made of lies.
    """

    def __init__(self, engine: Engine, folder: Path, cache: Path) -> None:
        self.folder = folder
        self._engine = engine
        self._cache = cache

    def start(self) -> None:
        """Start what does not run, on the same data and ports as before; nothing where all answers."""
        up(self.folder, [self._engine], cache=self._cache, ports={}, tell=print)

    def end(self) -> None:
        """Stop everything that was started in the folder."""
        for record in read_register(self.folder)[self._engine].processes.values():
            resume_process(record)
        down(self.folder, [self._engine], tell=print)

    def _record(self, part: str) -> ProcessRecord:
        return read_register(self.folder)[self._engine].processes[part]

    def _port(self, name: str) -> int:
        return read_register(self.folder)[self._engine].ports[name]


class Kafka(_Running):
    """A broker of one's own."""

    def __init__(self, folder: Path, cache: Path) -> None:
        super().__init__(Engine.KAFKA, folder, cache)

    @property
    def bootstrap(self) -> str:
        """Host and port, the same for as long as the folder lives."""
        return f"127.0.0.1:{self._port('port')}"

    @property
    def pid(self) -> int:
        """The broker's process, the one started last."""
        return self._record("broker").pid

    def is_alive(self) -> bool:
        """Whether the broker's process runs."""
        return is_alive(self._record("broker"))

    def stop(self) -> None:
        """End the broker in an orderly way."""
        stop_process(self._record("broker"))

    def kill(self) -> None:
        """End the broker as a power cut would."""
        kill_process(self._record("broker"))

    def pause(self) -> None:
        """Make the broker hold its breath: connections stay, answers do not come."""
        pause_process(self._record("broker"))

    def resume(self) -> None:
        """Let a paused broker go on."""
        resume_process(self._record("broker"))

    def log_tail(self) -> str:
        """The last lines that the broker wrote."""
        return log_tail(self._record("broker").log)


class Hive(_Running):
    """A metastore and a HiveServer2 of one's own."""

    host = "127.0.0.1"

    def __init__(self, folder: Path, cache: Path) -> None:
        super().__init__(Engine.HIVE, folder, cache)

    @property
    def port(self) -> int:
        """Where HiveServer2 answers."""
        return self._port("server_port")

    @property
    def metastore_port(self) -> int:
        """Where the metastore answers."""
        return self._port("metastore_port")

    @property
    def metastore_uri(self) -> str:
        """Where the metastore answers, as Hive writes it."""
        return f"thrift://127.0.0.1:{self.metastore_port}"

    @property
    def files(self) -> Path:
        """Folder in which external tables may put their files."""
        return self.folder / "hive" / "external"

    def kill_metastore(self) -> None:
        """End the metastore as a power cut would."""
        kill_process(self._record("metastore"))

    def kill_server(self) -> None:
        """End HiveServer2 as a power cut would."""
        kill_process(self._record("server"))

    def restart(self) -> None:
        """Start again whichever of the two does not run."""
        self.start()

    def log_tail(self, part: str = "server") -> str:
        """The last lines that `server` or `metastore` wrote."""
        return log_tail(self._record(part).log)
