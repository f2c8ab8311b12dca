"""Terminal output that scrolls above a live region: unfinished text, progress and the input line.

The event loop does all the drawing, never a thread, so drawing can read any state. `paused` yields the terminal to
other code; lines printed during a pause are buffered.
"""

from __future__ import annotations

import json
import logging
import os
import time
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager, suppress
from typing import TYPE_CHECKING, Final, Protocol, Self

import anyio
from prompt_toolkit.history import History
from rich.text import Text

from helmsman.approvals.deadline import countdown
from helmsman.base.files import replace_file
from helmsman.base.redaction import redact
from helmsman.base.sanitize import one_line, shell_script, visible
from helmsman.model import events
from helmsman.sessions.progress import infer_progress
from helmsman.terminal.keyboard import in_background, terminal_keys
from helmsman.terminal.layout import crop, fold
from helmsman.terminal.line_editor import Key, LineEditor, line_rows
from helmsman.terminal.region import Region

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from rich.console import Console

    from helmsman.sessions.session import Session

_FRAME_SECONDS: Final = 0.1


class Screen:
    """Prints lines to a console; `changing` is the live region below them, `line` the input line below that."""

    def __init__(self, console: Console, changing: Callable[[], Sequence[Text]] | None) -> None:
        self._console = console
        self._changing = changing
        # This screen has the terminal to itself, so it may print its last lines again.
        self._region = Region(console, restores=True)
        self._kept: list[Text] = []
        self._pauses = 0
        self._is_open = False
        self.line: InputLine | None = None

    def __enter__(self) -> Self:
        self._is_open = self._changing is not None
        self.refresh()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Remove the live region until the screen is entered again."""
        self._is_open = False
        self._region.erase()

    def print(self, lines: Sequence[Text]) -> None:
        # Printed during a question, lines would go between its choices.
        if self._pauses:
            self._kept += lines
        elif lines:
            self._region.print(lines)
            self.refresh()

    def refresh(self) -> None:
        """Draw the live region."""
        # From the background, drawing would overwrite the shell.
        if self._changing is None or not self._is_open or self._pauses or in_background(self._console.file.fileno()):
            return
        lines, cursor = [*self._changing()], None
        typed = None if self.line is None else self.line.rows(self._console)
        if typed is not None:
            rows, (row, column) = typed
            cursor = (len(lines) + row, column)
            lines += rows
        # The lower end, with the input line, is what must be seen.
        too_many = max(0, len(lines) - max(1, self._console.height - 1))
        self._region.draw(lines[too_many:], None if cursor is None else (max(0, cursor[0] - too_many), cursor[1]))

    def step_aside(self) -> None:
        """Remove the live region until the next drawing."""
        self._region.erase()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Yield the terminal to other code during the block."""
        # Counted, because pauses may overlap.
        self._pauses += 1
        self._region.erase()
        try:
            yield
        finally:
            self._pauses -= 1
            if not self._pauses:
                kept, self._kept = self._kept, []
                self.print(kept)
                self.refresh()

    async def animate(self) -> None:
        """Redraw until cancelled."""
        while self._is_open:
            self.refresh()
            await anyio.sleep(_FRAME_SECONDS)


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
        # A turn that was joined began before this process.
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
        # The question that ends first.
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


log = logging.getLogger(__name__)

# --- Input history for the arrow keys, in a private, bounded file without secrets -------------------------------------

MOST_LINES: Final = 500
# NOFOLLOW: a link in the state directory must not lead the history elsewhere.
_APPEND: Final = os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0)
_LONGEST: Final = 4000
"""Longest input to keep, in characters. Longer input was pasted and is not worth recalling."""


class KeptHistory(History):
    """History with one JSON string per line, newest last. File errors are ignored."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self._file = file

    def load_history_strings(self) -> Iterable[str]:
        lines = self._lines()
        # Rewritten rarely: appending is cheap, and two processes may write.
        if len(lines) > 2 * MOST_LINES:
            self._try(lambda: replace_file(self._file, "".join(f"{line}\n" for line in lines[-MOST_LINES:])))
        return reversed([text for line in lines[-MOST_LINES:] if (text := _text_in(line))])

    def store_string(self, string: str) -> None:
        if len(string) <= _LONGEST:
            # Prompts may contain keys.
            self._try(lambda: self._append(json.dumps(redact(string)) + "\n"))

    def _append(self, line: str) -> None:
        # 0600 from its creation: prompts are private.
        descriptor = os.open(self._file, _APPEND, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(line)

    def _lines(self) -> list[str]:
        try:
            return self._file.read_text(encoding="utf-8").splitlines()
        except (OSError, ValueError):
            return []

    def _try(self, do: Callable[[], None]) -> None:
        try:
            do()
        except OSError as error:
            log.debug("what was typed is not kept: %s", error)


def _text_in(line: str) -> str:
    try:
        text = json.loads(line)
    except ValueError:
        return ""
    return text if isinstance(text, str) else ""


_PROMPT: Final = "› "
_MOST_ROWS: Final = 5
_SHARE: Final = 3  # maximum share of the screen: one third
_OFFERED: Final = 8  # completions that are shown
_HINT_SECONDS: Final = 4.0
_AGAIN_SECONDS: Final = 3.0
"""Time for a second Esc. A single Esc may be part of a split arrow-key sequence."""


class Typing(Protocol):
    """Receiver of typed input."""

    @property
    def is_running(self) -> bool: ...

    @property
    def leaves(self) -> bool:
        """Return whether Ctrl-C and `q` only leave."""

    def send(self, text: str) -> None:
        """Send text to the running turn, or as the next message."""

    def queue(self, text: str) -> None: ...

    def completions(self, text: str) -> Sequence[str]:
        """Return what the last word of the text may be completed to."""

    def interrupt(self) -> None: ...

    def leave(self) -> None: ...


class InputLine:
    """Input line, shown while open."""

    def __init__(self, history: Path, refresh: Callable[[], None], step_aside: Callable[[], None]) -> None:
        self._history = history
        self.refresh = refresh
        self._step_aside = step_aside
        self._typing: Typing | None = None
        self._editor: LineEditor | None = None
        self._reading: AsyncExitStack | None = None
        self._suspensions = 0
        self._hint = ""
        self._hint_until = self._escaped_at = 0.0
        self._shows_keys = False
        self.was_used = False  # whether text was sent or queued

    @property
    def is_open(self) -> bool:
        return self._editor is not None

    @property
    def text(self) -> str:
        return "" if self._editor is None else self._editor.text

    def put(self, text: str, *, after: bool = False) -> None:
        """Restore text that could not be sent, before or after text typed since."""
        if self._editor is not None:
            # Before later text, in the order of typing.
            parts = (self._editor.text, text) if after else (text, self._editor.text)
            self._editor.put("\n".join(filter(None, parts)))

    def clear(self) -> bool:
        """Clear the line; return whether it had text."""
        if not self.text:
            return False
        assert self._editor is not None
        self._editor.take()
        return True

    def release(self) -> None:
        """Restore the terminal immediately, until the line is drawn again."""
        if self._editor is not None:
            self._editor.release()

    def hint(self, text: str) -> None:
        """Show a hint briefly."""
        self._hint, self._hint_until = text, time.monotonic() + _HINT_SECONDS
        self.refresh()

    @asynccontextmanager
    async def opened(self, typing: Typing) -> AsyncIterator[None]:
        """Read keys during the block, if this process owns the terminal."""
        with ExitStack() as stack:
            fd = terminal_keys(stack)
            # A job in the background must not read keys.
            if fd is None or in_background(fd):
                yield
                return
            import termios

            keys = [
                Key("enter", lambda: self._hand(lambda typing: typing.send)),
                Key("tab", self._on_tab),
                Key("escape", self._on_escape),
                Key("c-c", self.clear, on_text=True),  # not as a signal, which keys typed next would overtake
                Key("c-d", typing.leave, on_empty_line=True),
                Key("?", self._on_help, on_empty_line=True),
                *([Key("q", typing.leave, on_empty_line=True, alone=True)] if typing.leaves else []),
            ]
            self._typing = typing
            self._editor = LineEditor(fd, keys, self._on_change, KeptHistory(self._history))
            termios.tcflush(fd, termios.TCIFLUSH)  # earlier keys were meant for another program
            try:
                await self._start()
                yield
            finally:
                # Never taken back, so that nothing starts to read again.
                self._suspensions += 1  # permanently
                with anyio.CancelScope(shield=True):
                    await self._stop()
                self._editor = None
                with suppress(OSError, termios.error):
                    termios.tcflush(fd, termios.TCIFLUSH)  # keep a partial message from the shell

    @asynccontextmanager
    async def suspended(self) -> AsyncIterator[None]:
        """Release the keys during the block."""
        # Counted: a question and a pager may overlap.
        self._suspensions += 1
        try:
            await self._stop()
            yield
        finally:
            self._suspensions -= 1
            # Reading must resume also when the block was cancelled.
            with anyio.CancelScope(shield=True):
                await self._start()

    async def _start(self) -> None:
        if self._editor is None or self._suspensions or self._reading is not None:
            return
        self._reading = AsyncExitStack()
        assert self._typing is not None
        await self._reading.enter_async_context(self._editor.reading(self._typing.leave, self._step_aside))
        self.refresh()

    async def _stop(self) -> None:
        if self._reading is not None:
            reading, self._reading = self._reading, None
            await reading.aclose()

    # --- appearance --------------------------------------------------------------------------------------------------

    def rows(self, console: Console) -> tuple[list[Text], tuple[int, int]] | None:
        if self._editor is None or self._typing is None or not self._editor.has_keys:
            return None
        room = max(1, console.width - 1 - len(_PROMPT))
        most = max(1, min(_MOST_ROWS, console.height // _SHARE))
        shown, (row, column) = line_rows(self._editor.text, self._editor.cursor, width=room, most=most)
        above = self._key_lines() if self._shows_keys else []
        if time.monotonic() < self._hint_until:
            above += fold(console, Text(visible(self._hint), "yellow"), indent=0, width=console.width - 1)[:_MOST_ROWS]
        if offered := self._offered():
            more = f"  and {len(offered) - _OFFERED} more" if len(offered) > _OFFERED else ""
            words = "  ".join(map(visible, offered[:_OFFERED]))
            above.append(crop(console, Text.assemble(("Tab  ", "bold cyan"), (f"{words}{more}", "dim"))))
        lines = [Text.assemble(("  " if number else _PROMPT, "bold cyan"), text) for number, text in enumerate(shown)]
        if not self._editor.text:
            lines[0].append(self._placeholder(), "dim")
        return [*above, *lines], (len(above) + row, len(_PROMPT) + column)

    def _placeholder(self) -> str:
        assert self._typing is not None
        if not self._typing.is_running:
            return "your message; Ctrl-D leaves, ? for keys"
        return f"Enter steers, Tab queues, {'q leaves' if self._typing.leaves else 'Esc stops'}, ? for keys"

    def _key_lines(self) -> list[Text]:
        assert self._typing is not None
        if self._typing.is_running:
            keys = {
                "Enter": "put the message into the running turn",
                "Tab": "queue it for when the turn has ended",
                "Esc Esc": "stop the turn",
                "Ctrl-C": f"clear it; empty: {'leave, it keeps running' if self._typing.leaves else 'stop the turn'}",
                "Ctrl-D": "leave it running" + (" (or q)" if self._typing.leaves else ""),
            }
        else:
            keys = {"Enter": "send the message", "Esc, Ctrl-C": "clear the line", "Ctrl-D": "leave"}
        keys |= {"Up, Down": "earlier messages", "Alt-Enter": "another line"}
        keys |= {"/help": "commands that cost no turn", "@": "Tab completes the path of a file"}
        width = max(map(len, keys)) + 2
        return [Text.assemble((f"{key:<{width}}", "bold cyan"), (what, "dim")) for key, what in keys.items()]

    # --- keys --------------------------------------------------------------------------------------------------------

    def _on_change(self) -> None:
        if self.text:
            self._shows_keys = False
        self.refresh()

    def _on_tab(self) -> None:
        offered = self._offered()
        if offered and self._editor is not None:
            text = self._editor.text
            word = text.split(" ")[-1]
            common = _common_beginning(offered)
            # As a shell does: the common beginning first, then the first candidate.
            ends = f"{offered[0]} " if len(offered) == 1 else common if len(common) > len(word) else offered[0]
            self._editor.put(text.removesuffix(word) + ends)
            return
        self._hand(lambda typing: typing.queue)

    def _hand(self, how: Callable[[Typing], Callable[[str], None]]) -> None:
        if self._editor is None or self._typing is None or not self._editor.text.strip():
            return
        self.was_used = True
        self._shows_keys, self._hint_until = False, 0.0
        how(self._typing)(self._editor.take())

    def _offered(self) -> Sequence[str]:
        """Return the completions of the word before the cursor."""
        # Inside the text a completion would replace the wrong word.
        if self._editor is None or self._typing is None or self._editor.cursor != len(self._editor.text):
            return ()
        return self._typing.completions(self._editor.text)

    def _on_escape(self) -> None:
        if self._typing is None:
            return
        now = time.monotonic()
        if not self._typing.is_running:
            self.clear()
        elif now - self._escaped_at < _AGAIN_SECONDS:
            self._escaped_at = self._hint_until = 0.0
            self._typing.interrupt()
        else:
            self._escaped_at = now
            self.hint("Esc again stops the turn.")

    def _on_help(self) -> None:
        self._shows_keys = not self._shows_keys
        self.refresh()


def _common_beginning(words: Sequence[str]) -> str:
    """Return what all of the words begin with."""
    # The smallest and the largest word differ first.
    first, last = min(words), max(words)
    differs = next((place for place, (one, other) in enumerate(zip(first, last, strict=False)) if one != other), None)
    return first if differs is None else first[:differs]
