"""The remote-write bodies that receiver bars are measured on: the yardstick's, and one of series that are all wanted.

The yardstick is a file beside the checkout, so that every receiver is measured on the same bytes; where it is absent
the bars say so.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import numpy as np

from fleet.schema import SLICE_MEASURES
from fleet.series import slice_series
from pipeline.remote_write.decode import Version
from pipeline.remote_write.encode import LabelSets

ROOT = Path(__file__).resolve().parents[1]
START_MS = 1_760_000_000_000
STEP_MS = 15_000


def yardstick(name: str = "bodies") -> ModuleType | None:
    """A module of the yardstick's folder (`bodies`, `standin`); None where the folder is absent."""
    folder = ROOT.parent / "shared" / "bench"
    path = folder / f"{name}.py"
    if not path.is_file():
        return None
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        return None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


class WantedBodies:
    """Bodies of a fleet whose series all mean something: every measure of every slice, at one time per request.

    Args:
        series: series per body.
        version: the message.
        first: number of the first series.
    """

    def __init__(self, series: int, version: Version, first: int = 0) -> None:
        self._series = series
        self._version = version
        self._sets = LabelSets([wanted_labels(number) for number in range(first, first + series)])

    def body(self, request: int) -> bytes:
        """The body of one request; values and times are new in each."""
        rng = np.random.default_rng(request)
        times = np.full(self._series, START_MS + request * STEP_MS, dtype=np.int64)
        values = np.round(rng.random(self._series), 4)
        return self._sets.encode(self._version, np.arange(self._series), times, values)


def wanted_labels(number: int) -> dict[str, str]:
    """Labels of one series of a fleet; all measures of a slice stand together."""
    pod, place = divmod(number, len(SLICE_MEASURES))
    card = pod // 4
    return {
        "__name__": slice_series(SLICE_MEASURES[place].measure),
        "card": f"GPU-{card:08x}-1f2e-4d3c-9b8a-{card * 7919:012x}",
        "card_model": "NVIDIA A800-SXM4-80GB",
        "cluster": "idc-1",
        "container": "server",
        "instance": f"10.{card >> 16 & 255}.{card >> 8 & 255}.{card & 255}:9400",
        "job": "gputide",
        "namespace": f"team-{pod % 19}",
        "node": f"gpu-node-{card // 8:05d}",
        "pod": f"svc-{pod % 37}-7d9f8c6b5-{pod * 31 % 99991:05d}",
    }
