"""Settings of the probe: how long it measures, and by which key its results are believed.

Part of `fleet.settings.settings`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field

from fleet.settings.kinds import Bytes, Section
from fleet.units import GIB


class ProbeSettings(Section):
    """What `gputide probe` measures, and whom it is believed."""

    key_file: Path | None = None
    """File with the key that results are signed by, 32 bytes or more; the same where they are made and where they are
    used. None: results are neither signed nor used."""
    seconds: Annotated[float, Field(ge=1.0, le=600.0)] = 20.0
    """How long compute is measured, for launches and for graphs each."""
    spill_bytes_max: Bytes = 2 * GIB
    """Most framebuffer that is asked for beyond the card: it is taken from the node's memory."""
    cuda_library: Path | None = None
    """File of `libcuda.so.1`; none for the loader's own search, as programs do."""
