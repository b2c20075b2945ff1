"""The whole system as a service manager runs it: receiver, rollup and page as processes, restarted when they end.

Embedded, they share a data folder; with engines, Kafka, Flink and Hive stand beside them. What each part takes (memory
now, processor time so far, its dead processes' too) is read from the kernel.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from bench.soak.spoiled_machine import SpoiledMachine
from fleet.data_folder import open_data_folder
from fleet.schema import CARD_MEASURES, CARD_USAGE, POD_USAGE, SLICE_MEASURES, Table
from fleet.settings.settings import load_settings
from gputide.container.warehouse import warehouse
from gputide.operate.engine_cache import default_cache_path
from gputide.operate.engine_parts import Engine
from gputide.operate.engine_process import ProcessRecord, read_register
from gputide.operate.engines import down, free_port, up
from pipeline.warehouse.parquet_reads import ParquetReads

FLEET, BEACON, STRANGER = "soak", "beacon", "stranger"
"""Who sends: the fleet, one card whose samples tell how late everything is, and one who sends too many series."""
STRANGER_SERIES_MAX = 20_000
_TOKENS = {name: f"token-of-{name}-0123456789abcdef" for name in (FLEET, BEACON, STRANGER)}
_LONG_AGO, _LONG_AHEAD = datetime(2000, 1, 1, tzinfo=UTC), datetime(2100, 1, 1, tzinfo=UTC)
_RESTART_SECONDS = 1.0
_START_SECONDS_MAX = 120.0
_END_SECONDS_MAX = 120.0
_DAY_SECONDS = 86_400
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What a part takes.

    Attributes:
        rss_bytes: resident memory of its processes now.
        cpu_seconds: user and system time since it was first started, of processes that ended since too.
    """

    rss_bytes: int
    cpu_seconds: float


class Part:
    """One process of ours that shall run; mutable: it is started, killed and started again."""

    def __init__(self, command: Sequence[str], environ: Mapping[str, str], log: Path) -> None:
        self._command = list(command)
        self._environ = dict(environ)
        self._log = log
        self.is_wanted = False
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it."""
        self.is_wanted = True
        with self._log.open("ab") as output:
            self.process = subprocess.Popen(
                self._command, env=self._environ, stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )

    def send(self, number: signal.Signals) -> None:
        """Send it a signal, where it runs."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(number)

    def kill(self) -> None:
        """End it as a power cut would."""
        self.is_wanted = False
        self.send(signal.SIGKILL)
        if self.process is not None:
            self.process.wait()

    def end(self) -> None:
        """End it in order."""
        self.is_wanted = False
        self.send(signal.SIGCONT)
        self.send(signal.SIGTERM)
        if self.process is not None:
            try:
                self.process.wait(_END_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


class SoakSystem:
    """Starts everything, keeps it running, and tells what it takes.

    Args:
        folder: for data, logs and engines.
        machine: how disk and clock of our own processes are spoiled.
        has_engines: Kafka, Flink and Hive instead of files and DuckDB.

    Attributes:
        restarts: how often each part ended by itself and was started again.
    """

    def __init__(self, folder: Path, machine: SpoiledMachine, *, has_engines: bool) -> None:
        self._folder = folder
        self._engines = (Engine.KAFKA, Engine.FLINK, Engine.HIVE) if has_engines else ()
        self.data = folder / "data"
        self.address = ("127.0.0.1", free_port())
        self._page = ("127.0.0.1", free_port())
        self._environ = {**os.environ, **machine.environ}
        self._parts: dict[str, Part] = {}
        self._cpu: defaultdict[str, dict[tuple[int, str], float]] = defaultdict(dict)
        self._is_over = threading.Event()
        self._settings_file = folder / "gputide.toml"
        self._supervisor = threading.Thread(target=self._supervise, daemon=True)
        self.restarts: Counter[str] = Counter()

    @property
    def has_engines(self) -> bool:
        """Whether Kafka, Flink and Hive are part of it."""
        return bool(self._engines)

    def start(self) -> None:
        """Start all parts, and return when the receiver answers.

        Raises:
            Unavailable: an engine can't be had here.
        """
        tokens = self._folder / "tokens"
        tokens.write_text("".join(f"{token} {name}\n" for name, token in _TOKENS.items()), encoding="utf-8")
        settings: dict[str, object] = {
            "receiver.tokens_file": str(tokens),
            **{f"receiver.senders.{name}.cluster": name for name in _TOKENS},
            f"receiver.senders.{STRANGER}.series_max": STRANGER_SERIES_MAX,
            **(self._engine_settings() if self._engines else {}),
        }
        # What JSON writes of texts, numbers and lists of them is TOML too.
        lines = "".join(f"{name} = {json.dumps(value)}\n" for name, value in settings.items())
        self._settings_file.write_text(lines, encoding="utf-8")
        rollup = ("run", "rollup", "--engine", "flink") if self._engines else ("run", "rollup")
        host, port = self.address
        self._add("receiver", "run", "receive", "--listen", f"{host}:{port}")
        self._add("rollup", *rollup)
        self._add("page", "serve", "--port", str(self._page[1]))
        for part in self._parts.values():
            part.start()
        end = time.monotonic() + _START_SECONDS_MAX
        while not self.receiver_answers():
            if time.monotonic() > end:
                sys.exit(f"no receiver answers at {host}:{port}: {self.log_tail('receiver')}")
            time.sleep(0.1)
        self._supervisor.start()

    def stop(self) -> None:
        """End the parts in the order of the flow, and the engines."""
        self._is_over.set()
        if self._supervisor.ident is not None:
            self._supervisor.join()
        for part in self._parts.values():
            part.end()
        if self._engines:
            down(self._folder / "engines", list(self._engines), tell=lambda _: None)

    def drain(self) -> None:
        """End receiver and rollup in order, and roll up what is left on the bus."""
        self._parts["receiver"].end()
        self._parts["rollup"].end()
        words = ["run", "rollup", "--drain", *(("--engine", "flink") if self._engines else ())]
        drained = subprocess.run(self._command(*words), capture_output=True, text=True, check=False)
        if drained.returncode != 0:
            sys.exit(f"the bus could not be drained: {drained.stderr[-2000:]}")

    def token(self, sender: str) -> str:
        """The token that a sender shows."""
        return _TOKENS[sender]

    def kill(self, part: str) -> None:
        """End a part as a power cut would; it stays away until `start_again`."""
        self._parts[part].kill()

    def start_again(self, part: str) -> None:
        """Start a part that was killed."""
        self._parts[part].start()

    def pause(self, part: str) -> None:
        """Stop a part in its tracks."""
        self._parts[part].send(signal.SIGSTOP)

    def go_on(self, part: str) -> None:
        """Let a paused part go on."""
        self._parts[part].send(signal.SIGCONT)

    def engine_process(self, engine: Engine, part: str) -> ProcessRecord:
        """The process of an engine's part."""
        return read_register(self._folder / "engines")[engine].processes[part]

    def start_engines(self) -> None:
        """Start what of the engines does not run."""
        up(self._folder / "engines", list(self._engines), cache=default_cache_path(), ports={}, tell=lambda _: None)

    def receiver_answers(self) -> bool:
        """Whether the receiver takes requests."""
        return _answers(self.address, "/healthz")

    def page_answers(self) -> bool:
        """Whether the page is served."""
        return _answers(self._page, "/")

    def warehouse(self) -> ParquetReads:
        """What has arrived, for reading."""
        return warehouse(open_data_folder(self.data, create=False), load_settings(self._settings_file, {}, {}))

    def samples(self, cluster: str) -> int:
        """Values of all measures that a cluster's day rows count."""
        found = self.warehouse()
        if cluster not in found.clusters():
            return 0
        tables: tuple[tuple[Table, Sequence[str]], ...] = (
            (CARD_USAGE, [column.measure.value for column in CARD_MEASURES]),
            (POD_USAGE, [column.measure.value for column in SLICE_MEASURES]),
        )
        total = 0
        for table, measures in tables:
            rows = found.windows(
                table, cluster=cluster, level_seconds=_DAY_SECONDS, since=_LONG_AGO, until=_LONG_AHEAD,
                with_histograms=False,
            )  # fmt: skip
            total += sum(sum(filter(None, rows.column(f"{name}_count").to_pylist())) for name in measures)
        return total

    def readings(self) -> dict[str, Reading]:
        """What every part takes now, by its name; engines by theirs."""
        roots = {name: part.process.pid for name, part in self._parts.items() if part.process is not None}
        if self._engines:
            for engine, run in read_register(self._folder / "engines").items():
                roots |= {f"{engine.value} {name}": record.pid for name, record in run.processes.items()}
        table = _processes()
        children: defaultdict[int, list[int]] = defaultdict(list)
        for pid, (parent, *_) in table.items():
            children[parent].append(pid)
        found = {}
        for name, root in roots.items():
            rss, open_pids = 0, [root]
            while open_pids:
                pid = open_pids.pop()
                if pid in table:
                    _, started, cpu_seconds, rss_bytes = table[pid]
                    rss += rss_bytes
                    self._cpu[name][pid, started] = cpu_seconds
                open_pids += children[pid]
            found[name] = Reading(rss_bytes=rss, cpu_seconds=sum(self._cpu[name].values()))
        return found

    def log_tail(self, part: str) -> str:
        """The last that a part said."""
        log = self._folder / f"{part}.log"
        return log.read_text(encoding="utf-8", errors="replace")[-2000:] if log.is_file() else ""

    def _add(self, name: str, *words: str) -> None:
        self._parts[name] = Part(self._command(*words), self._environ, self._folder / f"{name}.log")

    def _command(self, *words: str) -> list[str]:
        told = ["--quiet", "--config", str(self._settings_file), "--data-dir", str(self.data)]
        return [sys.executable, "-m", "gputide.cli", *told, *words]

    def _engine_settings(self) -> dict[str, object]:
        self.start_engines()
        runs = read_register(self._folder / "engines")
        return {
            "bus.kind": "kafka",
            "kafka.servers": [f"127.0.0.1:{runs[Engine.KAFKA].ports['port']}"],
            "warehouse.kind": "hive",
            "hive.port": runs[Engine.HIVE].ports["server_port"],
            "flink.rest": f"http://127.0.0.1:{runs[Engine.FLINK].ports['rest_port']}",
            "flink.checkpoint_seconds": 10,
        }

    def _supervise(self) -> None:
        while not self._is_over.wait(_RESTART_SECONDS):
            for name, part in self._parts.items():
                if part.is_wanted and part.process is not None and part.process.poll() is not None:
                    self.restarts[name] += 1
                    part.start()


def _answers(address: tuple[str, int], path: str) -> bool:
    try:
        with urllib.request.urlopen(f"http://{address[0]}:{address[1]}{path}", timeout=10) as answer:
            return int(answer.status) == 200
    except (urllib.error.URLError, OSError):
        return False


def _processes() -> dict[int, tuple[int, str, float, int]]:
    """Of every process its parent, when it began, its processor time and its resident memory (proc(5), `stat`)."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        except OSError:
            continue
        cpu_seconds = (int(fields[11]) + int(fields[12])) / _TICKS_PER_SECOND
        found[int(entry.name)] = (int(fields[1]), fields[19], cpu_seconds, int(fields[21]) * _PAGE_BYTES)
    return found
