"""Status line below a running turn: elapsed time, current activity and progress."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from rich.text import Text

from helmsman.approvals.deadline import countdown
from helmsman.base.sanitize import one_line, shell_script
from helmsman.model import events
from helmsman.sessions.progress import infer_progress
from helmsman.terminal.layout import crop

if TYPE_CHECKING:
    from rich.console import Console

    from helmsman.sessions.session import Session

_SPINNER: Final = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_FRAMES_A_SECOND: Final = 10


class StatusLine:
    """Tracks start times and formats the status line."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._began = self._turn_began = self._command_began = time.monotonic()

    def note(self, event: events.Event) -> None:
        match event:
            case events.TurnRequested():
                self._turn_began = time.monotonic()
            case events.ItemStarted(item=events.CommandExecution(), agent_id=None):
                self._command_began = time.monotonic()
            case _:
                pass

    def text(self, session: Session | None) -> Text:
        now = time.monotonic()
        spinner = _SPINNER[int(now * _FRAMES_A_SECOND) % len(_SPINNER)]
        known = None if session is None else session.turn_began_at
        began = self._began if known is None else min(self._began, known)  # it may have begun before it is watched
        line = Text.assemble((spinner, "cyan"), f" {_clock(now - began)}  ")
        if session is None:
            return crop(self._console, line.append("starting the agent"), indent=0)
        progress = infer_progress(
            session.items, turn_seconds=now - self._turn_began, command_seconds=now - self._command_began
        )
        line.append(progress.text, "bold")
        if progress.eta_seconds is not None:
            line.append(f", about {duration(progress.eta_seconds, whole=True)} left")
        line.append(f"  {_activity(session)}", "dim")
        return crop(self._console, line, indent=0)


def duration(seconds: float, *, whole: bool = False) -> str:
    """Format a duration."""
    if seconds < 10 and not whole:
        return f"{seconds:.1f} s"
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes / 60:.0f} h"


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def _activity(session: Session) -> str:
    if session.deadlines and session.state.questions:
        soonest = min(session.deadlines.values(), key=lambda deadline: deadline.seconds)
        if not soonest.has_end:
            return "waits for an answer"
        left = countdown(soonest.seconds, paused=soonest.is_paused)
        return f"waits for an answer: {left[0].lower()}{left[1:]}"
    if session.state.note:
        return one_line(session.state.note)
    for item in reversed(session.items):
        if item.status in ("completed", "failed"):
            continue
        match item:
            case events.CommandExecution():
                return f"running {one_line(shell_script(item.command))}"
            case events.FileChange():
                return "changing files"
            case events.McpToolCall():
                return f"calling {one_line(item.summary())}"
            case events.AgentMessage():
                return "writing"
            case events.Reasoning():
                return "thinking"
            case _:
                continue
    return "working"
