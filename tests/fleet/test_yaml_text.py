"""YAML of others is read in bounded time: what grows by merging, by base sixty or by a false tag is an error."""

from __future__ import annotations

import pytest
import yaml

from fleet.yaml_text import DIGITS_MAX, load_yaml

_DOUBLED = "a0: &a0 {k: v}\n" + "".join(f"a{i}: &a{i} {{<<: [*a{i - 1}, *a{i - 1}]}}\n" for i in range(1, 40))
_INSIDE = "{k: v}"
for _depth in range(20):
    _INSIDE = f"{{<<: [&x{_depth} {_INSIDE}, *x{_depth}]}}"


@pytest.mark.parametrize("text", [_DOUBLED, f"r: {_INSIDE}", "a: &a {<<: *a}"])
def test_merges_of_merges_are_not_built(text: str) -> None:
    with pytest.raises(yaml.YAMLError, match="merges"):
        load_yaml(text)


def test_a_mapping_takes_over_what_it_merges() -> None:
    assert load_yaml("a: &a {k: 1, z: 1}\nb: {<<: *a, z: 2}")["b"] == {"k": 1, "z": 2}


def test_long_number_is_not_counted_out() -> None:
    with pytest.raises(yaml.YAMLError, match=f"more than {DIGITS_MAX}"):
        load_yaml("a: " + ":".join(["1"] * 60_000))


@pytest.mark.parametrize("text", ["a: !!timestamp x", "a: !!bool x"])
def test_value_that_is_not_what_its_tag_says_is_no_yaml(text: str) -> None:
    with pytest.raises(yaml.YAMLError, match="tag"):
        load_yaml(text)
