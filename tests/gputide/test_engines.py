"""What `gputide admin engines` does around the engines: cache, locks, tools, processes. Needs none."""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from xml.etree import ElementTree

import pytest

from fleet.errors import Corrupt, Misconfigured, Unavailable
from gputide.operate.engine_answers import check_drivers
from gputide.operate.engine_cache import is_stocked, key_of, stocked
from gputide.operate.engine_flink import prepare_flink
from gputide.operate.engine_parts import Engine
from gputide.operate.engine_process import (
    EngineRun,
    ProcessRecord,
    is_alive,
    kill_process,
    read_register,
    start_process,
    stop_process,
    wait_until,
    write_register,
)
from gputide.operate.engine_stock import DATA, check_files, jars, read_lock
from gputide.operate.engine_tools import find_java
from gputide.operate.engines import down, states
from tests.gputide.conftest import Program
from tests.waiting import until

JAVA_17 = "#!/bin/sh\necho 'openjdk version \"17.0.1\" 2021-10-19' >&2\n"


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], Path]:
    """Return a maker of programs that alone are on PATH, beside the shell's own."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.delenv("JAVA_HOME", raising=False)

    def add(name: str, script: str) -> Path:
        path = folder / name
        path.write_text(script, encoding="utf-8")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return folder

    return add


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Callable[[str], ProcessRecord]]:
    """Return a starter of shell scripts in groups of their own."""
    records: list[ProcessRecord] = []

    def start(script: str) -> ProcessRecord:
        log = tmp_path / f"{len(records)}.log"
        records.append(start_process("part", ["sh", "-c", script], folder=tmp_path, log=log, environ=os.environ))
        return records[-1]

    yield start
    for record in records:
        kill_process(record)


def test_without_java_the_message_says_what_to_install(program: Program, tmp_path: Path) -> None:
    said = program(
        tmp_path / "data", "admin", "engines", "up", "kafka", "--dir", str(tmp_path / "run"),
        "--cache", str(tmp_path / "cache"), environ={"PATH": str(tmp_path), "JAVA_HOME": ""},
    )  # fmt: skip
    assert said.status == 5
    assert "no `java` is on PATH; install a Java 17" in said.err


@pytest.mark.parametrize(("engine", "driver"), [(Engine.KAFKA, "kafka"), (Engine.HIVE, "pyhive")])
def test_a_driver_that_is_missing_is_named_before_anything_is_fetched(
    engine: Engine, driver: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_drivers(list(Engine))
    monkeypatch.setitem(sys.modules, driver, None)
    with pytest.raises(Misconfigured, match=rf"{driver} is not installed; install gputide\[{engine.value}\]"):
        check_drivers(list(Engine))
    check_drivers([Engine.FLINK])


def test_without_maven_the_message_says_what_to_install(
    tools: Callable[[str, str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tools("java", JAVA_17)))
    with pytest.raises(Unavailable, match=r"no `mvn` is on PATH; install Maven"):
        jars(tmp_path / "cache", "kafka", tell=print)


def test_a_java_without_a_compiler_is_named_with_the_jar_that_would_do(
    tools: Callable[[str, str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tools("java", JAVA_17)))
    libraries = tmp_path / "jars"
    libraries.mkdir()
    prepare = partial(prepare_flink, tmp_path / "cache", tell=print, home=tmp_path, libraries=libraries)
    with pytest.raises(Misconfigured, match=r"install a JDK 17 .* or put gputide-flink-[0-9a-f]{16}\.jar") as refused:
        prepare()
    found = re.search(r"gputide-flink-\S+\.jar", str(refused.value))
    assert found is not None
    for name in (found[0], "gputide-flink-of-a-former-one.jar"):
        (libraries / name).touch()
    assert prepare().program == libraries / found[0]
    # Java takes a class where it finds it first.
    assert prepare().class_path.split(os.pathsep)[0] == str(libraries / found[0])


@pytest.mark.parametrize("version", ["11.0.2", "24"])
def test_a_java_that_the_engines_do_not_run_on_is_refused_with_its_version(
    version: str, tools: Callable[[str, str], Path]
) -> None:
    tools("java", JAVA_17.replace("17.0.1", version))
    with pytest.raises(Unavailable, match=rf"on Java {version.split('.', maxsplit=1)[0]} "):
        find_java()


def test_a_jar_with_another_checksum_is_refused_and_nothing_is_kept(
    tools: Callable[[str, str], Path], tmp_path: Path
) -> None:
    names = " ".join(read_lock(DATA / "kafka.jars.lock"))
    tools(
        "mvn",
        '#!/bin/sh\nfor word; do case "$word" in -DoutputDirectory=*) to="${word#*=}";; esac; done\n'
        f'mkdir -p "$to"; cd "$to"; for name in {names}; do echo altered > $name; done\n',
    )
    with pytest.raises(Corrupt, match=r"\.jar: its SHA-256 is [0-9a-f]{64}, kafka\.jars\.lock says"):
        jars(tmp_path / "cache", "kafka", tell=print)
    assert [path.suffix for path in (tmp_path / "cache").iterdir()] == [".lock"]


def test_what_maven_said_is_shown_when_it_fails(tools: Callable[[str, str], Path], tmp_path: Path) -> None:
    tools("mvn", "#!/bin/sh\necho the registry is on holiday\nexit 1\n")
    with pytest.raises(Unavailable, match="the registry is on holiday"):
        jars(tmp_path / "cache", "kafka", tell=print)


def test_a_file_that_the_lock_does_not_name_is_refused(tmp_path: Path) -> None:
    lock = tmp_path / "some.lock"
    lock.write_text(f"{'0' * 64}  wanted.jar\n", encoding="utf-8")
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / "foreign.jar").touch()
    with pytest.raises(Corrupt, match=r"missing \['wanted.jar'\], not asked for \['foreign.jar'\]"):
        check_files(tmp_path / "jars", lock)


@pytest.mark.parametrize("engine", ["kafka", "flink", "hive"])
def test_every_version_is_pinned(engine: str) -> None:
    assert read_lock(DATA / f"{engine}.jars.lock")
    root = ElementTree.parse(DATA / f"{engine}.pom.xml").getroot()
    space = {"m": "http://maven.apache.org/POM/4.0.0"}
    properties = {child.tag.rpartition("}")[2]: child.text or "" for child in root.findall("m:properties/*", space)}
    versions = [place.text or "" for place in root.findall("m:dependencies/m:dependency/m:version", space)]
    assert len(versions) == len(root.findall("m:dependencies/m:dependency", space))
    for version in versions:
        exact = re.sub(r"\$\{(.+?)\}", lambda found: properties[found[1]], version)
        assert re.fullmatch(r"\d[\w.-]*", exact), version
        assert "SNAPSHOT" not in exact


def test_every_package_of_flinks_environment_carries_checksums() -> None:
    text = (DATA / "flink.requirements.lock").read_text(encoding="utf-8")
    packages = re.split(r"\n(?=\w)", text)
    assert any(package.startswith("apache-flink==2.2.1 ") for package in packages)
    assert [package for package in packages if "--hash=sha256:" not in package] == []


def test_a_half_filled_entry_is_made_anew(tmp_path: Path) -> None:
    left = tmp_path / f"thing-{key_of(b'1')}"
    left.mkdir()
    (left / "half").touch()
    folder = stocked(tmp_path, "thing", key_of(b"1"), lambda place: (place / "whole").touch(), tell=print)
    assert folder == left
    assert sorted(path.name for path in folder.iterdir()) == ["COMPLETE", "whole"]


def test_an_entry_that_could_not_be_filled_is_absent_and_is_filled_by_the_next(tmp_path: Path) -> None:
    def fail(place: Path) -> None:
        (place / "half").touch()
        raise Unavailable("the registry is on holiday")

    with pytest.raises(Unavailable):
        stocked(tmp_path, "thing", "k", fail, tell=print)
    assert not is_stocked(tmp_path, "thing", "k")
    stocked(tmp_path, "thing", "k", lambda place: (place / "whole").touch(), tell=print)
    assert is_stocked(tmp_path, "thing", "k")


def test_two_processes_at_once_fill_an_entry_once(tmp_path: Path, repository: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from gputide.operate.engine_cache import stocked\n"
        "def fill(place):\n"
        "    with open(sys.argv[1] + '/fills', 'a') as file: file.write('x')\n"
        "    time.sleep(0.3)\n"
        "stocked(Path(sys.argv[1]), 'thing', 'k', fill, tell=print)\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    both = [subprocess.Popen(command, cwd=repository, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = [process.communicate(timeout=60)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert (tmp_path / "fills").read_text() == "x"
    assert is_stocked(tmp_path, "thing", "k")
    assert sum("waiting for another process" in text for text in said) <= 1


def test_keys_tell_where_one_content_ends_and_the_next_begins() -> None:
    assert key_of(b"ab", b"c") != key_of(b"a", b"bc")


def test_a_process_is_stopped_with_its_children(started: Callable[[str], ProcessRecord], tmp_path: Path) -> None:
    record = started(f"sleep 100 & echo $! > {tmp_path}/child; wait")
    child = _number_in(tmp_path / "child")
    assert stop_process(record)
    assert not is_alive(record)
    until(lambda: not _runs(child))


def test_a_process_that_will_not_end_is_made_to(started: Callable[[str], ProcessRecord], tmp_path: Path) -> None:
    record = started(f"trap '' TERM; echo $$ > {tmp_path}/ready; while :; do sleep 0.05; done")
    _number_in(tmp_path / "ready")
    assert stop_process(record, patience_seconds=0.3)
    assert not is_alive(record)


LIVES_ON = """
import ctypes, pathlib, sys, threading, time
def wait():
    while pathlib.Path("/proc/self/stat").read_text().rpartition(")")[2].split()[0] != "Z":
        time.sleep(0.01)
    pathlib.Path(sys.argv[1]).write_text("first thread gone")
    time.sleep(100)
threading.Thread(target=wait).start()
ctypes.CDLL(None).pthread_exit(None)
"""


def test_a_process_whose_first_thread_ended_runs_as_long_as_another_does(
    started: Callable[[str], ProcessRecord], tmp_path: Path
) -> None:
    said = tmp_path / "said"
    record = started(f"exec '{sys.executable}' -c '{LIVES_ON}' {said}")
    until(said.exists)
    assert is_alive(record)
    assert stop_process(record, patience_seconds=0.3)
    assert not is_alive(record)


def test_a_process_that_took_over_the_number_of_ours_is_left_alone(
    started: Callable[[str], ProcessRecord], tmp_path: Path
) -> None:
    theirs = started("sleep 100")
    ours = replace(theirs, started_ticks=theirs.started_ticks - 1)
    run = EngineRun(engine=Engine.KAFKA, ports={"port": 1, "controller_port": 2}, processes={"broker": ours})
    write_register(tmp_path, {Engine.KAFKA: run})
    assert [part.state for part in states(tmp_path)] == ["dead"]
    assert down(tmp_path, [Engine.KAFKA], tell=print) == 0
    assert is_alive(theirs)


def test_a_process_that_ends_before_it_answers_shows_its_log(started: Callable[[str], ProcessRecord]) -> None:
    record = started("echo no moon today; exit 1")
    with pytest.raises(Unavailable, match=r"(?s)it ended by itself.*no moon today"):
        wait_until(lambda: False, record, seconds_max=30)


def test_a_process_that_never_answers_is_given_up_with_its_log(
    started: Callable[[str], ProcessRecord], tmp_path: Path
) -> None:
    record = started(f"echo still thinking; echo $$ > {tmp_path}/ready; sleep 100")
    _number_in(tmp_path / "ready")
    with pytest.raises(Unavailable, match=r"(?s)no answer within 0 s.*still thinking"):
        wait_until(lambda: False, record, seconds_max=0.1)


def test_the_register_gives_back_what_was_written(started: Callable[[str], ProcessRecord], tmp_path: Path) -> None:
    run = EngineRun(
        engine=Engine.HIVE, ports={"metastore_port": 1, "server_port": 2}, processes={"part": started("sleep 9")}
    )
    write_register(tmp_path, {Engine.HIVE: run})
    assert read_register(tmp_path) == {Engine.HIVE: run}


@pytest.mark.parametrize(
    "text",
    [
        "", "[]", '{"version": 2}', '{"version": 1, "engines": [{"engine": "spark"}]}',
        '{"version": 1, "engines": [{"engine": "kafka", "ports": [], "processes": []}]}',
    ],
)  # fmt: skip
def test_a_register_that_is_not_ours_is_refused(text: str, program: Program, tmp_path: Path) -> None:
    (tmp_path / "engines.json").write_text(text, encoding="utf-8")
    said = program(tmp_path / "data", "admin", "engines", "status", "--dir", str(tmp_path))
    assert said.status == 6
    assert "engines.json" in said.err


def test_nothing_runs_where_nothing_was_started(program: Program, tmp_path: Path) -> None:
    said = program(
        tmp_path / "data", "admin", "engines", "status", "kafka", "--dir", str(tmp_path / "none"), "--format", "json"
    )
    assert (said.status, json.loads(said.out)) == (0, [])
    assert "nothing runs" in program(tmp_path / "data", "admin", "engines", "down", "--dir", str(tmp_path / "none")).err


def _number_in(path: Path) -> int:
    until(lambda: path.is_file() and path.read_text().endswith("\n"))
    return int(path.read_text())


def _runs(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except (ProcessLookupError, FileNotFoundError):
        return False
    return state not in "ZX"
