"""People sign in: a token is typed, a right is missing, a session ends, the server restarts in the middle."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.browser.conftest import PATIENCE_MS
from tests.dashboards.access.keys import a_right, a_roster, text_of
from tests.dashboards.embedded import CLUSTER, EmbeddedCluster, make_views

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.browser


class House:
    """A server, and a clock for its sessions."""

    def __init__(self, folder: Path, port: int = 0) -> None:
        self.now = 0.0
        self.views, self.cluster = make_views(with_past=False)
        self.roster = a_roster(
            folder,
            a_right("viewer", token="team", more=['namespaces = ["team-3"]']),
            a_right("operator", token="boss"),
        )
        from dashboards.access.sessions import Sessions  # noqa: PLC0415
        from dashboards.access.sign_in import Ways  # noqa: PLC0415 - the quick tier need not load them
        from dashboards.app import create_app, open_server  # noqa: PLC0415

        sessions = Sessions(idle_seconds_max=60.0, seconds_max=600.0, clock=lambda: self.now)
        app = create_app(self.views, ways=Ways(roster=self.roster, sessions=sessions))
        self._server = open_server(app, host="127.0.0.1", port=port)
        self.port = int(self._server.address.rstrip("/").rpartition(":")[2])
        threading.Thread(target=self._server.run, daemon=True).start()

    def stop(self) -> None:
        self._server.close()

    def at(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}{path}"


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    found = House(tmp_path)
    yield found
    found.stop()


@pytest.fixture
def visitor(browser: Browser) -> Iterator[Page]:
    """Return a page that may be told 401: the browser notes that as an error."""
    from playwright.sync_api import expect  # noqa: PLC0415

    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    page.set_default_timeout(PATIENCE_MS)
    expect.set_options(timeout=PATIENCE_MS)
    yield page
    context.close()


def sign_in(page: Page, token: str) -> None:
    page.get_by_label("Access token").fill(text_of(token))
    page.get_by_role("button", name="Sign in").click()


def test_operator_signs_in_approves_in_their_own_name_and_signs_out(visitor: Page, house: House) -> None:
    from playwright.sync_api import expect  # noqa: PLC0415

    visitor.goto(house.at("/plan"))
    visitor.get_by_label("Access token").fill("wrong")
    visitor.get_by_role("button", name="Sign in").click()
    expect(visitor.get_by_role("alert")).to_contain_text("not known")
    sign_in(visitor, "boss")
    expect(visitor).to_have_url(house.at("/plan"))
    visitor.get_by_role("button", name="Approve 5 stages").click()
    expect(visitor.locator("#plan-message")).to_contain_text("Approved by boss")
    assert entry_of(house.cluster).approved_by == ("boss",)
    visitor.locator("#reader summary").click()
    visitor.get_by_role("button", name="Sign out").click()
    expect(visitor.locator("body")).to_contain_text("You are signed out")
    visitor.goto(house.at("/"))
    expect(visitor.get_by_label("Access token")).to_be_visible()


def test_reader_of_one_team_sees_it_alone_and_buttons_say_why_they_are_shut(visitor: Page, house: House) -> None:
    from playwright.sync_api import expect  # noqa: PLC0415

    visitor.goto(house.at("/tenants"))
    sign_in(visitor, "team")
    expect(visitor.locator(".teams tbody tr")).to_have_count(1)
    expect(visitor.locator(".teams")).to_contain_text("team-3")
    visitor.get_by_role("link", name="Plan", exact=True).click()
    expect(visitor.locator("#approve")).to_be_disabled()
    expect(visitor.locator("#apply")).to_be_disabled()
    expect(visitor.locator("#apply-reason")).to_contain_text("takes the role approver")
    visitor.get_by_role("link", name="Savings", exact=True).click()
    expect(visitor.get_by_role("alert")).to_contain_text("This is not for you to see")
    visitor.goto(house.at("/plan"))
    expect(visitor.locator("#after path").first).to_be_visible()
    others = {
        profile.workload.split("/", 2)[2]
        for profile in house.views.fleet.profiles(CLUSTER).workloads
        if profile.namespace != "team-3"
    }
    assert not others & set(visitor.content().replace("<", " ").replace(">", " ").replace("/", " ").split())


def test_session_that_ends_is_begun_anew_at_the_same_place(visitor: Page, house: House) -> None:
    came_back(visitor, house, lambda: setattr(house, "now", house.now + 61.0))


def test_server_that_restarts_in_the_middle_asks_to_sign_in_again(visitor: Page, tmp_path: Path) -> None:
    program = Program(tmp_path)
    try:
        came_back(visitor, program, program.restart)
    finally:
        program.stop()


class Program:
    """The server in a process of its own, which can be killed."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._port = folder, 0
        self._start()

    def at(self, path: str) -> str:
        return f"http://127.0.0.1:{self._port}{path}"

    def restart(self) -> None:
        self.stop()
        self._start()

    def stop(self) -> None:
        self._process.kill()
        self._process.join()

    def _start(self) -> None:
        spawn = multiprocessing.get_context("spawn")
        here, there = spawn.Pipe()
        self._process = spawn.Process(target=serve, args=(self._folder, self._port, there), daemon=True)
        self._process.start()
        assert here.poll(PATIENCE_MS / 1000)
        self._port = here.recv()


def serve(folder: Path, port: int, pipe: Connection) -> None:
    """What the process runs: the house until it is killed; it tells its port."""
    house = House(folder, port)
    pipe.send(house.port)
    threading.Event().wait()


def came_back(page: Page, house: House | Program, ends: Callable[[], None]) -> None:
    """Sign in, lose the session by something, click on, sign in again, and be where one was."""
    from playwright.sync_api import expect  # noqa: PLC0415

    page.goto(house.at("/tenants"))
    sign_in(page, "boss")
    expect(page.locator(".teams tbody tr").first).to_be_visible()
    ends()
    page.get_by_role("link", name="Health", exact=True).click()
    expect(page.get_by_label("Access token")).to_be_visible()
    sign_in(page, "boss")
    expect(page).to_have_url(house.at("/health"))
    expect(page.locator(".page.health")).to_be_visible()


def entry_of(cluster: EmbeddedCluster) -> Any:
    return cluster.plans(CLUSTER)[0]
