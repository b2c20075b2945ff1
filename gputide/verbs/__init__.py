"""The verbs, in the order in which help lists them.

The verb `a b-c` is the Typer `app` of the module `gputide.verbs.a.b_c`, which is imported when the verb is called and
not before: the node exporter's process never loads DuckDB or Dash. To add a verb, write its module and one line here.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Verb:
    """A verb, or a group of verbs.

    Attributes:
        name: the word that people type.
        panel: heading of the part of that list in which it stands.
        verbs: the verbs of a group; empty for a verb that has a module of its own.
        needs_prices: whether it asks what a card costs; the others run whatever the price book says.
    """

    name: str
    summary: str
    panel: str = "Commands"
    verbs: tuple[Verb, ...] = ()
    needs_prices: bool = False


_PLAN = (
    Verb(name="make", summary="Make a plan and keep it, or show what would follow on other cards or settings."),
    Verb(name="list", summary="List plans, and what was decided about each."),
    Verb(name="show", summary="Show a plan."),
    Verb(name="explain", summary="Explain one recommendation, with its evidence."),
    Verb(name="diff", summary="Show what applying a plan would change, object by object."),
    Verb(name="approve", summary="Approve stages of a plan."),
    Verb(name="drift", summary="Show, and repair, what is not as applied plans left it."),
    Verb(name="backtest", summary="Judge plans made on earlier days on the days that followed."),
    Verb(name="simulate", summary="Play days of a recorded fleet under a policy."),
    Verb(name="place", summary="Show the best node for a new pod."),
    Verb(name="cordon", summary="Show the cards to keep new pods off, so that whole nodes are freed."),
)
_COST = (
    Verb(name="show", summary="Show cost by namespace, team or workload.", needs_prices=True),
    Verb(name="budgets", summary="Show this month's budgets.", needs_prices=True),
    Verb(name="export", summary="Write every charge in the columns of FOCUS.", needs_prices=True),
    Verb(name="prices", summary="List, set and import prices of card hours."),
    Verb(name="bill", summary="Import the provider's bill; show what freed nodes took off it."),
)
_RUN = (
    Verb(name="export", summary="Serve metrics of a node's cards, of a cluster's schedulers, or of savings."),
    Verb(name="receive", summary="Take Prometheus remote write and put it on the bus."),
    Verb(name="rollup", summary="Turn samples on the bus into rows of the warehouse."),
    Verb(name="agent", summary="Enforce priorities and limits on this node."),
    Verb(name="controller", summary="Apply and take back what the cluster's plans ask for."),
    Verb(
        name="planner", summary="Make a plan when a policy changes; say in its status what became.", needs_prices=True
    ),
    Verb(name="admission", summary="Give new pods the card and the node of the plan."),
    Verb(name="relief", summary="Relieve cards that overload."),
    Verb(
        name="assistant",
        summary="Let an assistant ask about a data folder, over the Model Context Protocol on stdio.",
        needs_prices=True,
    ),
    Verb(name="router", summary="Wake models on request and let those that rest sleep."),
    Verb(name="tide", summary="Scale services in at night and back by morning.", needs_prices=True),
)
_ADMIN = (
    Verb(name="replay", summary="Feed a recorded trace through receiver, bus, roll-up and warehouse."),
    Verb(name="warehouse", summary="Merge files, drop old rows, bring Hive's tables up to date."),
    Verb(name="backup", summary="Copy the data folder while everything runs, check a copy, restore it."),
    Verb(name="engines", summary="Start and stop Kafka, Flink and Hive on this machine, for development."),
    Verb(name="access", summary="Make tokens for the web app; list the rights."),
    Verb(name="ledger", summary="Check whether somebody edited the ledgers; accept them as they stand."),
    Verb(name="installed", summary="Look from within a cluster whether a release of the chart works: helm test."),
    Verb(name="notify", summary="Send messages to mail and chats.", needs_prices=True),
    Verb(name="grafana", summary="Write dashboards for Grafana and rules for Prometheus."),
    Verb(name="probe", summary="Measure what a node's sharing really enforces."),
    Verb(name="kinds", summary="Show the versions of our kinds in the cluster; store old objects in the new one."),
    Verb(name="node", summary="Show how a node hands out its cards, and put it into another mode."),
)

VERBS: tuple[Verb, ...] = (
    Verb(
        name="demo",
        summary="Play the whole loop on a synthetic fleet, in one process.",
        panel="Start here",
        needs_prices=True,
    ),
    Verb(
        name="scan",
        summary="Ask a Prometheus for a first answer; install nothing, change nothing.",
        panel="Start here",
        needs_prices=True,
    ),
    Verb(
        name="status",
        summary="Show what runs, how fresh the data are, which plan waits, what was harmed.",
        panel="Start here",
        needs_prices=True,
    ),
    Verb(name="workloads", summary="Describe every workload: need, hours, idle time, trust.", panel="Look and plan"),
    Verb(
        name="plan",
        summary="Make, explain, compare and approve plans.",
        panel="Look and plan",
        verbs=_PLAN,
        needs_prices=True,
    ),
    Verb(name="apply", summary="Carry out approved stages; a dry run unless --yes.", panel="Change the cluster"),
    Verb(name="undo", summary="Restore what a plan changed; a dry run unless --yes.", panel="Change the cluster"),
    Verb(
        name="verify",
        summary="Compare what was saved and harmed with the prediction.",
        panel="Change the cluster",
        needs_prices=True,
    ),
    Verb(name="report", summary="Write or send the weekly savings report.", panel="Show", needs_prices=True),
    Verb(name="cost", summary="Show costs, budgets and prices; export FOCUS.", panel="Show", verbs=_COST),
    Verb(name="serve", summary="Serve the web app and its API.", panel="Show", needs_prices=True),
    Verb(name="doctor", summary="Say what is missing or misleads, and how to mend it.", panel="Show"),
    Verb(name="run", summary="Run one of gputide's processes.", panel="Operate", verbs=_RUN),
    Verb(name="admin", summary="Administer data, engines, access and messages.", panel="Operate", verbs=_ADMIN),
)


def verb_paths(verbs: Sequence[Verb] = VERBS, above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The words of every verb that has a module, groups left out: `("plan", "make")`."""
    for verb in verbs:
        words = (*above, verb.name)
        if verb.verbs:
            yield from verb_paths(verb.verbs, words)
        else:
            yield words


def needs_prices(words: Sequence[str]) -> bool:
    """Whether the verb of some words, or a group above it, asks what a card costs."""
    verbs, found = VERBS, False
    for word in words:
        verb = next((one for one in verbs if one.name == word), None)
        if verb is None:
            break
        verbs, found = verb.verbs, found or verb.needs_prices
    return found


def nearest_verb(words: Sequence[str], verbs: Sequence[Verb] = VERBS, program: str = "gputide") -> str | None:
    """The verb that a person may have meant by words that are none, as it is typed; None where nothing is near."""
    by_last = {path[-1]: path for path in reversed([*verb_paths(verbs), *((verb.name,) for verb in verbs)])}
    near = difflib.get_close_matches(words[-1], by_last, n=1)
    return " ".join((program, *by_last[near[0]])) if near else None
