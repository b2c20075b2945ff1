"""How much longer the slowest requests take on a shared card: P99 beside others / P99 alone, by load.

Written by `bench/quality/latency-table` from Azure's conversations of 2023 (Splitwise, ISCA'24, CC-BY-4.0)
and Mooncake's (FAST'25, Apache-2.0), played by `bench/request_queueing.py`; the worst over both, over dense and sparse
requests, costs of a written token, and one or three neighbours. None: a load beyond what was played. Read by
`latency`.
"""

from __future__ import annotations

OWN_LOADS = (0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)
"""Load of the service itself, share of a card that it would use alone, 0-1."""
NEIGHBOUR_LOADS = (0.0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)
"""Load of all its neighbours together, likewise."""
SHARES = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
"""Hard share of the card, 0-1."""

BURST: tuple[tuple[float | None, ...], ...] = (
    (1.0, 1.301, 1.55, 1.936, 2.103, 2.535, 2.946, 3.264, 3.854, 3.984),  # own load 0.02
    (1.0, 1.174, 1.407, 1.885, 2.283, 2.466, 3.042, 3.473, 4.104, 4.803),  # own load 0.05
    (1.0, 1.141, 1.291, 1.746, 2.177, 2.745, 3.629, 4.479, 6.097, 7.675),  # own load 0.1
    (1.0, 1.117, 1.299, 1.639, 2.229, 3.415, 5.949, 15.68, 109.17, None),  # own load 0.2
    (1.0, 1.125, 1.299, 1.844, 2.727, 5.157, 20.568, 596.812, None, None),  # own load 0.3
    (1.0, 1.165, 1.375, 2.081, 4.59, 27.893, 425.923, None, None, None),  # own load 0.4
    (1.0, 1.221, 1.68, 4.533, 34.662, 277.344, None, None, None, None),  # own load 0.5
    (1.0, 1.82, 3.489, 29.386, 122.995, None, None, None, None, None),  # own load 0.6
    (1.0, 2.608, 6.321, 19.368, None, None, None, None, None, None),  # own load 0.7
    (1.0, 1.684, 2.503, None, None, None, None, None, None, None),  # own load 0.8
)
"""Inflation by own load (rows) and neighbours' load (columns), equal parts among the active."""
HARD: tuple[tuple[float | None, ...], ...] = (
    (63.586, 17.019, 6.384, 3.986, 2.799, 2.223, 1.759, 1.497, 1.291, 1.124, 1.0),  # own load 0.02
    (None, 41.805, 8.679, 4.648, 3.074, 2.284, 1.84, 1.551, 1.309, 1.139, 1.0),  # own load 0.05
    (None, None, 18.301, 6.554, 3.917, 2.736, 2.103, 1.682, 1.346, 1.153, 1.0),  # own load 0.1
    (None, None, None, 54.122, 6.865, 3.736, 2.458, 1.82, 1.431, 1.187, 1.0),  # own load 0.2
    (None, None, None, None, 204.372, 8.724, 3.436, 2.254, 1.605, 1.23, 1.0),  # own load 0.3
    (None, None, None, None, None, 262.026, 14.486, 3.532, 1.837, 1.338, 1.0),  # own load 0.4
    (None, None, None, None, None, None, 215.723, 22.196, 4.107, 1.601, 1.0),  # own load 0.5
    (None, None, None, None, None, None, None, 106.739, 23.426, 3.105, 1.0),  # own load 0.6
    (None, None, None, None, None, None, None, None, 17.934, 5.891, 1.0),  # own load 0.7
    (None, None, None, None, None, None, None, None, None, 2.419, 1.0),  # own load 0.8
)
"""Inflation by own load (rows) and hard share (columns)."""
