"""One card over time: how busy, how full, how warm and at what power it was, and who held it meanwhile.

Read from the hours of the warehouse when somebody asks; nothing is kept in memory.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from dashboards.money.hourly_usage import means_by_hour
from dashboards.view_models.card_history import CardHistory, Held, Series
from fleet.inventory import CardId, Grant
from fleet.schema import CARD_USAGE, Measure
from fleet.units import epoch_ms
from pipeline.warehouse.parquet_reads import ParquetReads

HOUR = timedelta(hours=1)
HOURS_MAX = 24 * 92
"""How far back a card is read."""
_READ = (Measure.SM_ACTIVE, Measure.DUTY_CYCLE, Measure.FRAMEBUFFER_USED, Measure.POWER, Measure.TEMPERATURE)


def card_history(
    source: ParquetReads, cluster: str, card: CardId, grants: Iterable[Grant], *, hours: int | None, until: datetime
) -> CardHistory:
    """The hours before a moment.

    Args:
        grants: all that is known of the card's, in any order.
        hours: how far back; None for as far as cards are read.
        until: end of the last hour, UTC.
    """
    end = until.astimezone(UTC)
    start = end - HOUR * min(HOURS_MAX, HOURS_MAX if hours is None else hours)
    start = start.replace(minute=0, second=0, microsecond=0)
    rows = source.windows(
        CARD_USAGE, cluster=cluster, level_seconds=3600, since=start, until=end, with_histograms=False, measures=_READ,
        card=card,
    )  # fmt: skip
    # What came before the first hour that is known is no gap.
    first = pc.min(rows["window_start"]).as_py() if rows.num_rows else None
    if first is not None:
        start = max(start, datetime.fromtimestamp(first / 1000, UTC))
    count = max(0, int((end - start) / HOUR + 0.999))
    hour = (rows["window_start"].to_numpy() - epoch_ms(start)) // 3_600_000

    def of(measure: Measure) -> NDArray[np.float64]:
        return np.asarray(means_by_hour(rows, measure, np.zeros_like(hour), hour, (1, count))[0], np.float64)

    active = of(Measure.SM_ACTIVE)
    return CardHistory(
        times=tuple(start + HOUR * number for number in range(count)),
        compute=_series(np.where(np.isnan(active), of(Measure.DUTY_CYCLE), active)),
        framebuffer_used_bytes=_series(of(Measure.FRAMEBUFFER_USED)),
        power_watts=_series(of(Measure.POWER)),
        temperature_celsius=_series(of(Measure.TEMPERATURE)),
        held=tuple(
            Held(
                workload=str(grant.workload_id),
                pod=grant.pod,
                since=max(start, grant.started_at),
                until=end if grant.ended_at is None else min(end, grant.ended_at),
            )
            for grant in sorted(grants, key=lambda grant: (grant.started_at, grant.namespace, grant.pod))
            if grant.card == card and grant.started_at < end and (grant.ended_at is None or grant.ended_at > start)
        ),
    )


def _series(values: NDArray[np.float64]) -> Series:
    return tuple(None if np.isnan(value) else float(value) for value in values)
