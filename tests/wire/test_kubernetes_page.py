"""A page is read as the JSON that it is, whatever its order and blanks, and whatever its objects hold."""

import json
import threading
from collections.abc import Callable
from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wire.http_answer import TooLarge
from wire.kubernetes.page import Page, open_page, pages_of

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.dictionaries(st.text(), VALUES, max_size=4)


@given(items=st.lists(OBJECTS | VALUES, max_size=6), metadata=OBJECTS, more=OBJECTS, indent=st.none() | st.just(2))
@pytest.mark.parametrize("is_metadata_first", [True, False])
def test_objects_of_a_page_are_those_of_its_json(is_metadata_first, items, metadata, more, indent) -> None:
    parts = [("metadata", metadata), ("items", items)]
    page = {**more, **dict(parts if is_metadata_first else reversed(parts))}
    if not is_metadata_first:
        page = dict(sorted(page.items(), key=lambda part: part[0] == "metadata"))
    told, found = open_page(bytearray(json.dumps(page, indent=indent).encode()))
    wanted = [item for item in items if isinstance(item, dict)]
    assert told == metadata
    assert list(found) == wanted
    assert list(found) == wanted


@given(body=st.binary(max_size=60) | st.text(alphabet='{}[],:"mitesadn5 ', max_size=60).map(str.encode))
def test_anything_else_is_refused_in_the_ways_that_are_told(body: bytes) -> None:
    try:
        told, found = open_page(bytearray(body))
        assert all(isinstance(item, dict) for item in found)
    except (ValueError, RecursionError):
        return
    assert isinstance(told, dict)


def test_page_without_objects_has_none() -> None:
    for body in (b'{"metadata": {}, "items": null}', b'{"metadata": {}}', b' { "metadata" : { } , "items" : [ ] } '):
        assert list(open_page(bytearray(body))[1]) == []


def pages(sizes: list[int], bytes_max: int) -> Callable[[int, str | None], Page]:
    """A reader of a list whose objects have these sizes; a page of more bytes is too large."""

    def read(limit: int, token: str | None) -> Page:
        start = int(token or 0)
        if sum(sizes[start : start + limit]) > bytes_max:
            raise TooLarge("too large")
        end = start + limit
        manifests = [{"number": number} for number in range(start, min(end, len(sizes)))]
        return Page(manifests=manifests, version="7", next_token=str(end) if end < len(sizes) else None)

    return read


def test_page_that_is_too_large_is_read_in_smaller_ones_and_no_object_is_lost() -> None:
    found = [one["number"] for page in pages_of(pages([1] * 5 + [9] * 3, 10), objects_max=8) for one in page.manifests]
    assert found == list(range(8))


def test_single_object_that_is_too_large_ends_the_list() -> None:
    with pytest.raises(TooLarge):
        list(pages_of(pages([1, 99], 10), objects_max=8))


def test_turn_is_held_while_a_page_is_gone_through_and_given_back_between_pages() -> None:
    turn = threading.Semaphore(1)
    held = []
    with closing(pages_of(pages([1] * 4, 2), objects_max=2, turn=turn)) as listed:
        for _ in listed:
            held.append(not turn.acquire(blocking=False))
            break
    assert held == [True]
    assert turn.acquire(blocking=False)
