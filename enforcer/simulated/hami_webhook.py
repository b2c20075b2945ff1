"""What HAMi's own webhook does to a new pod, and what a pod asks of HAMi's scheduler after it.

Pure. The simulated cluster runs it where a real one runs HAMi's; the rules are those of
Project-HAMi/HAMi:pkg/device/nvidia/device.go (MutateAdmission, GenerateResourceRequests) with the chart's defaults.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

from enforcer.dialect import WHOLE_CORE_PERCENT
from enforcer.manifest import Manifest
from fleet.errors import Misconfigured, Refused
from fleet.grammars.hami import (
    AVOID_CARD_ANNOTATION,
    AVOID_MODEL_ANNOTATION,
    CORES_RESOURCE,
    COUNT_RESOURCE,
    FRAMEBUFFER_PERCENT_RESOURCE,
    FRAMEBUFFER_RESOURCE,
    PRIORITY_ENV,
    PRIORITY_RESOURCE,
    USE_CARD_ANNOTATION,
    USE_MODEL_ANNOTATION,
)
from fleet.units import parse_quantity


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerAsk:
    """What one container asks for.

    Attributes:
        container: name.
        count: cards, distinct.
        framebuffer_mib: MiB per card; None where it is a share of the card.
        framebuffer_percent: percent of the card, where no MiB are given.
        core_percent: percent of each card, 0-100.
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
        containers: one per container that wants a card.
        use_cards: only these cards; empty for any.
        avoid_cards: none of these.
        use_models: only card types that hold one of these texts; empty for any.
        avoid_models: no card type that holds one of these.
        cpu_cores: host CPU.
        memory_bytes: host memory.
    """

    containers: tuple[ContainerAsk, ...]
    use_cards: frozenset[str]
    avoid_cards: frozenset[str]
    use_models: tuple[str, ...]
    avoid_models: tuple[str, ...]
    cpu_cores: float
    memory_bytes: int


def mutate(pod: Manifest) -> Manifest:
    """Fill in what HAMi fills in: count, cores of a whole card, the priority's variable.

    Raises:
        Refused: HAMi denies the pod; the message says which value.
    """
    containers = [_mutated(container, pod["metadata"]["name"]) for container in pod["spec"]["containers"]]
    return {**pod, "spec": {**pod["spec"], "containers": containers}}


def ask_of(pod: Manifest) -> PodAsk:
    """What a pod that passed `mutate` asks for."""
    annotations = pod["metadata"].get("annotations", {})
    asks = []
    cpu, memory = Decimal(0), Decimal(0)
    for container in pod["spec"]["containers"]:
        resources = container.get("resources", {})
        limits = resources.get("limits", {})
        requests = {**limits, **resources.get("requests", {})}
        cpu += parse_quantity(str(requests.get("cpu", "0")))
        memory += parse_quantity(str(requests.get("memory", "0")))
        count = _amount(limits, COUNT_RESOURCE, 0)
        if count:
            mib = _amount(limits, FRAMEBUFFER_RESOURCE, -1)
            asks.append(
                ContainerAsk(
                    container=container["name"],
                    count=count,
                    framebuffer_mib=None if mib <= 0 else mib,
                    framebuffer_percent=_amount(limits, FRAMEBUFFER_PERCENT_RESOURCE, 100),
                    core_percent=_amount(limits, CORES_RESOURCE, 0),
                )
            )
    return PodAsk(
        containers=tuple(asks),
        use_cards=frozenset(_listed(annotations, USE_CARD_ANNOTATION)),
        avoid_cards=frozenset(_listed(annotations, AVOID_CARD_ANNOTATION)),
        use_models=tuple(_listed(annotations, USE_MODEL_ANNOTATION)),
        avoid_models=tuple(_listed(annotations, AVOID_MODEL_ANNOTATION)),
        cpu_cores=float(cpu),
        memory_bytes=int(memory),
    )


def _mutated(container: Manifest, pod: str) -> Manifest:
    resources = container.get("resources", {})
    limits = dict(resources.get("limits", {}))
    asked = (COUNT_RESOURCE, FRAMEBUFFER_RESOURCE, FRAMEBUFFER_PERCENT_RESOURCE, CORES_RESOURCE)
    if not any(name in limits for name in asked):
        return container
    percent = _amount(limits, FRAMEBUFFER_PERCENT_RESOURCE, 100)
    if not 0 <= percent <= 100:
        raise Refused(f"cannot admit pod {pod}: {FRAMEBUFFER_PERCENT_RESOURCE}={percent}, expected 0 to 100")
    cores = _amount(limits, CORES_RESOURCE, 0)
    if cores < 0 or _amount(limits, FRAMEBUFFER_RESOURCE, 0) < 0:
        raise Refused(f"cannot admit pod {pod}: {CORES_RESOURCE} and {FRAMEBUFFER_RESOURCE} can't be negative")
    limits.setdefault(COUNT_RESOURCE, "1")
    if cores > WHOLE_CORE_PERCENT:
        limits[CORES_RESOURCE] = str(WHOLE_CORE_PERCENT)
    if FRAMEBUFFER_RESOURCE not in limits and percent == 100 and CORES_RESOURCE not in limits:
        limits[CORES_RESOURCE] = str(WHOLE_CORE_PERCENT)
    mutated = {**container, "resources": {**resources, "limits": limits}}
    if PRIORITY_RESOURCE in limits:
        others = [entry for entry in container.get("env", ()) if entry.get("name") != PRIORITY_ENV]
        mutated["env"] = [*others, {"name": PRIORITY_ENV, "value": str(limits[PRIORITY_RESOURCE])}]
    return mutated


def _amount(limits: Manifest, name: str, absent: int) -> int:
    if name not in limits:
        return absent
    try:
        return int(parse_quantity(str(limits[name])))
    except Misconfigured as exc:
        raise Refused(f"cannot admit a pod with {name}={limits[name]!r}: no quantity") from exc


def _listed(annotations: Manifest, name: str) -> list[str]:
    return [part.strip() for part in annotations.get(name, "").split(",") if part.strip()]
