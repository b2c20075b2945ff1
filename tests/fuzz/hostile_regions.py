"""Shared regions as a tenant might leave them: real ones, with some fields, bytes, labels or sizes that are not."""

from __future__ import annotations

import os
import random
import struct
import tempfile

from tests.regions.plain_regions import (
    MIB,
    NOW,
    PLAIN,
    PlainLayout,
    PlainProcess,
    PlainRegion,
    write_open_region,
)

CARDS = tuple(
    f"{kind}-{number:08x}-0000-4000-8000-00000000000{number}" for number in range(4) for kind in ("GPU", "MIG")
)
FRAMEBUFFERS = dict.fromkeys(CARDS[:5], 40960.0 * MIB)
"""Framebuffer of some of the cards; that of the others is not known."""

_TEMPLATES = 64
_NUMBERS = (
    0, 1, 2, 3, 4, 16, 17, 99, 100, 101, 1023, 1024, 1025, 2**22, 2**22 + 1, 2**31 - 1, 2**31, 2**32 - 1, 40960 * MIB,
    40960 * MIB + 1, 2**43, 2**43 + 1, 2**44, 2**44 + 1, 2**63 - 1, 2**63, 2**64 - 4096, 2**64 - 1, int(NOW),
    int(NOW) + 5, int(NOW) + 6, 1_499_999_999, 1_500_000_000, 19920718,
)  # fmt: skip
_IDS = (
    b"", b"GPU-", CARDS[0].encode(), CARDS[0].upper().encode(), b"GPU-00000000-0000-4000-8000-00000000000g",
    CARDS[1].encode() + b"x", b"\xff\xfe" * 20, CARDS[0].encode() + b"\n", b"\0" + CARDS[2].encode(), b"a" * 96,
    b'GPU"},{x="y',
)  # fmt: skip


class HostileRegions:
    """An endless row of regions, the same for the same seed.

    Args:
        seed: seed.
    """

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._templates = [self._template() for _ in range(_TEMPLATES)]

    def write_into(self, fd: int) -> None:
        """Write the next region over whatever the open file holds."""
        name, head, tail = self._random.choice(self._templates)
        layout = PLAIN[name]
        os.ftruncate(fd, 0)
        os.ftruncate(fd, layout.size)
        os.pwrite(fd, head, 0)
        os.pwrite(fd, tail, layout.proc_num)
        for _ in range(self._random.choice((0, 1, 1, 1, 2, 3))):
            self._spoil(fd, layout)

    def _template(self) -> tuple[str, bytes, bytes]:
        rng = self._random
        name = rng.choice(tuple(PLAIN))
        processes = tuple(
            PlainProcess(
                pid=number + 1,
                host_pid=rng.choice((0, 4000 + number)),
                status=rng.choice((0, 1, 1, 1, 2)),
                context=rng.choice((0, 300 * MIB)),
                module=rng.randrange(0, 64 * MIB),
                data=rng.choice((0, 0, rng.randrange(0, 4000 * MIB))),
                monitor=rng.choice((0, 0, 900 * MIB, 2**64 - 1)),
                sm_util=rng.choice((0, 0, 40, 100)),
                seqlock=rng.choice((0, 2, 3)),
            )
            for number in range(rng.choice((0, 1, 1, 2, 3, 9)))
        )
        region = PlainRegion(
            layout=name,
            cards=rng.sample(CARDS, rng.randint(1, 3)),
            processes=processes,
            recent_kernel=rng.randint(-1, 4),
            last_kernel_time=rng.choice((0, int(NOW) - 3600)),
        )
        layout = PLAIN[name]
        with tempfile.TemporaryFile() as file:
            write_open_region(file.fileno(), region)
            head = os.pread(file.fileno(), layout.procs + len(processes) * layout.slot, 0)
            return name, head, os.pread(file.fileno(), 24, layout.proc_num)

    def _spoil(self, fd: int, layout: PlainLayout) -> None:
        rng = self._random
        way = rng.random()
        if way < 0.55:
            offset, form = rng.choice(self._fields(layout))
            number = rng.choice(_NUMBERS) if rng.random() < 0.8 else rng.getrandbits(64)
            size = struct.calcsize(form)
            os.pwrite(fd, (number % 2 ** (8 * size)).to_bytes(size, "little"), offset)
        elif way < 0.7:
            os.pwrite(fd, rng.choice(_IDS), layout.uuids + 96 * rng.randrange(3))
        elif way < 0.8:
            os.pwrite(fd, rng.randbytes(rng.randint(1, 64)), rng.choice((rng.randrange(6000), layout.proc_num)))
        elif way < 0.9:  # two labels of one size, and a region that another release grew
            other = PLAIN[rng.choice(tuple(PLAIN))]
            os.ftruncate(fd, rng.choice((other.size, other.size - 1, other.size + 1, 0, 3, layout.procs)))
        else:  # one process twice, or a slot that was left behind
            slot = os.pread(fd, layout.slot, layout.procs)
            os.pwrite(fd, slot, layout.procs + layout.slot * rng.randint(1, 3))

    def _fields(self, layout: PlainLayout) -> tuple[tuple[int, str], ...]:
        """One of each kind of field, of some card and some slot."""
        card = self._random.randrange(2)
        slot = layout.procs + layout.slot * self._random.randrange(3)
        used = slot + layout.used + card * layout.used_step
        fields = [(0, "<i"), (4, "<I"), (8, "<I"), (layout.num, "<Q")]
        fields += [(layout.limit + 8 * card, "<Q"), (layout.sm_limit + 8 * card, "<Q")]
        fields += [(layout.proc_num + 4 * number, "<i") for number in range(4)]
        fields += [(layout.proc_num, "<i"), (slot, "<i"), (slot + 4, "<i"), (slot + layout.status, "<i")]
        fields += [(used + 8 * number, "<Q") for number in range(5)]
        fields += [(slot + layout.monitor + 8 * card, "<Q")]
        fields += [(layout.proc_num + 16, "<Q")] if layout.has_time else []
        if layout.util is not None:
            fields.append((slot + layout.util + card * layout.util_step + 16, "<Q"))
        return tuple(fields)
