"""Workloads that hang together by their cards, against a search that looks at every pair."""

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from fleet.inventory import CardId, WorkloadId
from fleet.linked_cards import linked_workloads


@given(st.dictionaries(st.sampled_from("abcdefgh"), st.frozensets(st.sampled_from("0123456"), max_size=3)))
def test_two_are_in_one_set_where_a_chain_of_shared_cards_leads_from_one_to_the_other(
    cards_of: dict[str, frozenset[str]],
) -> None:
    reached = {name: {name} for name in cards_of}
    for _ in cards_of:
        for one, other in combinations(cards_of, 2):
            if any(cards_of[a] & cards_of[b] for a in reached[one] for b in reached[other]):
                reached[one] = reached[other] = reached[one] | reached[other]
    own = {WorkloadId(name): [CardId(card) for card in cards] for name, cards in cards_of.items()}
    assert linked_workloads(own) == sorted({tuple(sorted(names)) for names in reached.values()})
