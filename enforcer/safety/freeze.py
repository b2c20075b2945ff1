"""The big red switch on this machine: while a freeze file lies in the data folder, nothing is applied or undone.

`apply --freeze` and the web page set and lift it; the guard looks for it before every batch. In the cluster a ConfigMap
does the same (see `guard`).
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from fleet.errors import Corrupt
from fleet.units import format_time


def freeze(path: Path, *, by: str, at: datetime) -> None:
    """Stop every change from now on.

    Raises:
        Corrupt: storage can't take the file.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{by} at {format_time(at)}\n", encoding="utf-8")
    except OSError as exc:
        raise Corrupt(f"cannot freeze by {path}: {exc.strerror}") from exc


def lift(path: Path) -> None:
    """Allow changes again; does nothing where none was forbidden.

    Raises:
        Corrupt: storage keeps the file.
    """
    try:
        path.unlink(missing_ok=True)
    except OSError as exc:
        raise Corrupt(f"cannot lift the freeze of {path}: {exc.strerror}") from exc


def frozen_by(path: Path) -> str | None:
    """Who froze this machine and when; None where nobody did. A file that can't be read freezes too."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip() or "somebody"
    except FileNotFoundError:
        return None
    except OSError:
        return "somebody"
