"""Where a command sets what a server takes: read as the shell and argparse read it, or not at all."""

from __future__ import annotations

import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.server_arguments import POOL_BLOCKS, POOL_BYTES, UTILIZATION, Unclear, fixed_pool_bytes, spots_of

FLAGS = (UTILIZATION, POOL_BYTES, POOL_BLOCKS)
PIECES = st.sampled_from(
    [
        "vllm", "serve", "M", "--gpu-memory-utilization", "--gpu-memory-utilization=0.9", "--gpu_memory_utilization",
        "--gpu-memory", "0.9", "'0.9'", '"0.9"', "\\0.9", '0"".9', "--port", "80", "#", "a#b", ";", "&&", "|", "\n",
        "\\\n", "'a b'", '"--gpu-memory-utilization 0.1"', "\\", "'", '"', "$X", "$@", "-", "--", "", "=", "{", "}",
    ]
)  # fmt: skip
SHOW = 'vllm() { for word; do printf "%s\\0" "$word"; done; }; '


@given(
    pieces=st.lists(PIECES, max_size=9),
    place=st.integers(0, 9),
    blanks=st.lists(st.sampled_from([" ", "", "\t"]), min_size=9, max_size=9),
)
@settings(max_examples=300, deadline=None)
def test_value_that_is_replaced_in_a_script_is_the_one_that_the_shell_hands_over(
    pieces: list[str], place: int, blanks: list[str]
) -> None:
    parts = ["".join(pair) for pair in zip(pieces, blanks, strict=False)]
    parts.insert(place, "--gpu-memory-utilization 0.9 ")
    script = "vllm serve M " + "".join(parts)
    try:
        spot = spots_of(["sh", "-c", script], FLAGS).get(UTILIZATION)
    except Unclear:
        return
    if spot is None:
        return
    changed = script[: spot.start] + "0.123" + script[spot.start + len(spot.text) :]
    before, after = shown(script), shown(changed)
    assert [word.replace(spot.text, "0.123") if word != other else word
            for word, other in zip(before, after, strict=True)] == after  # fmt: skip
    assert sum(word != other for word, other in zip(before, after, strict=True)) <= 1
    if "|" not in script and ";" not in script and "&&" not in script and "\n" not in script:
        assert sum("0.123" in word for word in after) == 1


def shown(script: str) -> list[str]:
    done = subprocess.run(["sh", "-c", SHOW + script], capture_output=True, text=True, timeout=20, check=False)
    return done.stdout.split("\0")


@pytest.mark.parametrize(
    ("words", "size"),
    [
        (["vllm", "serve", "M", "--kv-cache-memory-bytes", "25G"], 25 * 2**30),
        (["vllm", "serve", "M", "--kv_cache_memory_bytes=25.5g"], 25_500_000_000),
        (["bash", "-lc", "exec vllm serve M --kv-cache-memory-bytes 1000"], 1000),
        (["vllm", "serve", "M"], None),
        (["vllm", "serve", "M", "--kv-cache-memory-bytes", "99999999999G"], None),
        (["vllm", "serve", "M", "--kv-cache-memory-bytes", "0"], None),
        (["vllm", "serve", "M", "--kv-cache-memory-bytes"], None),
        (["vllm", "serve", "M", "--kv-cache-memory-bytes", "1G", "--num-gpu-blocks-override", "9"], None),
        (["vllm", "serve", "--config", "a.yaml", "--kv-cache-memory-bytes", "1G"], None),
        ([], None),
    ],
)
def test_size_of_a_kv_cache_is_read_where_the_command_alone_sets_it(words: list[str], size: int | None) -> None:
    assert fixed_pool_bytes(words) == size


@given(words=st.lists(st.text(max_size=40), max_size=30))
def test_any_command_is_read_or_unclear(words: list[str]) -> None:
    fixed_pool_bytes(words)
    fixed_pool_bytes(["sh", "-c", *words])
