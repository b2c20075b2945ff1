"""What a stage would change, as the pages show it: its objects, then what becomes of nodes and cards. Pure."""

from __future__ import annotations

from dataclasses import replace

from dashboards.queries import STAGE_KIND
from enforcer.preview import ObjectDiff, StagePreview


def stage_diffs(stage: StagePreview) -> list[ObjectDiff]:
    """Objects of a stage, then what becomes of nodes and cards, which belong to no namespace.

    A stage that is refused before its objects are known is one entry that says so. Where single objects keep the
    stage from being applied, the reason stands beside those alone.
    """
    nowhere = ObjectDiff(kind=STAGE_KIND, namespace="", name="", recommendation="", before="", after="")
    if stage.refusal is not None and not stage.objects:
        return [replace(nowhere, name=str(stage.stage), refusal=stage.refusal)]
    of_stage = None if any(item.refusal for item in stage.objects) else stage.refusal
    found = [replace(item, refusal=item.refusal or of_stage) for item in (*stage.made, *stage.objects)]
    nodes: dict[str, tuple[list[str], list[str]]] = {}
    for node in stage.nodes:
        before, after = nodes.setdefault(node.node, ([], []))
        if node.cards_before is not None:
            before.append(f"cards held: {node.cards_before}")
            after.append(f"cards held: {node.cards_after}")
        after += node.steps
    for card in stage.cards:
        before, after = nodes.setdefault(card.node, ([], []))
        before.append(f"{card.card}: {', '.join(card.before) or 'free'}")
        after.append(f"{card.card}: {', '.join(card.after) or 'free'}")
    return found + [
        replace(nowhere, kind="Cards of node", name=name, before="\n".join(before), after="\n".join(after))
        for name, (before, after) in sorted(nodes.items())
    ]
