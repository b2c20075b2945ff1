"""One page per test; whatever it asks of the outside world, or complains about, fails the test."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

PATIENCE_MS = 60_000
"""How long a page may take to show something, on a machine that others load too."""


@pytest.fixture
def page(browser: "Browser") -> Iterator["Page"]:
    from playwright.sync_api import expect  # noqa: PLC0415 - only who runs the browser tier has it loaded

    context = browser.new_context(viewport={"width": 1440, "height": 900})
    opened = context.new_page()
    opened.set_default_timeout(PATIENCE_MS)
    expect.set_options(timeout=PATIENCE_MS)
    foreign: list[str] = []
    faults: list[str] = []
    opened.on("request", lambda request: None if _is_local(request.url) else foreign.append(request.url))
    opened.on("pageerror", lambda error: faults.append(str(error)))
    opened.on("console", lambda line: faults.append(line.text) if line.type == "error" else None)
    yield opened
    context.close()
    assert foreign == []
    assert faults == []


def _is_local(url: str) -> bool:
    return url.startswith(("http://127.0.0.1:", "data:", "blob:"))
