"""Senders written by others, built from locked sources into the cache: Prometheus, promtool and the reference client.

Called by `tests/run_tiers.py` before the engine tests, and by hand:

    python tests/engines/go_peers.py [CACHE]

A build of Prometheus takes some five minutes of one core, once per version of it and of Go.
"""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from fleet.errors import GputideError, Unavailable
from gputide.engine_cache import default_cache_path, key_of, stocked
from gputide.engine_tools import Tell, run_tool

HERE = Path(__file__).parent
PROMETHEUS_VERSION = "3.15.0"
"""Of the module version in `prometheus/go.mod`, as its releases are called."""
_MODULE = "github.com/prometheus/prometheus"


@dataclass(frozen=True, slots=True, kw_only=True)
class GoPeers:
    """Paths of the built programs.

    Attributes:
        prometheus: the server.
        promtool: its tool: checks rules, makes blocks, queries.
        sender: the remote-write 2.0 client of `sender/`; prints a JSON line.
    """

    prometheus: Path
    promtool: Path
    sender: Path


def find_go() -> str:
    """Return the path of Go.

    Raises:
        Unavailable: there is none on PATH.
    """
    go = shutil.which("go")
    if go is None:
        raise Unavailable("cannot build Prometheus: no `go` is on PATH; install Go 1.26 or newer")
    return go


def build_go_peers(cache: Path, *, tell: Tell) -> GoPeers:
    """Build what is not in the cache yet.

    Raises:
        Unavailable: Go is missing or too old, or a module could not be fetched.
    """
    go = find_go()
    version = run_tool([go, "version"], purpose="ask Go for its version")
    server = _built(cache, "prometheus", go, version, tell)
    sender = _built(cache, "sender", go, version, tell)
    return GoPeers(prometheus=server / "prometheus", promtool=server / "promtool", sender=sender / "sender")


def _built(cache: Path, name: str, go: str, version: str, tell: Tell) -> Path:
    module = HERE / name
    sources = [path.read_bytes() for path in sorted(module.iterdir()) if path.suffix in (".go", ".mod", ".sum")]
    stamps, packages = {
        "prometheus": (
            f"-X github.com/prometheus/common/version.Version={PROMETHEUS_VERSION}",
            [f"{_MODULE}/cmd/prometheus", f"{_MODULE}/cmd/promtool"],
        ),
        "sender": ("", ["."]),
    }[name]

    def fill(folder: Path) -> None:
        tell(f"building {name} with Go")
        # Without the clients of thirty clouds' service discovery, which no test needs.
        command = [go, "build", "-tags", "remove_all_sd", "-trimpath", "-ldflags", f"-s -w {stamps}"]
        environ = {**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly -buildvcs=false", "GOWORK": "off"}
        run_tool([*command, "-o", f"{folder}/", *packages], purpose=f"build {name}", folder=module, environ=environ)

    return stocked(cache, f"go-{name}", key_of(*sources, version.encode(), stamps.encode()), fill, tell=tell)


if __name__ == "__main__":
    try:
        print(build_go_peers(Path(sys.argv[1]) if sys.argv[1:] else default_cache_path(), tell=print))
    except GputideError as error:
        sys.exit(str(error))
