"""The report as PDF, printed by a Chromium that is on the machine. Called by `gputide report --format pdf`."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from fleet.durable import write_durably
from fleet.errors import Misconfigured, Unavailable

CHROMIUM_VARIABLE = "GPUTIDE_CHROMIUM"
"""Names a Chromium that is not on PATH."""
CHROMIUM_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
PRINT_SECONDS_MAX = 120


def write_pdf(html: str, target: Path) -> None:
    """Print a self-contained HTML page into a PDF file, A4, without the browser's own header and footer.

    The page holds no script, and no host name is resolved: it holds everything.

    Raises:
        Misconfigured: no Chromium is there.
        Unavailable: it did not print.
    """
    program = _chromium()
    with tempfile.TemporaryDirectory(prefix="gputide-report-") as folder:
        page, printed = Path(folder) / "report.html", Path(folder) / "report.pdf"
        page.write_text(html, encoding="utf-8")
        command = [
            program,
            "--headless=new",
            "--disable-gpu",
            "--disable-extensions",
            "--no-first-run",
            "--host-resolver-rules=MAP * ~NOTFOUND",
            f"--user-data-dir={folder}/profile",
            "--no-pdf-header-footer",
            f"--print-to-pdf={printed}",
            # Chromium refuses to start its sandbox as root; the page holds no script and no foreign address.
            *(["--no-sandbox"] if os.geteuid() == 0 else []),
            page.as_uri(),
        ]
        try:
            done = subprocess.run(command, capture_output=True, timeout=PRINT_SECONDS_MAX, check=False)
        except (OSError, subprocess.TimeoutExpired) as exc:
            raise Unavailable(f"cannot print the report with {program}: {exc}") from exc
        if done.returncode != 0 or not printed.is_file():
            said = done.stderr.decode(errors="replace").strip().splitlines()[-1:] or ["it said nothing"]
            raise Unavailable(f"cannot print the report with {program}: status {done.returncode}, {said[0]}")
        write_durably(target, printed.read_bytes())


def _chromium() -> str:
    named = os.environ.get(CHROMIUM_VARIABLE)
    if named:
        found = shutil.which(named)
        if found is None:
            raise Misconfigured(f"cannot print the report as PDF: {CHROMIUM_VARIABLE}={named!r} is no program")
        return found
    found = next(filter(None, map(shutil.which, CHROMIUM_NAMES)), None)
    if found is None:
        raise Misconfigured(
            f"cannot print the report as PDF: none of {', '.join(CHROMIUM_NAMES)} is on PATH; install Chromium, name "
            f"one in {CHROMIUM_VARIABLE}, or write --format html and print that"
        )
    return found
