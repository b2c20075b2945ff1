"""`gputide admin kinds`: in which versions the cluster serves and stores our kinds; old objects in the new one."""

from __future__ import annotations

import typer

from enforcer.kubernetes.kind_versions import KindVersions
from fleet.units import format_count
from gputide.container.cluster import check_uid, open_kubernetes
from gputide.options import YesOption, answering
from gputide.output import Answer, Listing
from gputide.session import Session

app = typer.Typer()


@app.command(epilog="Example: gputide admin kinds --yes")
@answering
def kinds(session: Session, yes: YesOption = False) -> Answer:
    """Show in which versions the cluster serves and stores our kinds; with --yes write old objects in the new version.

    After an upgrade that brought a newer version: then the one after it may stop serving the older.
    """
    done: dict[str, int] = {}
    with open_kubernetes(session.settings) as cluster:
        check_uid(cluster, session.settings)
        found = cluster.kind_versions()
        late = [one for one in found if not one.is_migrated]
        for one in late if yes else ():
            with session.progress(f"storing {one.resource} in {one.storage}") as tick:
                done[one.resource] = cluster.migrate(one.resource, tick)
        if done:
            found = cluster.kind_versions()
    rows = {
        "kind": lambda one: one.resource,
        "served": lambda one: ", ".join(one.served) or "not known to the cluster",
        "stored": lambda one: ", ".join(one.stored),
        "written": lambda one: one.storage,
        "understood": lambda one: "yes" if one.is_spoken else "no",
    }
    return Answer(
        document={"kinds": [_row(one, done) for one in found]},
        headline=(_headline(late, done),),
        listings=(Listing.of("Kinds", found, rows),),
    )


def _headline(late: list[KindVersions], done: dict[str, int]) -> str:
    if done:
        return f"stored {format_count(sum(done.values()))} objects of {len(done)} kinds in the new version"
    if late:
        names = ", ".join(one.resource for one in late)
        return f"objects of {names} may lie in an older version: `gputide admin kinds --yes` stores them in the new one"
    return "everything is stored in the version that is written"


def _row(one: KindVersions, done: dict[str, int]) -> dict[str, object]:
    return {
        "kind": one.resource, "served": list(one.served), "storage": one.storage or None, "stored": list(one.stored),
        "is_spoken": one.is_spoken, "objects_written": done.get(one.resource),
    }  # fmt: skip
