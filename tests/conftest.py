"""What every test has: asyncio under anyio, the fixtures of the test kit, and a check for processes left behind."""

from __future__ import annotations

import pytest

pytest_plugins = ["helmsman.testing.plugin", "pytester"]


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def _nothing_left_behind(no_leaks: None) -> None:
    """Every test is checked for leaks."""
