"""What each engine is made of, fetched once into the cache and checked against the locks of the repository.

`engines_data` holds, per engine, a Maven file that resolves to jars and the lock that names every one of them with its
SHA-256; for Flink also the lock of its Python environment. Called by the engines' own modules.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path

from fleet.errors import Corrupt
from gputide.operate.engine_cache import is_stocked, key_of, stocked
from gputide.operate.engine_tools import Tell, find_flink_python, find_maven, run_tool

DATA = Path(__file__).with_name("engines_data")
_COPY_JARS = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"


def jars(cache: Path, engine: str, *, tell: Tell) -> Path:
    """Folder with an engine's jars, exactly those of the lock.

    Args:
        engine: `kafka`, `flink` or `hive`.

    Raises:
        Unavailable: Maven is missing, or the registry could not be reached.
        Corrupt: a file differs from the lock, is missing or was not asked for.
    """
    pom, lock = DATA / f"{engine}.pom.xml", DATA / f"{engine}.jars.lock"

    def fill(folder: Path) -> None:
        maven = find_maven()
        tell(f"fetching the jars of {engine} ({len(read_lock(lock))} files)")
        command = [maven, "-B", "-q", "-ntp", "-f", str(pom), _COPY_JARS]
        command += [f"-DoutputDirectory={folder / 'jars'}", "-DincludeScope=runtime"]
        run_tool(command, purpose=f"fetch the jars of {engine}")
        check_files(folder / "jars", lock)

    return stocked(cache, f"{engine}-jars", _jars_key(engine), fill, tell=tell) / "jars"


def flink_environment(cache: Path, *, tell: Tell) -> Path:
    """Flink's own Python environment: its pandas, pyarrow and protobuf can't live beside ours.

    Returns:
        The environment's folder, with `bin/python`.

    Raises:
        Unavailable: no fitting Python, or the package index could not be reached.
    """
    lock = DATA / "flink.requirements.lock"
    python, key = _flink_python()

    def fill(folder: Path) -> None:
        tell("setting up Flink's Python environment (700 MB)")
        purpose = "set up Flink's Python environment"
        # The scripts in it know their own path, so it is made where it stays.
        run_tool([python, "-m", "venv", "--without-pip", str(folder / "venv")], purpose=purpose)
        own = str(folder / "venv" / "bin" / "python")
        environ = {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
        if uv := find_uv(environ):
            install = [uv, "pip", "install", "-q", "--python", own]
        else:
            run_tool([own, "-m", "ensurepip"], purpose=purpose, environ=environ)
            install = [own, "-m", "pip", "install", "-q"]
        run_tool([*install, "--require-hashes", "-r", str(lock)], purpose=purpose, environ=environ)

    return stocked(cache, "flink-python", key, fill, tell=tell) / "venv"


def has_flink(cache: Path) -> bool:
    """Whether Flink's environment and jars are in the cache.

    Raises:
        Unavailable: no Python that Flink could have been set up with.
    """
    return is_stocked(cache, "flink-python", _flink_python()[1]) and is_stocked(cache, "flink-jars", _jars_key("flink"))


def hive_schema_scripts(cache: Path, *, tell: Tell) -> Path:
    """Folder that Hive's schema tool takes for its home: the SQL that makes the metastore's tables, and no more.

    Raises:
        Unavailable, Corrupt: as `jars`.
    """
    libraries = jars(cache, "hive", tell=tell)
    (archive,) = libraries.glob("hive-standalone-metastore-server-*.tar.gz")

    def fill(folder: Path) -> None:
        with tarfile.open(archive) as opened:
            for member in opened:
                place = member.name.partition("/")[2]
                if member.isfile() and place.startswith("scripts/metastore/upgrade/derby/"):
                    source = opened.extractfile(member)
                    if source is None:
                        raise Corrupt(f"cannot read {member.name} of {archive}")
                    target = folder / "scripts" / "metastore" / "upgrade" / "derby" / Path(place).name
                    target.parent.mkdir(parents=True, exist_ok=True)
                    with source, target.open("wb") as written:
                        shutil.copyfileobj(source, written)

    return stocked(cache, "hive-schema", key_of(libraries.parent.name.encode()), fill, tell=tell)


def read_lock(lock: Path) -> dict[str, str]:
    """Names and SHA-256 of a lock: lines as `sha256sum` writes them.

    Raises:
        Corrupt: a line is not of that form.
    """
    wanted: dict[str, str] = {}
    for line in lock.read_text(encoding="utf-8").splitlines():
        digest, gap, name = line.partition("  ")
        if len(digest) != 64 or not gap or not name or "/" in name:
            raise Corrupt(f"cannot read {lock}: {line!r} is not `SHA256  NAME`")
        wanted[name] = digest
    return wanted


def check_files(folder: Path, lock: Path) -> None:
    """Hold the files of a folder against a lock.

    Raises:
        Corrupt: a file is missing, is not in the lock, or has another checksum; the message names it.
    """
    wanted = read_lock(lock)
    found = {path.name: path for path in folder.iterdir()}
    if found.keys() != wanted.keys():
        missing, foreign = sorted(wanted.keys() - found.keys()), sorted(found.keys() - wanted.keys())
        raise Corrupt(
            f"cannot use what was fetched for {lock.name}: missing {missing[:5]}, not asked for {foreign[:5]}"
        )
    for name, path in found.items():
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if digest != wanted[name]:
            raise Corrupt(
                f"cannot use {name}: its SHA-256 is {digest}, {lock.name} says {wanted[name]}; the registry, or what "
                "lies between it and here, gave another file than the one that was tested"
            )


def _jars_key(engine: str) -> str:
    return key_of(*((DATA / f"{engine}.{kind}").read_bytes() for kind in ("pom.xml", "jars.lock")))


def _flink_python() -> tuple[str, str]:
    """The Python that Flink's environment is made with, and the key of that environment."""
    python = find_flink_python()
    version = run_tool([python, "-c", "import sys; print(sys.version)"], purpose="ask Python for its version")
    lock = (DATA / "flink.requirements.lock").read_bytes()
    return python, key_of(lock, version.encode(), python.encode())


def find_uv(environ: Mapping[str, str]) -> str | None:
    """Path of uv, which installs in seconds what takes pip minutes; None where there is none."""
    beside = Path(sys.executable).with_name("uv")
    return shutil.which("uv", path=environ.get("PATH", "")) or (str(beside) if beside.is_file() else None)
