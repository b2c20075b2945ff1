"""Collects what there is to report of plans and budgets, from what the pages read. Called by `gputide admin notify`."""

from __future__ import annotations

from datetime import datetime, timedelta

from dashboards.notify.message import Message
from dashboards.notify.notices import Telling, budget_notices, notices
from dashboards.notify.team import Team
from dashboards.queries import Views
from fleet.errors import GputideError
from fleet.logs import logger
from fleet.settings.notify import NoticeTopic
from fleet.settings.settings import Settings
from fleet.words import Language, Words

_log = logger(__name__)

NEWS_DAYS_MAX = 7
"""Age beyond which news are not sent: a receiver that is set up today gets none of last month."""


class News:
    """News of plans and budgets of all clusters, by the team that they concern."""

    def __init__(self, views: Views, settings: Settings, now: datetime) -> None:
        self._views = views
        self._settings = settings
        self._now = now

    def __call__(self, team: Team | None) -> tuple[Message, ...]:
        """The news of a team, or of None those of the whole fleet; oldest first."""
        notify = self._settings.notify
        telling = Telling(base_url=notify.base_url, language=language_of(self._settings), team=team)
        since = self._now - timedelta(days=min(NEWS_DAYS_MAX, notify.remember_days))
        found: list[Message] = []
        for cluster in self._views.fleet.clusters():
            found += notices(
                self._views.plans.plans(cluster),
                self._views.outcomes.outcomes(cluster),
                self._views.outcomes.ledger(cluster),
                now=self._now,
                since=since,
                telling=telling,
            )
            found += self._budgets(cluster, telling)
        return tuple(found)

    def _budgets(self, cluster: str, telling: Telling) -> tuple[Message, ...]:
        """News of budgets; what can't be summed keeps nobody from hearing of harm."""
        try:
            statuses, currency = self._views.money.budgets(cluster), self._views.money.currency
        except GputideError as exc:
            _log.error("budgets not looked at", cluster=cluster, reason=str(exc))
            return ()
        ratio = self._settings.notify.budget_ratio
        return budget_notices(statuses, cluster=cluster, currency=currency, now=self._now, ratio=ratio, telling=telling)


def trial_message(now: datetime, base_url: str | None, language: Language) -> Message:
    """A message by which people see that a channel works."""
    words = Words(language=language)
    return Message(
        key=f"test:{now.isoformat()}",
        topic=NoticeTopic.REPORT,
        title=words.say("notice.test_title"),
        lines=(words.say("notice.test_line"),),
        link=base_url,
        link_text=words.say("notice.open_app"),
        cluster="",
        namespaces=(),
        workloads=(),
        at=now,
        language=language,
    )


def language_of(settings: Settings) -> Language:
    """Language of messages: `notify.language`, else that of the report."""
    return Language(settings.notify.language or settings.report.language)
