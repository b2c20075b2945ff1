"""Results of probes in the data folder, and the capabilities of the backend as those results correct them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

from fleet.capabilities.capability import Capabilities
from fleet.capabilities.register import capabilities_of
from fleet.data_folder import DataFolder
from fleet.durable import write_durably
from fleet.errors import Corrupt, Misconfigured, Refused
from fleet.probe_results import DOCUMENT_BYTES_MAX, ProbeResult, as_measured, parse_probe, probe_text
from fleet.settings.settings import Settings
from fleet.units import format_time

_SAFE = frozenset("abcdefghijklmnopqrstuvwxyz0123456789-._")


def read_key(settings: Settings) -> bytes:
    """The key that results are signed by.

    Raises:
        Misconfigured: there is none, or it can't be read.
    """
    path = settings.probe.key_file
    if path is None:
        raise Misconfigured(
            "cannot sign or check a probe's result: probe.key_file=none; name a file of 32 bytes or more"
        )
    try:
        return path.read_bytes().strip()
    except OSError as exc:
        raise Misconfigured(f"cannot read probe.key_file={path}: {exc.strerror}") from exc


def read_result(path: Path, key: bytes) -> ProbeResult:
    """A result from a file.

    Raises:
        Misconfigured: there is no such file.
        Corrupt: it can't be read.
        Refused: its signature does not fit.
    """
    try:
        if path.stat().st_size > DOCUMENT_BYTES_MAX:
            raise Corrupt(f"cannot read {path}: larger than {DOCUMENT_BYTES_MAX} bytes")
        text = path.read_text(encoding="utf-8")
    except OSError as exc:
        raise Misconfigured(f"cannot read {path}: {exc.strerror}") from exc
    except UnicodeDecodeError as exc:
        raise Corrupt(f"cannot read {path}: no text") from exc
    return parse_probe(text, key)


def keep_result(folder: DataFolder, result: ProbeResult, key: bytes) -> Path:
    """Keep a result; it replaces an earlier one of the same node and backend.

    Raises:
        Refused: the one that is kept is newer, or its signature does not fit.
        Corrupt: the one that is kept can't be read.
    """
    folder.probes.mkdir(parents=True, exist_ok=True)
    name = "".join(letter if letter in _SAFE else "_" for letter in f"{result.node}-{result.backend}".lower())
    path = folder.probes / f"{name}.json"
    kept = read_result(path, key) if path.exists() else None
    if kept is not None and kept.measured_at > result.measured_at:
        raise Refused(
            f"cannot keep the result of node {result.node} of {format_time(result.measured_at)}: one of "
            f"{format_time(kept.measured_at)} is kept; remove {path} to go back to the older one"
        )
    write_durably(path, probe_text(result, key).encode())
    return path


def kept_results(folder: DataFolder, key: bytes) -> tuple[ProbeResult, ...]:
    """All results that are kept, by node and backend.

    Raises:
        Corrupt: one can't be read.
        Refused: one was changed since, or the key is another one now.
    """
    if not folder.probes.is_dir():
        return ()
    return tuple(read_result(path, key) for path in sorted(folder.probes.glob("*.json")))


def measured_capability(
    folder: DataFolder, settings: Settings, now: datetime, *, is_own: bool, version: str | None = None
) -> Capabilities:
    """What the backend of the settings enforces: the register's record, as far as probes confirm it.

    Args:
        settings: all settings. Without `probe.key_file` no result counts; older than `probe.result_seconds` none allows
            anything.
        is_own: whether it is asked for the enforcer's cluster; for another one no result allows anything.
        version: tag of the backend's version; None for the newest that is known.

    Raises:
        Misconfigured: no such backend, or the key can't be read.
        Corrupt: a result can't be read.
        Refused: a result was changed.
    """
    record = capabilities_of(settings.enforcer.backend, version)
    if settings.probe.key_file is None:
        return record
    since = now - timedelta(seconds=settings.probe.result_seconds) if is_own else datetime.max.replace(tzinfo=UTC)
    return as_measured(record, kept_results(folder, read_key(settings)), spills_since=since)
