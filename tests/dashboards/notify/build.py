"""Messages of tests."""

from __future__ import annotations

from datetime import UTC, datetime

from dashboards.notify.message import Message
from fleet.inventory import WorkloadId
from fleet.settings.notify import NoticeTopic

NOW = datetime(2026, 1, 22, 9, 0, tzinfo=UTC)
HOSTILE = (
    '<!channel> <@U1> <!here|x> @all @everyone <at user_id="all"></at> <at>all</at> <script>alert(1)</script> '
    "[click](http://evil.example) ![p](http://evil.example/x.png) **b** `c` # h http://evil.example www.evil.example "
    "\r\nBcc: victim@example.com\n> quoted \u202emoc.live\u2066 \x00\x1b[31m &amp; \"q\" 'q'"
)
"""What a tenant might call a workload, if nobody minded."""


def message(
    title: str = "c1: a plan that frees 5 cards waits for approval",
    lines: tuple[str, ...] = ("saves $1k a week",),
    *,
    key: str = "plan-waits:p1",
    topic: NoticeTopic = NoticeTopic.PLAN,
    link: str | None = "https://gputide.example/plan?cluster=c1&plan=p1",
    namespaces: tuple[str, ...] = ("ads",),
    workloads: tuple[WorkloadId, ...] = (),
    at: datetime = NOW,
) -> Message:
    """A message."""
    return Message(
        key=key, topic=topic, title=title, lines=lines, link=link, link_text="Review the plan", cluster="c1",
        namespaces=namespaces, workloads=workloads, at=at,
    )  # fmt: skip
