"""How long the fuzzing takes: short in every run of the tests, longer on demand (`make fuzz SECONDS=600`)."""

from __future__ import annotations

import os
from typing import Final

from hypothesis import HealthCheck, settings

FACTOR_VARIABLE: Final = "HELMSMAN_FUZZ_FACTOR"
FACTOR: Final = int(os.environ.get(FACTOR_VARIABLE, "1"))


def fuzzed(examples: int) -> settings:
    """So many examples, or a multiple of them where more time was given. What failed once is tried first the next time."""
    slow = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]
    return settings(max_examples=examples * FACTOR, deadline=None, suppress_health_check=slow)
