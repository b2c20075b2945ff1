"""What goes wrong, or is done by somebody else, and at which phases of a plan: the rows of the matrix.

A fault strikes a `Case`; what it needs to be cured is noted there.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import threading
import time
import urllib.error
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from bench.faulty_way import FaultyWay
from bench.live_faults import CARD_MIB, CARDS, REPLICAS, make_node, opened, plan_of
from bench.live_stages import DATA, HOTFIX
from bench.safe_matrix.case import APPLYING, NODES, Case, Phase
from bench.safe_matrix.judge import Sight, shares_of
from fleet.documents import seal_plan
from tests.cluster.workloads import deployment
from tests.control_plane import ControlPart

OTHER = "other"
"""Data folder of another machine."""
ALL = tuple(Phase)
AFTER = (Phase.APPLIED,)
SEEDS, SEEDS_OF_SHORT = 5, 20
_FAR_AWAY = "elsewhere"
_REVERTED_SECONDS = 15.0
_LIFTED_SECONDS = (3.0, 25.0)
_DRAIN_SECONDS_MAX = 30.0
_REFUSED_SECONDS_MAX = 20.0


def _nothing(case: Case) -> None:
    del case


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A row.

    Attributes:
        strike: lets it loose.
        phases: when.
        seeds: how often each phase.
        prepare: what must be there before anything is applied.
    """

    strike: Callable[[Case], None]
    phases: Sequence[Phase] = ALL
    seeds: int = SEEDS
    prepare: Callable[[Case], None] = _nothing


# --- nodes and cards ---


def _place(case: Case) -> int:
    """A node that pods run on, where there is one."""
    used = {pod["spec"].get("nodeName") for own in Sight.of(case.live.api, case.name).pods.values() for pod in own}
    return case.chance.choice([place for place in range(NODES) if _name(case, place) in used] or [0])


def _name(case: Case, place: int) -> str:
    return f"slot-{case.slot}-{place}" if place else f"slot-{case.slot}"


def _pods_on(case: Case, node: str) -> list[tuple[str, str]]:
    """App and name of each pod on a node."""
    found = Sight.of(case.live.api, case.name).pods
    return [
        (app, pod["metadata"]["name"]) for app, own in found.items() for pod in own
        if pod["spec"].get("nodeName") == node
    ]  # fmt: skip


def _deleted(case: Case) -> None:
    place = _place(case)
    lost = _pods_on(case, _name(case, place))
    case.sampler.lose(app for app, _ in lost)
    case.live.api.delete(f"/api/v1/nodes/{_name(case, place)}")
    for _, pod in lost:
        # As the collector of lost nodes' pods does it, which takes its time.
        _gone(case, pod)
    case.cures.append(partial(make_node, case.live.api, case.slot, place))


def _cordoned(case: Case) -> None:
    path = f"/api/v1/nodes/{_name(case, _place(case))}"
    case.live.api.patch(path, {"spec": {"unschedulable": True}})
    case.cures.append(lambda: _uncordon(case, path))


def _uncordon(case: Case, path: str) -> None:
    case.live.api.patch(path, {"spec": {"unschedulable": None}})


def _drained(case: Case) -> None:
    node = _name(case, _place(case))
    path = f"/api/v1/nodes/{node}"
    case.live.api.patch(path, {"spec": {"unschedulable": True}})
    case.cures.append(lambda: _uncordon(case, path))
    deadline = time.monotonic() + _DRAIN_SECONDS_MAX
    while (left := _pods_on(case, node)) and time.monotonic() < deadline:
        case.sampler.lose(app for app, _ in left)
        for _, pod in left:
            _evict(case, pod)
        time.sleep(0.5)


def _evict(case: Case, pod: str) -> None:
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": case.name}}
    try:
        case.live.api.ask("POST", f"/api/v1/namespaces/{case.name}/pods/{pod}/eviction", eviction)
    except urllib.error.HTTPError as refused:
        if refused.code not in (404, 429):
            raise


def _gone(case: Case, pod: str) -> None:
    try:
        case.live.api.delete(f"/api/v1/namespaces/{case.name}/pods/{pod}")
    except urllib.error.HTTPError as refused:
        if refused.code != 404:
            raise


def _card_lost(case: Case) -> None:
    """A card that several pods share is lost (XID 79): its node registers it as unhealthy, and its pods end."""
    own = [pod for pods in Sight.of(case.live.api, case.name).pods.values() for pod in pods]
    card, pods = max(shares_of(own).items(), key=lambda item: len(item[1]))
    place = int(card.rsplit("-", 1)[1]) // CARDS
    path = f"/api/v1/nodes/{_name(case, place)}"
    annotation = next(name for name in case.live.api.ask("GET", path)["metadata"]["annotations"] if "register" in name)
    text = case.live.api.ask("GET", path)["metadata"]["annotations"][annotation]
    entries = [{**one, "health": one["id"] != card} for one in json.loads(text)]
    entries = [{name: value for name, value in one.items() if value is not False} for one in entries]
    _annotate(case, path, annotation, json.dumps(entries))
    case.cures.append(lambda: _annotate(case, path, annotation, text))
    case.live.double.look_again()
    case.sampler.lose(app for _, app in pods)
    for name, _ in pods:
        _gone(case, name.partition("/")[2])


def _annotate(case: Case, path: str, annotation: str, text: str) -> None:
    case.live.api.patch(path, {"metadata": {"annotations": {annotation: text}}})


# --- people and their controllers ---


def _scaled(case: Case, counts: Sequence[int]) -> None:
    app, count = "c", case.chance.choice(counts)
    case.sampler.expect(app, count)
    case.replicas[app] = count
    case.theirs[app].add("replicas")
    case.live.api.patch(f"{_owner(case, app)}/scale", {"spec": {"replicas": count}})
    case.keeps.append((app, lambda owner: bool(owner["spec"]["replicas"] == count)))


def _owner(case: Case, app: str) -> str:
    return f"/apis/apps/v1/namespaces/{case.name}/deployments/{app}"


def _hotfix(case: Case) -> None:
    app = case.chance.choice(list(REPLICAS))
    case.theirs[app].add("template")
    case.live.api.patch(_owner(case, app), {"spec": {"template": {"metadata": {"annotations": {HOTFIX: "1"}}}}})
    case.keeps.append((app, lambda owner: HOTFIX in owner["spec"]["template"]["metadata"].get("annotations", {})))


def _rolled_back(case: Case) -> None:
    """`kubectl rollout undo`: the template of the ReplicaSet before the last comes back."""
    app = case.chance.choice(list(REPLICAS))
    path = f"/apis/apps/v1/namespaces/{case.name}/replicasets?labelSelector=app%3D{app}"
    found = sorted(
        case.live.api.ask("GET", path)["items"],
        key=lambda one: int(one["metadata"]["annotations"]["deployment.kubernetes.io/revision"]),
    )
    if len(found) < 2:
        return
    template = found[-2]["spec"]["template"]
    del template["metadata"]["labels"]["pod-template-hash"]
    case.theirs[app].add("template")
    _replace_template(case, app, template)


def _replace_template(case: Case, app: str, template: Mapping[str, Any]) -> None:
    operations: Any = [{"op": "replace", "path": "/spec/template", "value": template}]
    case.live.api.ask("PATCH", _owner(case, app), operations, content_type="application/json-patch+json")


def _edited(case: Case) -> None:
    """`kubectl edit`: somebody gives the containers an amount of framebuffer of their own."""
    app = case.chance.choice(list(REPLICAS))
    case.theirs[app].add("template")
    limits = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "9000"}
    container = {"name": "server", "resources": {"limits": limits, "requests": limits}}
    change = {"spec": {"template": {"spec": {"containers": [container]}}}}
    case.live.api.ask("PATCH", _owner(case, app), change, content_type="application/strategic-merge-patch+json")
    case.keeps.append((app, lambda owner: _limits(owner).get("nvidia.com/gpumem") == "9k"
                       or _limits(owner).get("nvidia.com/gpumem") == "9000"))  # fmt: skip


def _limits(owner: Mapping[str, Any]) -> Mapping[str, str]:
    found: Mapping[str, str] = owner["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]
    return found


def _reverted(case: Case) -> None:
    """A controller that writes what stands in Git, as Argo CD with self-heal does, for a while."""
    app = case.chance.choice(list(REPLICAS))
    case.theirs[app].add("template")
    wanted = case.stage.before.objects[app]["spec"]["template"]
    over = time.monotonic() + _REVERTED_SECONDS

    def revert() -> None:
        while time.monotonic() < over:
            if case.live.api.ask("GET", _owner(case, app))["spec"]["template"] != wanted:
                _replace_template(case, app, wanted)
            time.sleep(1.0)

    reverting = threading.Thread(target=revert, daemon=True)
    reverting.start()
    case.cures.append(reverting.join)


def _image_fails(case: Case) -> None:
    """New pods of a Deployment can't pull their image until somebody mends it; the operator does not wait for that."""
    app = case.chance.choice(list(REPLICAS))
    case.stage.stuck.add(app)
    if case.wanted.phase in APPLYING:
        time.sleep(case.chance.uniform(*_LIFTED_SECONDS))
        if case.wanted.seed % 2:
            case.hasten()
    case.stage.stuck.clear()


# --- processes and their ways ---


def _killed(case: Case) -> None:
    case.stage.kill()
    case.is_killed = True


def _stopped(case: Case, seconds: float) -> None:
    case.stage.stop(seconds)


def _machine_lost(case: Case) -> None:
    """The machine that applies is gone with its data folder; the operator goes on from another, which has none."""
    case.is_killed = case.stage.is_started
    case.stage.kill()
    shutil.rmtree(case.stage.folder / DATA)
    case.operator_data = OTHER


def _webhook_away(case: Case, seconds: float) -> None:
    case.live.admission.stop_answering()
    time.sleep(seconds)
    case.live.admission.answer_again()


def _api_killed(case: Case, seconds: float) -> None:
    case.live.plane.kill(ControlPart.API_SERVER)
    time.sleep(seconds)
    case.live.plane.start()


def _over_a_bad_way(case: Case) -> None:
    case.way = FaultyWay(case.live.plane)
    case.stage.kubeconfig = case.way.kubeconfig(case.folder, case.live.kubeconfig)


def _api_away(case: Case, seconds: float) -> None:
    assert case.way is not None
    case.way.is_away = True
    case.way.cut_watches()
    time.sleep(seconds)
    case.way.cure()


def _with_a_token_of_its_own(case: Case) -> None:
    secrets = "/api/v1/namespaces/gputide/secrets"
    case.live.api.create(secrets, {"metadata": {"name": case.name}})
    bound = {"kind": "Secret", "apiVersion": "v1", "name": case.name}
    asked = {"spec": {"expirationSeconds": 3600, "boundObjectRef": bound}}
    path = "/api/v1/namespaces/gputide/serviceaccounts/gputide-writer/token"
    token = str(case.live.api.ask("POST", path, asked)["status"]["token"])
    case.stage.kubeconfig = case.live.plane.kubeconfig_of_token(case.name, token)


def _token_taken(case: Case) -> None:
    """The writer's token is not valid any more; the operator comes with a new one."""
    case.live.api.delete(f"/api/v1/namespaces/gputide/secrets/{case.name}")
    with suppress(subprocess.TimeoutExpired):
        case.stage.applied(seconds_max=_REFUSED_SECONDS_MAX)
    case.stage.kill()
    case.is_killed = True
    case.stage.kubeconfig = case.live.kubeconfig


# --- what the API server refuses ---


def _lifted(case: Case, path: str) -> None:
    """Lift what was made at a path after a while, or at once where nothing is under way."""
    if case.stage.is_applying:
        time.sleep(case.chance.uniform(*_LIFTED_SECONDS))
    case.live.api.delete(path)


def _denied(case: Case) -> None:
    """A policy of the cluster denies new pods."""
    prefix = "/apis/admissionregistration.k8s.io/v1"
    rules = [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}]
    spec: dict[str, Any] = {
        "matchConstraints": {"resourceRules": rules},
        "validations": [{"expression": "false", "message": "no new pods now"}],
    }
    case.live.api.create(f"{prefix}/validatingadmissionpolicies", {"metadata": {"name": case.name}, "spec": spec})
    of = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": case.name}}}
    spec = {"policyName": case.name, "validationActions": ["Deny"], "matchResources": of}
    case.live.api.create(f"{prefix}/validatingadmissionpolicybindings", {"metadata": {"name": case.name}, "spec": spec})
    _lifted(case, f"{prefix}/validatingadmissionpolicybindings/{case.name}")
    case.live.api.delete(f"{prefix}/validatingadmissionpolicies/{case.name}")


def _quota_full(case: Case) -> None:
    path = f"/api/v1/namespaces/{case.name}/resourcequotas"
    count = sum(len(own) for own in Sight.of(case.live.api, case.name).pods.values())
    case.live.api.create(path, {"metadata": {"name": "full"}, "spec": {"hard": {"pods": str(count)}}})
    _lifted(case, f"{path}/full")


def _budget_blocks(case: Case) -> None:
    path = f"/apis/policy/v1/namespaces/{case.name}/poddisruptionbudgets"
    for app in REPLICAS:
        spec = {"selector": {"matchLabels": {"app": app}}, "maxUnavailable": 0}
        case.live.api.create(path, {"metadata": {"name": app}, "spec": spec})


def _pending(case: Case) -> None:
    """Somebody else takes every free card, so that new pods find no room."""
    own = [pod for pods in Sight.of(case.live.api, case.name).pods.values() for pod in pods]
    free = NODES * CARDS - len(shares_of(own))
    limits = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": str(CARD_MIB)}
    deployment(
        case.live.api, case.name, "filler", replicas=free, limits=limits,
        pod_spec={"nodeSelector": {"slot": str(case.slot)}},
    )  # fmt: skip
    _lifted(case, _owner(case, "filler"))


# --- two of them, and what nobody approved ---


def _two_enforcers(case: Case) -> None:
    shutil.copytree(case.stage.folder / DATA, case.stage.folder / OTHER)
    _refused_or_done(case, "apply", "--yes")


def _two_plans(case: Case) -> None:
    """Somebody else applies another plan for the same services."""
    cluster = opened(case.live.kubeconfig, case.name)
    try:
        case.stage.keep(plan_of(cluster, case.name, case.slot, nodes=NODES), OTHER)
    finally:
        cluster.close()
    _refused_or_done(case, "apply", "--yes")
    case.operator_data = OTHER if not case.stage.is_applying else DATA


def _other_cluster(case: Case) -> None:
    cluster = opened(case.live.kubeconfig, case.name)
    plan = plan_of(cluster, case.name, case.slot, nodes=NODES)
    cluster.close()
    case.stage.keep(seal_plan(replace(plan, plan_id="", cluster=_FAR_AWAY)), OTHER)
    said = case.stage.call("apply", "--yes", data=OTHER)
    if said.returncode not in (2, 4):
        case.complaints.append(f"a plan of another cluster ended with {said.returncode}: {said.stderr[-200:]}")


def _withdrawn(case: Case) -> None:
    """Who approved the plan withdraws that: the stage that is under way is taken back, what is in force stays."""
    path = "/apis/gputide.io/v1alpha1/gpuapprovals"
    given = case.live.api.ask("GET", path)["items"]
    for approval in given:
        if approval["spec"]["plan"] == case.stage.plan_id:
            case.live.api.delete(f"{path}/{approval['metadata']['name']}")
    if case.wanted.phase in APPLYING:
        app = case.watched_app()
        before = case.stage.before.objects[app]["spec"]["template"]
        case.keeps.append((app, lambda owner: bool(owner["spec"]["template"] == before)))


def _refused_or_done(case: Case, *verb: str) -> None:
    said = case.stage.call(*verb, data=OTHER)
    if said.returncode not in (0, 4, 5):
        case.complaints.append(f"the second ended with {said.returncode}: {said.stderr.strip()[-300:]}")


def _aborted(case: Case, data: str) -> None:
    """Abort at a random moment, after a kill in every third case."""
    case.operator_data = data
    time.sleep(case.chance.uniform(0.0, 15.0))
    if case.wanted.seed % 3 == 2:
        case.stage.kill()
    case.hasten()


FAULTS: Mapping[str, Fault] = {
    "none": Fault(strike=_nothing, phases=AFTER),
    "node deleted": Fault(strike=_deleted),
    "node cordoned": Fault(strike=_cordoned),
    "node drained": Fault(strike=_drained),
    "card lost": Fault(strike=_card_lost, phases=AFTER),
    "scaled out": Fault(strike=partial(_scaled, counts=(3, 4, 6))),
    "scaled in": Fault(strike=partial(_scaled, counts=(0, 1))),
    "hotfix": Fault(strike=_hotfix),
    "rollback": Fault(strike=_rolled_back),
    "kubectl edit": Fault(strike=_edited),
    "reverter": Fault(strike=_reverted),
    "image pull fails": Fault(strike=_image_fails, phases=APPLYING),
    "enforcer killed": Fault(strike=_killed, phases=(*APPLYING, Phase.UNDOING)),
    "enforcer away 1 s": Fault(strike=partial(_stopped, seconds=1.0), phases=(*APPLYING, Phase.UNDOING)),
    "enforcer away 1 min": Fault(strike=partial(_stopped, seconds=60.0), phases=(*APPLYING, Phase.UNDOING)),
    "machine lost": Fault(strike=_machine_lost),
    "webhook away 1 s": Fault(strike=partial(_webhook_away, seconds=1.0)),
    "webhook away 1 min": Fault(strike=partial(_webhook_away, seconds=60.0), phases=APPLYING),
    "API away 1 s": Fault(strike=partial(_api_away, seconds=1.0), prepare=_over_a_bad_way),
    "API away 1 min": Fault(strike=partial(_api_away, seconds=60.0), prepare=_over_a_bad_way),
    "API killed": Fault(strike=partial(_api_killed, seconds=1.0)),
    "token taken back": Fault(strike=_token_taken, prepare=_with_a_token_of_its_own, phases=(*APPLYING, Phase.UNDOING)),
    "webhook denies": Fault(strike=_denied),
    "quota full": Fault(strike=_quota_full),
    "budget blocks": Fault(strike=_budget_blocks),
    "pods Pending": Fault(strike=_pending, phases=APPLYING),
    "two enforcers": Fault(strike=_two_enforcers, phases=APPLYING),
    "two plans": Fault(strike=_two_plans, phases=APPLYING),
    "plan of another cluster": Fault(strike=_other_cluster, phases=APPLYING),
    "approval withdrawn": Fault(strike=_withdrawn),
    "abort": Fault(strike=partial(_aborted, data=DATA), phases=APPLYING, seeds=34),
    "abort elsewhere": Fault(strike=partial(_aborted, data=OTHER), phases=APPLYING, seeds=34),
}
"""Every row by its name. An hour of the API server's or the enforcer's absence goes by an injected clock, in tests."""
