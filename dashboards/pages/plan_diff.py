"""What stages would change, object by object, before and after; a part of the plan page.

Dash draws the frame alone: a component per object, let alone per line, takes the browser minutes. `assets/diffs.js`
makes a row per object, and asks for the two sides of an object when its row is opened. Until then a preview is kept
here, for the person who asked for it. Registered by `pages.plan`.
"""

from __future__ import annotations

import json
import secrets
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import astuple
from difflib import SequenceMatcher
from typing import Any

from dash import ALL, MATCH, Dash, Input, Output, State, html, no_update
from flask import jsonify

from dashboards.access.people import Person
from dashboards.access.sign_in import Access, plain_answer
from dashboards.pages.frame import card, scrolled, shown, table
from dashboards.queries import Views
from dashboards.view_models.stage_diffs import stage_diffs
from dashboards.words.reading import reader_words, say
from enforcer.preview import ObjectDiff
from enforcer.rollout.holding import Way
from enforcer.switch_preview import SwitchPreview
from fleet.errors import GputideError

CHARACTERS_MAX = 64 * 2**20
"""Characters that are kept over all previews; the oldest previews go first."""
_PATH = "/plan/preview"
_WAYS = {
    Way.SURGE: "plan.way_surge",
    Way.SURGE_IN_TURN: "plan.way_surge_in_turn",
    Way.GAP: "plan.way_gap",
    Way.GAP_AT_ONCE: "plan.way_gap_at_once",
}


class KeptPreviews:
    """Previews that somebody looks at, each under a name of its own, each for one person with the rights of then.

    Args:
        characters_max: characters that are kept at most, the newest preview apart.
    """

    def __init__(self, characters_max: int = CHARACTERS_MAX) -> None:
        self._characters_max = characters_max
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, tuple[Person, tuple[ObjectDiff, ...]]] = OrderedDict()
        self._characters = 0

    def keep(self, person: Person, objects: tuple[ObjectDiff, ...]) -> str:
        """Keep a preview; returns its name."""
        name = secrets.token_urlsafe(12)
        with self._lock:
            self._kept[name] = (person, objects)
            self._characters += _characters(objects)
            while self._characters > self._characters_max and len(self._kept) > 1:
                self._characters -= _characters(self._kept.popitem(last=False)[1][1])
        return name

    def find(self, person: Person, name: str, place: int) -> ObjectDiff | None:
        """One object of a preview; None where there is none, or none for this person."""
        with self._lock:
            owner, objects = self._kept.get(name, (None, ()))
        return objects[place] if owner == person and place < len(objects) else None


def register(app: Dash, views: Views, access: Access) -> KeptPreviews:
    """The buttons that ask what would change, and the address of an object's two sides.

    Returns:
        The previews whose objects that address shows.
    """
    kept = KeptPreviews()

    @app.callback(
        Output({"type": "diff", "stage": MATCH}, "children"),
        Output({"type": "show-diff", "stage": MATCH}, "aria-expanded"),
        Input({"type": "show-diff", "stage": MATCH}, "n_clicks"),
        State({"type": "show-diff", "stage": MATCH}, "id"),
        State("plan-id", "data"),
        prevent_initial_call=True,
    )
    def _show(clicks: int | None, button: dict[str, Any], plan_id: str) -> Any:
        if not clicks:
            return no_update, no_update
        if clicks % 2 == 0:
            return None, "false"
        return _answered(views, access, kept, plan_id, (button["stage"],)), "true"

    @app.callback(
        Output("preview-answer", "children"),
        Input("preview", "n_clicks"),
        State("plan-id", "data"),
        State({"type": "stage", "stage": ALL}, "value"),
        prevent_initial_call=True,
    )
    def _preview(clicks: int | None, plan_id: str, values: list[list[int]]) -> Any:
        if not clicks:
            return no_update
        stages = tuple(sorted(stage for value in values for stage in value or ()))
        answer = _answered(views, access, kept, plan_id, stages)
        return card(say("plan.preview_on_api_server"), answer, note=say("plan.nothing_was_changed"))

    def _object(name: str, place: int) -> Any:
        found = kept.find(access.who(), name, place)
        if found is None:
            return plain_answer(say("plan.preview_no_longer_kept_ask_for"), 404)
        before, after = sides(found.before, found.after)
        return jsonify(
            before={"name": say("plan.before"), "runs": before}, after={"name": say("plan.after"), "runs": after}
        )

    app.server.add_url_rule(f"{_PATH}/<name>/<int:place>", "previewed_object", _object, methods=["GET"])
    return kept


def switch_answer(found: SwitchPreview, access: Access, kept: KeptPreviews) -> list[Any]:
    """What putting a node into another mode would do: who leaves, where to, and the objects that change."""
    refusal = found.stage.refusal
    said = [html.P(shown(refusal), className="message failed")] if refusal is not None else []
    said += [html.P(shown(note), className="soft") for note in found.stage.warnings]
    if refusal is None and found.approvals > 1:
        said.append(html.P(say("node.two_people")))
    columns = ((say("node.pod"), "t"), (say("term.workload"), "t"), (say("node.comes_up_on"), "t"),
               (say("node.budgets"), "t"), (say("node.data_at_stake"), "t"))  # fmt: skip
    lines = [
        (
            one.pod,
            one.workload,
            one.home or html.B(say("node.no_room")),
            say("mark.list").join(say("node.budget_allows", name=name, count=count) for name, count in one.budgets)
            or "–",
            say("mark.list").join(
                (*(say("node.emptied", volume=name) for name in one.emptied),
                 *(say("node.claimed", volume=name) for name in one.claimed))
            )
            or "–",
        )
        for one in found.leavers
    ]  # fmt: skip
    title = say("node.pods_must_leave", count=len(lines))
    leaving = [html.P(title), scrolled(table(columns, lines), name=title)] if lines else [html.P(say("node.empty"))]
    objects = [_kept_rows(stage_diffs(found.stage), access, kept)] if refusal is None else []
    return [*said, *leaving, *objects]


def sides(old: str, new: str) -> tuple[list[str], list[str]]:
    """Two texts line by line beside each other: what is alike stands at the same height in both.

    Returns:
        Of each text its runs of lines, by turns alike and changed, alike first. A line starts with its sign (`-`, `+`
        or a space); what one side lacks is empty lines there.
    """
    before, after = old.splitlines(), new.splitlines()
    left, right = [""], [""]
    for tag, old_start, old_end, new_start, new_end in SequenceMatcher(None, before, after, False).get_opcodes():
        pair = ((left, before[old_start:old_end], "-"), (right, after[new_start:new_end], "+"))
        height = max(old_end - old_start, new_end - new_start)
        for runs, lines, sign in pair:
            if tag == "equal":
                runs[-1] += "".join(f"  {line}\n" for line in lines)
            else:
                runs += ["".join(f"{sign} {line}\n" for line in lines), "\n" * (height - len(lines))]
    return left, right


def _answered(views: Views, access: Access, kept: KeptPreviews, plan_id: str, stages: tuple[int, ...]) -> Any:
    entry = views.plans.plan(plan_id)
    switch = None if entry is None or entry.applied_stages else entry.plan.node_switch
    try:
        if entry is not None and switch is not None:
            return html.Div(switch_answer(views.nodes.preview(entry.plan.cluster, switch), access, kept))
        found = views.plans.preview(plan_id, stages)
    except GputideError as exc:
        return html.P(shown(exc.said), className="message failed")
    if not found:
        is_tide = bool(stages) and entry is not None and entry.plan.tide_stages.issuperset(stages)
        unchanged = say("plan.left_to_tide") if is_tide else say("plan.nothing_would_change_cluster_already_as")
        return html.P(unchanged, className="soft")
    return _kept_rows(found, access, kept)


def _kept_rows(found: Sequence[ObjectDiff], access: Access, kept: KeptPreviews) -> Any:
    objects = tuple(sorted(found, key=lambda item: item.refusal is None))
    return _rows(objects, f"{_PATH}/{kept.keep(access.who(), objects)}")


def _rows(objects: Sequence[ObjectDiff], address: str) -> Any:
    """How many objects, and their rows as values; those that are refused come first."""
    refused = sum(item.refusal is not None for item in objects)
    words = say("plan.count_objects", count=len(objects))
    if refused:
        words += say("plan.count_refused", count=refused)
    rows = [
        {
            "kind": reader_words().in_english("recorded.", item.kind),
            "name": f"{item.namespace}/{item.name}" if item.namespace else item.name,
            "recommendation": item.recommendation,
            "way": "" if item.way is None else say(_WAYS[item.way]),
            "refusal": None if item.refusal is None else reader_words().said(item.refusal),
        }
        for item in objects
    ]
    given: Any = {
        "data-objects": json.dumps(rows, ensure_ascii=False, separators=(",", ":")),
        "data-address": address,
        "data-failed": say("frame.could_not_be_shown"),
    }
    return html.Div([html.P(words, className="soft"), html.Div(className="diffs", **given)])


def _characters(objects: tuple[ObjectDiff, ...]) -> int:
    """All that a preview's objects say: a stage that is refused has a reason and no YAML."""
    return sum(len(text or "") for item in objects for text in astuple(item))
