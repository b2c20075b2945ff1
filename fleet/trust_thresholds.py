"""From where on a counter is not believed: thresholds that live readings and stored windows are judged by alike.

Asked by `exporter.cross_checks.checks` (readings of the last minutes) and by the analyzer's trust rules (windows of
weeks), so that a counter which the one distrusts is not believed by the other for another reason. Only the standard
library is imported here: the node exporter's process loads this module.
"""

from __future__ import annotations

ZERO_RATIO_MAX = 0.001
"""Activity up to which a counter reads zero."""
CARD_BUSY_RATIO_MIN = 0.05
"""Activity of a card above which it is busy beyond doubt."""
REPEATS_MIN = 3
"""Fewest steps that must fail a check."""
SHARE_MIN = 0.05
"""Smallest share of the comparable steps that must fail it."""
SM_OVER_DUTY_MIN = 0.10
"""How far SM active may exceed the duty cycle: it cannot, but the two are sampled at different moments."""
FROZEN_STEPS_MIN = 12
"""Fewest steps in which a value must repeat to the last bit before it is frozen."""
FROZEN_BAND = (0.02, 0.95)
"""Between these a constant ratio is unnatural; near 0 and 1 it is what an idle or a full card shows."""
SPIN_DUTY_MIN = 0.9
"""Duty cycle from which a kernel is nearly always running."""
SPIN_SM_MAX = 0.25
"""SM active below which hardly anything is done meanwhile."""
SPIN_SHARE_MIN = 0.5
"""Share of the busy steps that must look so."""
FRAMEBUFFER_BYTES_MIN = 2**20
"""A framebuffer in use is never smaller: less is MiB taken for bytes."""
FRAMEBUFFER_OVER_CARD_MIN = 1.01
"""How many times the card's framebuffer a use must be to be impossible."""
ABOVE_ONE_MIN = 1.0 + 1e-6
"""A ratio above this is impossible; what is smaller is rounding."""
