"""Arguments by which somebody sets how much framebuffer a server takes: where a container's command shows them.

A tenant's command is read, never run, and what could be read in two ways is `Unclear`. `exporter.allocation` reads the
size of a KV cache here, the enforcer finds the characters that it replaces. Standard library only.

Sources: vllm-project/vllm:vllm/engine/arg_utils.py (flags, `human_readable_int`) and vllm/utils (FlexibleArgumentParser
takes `_` for `-`), sgl-project/sglang:python/sglang/srt/server_args.py; of a flag that is given twice argparse takes
the last, and it completes a beginning of one.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from fleet.servers import WORDS_MAX

UTILIZATION = "--gpu-memory-utilization"
"""vLLM: share of the memory that it sees, weights included."""
POOL_BYTES = "--kv-cache-memory-bytes"
"""vLLM: the KV cache on each card; it does not follow the memory that the server sees."""
POOL_BLOCKS = "--num-gpu-blocks-override"
"""vLLM: the KV cache in blocks, likewise."""
STATIC_FRACTION = "--mem-fraction-static"
"""SGLang: share of the memory that is free at its start, weights and KV cache."""
_CONFIG = "--config"
_LENGTH_MAX = 16_384
_POOL_BYTES_MAX = 2**44
_NAME_MIN = 4
_NUMBER = re.compile(r"(\d{1,15}(?:\.\d{1,9})?|\.\d{1,9})([kmgtKMGT]?)", re.ASCII)
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_SHELLS = frozenset({"sh", "bash", "dash", "ash"})
_SCRIPT_OPTION = re.compile(r"-[a-z]*c")
_UNREADABLE = ("`", "<<", "$(")
_GAP = re.compile(r"""['"]?(?:\s|(?<!\S)#[^\n]*)*['"]?""")
"""What may stand between two words of a script; anything else means that they stand otherwise than they read."""


class Unclear(Exception):
    """A command that does not show for sure which arguments its server gets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spot:
    """A word of a command, or the value of a flag.

    Attributes:
        word: number of the word of the command that it stands in.
        start: its first character there.
    """

    word: int
    start: int
    text: str

    @property
    def number(self) -> float:
        """A value as vLLM reads it: `K` is 1024 and `k` 1000."""
        found = _NUMBER.fullmatch(self.text)
        if found is None:
            raise Unclear(self.text[:63])
        return float(found[1]) * _UNITS[found[2]]


def spots_of(words: Sequence[str], flags: Sequence[str]) -> dict[str, Spot]:
    """Where a command sets some flags.

    Args:
        words: a container's command and arguments.
        flags: flags as `--two-words`.

    Returns:
        The value of each flag that is set, a number.

    Raises:
        Unclear: the command can't be read, names a file of arguments, or sets a flag twice, by its beginning or by a
            variable.
    """
    if len(words) > WORDS_MAX or sum(map(len, words)) > _LENGTH_MAX:
        raise Unclear("too long")
    script = script_of(words)
    if script is None:
        parts = [Spot(word=number, start=0, text=word) for number, word in enumerate(words)]
    else:
        parts = _parts_of_script(words[script], script)
    found: dict[str, Spot] = {}
    before, is_open = "", True
    for part in parts:
        name, equals, value = part.text.partition("=")
        is_flag = name.startswith("--")
        name = name.replace("_", "-") if is_flag else name
        if name == _CONFIG or (name == "--" and not is_open) or _hides(part.text, flags):
            raise Unclear(name if name in ("--", _CONFIG) else "several words in one")
        if part.text.startswith("$") and not (before.startswith("--") or before == "serve"):
            raise Unclear(part.text[:63])
        if before in flags:
            _put(found, before, part)
        elif name in flags and equals:
            _put(found, name, Spot(word=part.word, start=part.start + len(name) + 1, text=value))
        elif is_flag and any(len(name) >= _NAME_MIN and flag.startswith(name) and flag != name for flag in flags):
            raise Unclear(name)
        # Behind `--flag=value` comes no value of it.
        before = "" if equals else name
        is_open = is_open and (not is_flag or name == "--")
    if before in flags:
        raise Unclear(before)
    return found


def fixed_pool_bytes(words: Sequence[str]) -> int | None:
    """The KV cache on each card that a command fixes in bytes alone; None where it fixes none, or not for sure."""
    try:
        found = spots_of(words, (POOL_BYTES, POOL_BLOCKS))
        size = int(found[POOL_BYTES].number) if found.keys() == {POOL_BYTES} else 0
    except Unclear:
        return None
    return size if 0 < size <= _POOL_BYTES_MAX else None


def script_of(words: Sequence[str]) -> int | None:
    """The number of the word that is a shell's script; None where no shell is started.

    Raises:
        Unclear: a shell reads its script elsewhere.
    """
    shell = next((at for at, word in enumerate(words) if word.rpartition("/")[2] in _SHELLS), None)
    if shell is None:
        return None
    for at in range(shell + 1, len(words) - 1):
        if _SCRIPT_OPTION.fullmatch(words[at]):
            return at + 1
    raise Unclear(words[shell][:63])


def _hides(text: str, flags: Sequence[str]) -> bool:
    """Whether a word of several words holds one of the flags: nobody knows who takes it apart."""
    return any(map(str.isspace, text)) and any(flag in text.replace("_", "-") for flag in flags)


def _put(found: dict[str, Spot], flag: str, spot: Spot) -> None:
    if flag in found or not _NUMBER.fullmatch(spot.text):
        raise Unclear(flag)
    found[flag] = spot


def _parts_of_script(script: str, word: int) -> list[Spot]:
    if any(mark in script for mark in _UNREADABLE):
        raise Unclear("a script that another command writes into")
    # A line that goes on in the next is one; every character keeps its place.
    plain = script.replace("\\\n", "  ")
    lexer = shlex.shlex(plain, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    parts, place = [], 0
    try:
        for token in lexer:
            at = plain.find(token, place)
            if at < 0 or not _GAP.fullmatch(plain, place, at):
                raise Unclear("a word that is quoted in part")
            parts.append(Spot(word=word, start=at, text=token))
            place = at + len(token)
    except ValueError as exc:
        raise Unclear("a quote that nobody closed") from exc
    if not _GAP.fullmatch(plain, place):
        raise Unclear("what follows its last word")
    return parts
