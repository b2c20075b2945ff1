"""Which packages of others gputide's run-time brings: read from `uv.lock`, without the developers' tools.

Called by `licences`, `bill_of_materials` and the tests that hold the licence list current.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.markers import Marker
from packaging.utils import parse_wheel_filename

PROJECT = "gputide"
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
MACHINES = ("x86_64", "aarch64")


@dataclass(frozen=True, slots=True, kw_only=True)
class LockedPackage:
    """One package of somebody else that is installed with gputide on Linux.

    Attributes:
        name: normalised as in PEP 503.
        versions: in order; several where Pythons differ.
        extras: gputide's extras that bring it; empty for the core.
    """

    name: str
    versions: tuple[str, ...]
    extras: tuple[str, ...]


def locked_packages(lock: Path) -> tuple[LockedPackage, ...]:
    """Return what the lock file installs with gputide and all its extras, in order of name.

    Markers are judged for Linux on both processors and every Python that is supported.

    Args:
        lock: `uv.lock`; its form is that of uv 0.5 and later ("version = 1").
    """
    packages = _packages(lock)
    (project,) = [package for (name, _), package in packages.items() if name == PROJECT]
    extras_of: dict[tuple[str, str], set[str]] = {}
    roots = [("", project["dependencies"])]
    roots += [(extra, named) for extra, named in project["optional-dependencies"].items() if extra != "all"]
    for extra, dependencies in roots:
        for key in _reached(dependencies, packages):
            extras_of.setdefault(key, set()).add(extra)
    by_name: dict[str, list[tuple[str, str]]] = {}
    for key in extras_of:
        by_name.setdefault(key[0], []).append(key)
    return tuple(
        LockedPackage(
            name=name,
            versions=tuple(sorted(version for _, version in keys)),
            extras=_extras(set().union(*(extras_of[key] for key in keys))),
        )
        for name, keys in sorted(by_name.items())
    )


def closure(lock: Path, names: Iterable[str]) -> frozenset[str]:
    """Names of packages that the core brings, and of all that these need; see `locked_packages`."""
    packages = _packages(lock)
    return frozenset(name for name, _ in _reached([{"name": name} for name in names], packages))


def missing_wheels(lock: Path, machine: str, python: str) -> tuple[str, ...]:
    """Packages that are installed with gputide on Linux and have no wheel for a processor and a Python.

    Args:
        machine: as wheels call it: `x86_64`, `aarch64`.
        python: such as `3.13`.
    """
    shipped, there = {package.name for package in locked_packages(lock)} - {PROJECT}, set()
    for (name, _), package in _packages(lock).items():
        if any(_runs_on(wheel["url"], machine, python) for wheel in package.get("wheels", ())):
            there.add(name)
    return tuple(sorted(shipped - there))


def _runs_on(wheel: str, machine: str, python: str) -> bool:
    """By the tags of its file name (PEP 425, PEP 600)."""
    minor = int(python.partition(".")[2])
    for tag in parse_wheel_filename(wheel.rpartition("/")[2])[3]:
        is_here = tag.platform == "any" or ("manylinux" in tag.platform and tag.platform.endswith(machine))
        is_old = tag.abi == "abi3" and tag.interpreter in {f"cp3{older}" for older in range(minor + 1)}
        if is_here and (tag.interpreter in ("py3", f"cp3{minor}") or is_old):
            return True
    return False


def _packages(lock: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """Every package of the lock by name and version."""
    return {
        (package["name"], package["version"]): package
        for package in tomllib.loads(lock.read_text(encoding="utf-8"))["package"]
    }


def _extras(found: set[str]) -> tuple[str, ...]:
    """What the core brings, every extra has anyway."""
    return () if "" in found else tuple(sorted(found))


def _reached(
    dependencies: Iterable[dict[str, Any]], packages: dict[tuple[str, str], dict[str, Any]]
) -> Iterator[tuple[str, str]]:
    """Walk from some dependencies to all that they need, extras of theirs included."""
    seen: set[tuple[str, str, str]] = set()
    waiting = list(dependencies)
    while waiting:
        wanted = waiting.pop()
        if wanted["name"] == PROJECT or not _applies(wanted.get("marker")):
            continue
        for key, package in packages.items():
            if key[0] != wanted["name"] or wanted.get("version", key[1]) != key[1]:
                continue
            for extra in ("", *wanted.get("extra", ())):
                if (*key, extra) in seen:
                    continue
                seen.add((*key, extra))
                yield key
                waiting += (
                    package.get("optional-dependencies", {}).get(extra, ())
                    if extra
                    else package.get("dependencies", ())
                )


def _applies(marker: str | None) -> bool:
    return marker is None or any(Marker(marker).evaluate(one) for one in _environments())


def _environments() -> Iterator[dict[str, str]]:
    for python in PYTHONS:
        for machine in MACHINES:
            yield {
                "sys_platform": "linux",
                "platform_system": "Linux",
                "os_name": "posix",
                "platform_machine": machine,
                "python_version": python,
                "python_full_version": f"{python}.0",
                "platform_python_implementation": "CPython",
                "implementation_name": "cpython",
            }
