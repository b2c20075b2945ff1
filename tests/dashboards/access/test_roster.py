"""The file of rights: read, read again, and refused with the entry that is wrong."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

from dashboards.access.people import Role
from dashboards.access.roster import Roster
from fleet.errors import Misconfigured
from tests.dashboards.access.keys import a_right, a_roster, text_of


def test_rights_of_person_and_groups_add_up(tmp_path: Path) -> None:
    roster = a_roster(
        tmp_path,
        a_right("viewer", group="gpu"),
        a_right("operator", person="mei", more=['clusters = ["prod"]', 'namespaces = ["ads"]']),
        a_right("admin", group="root"),
    )
    mei = roster.person("mei", {"gpu"})
    assert [right.role for right in mei.rights] == [Role.VIEWER, Role.OPERATOR]
    assert mei.rights[1].namespaces == frozenset({"ads"})
    assert roster.person("bo", ()).rights == ()


def test_token_is_known_by_its_text_alone(tmp_path: Path) -> None:
    roster = a_roster(tmp_path, a_right("viewer", token="ci"))
    holder = roster.holder(text_of("ci"))
    assert holder is not None
    assert holder.name == "ci"
    assert roster.holder("ci") is None
    assert roster.holder("") is None
    assert roster.holder("\ud800") is None
    assert roster.of_token(holder).highest_role is Role.VIEWER
    # A person of the same name is somebody else.
    assert roster.person("ci", ()).rights == ()


def test_right_that_is_taken_out_of_the_file_ends_at_once(tmp_path: Path) -> None:
    roster = a_roster(tmp_path, a_right("viewer", token="ci"))
    path = tmp_path / "rights.toml"
    path.write_text("", encoding="utf-8")
    os.utime(path, ns=(1, 1))
    assert roster.holder(text_of("ci")) is None
    path.unlink()
    with pytest.raises(Misconfigured, match=r"dashboard\.rights_file"):
        roster.holder(text_of("ci"))


def test_two_tokens_of_one_name_do_not_share_rights(tmp_path: Path) -> None:
    other = a_right("admin", token="other").replace('token = "other"', 'token = "ci"')
    roster = a_roster(tmp_path, a_right("viewer", token="ci"), other)
    weak, strong = roster.holder(text_of("ci")), roster.holder(text_of("other"))
    assert weak is not None
    assert strong is not None
    assert roster.of_token(weak).highest_role is Role.VIEWER
    assert roster.of_token(strong).highest_role is Role.ADMIN


def test_right_expires(tmp_path: Path) -> None:
    path = tmp_path / "rights.toml"
    path.write_text(a_right("viewer", person="mei", more=["expires = 2026-01-02T00:00:00Z"]), encoding="utf-8")
    moment = [datetime(2026, 1, 1, 23, 59, tzinfo=UTC)]
    roster = Roster(path, now=lambda: moment[0])
    assert roster.person("mei", ()).rights
    moment[0] = datetime(2026, 1, 2, tzinfo=UTC)
    assert not roster.person("mei", ()).rights


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("right = 3", "right"),
        ('[[right]]\nperson = "mei"\nrole = "boss"', r"right\.0\.role"),
        ('[[right]]\nrole = "viewer"', "exactly one of person, group and token"),
        ('[[right]]\nperson = "a"\ngroup = "b"\nrole = "viewer"', "exactly one"),
        ('[[right]]\ntoken = "a"\nrole = "viewer"', "belong together"),
        ('[[right]]\ntoken = "a"\ntoken_sha256 = "ABC"\nrole = "viewer"', "token_sha256"),
        ('[[right]]\nperson = "a"\nrole = "viewer"\nnamespaces = []', r"namespaces"),
        ('[[right]]\nperson = "a"\nrole = "viewer"\nexpires = 2026-01-01T00:00:00', "time zone"),
        ('[[right]]\nperson = "a"\nrole = "viewer"\nadmin = true', "admin"),
        ("[[right", "rights_file"),
    ],
)
def test_wrong_file_is_refused_with_the_entry(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(Misconfigured, match=words):
        a_roster(tmp_path, text)


def test_token_in_the_place_of_its_digest_is_in_no_message(tmp_path: Path) -> None:
    with pytest.raises(Misconfigured) as caught:
        a_roster(tmp_path, '[[right]]\ntoken = "ci"\ntoken_sha256 = "hunter2"\nrole = "boss"')
    assert "right.0.role='boss': expected 'viewer', 'approver', 'operator' or 'admin'" in str(caught.value)
    assert "hunter2" not in str(caught.value)
