"""One probe: framebuffer, compute and pause of one container, in that order, as a result that can be signed.

What the container was granted is read from where its backend says it: HAMi's library by its environment
(Project-HAMi/HAMi:pkg/device-plugin/nvidiadevice/nvinternal/plugin/server.go): `CUDA_DEVICE_MEMORY_LIMIT_0`,
`CUDA_DEVICE_SM_LIMIT`, `CUDA_DEVICE_MEMORY_SHARED_CACHE`. Who runs it may say otherwise. Called by the front door.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from enforcer.probe.compute import measure_compute
from enforcer.probe.framebuffer import measure_framebuffer
from enforcer.probe.pausing import measure_pause
from enforcer.probe.readings import Gpu, PauseReading
from fleet.errors import Misconfigured
from fleet.probe_results import ProbeResult

MEMORY_LIMIT_ENV = "CUDA_DEVICE_MEMORY_LIMIT_0"
CORE_LIMIT_ENV = "CUDA_DEVICE_SM_LIMIT"
REGION_ENV = "CUDA_DEVICE_MEMORY_SHARED_CACHE"

_NEVER = PauseReading(pause_seconds=None, resume_seconds=None, graph_pauses=None)
_LIMIT = re.compile(r"([0-9]{1,12})([kmgKMG]?)", re.ASCII)
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


@dataclass(frozen=True, slots=True, kw_only=True)
class Granted:
    """What the probe's container was granted.

    Attributes:
        framebuffer_bytes: framebuffer; None where nobody said.
        compute_ratio: limit on compute, 0-1; None where there is none.
        card_bytes: framebuffer of the whole card; None where nobody said.
        region: shared region of the container; None where it has none.
    """

    framebuffer_bytes: int | None = None
    compute_ratio: float | None = None
    card_bytes: int | None = None
    region: Path | None = None


def granted_by_environment(environ: Mapping[str, str]) -> Granted:
    """What HAMi's library is told by the environment.

    Raises:
        Misconfigured: a value is not what the library understands; the message names it.
    """
    limit = None
    if text := environ.get(MEMORY_LIMIT_ENV):
        match = _LIMIT.fullmatch(text)
        if match is None:
            raise Misconfigured(f"cannot read {MEMORY_LIMIT_ENV}={text[:40]!r}: expected a size such as 4000m")
        limit = int(match[1]) * _UNITS[match[2].lower()] or None
    ratio = None
    if text := environ.get(CORE_LIMIT_ENV):
        if not text.isdecimal() or int(text) > 100:
            raise Misconfigured(f"cannot read {CORE_LIMIT_ENV}={text[:40]!r}: expected percent, 0-100")
        ratio = int(text) / 100 if 0 < int(text) < 100 else None
    region = environ.get(REGION_ENV)
    return Granted(framebuffer_bytes=limit, compute_ratio=ratio, region=None if not region else Path(region))


def probe(
    gpu: Gpu,
    granted: Granted,
    *,
    backend: str,
    node: str,
    now: datetime,
    seconds: float,
    spill_bytes_max: int,
) -> ProbeResult:
    """Measure everything that can be measured.

    Args:
        gpu: the card; nobody else may work on it meanwhile.
        granted: what the container was granted.
        backend: name of the backend that limits it.
        node: node.
        now: when, UTC.
        seconds: how long compute is measured, for launches and for graphs each.
        spill_bytes_max: most framebuffer that is asked for beyond the card, bytes.

    Raises:
        Refused: the container's region is in doubt.
    """
    framebuffer = measure_framebuffer(
        gpu,
        granted_bytes=granted.framebuffer_bytes,
        card_bytes=granted.card_bytes,
        spill_bytes_max=spill_bytes_max,
    )
    compute = measure_compute(gpu, granted_ratio=granted.compute_ratio, seconds=seconds)
    paused = _NEVER if granted.region is None else measure_pause(gpu, granted.region)
    return ProbeResult(
        backend=backend,
        node=node,
        card=gpu.card,
        measured_at=now,
        granted_framebuffer_bytes=framebuffer.granted_bytes,
        allocated_framebuffer_bytes=framebuffer.allocated_bytes,
        is_refused=framebuffer.is_refused,
        managed_escapes=framebuffer.managed_escapes,
        spilled_bytes=framebuffer.spilled_bytes,
        spill_bytes_per_second=framebuffer.spill_bytes_per_second,
        granted_compute_ratio=compute.granted_ratio,
        compute_ratio=compute.launched_ratio,
        graph_compute_ratio=compute.graph_ratio,
        pause_seconds=paused.pause_seconds,
        resume_seconds=paused.resume_seconds,
        graph_pauses=paused.graph_pauses,
    )
