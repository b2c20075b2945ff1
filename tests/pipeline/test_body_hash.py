"""Names of bodies are the polynomial that they are said to be, and say nothing without the secret points."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.receiver.intake import BODY_HASH_BYTES, BodyHash

PRIME = 2**61 - 1
POINTS = st.integers(0, PRIME - 1)


def evaluated(body: bytes, kind: int, point: int) -> int:
    """The polynomial by its definition, a coefficient at a time."""
    value = len(body) << 8 | kind
    blocks, rest = body[: (len(body) - 1) // 56 * 56] if body else b"", len(body)
    for at in range(0, len(blocks), 7):
        value = (value * point + int.from_bytes(body[at : at + 7], "little")) % PRIME
    padded = body[len(blocks) : rest].ljust(56, b"\0")
    for at in range(0, 56, 7):
        value = (value * point + int.from_bytes(padded[at : at + 7], "little")) % PRIME
    return value


@given(st.binary(max_size=400), st.integers(0, 255), POINTS, POINTS)
def test_a_name_is_the_polynomial_at_both_points(body, kind, first, second):
    name = BodyHash((first, second)).name(body, kind)
    assert name == b"".join(evaluated(body, kind, point).to_bytes(8, "little") for point in (first, second))


@pytest.mark.parametrize("size", [55, 56, 57, 58, 111, 112, 113, 196_645])
def test_numbers_at_the_edges_of_blocks_and_of_the_prime_are_reduced(size):
    body = b"\xff" * size
    name = BodyHash((PRIME - 1, PRIME - 2)).name(body, 255)
    assert name == b"".join(evaluated(body, 255, point).to_bytes(8, "little") for point in (PRIME - 1, PRIME - 2))


@given(st.binary(min_size=1, max_size=300), st.integers(0, 299), st.integers(1, 255))
def test_another_byte_length_or_kind_is_another_name(body, place, change):
    names = BodyHash()
    changed = bytearray(body)
    changed[place % len(body)] ^= change
    assert len({names.name(other, 1) for other in (body, bytes(changed), body + b"\0", body[:-1])}) == 4
    assert names.name(body, 1) != names.name(body, 2)


def test_names_differ_from_process_to_process():
    body = b"the same body"
    assert BodyHash().name(body, 1) != BodyHash().name(body, 1)
    assert len(BodyHash().name(body, 1)) == BODY_HASH_BYTES
