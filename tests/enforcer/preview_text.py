"""Previews as one text, for golden files."""

from __future__ import annotations

from collections.abc import Sequence

from enforcer.preview import StagePreview, place_lines


def preview_text(stages: Sequence[StagePreview]) -> str:
    """Previews as text, for a terminal: per stage what it frees, the diffs, and what stands against it."""
    lines: list[str] = []
    for entry in stages:
        lines.append(
            f"stage {entry.stage}: {len(entry.objects)} objects, {len(entry.moves)} pods, "
            f"{entry.cards_freed} cards freed"
        )
        if entry.refusal:
            lines.append(f"  refused: {entry.refusal}")
        lines += [f"  note: {warning}" for warning in entry.warnings]
        lines += [diff.text for diff in (*entry.made, *entry.objects)]
        lines += place_lines(entry)
    return "\n".join(lines)
