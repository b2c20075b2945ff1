"""Every kind of advice, one file each, in the order in which it is applied.

A kind permits or refuses, workload by workload; then, once every pod has its place, it writes its recommendations. What
is proposed follows from the packing, which may use nothing that no kind permitted. A new kind is a file here, an entry
in `ADVICE`, a word in `fleet.decisions.RecommendationKind` and its sentences in the catalogues (`headline.KIND`,
`meaning.KIND`, `said.CODE`, `changes.CODE`, `refused.CODE`). Called by `permits` and `proposals`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from fleet.decisions import RecommendationKind, Refusal
from recommender.advice.case import Case
from recommender.advice.colocate import Colocate
from recommender.advice.fewer_cards import FewerCards
from recommender.advice.mig import Mig
from recommender.advice.offpeak import OffpeakPair
from recommender.advice.oversubscribe import Oversubscribe
from recommender.advice.reclaim import Reclaim
from recommender.advice.rehome import Rehome
from recommender.advice.sleep import Sleep
from recommender.advice.slice import Slice
from recommender.advice.tide import TideAdvice
from recommender.solution import Draft, Solution


class Advice(Protocol):
    """One kind of advice: who may get it, what it proposes, and how it is explained.

    Contract: `applies` and `refusal` depend on the case alone; a refusal carries a short code and the
    values in its message. `propose` reads the solution alone, and counts each freed card once over all kinds.
    """

    @property
    def kind(self) -> RecommendationKind:
        """The word for it."""
        ...

    @property
    def shares(self) -> bool:
        """Whether pods share cards by it: a stricter `risk.preset` then proposes less of it."""
        ...

    @property
    def spares_critical(self) -> bool:
        """Whether workloads labelled latency-critical never get it."""
        ...

    def applies(self, case: Case) -> bool:
        """Whether the workload is of the sort that this advice is for; if not, nothing needs to be said."""
        ...

    def refusal(self, case: Case) -> Refusal | None:
        """Why the advice must not be given to this workload; None where it may."""
        ...

    def propose(self, solution: Solution) -> Sequence[Draft]:
        """The recommendations of this kind, by stage; empty where there are none."""
        ...


ADVICE: tuple[Advice, ...] = (
    Reclaim(),
    FewerCards(),
    Slice(),
    Oversubscribe(),
    Colocate(),
    OffpeakPair(),
    Mig(),
    Rehome(),
    TideAdvice(),
    Sleep(),
)
"""Every kind of advice, in the order in which it is applied."""
