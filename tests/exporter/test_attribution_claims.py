"""What the kubelet alone says of claims: which card it is, and how much of it only where nobody else may hold it."""

from dataclasses import replace

import pytest

from exporter.attribution.attributor import attribute
from exporter.attribution.cards import KnownCards
from exporter.attribution.records import FindingKind
from exporter.kubelet.pod_resources import ContainerRow
from fleet.grammars.claims import HAMI_DRIVER, NVIDIA_DRIVER, PublishedDevice
from tests.exporter.node import CARD_BYTES, GIB, NODE, NOW, card_id, given_claim, known, odd, only, row, view


def shared(given: ContainerRow) -> ContainerRow:
    return replace(given, claims=tuple(replace(claim, share_id="5d4c7b6a") for claim in given.claims))


def test_whole_cards_are_known_by_the_names_that_each_driver_gives_them() -> None:
    cards = KnownCards([known(0), known(1)])
    for driver, device in ((NVIDIA_DRIVER, "gpu-1"), (HAMI_DRIVER, "hami-gpu-1")):
        unit = cards.of_published(driver, device, None)
        assert unit is not None
        assert unit.card.card == card_id(1)
    for driver, device in ((NVIDIA_DRIVER, "hami-gpu-1"), (HAMI_DRIVER, "gpu-1"), ("other.example", "gpu-1")):
        assert cards.of_published(driver, device, None) is None


def test_an_instance_that_is_made_when_its_claim_is_prepared_is_a_part_of_its_card() -> None:
    device = "gpu-1-mig-1g.10gb-19-0"
    published = PublishedDevice(
        driver=NVIDIA_DRIVER, pool=NODE, device=device, parent=card_id(1), profile="1g.10gb", framebuffer_bytes=10 * GIB
    )
    attribution = attribute(view(rows=[row("a", given_claim(device))], pods=None, published=(published,)), NOW)
    found = only(attribution)
    assert (found.grant.card, found.grant.mig_profile, found.instances) == (card_id(1), "1g.10gb", ())
    assert found.grant.framebuffer_granted_bytes == 10 * GIB
    assert found.grant.compute_granted_ratio == pytest.approx(1 / 7)
    assert attribution.findings == ()


def test_a_claim_that_nobody_else_can_hold_is_the_whole_card() -> None:
    found = only(attribute(view(rows=[row("a", given_claim("gpu-1"))], pods=None), NOW))
    assert (found.grant.framebuffer_granted_bytes, found.is_amount_known) == (CARD_BYTES, True)


def test_how_much_of_a_card_a_share_is_the_kubelet_does_not_know() -> None:
    for given in (given_claim("hami-gpu-1", driver=HAMI_DRIVER), shared(given_claim("gpu-1"))):
        attribution = attribute(view(rows=[row("a", given)], pods=None), NOW)
        found = only(attribution)
        assert (found.grant.card, found.is_certain, found.is_amount_known) == (card_id(1), True, False)
        assert odd(attribution) == {FindingKind.UNKNOWN_AMOUNT}
