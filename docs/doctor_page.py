"""The pages of the doctor: every finding with what it disables and what mends it, from the catalogue."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gputide.doctor.finding import Area, FindingKind, Severity, catalogue

_HEADING = """# What is missing, and what mends it

    gputide doctor                                   # what the settings use, on this machine
    gputide doctor node                              # on a node: driver, cards, kubelet, regions
    gputide doctor cluster                           # API server, rights, backends, who else changes workloads
    gputide --set scan.url=http://prometheus:9090 doctor prometheus
    gputide doctor kafka flink hive                  # the engines of the settings
    gputide doctor --only 'prometheus-pods-*' --format json
    gputide doctor --lang zh                         # in Chinese; report.language unless given

Looks, and changes nothing: no topic, table, object or message is made. Checks run beside each other, each for a bounded
time. What can't be looked at (a right is missing, a server does not tell) is `unchecked`: neither well nor ill.

| exit status | means |
|---|---|
| 0 | nothing was found but notes |
| 1 | there are errors or warnings; with `--strict` also where there are notes, or something could not be checked |
| 2 | wrong use or settings |
| 5 | a service could not be reached |

`error`: something that is wanted does not work, or numbers are wrong. `warning`: there is less advice, or it is less
sure. `note`: worth knowing; gputide reckons with it.

`--format json` (schema `gputide.doctor/v1`): `checked_at`, `areas`, `summary` (counts of `ok`, `finding`, `unchecked`,
`error`, `warning`, `note`) and `diagnoses`, each with `area`, `check`, `state`, `code`, `severity`, `subject`, `found`,
`says`, `disables` and `mend`. A code never changes its meaning. `gputide doctor --codes` lists them all.

Rights in a cluster are asked of the API server one by one. Of another account than one's own, as an administrator:

    gputide doctor cluster --only right-missing --role writer --as system:serviceaccount:gputide:gputide-writer

Where the chart runs, the same looks are made by `kubectl -n gputide exec` in a pod of each part; a node's by
`kubectl -n gputide exec POD-OF-THE-EXPORTER -- gputide doctor node`. A few commands name charts and objects by the
names that their own documentation uses: put yours in their place.
"""
_NAMES = {
    Area.INSTALLATION: "Installation",
    Area.NODE: "A node",
    Area.CLUSTER: "A cluster",
    Area.PROMETHEUS: "Prometheus",
    Area.RECEIVER: "The receiver",
    Area.KAFKA: "Kafka",
    Area.FLINK: "Flink",
    Area.HIVE: "Hive",
    Area.DATA: "The data folder",
    Area.HISTORY: "The history",
    Area.RELIEF: "Relief and objectives",
    Area.DASHBOARD: "The web app",
    Area.NOTIFY: "Notifications",
}


def doctor_pages() -> dict[str, str]:
    """`doctor.md`, which lists the areas, and a page of findings for each of them: file name to Markdown."""
    index = [_HEADING, "| area | findings | asked alone |", "|---|---|---|"]
    pages = {}
    for area in Area:
        kinds = [kind for kind in catalogue().values() if kind.area is area]
        asked = f"`gputide doctor {area.value}`"
        index.append(f"| [{_NAMES[area]}](doctor/{area.value}.md) | {len(kinds)} | {asked} |")
        entries = _entries(sorted(kinds, key=lambda kind: list(Severity).index(kind.severity)))
        pages[f"doctor/{area.value}.md"] = "\n".join((f"# Doctor: {_NAMES[area]}", "", asked, "", *entries))
    return {"doctor.md": "\n".join(index) + "\n", **pages}


def _entries(kinds: Iterable[FindingKind]) -> Iterator[str]:
    for kind in kinds:
        yield f"## {kind.code}"
        yield ""
        yield f"*{kind.severity.value}* – {kind.says}"
        yield ""
        yield f"- Disables: {kind.disables}"
        yield f"- Seen by: {kind.sign}"
        yield f"- Mend: {_code(kind.mend)}"
        yield ""


def _code(command: str) -> str:
    """A command as code, whatever stands in it."""
    fence = "``" if "`" in command else "`"
    return f"{fence}{command}{fence}"
