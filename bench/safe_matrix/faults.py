"""What goes wrong, or is done by somebody else, and at which phases of a plan: the rows of the matrix.

A fault strikes a `Case`; what it needs to be cured is noted there.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import time
import urllib.error
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from operator import methodcaller
from typing import Any

import yaml

from bench.faulty_way import FaultyWay
from bench.live_faults import CARD_MIB, CARDS, REPLICAS, STAGES, make_node, node_name, opened, plan_of, planned_grants
from bench.live_stages import DATA, HOTFIX
from bench.measured_run import ROOT
from bench.safe_matrix.case import APPLYING, LIFTED_SECONDS, NODES, START_SECONDS, WATCH_SECONDS, Case, Phase
from bench.safe_matrix.judge import Sight, credential_of, shares_of
from enforcer.agent.hami_node_actions import HamiNodeActions
from enforcer.kubernetes.cluster import KubernetesCluster
from fleet.documents import seal_plan
from fleet.errors import Refused, Unavailable
from tests.cluster.api import Manifest
from tests.cluster.workloads import deployment, is_ready
from tests.control_plane import ControlPart

OTHER = "other"
"""Data folder of another machine."""
ALL = tuple(Phase)
AFTER = (Phase.APPLIED,)
SEEDS = 5
_FAR_AWAY = "elsewhere"
_REVERTED_SECONDS = 15.0
_DRAIN_SECONDS_MAX = 30.0
_REFUSED_SECONDS_MAX = 20.0
_PINNED_SECONDS_MAX = 60.0
UNPINNED = "gputide.io/unpinned"
_LOOK_SECONDS = 0.5
_AGENT_LOOKS_MAX = 5
_TURN_SECONDS_MAX = 45.0
_AGENT_PAGE = ROOT / "docs" / "agent.yaml"
_ABORTED_SECONDS = {Phase.CANARY: 8.0, Phase.WATCHED: 4.0, Phase.REST: 1.0}
"""Within which an abort comes, so that the stage that is looked at is still under way."""


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
    return case.chance.choice([place for place in range(NODES) if node_name(case.slot, place) in used] or [0])


def _pods_on(case: Case, node: str) -> list[tuple[str, str]]:
    """App and name of each pod on a node."""
    found = Sight.of(case.live.api, case.name).pods
    return [
        (app, pod["metadata"]["name"]) for app, own in found.items() for pod in own
        if pod["spec"].get("nodeName") == node
    ]  # fmt: skip


def _deleted(case: Case) -> None:
    place = _place(case)
    lost = _pods_on(case, node_name(case.slot, place))
    case.displaced |= REPLICAS.keys()
    case.sampler.lose(lost)
    case.live.api.delete(f"/api/v1/nodes/{node_name(case.slot, place)}")
    for _, pod in lost:
        # As the collector of lost nodes' pods does it, which takes its time.
        _gone(case, pod)
    case.cures.append(partial(make_node, case.live.api, case.slot, place))


def _cordoned(case: Case) -> None:
    path = f"/api/v1/nodes/{node_name(case.slot, _place(case))}"
    _cordon(case, path)


def _cordon(case: Case, path: str) -> None:
    case.displaced |= REPLICAS.keys()
    case.live.api.patch(path, {"spec": {"unschedulable": True}})
    case.cures.append(lambda: _uncordon(case, path))


def _closed_before_binding(case: Case) -> None:
    """A node closes after a new pod was pinned to it, and before the scheduler has seen that pod."""
    with case.live.double.scheduler_stopped():
        deadline = time.monotonic() + _PINNED_SECONDS_MAX
        while not (nodes := _nodes_waited_for(case)):
            if time.monotonic() > deadline:
                case.miss("no pinned pod waited for its node")
                return
            time.sleep(_LOOK_SECONDS)
        _cordon(case, f"/api/v1/nodes/{case.chance.choice(nodes)}")


def _nodes_waited_for(case: Case) -> list[str]:
    """Nodes that pods without one may go to alone."""
    pods = case.live.api.ask("GET", f"/api/v1/namespaces/{case.name}/pods")["items"]
    waiting = [json.dumps(pod["spec"].get("affinity")) for pod in pods if not pod["spec"].get("nodeName")]
    nodes = [node_name(case.slot, place) for place in range(NODES)]
    return [node for node in nodes if any(f'"{node}"' in affinity for affinity in waiting)]


def _uncordon(case: Case, path: str) -> None:
    case.live.api.patch(path, {"spec": {"unschedulable": None}})


def _drained(case: Case) -> None:
    node = node_name(case.slot, _place(case))
    _cordon(case, f"/api/v1/nodes/{node}")
    deadline = time.monotonic() + _DRAIN_SECONDS_MAX
    while (left := _pods_on(case, node)) and time.monotonic() < deadline:
        case.sampler.lose(left)
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
    card, shares = max(shares_of(own).items(), key=lambda item: len(item[1]))
    path = f"/api/v1/nodes/{_node_of(case, card)}"
    annotation = next(name for name in case.live.api.ask("GET", path)["metadata"]["annotations"] if "register" in name)
    text = case.live.api.ask("GET", path)["metadata"]["annotations"][annotation]
    entries = [{**one, "health": one["id"] != card} for one in json.loads(text)]
    entries = [{name: value for name, value in one.items() if value is not False} for one in entries]
    _annotate(case, path, annotation, json.dumps(entries))
    case.cures.append(lambda: _annotate(case, path, annotation, text))
    case.live.double.look_again()
    case.displaced |= REPLICAS.keys()
    case.sampler.lose((share.app, share.pod) for share in shares)
    for share in shares:
        _gone(case, share.pod)


def _node_of(case: Case, card: str) -> str:
    return node_name(case.slot, int(card.rsplit("-", 1)[1]) // CARDS)


def _annotate(case: Case, path: str, annotation: str, text: str) -> None:
    case.live.api.patch(path, {"metadata": {"annotations": {annotation: text}}})


# --- people and their controllers ---


def _scaled(case: Case, counts: Sequence[int]) -> None:
    app, count = "c", case.chance.choice(counts)
    case.sampler.expect(app, count)
    case.replicas[app] = count
    case.displaced.add(app)
    case.theirs[app].add("replicas")
    case.live.api.patch(f"{_owner(case, app)}/scale", {"spec": {"replicas": count}})
    case.keeps.append((app, lambda owner: bool(owner["spec"]["replicas"] == count)))


def _owner(case: Case, app: str) -> str:
    return f"/apis/apps/v1/namespaces/{case.name}/deployments/{app}"


def _hotfix(case: Case) -> None:
    app = case.chance.choice(list(REPLICAS))
    # A hotfix takes the stage back, and where it keeps a whole card that may be one which the plan gives another.
    case.displaced |= REPLICAS.keys()
    case.theirs[app].add("template")
    case.live.api.patch(_owner(case, app), {"spec": {"template": {"metadata": {"annotations": {HOTFIX: "1"}}}}})
    case.keeps.append((app, lambda owner: HOTFIX in owner["spec"]["template"]["metadata"].get("annotations", {})))


def _rolled_back(case: Case) -> None:
    """`kubectl rollout undo`: the template of the ReplicaSet before the last comes back."""
    found: list[Manifest] = []
    for app in case.chance.sample(list(REPLICAS), len(REPLICAS)):
        path = f"/apis/apps/v1/namespaces/{case.name}/replicasets?labelSelector=app%3D{app}"
        found = sorted(
            case.live.api.ask("GET", path)["items"],
            key=lambda one: int(one["metadata"]["annotations"]["deployment.kubernetes.io/revision"]),
        )
        if len(found) > 1:
            break
    else:
        case.miss("no Deployment has a former template")
        return
    case.displaced |= REPLICAS.keys()
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
    case.displaced |= REPLICAS.keys()
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
    in_git = {app: case.stage.before.objects[app]["spec"]["template"] for app in REPLICAS}

    def is_other(app: str) -> bool:
        return bool(case.live.api.ask("GET", _owner(case, app))["spec"]["template"] != in_git[app])

    others = list(filter(is_other, REPLICAS))
    if not others:
        case.miss("every template is as in Git")
        return
    app = case.chance.choice(others)
    case.theirs[app].add("template")
    case.displaced |= REPLICAS.keys()
    over = time.monotonic() + _REVERTED_SECONDS

    def revert() -> None:
        while time.monotonic() < over:
            if is_other(app):
                _replace_template(case, app, in_git[app])
            time.sleep(1.0)

    pool = ThreadPoolExecutor(1)
    reverting = pool.submit(revert)
    pool.shutdown(wait=False)

    def heard() -> None:
        if (exc := reverting.exception()) is not None:
            case.complaints.append(f"the reverter came to no end: {exc}")

    case.cures.append(heard)


def _image_fails(case: Case) -> None:
    """New pods of a Deployment can't pull their image until somebody mends it; the operator does not wait for that."""
    owners = Sight.of(case.live.api, case.name).owners
    apps = next(apps for apps in STAGES.values() if case.watched_app() in apps)
    app = case.chance.choice([app for app in apps if _has_pods_to_come(case, owners[app])] or apps)
    case.stage.stuck.add(app)
    begun, seconds, unready = time.monotonic(), case.chance.uniform(*LIFTED_SECONDS), Counter[str]()

    def has_struck() -> bool:
        return max(unready.values(), default=0) * _LOOK_SECONDS > START_SECONDS

    # Others of its stage may have their turn first.
    while time.monotonic() < begun + (seconds if has_struck() else _TURN_SECONDS_MAX) and case.stage.is_applying:
        own = Sight.of(case.live.api, case.name).pods[app]
        unready.update(pod["metadata"]["uid"] for pod in own if not is_ready(pod))
        time.sleep(_LOOK_SECONDS)
    if not has_struck():
        case.miss(f"no pod of {app} was held back")
    if case.wanted.seed % 2:
        # What is taken back needs new pods, too.
        case.hasten(must_end=False)
    case.stage.stuck.clear()


def _has_pods_to_come(case: Case, owner: Manifest) -> bool:
    spec, before = owner["spec"], case.stage.before.objects[owner["metadata"]["name"]]["spec"]
    return bool(spec["template"] == before["template"] or owner["status"].get("updatedReplicas", 0) < spec["replicas"])


# --- processes and their ways ---


def _stopped(case: Case, seconds: float) -> None:
    case.stage.stop(seconds)


def _machine_lost(case: Case) -> None:
    """The machine that applies is gone with its data folder; the operator goes on from another, which has none."""
    if case.wanted.phase is not Phase.APPLIED:
        case.kill()
    shutil.rmtree(case.stage.folder / DATA)
    case.operator_data = OTHER


def _webhook_away(case: Case, seconds: float) -> None:
    case.displaced |= REPLICAS.keys()
    case.live.admission.stop_answering()
    time.sleep(seconds)
    case.live.admission.answer_again()


def _api_killed(case: Case, seconds: float) -> None:
    case.displaced |= REPLICAS.keys()
    with case.sampler.outage():
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


def _with_an_agent(case: Case) -> None:
    for manifest in yaml.safe_load_all(_AGENT_PAGE.read_text(encoding="utf-8")):
        if manifest["kind"] != "DaemonSet":
            case.live.api.apply(manifest)


def _agent_killed(case: Case) -> None:
    """Agents of nodes are killed after they closed the cards that the plan needs; those that follow open them.

    A stage asks an agent nothing, so that what it left in the cluster is all that it can do to one. When the rest of a
    canary follows, its pods may have come to their cards already.
    """
    planned = {card for app in REPLICAS for card, _ in planned_grants(case.stage.planned, app)}
    token = case.live.api.token("gputide", "gputide-agent")
    cluster = opened(case.live.plane.kubeconfig_of_token(f"{case.name}-agent", token), case.name)
    case.cures.append(cluster.close)
    over = time.time() + WATCH_SECONDS + case.chance.uniform(*LIFTED_SECONDS)
    for card in planned:
        _acted(cluster, _node_of(case, card), methodcaller("close_card", card, over))
    has_hurt = False
    while time.time() < over:
        pods = [pod for own in Sight.of(case.live.api, case.name).pods.values() for pod in own]
        has_hurt |= any(
            "nodeName" not in pod["spec"] or UNPINNED in pod["metadata"].get("annotations", {}) for pod in pods
        )
        time.sleep(_LOOK_SECONDS)
    for node in {_node_of(case, card) for card in planned}:
        _acted(cluster, node, methodcaller("open_cards", time.time()))
    if not has_hurt:
        case.miss("no pod was to come to a card that was closed")


def _acted(cluster: KubernetesCluster, node: str, act: Callable[[HamiNodeActions], object]) -> None:
    """Let the agent of a node act, at its next look where somebody else changed the node meanwhile."""
    for look in range(_AGENT_LOOKS_MAX):
        try:
            act(HamiNodeActions(cluster, cluster, node))
        except (Refused, Unavailable):
            if look == _AGENT_LOOKS_MAX - 1:
                raise
            time.sleep(_LOOK_SECONDS)
        else:
            return


# --- what the API server refuses ---


def _lifted(case: Case, *paths: str) -> None:
    """Delete what was made at some paths after a while, of a verb that is under way or of the undo to come."""

    def lift() -> None:
        for path in paths:
            case.live.api.delete(path)

    if case.wanted.phase is Phase.APPLIED:
        case.lifts.append(lift)
        return
    time.sleep(case.chance.uniform(*LIFTED_SECONDS))
    lift()


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
    kinds = ("validatingadmissionpolicybindings", "validatingadmissionpolicies")
    _lifted(case, *(f"{prefix}/{kind}/{case.name}" for kind in kinds))


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
    case.displaced |= REPLICAS.keys()
    free = NODES * CARDS - len(shares_of(own))
    if not free:
        case.miss("no card was free")
        return
    limits = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": str(CARD_MIB)}
    deployment(
        case.live.api, case.name, "filler", replicas=free, limits=limits,
        pod_spec={"nodeSelector": {"slot": str(case.slot)}},
    )  # fmt: skip
    _lifted(case, _owner(case, "filler"))


# --- two of them, and what nobody approved ---


def _two_enforcers(case: Case) -> None:
    shutil.copytree(case.stage.folder / DATA, case.stage.folder / OTHER)
    _applied_by_another(case)


def _two_plans(case: Case) -> None:
    """Somebody else applies another plan for the same services."""
    cluster = opened(case.live.kubeconfig, case.name)
    try:
        case.stage.keep(plan_of(cluster, case.name, case.slot, nodes=NODES), OTHER)
    finally:
        cluster.close()
    case.displaced |= REPLICAS.keys()
    _applied_by_another(case)
    case.operator_data = OTHER if not case.stage.is_applying else DATA


def _other_cluster(case: Case) -> None:
    cluster = opened(case.live.kubeconfig, case.name)
    plan = plan_of(cluster, case.name, case.slot, nodes=NODES)
    cluster.close()
    foreign = seal_plan(replace(plan, plan_id="", cluster=_FAR_AWAY))
    case.stage.keep(foreign, OTHER)
    _applied_by_another(case, "--plan", foreign.plan_id, is_refused=True)


def _applied_by_another(case: Case, *words: str, is_refused: bool = False) -> None:
    """Somebody else applies, with a token of its own; where that must be refused, it must not write to workloads."""
    token = case.live.api.token("gputide", "gputide-writer")
    usual = case.stage.kubeconfig
    case.stage.kubeconfig = case.live.plane.kubeconfig_of_token(f"{case.name}-other", token)
    said = case.stage.call("apply", "--yes", *words, data=OTHER)
    case.stage.kubeconfig = usual
    if said.returncode not in ((2, 4) if is_refused else (0, 4, 5)):
        case.complaints.append(f"the second ended with {said.returncode}: {said.stderr.strip()[-300:]}")
    if is_refused:
        case.refused.add(credential_of(token))


def _withdrawn(case: Case) -> None:
    """Who approved the plan withdraws that: the stage that is under way is taken back, what is in force stays."""
    path = "/apis/gputide.io/v1alpha1/gpuapprovals"
    given = case.live.api.ask("GET", path)["items"]
    own = [one for one in given if one["spec"]["plan"] == case.stage.planned.plan_id]
    for approval in own:
        case.live.api.delete(f"{path}/{approval['metadata']['name']}")
    if not own:
        case.miss("nobody had approved the plan")
    if case.wanted.phase in APPLYING:
        app = case.watched_app()
        before = case.stage.before.objects[app]["spec"]["template"]
        case.keeps.append((app, lambda owner: bool(owner["spec"]["template"] == before)))


def _aborted(case: Case, data: str) -> None:
    """Abort at a random moment, after a kill in every third case."""
    case.operator_data = data
    time.sleep(case.chance.uniform(0.0, _ABORTED_SECONDS[case.wanted.phase]))
    if case.wanted.seed % 3 == 2:
        case.kill()
    elif not case.stage.is_applying:
        case.miss("the apply had ended before the abort")
    case.hasten()


FAULTS: Mapping[str, Fault] = {
    "none": Fault(strike=_nothing, phases=AFTER),
    "node deleted": Fault(strike=_deleted),
    "node cordoned": Fault(strike=_cordoned),
    # An undone owner's pods are not pinned.
    "node closed before binding": Fault(strike=_closed_before_binding, phases=(Phase.CANARY, Phase.REST)),
    "node drained": Fault(strike=_drained),
    "card lost": Fault(strike=_card_lost, phases=AFTER),
    "scaled out": Fault(strike=partial(_scaled, counts=(3, 4, 6))),
    "scaled in": Fault(strike=partial(_scaled, counts=(0, 1))),
    "hotfix": Fault(strike=_hotfix),
    "rollback": Fault(strike=_rolled_back),
    "kubectl edit": Fault(strike=_edited),
    # An undo wants what stands in Git as well: there is nothing to revert.
    "reverter": Fault(strike=_reverted, phases=(*APPLYING, Phase.APPLIED)),
    "image pull fails": Fault(strike=_image_fails, phases=APPLYING),
    "enforcer killed": Fault(strike=Case.kill, phases=(*APPLYING, Phase.UNDOING)),
    "enforcer away 1 s": Fault(strike=partial(_stopped, seconds=1.0), phases=(*APPLYING, Phase.UNDOING)),
    "enforcer away 1 min": Fault(strike=partial(_stopped, seconds=60.0), phases=(*APPLYING, Phase.UNDOING)),
    "machine lost": Fault(strike=_machine_lost),
    "webhook away 1 s": Fault(strike=partial(_webhook_away, seconds=1.0)),
    "webhook away 1 min": Fault(strike=partial(_webhook_away, seconds=60.0), phases=APPLYING),
    "agent killed": Fault(strike=_agent_killed, phases=(Phase.CANARY, Phase.WATCHED), prepare=_with_an_agent),
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
