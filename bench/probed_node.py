"""`gputide admin probe run` in a container of a node that has no card: a stand-in of CUDA's driver moves pages for it.

`python -m bench.probed_node NODE FLAGS` stands for the verb in a container that the backend limits: the limit that the
device plugin sets, the region that it mounts, and the memory of the host. Low priority waits at its gate, and what does
not fit the card takes turns on it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bench.measured_run import GPUTIDE, ROOT
from tests.regions.plain_regions import PlainProcess, PlainRegion, write_region

LINK_MB = 8200
"""Megabytes a second between card and host, in either direction."""

HOST_GIB = 512
_CARD_MIB = 24 * 1024


def probe_node(node: str, flags: Sequence[str], *words: str) -> subprocess.CompletedProcess[str]:
    """Probe a node; it ends with 1 where what was seen is not what the table says.

    Args:
        flags: of the verb; with `--card-mib` the container is granted twice its card.
        words: of the program, before the verb.

    Raises:
        subprocess.CalledProcessError: there is no compiler for the stand-in, or it can't be built.
    """
    with tempfile.TemporaryDirectory() as scratch:
        here = Path(scratch)
        source = ROOT / "tests" / "enforcer" / "probe" / "cuda_standin.c"
        subprocess.run(["gcc", "-O2", "-shared", "-fPIC", "-o", here / "libcuda.so.1", source], check=True)
        (here / "meminfo").write_text(f"MemAvailable: {HOST_GIB << 20} kB\n", encoding="utf-8")
        region = here / "region.cache"
        write_region(region, PlainRegion(processes=(PlainProcess(),)))
        lends = "--card-mib" in flags
        card = int(flags[flags.index("--card-mib") + 1]) if lends else _CARD_MIB
        limit = 2 * card if lends else card
        variables = {
            "PROBE_CARD_MIB": card, "PROBE_LIMIT_MIB": limit, "CUDA_DEVICE_MEMORY_LIMIT_0": f"{limit}m",
            "PROBE_SPILL": 1, "PROBE_LINK_MB": LINK_MB, "PROBE_GATE": 1, "PROBE_REGION": region,
            "CUDA_DEVICE_MEMORY_SHARED_CACHE": region, "GPUTIDE_EXPORTER__NODE": node,
            "GPUTIDE_EXPORTER__PROC_FOLDER": here, "GPUTIDE_PROBE__CUDA_LIBRARY": here / "libcuda.so.1",
        }  # fmt: skip
        environ = {**os.environ, **{name: str(value) for name, value in variables.items()}}
        verb = [str(GPUTIDE), *words, "admin", "probe", "run", *flags]
        return subprocess.run(verb, check=False, capture_output=True, text=True, env=environ)


if __name__ == "__main__":
    said = probe_node(sys.argv[1], sys.argv[2:])
    print(said.stdout, said.stderr, end="")
    sys.exit(said.returncode)
