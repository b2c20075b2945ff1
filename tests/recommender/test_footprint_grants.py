"""Grants of framebuffer: a server that takes a share of its grant ahead gets room for its need within that share."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fleet.decisions import RiskLevel
from fleet.schema import Measure
from fleet.units import GIB
from fleet.usage import History
from recommender.demand import demand_of
from recommender.footprint_grants import Grants, grant_framebuffer
from tests.recommender.builders import Service, cluster


def grants(history: History) -> Grants:
    demand = demand_of(history)
    rows = np.arange(len(demand.grants), dtype=np.int64)
    return grant_framebuffer(demand, rows, risk=RiskLevel.HIGH, headroom_ratio=0.0, step_bytes=1)


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
