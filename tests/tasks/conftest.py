"""What the tests of the registry share: a registry of its own for each test, and a clock that stands still."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from helmsman.tasks.registry import REGISTRY_NAME, Registry


class Clock:
    """The time, as far as a test lets it go on."""

    def __init__(self) -> None:
        self.now = datetime(2026, 11, 15, 12, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now

    def pass_by(self, **time: float) -> None:
        self.now += timedelta(**time)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / REGISTRY_NAME


@pytest.fixture
def registry(path: Path, clock: Clock) -> Iterator[Registry]:
    registry = Registry(path, clock=clock)
    yield registry
    registry.close()
