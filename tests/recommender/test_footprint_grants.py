"""Grants of framebuffer: a server that takes a share of its grant ahead gets room for its need within that share."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fleet.schema import Measure
from fleet.units import GIB
from fleet.usage import History
from recommender.demand import demand_of
from recommender.footprint_grants import Footprints, Grants, footprints_of, grant_framebuffer
from tests.recommender.builders import Service, cluster


def footprints(history: History, *, load: float = 0.0) -> Footprints:
    """Footprints of all rows of one card model, where every point of the scenarios is of one load."""
    demand = demand_of(history)
    rows = np.arange(len(demand.grants), dtype=np.int64)
    types = np.arange(len(rows), dtype=np.int32)
    return footprints_of(demand, rows, type_of=types, load=np.full((len(rows), 100), load, np.float32))


def grants(history: History, *, load: float = 0.0, card_price: float = 0.01) -> Grants:
    """Grants without head-room."""
    return grant_framebuffer(footprints(history, load=load), card_price=card_price, headroom_ratio=0.0, step_bytes=1)


def busy_vllm(*, taken_gib: float, cache: float) -> History:
    """A server at full load that holds `taken_gib` of its 24 GiB, 10 GiB of them a cache that is used in part."""
    history = cluster(Service(name="llm", level=1.0, used_gib=taken_gib, pool_gib=10.0, server="vllm"), days=3)
    grid = history.slices
    compute = np.ones_like(grid.mean[Measure.SM_ACTIVE])
    usage = np.full_like(compute, cache)
    measured = {**grid.mean, Measure.SM_ACTIVE: compute, Measure.KV_CACHE_USAGE: usage}
    return replace(history, slices=replace(grid, mean=measured, peak=measured))


@pytest.mark.parametrize(("taken_gib", "ratio"), [(21.6, 0.9), (19.2, 0.8), (24.0, 1.0)])
def test_usable_part_of_a_preallocating_servers_grant_covers_its_need(taken_gib: float, ratio: float) -> None:
    found = grants(busy_vllm(taken_gib=taken_gib, cache=0.4))
    need = (taken_gib - 10.0 * 0.6) * GIB
    assert found.need_max_bytes[0] == pytest.approx(need, rel=1e-5)
    assert need <= found.granted_bytes[0] * ratio + GIB // 1024
    assert found.granted_bytes[0] * ratio < need + GIB


def test_server_that_fills_its_share_of_a_whole_card_keeps_the_card() -> None:
    found = grants(busy_vllm(taken_gib=21.6, cache=1.0))
    assert found.granted_bytes[0] == 24 * GIB


def test_server_that_takes_what_it_needs_is_granted_that() -> None:
    found = grants(cluster(Service(name="web", level=1.0, used_gib=6.0), days=3))
    assert found.shown_bytes[0] == found.need_max_bytes[0] == 6 * GIB


def quiet_among_busy() -> History:
    """One service that never did a thing, beside ten whose framebuffer rose from 2 to 6 GiB with their load."""
    history = cluster(
        Service(name="a-quiet", level=0.001, used_gib=2.0),
        *(Service(name=f"busy-{n}", level=0.9, hours=(8, 16), used_gib=2.0) for n in range(10)),
        days=3,
    )
    grid = history.slices
    compute = grid.mean[Measure.SM_ACTIVE]
    used = (2 * GIB + 4 * GIB * np.where(compute > 0.3, compute / compute.max(axis=1, keepdims=True), 0.0)).astype(
        np.float32
    )
    measured = {**grid.mean, Measure.FRAMEBUFFER_USED: used}
    return replace(history, slices=replace(grid, mean=measured, peak=measured))


def test_quiet_service_that_may_rise_is_granted_what_its_busy_neighbours_took() -> None:
    quiet = grants(quiet_among_busy(), load=0.9).granted_bytes[0]
    assert quiet == pytest.approx(6 * GIB, abs=GIB // 2)


def test_service_that_will_not_rise_is_granted_what_it_showed() -> None:
    assert grants(quiet_among_busy(), load=0.0).granted_bytes[0] == 2 * GIB


def test_dearer_card_buys_less_room_for_a_rise() -> None:
    room = [grants(quiet_among_busy(), load=0.9, card_price=price).granted_bytes[0] for price in (0.001, 0.1, 100.0)]
    assert room == sorted(room, reverse=True)
    assert room[-1] == 2 * GIB


def test_service_that_was_at_full_load_needs_no_room() -> None:
    found = grants(quiet_among_busy(), load=0.5)
    assert found.granted_bytes[1] == 6 * GIB
    assert found.shown_bytes[1] == pytest.approx(6 * GIB, rel=1e-3)
