"""Every parser ends in a value or an error of the house: a few mutations each, and all that once went wrong."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fleet.errors import Corrupt
from tests.fuzz.mutations import Mutations
from tests.fuzz.parser_list import all_parsers
from tests.fuzz.parsers import Parser
from tests.fuzz.parsers_cluster import remove_scratch
from tests.fuzz.run_parsers import shares_of

CORPUS = Path(__file__).parent / "corpus"
CASES = 8_000
"""Cases of all parsers together; a second or two. `make fuzz` takes a million."""
CASE_SECONDS_MAX = 2.0
KEPT = sorted(CORPUS.glob("*/*"))


@pytest.fixture(scope="module", autouse=True)
def scratch() -> Iterator[None]:
    all_parsers.cache_clear()
    yield
    remove_scratch()
    all_parsers.cache_clear()


def test_good_inputs_are_read() -> None:
    for parser in all_parsers():
        for seed in parser.seeds:
            parser.read(seed)


def test_no_mutation_of_a_good_input_ends_otherwise_than_in_a_value_or_an_error_of_the_house() -> None:
    parsers = all_parsers()
    for parser, share in zip(parsers, shares_of(parsers, CASES), strict=True):
        row = Mutations(parser.seeds, 7)
        for _ in range(share):
            data = row.next()
            fault = parser.fault_of(data)
            assert fault is None, f"{parser.name}: {fault}\n{data.hex()}"


@pytest.mark.parametrize("path", KEPT, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_what_once_went_wrong_ends_well_and_soon(path: Path) -> None:
    parser = next(parser for parser in all_parsers() if parser.name == path.parent.name)
    data = path.read_bytes()
    began = time.process_time()
    fault = parser.fault_of(data)
    assert fault is None
    assert time.process_time() - began < CASE_SECONDS_MAX


def test_parser_that_lets_another_error_through_or_tells_a_novel_is_found() -> None:
    def reads(data: bytes) -> object:
        return dict[bytes, object]()[data]

    def tells(data: bytes) -> object:
        raise Corrupt("x" * 5000 + str(data))

    for read, word in ((reads, "KeyError"), (tells, "5003 characters")):
        fault = Parser(name="broken", seeds=(b"",), read=read).fault_of(b"")
        assert fault is not None
        assert word in fault
