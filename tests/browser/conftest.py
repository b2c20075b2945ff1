"""One page per test; whatever it asks of the outside world, or complains about, fails the test."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import pytest

from dashboards.queries import Views

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

PATIENCE_MS = 60_000
"""How long a page may take to show something, on a machine that others load too."""


@contextmanager
def served(views: Views) -> Iterator[str]:
    """The pages over some views, and their address."""
    # The quick tier need not load them.
    from dashboards.access.sign_in import Ways  # noqa: PLC0415
    from dashboards.app import create_app, open_server  # noqa: PLC0415

    server = open_server(create_app(views, ways=Ways(operator="mei")), host="127.0.0.1", port=0)
    threading.Thread(target=server.run, daemon=True).start()
    yield server.address
    server.close()


@pytest.fixture
def servers() -> Iterator[ExitStack]:
    """Servers that outlive the page: one that still asks for something when the test is over is not at fault."""
    with ExitStack() as found:
        yield found


@pytest.fixture
def page(browser: "Browser", servers: ExitStack) -> Iterator["Page"]:
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
