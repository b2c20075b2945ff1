"""What HAMi's own webhook does to a new pod, and what a pod asks of HAMi's scheduler after it.

Pure. The simulated cluster runs it where a real one runs HAMi's; the rules are those of
Project-HAMi/HAMi:pkg/device/nvidia/device.go (MutateAdmission, GenerateResourceRequests) with the chart's defaults.
"""

from __future__ import annotations

from enforcer.backends.hami_dialect import HAMI_WORDS
from enforcer.dialect import WHOLE_CORE_PERCENT
from enforcer.manifest import Manifest
from enforcer.simulated.books import ContainerAsk, PodAsk
from enforcer.simulated.kin import amount, limits_of, pod_ask
from fleet.errors import Refused
from fleet.grammars.hami import (
    CORES_RESOURCE,
    COUNT_RESOURCE,
    FRAMEBUFFER_PERCENT_RESOURCE,
    FRAMEBUFFER_RESOURCE,
    PRIORITY_ENV,
    PRIORITY_RESOURCE,
)

_CARD_RESOURCES = frozenset({COUNT_RESOURCE, FRAMEBUFFER_RESOURCE, FRAMEBUFFER_PERCENT_RESOURCE, CORES_RESOURCE})
_FRAMEBUFFER_MIB_MAX = 2**31 - 1
"""A container that asks for more is taken for one that asks for no card."""


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
    if any(limits_of(container).keys() & _CARD_RESOURCES for container in every):
        spec["schedulerName"] = "hami-scheduler"
        privileged = [one["name"] for one in every if (one.get("securityContext") or {}).get("privileged")]
        if privileged:
            raise Refused(f"cannot admit pod {name}: container {privileged[0]} is privileged")
        if spec.get("nodeName"):
            raise Refused(f"cannot admit pod {name}: pod has node assigned")
    return {**pod, "spec": spec}


def ask_of(pod: Manifest) -> PodAsk:
    """What a pod that passed `mutate` asks for."""
    asks = []
    for container in pod["spec"]["containers"]:
        limits = limits_of(container)
        count = amount(limits, COUNT_RESOURCE)
        mib = amount(limits, FRAMEBUFFER_RESOURCE)
        if count and mib <= _FRAMEBUFFER_MIB_MAX:
            asks.append(
                ContainerAsk(
                    container=container["name"],
                    count=count,
                    framebuffer_mib=mib or None,
                    framebuffer_percent=amount(limits, FRAMEBUFFER_PERCENT_RESOURCE) or 100,
                    core_percent=min(amount(limits, CORES_RESOURCE), WHOLE_CORE_PERCENT),
                )
            )
    return pod_ask(pod, HAMI_WORDS, asks)


def _mutated(container: Manifest, pod: str) -> Manifest:
    limits = dict(limits_of(container))
    percent = amount(limits, FRAMEBUFFER_PERCENT_RESOURCE)
    if not 0 <= percent <= 100:
        raise Refused(f"cannot admit pod {pod}: {FRAMEBUFFER_PERCENT_RESOURCE}={percent}, expected 0 to 100")
    if amount(limits, CORES_RESOURCE) < 0 or amount(limits, FRAMEBUFFER_RESOURCE) < 0:
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
