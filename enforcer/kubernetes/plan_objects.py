"""Plans, who approved them and which stages are wanted, kept in the cluster: `GpuPlan`, `GpuPlanPart`, `GpuApproval`.

Fulfils `enforcer.record.shared_plans.ClusterPlans`. A `GpuPlan` is what people list and where they say, by
`spec.apply`, which stages they want in force; everything else of it is fixed. The sealed plan lies beside it in parts,
deflated and in base64, because an object holds a mebibyte; they go with it when it is deleted. Its status is applied by
our own field manager.

Source: kubernetes/website:content/en/docs/reference/using-api/server-side-apply.md.
"""

from __future__ import annotations

import base64
import hashlib
import json
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from enforcer.kubernetes.approval_policy import guarded_since
from enforcer.kubernetes.custom_resources import (
    API_VERSION,
    AS_MANAGER,
    CUSTOM_RESOURCES_FILE,
    OBJECT_BYTES_MAX,
    VERSION,
    condition_body,
    got,
    kind_of,
    listed,
    making,
    unserved,
)
from enforcer.kubernetes.events import Event, events_between, write_event
from enforcer.manifest import Manifest
from enforcer.record.entry_shapes import moment_of
from enforcer.record.fingerprint import Fingerprint, fingerprint_to_json
from enforcer.record.plan_status import REFUSED, Condition, ConditionType, PlanStatus
from enforcer.record.plan_store import GONE, Approval, Wish, WishChange
from enforcer.record.shared_plans import ListedPlan
from fleet.decisions import Plan
from fleet.documents import plan_to_json
from fleet.errors import Corrupt, GputideError, Refused, Unavailable
from fleet.json_text import json_value
from fleet.logs import logger
from fleet.units import Money, format_money_short, format_plan_id, format_time
from wire.kubernetes.refusals import Conflict, Deed
from wire.kubernetes.resource import ApiResource
from wire.kubernetes.write import APPLY_PATCH, FIELD_MANAGER, MERGE_PATCH, Call, WritingApi

WANTED_BY_ANNOTATION = "gputide.io/wanted-by"
"""Who set `spec.apply` last, with the stages that they set: somebody who edits the field alone leaves it behind."""

CONTENT_BYTES_MAX = 96 * 1024 * 1024
"""Most bytes of a plan's content: one of 10,000 cards with four pods each has 45 MB, with what it was made for."""
PARTS_MAX = 200
"""Most parts of a plan, as the kind has it: more than content of that size needs."""
STAGES_MAX = 500
"""Most stages of a plan, as the kind has it."""

PROPOSED_LABEL = "gputide.io/proposed-by"
"""On a plan that no person asked for: who made it."""
PROPOSALS_MAX = 5
"""Most plans that the planner made and nobody approved or wants, the newest ones."""

_PLANNER = "planner"
_TRIES = 5
_GUARD_SECONDS = 30.0
"""For how long it is not asked again whether approvals are held to who makes them."""
_UNGUARDED = (
    "no admission policy held approvals to the name of who makes them when they were made; "
    f"kubectl apply -f {CUSTOM_RESOURCES_FILE}"
)
_AGAIN = "approve again afterwards"
_ACCOUNT = "system:serviceaccount:"
"""What the names of service accounts begin with (kubernetes/apiserver:pkg/authentication/serviceaccount/util.go)."""
_NAME_LENGTH_MAX = 256
_log = logger("enforcer.kubernetes.plan_objects")
_PLANS, _PARTS, _APPROVALS = kind_of("GpuPlan"), kind_of("GpuPlanPart"), kind_of("GpuApproval")


class GpuPlans:
    """The `GpuPlan`, `GpuPlanPart` and `GpuApproval` objects of one cluster."""

    def __init__(self, api: WritingApi) -> None:
        self._api = api
        self._guarded: tuple[float, datetime | None] | None = None
        self._left_out: Mapping[str, str] = {}

    def listed(self) -> Mapping[str, ListedPlan]:
        """See `ClusterPlans`."""
        approvals = self._approvals()
        found: dict[str, ListedPlan] = {}
        for one in listed(self._api, _PLANS):
            plan_id = str(one["spec"]["plan"])
            # An object of another name is not the plan that it names: it would hide what is wanted of that one.
            if one["metadata"]["name"] == name_of(plan_id):
                given = tuple(approvals.get(plan_id, ()))
                found[plan_id] = ListedPlan(made_at=_made_at(one), wish=_wish_of(one), approvals=given)
        return found

    def approvals(self, plan_id: str) -> tuple[Approval, ...]:
        """See `ClusterPlans`."""
        return tuple(self._approvals().get(plan_id, ()))

    def content(self, plan_id: str) -> tuple[bytes, bytes | None]:
        """See `ClusterPlans`."""
        head = got(self._api, _PLANS, name_of(plan_id))
        if head is None:
            raise Corrupt(f"cannot read GpuPlan {name_of(plan_id)}: it is gone")
        parts = int(head["spec"].get("parts", 0))
        if parts > PARTS_MAX:
            raise Corrupt(f"cannot read GpuPlan {name_of(plan_id)}: it has {parts} parts, limit {PARTS_MAX}")
        return _unpacked(plan_id, self._data(plan_id, parts), str(head["spec"].get("sha256")))

    def _data(self, plan_id: str, parts: int) -> Iterator[str]:
        for number in range(1, parts + 1):
            part = got(self._api, _PARTS, part_name_of(plan_id, number))
            if part is None:
                raise Corrupt(
                    f"cannot read GpuPlan {name_of(plan_id)}: GpuPlanPart {part_name_of(plan_id, number)} is missing; "
                    "the machine that made the plan stores it again with `gputide plan approve`"
                )
            yield str(part["spec"]["data"])

    def add(self, plan: Plan, fingerprint: Fingerprint | None) -> None:
        """See `ClusterPlans`. Parts that a crash left out are made when it is called again.

        Raises:
            Refused: it is larger than what the cluster keeps.
        """
        if len(plan.stages) > STAGES_MAX:
            raise Refused(
                f"cannot store plan {plan.plan_id} in the cluster: it has {len(plan.stages)} stages, limit "
                f"{STAGES_MAX}; leave namespaces out with recommender.opt_out_namespaces"
            )
        packed = _packed(plan, fingerprint)
        parts = [packed[at : at + OBJECT_BYTES_MAX] for at in range(0, len(packed), OBJECT_BYTES_MAX)]
        head = got(self._api, _PLANS, name_of(plan.plan_id)) or self._made(
            _PLANS, name_of(plan.plan_id), _head_spec(plan, packed, len(parts)), ()
        )
        if head["spec"].get("sha256") != _sha256(packed):
            # It was stored with what another machine knew of the cluster; that one's parts belong to it.
            return
        for number, data in enumerate(parts, start=1):
            name = part_name_of(plan.plan_id, number)
            if got(self._api, _PARTS, name, metadata_only=True) is None:
                self._made(_PARTS, name, {"plan": plan.plan_id, "part": number, "data": data}, (_owner_of(head),))

    def approve(self, approval: Approval) -> Approval:
        """See `ClusterPlans`. The admission policy of the chart holds the object to the name of who makes it.

        Raises:
            Refused: there is none, so the approval would not count.
        """
        own = self._api.user()
        by = approval.by or own
        head = got(self._api, _PLANS, name_of(approval.plan_id))
        if head is None:
            raise Refused(f"cannot approve plan {approval.plan_id}: its GpuPlan is gone")
        if (since := guarded_since(self._api.get)) is None:
            raise Refused(f"cannot approve plan {approval.plan_id}: {_UNGUARDED}")
        spec = {"plan": approval.plan_id, "stages": list(approval.stages), "approvedBy": by}
        found = listed(self._api, _APPROVALS)
        given = next((one for one in found if one["spec"] == spec and _made_at(one) >= since), None)
        if given is None:
            # The server chooses the name, so nobody can have made an object of it before; it cuts a start of 58 digits.
            metadata = {
                "generateName": f"{name_of(format_plan_id(approval.plan_id))}-",
                "ownerReferences": [_owner_of(head)],
            }
            given = self._posted(_APPROVALS, metadata, spec, impersonated=None if by == own else by)
        return _approval_of(given)

    def wish(self, plan_id: str) -> Wish | None:
        """See `ClusterPlans`."""
        head = got(self._api, _PLANS, name_of(plan_id))
        return None if head is None else _wish_of(head)

    def change_wish(self, plan_id: str, change: WishChange) -> Wish:
        """See `ClusterPlans`.

        Raises:
            Refused: the cluster has no such plan.
        """
        name = name_of(plan_id)
        for _ in range(_TRIES):
            head = got(self._api, _PLANS, name)
            before = GONE if head is None else _wish_of(head)
            if before.is_gone and change.add:
                raise Refused(f"cannot change what is wanted of plan {plan_id}: its GpuPlan is gone")
            if head is None or before.is_gone:
                return GONE
            wish = before.changed(change)
            if wish == before:
                return before
            stages = sorted(wish.stages or ())
            body = {
                "metadata": {
                    "resourceVersion": head["metadata"]["resourceVersion"],
                    "annotations": {WANTED_BY_ANNOTATION: json.dumps({"by": change.by, "apply": stages})},
                },
                "spec": {"apply": stages},
            }
            deed = Deed(verb="patch", resource=_PLANS.resource, name=name)
            call = Call(deed=deed, path=_PLANS.path(VERSION, None, name), method="PATCH", query=AS_MANAGER, body=body,
                        content_type=MERGE_PATCH)  # fmt: skip
            try:
                made = self._api.send(call)
            except Conflict:
                continue
            if made is not None:
                return _wish_of(made)
        raise Unavailable(f"cannot change what is wanted of plan {plan_id} now: others change it; call again")

    def report(self, plan_id: str, status: PlanStatus) -> None:
        """See `ClusterPlans`; a status that stands there already is not written again. A change leaves events."""
        name = name_of(plan_id)
        head = got(self._api, _PLANS, name)
        if head is None:
            return
        before: Manifest = head.get("status") or {}
        body = _status_body(status, before, self._api.now(), self._left_out.get(plan_id, ""))
        if body == before:
            return
        deed = Deed(verb="patch", resource=f"gpuplans/status.{_PLANS.group}", name=name)
        content = {"apiVersion": API_VERSION, "kind": _PLANS.kind, "metadata": {"name": name}, "status": body}
        self._api.send(
            Call(deed=deed, path=f"{_PLANS.path(VERSION, None, name)}/status", method="PATCH",
                 query={"fieldManager": FIELD_MANAGER, "force": "true"}, body=content, content_type=APPLY_PATCH)
        )  # fmt: skip
        try:
            for event in events_between(before, body):
                write_event(self._api, {**head, "apiVersion": API_VERSION, "kind": _PLANS.kind}, event)
        except GputideError as exc:
            _log.warning("an event on a plan was not written", plan=plan_id, why=str(exc))

    def supersede(self, plan_id: str) -> tuple[frozenset[str], frozenset[str]]:
        """Mark a plan as proposed by the planner, and delete its older proposals beyond `PROPOSALS_MAX`.

        One that somebody approved or wants stays, and so does one of which anything is in force or under way. A plan is
        deleted as it was read or not at all; an event on the newest says which are gone.

        Returns:
            Ids of the plans that stand, and of those that were deleted.

        Raises:
            Misconfigured: a right is missing.
            Unavailable: the cluster can't be reached.
        """
        deed = Deed(verb="patch", resource=_PLANS.resource, name=name_of(plan_id))
        path, body = _PLANS.path(VERSION, None, name_of(plan_id)), {"metadata": {"labels": {PROPOSED_LABEL: _PLANNER}}}
        newest = self._api.send(
            Call(deed=deed, path=path, method="PATCH", query=AS_MANAGER, body=body, content_type=MERGE_PATCH)
        )
        heads = {str(one["spec"]["plan"]): one for one in listed(self._api, _PLANS)}
        proposed = [one for one in heads if _is_proposal(heads[one])]
        proposed.sort(key=lambda one: (one == plan_id, _made_at(heads[one])))
        approved = self._approvals() if len(proposed) > PROPOSALS_MAX else {}
        gone = [one for one in proposed[:-PROPOSALS_MAX] if one not in approved and self._is_deleted(heads[one])]
        if gone and newest is not None:
            message = f"{', '.join(map(name_of, gone))} deleted: {name_of(plan_id)} is newer, and nobody approved them"
            write_event(self._api, newest, Event(reason="Superseded", message=message))
        return frozenset(heads.keys() - set(gone)), frozenset(gone)

    def _is_deleted(self, head: Manifest) -> bool:
        """Delete a plan, with its parts, if nobody changed it since it was read; whether that was done."""
        metadata = head["metadata"]
        deed = Deed(verb="delete", resource=_PLANS.resource, name=metadata["name"])
        body = {"preconditions": {key: metadata[key] for key in ("uid", "resourceVersion")}}
        path = _PLANS.path(VERSION, None, metadata["name"])
        try:
            self._api.send(Call(deed=deed, path=path, method="DELETE", body=body))
        except Conflict:
            return False
        return True

    def _approvals(self) -> dict[str, list[Approval]]:
        """Approvals of every plan whose names somebody checked, oldest first."""
        found: dict[str, list[Approval]] = {}
        left_out: dict[str, dict[str, list[str]]] = {}
        for given in sorted(map(_approval_of, listed(self._api, _APPROVALS)), key=lambda one: (one.at, one.by)):
            since = self._guarded_since()
            is_guarded = since is not None and given.at >= since
            if is_guarded and not given.by.startswith(_ACCOUNT):
                found.setdefault(given.plan_id, []).append(given)
            else:
                why = "people approve, and no service account does" if is_guarded else f"{_UNGUARDED}; {_AGAIN}"
                left_out.setdefault(given.plan_id, {}).setdefault(why, []).append(given.by)
        reasons = {
            plan_id: "; ".join(f"approvals of {', '.join(names)} do not count: {why}" for why, names in said.items())
            for plan_id, said in left_out.items()
        }
        for plan_id in reasons.keys() - self._left_out.keys():
            _log.warning("approvals are left out", plan=plan_id, why=reasons[plan_id])
        self._left_out = reasons
        return found

    def _guarded_since(self) -> datetime | None:
        """Since when approvals are held to who makes them, as it was a moment ago."""
        now = time.monotonic()
        if self._guarded is None or now >= self._guarded[0]:
            self._guarded = now + _GUARD_SECONDS, guarded_since(self._api.get)
        return self._guarded[1]

    def _made(self, kind: ApiResource, name: str, spec: Mapping[str, Any], owners: Sequence[Manifest]) -> Manifest:
        """A new object; that of another machine that was faster where there is one.

        Raises:
            Refused: the cluster does not know the kind, or does not take the object.
        """
        try:
            return self._posted(kind, {"name": name, **({"ownerReferences": list(owners)} if owners else {})}, spec)
        except Conflict:
            made = got(self._api, kind, name)
        if made is None:
            raise unserved(self._api, kind)
        return made

    def _posted(
        self, kind: ApiResource, metadata: Manifest, spec: Mapping[str, Any], *, impersonated: str | None = None
    ) -> Manifest:
        made = self._api.send(making(kind, metadata, {"spec": spec}, impersonated=impersonated))
        if made is None:
            raise unserved(self._api, kind)
        return made


def name_of(plan_id: str) -> str:
    """Name of a plan's `GpuPlan`."""
    return f"plan-{plan_id}"


def part_name_of(plan_id: str, number: int) -> str:
    """Name of a `GpuPlanPart`, numbered from 1."""
    return f"plan-{plan_id}-{number}"


def _head_spec(plan: Plan, packed: str, parts: int) -> dict[str, Any]:
    saving = plan.totals.saving_per_week.amortised
    return {
        "plan": plan.plan_id,
        "cluster": plan.cluster,
        "createdAt": format_time(plan.created_at),
        "expiresAt": format_time(plan.expires_at),
        "stages": [
            {"stage": stage.stage, "cardsFreed": stage.cards_freed, "moves": stage.moves} for stage in plan.stages
        ],
        "cardsFreed": plan.totals.cards_freed,
        "savingPerWeek": "" if saving is None else format_money_short(Money(amount=saving, currency=plan.currency)),
        "parts": parts,
        "sha256": _sha256(packed),
    }


def _is_proposal(head: Manifest) -> bool:
    """Whether the planner made a plan, and nobody said anything of it."""
    status = head.get("status") or {}
    is_untouched = not any(status.get(part) for part in ("approved", "applied", "underWay"))
    is_planners = (head["metadata"].get("labels") or {}).get(PROPOSED_LABEL) == _PLANNER
    return is_planners and is_untouched and head["spec"].get("apply") is None


def _owner_of(head: Manifest) -> Manifest:
    metadata = head["metadata"]
    return {"apiVersion": API_VERSION, "kind": _PLANS.kind, "name": metadata["name"], "uid": metadata["uid"]}


def _wish_of(head: Manifest) -> Wish:
    metadata, said = head["metadata"], head["spec"].get("apply")
    if "deletionTimestamp" in metadata:
        return GONE  # somebody's finalizer keeps it for a while
    stages = sorted(int(stage) for stage in said or ())
    return Wish(
        stages=None if said is None else frozenset(stages), by=_wanted_by(metadata.get("annotations") or {}, stages),
        generation=int(metadata.get("generation") or 0), failed_generation=_failed_generation(head),
        refusal=_refusal(head),
    )  # fmt: skip


def _refusal(head: Manifest) -> str:
    """Why a controller could not do what is asked for as it stands now."""
    for one in (head.get("status") or {}).get("conditions") or ():
        is_now = one.get("observedGeneration") == head["metadata"].get("generation")
        if one.get("type") == ConditionType.APPLIED and one.get("reason") == REFUSED and is_now:
            return str(one.get("message", ""))
    return ""


def _failed_generation(head: Manifest) -> int | None:
    for one in (head.get("status") or {}).get("conditions") or ():
        if one.get("type") == ConditionType.FAILED and one.get("status") == "True":
            return int(one.get("observedGeneration") or 0)
    return None


def _wanted_by(annotations: Mapping[str, Any], stages: Sequence[int]) -> str:
    try:
        noted = json_value(str(annotations.get(WANTED_BY_ANNOTATION, "null")))
    except ValueError:
        return ""
    by = str(noted.get("by")) if isinstance(noted, dict) and noted.get("apply") == list(stages) else ""
    # Anybody who may patch a plan writes it: it goes into the audit log, and to terminals.
    return by if len(by) <= _NAME_LENGTH_MAX and by.isprintable() else ""


def _approval_of(found: Manifest) -> Approval:
    spec = found["spec"]
    return Approval(
        plan_id=str(spec["plan"]),
        stages=tuple(sorted(int(stage) for stage in spec["stages"])),
        by=str(spec["approvedBy"]),
        at=_made_at(found),
    )


def _made_at(found: Manifest) -> datetime:
    return moment_of(found["metadata"]["creationTimestamp"])


def _status_body(status: PlanStatus, before: Manifest, now: datetime, left_out: str) -> Manifest:
    held = {one.get("type"): one for one in before.get("conditions") or ()}
    return {
        "state": status.state,
        "approved": _numbers(status.approved),
        "applied": _numbers(status.applied),
        "progress": status.progress,
        "underWay": status.under_way,
        "observedGeneration": status.generation,
        "conditions": [
            *(_condition(one, held.get(one.type.value), now, left_out) for one in status.conditions),
            *(kept for kind, kept in held.items() if kind not in {one.type.value for one in status.conditions}),
        ],
        "stages": [{"stage": one.stage, "state": one.state, "reason": one.reason} for one in status.stages],
    }


def _condition(one: Condition, before: Manifest | None, now: datetime, left_out: str) -> Manifest:
    message = "; ".join(filter(None, (one.message, left_out if one.type is ConditionType.APPROVED else "")))
    return condition_body(
        one.type.value, one.reason, message, is_true=one.is_true, generation=one.generation, before=before, now=now
    )


def _numbers(stages: Iterable[int]) -> str:
    return ", ".join(map(str, stages))


def _packed(plan: Plan, fingerprint: Fingerprint | None) -> str:
    inputs = None if fingerprint is None else fingerprint_to_json(fingerprint).decode()
    content = json.dumps({"plan": plan_to_json(plan).decode(), "inputs": inputs}, ensure_ascii=False).encode()
    if len(content) > CONTENT_BYTES_MAX:
        raise Refused(
            f"cannot store plan {plan.plan_id} in the cluster: it has {len(content)} bytes, limit {CONTENT_BYTES_MAX}"
        )
    return base64.b64encode(zlib.compress(content)).decode()


def _unpacked(plan_id: str, parts: Iterable[str], sha256: str) -> tuple[bytes, bytes | None]:
    """A plan and what it was made for; one part after the other, so that no more than the limit is ever held."""
    digest, unpacking, content = hashlib.sha256(), zlib.decompressobj(), bytearray()
    try:
        for data in parts:
            digest.update(data.encode())
            content += unpacking.decompress(base64.b64decode(data), CONTENT_BYTES_MAX + 1 - len(content))
            if len(content) > CONTENT_BYTES_MAX:
                raise ValueError(f"it has more than {CONTENT_BYTES_MAX} bytes once unpacked, the most that is read")
        if digest.hexdigest() != sha256:
            raise ValueError("its parts are not those that it was stored with")
        found = json_value(bytes(content))
        return str(found["plan"]).encode(), None if found["inputs"] is None else str(found["inputs"]).encode()
    except (ValueError, KeyError, TypeError, zlib.error) as exc:
        raise Corrupt(f"cannot read GpuPlan {name_of(plan_id)}: {exc}") from exc


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
