"""A reader at the pages of a running `gputide serve`, with a clock: when a page can be used, what callbacks took.

A page is ready when what it is for is drawn, no callback is in flight and three frames in a row were drawn; the time
is that of the first of these frames, by the browser's own clock from the start of the navigation. Callback times are
the browser's resource timings of `/_dash-update-component` and of `/rows/`, which grids ask. Used by the bars
`web-page-time`, `faces-first-page` and `faces-preview`.
"""

from __future__ import annotations

import re
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote
from urllib.request import urlopen

from playwright.sync_api import Browser, Page, sync_playwright

from bench.measured_run import GPUTIDE

CHROMIUM = Path("/usr/bin/chromium")
PATIENCE_MS = 120_000
START_SECONDS_MAX = 900.0
SEEN_FIRST: dict[str, tuple[str, ...]] = {
    "fleet": ("#card-map path", "#cards-grid .grid-row .grid-cell", "#side header"),
    "workloads": ("#workloads-grid .grid-row .grid-cell",),
    "workload": ("#strips .main-svg", "#week .main-svg"),
    "plan": ("#after path", "#apply-reason:not(:empty)"),
    "savings": ("#funnel",),
    "cost": ("#cost-days .main-svg", ".teams tbody tr"),
    "tenants": (".teams tbody tr",),
    "health": (".page.health",),
}
"""What each page is for: it is not ready before all of these stand there."""
_HOOK = """
window.callbacksInFlight = 0;
const ask = window.fetch;
window.fetch = function (target) {
  const isCallback = /_dash-update-component|[/]rows[/]/.test(String(target && target.url || target));
  if (!isCallback) { return ask.apply(this, arguments); }
  window.callbacksInFlight += 1;
  return ask.apply(this, arguments).finally(() => { window.callbacksInFlight -= 1; });
};
performance.setResourceTimingBufferSize(5000);
"""
LONG_TASKS = """
window.longTasks = [];
new PerformanceObserver((list) => {
  list.getEntries().forEach((task) => window.longTasks.push(task.duration));
}).observe({ entryTypes: ["longtask"] });
"""
"""Keeps how long each task of the main thread took, ms, in `window.longTasks`; none below 50 ms is reported."""
_READY = """
([wanted, patience]) => new Promise((resolve, reject) => {
  setTimeout(() => reject(new Error(`not ready in ${patience} ms: ${wanted}`)), patience);
  let calm = 0, since = 0;
  const isDrawn = (name) => {
    const found = document.querySelector(name);
    if (!found || !found.getClientRects().length) { return false; }
    return !found.matches(".grid-cell") || found.textContent.trim() !== "";  // a row that is on its way is empty
  };
  function look() {
    if (window.callbacksInFlight === 0 && wanted.every(isDrawn)) {
      if (calm === 0) { since = performance.now(); }
      calm += 1;
      if (calm === 3) { resolve(since); return; }
    } else { calm = 0; }
    requestAnimationFrame(look);
  }
  requestAnimationFrame(look);
})
"""
_CALLBACKS = """
() => {
  const isAsked = (item) => /_dash-update-component|[/]rows[/]/.test(item.name);
  const found = performance.getEntriesByType("resource").filter(isAsked);
  const taken = found.map((item) => [item.duration, item.transferSize, item.decodedBodySize]);
  performance.clearResourceTimings();
  return taken;
}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Callback:
    """One callback as the browser saw it.

    Attributes:
        milliseconds: from asking to the last byte.
        wire_bytes: of the answer, headers included.
        body_bytes: of the answer, unpacked.
    """

    milliseconds: float
    wire_bytes: int
    body_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """One look at one page.

    Attributes:
        page: name of the page.
        ready_milliseconds: from the start of the navigation until it can be used.
        callbacks: what it asked for meanwhile.
    """

    page: str
    ready_milliseconds: float
    callbacks: tuple[Callback, ...]


class Served:
    """A running dashboard.

    Attributes:
        address: `http://127.0.0.1:port/`.
        analysed_seconds: from the start of the process to its first answer with figures.
    """

    def __init__(self, process: subprocess.Popen[str], address: str) -> None:
        self.address = address
        self.analysed_seconds = 0.0
        self._process = process

    def memory_bytes(self) -> tuple[int, int]:
        """Resident set now, and the largest so far."""
        text = Path(f"/proc/{self._process.pid}/status").read_text(encoding="ascii")
        now, most = (re.search(rf"{name}:\s+(\d+) kB", text) for name in ("VmRSS", "VmHWM"))
        return (int(now[1]) * 1024 if now else 0), (int(most[1]) * 1024 if most else 0)


@contextmanager
def served(folder: Path) -> Iterator[Served]:
    """Run `gputide serve` on a data folder until the block ends.

    Raises:
        RuntimeError: it ended, or gave no figures in a quarter of an hour.
    """
    started = time.monotonic()
    command = [str(GPUTIDE), "--data-dir", str(folder), "--quiet", "serve", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            line = process.stdout.readline() if process.stdout is not None else ""
            found = re.search(r"http://\S+", line)
            if found is None:
                raise RuntimeError(f"gputide serve did not start: {line!r}")
            # What it says later must not fill the pipe.
            threading.Thread(target=process.stdout.read if process.stdout is not None else str, daemon=True).start()
            server = Served(process, found[0])
            _wait_for_figures(server, started)
            yield server
        finally:
            process.terminate()


def _wait_for_figures(server: Served, started: float) -> None:
    while time.monotonic() - started < START_SECONDS_MAX:
        with urlopen(f"{server.address}api/v1/clusters", timeout=60) as answer:
            cluster = re.search(r'"clusters": \["([^"]+)"', answer.read().decode())
        if cluster is None:
            break
        try:
            with urlopen(f"{server.address}api/v1/clusters/{quote(cluster[1])}/freshness", timeout=600):
                server.analysed_seconds = time.monotonic() - started
                return
        except OSError:
            time.sleep(0.5)
    raise RuntimeError(f"{server.address} gave no figures in {time.monotonic() - started:.0f} s")


@contextmanager
def browser() -> Iterator[Browser]:
    """Chromium without a window."""
    with sync_playwright() as tools:
        path = str(CHROMIUM) if CHROMIUM.exists() else None
        opened = tools.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield opened
        opened.close()


@contextmanager
def reader(opened: Browser) -> Iterator[Page]:
    """A tab of a reader who was here before: files of the release come from the browser's cache."""
    context = opened.new_context(viewport={"width": 1440, "height": 900})
    context.set_default_timeout(PATIENCE_MS)
    context.add_init_script(_HOOK)
    yield context.new_page()
    context.close()


def visit(page: Page, address: str, name: str) -> Visit:
    """Open a page by its address and wait until it can be used.

    Args:
        page: the tab.
        address: address of the page.
        name: key of `SEEN_FIRST`.
    """
    page.goto(address, wait_until="commit")
    ready = page.evaluate(_READY, [list(SEEN_FIRST[name]), PATIENCE_MS])
    return Visit(page=name, ready_milliseconds=float(ready), callbacks=taken(page))


def taken(page: Page) -> tuple[Callback, ...]:
    """Callbacks since this was asked last."""
    found: list[list[Any]] = page.evaluate(_CALLBACKS)
    return tuple(
        Callback(milliseconds=float(took), wire_bytes=int(wire), body_bytes=int(body)) for took, wire, body in found
    )
