"""Settings of notifications: where messages go, who gets which, how often. A section of `fleet.settings.settings`.

Addresses of chat hooks are secrets, for anybody who has one may write: they come from files, as passwords and keys do.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from fleet.settings.guard import hours_of
from fleet.settings.kinds import Count, Seconds, Section


class ChannelKind(StrEnum):
    """Services that messages go to."""

    MAIL = "mail"
    SLACK = "slack"
    TEAMS = "teams"
    FEISHU = "feishu"
    DINGTALK = "dingtalk"
    WECOM = "wecom"
    WEBHOOK = "webhook"


class NoticeTopic(StrEnum):
    """What a message is about."""

    REPORT = "report"
    """The weekly report in five lines."""
    PLAN = "plan"
    """A plan waits for approval."""
    HARM = "harm"
    """A plan harms or saves less than it promised, or was taken back."""
    BUDGET = "budget"
    """A budget is nearly spent, is spent, or is predicted to be before the month ends."""


class MailSecurity(StrEnum):
    """How the connection to the mail server is kept secret; certificates are always verified."""

    STARTTLS = "starttls"
    TLS = "tls"
    NONE = "none"
    """Plain text; a password is refused."""


class ChannelSettings(Section):
    """One place that messages go to."""

    kind: ChannelKind
    """Service: mail, slack, teams, feishu, dingtalk, wecom or webhook."""
    url_file: Path | None = None
    """File with the address of the hook; for all but mail."""
    secret_file: Path | None = None
    """File with the signing key of Feishu, DingTalk or a webhook, or with the mail server's password."""
    ca_file: Path | None = None
    """File with certificates (PEM) that are trusted instead of the system's."""
    certificate_file: Path | None = None
    """Certificate (PEM) that is shown to the service (mutual TLS)."""
    key_file: Path | None = None
    """Its key; none where it stands in the same file."""
    topics: tuple[NoticeTopic, ...] = tuple(NoticeTopic)
    """What it is told of: report, plan, harm, budget."""
    host: str | None = Field(default=None, min_length=1, max_length=253)
    """Mail server."""
    port: int = Field(default=587, ge=1, le=65535)
    """Its port."""
    security: MailSecurity = MailSecurity.STARTTLS
    """How the connection to it is kept secret."""
    user: str | None = None
    """Who logs in there; needs `secret_file`."""
    sender: str | None = None
    """Address that mail comes from."""
    recipients: tuple[str, ...] = ()
    """Addresses that it goes to."""

    @field_validator("sender", "recipients")
    @classmethod
    def _are_addresses(cls, value: object) -> object:
        for address in (value,) if isinstance(value, str) else value or ():  # type: ignore[attr-defined]
            if not _ADDRESS.fullmatch(address):
                raise ValueError(f"{address!r} is no mail address")
        return value

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        if self.kind is not ChannelKind.MAIL:
            if self.url_file is None:
                raise ValueError(f"a channel of kind {self.kind} needs url_file")
            return self
        if self.host is None or self.sender is None or not self.recipients:
            raise ValueError("a channel of kind mail needs host, sender and recipients")
        if self.user is not None and self.secret_file is None:
            raise ValueError("a mail user needs secret_file with the password")
        if self.user is not None and self.security is MailSecurity.NONE:
            raise ValueError("security none would send the password in plain text: use starttls or tls")
        return self


class TeamSettings(Section):
    """Who is told of what concerns some namespaces or workloads alone."""

    namespaces: tuple[str, ...] = ()
    """Namespaces of the team; * stands for any text."""
    labels: tuple[str, ...] = ()
    """Labels of the team's pods, such as team=search; * stands for any text in the value."""
    channels: tuple[str, ...] = Field(min_length=1)
    """Channels that its messages go to."""

    @field_validator("labels")
    @classmethod
    def _are_labels(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for text in value:
            name, sign, wanted = text.partition("=")
            if not (name and sign and wanted):
                raise ValueError(f"{text!r} is no label such as team=search")
        return value

    @model_validator(mode="after")
    def _is_anybody(self) -> Self:
        if not self.namespaces and not self.labels:
            raise ValueError("a team needs namespaces or labels")
        return self


class NotifySettings(Section):
    """Messages to people."""

    channels: Mapping[str, ChannelSettings] = {}
    """Places that messages go to, by name."""
    everything: tuple[str, ...] = ()
    """Channels that get what concerns the whole fleet."""
    teams: Mapping[str, TeamSettings] = {}
    """Teams by name: what concerns their namespaces or workloads goes to their channels too."""
    base_url: str | None = Field(default=None, pattern=r"^https?://[A-Za-z0-9.\-:\[\]]+(/[A-Za-z0-9._~/\-]*)?$")
    """Address of the web app, for links; none leaves links out."""
    language: Literal["en", "zh"] | None = None
    """Language of the messages; none for `report.language`."""
    budget_ratio: Annotated[float, Field(gt=0.0, le=1.0)] = 0.8
    """Share of a month's budget from which on it is reported; a predicted excess is reported in any case."""
    digest_seconds: Seconds = 86_400
    """Least time between two digests to one receiver; what comes meanwhile waits and goes in one message."""
    harm_seconds: Seconds = 3600
    """The same for harm, which does not wait for a digest."""
    quiet_hours: str | None = None
    """Hours in which only harm is sent, such as 20:00-08:00, by the clock of `cluster.time_zone`."""
    remember_days: Count = 35
    """Days for which a message is not sent again."""
    timeout_seconds: Annotated[float, Field(gt=0.0, le=120.0)] = 10.0
    """How long one try may take."""
    tries_max: int = Field(default=4, ge=1, le=10)
    """Tries of one message, with a pause that doubles between them."""
    retry_after_max_seconds: Annotated[float, Field(ge=0.0, le=3600.0)] = 60.0
    """Longest pause that a service may ask for; a longer one is left to the next run."""
    interval_seconds: Seconds = 300
    """Time between two looks of `gputide admin notify run`."""

    @field_validator("quiet_hours")
    @classmethod
    def _are_hours(cls, value: str | None) -> str | None:
        if value is not None:
            hours_of(value)
        return value

    @model_validator(mode="after")
    def _names_are_known(self) -> Self:
        named = {*self.everything, *(channel for team in self.teams.values() for channel in team.channels)}
        if unknown := sorted(named - set(self.channels)):
            raise ValueError(
                f"no channel is called {', '.join(unknown)}; there are {', '.join(self.channels) or 'none'}"
            )
        return self


_ADDRESS = re.compile(r"[A-Za-z0-9._%+\-]{1,64}@[A-Za-z0-9](?:[A-Za-z0-9.\-]{0,251}[A-Za-z0-9])?")
