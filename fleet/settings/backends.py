"""Settings of GPU-sharing backends: how an installation differs from its chart.

Part of `fleet.settings.settings`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field, StringConstraints

from fleet.settings.kinds import Section

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
