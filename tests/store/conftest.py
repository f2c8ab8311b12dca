"""The fixtures of the registry's tests: a store of its own for each test, and a clock that stands still."""

from __future__ import annotations

from tests.tasks.conftest import clock, path, registry

__all__ = ["clock", "path", "registry"]
