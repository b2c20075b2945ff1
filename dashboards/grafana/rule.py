"""What a recording or alert rule is, and a group of them: the vocabulary of every rule module here.

The fields are those of Prometheus' rule files (prometheus/prometheus:docs/configuration/recording_rules.md and
alerting_rules.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Severity(StrEnum):
    """How soon somebody has to look; the value of the label `severity`."""

    CRITICAL = "critical"
    """Now: harm or loss goes on."""
    WARNING = "warning"
    """Today: it will harm, or money goes on being wasted."""
    INFO = "info"
    """This week; no page for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingRule:
    """One series that is computed again and again under a name of its own.

    Attributes:
        record: name of the series, `gputide:SUBJECT:MEASURE[:OPERATION]`.
    """

    record: str
    expression: str


def recording(expressions: Mapping[str, str]) -> tuple[RecordingRule, ...]:
    """Rules by the names of their series."""
    return tuple(RecordingRule(record=name, expression=expression) for name, expression in expressions.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertRule:
    """One condition that somebody is told of.

    Attributes:
        expression: PromQL; every row is one alert.
        hold: how long it must be so before it fires, a duration of Prometheus; empty for at once.
        severity: how soon somebody has to look.
        summary: one line with the row's labels and value, a template of Prometheus.
        needs: who gives the series that it stands on.
    """

    alert: str
    expression: str
    hold: str
    severity: Severity
    summary: str
    description: str
    needs: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleGroup:
    """Rules that are evaluated one after the other, so that a later one may use an earlier one's series.

    Attributes:
        name: unique among all groups.
        interval: time between two evaluations, a duration of Prometheus.
    """

    name: str
    interval: str
    rules: tuple[RecordingRule | AlertRule, ...]
    labels: Mapping[str, str] = field(default_factory=dict)
