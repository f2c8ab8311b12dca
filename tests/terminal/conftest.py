"""A terminal for the tests of questions."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.pseudo_terminal import PseudoTerminal


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[PseudoTerminal]:
    """A terminal; `attached()` puts stdin and stderr on it."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    terminal = PseudoTerminal()
    yield terminal
    terminal.close()
