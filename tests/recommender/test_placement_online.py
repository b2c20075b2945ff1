"""Online placement: what fits is placed, what stays free stays useful; advice on cordons and stranded cards."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.inventory import Card, CardId, CardModelName, Grant, Inventory, Node, Priority
from fleet.units import GIB
from recommender.online.advice import cards_to_cordon, nodes_for, stranded_cards
from recommender.online.placement import (
    FreeNodes,
    PlacementWeights,
    PodKinds,
    PowerDraw,
    fragmented_milli,
    place_arrivals,
    placement_scores,
    stranded_milli,
)

NOW = datetime(2026, 3, 9, tzinfo=UTC)
A10 = CardModelName("NVIDIA A10")
L20 = CardModelName("NVIDIA L20")
CPU, SLOTS = 32_000, 4


def free_nodes(*cards: list[int], cpu_milli: int = CPU, model: int = 0) -> FreeNodes:
    slots = max(len(shares) for shares in cards)
    return FreeNodes(
        cpu_milli=np.full(len(cards), cpu_milli, np.int64),
        memory_bytes=np.full(len(cards), 256 * GIB, np.int64),
        card_model=np.full(len(cards), model, np.int64),
        cards=np.array([len(shares) for shares in cards], np.int64),
        card_milli=np.array([shares + [0] * (slots - len(shares)) for shares in cards], np.int64),
    )


def pod_kinds(*rows: tuple[int, int, int, float], models: int = 1) -> PodKinds:
    """Rows of CPU, cards, share and frequency."""
    return PodKinds(
        cpu_milli=np.array([row[0] for row in rows], np.int64),
        memory_bytes=np.full(len(rows), GIB, np.int64),
        cards=np.array([row[1] for row in rows], np.int64),
        card_milli=np.array([row[2] for row in rows], np.int64),
        may_use=np.ones((len(rows), models), bool),
        frequency=np.array([row[3] for row in rows], float),
    )


def test_slice_goes_to_the_card_that_is_begun_and_leaves_the_whole_one() -> None:
    kinds = pod_kinds((1000, 1, 500, 1.0), (1000, 1, 1000, 1.0))
    placed = place_arrivals(free_nodes([1000, 500], [1000, 1000]), kinds, np.array([0]))
    assert placed.node_of.tolist() == [0]
    assert placed.left.card_milli[0].tolist() == [1000, 0]


def test_slice_that_nobody_can_use_afterwards_is_avoided() -> None:
    kinds = pod_kinds((1000, 1, 400, 0.0), (1000, 1, 600, 1.0))
    scores = placement_scores(free_nodes([1000], [700]), kinds, 0)
    assert scores[0] < scores[1]


def test_node_whose_cpu_is_short_is_spared_from_pods_that_take_much_of_it() -> None:
    kinds = pod_kinds((16_000, 1, 1000, 0.0), (8_000, 1, 1000, 1.0))
    nodes = replace(free_nodes([1000] * 4, [1000] * 4), cpu_milli=np.array([32_000, 64_000], np.int64))
    placed = place_arrivals(nodes, kinds, np.array([0]))
    assert placed.node_of.tolist() == [1]
    assert stranded_milli(nodes, kinds).tolist() == [0.0, 0.0]
    assert stranded_milli(place_arrivals(nodes, kinds, np.array([0, 0, 0, 0, 0])).left, kinds).sum() > 0


def test_pod_without_cards_goes_where_no_card_needs_its_cpu() -> None:
    kinds = pod_kinds((16_000, 0, 0, 1.0), (8_000, 1, 1000, 1.0))
    nodes = free_nodes([1000] * 4, [0] * 4)
    assert place_arrivals(nodes, kinds, np.array([0])).node_of.tolist() == [1]


def test_pod_that_fits_nowhere_is_left_out_and_changes_nothing() -> None:
    nodes = free_nodes([999, 1000])
    placed = place_arrivals(nodes, pod_kinds((1000, 2, 1000, 1.0)), np.array([0]))
    assert placed.node_of.tolist() == [-1]
    assert placed.left.card_milli.tolist() == nodes.card_milli.tolist()


def test_card_model_that_a_pod_may_not_use_is_passed_over() -> None:
    kinds = replace(pod_kinds((1000, 1, 1000, 1.0), models=2), may_use=np.array([[False, True]]))
    nodes = replace(free_nodes([1000], [1000]), card_model=np.array([0, 1], np.int64))
    assert place_arrivals(nodes, kinds, np.array([0, 0])).node_of.tolist() == [1, -1]


def two_models(rows: int, *, draw: PowerDraw | None = None) -> FreeNodes:
    """Nodes of one card each; the card model alternates."""
    nodes = free_nodes(*[[1000]] * rows)
    return replace(nodes, card_model=np.arange(rows) % 2, draw=draw)


def test_card_model_that_others_need_is_left_to_them() -> None:
    kinds = replace(pod_kinds(*[(1000, 1, 1000, 1.0)] * 2, models=2), may_use=np.array([[True, True], [True, False]]))
    nodes = two_models(4)
    assert place_arrivals(nodes, kinds, np.array([0, 0, 1, 1])).node_of.tolist() == [1, 3, 0, 2]
    alone = PlacementWeights(fragmentation=0.0, scarce=0.0)
    assert place_arrivals(nodes, kinds, np.array([0, 0, 1, 1]), weights=alone).node_of.tolist() == [0, 1, 2, -1]


def draw_of(*card_watts: float, socket_watts: float = 0.0) -> PowerDraw:
    return PowerDraw(
        card_watts=np.array(card_watts),
        socket_watts=np.full(len(card_watts), socket_watts),
        cpu_total_milli=np.full(len(card_watts), CPU, np.int64),
    )


def test_pod_goes_where_the_fewest_watts_are_added() -> None:
    kinds = pod_kinds((1000, 1, 500, 1.0), models=2)
    nodes = two_models(2, draw=draw_of(300.0, 60.0))
    placed = place_arrivals(nodes, kinds, np.array([0, 0, 0]))
    assert placed.node_of.tolist() == [1, 1, 0]
    assert placed.watts.tolist() == [60.0, 0.0, 300.0]
    assert place_arrivals(nodes, kinds, np.array([0]), weights=PlacementWeights(power=0.0)).node_of.tolist() == [0]


def test_watts_count_less_the_fewer_cards_are_free() -> None:
    kinds = pod_kinds((1000, 1, 1000, 0.0), (1000, 2, 1000, 1.0))
    draw = draw_of(150.0, 0.0, 0.0)
    # The cards of the second node are of use to a pod of two cards, the first node's single one is not.
    cpu = np.array([CPU, CPU, 0], np.int64)
    roomy = replace(free_nodes([1000], [1000] * 2, [1000] * 60), draw=draw, cpu_milli=cpu)
    full = replace(roomy, card_milli=free_nodes([1000], [1000] * 2, [0] * 60).card_milli)
    assert place_arrivals(roomy, kinds, np.array([0])).node_of.tolist() == [1]
    assert place_arrivals(full, kinds, np.array([0])).node_of.tolist() == [0]


def test_watts_of_arrivals_add_up_to_what_the_nodes_draw_in_the_end() -> None:
    random = np.random.default_rng(7)
    nodes = replace(
        free_nodes([1000] * 4, [1000] * 2, [1000], cpu_milli=96_000),
        draw=replace(draw_of(60.0, 120.0, 350.0, socket_watts=105.0), cpu_total_milli=np.full(3, 96_000, np.int64)),
    )
    kinds = pod_kinds((9_000, 1, 400, 1.0), (20_000, 1, 1000, 1.0), (5_000, 0, 0, 1.0))
    placed = place_arrivals(nodes, kinds, random.integers(0, 3, 40))
    begun = ((placed.left.card_milli < 1000) & (np.arange(4) < nodes.cards[:, None])).sum(axis=1)
    sockets = np.ceil((96_000 - placed.left.cpu_milli) / 32_000)
    assert placed.watts.sum() == (begun * [60.0, 120.0, 350.0]).sum() + 105.0 * sockets.sum()


def test_equal_nodes_are_filled_by_name() -> None:
    placed = place_arrivals(free_nodes([1000], [1000]), pod_kinds((1000, 1, 1000, 1.0)), np.array([0, 0]))
    assert placed.node_of.tolist() == [0, 1]


def test_fragmentation_counts_what_each_expected_pod_cannot_use() -> None:
    kinds = pod_kinds((1000, 1, 600, 3.0), (1000, 2, 1000, 1.0))
    # 600 fits the first card only, so 500 is lost to it; two whole cards fit nowhere, so all 1500 are lost to those.
    assert fragmented_milli(free_nodes([1000, 500]), kinds).tolist() == [0.75 * 500 + 0.25 * 1500]
    assert fragmented_milli(free_nodes([1000, 500], cpu_milli=999), kinds).tolist() == [1500.0]


@settings(max_examples=60, deadline=None)
@given(data=st.data(), seed=st.integers(0, 10_000), stranded=st.floats(0, 3), left_over=st.floats(0, 1))
def test_nobody_gets_more_than_there_is(data: st.DataObject, seed: int, stranded: float, left_over: float) -> None:
    random = np.random.default_rng(seed)
    count = data.draw(st.integers(1, 6))
    nodes = free_nodes(*[[1000] * int(random.integers(1, SLOTS + 1)) for _ in range(count)])
    kinds = pod_kinds(
        *[
            (int(random.integers(0, 16_000)), cards, 1000 if cards != 1 else int(random.integers(1, 1001)), 1.0)
            for cards in random.integers(0, 3, 5).tolist()
        ]
    )
    stream = random.integers(0, 5, 30)
    weights = PlacementWeights(stranded=stranded, left_over=left_over)
    placed = place_arrivals(nodes, kinds, stream, weights=weights)
    there = placed.node_of >= 0
    for node in range(count):
        here = stream[there & (placed.node_of == node)]
        assert nodes.cpu_milli[node] - placed.left.cpu_milli[node] == kinds.cpu_milli[here].sum()
        given_out = nodes.card_milli[node].sum() - placed.left.card_milli[node].sum()
        assert given_out == (kinds.cards * kinds.card_milli)[here].sum()
    assert placed.left.cpu_milli.min() >= 0
    assert placed.left.card_milli.min() >= 0
    assert (placed.left.card_milli <= nodes.card_milli).all()
    # Whoever was left out would not fit at the end either: nothing ever leaves.
    for kind in set(stream[~there].tolist()):
        assert np.isinf(placement_scores(placed.left, kinds, kind)).all()


# --- advice on a live inventory --------------------------------------------------------------------------------------


def card(name: str, node: str, model: CardModelName = A10, *, mig: bool | None = None) -> Card:
    return Card(
        card=CardId(name), card_model=model, framebuffer_bytes=24 * GIB, node=node, cluster="c", mig_mode=mig
    )  # fmt: skip


def grant(
    pod: str,
    on: Card,
    *,
    ratio: float = 0.25,
    cpu: float | None = 4.0,
    labels: tuple[tuple[str, str], ...] = (),
    namespace: str = "team",
    workload: str | None = None,
) -> Grant:
    return Grant(
        cluster="c", namespace=namespace, pod=pod, container="main", workload=workload or pod,
        workload_kind="Deployment", node=on.node, card=on.card, card_model=on.card_model, framebuffer_bytes=24 * GIB,
        framebuffer_granted_bytes=int(24 * GIB * ratio), compute_granted_ratio=ratio, priority=Priority.NORMAL,
        cpu_request_cores=cpu, labels=labels, started_at=NOW - timedelta(days=1),
    )  # fmt: skip


def inventory(cards: list[Card], grants: list[Grant], **nodes: Node) -> Inventory:
    named = {found.node for found in cards}
    known = [nodes.get(name.replace("-", "_"), Node(node=name, cluster="c", cpu_cores=64.0)) for name in sorted(named)]
    return Inventory(cluster="c", as_of=NOW, cards=tuple(cards), nodes=tuple(known), grants=tuple(grants))


def two_nodes(**changes: Grant) -> Inventory:
    """Node `a` with one small pod on two cards, node `b` with room beside two others."""
    a0, a1, b0, b1 = card("a0", "a"), card("a1", "a"), card("b0", "b"), card("b1", "b")
    grants = {
        "lonely": grant("lonely", a0),
        "first": grant("first", b0, ratio=0.5),
        "second": grant("second", b1, ratio=0.9),
        **changes,
    }
    return inventory([a0, a1, b0, b1], list(grants.values()))


def test_node_whose_pods_fit_elsewhere_is_cordoned_whole() -> None:
    (found,) = cards_to_cordon(two_nodes())
    assert (found.node, found.cards, found.frees_node, found.cards_freed) == ("a", ("a0", "a1"), True, 1)
    assert [(move.pod, move.source, move.target) for move in found.relocations] == [("team/lonely", "a0", "b0")]


@pytest.mark.parametrize(
    "lonely",
    [
        grant("lonely", card("a0", "a"), labels=(("gputide.io/opt-out", "true"),)),
        grant("lonely", card("a0", "a"), labels=(("gputide.io/isolation", "hard"),)),
        grant("lonely", card("a0", "a"), ratio=0.6),
        grant("lonely", card("a0", "a"), cpu=100.0),
        grant("lonely", card("a0", "a", L20)),
    ],
    ids=["opted out", "hard isolation", "no room", "no CPU", "other card model"],
)
def test_pod_that_may_not_go_elsewhere_keeps_its_card(lonely: Grant) -> None:
    found = two_nodes(lonely=lonely)
    if lonely.card_model == L20:
        found = replace(
            found, cards=tuple(replace(one, card_model=L20) if one.node == "a" else one for one in found.cards)
        )
    assert all(cordon.node != "a" for cordon in cards_to_cordon(found))


def test_replicas_of_one_workload_are_not_put_on_one_card() -> None:
    found = two_nodes(first=grant("first", card("b0", "b"), ratio=0.5, workload="lonely"))
    assert all(cordon.node != "a" for cordon in cards_to_cordon(found))


def test_taint_that_a_pod_is_not_known_to_bear_keeps_it_away() -> None:
    tainted = Node(node="b", cluster="c", cpu_cores=64.0, taints=("team=red:NoSchedule",))
    found = two_nodes()
    assert all(cordon.node != "a" for cordon in cards_to_cordon(replace(found, nodes=(found.nodes[0], tainted))))


def test_pods_are_not_sent_from_one_lonely_node_to_a_free_one() -> None:
    a0, b0 = card("a0", "a"), card("b0", "b")
    assert cards_to_cordon(inventory([a0, b0], [grant("lonely", a0)])) == ()


def test_single_cards_are_cordoned_where_the_node_cannot_be_freed() -> None:
    cards = [card("a0", "a"), card("a1", "a"), card("a2", "a")]
    grants = [grant("small", cards[0]), grant("half", cards[1], ratio=0.5), grant("whole", cards[2], ratio=1.0)]
    (found,) = cards_to_cordon(inventory(cards, grants))
    assert (found.cards, found.frees_node, found.cards_freed) == (("a0",), False, 1)
    assert [move.target for move in found.relocations] == ["a1"]


def test_card_with_mig_on_is_left_alone() -> None:
    found = two_nodes()
    mig = tuple(replace(one, mig_mode=True) if one.node == "a" else one for one in found.cards)
    assert all(cordon.node != "a" for cordon in cards_to_cordon(replace(found, cards=mig)))


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_cordons_never_promise_a_place_twice(seed: int) -> None:
    random = np.random.default_rng(seed)
    cards = [card(f"{node}{slot}", f"n{node}") for node in range(5) for slot in range(3)]
    grants = [
        grant(f"p{number}", one, ratio=ratio, namespace=str(random.integers(2)))
        for number, one in enumerate(cards)
        if (ratio := float(random.choice([0.0, 0.0, 0.2, 0.5, 1.0]))) > 0
    ]
    found = cards_to_cordon(inventory(cards, grants))
    shut = {name for cordon in found for name in cordon.cards}
    moved = {move.pod: move.target for cordon in found for move in cordon.relocations}
    assert not shut & set(moved.values())
    filled: dict[str, float] = {}
    for one in grants:
        where = moved.get(one.pod_id, one.card)
        filled[where] = filled.get(where, 0.0) + one.compute_granted_ratio
    assert all(share <= 1.0 + 1e-9 for share in filled.values())
    assert not shut & set(filled)
    before = {one.card for one in grants}
    assert sum(cordon.cards_freed for cordon in found) == len(before) - len(filled)


def test_cards_without_cpu_are_stranded() -> None:
    cards = [card(f"a{slot}", "a") for slot in range(4)] + [card("b0", "b")]
    grants = [grant("big", cards[0], ratio=1.0, cpu=10.0), grant("other", cards[4], ratio=1.0, cpu=6.0)]
    nodes = {"a": Node(node="a", cluster="c", cpu_cores=18.0), "b": Node(node="b", cluster="c", cpu_cores=64.0)}
    (found,) = stranded_cards(inventory(cards, grants, **nodes))
    # Eight cores a card on the mean: the 8 that are left serve one of three free cards.
    assert (found.node, found.missing, found.cards_free) == ("a", "cpu", 3.0)
    assert found.cards_stranded == pytest.approx(2.0)
    assert found.cpu_cores_missing == pytest.approx(16.0)
    assert found.memory_bytes_missing == 0


def test_nothing_is_said_of_a_node_whose_cpu_is_not_known() -> None:
    cards = [card("a0", "a"), card("a1", "a")]
    unknown = Node(node="a", cluster="c")
    assert stranded_cards(inventory(cards, [grant("big", cards[0], cpu=60.0)], a=unknown)) == ()
    assert stranded_cards(inventory(cards, [grant("big", cards[0], cpu=None)])) == ()


def test_best_node_for_a_pod_is_the_one_that_is_begun() -> None:
    found = two_nodes()
    offers = nodes_for(found, card_model=A10, cards=1, card_ratio=0.5, cpu_cores=4.0)
    assert [offer.node for offer in offers] == ["b", "a"]
    assert nodes_for(found, card_model=L20, cards=1, card_ratio=0.5) == ()
    assert [offer.node for offer in nodes_for(found, card_model=None, cards=2, card_ratio=1.0)] == []


def test_empty_cluster_offers_the_card_that_draws_less_unless_a_model_is_unknown() -> None:
    def offers(other: str) -> list[str]:
        cards = [card("a0", "a", CardModelName("NVIDIA A100-SXM4-80GB")), card("b0", "b", CardModelName(other))]
        found = nodes_for(inventory(cards, []), card_model=None, cards=1, card_ratio=1.0)
        return [offer.node for offer in found]

    assert offers("NVIDIA A10") == ["b", "a"]
    assert offers("NVIDIA Unheard Of") == ["a", "b"]


def test_empty_inventory_has_nothing_to_say() -> None:
    empty = Inventory(cluster="c", as_of=NOW)
    assert stranded_cards(empty) == ()
    assert cards_to_cordon(empty) == ()
    assert nodes_for(empty, card_model=None, cards=1, card_ratio=1.0) == ()
