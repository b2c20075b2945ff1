"""The double's rules decide as HAMi itself did: every recorded case, from the webhook to the bind."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from tests.cluster.hami_recorded import RECORDED, SEQUENCES, nodes_of, pod_of, quota_left, register
from tests.cluster.hami_rules import (
    CORDON,
    HANDSHAKE,
    REGISTER,
    Denied,
    Manifest,
    Registry,
    Unfit,
    admit,
    amount,
    asks_of,
    locked,
    needs_lock,
    place,
    released,
)

LOOK_SECONDS = 15
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def test_there_are_as_many_cases_as_were_recorded() -> None:
    assert len({case["rule"] for case in RECORDED}) == len(RECORDED) >= 350


@pytest.mark.parametrize("case", RECORDED, ids=lambda case: case["rule"])
def test_webhook_admits_and_denies_as_recorded(case: Manifest) -> None:
    out = case["out"]
    if "denied" in out:
        with pytest.raises(Denied) as denied:
            admit(pod_of(case), quota_left(case))
        assert str(denied.value) == out["denied"]
        return
    spec = admitted(case)["spec"]
    assert spec.get("schedulerName", "default-scheduler") == out.get("scheduler", "hami-scheduler")
    for key, found in (("containers", "containers"), ("initContainers", "init")):
        assert [seen(one) for one in spec.get(key, ())] == [seen(one) for one in out.get(found, ())]


@pytest.mark.parametrize(
    "case",
    [case for case in RECORDED if case["out"].keys() & {"nodes", "failed", "error"}],
    ids=lambda case: case["rule"],
)
def test_scheduler_places_and_refuses_as_recorded(case: Manifest) -> None:
    out = case["out"]
    pod = admitted(case)
    offered = case.get("offered", [node["name"] for node in case["nodes"]])
    if all(ask is None for ask in asks_of(pod)):
        assert out["nodes"] == offered
        assert "allocated" not in out
        return
    known = [node for node in nodes_of(case) if node.name in offered]
    if "error" in out:
        with pytest.raises(Unfit) as wrong:
            place(pod, known, quota_left(case))
        assert str(wrong.value) in out["error"]
        return
    fits, failed = place(pod, known, quota_left(case))
    failed |= dict.fromkeys(set(offered) - {node.name for node in known}, "node unregistered")
    if "failed" in out:
        assert (fits, failed) == ({}, out["failed"])
        return
    (chosen,) = out["nodes"]
    assert {name: f"{found.score:.2f}" for name, found in fits.items()} == {
        name: f"{score:.2f}" for name, score in out["scores"].items()
    }
    best = next(iter(fits.values())).score
    assert fits[chosen].score == best, "of nodes of the same score HAMi takes any"
    assert fits[chosen].text == out["allocated"]


@pytest.mark.parametrize("case", [case for case in RECORDED if "bound" in case["out"]], ids=lambda case: case["rule"])
def test_bind_locks_and_refuses_as_recorded(case: Manifest) -> None:
    bound = case["out"]["bound"]
    when, _, owner = case.get("lock", "").partition(",")
    at = {"fresh": NOW - timedelta(minutes=1), "old": NOW - timedelta(minutes=6)}.get(when)
    before = case.get("lock") if at is None else at.isoformat() + (f",team,{owner}" if owner else "")
    pod, after, error = ("team", "p"), before, ""
    try:
        if needs_lock(admitted(case)):
            after = locked(before, "a", pod, NOW, lambda _, name: name != "gone")
    except Unfit as refusal:
        after, error = released(before, pod), str(refusal)
    assert error == bound["error"]
    unlike = None if after is None else after.replace(NOW.isoformat().replace("+00:00", "Z"), "time")
    assert bound["lock"] == ("as before" if after is not None and after == before else unlike and "time,NAMESPACE,p")
    assert unlike in (None, before, "time,team,p")


@pytest.mark.parametrize("case", SEQUENCES, ids=lambda case: case["rule"])
def test_nodes_are_read_anew_when_they_were_as_recorded(case: Manifest) -> None:
    registry = Registry()
    annotations: dict[str, str] = {}
    count, now, is_there = 20, NOW, False
    for step, found in case["steps"]:
        is_there = step != "delete"
        if is_there:
            count, annotations = step.get("count", count), _changed(annotations, step, now)
        else:
            annotations = {}
        for _ in range(2):  # what was recorded was asked for after two looks
            now += timedelta(seconds=LOOK_SECONDS)
            registry.keep(["n"] if is_there else [])
            handshake = registry.look("n", annotations, count, now) if is_there else None
            if handshake is not None:
                annotations[HANDSHAKE] = handshake
        assert _refusal(registry) == (None if found == "fits" else found)


def _changed(annotations: dict[str, str], change: Manifest, now: datetime) -> dict[str, str]:
    made: dict[str, str | None] = dict(annotations)
    for key, name in (("cordon", CORDON), ("handshake", HANDSHAKE)):
        if key in change:
            made[name] = change[key]
    if "cards" in change:
        made[REGISTER] = None if change["cards"] is None else register(change["cards"])
    handshake = made.get(HANDSHAKE) or ""
    if handshake.startswith("Requesting-"):
        asked_at = now - timedelta(seconds=int(handshake.removeprefix("Requesting-")))
        made[HANDSHAKE] = f"Requesting_{asked_at:%Y-%m-%d %H:%M:%S}"
    return {key: value for key, value in made.items() if value is not None}


def _refusal(registry: Registry) -> str | None:
    if "n" not in registry.nodes:
        return "node unregistered"
    container = {"name": "c", "resources": {"limits": {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "100"}}}
    fits, failed = place({"metadata": {}, "spec": {"containers": [container]}}, [registry.nodes["n"]])
    return None if fits else failed["n"]


def admitted(case: Manifest) -> Manifest:
    """The pod as the webhook let it in; one whose label keeps it from the webhook is let in as it is."""
    pod = pod_of(case)
    return pod if pod["metadata"]["labels"].get("hami.io/webhook") == "ignore" else admit(pod, quota_left(case))


def seen(container: Manifest) -> Manifest:
    """What the webhook may change of a container."""
    limits = container.get("limits") or container.get("resources", {}).get("limits", {})
    return {"limits": {key: amount(value) for key, value in limits.items()}, "env": container.get("env", [])}
