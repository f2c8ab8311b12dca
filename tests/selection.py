"""Which tests are run together."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable


def skip_beside(request: pytest.FixtureRequest, larger: Callable[..., object]) -> None:
    """Skip a test where another, which does the same more often, is part of the run."""
    if any(getattr(item, "originalname", None) == larger.__name__ for item in request.session.items):
        pytest.skip(f"{larger.__name__} does the same more often.")
