"""Which format and encoding a scraper asks for, by its request's headers.

Called by `exporter.server`. Grammar: RFC 9110 §12.5.1 and §12.5.3 (lists with weights); what Prometheus sends:
prometheus/prometheus:scrape/scrape.go.
"""

from __future__ import annotations

from collections.abc import Iterator

from exporter.exposition.rendering import TextFormat

_ITEMS_MAX = 32
"""A scraper names a handful of formats; what stands behind is not read."""


def text_format_of(accept: str) -> TextFormat:
    """The format to answer in: OpenMetrics where the scraper wants it at least as much as the older one.

    Args:
        accept: the `Accept` header; empty for none.
    """
    open_weight = plain_weight = 0.0
    for name, parameters, weight in _items(accept):
        if name == "application/openmetrics-text" and parameters.get("version", "1.0.0") == "1.0.0":
            open_weight = max(open_weight, weight)
        elif name in ("text/plain", "text/*", "*/*") and parameters.get("version", "0.0.4") == "0.0.4":
            plain_weight = max(plain_weight, weight)
    is_open = open_weight > 0.0 and open_weight >= plain_weight
    return TextFormat.OPENMETRICS if is_open else TextFormat.PROMETHEUS


def accepts_gzip(accept_encoding: str) -> bool:
    """Whether the answer may be compressed.

    Args:
        accept_encoding: the `Accept-Encoding` header; empty for none.
    """
    return any(name == "gzip" and weight > 0.0 for name, _, weight in _items(accept_encoding))


def _items(header: str) -> Iterator[tuple[str, dict[str, str], float]]:
    for item in header.split(",", _ITEMS_MAX)[:_ITEMS_MAX]:
        name, *rest = (part.strip() for part in item.split(";", _ITEMS_MAX))
        pairs = (part.partition("=") for part in rest)
        parameters = {key.strip().lower(): value.strip(' "') for key, _, value in pairs}
        yield name.lower(), parameters, _weight(parameters.pop("q", "1"))


def _weight(text: str) -> float:
    try:
        weight = float(text)
    except ValueError:
        return 0.0
    return weight if 0.0 <= weight <= 1.0 else 0.0
