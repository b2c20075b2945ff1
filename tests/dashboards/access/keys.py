"""A file of rights for tests, and the app behind it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

from flask.testing import FlaskClient

from dashboards.access.roster import Roster
from dashboards.access.sessions import Sessions
from dashboards.access.sign_in import Ways
from dashboards.app import create_app
from dashboards.queries import Views

HOST = {"Host": "127.0.0.1:8050"}


def a_right(role: str, *, token: str = "", person: str = "", group: str = "", more: Iterable[str] = ()) -> str:
    """One table of the file; the text of a token is its name three times."""
    known = (
        f'token = "{token}"\ntoken_sha256 = "{hashlib.sha256(text_of(token).encode()).hexdigest()}"'
        if token
        else f'person = "{person}"'
        if person
        else f'group = "{group}"'
    )
    return "\n".join(("[[right]]", known, f'role = "{role}"', *more, ""))


def text_of(token: str) -> str:
    """What the holder of a token of this name sends."""
    return token * 3


def a_roster(folder: Path, *rights: str) -> Roster:
    """The file, written and read."""
    path = folder / "rights.toml"
    path.write_text("\n".join(rights), encoding="utf-8")
    return Roster(path)


def some_sessions(clock: Iterable[float] | None = None) -> Sessions:
    """Sessions of ten idle seconds and a hundred in all."""
    ticks = iter(clock) if clock is not None else None
    return Sessions(
        idle_seconds_max=10.0, seconds_max=100.0, clock=(lambda: 0.0) if ticks is None else lambda: next(ticks)
    )


def an_app(views: Views, ways: Ways) -> FlaskClient:
    """The app, asked without a browser."""
    client: FlaskClient = create_app(views, ways=ways).server.test_client()
    return client


def bearer(token: str) -> dict[str, str]:
    """Headers of a program that holds a token."""
    return {**HOST, "Authorization": f"Bearer {text_of(token)}"}
