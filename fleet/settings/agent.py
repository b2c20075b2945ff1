"""Settings of the node agent: when low priority gives way, and how much framebuffer must stay free.

Part of `fleet.settings.settings`.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, model_validator

from fleet.settings.kinds import HostPort, Ratio, Seconds
from fleet.settings.listener import ListenerSettings


class GiveWayManner(StrEnum):
    """When low priority sleeps."""

    OFF = "off"
    PRESSURE = "pressure"
    """While somebody above it works and the card is full."""
    STRICT = "strict"
    """While somebody above it works."""


class AgentSettings(ListenerSettings):
    """What the node agent does on its node."""

    interval_seconds: Annotated[float, Field(ge=0.1, le=10.0)] = 0.5
    """Time between two looks at the node."""
    give_way: GiveWayManner = GiveWayManner.PRESSURE
    """When low priority sleeps on a card that it shares."""
    working_ratio: Ratio = 0.01
    """Duty cycle above which a container counts as working."""
    full_ratio: Ratio = 0.97
    """Duty cycle of a card from which it counts as full."""
    quiet_seconds: Seconds = 5
    """How long nobody may have wanted low priority asleep before it wakes, judged by duty cycles;
    longer than `agent.interval_seconds`."""
    pace_seconds: Annotated[float, Field(ge=0.005, le=0.5)] = 0.02
    """Time between two looks at launches, where high and low priority share a card and `agent.give_way=strict`; twice
    that while nobody launches."""
    release_seconds: Annotated[float, Field(ge=0.05, le=60.0)] = 0.1
    """How long nobody above low priority may have launched a kernel before it wakes, where launches are believed; at
    most `agent.quiet_seconds`."""
    framebuffer_free_ratio_min: Ratio = 0.03
    """Share of a card's framebuffer that must stay free; below it low priority is evicted. 0 switches that off."""
    host_memory_free_ratio_min: Ratio = 0.03
    """Share of host memory, of the node's and of the limit of all its pods, that must stay free where framebuffer moves
    there; below it a pod goes whose framebuffer lies there. The kubelet itself evicts at 100 MiB, which framebuffer
    fills within one look; and a plan leaves half of what requests leave, so a larger share may evict where requests
    take 94 % and all is as planned. 0 switches that off."""
    settle_seconds: Seconds = 30
    """How long an evicted pod may take to leave before the next one goes."""
    closed_seconds: Seconds = 600
    """How long a card takes no newcomer after an eviction."""
    orders_config_map: str = Field(default="gputide-orders", pattern=r"^[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?$")
    """ConfigMap in `enforcer.namespace` with the orders of the control plane, one key per node."""
    orders_seconds: Seconds = 10
    """Time between two looks at the orders; a second while a card is in trouble."""
    listen: HostPort | None = None
    """Where it shows `gputide run relief` what it sees, such as `0.0.0.0:9478` or `[::]:9478`; none for nowhere."""
    tokens_file: Path | None = None
    """File with a line `TOKEN NAME` per reader of it (TOKEN or `sha256:` and its digest); read again when changed."""

    @model_validator(mode="after")
    def _times_fit_together(self) -> Self:
        if self.quiet_seconds <= self.interval_seconds:
            raise ValueError(
                f"quiet_seconds={self.quiet_seconds} needs to be longer than interval_seconds={self.interval_seconds}: "
                "low priority would wake by a single look"
            )
        if self.release_seconds > self.quiet_seconds:
            raise ValueError(
                f"release_seconds={self.release_seconds} needs to be at most quiet_seconds={self.quiet_seconds}: "
                "launches say sooner than duty cycles that nobody works"
            )
        return self
