"""A replay with a receiver of its own and to one that runs: what settings and senders it minds."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from exporter.synthetic.writer import write_synthetic_fleet


@pytest.fixture(scope="module")
def small_trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trace") / "fleet"
    write_synthetic_fleet(folder, cards=40, days=2)
    return folder


def test_a_replay_needs_no_token_for_its_own_receiver(program: Any, small_trace: Path, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text(f"sha256:{hashlib.sha256(b'secret').hexdigest()} edge\n")
    done = program(tmp_path / "data", "--set", f"receiver.tokens_file={tokens}", "admin", "replay", str(small_trace))
    assert done.status == 0, done.err
    assert "rows in the warehouse" in done.out


def test_a_receiver_that_is_not_there_is_named(program: Any, small_trace: Path, tmp_path: Path) -> None:
    done = program(tmp_path / "data", "admin", "replay", str(small_trace), "--to", "http://127.0.0.1:9/api/v1/write")
    assert done.status == 5
    assert "cannot send to the receiver" in done.err


@pytest.mark.parametrize("url", ["127.0.0.1:9009", "ftp://host/x", "http:///api"])
def test_what_is_no_address_is_wrong_use(program: Any, small_trace: Path, tmp_path: Path, url: str) -> None:
    done = program(tmp_path / "data", "admin", "replay", str(small_trace), "--to", url)
    assert done.status == 2
    assert "cannot use --to=" in done.err
    assert "expected http://HOST:PORT" in done.err
