"""Says no to a stage whose pods would not be pinned to their seats, for nobody at admission gives them any.

Such a stage would roll pods for nothing: they come up wherever a card fits. Called by the guard, and by previews.
"""

from __future__ import annotations

from collections.abc import Iterable

from enforcer.backends.planned_seats import SEATS_FIELD
from enforcer.cluster import ClusterReader
from enforcer.record.journal import ObjectIntent
from fleet.errors import Refused
from fleet.sentences import sentence

MENDED_BY = "install it: kubectl apply -f docs/admission.yaml, or helm upgrade --set admission.enabled=true …"


def check_admission(stage: int, objects: Iterable[ObjectIntent], reader: ClusterReader) -> None:
    """Refuse a stage that seats pods while new pods are not given their seats.

    Raises:
        Refused: gputide's admission webhook is missing, does not look at the pods' namespaces, or does not answer.
        Misconfigured: a right is missing.
        Unavailable: the cluster can't be reached.
    """
    namespaces = {
        intent.namespace for intent in objects if any(part.field == SEATS_FIELD and part.new for part in intent.fields)
    }
    why = reader.why_unseated(sorted(namespaces)) if namespaces else None
    if why is not None:
        raise Refused(sentence("guard.unseated", stage=str(stage), why=why, mend=MENDED_BY))
