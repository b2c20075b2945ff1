"""What every test may ask for: recorded traces, a Chromium, and a world without the developer's own settings."""

import atexit
import gc
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from playwright.sync_api import Browser

REPOSITORY = Path(__file__).resolve().parents[1]
TRACES = Path(os.environ.get("GPUTIDE_TRACES") or REPOSITORY.parent / "shared" / "traces")
CHROMIUM = os.environ.get("GPUTIDE_CHROMIUM")
CHROMIUM_NAMES = ("chromium", "chromium-browser", "google-chrome")

# `quick` gives the same examples on every run: a red test is red again. `search` looks for new ones, by the thousand.
settings.register_profile("quick", derandomize=True, deadline=None, max_examples=60, database=None)
settings.register_profile(
    "search", deadline=None, max_examples=2000, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Keep what was imported and collected out of the garbage collector's way.

    It holds some million objects for as long as the process lives; going through them took half of the time that
    collection takes, and some of every test that makes many objects.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()
        atexit.register(gc.unfreeze)  # libraries complain of what is left when the process ends


@pytest.fixture(scope="session")
def repository() -> Path:
    """Return the root of the work tree."""
    return REPOSITORY


@pytest.fixture(scope="session")
def shared_traces() -> Path:
    """Return the folder of recorded traces, `../shared/traces` or `GPUTIDE_TRACES`; skip where it is absent."""
    if not TRACES.is_dir():
        pytest.skip("no recorded traces: ../shared/traces is absent; GPUTIDE_TRACES names another folder")
    return TRACES


@pytest.fixture(scope="session")
def browser(chromium: str) -> Iterator["Browser"]:
    """Start one headless Chromium for the session; each test opens its own `browser.new_context()`."""
    from playwright.sync_api import sync_playwright  # noqa: PLC0415 - the quick tier need not load it

    sandbox = [] if os.geteuid() else ["--no-sandbox"]  # Chromium refuses its sandbox to root
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(
            executable_path=chromium, args=[*sandbox, "--disable-dev-shm-usage"], headless=True
        )
        yield started
        started.close()


@pytest.fixture(scope="session")
def chromium() -> str:
    """Return the path of a Chromium: `GPUTIDE_CHROMIUM`, or the machine's own; skip where there is none."""
    path = CHROMIUM or next(filter(None, map(shutil.which, CHROMIUM_NAMES)), None)
    if path is None:
        pytest.skip("no Chromium on PATH; GPUTIDE_CHROMIUM names another")
    return path


@pytest.fixture(scope="session", autouse=True)
def _no_settings_from_outside() -> Iterator[None]:
    """Hide the developer's `GPUTIDE_…` variables: a test says itself what is set."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("GPUTIDE_")]:
            patch.delenv(name)
        yield
