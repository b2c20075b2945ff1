"""How many replicas a service has at night, written where its scaler looks: the autoscaler first.

Beside an autoscaler only its lower bound is lowered (`HorizontalPodAutoscaler` of autoscaling/v2: `spec.minReplicas`;
KEDA's `ScaledObject`: `spec.minReplicaCount`), so it scales in as far as demand lets it and out again when demand comes
back in the night: the tide never fights it. Without one the owner's `spec.replicas` is set. A service that is asked for
more right now than the night's forecast said keeps what it has, and so does one whose PodGroup of Volcano wants more
pods than would stay.

Sources: kubernetes/api:autoscaling/v2/types.go; kedacore/keda:apis/keda/v1alpha1/scaledobject_types.go;
volcano-sh/volcano:pkg/scheduler/plugins/gang/gang.go (JobValid).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from enforcer.backends.volcano import GROUP_ANNOTATION
from enforcer.cluster import ClusterReader
from enforcer.disruption import is_healthy, selects
from enforcer.manifest import Manifest, field_of, workload_parts
from enforcer.ownership import workload_of_pod
from enforcer.record.journal import FieldIntent, ObjectIntent
from enforcer.safety.availability import scaled_below
from enforcer.safety.gitops import gitops_manager
from enforcer.seat import is_over
from enforcer.wishes import Wishes, wishes_in
from fleet.decisions import ScheduledReplicas
from fleet.errors import Misconfigured
from fleet.inventory import OPT_OUT_LABEL, WARM_REPLICAS_LABEL, WorkloadId, is_yes
from fleet.selectors import selects_labels

_AUTOSCALERS = (("ScaledObject", "spec.minReplicaCount"), ("HorizontalPodAutoscaler", "spec.minReplicas"))
"""Kind and its lower bound. KEDA first: it keeps a HorizontalPodAutoscaler of its own and undoes what others write."""
_WARM_DIGITS_MAX = 9
"""Of a number that a tenant wrote; an annotation may have a quarter of a million."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NightScale:
    """What becomes of the scheduled services.

    Attributes:
        services: those that scale in.
        intents: what is written for each of them, in the same order: to its autoscaler, or to itself.
        left: services that keep what they have, each with the reason.
    """

    services: tuple[WorkloadId, ...] = ()
    intents: tuple[ObjectIntent, ...] = ()
    left: tuple[tuple[WorkloadId, str], ...] = ()


def night_scale(schedule: Sequence[ScheduledReplicas], reader: ClusterReader) -> NightScale:
    """Who scales in now, and by which field.

    Raises:
        Unavailable: it can't be reached.
    """
    services: list[WorkloadId] = []
    intents: list[ObjectIntent] = []
    left: list[tuple[WorkloadId, str]] = []
    for entry in schedule:
        namespace, kind, name = workload_parts(entry.workload)
        owner = reader.get(kind, namespace, name)
        if owner is None:
            left.append((entry.workload, "it is gone"))
            continue
        why = _refusal(owner, entry.replicas, wishes_in(reader, namespace))
        scalers = _autoscalers(reader, namespace, kind, name)
        wanted = max((int(field_of(scaler, "status.desiredReplicas") or "0") for scaler, _ in scalers), default=0)
        if why is None and wanted > entry.replicas:
            why = f"its autoscaler wants {wanted} now, the night's forecast was {entry.replicas}"
        why = why or _below_budget(owner, entry.replicas, reader) or _below_gang(entry, namespace, reader)
        if why is not None:
            left.append((entry.workload, why))
            continue
        target, field = scalers[0] if scalers else (owner, "spec.replicas")
        keeper = gitops_manager(target)
        if keeper is not None:
            left.append((entry.workload, f"{keeper} keeps its {target['kind']} as its repository has it"))
            continue
        intent = _lowered(target, field, entry.replicas)
        if intent is None:
            left.append((entry.workload, f"it has no more than {entry.replicas} replicas anyway"))
        else:
            services.append(entry.workload)
            intents.append(intent)
    return NightScale(services=tuple(services), intents=tuple(intents), left=tuple(left))


def replicas_short(workloads: Sequence[WorkloadId], reader: ClusterReader) -> dict[WorkloadId, str]:
    """Services that do not have all their replicas ready, with both numbers; gone ones are left out.

    An autoscaler takes a while to follow its lower bound, so that counts where it is higher than what is asked for now.

    Raises:
        Unavailable: the cluster can't be reached.
    """
    short = {}
    for workload in workloads:
        namespace, kind, name = workload_parts(workload)
        owner = reader.get(kind, namespace, name)
        if owner is None:
            continue
        wanted = int(field_of(owner, "spec.replicas") or "1")
        if wanted > 0:  # at 0 autoscalers rest
            bounds = (field_of(*scaler) for scaler in _autoscalers(reader, namespace, kind, name))
            wanted = max(wanted, *(int(bound or "0") for bound in bounds), 0)
        ready = int(field_of(owner, "status.readyReplicas") or "0")
        if ready < wanted:
            short[workload] = f"{ready} of {wanted} replicas are ready"
    return short


def _refusal(owner: Manifest, replicas: int, wishes: Wishes) -> str | None:
    if replicas < 1:
        return "a night leaves each service a replica at least"
    if is_yes(wishes.of(OPT_OUT_LABEL, owner)):
        return f"its owner opted out ({OPT_OUT_LABEL})"
    warm = wishes.of(WARM_REPLICAS_LABEL, owner) or "0"
    if not warm.isdecimal() or len(warm) > _WARM_DIGITS_MAX or int(warm) > replicas:
        return f"{WARM_REPLICAS_LABEL}={warm[:20]} keeps more than {replicas} replicas warm"
    return None


def _below_budget(owner: Manifest, replicas: int, reader: ClusterReader) -> str | None:
    """Why scaling in would leave fewer pods than a disruption budget names; percentages fall with the replicas."""
    namespace = owner["metadata"]["namespace"]
    budgets = reader.list_objects("PodDisruptionBudget", namespace)
    if not budgets:
        return None
    pods = reader.list_objects("Pod", namespace)
    selector = owner.get("spec", {}).get("selector") or {}
    for budget in budgets:
        own = sum(
            is_healthy(pod) and selects(budget, pod) and selects_labels(selector, pod["metadata"].get("labels") or {})
            for pod in pods
        )
        why = scaled_below(budget, [pod for pod in pods if selects(budget, pod)], max(0, own - replicas))
        if own and why is not None:
            return str(why)
    return None


def _below_gang(entry: ScheduledReplicas, namespace: str, reader: ClusterReader) -> str | None:
    """Why a pod that dies in the night would find no place: Volcano places pods of a PodGroup only so many together."""
    groups: dict[str, Manifest] = {}
    with suppress(Misconfigured):  # doctor says who may not read them; nobody stays at home for that
        groups = {group["metadata"]["name"]: group for group in reader.list_objects("PodGroup", namespace)}
    if not groups:
        return None
    members: Counter[str] = Counter()
    own: Counter[str] = Counter()
    for pod in reader.list_objects("Pod", namespace):
        name = str((pod["metadata"].get("annotations") or {}).get(GROUP_ANNOTATION))
        if name in groups and not is_over(pod):
            members[name] += 1
            own[name] += workload_of_pod(pod, {}) == entry.workload
    leaving = own.total() - entry.replicas
    for name, count in own.items():
        least = int(field_of(groups[name], "spec.minMember") or "0")
        if least > 1 and leaving > 0 and members[name] - min(leaving, count) < least:
            return f"PodGroup {name} has its pods placed only {least} together, so one that dies at night would wait"
    return None


def _autoscalers(reader: ClusterReader, namespace: str, kind: str, name: str) -> list[tuple[Manifest, str]]:
    """Who scales a service, each with its lower bound; the one to be changed comes first."""
    return [
        (scaler, bound)
        for scaler_kind, bound in _AUTOSCALERS
        for scaler in reader.list_objects(scaler_kind, namespace)
        # KEDA takes a Deployment where no kind is named.
        if (field_of(scaler, "spec.scaleTargetRef.kind") or "Deployment", field_of(scaler, "spec.scaleTargetRef.name"))
        == (kind, name)
    ]


def _lowered(target: Manifest, field: str, replicas: int) -> ObjectIntent | None:
    old = field_of(target, field)
    # The API server fills in 1 where an HPA names no bound; KEDA takes 0, and then there is nothing to lower.
    if int(old or ("0" if field == "spec.minReplicaCount" else "1")) <= replicas:
        return None
    return tide_intent(target, field, old, str(replicas))


def tide_intent(manifest: Manifest, field: str, old: str | None, new: str) -> ObjectIntent:
    """One field of an object that the tide changes."""
    metadata = manifest["metadata"]
    return ObjectIntent(
        kind=manifest["kind"],
        namespace=metadata.get("namespace", ""),
        name=metadata["name"],
        resource_version=metadata["resourceVersion"],
        recommendation="tide",
        fields=(FieldIntent(field=field, old=old, new=new),),
    )
