"""A page is read as the JSON that it is, whatever its order and blanks, and whatever its objects hold."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wire.kubernetes.page import open_page

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
