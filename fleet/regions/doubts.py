"""Why a shared region, or one figure in it, is not believed: a closed list of words.

A region lies in a directory that its tenant may write, so nothing in it is true until it was checked. The node exporter
shows these words; anybody who writes limits into a region refuses to while there is one. Standard library only.
"""

from __future__ import annotations

from enum import StrEnum


class RegionDoubt(StrEnum):
    """One reason for doubt; the gravest first. Up to `PROCESS_IMPOSSIBLE` no figure of the region is believed."""

    NOT_A_FILE = "not_a_regular_file"
    """A link, pipe, socket, device or folder stands where the file should be."""
    TOO_MANY_FILES = "too_many_files"
    """Its directory holds so many entries that the region is not looked for among them."""
    UNREADABLE = "unreadable"
    """The operating system refuses to open or read it."""
    UNKNOWN_SIZE = "unknown_size"
    """No known layout has this file size; or the size changed while it was read."""
    UNINITIALISED = "uninitialised"
    """The mark at its beginning, which the library writes last, is not there."""
    UNKNOWN_VERSION = "unknown_version"
    """No layout of this size carries this version."""
    CARD_COUNT_IMPOSSIBLE = "card_count_impossible"
    """More cards than it has room for."""
    NO_CARDS = "no_cards"
    """It names no card (yet)."""
    CARD_ID_MALFORMED = "card_id_malformed"
    """A card's id is not the UUID of a card or a MIG instance."""
    CARD_REPEATED = "card_repeated"
    """Two of its cards have one id."""
    PROCESS_COUNT_IMPOSSIBLE = "process_count_impossible"
    """A negative number of processes, or more than it has slots."""
    KEEPS_CHANGING = "keeps_changing"
    """Its processes were others at every look, so none of the looks is believed."""
    TOO_MANY_PROCESSES = "too_many_processes"
    """The regions of this node claim more processes together than are read at a time."""
    PROCESS_IMPOSSIBLE = "process_impossible"
    """A process id or state that no process has, or one process twice."""
    FRAMEBUFFER_UNDERFLOWED = "framebuffer_underflowed"
    """A usage counter fell below 0 and shows some 16 EiB; the usage of that card is absent."""
    FRAMEBUFFER_ABOVE_CARD = "framebuffer_above_card"
    """More framebuffer in use than the card has; the usage of that card is absent."""
    FRAMEBUFFER_PARTS_DISAGREE = "framebuffer_parts_disagree"
    """Context, module and data don't add up to the total; the usage of that card is absent."""
    FRAMEBUFFER_LIMIT_IMPOSSIBLE = "framebuffer_limit_impossible"
    """A limit that no card can have; that limit is absent."""
    COMPUTE_LIMIT_IMPOSSIBLE = "compute_limit_impossible"
    """A compute limit above 100 percent; that limit is absent."""
    UTILISATION_IMPOSSIBLE = "utilisation_impossible"
    """One process at more than 100 percent; the duty cycle of that card is absent."""
    LAST_KERNEL_TIME_IMPOSSIBLE = "last_kernel_time_impossible"
    """The last kernel was launched in the future, or before the library was written; the time is absent."""
    STATE_IMPOSSIBLE = "state_impossible"
    """Priority, blocking state or compute switch hold a value that the library never writes; that one is absent."""


def bit_of(doubt: RegionDoubt) -> int:
    """The bit set that holds this doubt alone; columns of doubts are kept as such bits."""
    return 1 << _RANK[doubt]


def doubts_of(bits: int) -> tuple[RegionDoubt, ...]:
    """The doubts that a bit set names, the gravest first."""
    return tuple(doubt for doubt, rank in _RANK.items() if bits >> rank & 1)


_RANK = {doubt: rank for rank, doubt in enumerate(RegionDoubt)}

OF_REGION_BITS = (bit_of(RegionDoubt.PROCESS_IMPOSSIBLE) << 1) - 1
"""The doubts that take every figure of the region with them, not one figure alone."""
