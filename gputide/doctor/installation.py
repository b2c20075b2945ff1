"""The area installation: packages that the settings need, the backend, and every file that a setting names."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path

from pydantic import BaseModel

from fleet.capabilities.register import CAPABILITIES, capabilities_of
from fleet.settings.pipeline import BusKind, WarehouseKind
from fleet.settings.settings import Settings
from gputide.doctor.catalogue import kind_of
from gputide.doctor.certificate_dates import earliest_end, latest_end
from gputide.doctor.finding import Area, Check, Diagnosis, finding, well

EXPIRES_DAYS = 21
_FILE_BYTES_MAX = 1 << 20
_SECRET_WORDS = ("password", "secret", "token", "key_file", "url_file", "headers_file")
_NO_SECRETS = ("ca_file", "certificate", "library", "rights_file")


def installation_checks(settings: Settings) -> tuple[Check, ...]:
    """What is looked at of this machine's installation."""
    area = Area.INSTALLATION
    return (
        Check(area=area, name="packages", look=lambda: _packages(settings), codes=("extra-missing",)),
        Check(
            area=area,
            name="backend",
            look=lambda: _backend(settings),
            codes=("backend-unknown", "backend-experimental"),
        ),
        Check(
            area=area,
            name="files",
            look=lambda: _files(settings, datetime.now(UTC)),
            codes=("file-unreadable", "secret-open", "certificate-expires"),
        ),
    )


def _packages(settings: Settings) -> Iterator[Diagnosis]:
    needed = {"dash": ("dashboards", "the web app")}
    if settings.bus.kind is BusKind.KAFKA:
        needed["kafka"] = ("kafka", "bus.kind=kafka")
    if settings.warehouse.kind is WarehouseKind.HIVE:
        needed["pyhive"] = ("hive", "warehouse.kind=hive")
    missing = {module: words for module, words in needed.items() if find_spec(module) is None}
    for module, (extra, purpose) in missing.items():
        text = f"{module} is not installed: {purpose} does not work"
        yield finding(kind_of("extra-missing"), "packages", text, subject=extra, extra=extra)
    if not missing:
        yield well(Area.INSTALLATION, "packages", f"Python {sys.version.split()[0]}, {', '.join(needed)}")


def _backend(settings: Settings) -> Iterator[Diagnosis]:
    backend, known = settings.enforcer.backend, sorted(record.backend for record in CAPABILITIES)
    if backend in known and capabilities_of(backend).is_experimental:
        text = f"enforcer.backend={backend}: tried against a double of ours only"
        yield finding(kind_of("backend-experimental"), "backend", text, subject=backend, backend=backend)
    elif backend in known:
        yield well(Area.INSTALLATION, "backend", backend)
    else:
        text = f"enforcer.backend={backend}; there are {', '.join(known)}"
        yield finding(kind_of("backend-unknown"), "backend", text, subject=backend, backend=known[0])


def _files(settings: Settings, now: datetime) -> Iterator[Diagnosis]:
    files = dict(named_files(settings))
    is_well = True
    for setting, path in files.items():
        for diagnosis in _file(setting, path, now):
            is_well = False
            yield diagnosis
    if is_well:
        yield well(Area.INSTALLATION, "files", f"{len(files)} files that settings name can be read")


def named_files(section: BaseModel, prefix: str = "") -> Iterator[tuple[str, Path]]:
    """Every file that settings name, by dotted name; folders and what programs make themselves are left out."""
    for name in type(section).model_fields:
        value = getattr(section, name)
        dotted = f"{prefix}{name}"
        if isinstance(value, BaseModel):
            yield from named_files(value, f"{dotted}.")
        elif isinstance(value, Mapping):
            for key, item in value.items():
                if isinstance(item, BaseModel):
                    yield from named_files(item, f"{dotted}.{key}.")
        elif isinstance(value, Path) and (name.endswith("_file") or name in ("kubeconfig", "measured_pairs")):
            yield dotted, value


def _file(setting: str, path: Path, now: datetime) -> Iterator[Diagnosis]:
    """What is wrong with a file; its content is told to nobody."""
    try:
        with path.expanduser().open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            text = file.read(_FILE_BYTES_MAX).decode("utf-8", "replace")
    except (OSError, RuntimeError) as exc:
        why = exc.strerror if isinstance(exc, OSError) and exc.strerror else str(exc)
        yield finding(kind_of("file-unreadable"), "files", f"{path}: {why}", subject=setting, file=str(path))
        return
    is_secret = any(word in setting for word in _SECRET_WORDS) and not setting.endswith(_NO_SECRETS)
    if is_secret and stat.S_ISREG(mode) and mode & (stat.S_IROTH | stat.S_IWOTH):
        found = f"{path} has mode {stat.S_IMODE(mode):o}"
        yield finding(kind_of("secret-open"), "files", found, subject=setting, file=str(path))
    end = latest_end(text) if setting.endswith("ca_file") else earliest_end(text)
    if end is not None and (end - now).days < EXPIRES_DAYS:
        found = f"{path} holds until {end:%Y-%m-%d %H:%M} UTC"
        yield finding(kind_of("certificate-expires"), "files", found, subject=setting, file=str(path))
