"""`gputide admin ledger`: whether somebody edited what was written down of changes, freezes, nights and relief."""

from __future__ import annotations

import typer

from fleet.data_folder import writing
from fleet.documents import document
from fleet.errors import Refused
from gputide.container.ledgers import anchored_folder
from gputide.options import YesOption, answering
from gputide.output import Answer, Listing
from gputide.session import Session

app = typer.Typer(no_args_is_help=True, help="The ledgers of the data folder. Example: gputide admin ledger verify")


@app.command("verify", epilog="Example: gputide admin ledger verify")
@answering
def verify(session: Session) -> Answer:
    """Check every ledger of the data folder: its chain, its key, what is anchored outside; exit status 1 for a fault.

    A ledger without key and anchor shows no edit by somebody who made all of it anew.
    """
    folder = session.folder()
    with anchored_folder(folder, session.settings) as anchored:
        looks, trust, unread = anchored.looks(), anchored.trust, anchored.unread
    broken = [look for look in looks if look.fault]
    listing = Listing.of(
        "Ledgers",
        looks,
        {
            "ledger": lambda look: look.name,
            "entries": lambda look: "" if look.entries is None else look.entries,
            "without key": lambda look: look.unmarked if folder.ledger_key is not None else "all",
            "anchored up to": lambda look: "" if look.anchored is None else look.anchored,
            "fault": lambda look: look.fault,
        },
    )
    said = f"{len(broken)} of {len(looks)} ledgers were edited, or lack entries" if broken else "every chain holds"
    return Answer(
        document={"ledgers": document(looks), "trust": trust, "unread": unread},
        headline=(f"{said}; {trust}",),
        listings=(listing,),
        footnotes=(
            *((f"heads in the cluster are not read: {unread}",) if unread else ()),
            *(("next: compare with a back-up, then gputide admin ledger accept --yes",) if broken else ()),
        ),
        status=1 if broken else 0,
    )


@app.command("accept", epilog="Example: gputide admin ledger accept --yes")
@answering
def accept(session: Session, yes: YesOption = False) -> Answer:
    """Anchor the ledgers as they stand, whatever was anchored: after somebody looked at what is missing or new."""
    folder = session.folder()
    with writing(folder), anchored_folder(folder, session.settings) as anchored:
        faults = [look.fault for look in anchored.looks() if look.fault]
        if yes and anchored.unread:
            raise Refused(f"cannot accept the ledgers: the heads in the cluster can't be read: {anchored.unread}")
        if yes:
            anchored.accept()
    if yes:
        return Answer(document={"accepted": True}, headline=("the ledgers are anchored as they stand",))
    return Answer(
        document={"accepted": False, "faults": faults},
        headline=(f"would accept {len(faults)} ledgers that were edited or lack entries",),
        footnotes=("nothing was changed; gputide admin ledger accept --yes does it",),
    )
