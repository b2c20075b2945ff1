"""HAMi's names, and how it writes seats on pods and cards on nodes.

The names stand in the ConfigMap `hami-scheduler-device`; where that is absent or silent, they are the chart's. Sources:
Project-HAMi/HAMi:pkg/device/nvidia/device.go (NvidiaConfig), Project-HAMi/HAMi:pkg/device/devices.go,
Project-HAMi/HAMi:charts/hami/templates/scheduler/device-configmap.yaml.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any

import yaml

from enforcer.dialect import ObjectKey, SeatSlice, StandingCard
from enforcer.manifest import Manifest, field_of
from enforcer.resource_names import Words, listed_words
from fleet.errors import Corrupt
from fleet.grammars.hami import (
    AVOID_CARD_ANNOTATION,
    AVOID_MODEL_ANNOTATION,
    CARD_POLICY_ANNOTATION,
    CORES_RESOURCE,
    COUNT_RESOURCE,
    DEVICE_CORDON_ANNOTATION,
    DEVICES_ALLOCATED_ANNOTATION,
    FRAMEBUFFER_PERCENT_RESOURCE,
    FRAMEBUFFER_RESOURCE,
    NODE_POLICY_ANNOTATION,
    NODE_REGISTER_ANNOTATION,
    PRIORITY_RESOURCE,
    USE_CARD_ANNOTATION,
    USE_MODEL_ANNOTATION,
    DeviceGrant,
    RegisteredDevice,
    containers_of_parts,
    parse_devices_allocated,
    parse_node_register,
)
from fleet.yaml_text import load_yaml

HAMI_WORDS = Words(
    count=COUNT_RESOURCE,
    framebuffer=FRAMEBUFFER_RESOURCE,
    framebuffer_percent=FRAMEBUFFER_PERCENT_RESOURCE,
    cores=CORES_RESOURCE,
    priority=PRIORITY_RESOURCE,
    use_card=USE_CARD_ANNOTATION,
    avoid_card=AVOID_CARD_ANNOTATION,
    use_model=USE_MODEL_ANNOTATION,
    avoid_model=AVOID_MODEL_ANNOTATION,
    node_policy=NODE_POLICY_ANNOTATION,
    card_policy=CARD_POLICY_ANNOTATION,
)

SCHEDULER_CONFIG: ObjectKey = ("ConfigMap", "kube-system", "hami-scheduler-device")
"""HAMi's device configuration, resource names among it."""

SCHEDULER_CONFIG_FIELD = "data[device-config.yaml]"

DEVICE_CONFIG: ObjectKey = ("ConfigMap", "kube-system", "hami-device-plugin")
"""HAMi's node configuration."""

DEVICE_PLUGIN: ObjectKey = ("DaemonSet", "kube-system", "hami-device-plugin")

_RESOURCE = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?/[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?", re.ASCII)

_NAME_LENGTH_MAX = 317
"""A DNS prefix of 253 characters, a slash, and a name of 63."""

_FACTOR_MAX = 1 << 20


@dataclass(frozen=True, slots=True)
class HamiDialect:
    """HAMi's annotations (the port `Dialect`).

    Attributes:
        allocated: annotation of pods with what the scheduler granted.
        register: annotation of nodes that lists their cards.
    """

    words: Words = HAMI_WORDS
    _: KW_ONLY
    device_config: ObjectKey = SCHEDULER_CONFIG
    node_config: ObjectKey = DEVICE_CONFIG
    plugin: ObjectKey = DEVICE_PLUGIN
    allocated: str = DEVICES_ALLOCATED_ANNOTATION
    register: str = NODE_REGISTER_ANNOTATION

    @property
    def config_objects(self) -> tuple[ObjectKey, ...]:
        """Names and node configuration."""
        return self.device_config, self.node_config

    def configured(self, configs: Mapping[ObjectKey, Manifest]) -> HamiDialect:
        """With the names of `hami-scheduler-device`; see the port."""
        section, words = nvidia_section(configs, self.device_config), self.words
        where = self.device_config[2]

        def named(key: str, absent: str | None) -> str:
            return _resource_name(section, key, absent or "", where)

        found = replace(
            words,
            count=named("resourceCountName", words.count),
            framebuffer=named("resourceMemoryName", words.framebuffer),
            framebuffer_percent=named("resourceMemoryPercentageName", words.framebuffer_percent) or None,
            cores=named("resourceCoreName", words.cores),
            priority=named("resourcePriorityName", words.priority) or None,
            framebuffer_factor=memory_factor(section, "memoryFactor", words.framebuffer_factor, where),
        )
        return replace(self, words=found)

    def slices_of_pod(self, pod: Manifest) -> tuple[SeatSlice, ...]:
        """What `hami.io/vgpu-devices-allocated` says; see the port."""
        text = pod["metadata"].get("annotations", {}).get(self.allocated, "")
        return slices_of_grants(pod, parse_devices_allocated(text, self.allocated), priority_of(self.words))

    def cards_of_node(self, node: Manifest) -> tuple[StandingCard, ...]:
        """What `hami.io/node-nvidia-register` lists; see the port."""
        text = node["metadata"].get("annotations", {}).get(self.register, "[]")
        return cards_of_register(node, parse_node_register(text, self.register))


HAMI_DIALECT = HamiDialect()
"""HAMi with the names of its chart."""


CORDON_FIELD = f"metadata.annotations[{DEVICE_CORDON_ANNOTATION}]"


def cordoned_cards(node: Mapping[str, object]) -> tuple[str, ...]:
    """Cards that a node keeps from new pods."""
    return listed_words(field_of(node, CORDON_FIELD))


def nvidia_section(configs: Mapping[ObjectKey, Manifest], key: ObjectKey) -> Mapping[str, Any]:
    """The section `nvidia` of a device configuration; empty where there is none.

    Raises:
        Corrupt: it is no YAML map.
    """
    config = configs.get(key)
    text = None if config is None else field_of(config, SCHEDULER_CONFIG_FIELD)
    if not text:
        return {}
    try:
        content = load_yaml(text)
        section = content.get("nvidia") or {}
        return {str(name): value for name, value in section.items()}
    except (yaml.YAMLError, ValueError, RecursionError, AttributeError) as exc:
        raise Corrupt(f"cannot read ConfigMap {key[1]}/{key[2]}: no map with a section nvidia") from exc


def priority_of(words: Words) -> Callable[[Manifest], str | None]:
    """Reads the priority of a container from its limits."""

    def read(container: Manifest) -> str | None:
        value = container.get("resources", {}).get("limits", {}).get(words.priority)
        return None if value is None else str(value)

    return read


def slices_of_grants(
    pod: Manifest, grants: Sequence[Sequence[DeviceGrant]], priority: Callable[[Manifest], str | None]
) -> tuple[SeatSlice, ...]:
    """Grants per container as shares.

    Args:
        grants: one tuple per part of the annotation.
        priority: reads the priority of a container.

    Raises:
        Corrupt: there are more parts than containers.
    """
    return tuple(
        SeatSlice(
            container=container["name"],
            card=grant.card,
            framebuffer_mib=grant.framebuffer_mib,
            core_percent=grant.core_percent,
            priority=priority(container),
        )
        for container, granted in zip(containers_of_grants(pod, grants), grants, strict=True)
        for grant in granted
    )


def containers_of_grants(pod: Manifest, grants: Sequence[Sequence[DeviceGrant]]) -> list[Manifest]:
    """The container that each part of an allocation is of.

    Raises:
        Corrupt: there are more parts than containers.
    """
    inits, mains = pod["spec"].get("initContainers") or (), pod["spec"]["containers"]
    containers = [*inits, *mains]
    asks = [any("/" in name for name in one.get("resources", {}).get("limits") or ()) for one in containers]
    return [containers[number] for number in containers_of_parts(grants, asks, len(inits))]


def cards_of_register(node: Manifest, devices: Sequence[RegisteredDevice]) -> tuple[StandingCard, ...]:
    """Registered devices as standing cards."""
    return tuple(
        StandingCard(
            card=device.card,
            device_type=device.device_type,
            node=node["metadata"]["name"],
            framebuffer_mib=device.framebuffer_mib,
            slices_max=device.slices_max,
            mode=device.mode,
            is_healthy=device.is_healthy,
        )
        for device in devices
    )


def memory_factor(section: Mapping[str, Any], key: str, absent: int, where: str) -> int:
    """MiB that a unit of the framebuffer resource stands for.

    Raises:
        Corrupt: no whole number from 1 to 1048576.
    """
    factor = section.get(key, absent)
    if not isinstance(factor, int) or isinstance(factor, bool) or not 1 <= factor <= _FACTOR_MAX:
        raise Corrupt(f"cannot read ConfigMap {where}: {key}={factor!r}, expected 1 to {_FACTOR_MAX}")
    return factor


def _resource_name(section: Mapping[str, Any], key: str, absent: str, where: str) -> str:
    value = section.get(key, absent)
    if value == absent:
        return absent
    if not isinstance(value, str) or len(value) > _NAME_LENGTH_MAX or _RESOURCE.fullmatch(value) is None:
        raise Corrupt(f"cannot read ConfigMap {where}: {key}={value!r} is no name of a resource")
    return value
