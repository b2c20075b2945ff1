"""What shows an edit by somebody who may write all of the data folder: key and anchor; what a power cut leaves."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from enforcer.record.anchor import AnchorFile, Head
from enforcer.record.ledger import GENESIS, Ledger, chained_hash, ledger_at
from fleet.data_folder import DataFolder, open_data_folder
from fleet.errors import Corrupt, Refused
from fleet.logs import set_up_logs
from tests.enforcer.builders import NOW

KEY = b"k" * 32


def write(ledger: Ledger, count: int) -> None:
    for number in range(count):
        ledger.append([("begin", {"by": "ann", "stages": [number], "cards_granted": []})], plan_id=f"p{number}", at=NOW)


def made_anew(path: Path, edit: Callable[[list[dict[str, object]]], list[dict[str, object]]]) -> None:
    """Edit entries, chain them again, and let the head name the last: what anybody can who may write the folder."""
    entries = edit([json.loads(line) for line in path.read_bytes().splitlines()])
    sha256, lines = GENESIS, []
    for number, entry in enumerate(entries, start=1):
        body = {**{key: value for key, value in entry.items() if key not in ("sha256", "mark")}, "number": number}
        sha256 = chained_hash(sha256, body)
        mark = {"mark": entry["mark"]} if "mark" in entry else {}
        lines.append(json.dumps({**body, "sha256": sha256, **mark}) + "\n")
    path.write_text("".join(lines))
    path.with_name(path.name + ".head").write_text(json.dumps({"number": len(entries), "sha256": sha256}))


def renamed(entries: list[dict[str, object]]) -> list[dict[str, object]]:
    entries[1] = {**entries[1], "content": {"by": "bob", "stages": [1], "cards_granted": []}}
    return entries


@pytest.fixture
def folder(tmp_path: Path) -> DataFolder:
    made = open_data_folder(tmp_path / "data", create=True)
    return DataFolder(path=made.path, anchor_file=tmp_path / "elsewhere" / "anchors.json")


@pytest.mark.parametrize("head", [b"", b"{", b"[]", b'{"number": "x"}', b"\x00" * 40, None])
def test_torn_head_is_made_again_from_the_chain_and_that_is_said(
    tmp_path: Path, head: bytes | None, capsys: pytest.CaptureFixture[str]
) -> None:
    set_up_logs()
    path = tmp_path / "l"
    write(Ledger(path), 3)
    head_path = path.with_name("l.head")
    whole = head_path.read_bytes()
    head_path.unlink() if head is None else head_path.write_bytes(head)
    ledger = Ledger(path)
    assert len(ledger.entries()) == 3
    assert "is made again from the chain" in capsys.readouterr().err
    assert json.loads(head_path.read_bytes()) == json.loads(whole)
    write(ledger, 1)
    assert Ledger(path).verify() == 4


def test_chain_that_was_made_anew_is_found_by_the_key(tmp_path: Path) -> None:
    path = tmp_path / "l"
    write(Ledger(path, key=KEY), 4)
    assert Ledger(path, key=KEY).verify() == 4
    made_anew(path, renamed)
    assert Ledger(path).verify() == 4
    with pytest.raises(Corrupt, match="entry 2 was not written with the key"):
        Ledger(path, key=KEY).verify()
    with pytest.raises(Corrupt, match="entry 1 was not written with the key"):
        Ledger(path, key=b"z" * 32).verify()


def test_ledger_in_the_place_of_another_is_found_by_the_key(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write(Ledger(tmp_path / name, key=KEY), 2)
    shutil.copy(tmp_path / "one", tmp_path / "two")
    shutil.copy(tmp_path / "one.head", tmp_path / "two.head")
    with pytest.raises(Corrupt, match="entry 1 was not written with the key"):
        Ledger(tmp_path / "two", key=KEY).verify()


def test_entries_of_before_the_key_are_counted_and_none_may_follow_one_with_it(tmp_path: Path) -> None:
    path = tmp_path / "l"
    write(Ledger(path), 2)
    keyed = Ledger(path, key=KEY)
    write(keyed, 2)
    again = Ledger(path, key=KEY)
    assert (again.verify(), again.unmarked) == (4, 2)
    write(Ledger(path), 1)
    with pytest.raises(Corrupt, match="entry 5 was not written with the key"):
        Ledger(path, key=KEY).verify()


def cut_with_head_deleted(path: Path) -> None:
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-2]))
    path.with_name(path.name + ".head").unlink()


def both_deleted(path: Path) -> None:
    path.unlink()
    path.with_name(path.name + ".head").unlink()


@pytest.mark.parametrize(
    ("tamper", "why"),
    [
        (cut_with_head_deleted, "it ends with entry 3, but entry 5 is anchored"),
        (both_deleted, "it ends with entry 0, but entry 5 is anchored"),
        (lambda path: made_anew(path, renamed), "entry 5 is not the one that is anchored"),
        (lambda path: made_anew(path, lambda entries: [*entries[:3], entries[4]]), "entry 5 is anchored"),
    ],
    ids=["cut", "deleted", "renamed", "one removed"],
)
def test_what_the_folder_alone_does_not_show_the_anchor_does(
    folder: DataFolder, tamper: Callable[[Path], None], why: str
) -> None:
    write(ledger_at(folder, folder.ledger), 5)
    tamper(folder.ledger)
    Ledger(folder.ledger).verify()
    ledger = ledger_at(folder, folder.ledger)
    for _ in range(2):
        with pytest.raises(Corrupt, match=why):
            ledger.entries()
    with pytest.raises(Corrupt, match=why):
        write(ledger_at(folder, folder.ledger), 1)


def test_folder_put_back_from_a_copy_is_found(folder: DataFolder, tmp_path: Path) -> None:
    write(ledger_at(folder, folder.ledger), 2)
    shutil.copytree(folder.path, tmp_path / "copy")
    write(ledger_at(folder, folder.ledger), 1)
    shutil.rmtree(folder.path)
    shutil.copytree(tmp_path / "copy", folder.path)
    with pytest.raises(Corrupt, match="it ends with entry 2, but entry 3 is anchored"):
        ledger_at(folder, folder.ledger).verify()


def test_head_is_anchored_only_from_one_that_is_not_behind(tmp_path: Path) -> None:
    anchor = AnchorFile(tmp_path / "anchors.json", "folder")
    none, one, two = (Head(number=number, sha256=str(number) * 64) for number in range(3))
    anchor.move("l", none, one)
    anchor.move("l", one, two)
    with pytest.raises(Refused, match="the head there is another one"):
        anchor.move("l", one, Head(number=2, sha256="f" * 64))
    with pytest.raises(Refused, match="the head there is another one"):
        anchor.move("l", Head(number=2, sha256="f" * 64), Head(number=3, sha256="f" * 64))
    assert anchor.heads() == {"l": two}
    assert AnchorFile(tmp_path / "anchors.json", "other").heads() == {}
    anchor.accept({"l": one})
    assert anchor.heads() == {"l": one}


def test_fault_of_the_anchor_stops_no_entry(folder: DataFolder) -> None:
    ledger = ledger_at(folder, folder.ledger)
    write(ledger, 1)
    assert folder.anchor_file is not None
    folder.anchor_file.write_text("[]")
    write(ledger, 1)
    assert Ledger(folder.ledger).verify() == 2


@pytest.mark.parametrize(
    "line",
    [
        b'{"number":1}', b"[]", b"null", b'{"number":1,"sha256":null}', b'{"number":1e400,"sha256":"x"}',
        b'{"number":1,"at":"\\ud800","sha256":"x"}', b"[" * 100_000, b"\xff\xfe",
    ],
)  # fmt: skip
def test_damaged_line_is_corrupt_and_nothing_else(tmp_path: Path, line: bytes) -> None:
    (tmp_path / "l").write_bytes(line + b"\n")
    with pytest.raises(Corrupt):
        Ledger(tmp_path / "l").entries()


@pytest.mark.parametrize("missing", ["at", "event", "plan_id", "content"])
def test_chained_entry_that_lacks_a_part_is_corrupt(tmp_path: Path, missing: str) -> None:
    path = tmp_path / "l"
    write(Ledger(path), 1)
    made_anew(path, lambda entries: [{key: value for key, value in entries[0].items() if key != missing}])
    with pytest.raises(Corrupt, match="entry 1 is damaged"):
        Ledger(path).entries()
