"""How long the fuzzing takes: short with the long tests, longer on demand (`make fuzz SECONDS=600`)."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, settings

FACTOR_VARIABLE: Final = "HELMSMAN_FUZZ_FACTOR"
FACTOR: Final = int(os.environ.get(FACTOR_VARIABLE, "1"))


def effort(examples: int) -> settings:
    """Number of examples, or a multiple of it with more time. Earlier failures are tried first."""
    slow = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]
    return settings(max_examples=examples * FACTOR, deadline=None, suppress_health_check=slow)


def fuzzed(examples: int) -> Callable[[Any], Any]:
    """Mark a long test with this many examples."""
    return lambda test: pytest.mark.long(effort(examples)(test))
