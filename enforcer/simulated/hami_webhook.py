"""What HAMi's own webhook does to a new pod, and what a pod asks of HAMi's scheduler after it.

Pure. The simulated cluster runs it where a real one runs HAMi's; the rules are those of
Project-HAMi/HAMi:pkg/device/nvidia/device.go (MutateAdmission, GenerateResourceRequests) with the chart's defaults.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

from enforcer.dialect import WHOLE_CORE_PERCENT
from enforcer.manifest import Manifest
from enforcer.resource_names import listed_words
from fleet.errors import Misconfigured, Refused
from fleet.grammars.hami import (
    AVOID_CARD_ANNOTATION,
    AVOID_MODEL_ANNOTATION,
    CARD_POLICY_ANNOTATION,
    CORES_RESOURCE,
    COUNT_RESOURCE,
    FRAMEBUFFER_PERCENT_RESOURCE,
    FRAMEBUFFER_RESOURCE,
    NODE_POLICY_ANNOTATION,
    PRIORITY_ENV,
    PRIORITY_RESOURCE,
    USE_CARD_ANNOTATION,
    USE_MODEL_ANNOTATION,
)
from fleet.units import parse_quantity

_CARD_RESOURCES = frozenset({COUNT_RESOURCE, FRAMEBUFFER_RESOURCE, FRAMEBUFFER_PERCENT_RESOURCE, CORES_RESOURCE})
_FRAMEBUFFER_MIB_MAX = 2**31 - 1
"""A container that asks for more is taken for one that asks for no card."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerAsk:
    """What one container asks for.

    Attributes:
        framebuffer_mib: MiB per card; None where it is a share of the card.
        framebuffer_percent: percent of the card, where no MiB are given.
        core_percent: percent of each card, 0-100; 100 keeps every other pod off.
    """

    container: str
    count: int
    framebuffer_mib: int | None
    framebuffer_percent: int
    core_percent: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PodAsk:
    """What a pod asks of the scheduler.

    Attributes:
        use_cards: only these cards; empty for any.
        avoid_cards: none of these.
        use_models: only card types that hold one of these texts; empty for any.
        avoid_models: no card type that holds one of these.
        node_policy: `spread`, else binpack.
        card_policy: `binpack`, `mutex`, or a chain of such words, else spread.
    """

    containers: tuple[ContainerAsk, ...]
    use_cards: frozenset[str]
    avoid_cards: frozenset[str]
    use_models: tuple[str, ...]
    avoid_models: tuple[str, ...]
    node_policy: str
    card_policy: str
    cpu_cores: float
    memory_bytes: int


def mutate(pod: Manifest) -> Manifest:
    """Fill in what HAMi fills in: its scheduler, count, cores of a whole card, the priority's variable.

    Raises:
        Refused: HAMi denies the pod; the message says which value.
    """
    spec, name = dict(pod["spec"]), pod["metadata"]["name"]
    fields = [field for field in ("initContainers", "containers") if field in spec]
    for field in fields:
        spec[field] = [_mutated(container, name) for container in spec[field]]
    every = [container for field in fields for container in spec[field]]
    if any(_limits(container).keys() & _CARD_RESOURCES for container in every):
        spec["schedulerName"] = "hami-scheduler"
        privileged = [one["name"] for one in every if (one.get("securityContext") or {}).get("privileged")]
        if privileged:
            raise Refused(f"cannot admit pod {name}: container {privileged[0]} is privileged")
        if spec.get("nodeName"):
            raise Refused(f"cannot admit pod {name}: pod has node assigned")
    return {**pod, "spec": spec}


def ask_of(pod: Manifest) -> PodAsk:
    """What a pod that passed `mutate` asks for."""
    annotations = pod["metadata"].get("annotations", {})
    asks = []
    cpu, memory = Decimal(0), Decimal(0)
    for container in pod["spec"]["containers"]:
        limits = _limits(container)
        requests = {**limits, **container.get("resources", {}).get("requests", {})}
        cpu += parse_quantity(str(requests.get("cpu", "0")))
        memory += parse_quantity(str(requests.get("memory", "0")))
        count = _amount(limits, COUNT_RESOURCE)
        mib = _amount(limits, FRAMEBUFFER_RESOURCE)
        if count and mib <= _FRAMEBUFFER_MIB_MAX:
            asks.append(
                ContainerAsk(
                    container=container["name"],
                    count=count,
                    framebuffer_mib=mib or None,
                    framebuffer_percent=_amount(limits, FRAMEBUFFER_PERCENT_RESOURCE) or 100,
                    core_percent=min(_amount(limits, CORES_RESOURCE), WHOLE_CORE_PERCENT),
                )
            )
    return PodAsk(
        containers=tuple(asks),
        use_cards=frozenset(listed_words(annotations.get(USE_CARD_ANNOTATION))),
        avoid_cards=frozenset(listed_words(annotations.get(AVOID_CARD_ANNOTATION))),
        use_models=listed_words(annotations.get(USE_MODEL_ANNOTATION)),
        avoid_models=listed_words(annotations.get(AVOID_MODEL_ANNOTATION)),
        node_policy=annotations.get(NODE_POLICY_ANNOTATION, ""),
        card_policy=annotations.get(CARD_POLICY_ANNOTATION, ""),
        cpu_cores=float(cpu),
        memory_bytes=int(memory),
    )


def _mutated(container: Manifest, pod: str) -> Manifest:
    limits = dict(_limits(container))
    percent = _amount(limits, FRAMEBUFFER_PERCENT_RESOURCE)
    if not 0 <= percent <= 100:
        raise Refused(f"cannot admit pod {pod}: {FRAMEBUFFER_PERCENT_RESOURCE}={percent}, expected 0 to 100")
    if _amount(limits, CORES_RESOURCE) < 0 or _amount(limits, FRAMEBUFFER_RESOURCE) < 0:
        raise Refused(f"cannot admit pod {pod}: {CORES_RESOURCE} and {FRAMEBUFFER_RESOURCE} can't be negative")
    mutated = container
    if limits.keys() & _CARD_RESOURCES:
        limits.setdefault(COUNT_RESOURCE, "1")
        is_whole = percent == 100 if FRAMEBUFFER_PERCENT_RESOURCE in limits else FRAMEBUFFER_RESOURCE not in limits
        if is_whole and CORES_RESOURCE not in limits:
            limits[CORES_RESOURCE] = str(WHOLE_CORE_PERCENT)
        mutated = {**container, "resources": {**container["resources"], "limits": limits}}
    if PRIORITY_RESOURCE in limits:
        variable = {"name": PRIORITY_ENV, "value": str(limits[PRIORITY_RESOURCE])}
        mutated = {**mutated, "env": [*container.get("env", ()), variable]}
    return mutated


def _limits(container: Manifest) -> Manifest:
    found: Manifest = container.get("resources", {}).get("limits", {})
    return found


def _amount(limits: Manifest, name: str) -> int:
    if name not in limits:
        return 0
    try:
        return int(parse_quantity(str(limits[name])))
    except Misconfigured as exc:
        raise Refused(f"cannot admit a pod with {name}={limits[name]!r}: no quantity") from exc
