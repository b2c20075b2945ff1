"""How long a pod of a workload may take to change seats, by what its own template says of its start and its end.

Pure. Called by the pod mover while it waits: a service that loads a model for half an hour is not late after ten
minutes, and one that drains requests holds its card until it is gone.

Source: kubernetes:pkg/apis/core/v1/defaults.go (SetDefaults_Probe), kubernetes:pkg/apis/apps/v1/defaults.go.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from enforcer.kinds.register import pod_templates
from enforcer.manifest import Manifest, field_of
from enforcer.record.journal import ObjectIntent
from enforcer.rollout.holding import values_before

_PERIOD_SECONDS, _FAILURES = 10, 3
_GRACE_SECONDS = 30
_DEADLINE, _DEADLINE_DEFAULT_SECONDS = "spec.progressDeadlineSeconds", 600
"""The API server fills this in, so a deadline of that length was wished for by nobody."""


def change_seconds_max(owner: Manifest | None, intent: ObjectIntent | None, usual_seconds: float) -> float:
    """Most seconds until a pod of an owner is ready in its new seat and its predecessor has left the old one.

    Args:
        intent: what is changed of it, with the fields that hold it; None where nothing is.
        usual_seconds: how long any pod may take to start.
    """
    if owner is None:
        return usual_seconds
    before = {} if intent is None else values_before(owner, intent.holds)
    deadline = int(before.get(_DEADLINE, field_of(owner, _DEADLINE)) or "0")
    specs = [template.body.get("spec") or {} for template in pod_templates(owner)]
    starts = [_start_seconds(container) for spec in specs for container in spec.get("containers") or ()]
    grace = max((int(spec.get("terminationGracePeriodSeconds", _GRACE_SECONDS)) for spec in specs), default=0)
    wished = deadline if deadline > _DEADLINE_DEFAULT_SECONDS else 0
    return max(usual_seconds, wished, *starts, 0) + grace


def _start_seconds(container: Mapping[str, Any]) -> int:
    """How long a container may start before its kubelet gives it up, or before it is first asked."""
    startup, readiness = container.get("startupProbe"), container.get("readinessProbe") or {}
    asked = int(readiness.get("initialDelaySeconds", 0)) + int(readiness.get("periodSeconds", _PERIOD_SECONDS))
    if not startup:
        return asked
    tries = int(startup.get("failureThreshold", _FAILURES)) * int(startup.get("periodSeconds", _PERIOD_SECONDS))
    return int(startup.get("initialDelaySeconds", 0)) + tries + asked
