"""The pages for everybody: by keyboard and by ear, in light and dark, in English and Chinese, and as files."""

from __future__ import annotations

import csv
import io
import json
import re
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import openpyxl
import pytest

from fleet.inventory import WorkloadId
from fleet.profiles import Profiles
from fleet.words import Language, Words
from tests.browser.conftest import PATIENCE_MS
from tests.dashboards.embedded import CLUSTER, HOSTILE, EmbeddedFleet, make_profiles, make_views
from tests.waiting import until

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.browser

RIGHT_TO_LEFT = "\u202eשלום-مرحبا"
LONG = "n" * 253
WIDTHS_PX = (1280, 1920)
PATHS = ("/", "/workloads", "/plan", "/savings", "/cost", "/tenants", "/health", "/clusters", "/nowhere")
SAME_IN_BOTH = {
    "gputide", "GPU", "Pod", "SM", "MIG", "UTC", "API", "CSV", "JSON", "PNG", "GiB", "GPM", "English", "CNY", "USD",
    "PUE", "mei", "ResourceQuota", "kueue", "hami", "nvidia", "com", "gpu", "gpumem", "requests", "memory", "research",
    "doctor", "cost", "Prometheus", "MiB", "ALT", "DOWN", "ENTER", "CTRL", "Excel",
}  # fmt: skip
"""Names, units, keys of the keyboard and words of the cluster's own language, which are the same in Chinese."""

_TEXTS = """() => {
  const found = [];
  const muted = "code, pre, script, style, noscript, [lang=en], .uuid, .xtick text, .textpoint text";
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const node = walk.currentNode;
    if (node.parentElement && !node.parentElement.closest(muted)) { found.push(node.textContent); }
  }
  document.querySelectorAll("[title], [aria-label], [placeholder]").forEach((part) => {
    if (part.closest("[lang=en]")) { return; }
    ["title", "aria-label", "placeholder"].forEach((name) => found.push(part.getAttribute(name) || ""));
  });
  return found;
}"""
_WORD = re.compile(r"[A-Za-z]{2,}")


class House:
    """A server whose tenants chose names to break what shows them."""

    def __init__(self) -> None:
        # The quick tier need not load them.
        from dashboards.access.sign_in import Ways  # noqa: PLC0415
        from dashboards.app import create_app, open_server  # noqa: PLC0415

        views, self.cluster = make_views()
        self.profiles = with_hard_names(make_profiles())
        views = replace(views, fleet=EmbeddedFleet(self.profiles))
        self.server = open_server(create_app(views, ways=Ways(operator="mei")), host="127.0.0.1", port=0)
        threading.Thread(target=self.server.run, daemon=True).start()

    def at(self, path: str) -> str:
        return self.server.address.rstrip("/") + path

    def names(self) -> set[str]:
        """Everything on the pages that somebody else named."""
        cards, workloads = self.profiles.cards, self.profiles.workloads
        found = {str(value) for card in cards for value in (card.card, card.card_model, card.node)}
        found |= {part for profile in workloads for part in (*profile.workload.split("/"), profile.time_zone)}
        for entry in self.cluster.plans(CLUSTER):
            found |= {entry.plan.plan_id, entry.plan.short_id, *entry.approved_by}
            knows = Words(language=Language.EN).knows
            found |= {
                item.reason.replace("_", " ") for item in entry.plan.refused if not knows(f"reason.{item.reason}")
            }
            found |= {point.label for point in entry.plan.frontier}
        found |= {entry.actor for entry in self.cluster.ledger(CLUSTER)}
        return found | {CLUSTER, HOSTILE, "/nowhere"}


def with_hard_names(profiles: Profiles) -> Profiles:
    """The fleet with a name that runs from right to left, and one as long as Kubernetes takes."""
    first, second, *others = profiles.workloads
    named = {
        first.workload: WorkloadId(f"{first.namespace}/Deployment/{RIGHT_TO_LEFT}"),
        second.workload: WorkloadId(f"{second.namespace}/Deployment/{LONG}"),
    }
    cards = tuple(
        replace(card, workloads=tuple(named.get(name, name) for name in card.workloads)) for card in profiles.cards
    )
    renamed = (replace(first, workload=named[first.workload]), replace(second, workload=named[second.workload]))
    return replace(profiles, workloads=(*renamed, *others), cards=cards)


@pytest.fixture(scope="module")
def house() -> Iterator[House]:
    found = House()
    yield found
    found.server.close()


@pytest.fixture
def page(browser: Browser, tmp_path: Path) -> Iterator[Page]:
    from playwright.sync_api import expect  # noqa: PLC0415

    context = browser.new_context(
        viewport={"width": WIDTHS_PX[0], "height": 900}, reduced_motion="reduce", locale="en-GB"
    )
    page = context.new_page()
    page.set_default_timeout(PATIENCE_MS)
    expect.set_options(timeout=PATIENCE_MS)
    yield page
    context.close()


def opened(page: Page, address: str) -> None:
    page.goto(address)
    page.locator("#page > .page, #page > .missing").wait_for()
    page.wait_for_load_state("networkidle")


def faults(page: Page) -> list[str]:
    """What axe finds serious or critical on the page as it stands."""
    from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]  # noqa: PLC0415

    found = Axe().run(page).response["violations"]
    return [
        f"{item['id']}: {item['nodes'][0]['html'][:200]}" for item in found if item["impact"] in ("serious", "critical")
    ]


@pytest.mark.parametrize("language", ["en", "zh"])
def test_every_page_is_whole_for_eye_ear_and_language(page: Page, house: House, language: str) -> None:
    found: dict[str, Any] = {}
    detail = f"/workloads?w={house.profiles.workloads[-1].workload}"
    for path in (*PATHS, detail, *(f"{page_path}?card={house.profiles.cards[0].card}" for page_path in ("/", "/card"))):
        opened(page, house.at(path + ("&" if "?" in path else "?") + f"lang={language}"))
        assert page.locator("html").get_attribute("lang") == language
        # What colour spoils shows in English as well as in Chinese.
        for scheme in ("light", "dark") if language == "en" else ("dark",):
            page.emulate_media(color_scheme=scheme)
            found[f"{path} {scheme}"] = faults(page)
        if language == "zh":
            found[f"{path} words"] = english_in(page, house.names())
    assert {place: what for place, what in found.items() if what} == {}


@pytest.mark.parametrize("language", ["en", "zh"])
def test_page_of_a_node_and_what_a_switch_would_do_are_whole_too(page: Page, house: House, language: str) -> None:
    from playwright.sync_api import expect  # noqa: PLC0415

    opened(page, house.at(f"/node?node={house.profiles.cards[0].node}&lang={language}"))
    page.locator(".field input").last.fill("2")
    page.locator(".modes button").last.click()
    expect(page.locator("#switch-answer tbody tr")).to_have_count(2)
    found: dict[str, list[str]] = {}
    for is_dark, width in ((False, 390), (True, 1440)):
        page.emulate_media(color_scheme="dark" if is_dark else "light")
        page.set_viewport_size({"width": width, "height": 844})
        found[str(width)] = faults(page)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    if language == "zh":
        given = {"whole", "mig", "web", "train", "one-at-a-time", "cache", "models", "w" * 63, "gb", "Node"}
        found["words"] = english_in(page, house.names() | given)
    assert {place: what for place, what in found.items() if what} == {}


def english_in(page: Page, names: set[str]) -> list[str]:
    """English words that a Chinese page still shows or tells, beside names, units and code."""
    text = "\n".join(page.evaluate(_TEXTS))
    for name in sorted(names, key=len, reverse=True):
        text = text.replace(name, "")
    text = re.sub(r"\b[\w.]+[_/][\w./-]+", "", text)  # names of counters and annotations
    return sorted({word for word in _WORD.findall(text) if word not in SAME_IN_BOTH})


def test_the_choice_of_a_language_is_kept_and_its_link_is_on_every_page(page: Page, house: House) -> None:
    from playwright.sync_api import expect  # noqa: PLC0415

    opened(page, house.at("/tenants"))
    page.get_by_role("link", name="中文").click()
    expect(page.get_by_role("link", name="方案", exact=True)).to_be_visible()
    page.get_by_role("link", name="方案", exact=True).click()
    expect(page.locator("#approve")).to_contain_text("批准")
    opened(page, house.at("/plan"))
    expect(page.locator("h1")).to_contain_text("方案")
    page.get_by_role("link", name="English").click()
    expect(page.locator("h1")).to_contain_text("Plan")
    opened(page, house.at("/?lang=en"))
    page.locator("#cards-grid .grid-row [data-col=node]").first.click()
    expect(page.locator("#side .uuid")).to_contain_text("GPU-")
    page.get_by_role("link", name="中文").click()
    expect(page.locator("#side .uuid")).to_contain_text("GPU-")


def test_way_back_takes_a_choice_of_stages_back(page: Page, house: House) -> None:
    from playwright.sync_api import expect  # noqa: PLC0415

    opened(page, house.at("/plan"))
    boxes = page.locator(".tick input")
    boxes.last.uncheck()
    page.wait_for_url("**/plan?stages=*")
    page.go_back()
    expect(boxes.last).to_be_checked()


def test_keyboard_skips_to_the_page_opens_a_menu_and_a_card(page: Page, house: House) -> None:
    from playwright.sync_api import expect  # noqa: PLC0415

    opened(page, house.at("/"))
    page.keyboard.press("Tab")
    expect(page.locator(".skip")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("#page")).to_be_focused()
    page.locator("#cluster summary").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#cluster .drop a").first).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("#cluster .drop a").first).to_be_hidden()
    expect(page.locator("#cluster summary")).to_be_focused()
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"
    page.locator("#cards-grid .grid-row [data-col=card]").first.focus()
    page.keyboard.press("Enter")
    expect(page.locator("#side .uuid")).to_contain_text("GPU-")
    page.locator("#cards-grid .grid-row [data-col=node]").first.focus()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.closest('.grid-row')") is None


def test_tables_and_figures_are_taken_along_as_files(page: Page, house: House) -> None:
    opened(page, house.at("/tenants"))
    rows = list(csv.reader(io.StringIO(saved(page, "quotas", "csv").decode("utf-8-sig"))))
    assert len(rows) > 3
    assert any(cell.startswith("'=cmd|") for row in rows for cell in row)
    assert not any(cell.startswith(("=", "@", "+")) for row in rows for cell in row)
    table = json.loads(saved(page, "teams", "json"))["tables"][0]
    teams = {profile.namespace for profile in house.profiles.workloads}
    assert {row["team"] for row in table} == teams | {"granted to nobody", "total"}
    opened(page, house.at("/plan"))
    frontier = list(csv.reader(io.StringIO(saved(page, "frontier", "csv").decode("utf-8-sig"))))
    stages = list(csv.reader(io.StringIO(saved(page, "stages", "csv").decode("utf-8-sig"))))
    assert [row[0] for row in stages] == [f"stage {number}" for number in range(1, len(stages) + 1)]
    assert frontier[0] == ["series", "x", "y", "value", "text"]
    assert len(frontier) > 3
    picture = saved(page, "after", "png")
    assert picture.startswith(b"\x89PNG\r\n\x1a\n")
    assert len(picture) > 5_000
    opened(page, house.at("/"))
    with page.expect_download() as download:
        page.locator("#cards-json").click()
    cards = json.loads(Path(download.value.path()).read_bytes())
    assert {card["card"] for card in cards} == {card.card for card in house.profiles.cards}


def test_grid_is_saved_as_excel_and_copied_for_a_spreadsheet(page: Page, house: House) -> None:
    opened(page, house.at("/"))
    with page.expect_download() as download:
        page.locator("#cards-xlsx").click()
    sheet = openpyxl.load_workbook(io.BytesIO(Path(download.value.path()).read_bytes())).active
    assert {row[0].value for row in sheet.iter_rows(min_row=2)} == {card.card for card in house.profiles.cards}
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.locator("#cards-copy").focus()
    page.keyboard.press("Enter")
    until(lambda: page.evaluate("navigator.clipboard.readText()") != "")
    copied = list(csv.reader(page.evaluate("navigator.clipboard.readText()").splitlines(), delimiter="\t"))
    assert copied[0][:2] == ["card", "node"]
    assert len(copied) == len(house.profiles.cards) + 1


def saved(page: Page, name: str, kind: str) -> bytes:
    """What the browser saves of a sheet."""
    button = page.locator(f"[data-name={name}][data-export={kind}]")
    menu = page.locator("details.exports").filter(has=button)
    menu.locator("summary").click()
    with page.expect_download() as download:
        button.click()
    assert download.value.suggested_filename == f"{name}.{kind}"
    return Path(download.value.path()).read_bytes()


def test_hard_names_push_nothing_off_the_page(page: Page, house: House) -> None:
    wide = []
    for name in (LONG, RIGHT_TO_LEFT):
        workload = next(item.workload for item in house.profiles.workloads if item.workload.endswith(name))
        for path in (
            f"/workloads?w={workload}",
            f"/cost?workload={workload}&by=node",
            "/cost?by=workload",
            "/workloads",
            "/tenants",
            "/health",
            "/plan",
        ):
            opened(page, house.at(path))
            if page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth"):
                wide.append(path[:40])
    assert wide == []
