"""The area installation: packages that the settings need, the backend, and every file that a setting names.

Until when the certificates of a PEM file hold; the standard library reads them and does not report.

Only the way to the validity is walked, through the outer three levels of DER.

Source: RFC 5280, sections 4.1 and 4.1.2.5 (Certificate, Validity); X.690, sections 8.1.3 and 10.1 (lengths).
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path

from pydantic import BaseModel

from fleet.capabilities.register import CAPABILITIES, EXPERIMENTAL_SETTING, capabilities_of
from fleet.sentences import Sentence, sentence
from fleet.settings.pipeline import BusKind, WarehouseKind
from fleet.settings.settings import Settings
from gputide.doctor.finding import Area, Check, Diagnosis, a_check, finding, otherwise, well
from wire.tls import der_of

EXPIRES_DAYS = 21
_FILE_BYTES_MAX = 1 << 20
_SECRET_WORDS = ("password", "secret", "token", "key_file", "url_file", "headers_file")
_NO_SECRETS = ("ca_file", "certificate", "library", "rights_file")


def installation_checks(settings: Settings) -> tuple[Check, ...]:
    """What is looked at of this machine's installation."""
    area, of_files = Area.INSTALLATION, "file-unreadable secret-open certificate-expires"
    return (
        a_check(area, "packages", lambda: _packages(settings), "extra-missing"),
        a_check(area, "backend", lambda: _backend(settings), "backend-unknown backend-experimental"),
        a_check(area, "files", lambda: _files(settings, datetime.now(UTC)), of_files),
    )


def _packages(settings: Settings) -> Iterator[Diagnosis]:
    needed: dict[str, tuple[str, Sentence | str]] = {"dash": ("dashboards", sentence("doctor.found.web_app"))}
    if settings.bus.kind is BusKind.KAFKA:
        needed["kafka"] = ("kafka", "bus.kind=kafka")
    if settings.warehouse.kind is WarehouseKind.HIVE:
        needed["pyhive"] = ("hive", "warehouse.kind=hive")
    missing = {module: words for module, words in needed.items() if find_spec(module) is None}
    for module, (extra, purpose) in missing.items():
        text = sentence("doctor.found.purpose", module=module, purpose=purpose)
        yield finding("extra-missing", text, subject=extra, extra=extra)
    yield otherwise(f"Python {sys.version.split()[0]}, {', '.join(needed)}")


def _backend(settings: Settings) -> Iterator[Diagnosis]:
    backend, known = settings.enforcer.backend, sorted(record.backend for record in CAPABILITIES)
    if backend in known and capabilities_of(backend).is_experimental:
        is_allowed = settings.enforcer.experimental
        setting = f"{EXPERIMENTAL_SETTING}={'true' if is_allowed else 'false'}"
        text = sentence("doctor.found.double_only", backend=backend, setting=setting)
        yield finding("backend-experimental", text, subject=backend, backend=backend)
    elif backend in known:
        yield well(backend)
    else:
        text = sentence("doctor.found.backends", backend=backend, names=", ".join(known))
        yield finding("backend-unknown", text, subject=backend, backend=known[0])


def _files(settings: Settings, now: datetime) -> Iterator[Diagnosis]:
    files = dict(named_files(settings))
    for setting, path in files.items():
        yield from _file(setting, path, now)
    yield otherwise(sentence("doctor.found.files_fine", files=len(files)))


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
        yield finding("file-unreadable", f"{path}: {why}", subject=setting, file=str(path))
        return
    is_secret = any(word in setting for word in _SECRET_WORDS) and not setting.endswith(_NO_SECRETS)
    if is_secret and stat.S_ISREG(mode) and mode & (stat.S_IROTH | stat.S_IWOTH):
        found = sentence("doctor.found.mode", path=str(path), mode=f"{stat.S_IMODE(mode):o}")
        yield finding("secret-open", found, subject=setting, file=str(path))
    end = latest_end(text) if setting.endswith("ca_file") else earliest_end(text)
    if end is not None and (end - now).days < EXPIRES_DAYS:
        found = sentence("doctor.found.holds_until", path=str(path), moment=f"{end:%Y-%m-%d %H:%M}")
        yield finding("certificate-expires", found, subject=setting, file=str(path))


_SEQUENCE, _VERSION, _UTC_TIME, _GENERALIZED_TIME = 0x30, 0xA0, 0x17, 0x18
_BEGIN, _END = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
_CERTIFICATES_MAX = 1000


def earliest_end(pem: str) -> datetime | None:
    """When the first of the certificates ends, UTC; None where there is none, or none that can be read.

    Args:
        pem: text of the file; keys and comments are passed over.
    """
    return min(_ends(pem), default=None)


def latest_end(pem: str) -> datetime | None:
    """When the last of them ends, as `earliest_end`: of many authorities one that ended keeps nobody out."""
    return max(_ends(pem), default=None)


def _ends(pem: str) -> list[datetime]:
    ends = []
    for part in pem.split(_BEGIN)[1:_CERTIFICATES_MAX]:
        body, sign, _ = part.partition(_END)
        if not sign:
            continue
        try:
            ends.append(_end_of(der_of(_BEGIN + body + _END)))
        except (ValueError, IndexError):
            continue
    return ends


def _end_of(der: bytes) -> datetime:
    """`notAfter` of a certificate.

    Raises:
        ValueError: it is none.
        IndexError: it is cut.
    """
    whole, _ = _content(der, 0, _SEQUENCE)
    signed, _ = _content(whole, 0, _SEQUENCE)
    at = _content(signed, 0, _VERSION)[1] if signed[0] == _VERSION else 0
    for _ in range(3):  # serial number, algorithm, issuer
        at = _content(signed, at, signed[at])[1]
    validity, _ = _content(signed, at, _SEQUENCE)
    at = _content(validity, 0, validity[0])[1]
    text = _content(validity, at, validity[at])[0].decode("ascii")
    if validity[at] == _UTC_TIME:
        # RFC 5280: years from 50 on are of the last century.
        text = ("19" if int(text[:2]) >= 50 else "20") + text
    elif validity[at] != _GENERALIZED_TIME:
        raise ValueError("the validity holds no time")
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)


def _content(data: bytes, at: int, tag: int) -> tuple[bytes, int]:
    """What stands in an element, and where the next one begins."""
    if data[at] != tag:
        raise ValueError(f"expected tag {tag:#x}, found {data[at]:#x}")
    length, start = data[at + 1], at + 2
    if length & 0x80:
        size = length & 0x7F
        length, start = int.from_bytes(data[start : start + size], "big"), start + size
    if start + length > len(data):
        raise IndexError("an element ends beyond its data")
    return data[start : start + length], start + length
