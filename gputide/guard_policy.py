"""What the settings say of guarding the cluster, in the enforcer's words."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, datetime, timedelta
from zoneinfo import ZoneInfo

from enforcer.safety.change_window import ChangeWindow
from enforcer.safety.guard import GuardPolicy
from enforcer.safety.harm_budget import Harm, HarmPolicy
from enforcer.verify import Measurements, harm_by_workload
from fleet.data_folder import DataFolder
from fleet.errors import NotEnoughData
from fleet.inventory import WorkloadId
from fleet.settings.guard import WEEKDAYS, hours_of
from fleet.settings.settings import Settings
from gputide.own_cluster import own_cluster


def guard_policy(settings: Settings, folder: DataFolder) -> GuardPolicy:
    """What the guard goes by."""
    begin, end = hours_of(settings.guard.change_hours)
    return GuardPolicy(
        freeze_config_map=settings.enforcer.freeze_config_map,
        freeze_file=folder.freeze,
        coverage_ratio_min=settings.guard.history_coverage_min,
        history_age_max=timedelta(seconds=settings.guard.history_age_max_seconds),
        cluster=own_cluster(folder, settings),
        cards_max=settings.guard.cards_per_apply_max,
        saving_max=settings.guard.saving_per_apply_max,
        two_approvals_cards_min=settings.guard.two_approvals_cards_min,
        window=ChangeWindow(
            days=frozenset(WEEKDAYS.index(day) for day in settings.guard.change_days),
            begin=begin,
            end=end,
            holidays=frozenset(date.fromisoformat(day) for day in settings.guard.change_holidays),
            time_zone=ZoneInfo(settings.cluster.time_zone),
        ),
    )


def harm_policy(settings: Settings) -> HarmPolicy:
    """What a harm budget is."""
    return HarmPolicy(
        ratio_max=settings.guard.harm_ratio_max,
        days=settings.guard.harm_budget_days,
        slow_burn=settings.guard.harm_slow_burn,
        freeze_burn=settings.guard.harm_freeze_burn,
        restore_burn=settings.guard.harm_restore_burn,
    )


class MeasuredHarm:
    """What the warehouse knows of harm (the enforcer's port `HarmRecords`).

    Args:
        measurements: what was measured.
    """

    def __init__(self, measurements: Measurements) -> None:
        self._measurements = measurements

    def harm(self, since: datetime, until: datetime) -> Mapping[WorkloadId, Harm]:
        """Harm per workload; see the port. A span in which nothing was collected tells nothing."""
        try:
            return harm_by_workload(self._measurements.history(since, until))
        except NotEnoughData:
            return {}
