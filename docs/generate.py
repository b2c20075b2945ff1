"""Writes the pages of the documentation that are made from code: settings, metrics, backends, card models, findings.

    python docs/generate.py            # after a change of settings, series, own metrics, backends or card models

`make check` fails while a page differs from what this writes. The chart's files that are made from the same code are
written too (deploy/helm/generate.py).
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parent
sys.path[:0] = [str(DOCS.parent), str(DOCS)]

from backends_page import backends_page  # noqa: E402
from doctor_page import doctor_pages  # noqa: E402
from known_page import known_page  # noqa: E402
from metrics_page import metrics_pages  # noqa: E402
from settings_page import settings_pages  # noqa: E402
from sizing import sizing_page  # noqa: E402

from fleet.catalogue import catalogue  # noqa: E402 - the path is set above, so that the script runs anywhere
from fleet.schema import TABLES  # noqa: E402


def pages() -> dict[str, str]:
    """The generated pages: path below this folder, to text."""
    return {
        **settings_pages(),
        **metrics_pages(),
        "backends.md": backends_page(),
        "card-models.md": _card_models(),
        "tables.md": _tables(),
        **doctor_pages(),
        "sizing.md": sizing_page(DOCS / "sizing-figures.toml"),
        "what-each-source-knows.md": known_page(DOCS / "known-by-path.json"),
    }


def _card_models() -> str:
    lines = [
        "# Card models\n",
        "Prices are public list prices, kept only where a source can be named; set your own with `prices.overrides`.\n",
        "| card model | framebuffer | SMs | PCI Express | watts | per card hour | source | date |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for model in catalogue():
        price = model.price
        shown = ("", "", "")
        if price is not None:
            amount = price.per_card_hour
            shown = (f"{amount.amount} {amount.currency}", f"{price.basis}; {price.source}", price.date)
        size = f"{model.framebuffer_bytes / 2**30:g} GiB"
        known = (model.name, size, str(model.sms), str(model.pcie_generation or ""), f"{model.watts_max:g}")
        lines.append(f"| {' | '.join((*known, *shown))} |")
    return "\n".join(lines) + "\n"


def _tables() -> str:
    lines = ["# Tables\n", "Partitions: `dt`, `cluster`, and one that names the source offsets. Rows are additive.\n"]
    for table in TABLES:
        lines += [f"## {table.name}\n", "| column | kind | merged by |", "|---|---|---|"]
        lines += [f"| `{column.name}` | {column.kind.value} | {column.merge.value} |" for column in table.columns]
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


if __name__ == "__main__":
    for name, text in pages().items():
        (DOCS / name).parent.mkdir(exist_ok=True)
        (DOCS / name).write_text(text, encoding="utf-8")
    runpy.run_path(str(DOCS.parent / "deploy" / "helm" / "generate.py"))["write_chart_files"]()
