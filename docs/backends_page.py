"""The page of backends: what each way of sharing cards enforces, and which advice it carries out, from its record."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from enforcer.simulated.systems import PLAYABLE
from fleet.capabilities.register import CAPABILITIES, OLDER, ONLY_READ, Capabilities
from fleet.decisions import RecommendationKind

# No backend carries out what is done by hand.
_KINDS = tuple(kind for kind in RecommendationKind if kind is not RecommendationKind.SLEEP)
_HEADING = """# Ways of sharing cards

`enforcer.backend` names one. What a record says here is what the planner reckons with and what the enforcer refuses by;
nothing is claimed that its source code or a measurement does not show.

The size of a slice is `free` where the plan says it, on the card that it names; `scheduler` where the plan says it, and
the scheduler chooses the card; that of `replicas` or `equal parts` where all cards of a node are handed out alike; and
of a `claim` where all pods of a workload name one card.

Where the scheduler chooses the card, a node gets the slices of one card, or slices of which any that fit a card may
share it: no set of one more fits, their peaks fit a card together, and the harm that is predicted is that of the
busiest at every moment. Slices are sized up until they fill their card, so that no other pod joins them. So freed cards
are as many as planned in whatever order pods come; groups that no node takes in this way keep whole cards, which frees
fewer than a backend that lets pods name their card.

## What advice is carried out

`yes`: rendered. `part`: rendered, and what does not hold is said with it. `no`: refused, with the fact.

**experimental**: rendered by the published rules of that backend and tried against a double of ours only; no real
scheduler or device plugin has accepted it yet. `plan make` and `apply` refuse such a backend unless
`enforcer.experimental=true`: try it on a cluster that may break. The programs that accepted the others are listed
below.

## Trying one without a cluster

`gputide demo --backend NAME` plays the whole loop in the words of a backend, and `gputide admin replay` makes the
simulated cluster of a data folder play that of `enforcer.backend`. Played are
{playable};
not {unplayable}, for which a plan can be made from a replay.
Webhook, scheduler and plugin admit, place and register as the backend's own do, by their published rules, and the
replay keeps pods to what the record below enforces, and to nothing else. Where a real scheduler's decisions were
recorded (HAMi, Volcano, vgpu-manager, KAI), it decides alike: `tests/enforcer/test_simulated_hami.py` and
`tests/enforcer/test_simulated_decisions.py`, which also say what it leaves out.

A simulated cluster keeps the backend that it was made with; with another `enforcer.backend` it is not opened. With a
backend whose templates change all replicas at once the demo says yes to gaps (`guard.gaps_allowed`). What such a
backend frees depends on the fleet: of the demo's, time-slicing and MPS free no whole card for sure, and with whole
cards the pods that share one from the start wait, so nothing is applied.

## Versions

Facts hold for the versions that a record names. The running version is the tag of the images of the backend's own
Deployments and DaemonSets; `doctor` shows it, a plan keeps it (`backend_version`), and `apply` and its dry run refuse a
plan whose version enforces something else. A newer version than the newest known counts as that, with a warning; an
older one than the oldest is refused. `enforcer.backend_version` names the version where the tag does not.
"""
_TRIED_HEADING = """
## How far each was tried

**Rendered**: a contract suite and golden files hold what is written. **API server**: a real one took it, with strict
validation, under the documented rights. **Own scheduler**: `real` where kube-scheduler, a device plugin or mig-parted
took it in a test, `as recorded` where a double placed it that decides as the real scheduler did in recorded cases,
`by its rules` where that double follows what its authors publish, and no decision was recorded.
**Undone**: every byte was as before, on a real API server or on the simulated cluster alone. **Measured**: no test has
a card, so what is enforced is read from the source of each backend; `gputide admin probe run` measures it where it
matters. The tests stand with each backend below.
"""
_TRIED_COLUMNS = ("rendered", "API server", "own scheduler", "undone", "measured")
_PLACED = (
    "tests/cluster/test_planned_placement.py::"
    "test_pods_come_to_their_planned_cards_as_many_are_free_as_planned_and_undo_takes_all_back"
)
_COUNTED = "tests/cluster/test_counted_cards.py"
_ROLLED = "tests/cluster/test_rollout_backends.py"
_RETURNED = f"{_ROLLED}::test_pods_of_a_shared_node_leave_it_before_it_hands_out_whole_cards_and_come_back_to_these"
_EMPTIED = f"{_ROLLED}::test_node_is_emptied_changed_and_filled_and_undo_takes_it_all_back"
_CLAIMED = f"{_ROLLED}::test_claims_are_made_and_carried_out_and_undo_gives_whole_cards_back"
_HAMI = "tests/cluster/test_apply_and_undo.py::test_program_shows_applies_and_undoes_a_plan_on_a_real_cluster"
ON_API_SERVER: dict[str, str] = {
    "whole_cards": f"{_COUNTED}::test_whole_cards_come_to_the_planned_node_and_the_other_is_free",
    "hami": _HAMI,
    "volcano": _PLACED,
    "vgpu_manager": _PLACED,
    "kai": _PLACED,
    "kai_nvfractions": _PLACED,
    "nvidia_time_slicing": _EMPTIED,
    "nvidia_mps": f"{_COUNTED}::test_pods_come_to_the_planned_node_and_the_other_is_free",
    "mig": _EMPTIED,
    "dra_mig": _CLAIMED,
    "dra_shared": _PLACED,
}
"""Tests in which a real API server takes what is rendered, by backend."""
UNDONE_THERE: dict[str, str] = {
    "hami": _HAMI, "volcano": _PLACED, "vgpu_manager": _PLACED, "kai": _PLACED, "kai_nvfractions": _PLACED,
    "nvidia_time_slicing": _RETURNED, "nvidia_mps": _RETURNED, "mig": _EMPTIED, "dra_mig": _CLAIMED,
    "dra_shared": _PLACED,
}  # fmt: skip
"""Tests in which it is taken back there, byte by byte."""
UNDONE_SIMULATED: dict[str, str] = dict.fromkeys(
    ("effectivegpu", "mgpu"),
    "tests/enforcer/test_simulated_systems.py::test_slices_are_placed_as_planned_and_undone_byte_for_byte",
)
"""The test in which it is taken back on the simulated cluster, byte by byte; of those not above."""
BY_RULES: dict[str, str] = {"kai_nvfractions": _PLACED}
"""Tests in which a double by published rules alone places it; none of its decisions was recorded."""
_UNDONE = {"API server": UNDONE_THERE, "simulated": UNDONE_SIMULATED}
_ONLY_READ_HEADING = """
## Read, and not rendered

Their pods are read as grants, and `doctor` names them on their nodes; no plan is made for them. What they say of
themselves:
"""
_GAPS: dict[str, str] = {
    "effectivegpu": "none of its programs is published; what is rendered is HAMi's under other names",
    "mgpu": "its scheduler and plugin are closed, and none of their decisions was recorded",
    "kai_nvfractions": "it needs NVIDIA's driver r615 on a card",
    "dra_consumable": "kube-scheduler 1.36 takes such claims, but opens another card while a planned one is held",
}
"""Why a backend was tried by doubles alone."""
_COLUMNS = (
    "framebuffer", "compute", "core policies", "priority levels", "oversubscription", "live change", "slices per card",
    "mode of a", "size of a slice", "replicas may differ", "fault isolation",
)  # fmt: skip


def backends_page() -> str:
    """Text of `backends.md`."""
    names = [f"`{record.backend}`" for record in CAPABILITIES]
    playable = [name for name in names if name.strip("`") in PLAYABLE]
    heading = _HEADING.format(
        playable=", ".join(playable), unplayable=", ".join(name for name in names if name not in playable)
    )
    lines = [heading, *_table([kind.value for kind in _KINDS], _cells)]
    lines += ["", "## What it enforces\n", *_table(_COLUMNS, _facts)]
    lines += [_TRIED_HEADING, *_table(_TRIED_COLUMNS, _tried)]
    lines += ["", "## Facts behind `part` and `no`, and where they were read"]
    for record in CAPABILITIES:
        lines += ["", f"### {record.backend}\n", *_versions(record)]
        lines += [f"- {kind}, in part: {fact}." for kind, fact in record.partly]
        lines += [f"- {kind}, refused: {fact}." for kind, fact in record.refuses]
        lines += [f"- Accepted by {entry.what}: {_where(entry.where)}." for entry in record.accepted_by]
        lines += [f"- Its double places as {entry.what}: {_where(entry.where)}." for entry in record.recorded]
        lines += [f"- A double by its published rules places it: `{where}`." for where in _of(BY_RULES, record)]
        lines += [f"- A real API server takes it: `{where}`." for where in _of(ON_API_SERVER, record)]
        lines += [f"- Undone there exactly: `{where}`." for where in _of(UNDONE_THERE, record)]
        lines += [f"- Undone exactly on the simulated cluster: `{where}`." for where in _of(UNDONE_SIMULATED, record)]
        lines += [f"- Not tried with its own programs: {why}." for why in _of(_GAPS, record)]
        if record.is_experimental:
            lines.append("- Experimental: no real scheduler or device plugin has accepted what is rendered for it.")
        lines.append("- Sources, each with what was read there:")
        lines += [f"  - `{source.where}`: {source.facts.replace(' ', ', ')}" for source in record.source]
    lines += [_ONLY_READ_HEADING, *_table(_COLUMNS, _facts, ONLY_READ)]
    for record in ONLY_READ:
        lines += ["", *_versions(record), *(f"- {kind}: {fact}." for kind, fact in record.partly)]
        lines += [f"- `{source.where}`: {source.facts.replace(' ', ', ')}" for source in record.source]
    return "\n".join(lines) + "\n"


def _of(facts: dict[str, str], record: Capabilities) -> list[str]:
    return [facts[record.backend]] if record.backend in facts else []


def _tried(record: Capabilities) -> tuple[str, ...]:
    undone = next((how for how, where in _UNDONE.items() if record.backend in where), "no")
    is_tested = any("::" in entry.where for entry in record.accepted_by)
    by_rules = "by its rules" if record.backend in BY_RULES else "no"
    placed = "real" if is_tested else "as recorded" if record.recorded else by_rules
    return "yes", "yes" if record.backend in ON_API_SERVER else "no", placed, undone, "no"


def _versions(record: Capabilities) -> list[str]:
    """From which version on the record holds, and what older versions do not carry out."""
    if record.since is None and record.known_to is None:
        return []
    since = "" if record.since is None else f" from {record.since} on,"
    lines = [f"- Versions:{since} read up to {record.known_to}, seen by the tag of `{record.images[0]}`."]
    lines += [f"- {version}, by its release notes alone: {fact}." for version, fact in record.announced]
    for older in (one for one in OLDER if one.backend == record.backend):
        known = {*record.refuses}
        lines += [
            f"- {kind}, refused before {record.since} (facts from {older.since} on): {fact}."
            for kind, fact in older.refuses
            if (kind, fact) not in known
        ]
    return lines


def _where(text: str) -> str:
    return f"`{text}`" if "::" in text else text


def _table(
    columns: Sequence[str],
    row: Callable[[Capabilities], Sequence[str]],
    records: Sequence[Capabilities] = CAPABILITIES,
) -> list[str]:
    """A table with a row per record."""
    marks = {True: " **experimental**" if records is CAPABILITIES else "", False: ""}
    heads = [f"| backend | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    return heads + [
        f"| `{record.backend}`{marks[record.is_experimental]} | {' | '.join(row(record))} |" for record in records
    ]


def _cells(record: Capabilities) -> list[str]:
    return [_cell(record, kind) for kind in _KINDS]


def _cell(record: Capabilities, kind: RecommendationKind) -> str:
    if kind.value in dict(record.refuses):
        return "no"
    return "part" if kind.value in dict(record.partly) else "yes"


def _facts(record: Capabilities) -> tuple[str, ...]:
    changes = "framebuffer, not in the books" if record.live_framebuffer_change else "no"
    return (
        record.framebuffer_isolation.value,
        record.compute_isolation.value,
        ", ".join(policy.value for policy in record.core_policies) or "none",
        str(record.priority_levels),
        record.oversubscription.value,
        changes,
        str(record.slices_per_card_max),
        record.granularity.value,
        record.division.value.replace("_", " "),
        "yes" if record.admits_pods else "no",
        "yes" if record.fault_isolation else "no",
    )
