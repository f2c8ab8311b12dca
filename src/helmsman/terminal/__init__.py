"""Terminal interface: display agent output safely and ask questions.

answer = await helmsman.run_step("Fix the test", on_question=ask_on_terminal)
"""

from __future__ import annotations

from helmsman.terminal.dialogue import ask_on_terminal
from helmsman.terminal.keyboard import has_terminal

__all__ = ["ask_on_terminal", "has_terminal"]
