"""Settings of the guard (when plans may change the cluster, how much, who agrees, what harm is borne), and of backends.

Part of `fleet.settings.settings`.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import time
from typing import Annotated

from pydantic import Field, StringConstraints, field_validator

from fleet.settings.kinds import Count, Day, Price, Ratio, Seconds, Section

_PLACE = r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?/[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$"

ResourceName = Annotated[
    str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9.-]{0,251}/[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$")
]


class BackendsSettings(Section):
    """How installations of GPU-sharing backends differ from their charts."""

    hami_device_config: str = Field(default="kube-system/hami-scheduler-device", pattern=_PLACE)
    """HAMi's ConfigMap with resource names, `namespace/name`."""
    hami_node_config: str = Field(default="kube-system/hami-device-plugin", pattern=_PLACE)
    """HAMi's ConfigMap with the nodes' configuration."""
    hami_device_plugin: str = Field(default="kube-system/hami-device-plugin", pattern=_PLACE)
    """DaemonSet of HAMi's device plugin, whose pods start anew when a node's configuration changes."""
    hami_cordons_emptied_nodes: bool = False
    """Whether cards of a node that a stage empties are closed to new pods (`hami.io/device-cordon`)."""
    effectivegpu_device_config: str = Field(default="kube-system/egpu-scheduler-device", pattern=_PLACE)
    """EffectiveGPU's ConfigMap with resource names, in HAMi's form."""
    effectivegpu_node_config: str = Field(default="kube-system/egpu-device-plugin", pattern=_PLACE)
    """EffectiveGPU's ConfigMap with the nodes' configuration, in HAMi's form."""
    effectivegpu_device_plugin: str = Field(default="kube-system/egpu-device-plugin", pattern=_PLACE)
    """DaemonSet of EffectiveGPU's device plugin."""
    effectivegpu_model_resources: Mapping[str, ResourceName] = {}
    """Count resource of each card model, by a part of the model's name; empty where one name counts all models."""
    volcano_low_priority_queue: str | None = Field(default=None, min_length=1, max_length=253)
    """Volcano's queue that pods of low priority wait in; none leaves queues as they are."""


WEEKDAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
"""Days of the week, in the order of `datetime.weekday`."""


class GuardSettings(Section):
    """What stands against applying a plan, in numbers."""

    change_days: tuple[str, ...] = WEEKDAYS
    """Days of the week on which changes may begin, by the clock of `cluster.time_zone`: mon, tue, … sun."""
    change_hours: str = "00:00-24:00"
    """Hours of these days between which changes may begin, such as 09:00-17:00; 22:00-06:00 ends the next day."""
    change_holidays: tuple[Day, ...] = ()
    """Days on which nothing begins, such as 2026-12-24."""
    history_coverage_min: Ratio = 0.8
    """Least coverage of the history that a plan was made from."""
    history_age_max_seconds: Seconds = 172_800
    """How old the newest sample of that history may be when the plan is applied."""
    cards_per_apply_max: Count | None = None
    """Most cards that one apply may free; none for no limit."""
    saving_per_apply_max: Price | None = None
    """Most that the stages of one apply may save in a week, in `prices.currency`: how much may change at once."""
    two_approvals_cards_min: Count | None = None
    """Freed cards of one apply, or cards of a node that gets another mode, from which two different people must have
    approved; none for one person always."""
    gaps_allowed: bool = False
    """Whether services of one replica and latency-critical ones may lose a pod for a while: an explicit yes. With it
    plans also hold services that find no free card to change cards without a gap."""
    harm_ratio_max: Annotated[float, Field(gt=0.0, le=1.0)] = 0.01
    """Violated share of a service's active time that plans may cost it: its harm budget."""
    harm_budget_days: Count = 28
    """Days over which that budget is counted."""
    harm_slow_burn: Annotated[float, Field(ge=0.0)] = 1.0
    """Burn rate of a harm budget from which its workload's changes go one at a time; 1 spends it in its time."""
    harm_freeze_burn: Annotated[float, Field(ge=0.0)] = 4.0
    """Burn rate from which nothing more of a plan is changed; nor is it once the budget is spent."""
    harm_restore_burn: Annotated[float, Field(ge=0.0)] = 14.0
    """Burn rate from which the stage under way is taken back."""

    @field_validator("change_days")
    @classmethod
    def _are_days(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        unknown = [day for day in value if day not in WEEKDAYS]
        if unknown or not value:
            raise ValueError(f"expected days of the week among {', '.join(WEEKDAYS)}")
        return value

    @field_validator("change_hours")
    @classmethod
    def _are_hours(cls, value: str) -> str:
        hours_of(value)
        return value


def hours_of(text: str) -> tuple[time, time]:
    """Begin and end of a span of hours such as 09:00-17:00; an end of 24:00 is 00:00 of the next day.

    Raises:
        ValueError: it is no such span.
    """
    begin, sign, end = text.partition("-")
    try:
        if sign:
            return time.fromisoformat(begin.strip()), time.fromisoformat(
                "00:00" if end.strip() == "24:00" else end.strip()
            )
    except ValueError as exc:
        raise ValueError("expected hours such as 09:00-17:00") from exc
    raise ValueError("expected hours such as 09:00-17:00")
