"""A scraper for tests: what a process that was started shows of itself, as Prometheus would read it."""

from __future__ import annotations

import re
import urllib.request
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from tests.waiting import until

OWN_PORT = ("--set", "exporter.own_listen=127.0.0.1:0")
"""Options by which a process shows metrics of itself on a port of its own choice."""


def own_url(log: Path) -> str:
    """Where a process with `OWN_PORT` serves, as it says on its standard error."""
    until(lambda: re.search(rb"metrics of \w+ at \S+", log.read_bytes()))
    found = re.search(r"metrics of \w+ at (\S+)", log.read_text())
    assert found is not None
    return found[1]


def scraped(url: str) -> dict[str, float]:
    """Values by name, with the labels in braces where there are any."""
    with urllib.request.urlopen(url, timeout=10) as answer:
        text = answer.read().decode()
    return samples_of(text)


def samples_of(text: str) -> dict[str, float]:
    """Values by name, with the labels in braces where there are any."""
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = ",".join(f'{name}="{value}"' for name, value in sorted(sample.labels.items()))
            found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return found
