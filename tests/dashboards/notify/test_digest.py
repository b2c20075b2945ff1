"""Who is sent what and when: once, together, not at night, and each team its own."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from dashboards.notify.digest import Post, SentNews, in_quiet_hours, posts
from dashboards.notify.message import Message
from dashboards.notify.sending import Memory, read_sent
from dashboards.notify.team import teams_of
from fleet.errors import Corrupt, Unavailable
from fleet.inventory import CardId, CardModelName, Grant, Priority, WorkloadId
from fleet.settings.notify import NoticeTopic, NotifySettings
from fleet.units import GIB
from tests.dashboards.notify.build import NOW, message

CHANNEL = {"kind": "slack", "url_file": "/run/secrets/url"}


def settings(**more: Any) -> NotifySettings:
    """Return settings with a channel for all and one for a team."""
    return NotifySettings.model_validate(
        {
            "channels": {"ops": CHANNEL, "search": CHANNEL},
            "everything": ["ops"],
            "teams": {"search": {"namespaces": ["search-*"], "channels": ["search"]}},
            **more,
        }
    )


def ask(news: Sequence[Message], sent: Sequence[SentNews] = (), now: datetime = NOW, **more: Any) -> tuple[Post, ...]:
    """Return what goes out."""
    mine = settings(**more)
    return posts(lambda _: news, sent, mine, teams_of(mine.teams, GRANTS), now=now, time_zone="Asia/Shanghai")


def grant(workload: str, *labels: tuple[str, str]) -> Grant:
    """Return a pod's slice with labels."""
    return Grant(
        cluster="c1", namespace="shared", pod=f"{workload}-0", container="main", workload=workload,
        workload_kind="Deployment", node="n", card=CardId("GPU-a"), card_model=CardModelName("NVIDIA A10"),
        framebuffer_bytes=GIB, framebuffer_granted_bytes=GIB, compute_granted_ratio=1.0, priority=Priority.NORMAL,
        labels=labels, started_at=NOW,
    )  # fmt: skip


GRANTS = (grant("ranker", ("team", "search-eu")), grant("web", ("team", "ads")))


def after(found: Sequence[Post], at: datetime = NOW) -> list[SentNews]:
    """Return what is remembered of posts."""
    return [
        SentNews(receiver=post.receiver, channel=post.channel, key=key, topic=topic, at=at)
        for post in found
        for key, topic in post.keys
    ]


def harm(key: str, **more: Any) -> Message:
    """Return news of harm."""
    return message(f"c1: plan {key} harms", key=key, topic=NoticeTopic.HARM, **more)


def test_a_team_hears_of_its_own_namespaces_only() -> None:
    found = ask([message(key="a", namespaces=("ads",)), message(key="b", namespaces=("search-1", "ads"))])
    assert [(post.channel, [key for key, _ in post.keys]) for post in found] == [("ops", ["a", "b"]), ("search", ["b"])]


def test_a_team_hears_of_workloads_with_its_label_wherever_they_run() -> None:
    teams = {"search": {"labels": ["team=search-*"], "channels": ["search"]}}
    news = [
        message(key=name, namespaces=("shared",), workloads=(WorkloadId(f"shared/Deployment/{name}"),))
        for name in ("ranker", "web")
    ]
    found = {post.channel: [key for key, _ in post.keys] for post in ask(news, teams=teams)}
    assert found == {"ops": ["ranker", "web"], "search": ["ranker"]}


def test_news_are_told_once() -> None:
    news = [message(key="a")]
    first = ask(news)
    assert len(first) == 1
    assert not ask(news, after(first), NOW + timedelta(days=3))


def test_many_news_make_one_message_and_more_wait_for_the_period() -> None:
    found = ask([message(f"title {number}", key=f"k{number}") for number in range(30)])
    (post,) = found
    assert post.message.title == "c1: 30 news of gputide"
    assert len(post.keys) == 30
    later = [message(key="new")]
    assert not ask(later, after(found), NOW + timedelta(hours=23))
    assert len(ask(later, after(found), NOW + timedelta(hours=24))) == 1


def test_harm_does_not_wait_for_the_digest_but_is_no_flood_either() -> None:
    sent = after(ask([message(key="plan")]))
    first = ask([harm("h1")], sent)
    assert len(first) == 1
    assert not ask([harm("h2")], [*sent, *after(first)], NOW + timedelta(minutes=59))
    assert len(ask([harm("h2"), harm("h3")], [*sent, *after(first)], NOW + timedelta(hours=1))) == 1


def test_only_harm_is_told_in_quiet_hours() -> None:
    night = NOW.replace(hour=14)  # 22:00 in Shanghai
    found = ask([message(key="plan"), harm("h1")], now=night, quiet_hours="20:00-08:00")
    assert [post.message.topic for post in found] == [NoticeTopic.HARM]
    assert [post.message.key for post in ask([message(key="plan")], quiet_hours="20:00-08:00")] == ["plan"]


@pytest.mark.parametrize(
    ("hours", "clock", "is_quiet"),
    [
        ("20:00-08:00", 20, True), ("20:00-08:00", 7, True), ("20:00-08:00", 8, False), ("12:00-13:00", 12, True),
        ("12:00-13:00", 13, False), ("22:00-24:00", 23, True), ("22:00-24:00", 0, False), (None, 3, False),
    ],
)  # fmt: skip
def test_quiet_hours_begin_and_end_by_the_clock(hours: str | None, clock: int, is_quiet: bool) -> None:
    assert in_quiet_hours(hours, NOW.replace(hour=clock), "UTC") is is_quiet


def test_a_channel_of_fleet_and_team_hears_a_thing_once() -> None:
    teams = {"search": {"namespaces": ["*"], "channels": ["ops"]}}
    assert len(ask([message(key="a")], teams=teams)) == 1


def test_teams_that_share_a_channel_hear_of_their_own_parts_each_and_of_one_budget_once() -> None:
    own = {name: {"namespaces": ["search-*"], "channels": ["search"]} for name in ("one", "two")}
    where = ("search-eu",)
    news = [harm("p1", namespaces=where), message("spent", key="b", topic=NoticeTopic.BUDGET, namespaces=where)]
    found = ask(news, everything=[], teams=own)
    assert [(post.receiver, [key for key, _ in post.keys]) for post in found] == [
        ("team one", ["p1"]), ("team one", ["b"]), ("team two", ["p1"]),
    ]  # fmt: skip
    assert ask(news, after(found), everything=[], teams=own) == ()


def test_a_channel_hears_of_its_topics_only() -> None:
    channels = {"ops": {**CHANNEL, "topics": ["harm"]}, "search": CHANNEL}
    assert [post.message.key for post in ask([message(key="plan"), harm("h1")], channels=channels)] == ["h1"]


def test_what_was_told_survives_a_restart_and_is_forgotten_in_time(tmp_path: Path) -> None:
    memory = Memory(tmp_path, remember_days=35)
    with pytest.raises(Unavailable):
        Memory(tmp_path, remember_days=35)
    memory.keep(after(ask([message(key="a")])), NOW)
    memory.close()
    again = Memory(tmp_path, remember_days=35)
    assert [one.key for one in read_sent(tmp_path)] == ["a"]
    again.keep([], NOW + timedelta(days=36))
    assert not read_sent(tmp_path)
    again.close()


def test_a_broken_memory_is_told_and_lets_go_of_its_lock(tmp_path: Path) -> None:
    (tmp_path / "sent.json").write_text("{")
    for _ in range(2):
        with pytest.raises(Corrupt, match=r"sent\.json"):
            Memory(tmp_path, remember_days=35)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"everything": ["nobody"]}, "no channel is called nobody"),
        ({"channels": {"ops": {"kind": "slack"}}, "teams": {}}, "needs url_file"),
        ({"channels": {"ops": {"kind": "mail"}}, "teams": {}}, "needs host"),
        ({"base_url": "javascript:alert(1)"}, "base_url"),
        ({"quiet_hours": "night"}, "expected hours"),
        ({"teams": {"search": {"channels": ["search"]}}}, "needs namespaces or labels"),
        ({"teams": {"search": {"labels": ["search"], "channels": ["search"]}}}, "no label such as"),
    ],
)
def test_settings_that_can_not_work_are_refused(more: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        settings(**more)


@pytest.mark.parametrize("address", ["a@b\r\nBcc: c@d", "a b@example.com", "<a@example.com>", "example.com"])
def test_a_mail_address_is_one(address: str) -> None:
    mail = {"kind": "mail", "host": "mx", "sender": "a@example.com", "recipients": [address]}
    with pytest.raises(ValidationError, match="no mail address"):
        settings(channels={"ops": mail}, teams={})
