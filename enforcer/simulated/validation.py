"""What the API server refuses in the owners that roll, where a rollout could trip over it.

Pure. Source: kubernetes:pkg/apis/apps/validation/validation.go (ValidateDeploymentSpec,
ValidateRollingUpdateDeployment, ValidateStatefulSetSpec).
"""

from __future__ import annotations

from typing import Any

from enforcer.manifest import Manifest
from fleet.errors import Refused

_DEADLINE_SECONDS = 600


def refuse_invalid(owner: Manifest) -> None:
    """Check the specification of an owner.

    Raises:
        Refused: the API server would not take it; the message names field and value.
    """
    spec = owner.get("spec", {})
    if owner["kind"] == "Deployment":
        _check_deployment(owner, spec)
    elif owner["kind"] == "StatefulSet":
        strategy = spec.get("updateStrategy", {})
        if strategy.get("type") == "OnDelete" and strategy.get("rollingUpdate") is not None:
            raise _invalid(owner, "spec.updateStrategy.rollingUpdate: only allowed for updateStrategy 'RollingUpdate'")


def _check_deployment(owner: Manifest, spec: Manifest) -> None:
    least, deadline = int(spec.get("minReadySeconds", 0)), int(spec.get("progressDeadlineSeconds", _DEADLINE_SECONDS))
    if deadline <= least:
        raise _invalid(owner, f"spec.progressDeadlineSeconds={deadline} must be greater than minReadySeconds={least}")
    strategy = spec.get("strategy", {})
    rolling = strategy.get("rollingUpdate")
    if strategy.get("type") == "Recreate" and rolling is not None:
        raise _invalid(owner, "spec.strategy.rollingUpdate may not be specified when strategy type is 'Recreate'")
    if rolling and all(_is_nothing(rolling.get(key, "25%")) for key in ("maxSurge", "maxUnavailable")):
        raise _invalid(owner, "spec.strategy.rollingUpdate.maxUnavailable may not be 0 when maxSurge is 0")


def _is_nothing(bound: Any) -> bool:
    if isinstance(bound, str) and not bound.endswith("%"):
        raise Refused(f"cannot change a Deployment: {bound!r} is neither a number nor a percentage")
    return bound in (0, "0%")


def _invalid(owner: Manifest, why: str) -> Refused:
    metadata = owner["metadata"]
    return Refused(f"cannot change {owner['kind']} {metadata['namespace']}/{metadata['name']}: invalid: {why}")
