"""Measured pairs of workloads from a CSV file, which the setting `recommender.measured_pairs` names."""

from __future__ import annotations

import csv
from pathlib import Path

from fleet.errors import Misconfigured
from fleet.settings.settings import Settings
from recommender.harm.interference import SPEED_RATIO_MAX, Interference, MeasuredPair, Subject, learn_interference

BYTES_MAX = 64 * 2**20
_NEEDED = ("victim", "aggressor", "speed_ratio")
_RATIOS = ("duty_cycle_ratio", "memory_active_ratio")
_KNOWN = frozenset(
    {
        *_NEEDED,
        *(f"{side}_{name}" for side in ("victim", "aggressor") for name in ("variant", *_RATIOS, "framebuffer_bytes")),
    }
)


def load_interference(settings: Settings) -> Interference | None:
    """What measured pairs teach; None where the settings name none."""
    path = settings.recommender.measured_pairs
    return None if path is None else learn_interference(read_measured_pairs(path))


def read_measured_pairs(path: Path) -> tuple[MeasuredPair, ...]:
    """Reads measured pairs; returns one record per row, in the file's order.

    Args:
        path: CSV in UTF-8 with a header: `victim`, `aggressor` (families, as in the label `gputide.io/family` or a
            workload's name), `speed_ratio` (the victim's speed beside the aggressor / alone), and if known for both
            sides `…_variant`, `…_duty_cycle_ratio`, `…_memory_active_ratio` (0-1) and `…_framebuffer_bytes` alone.

    Raises:
        Misconfigured: not to be read, or a column or value is wrong, with its line.
    """
    setting = f"recommender.measured_pairs={path}"
    try:
        if path.stat().st_size > BYTES_MAX:
            raise Misconfigured(f"cannot read {setting}: larger than {BYTES_MAX} bytes")
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, strict=True)
            _check_header(reader.fieldnames or (), setting)
            return tuple(_pair(row, f"{setting}, line {reader.line_num}") for row in reader)
    except (OSError, UnicodeDecodeError, csv.Error) as exc:
        raise Misconfigured(f"cannot read {setting}: {exc}") from exc


def _check_header(names: object, setting: str) -> None:
    found = list(names) if isinstance(names, (list, tuple)) else []
    missing = [name for name in _NEEDED if name not in found]
    unknown = [name for name in found if name not in _KNOWN]
    if missing or unknown:
        raise Misconfigured(
            f"cannot read {setting}: "
            + (f"no column {missing[0]!r}" if missing else f"unknown column {unknown[0][:64]!r}")
            + f"; columns are {', '.join(sorted(_KNOWN))}"
        )


def _pair(row: dict[str, str], place: str) -> MeasuredPair:
    speed = _number(row, "speed_ratio", SPEED_RATIO_MAX, place)
    if speed is None:
        raise Misconfigured(f"cannot read {place}: speed_ratio is empty")
    return MeasuredPair(
        victim=_subject(row, "victim", place), aggressor=_subject(row, "aggressor", place), speed_ratio=speed
    )


def _subject(row: dict[str, str], side: str, place: str) -> Subject:
    family = (row.get(side) or "").strip()
    if not family:
        raise Misconfigured(f"cannot read {place}: {side} is empty")
    return Subject(
        family=family,
        variant=(row.get(f"{side}_variant") or "").strip(),
        duty_cycle_ratio=_number(row, f"{side}_duty_cycle_ratio", 1.0, place),
        memory_active_ratio=_number(row, f"{side}_memory_active_ratio", 1.0, place),
        framebuffer_bytes=_number(row, f"{side}_framebuffer_bytes", float(2**44), place),
    )


def _number(row: dict[str, str], name: str, most: float, place: str) -> float | None:
    text = (row.get(name) or "").strip()
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0.0 <= value <= most:
        raise Misconfigured(f"cannot read {place}: {name}={text[:64]!r} is no number from 0 to {most:g}")
    return value
