"""The site of the documentation, read from a folder without a server."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.browser

HEIGHT_PX_MAX = 25_000


@pytest.fixture(scope="module")
def site(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site as `make docs` does, elsewhere."""
    folder = tmp_path_factory.mktemp("site")
    command = (str(Path(sys.executable).with_name("mkdocs")), "build", "--quiet", "--site-dir", str(folder))
    subprocess.run(command, cwd=repository, check=True, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"})
    return folder


@pytest.mark.parametrize(
    ("opened", "words", "found"),
    [
        ("index.html", "series_max", "settings/receiver.html#receiverseries_max"),
        ("index.html", "secret-open", "doctor/installation.html#secret-open"),
        ("zh/index.html", "接收器", "zh/receiver.html"),
        ("zh/index.html", "空闲", "zh/advice.html"),
    ],
)
def test_search_finds_a_word_from_a_folder(browser: Browser, site: Path, opened: str, words: str, found: str) -> None:
    with browser.new_context(viewport={"width": 1440, "height": 900}) as context:
        page = context.new_page()
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.goto((site / opened).as_uri())
        page.get_by_role("textbox").click()
        page.wait_for_function("/Type|键入/.test(document.querySelector('.md-search-result__meta').textContent)")
        page.keyboard.type(words)
        page.keyboard.press("End")  # Chinese comes without a key of its own
        page.locator(f".md-search-result__link[href*='/{found}']").first.wait_for(state="attached")
        assert [address for address in asked if not address.startswith("file:")] == []


def test_no_page_of_reference_is_endless(browser: Browser, site: Path) -> None:
    heights = {}
    with browser.new_context(viewport={"width": 1440, "height": 900}) as context:
        page = context.new_page()
        for path in (*site.glob("settings/*.html"), *site.glob("metrics/*.html"), *site.glob("doctor/*.html")):
            page.goto(path.as_uri())
            heights[path.relative_to(site).as_posix()] = page.evaluate("document.body.scrollHeight")
    assert len(heights) > 40
    assert {name: height for name, height in heights.items() if height > HEIGHT_PX_MAX} == {}
