"""The rules: who may be proposed what, and why not. One ordered tuple; one file per rule.

A rule only permits or refuses, workload by workload; what is then really proposed follows from the packing, which may
use nothing that the rules did not permit. A new rule is a file `rule_…` and an entry in `RULES`. Called by `planner`.
"""

from __future__ import annotations

from typing import Protocol

from fleet.decisions import RecommendationKind, Refusal
from recommender.advice.case import Case
from recommender.advice.colocate import ColocateRule
from recommender.advice.fewer_cards import FewerCardsRule
from recommender.advice.mig import MigRule
from recommender.advice.offpeak import OffpeakRule
from recommender.advice.oversubscribe import OversubscribeRule
from recommender.advice.reclaim import ReclaimRule
from recommender.advice.rehome import RehomeRule
from recommender.advice.slice import SliceRule
from recommender.advice.tide import TideRule


class Rule(Protocol):
    """Permits one kind of advice, or refuses it.

    Contract: the answer depends on the case alone; a refusal carries a short code and one sentence with numbers.
    """

    @property
    def kind(self) -> RecommendationKind:
        """The kind of advice that this rule is about."""
        ...

    def applies(self, case: Case) -> bool:
        """Whether the workload is of the sort that this advice is for; if not, nothing needs to be said."""
        ...

    def refusal(self, case: Case) -> Refusal | None:
        """Why the advice must not be given to this workload; None where it may."""
        ...


RULES: tuple[Rule, ...] = (
    ReclaimRule(),
    FewerCardsRule(),
    SliceRule(),
    OversubscribeRule(),
    ColocateRule(),
    OffpeakRule(),
    MigRule(),
    RehomeRule(),
    TideRule(),
)
"""Every rule, in the order in which their advice is applied."""
