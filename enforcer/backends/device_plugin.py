"""NVIDIA's device plugin: how pods ask it for cards, replicas and MIG instances, and what its nodes say of themselves.

The plugin hands out devices by number, and the kubelet picks them: neither pod nor node says which card a pod has. So
a seat here is a node and a resource, and what is free is known by counting: what the node offers less what its pods ask
for. Used by the backends `nvidia_sharing` and `mig`.

Sources: NVIDIA/k8s-device-plugin:README.md, NVIDIA/k8s-device-plugin:docs/gpu-feature-discovery/README.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from enforcer.backends.stage import Target, check_init_containers
from enforcer.dialect import FixedDialect, ObjectKey, SeatSlice, StandingCard
from enforcer.manifest import Manifest, template_of
from fleet.errors import Corrupt, Misconfigured, Refused
from fleet.grammars.mig import profile_of_resource
from fleet.units import parse_quantity

CARD_RESOURCE = "nvidia.com/gpu"
"""Whole cards; or replicas of them, where a configuration shares cards without another name."""

SHARED_RESOURCE = "nvidia.com/gpu.shared"
"""Replicas of cards under `renameByDefault`: nobody who wants a whole card gets one of them by mistake."""

CARDS_LABEL = "nvidia.com/gpu.count"
PRODUCT_LABEL = "nvidia.com/gpu.product"
FRAMEBUFFER_LABEL = "nvidia.com/gpu.memory"
"""MiB of a card."""
REPLICAS_LABEL = "nvidia.com/gpu.replicas"
STRATEGY_LABEL = "nvidia.com/gpu.sharing-strategy"

PLUGIN_CONFIGS: tuple[ObjectKey, ...] = (
    ("ConfigMap", "gpu-operator", "device-plugin-config"),
    ("ConfigMap", "gpu-operator", "time-slicing-config"),
    ("ConfigMap", "gpu-operator", "time-slicing-config-all"),
    ("ConfigMap", "nvidia-device-plugin", "nvidia-device-plugin-configs"),
    ("ConfigMap", "nvidia-device-plugin", "nvidia-plugin-configs"),
)
"""Where installations keep the plugin's configurations, as its documentation and the operator's show it; the first that
there is counts."""

MIG_CONFIGS: tuple[ObjectKey, ...] = (
    ("ConfigMap", "gpu-operator", "custom-mig-config"),
    ("ConfigMap", "gpu-operator", "custom-mig-parted-config"),
    ("ConfigMap", "gpu-operator", "mig-parted-config"),
)
"""Where installations keep layouts of their own, as the operator's documentation shows it; the first that there is
counts. Its own `default-mig-parted-config` is none of them: the operator writes that back."""

DEVICES_MAX = 64
"""Most devices that a container may ask for; no node has more."""

_REPLICAS_MAX = 1000
_FRAMEBUFFER_MIB_MAX = 1 << 22


class DevicePluginDialect(FixedDialect):
    """The plugin's resources in pods, and the labels of its nodes (the port `Dialect`).

    Args:
        config_objects: objects that may hold the configuration of the backend that speaks it.
    """

    def __init__(self, config_objects: tuple[ObjectKey, ...] = ()) -> None:
        self.config_objects = config_objects

    def slices_of_pod(self, pod: Manifest) -> tuple[SeatSlice, ...]:
        """One share per device that a bound pod asks for; see the port."""
        node = pod["spec"].get("nodeName")
        if node is None:
            return ()
        return tuple(
            counted_slice(container["name"], node, resource)
            for container in pod["spec"]["containers"]
            for resource, count in devices_of(container).items()
            for _ in range(count)
        )

    def cards_of_node(self, node: Manifest) -> tuple[StandingCard, ...]:
        """Its cards by number, from gpu-feature-discovery's labels; none where they do not say count and framebuffer.

        Which pods share a card can't be seen, only how many replicas are asked for. A card is surely free where the
        node's pods ask for nothing at all.
        """
        count, framebuffer_mib = label_number(node, CARDS_LABEL), label_number(node, FRAMEBUFFER_LABEL)
        if count is None or framebuffer_mib is None or framebuffer_mib > _FRAMEBUFFER_MIB_MAX:
            return ()
        name = node["metadata"]["name"]
        labels = node["metadata"].get("labels", {})
        return tuple(
            StandingCard(
                card=f"{name}/{CARD_RESOURCE}/{number}",
                device_type=labels.get(PRODUCT_LABEL, "").removesuffix("-SHARED"),
                node=name,
                framebuffer_mib=framebuffer_mib,
                slices_max=min(label_number(node, REPLICAS_LABEL) or 1, _REPLICAS_MAX),
                mode=labels.get(STRATEGY_LABEL),
            )
            for number in range(min(count, DEVICES_MAX))
        )


NODE_DIALECT = DevicePluginDialect((*PLUGIN_CONFIGS, *MIG_CONFIGS))
"""With all by which a node's cards are handed out in one way or another."""


def counted_slice(container: str, node: str, resource: str) -> SeatSlice:
    """One device of a resource on a node: which card it is, and how much of it, the API does not say."""
    return SeatSlice(container=container, card=None, node=node, resource=resource)


def devices_of(container: Manifest) -> dict[str, int]:
    """How many devices of NVIDIA's plugin a container asks for, by resource.

    Raises:
        Corrupt: a count is no whole number, or more than any node has.
    """
    found: dict[str, int] = {}
    for resource, text in container.get("resources", {}).get("limits", {}).items():
        if not hands_out(resource):
            continue
        try:
            count = parse_quantity(str(text))
        except Misconfigured as exc:
            raise Corrupt(f"cannot read {resource} of container {container['name']}: {exc}") from exc
        if count != int(count) or not 0 <= count <= DEVICES_MAX:
            raise Corrupt(
                f"cannot read {resource} of container {container['name']}: {text} is not a number up to {DEVICES_MAX}"
            )
        if count:
            found[resource] = int(count)
    return found


def hands_out(resource: str) -> bool:
    """Whether the plugin hands out a resource: cards, MIG instances, replicas of either."""
    return resource.removesuffix(".shared") == CARD_RESOURCE or profile_of_resource(resource) is not None


def label_number(node: Manifest, label: str) -> int | None:
    """A label of a node that is a whole number; None where it is absent or something else."""
    text = node["metadata"].get("labels", {}).get(label, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None


def offered(node: Manifest, resource: str) -> int:
    """How many devices of a resource a node has to give, taken or not; 0 where it offers none.

    Raises:
        Corrupt: its status holds no number there.
    """
    text = node.get("status", {}).get("allocatable", {}).get(resource, "0")
    try:
        return int(parse_quantity(str(text)))
    except (Misconfigured, OverflowError) as exc:
        raise Corrupt(f"cannot read {resource} of node {node['metadata']['name']}: {exc}") from exc


def offers(node: Manifest, resources: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """Fields of a node that say how many devices of resources it has to give, and what they say; see `offered`."""
    return tuple((f"status.allocatable[{resource}]", str(offered(node, resource))) for resource in resources)


def resource_fields(
    owner: Manifest, kind: str, staying: Sequence[Target], *, one_per_container: bool = False
) -> dict[str, str | None]:
    """Fields of a template by which its pods ask for the devices of their new seats.

    A template asks for the same in all its replicas, and this backend has no admission step that would say otherwise.

    Args:
        staying: its pods that are there after the stage.
        one_per_container: True where the plugin refuses requests for more than one device.

    Raises:
        Refused: its pods would have to ask for different things, the template can't be changed, or a container would
            have to ask for more than the plugin gives.
    """
    wanted = {_asked(entry) for entry in staying if entry.after}
    if not wanted or not any(entry.new for entry in staying):
        return {}
    name = f"{kind} {owner['metadata']['namespace']}/{owner['metadata']['name']}"
    if len(wanted) > 1:
        shown = "; ".join(sorted(", ".join(f"{count} {resource}" for _, resource, count in one) for one in wanted))
        raise Refused(
            f"cannot change {name}: its pods would ask for different devices ({shown}), and they have one template"
        )
    (asked,) = wanted
    if one_per_container and any(count > 1 for _, _, count in asked):
        raise Refused(f"cannot change {name}: the plugin refuses requests for more than one replica by a container")
    fields: dict[str, str | None] = {}
    for container in template_of(owner)["spec"]["containers"]:
        own = {resource: count for of, resource, count in asked if of == container["name"]}
        fields.update(_container_fields(container, own))
    if fields:
        check_init_containers(owner, lambda container: bool(devices_of(container)))
    check_job(kind, name, fields, f" with {asked[0][1]}")
    return fields


def check_job(kind: str, name: str, fields: Mapping[str, str | None], how: str = "") -> None:
    """Refuse to change a Job's template where a backend has no admission step that gives its pods something else.

    Raises:
        Refused: it is a Job, and fields of its template would change.
    """
    if kind == "Job" and fields:
        raise Refused(f"cannot change {name}: a Job's template can't be changed; make the Job anew{how}")


def _asked(target: Target) -> tuple[tuple[str, str, int], ...]:
    counts = Counter((part.container, part.resource or "") for part in target.after)
    return tuple(sorted((container, resource, count) for (container, resource), count in counts.items()))


def _container_fields(container: Manifest, wanted: Mapping[str, int]) -> dict[str, str | None]:
    """Limits that change, and requests where the template says them: an extended resource's are equal to its limit."""
    held = devices_of(container)
    if held == wanted:
        return {}
    path = f"spec.template.spec.containers[{container['name']}].resources"
    requests = container.get("resources", {}).get("requests", {})
    says_requests = any(resource in requests for resource in held)
    fields: dict[str, str | None] = {}
    for resource in sorted({*held, *wanted}):
        value = str(wanted[resource]) if resource in wanted else None
        fields[f"{path}.limits[{resource}]"] = value
        if says_requests:
            fields[f"{path}.requests[{resource}]"] = value
    return fields
