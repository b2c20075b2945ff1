"""Kubernetes' own kinds: Deployment, StatefulSet, DaemonSet, Job, CronJob.

A Job's template can't be changed: the grant of a pod that is made anew after an eviction is given at admission, and a
backend without an admission step refuses it. A CronJob's is changed for the runs that come; the Job that runs keeps the
template that it was made from, so its pods are left alone.

Source: kubernetes/api:apps/v1/types.go, kubernetes/api:batch/v1/types.go,
kubernetes:pkg/apis/batch/validation/validation.go (ValidateJobUpdate), kubernetes:pkg/controller/cronjob.
"""

from __future__ import annotations

import re

from enforcer.kinds.kind import PodTemplate, Reach, WorkloadKind, fewer_replicas, one_size, stopped_whole
from enforcer.manifest import Manifest

_CRON_TEMPLATE = "spec.jobTemplate.spec.template"


def _cron_templates(owner: Manifest) -> tuple[PodTemplate, ...]:
    body = owner.get("spec", {}).get("jobTemplate", {}).get("spec", {}).get("template")
    return (PodTemplate(role="", path=_CRON_TEMPLATE, body=body),) if isinstance(body, dict) else ()


DEPLOYMENT = WorkloadKind(
    kind="Deployment", reach=Reach.ROLLS, sizes=one_size, scale=fewer_replicas, counts_rolled=True, by_replica_sets=True
)
STATEFUL_SET = WorkloadKind(
    kind="StatefulSet", reach=Reach.ROLLS, sizes=one_size, scale=fewer_replicas, counts_rolled=True
)
DAEMON_SET = WorkloadKind(kind="DaemonSet", reach=Reach.EVICTED)
JOB = WorkloadKind(kind="Job", reach=Reach.EVICTED, stop_field="spec.suspend", scale=stopped_whole("spec.suspend"))
CRON_JOB = WorkloadKind(
    kind="CronJob",
    reach=Reach.NEXT_RUN,
    template_fields=re.compile(r"spec\.jobTemplate\.spec\.template\."),
    templates=_cron_templates,
    stop_field="spec.suspend",
    scale=stopped_whole("spec.suspend"),
    note="the change counts from its next run on; a run that is under way keeps its cards until it ends",
)
