r"""Line editor on prompt_toolkit, which reads and edits but draws nothing.

The owner of the screen displays the text. Ctrl-\ and Ctrl-Z remain signals. Ctrl-C becomes one when its turn comes: the
terminal itself would drop the keys just before it. Input for one line never ends up in another. Imported only for
interactive input.
"""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from unicodedata import category

import anyio
from prompt_toolkit.application import Application
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition
from prompt_toolkit.history import InMemoryHistory
from prompt_toolkit.input.typeahead import clear_typeahead
from prompt_toolkit.input.vt100 import Vt100Input
from prompt_toolkit.key_binding import KeyBindings
from prompt_toolkit.keys import Keys
from prompt_toolkit.layout import BufferControl, Layout, Window
from prompt_toolkit.output import DummyOutput
from rich.cells import cell_len
from rich.text import Text

from helmsman.base.sanitize import one_line, visible
from helmsman.terminal.keyboard import in_background, key_by_key
from helmsman.terminal.region import Region

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Sequence

    from prompt_toolkit.history import History
    from prompt_toolkit.key_binding import KeyPress, KeyPressEvent
    from rich.console import Console

# --- Fold an edited line to rows of the terminal, showing the part with the cursor ------------------------------------

_JOINING: Final = "\u200d\ufe0f"
"""Characters that join others into one emoji and have no width."""


def line_rows(text: str, cursor: int, *, width: int, most: int) -> tuple[list[str], tuple[int, int]]:
    """Return at most `most` rows, and the row and column of the cursor."""
    rows, at, cells = [""], (0, 0), 0
    # One more position than characters: the cursor can be behind the last one.
    for number, char in enumerate([*text, " "]):
        shown = _shown(char)
        size = cell_len(shown)
        if cells + size > width:
            rows.append("")
            cells = 0
        if number == cursor:
            at = (len(rows) - 1, cells)
        if char == "\n":
            rows.append("")
            cells = 0
        elif number < len(text):
            rows[-1] += shown
            cells += size
    # The window follows the cursor, and shows as much as fits.
    first = min(max(0, at[0] - most + 1), max(0, len(rows) - most))
    return rows[first : first + most], (at[0] - first, at[1])


def _shown(char: str) -> str:
    if char == "\n":
        return ""
    if char == "\t":
        # A tab would move by a distance that depends on the column.
        return "  "
    # Control characters and odd spaces are shown as such, except those that join emoji.
    return visible(char) if category(char)[0] in "CZ" and char not in _JOINING else char


# Arrow keys begin with the same byte as Esc.
_ESCAPE_SECONDS: Final = 0.1
"""Delay after Esc, before it counts as a key and not as the start of an arrow key."""
_SEQUENCE_SECONDS: Final = 0.4
"""Delay before a key that may start a sequence (Esc, or a letter that is a command) counts alone."""


@dataclass(frozen=True, slots=True)
class Key:
    """Key binding. `on_empty_line`: only on an empty line; `on_text`: only on another one. `alone`: only if no other key
    follows immediately.
    """

    key: str
    do: Callable[[], object]
    on_empty_line: bool = False
    on_text: bool = False
    alone: bool = False


class LineEditor:
    """Editor for one line on the terminal with this descriptor."""

    def __init__(
        self, fd: int, keys: Sequence[Key], on_change: Callable[[], None], history: History | None = None
    ) -> None:
        self._fd = fd
        # One line for the buffer: Enter submits, and the keys below insert line breaks.
        self._buffer = Buffer(multiline=False, history=history, enable_history_search=True)
        self._buffer.on_text_changed += lambda _: on_change()
        self._buffer.on_cursor_position_changed += lambda _: on_change()
        self._bindings = self._bound(keys)
        self._keys: _Keys | None = None
        self._application: Application[None] | None = None

    @property
    def has_keys(self) -> bool:
        """Return whether this process receives keys; polled, because it may return from the background."""
        # Modes are set again here, because a shell resets them while this process is stopped.
        return self._keys is not None and self._keys.keep_modes()

    def release(self) -> None:
        """Restore the terminal until keys are requested again."""
        if self._keys is not None:
            self._keys.leave_modes()

    @property
    def text(self) -> str:
        return self._buffer.text

    @property
    def cursor(self) -> int:
        return self._buffer.cursor_position

    def take(self, *, keep: bool = True) -> str:
        """Return the text and clear the line; `keep` adds it to the history."""
        text = self._buffer.text
        if keep and text.strip():
            self._buffer.append_to_history()
        self._buffer.reset()
        if self._application is not None:
            self._application.invalidate()  # otherwise the history would load only after the next key
        return text

    def put(self, text: str) -> None:
        """Replace the text."""
        self._buffer.set_document(Document(text), bypass_readonly=True)

    @asynccontextmanager
    async def reading(self, on_end: Callable[[], None], step_aside: Callable[[], None]) -> AsyncIterator[None]:
        """Edit the line with keys for the length of the block.

        `on_end` is called if the terminal closes, `step_aside` before Ctrl-Z stops the process, because the shell
        writes next.
        """
        # A duplicate, because the input closes its file and the descriptor belongs to the caller.
        with os.fdopen(os.dup(self._fd), encoding="utf-8", errors="replace") as file:
            keys = self._keys = _Keys(file)
            application = self._application = Application[None](
                # prompt_toolkit reads and edits. `Region` draws, so its own output goes nowhere.
                Layout(Window(BufferControl(self._buffer))),
                key_bindings=self._bindings,
                input=keys,
                output=DummyOutput(),
            )
            application.ttimeoutlen, application.timeoutlen = _ESCAPE_SECONDS, _SEQUENCE_SECONDS
            started = asyncio.Event()
            # Without prompt_toolkit's own handlers: Ctrl-C is a key here, and the program handles signals.
            running = asyncio.ensure_future(
                application.run_async(started.set, set_exception_handler=False, handle_sigint=False)
            )
            # An exception in the editor, e.g. a closed terminal, would otherwise leave the caller waiting.
            running.add_done_callback(lambda done: None if done.cancelled() or done.exception() is None else on_end())
            try:
                await started.wait()
                with _stops_in_order(step_aside, keys):
                    yield
            finally:
                self._keys = self._application = None
                # Shielded: a cancelled prompt must still restore the terminal.
                with anyio.CancelScope(shield=True):
                    if not started.is_set():
                        running.cancel()
                    elif not running.done():
                        application.exit()
                    await asyncio.wait([running])
                # Keys typed after the line would otherwise reach the next prompt.
                clear_typeahead(keys)

    def _bound(self, keys: Sequence[Key]) -> KeyBindings:
        bindings = KeyBindings()
        bindings.add("c-c")(lambda _: os.kill(os.getpid(), signal.SIGINT))  # in order with earlier keys
        is_empty = Condition(lambda: not self._buffer.text)

        # Terminals send Alt-Enter as Esc and Enter; Shift-Enter is not told apart from Enter.
        @bindings.add("escape", "enter")
        def _(_: KeyPressEvent) -> None:
            self._buffer.insert_text("\n")

        def bind(key: Key) -> None:
            given: dict[str, Any] = {"filter": is_empty} if key.on_empty_line else {}
            if key.on_text:
                given = {"filter": ~is_empty}
            bindings.add(key.key, **given)(lambda _: key.do())
            if key.alone:
                # A single letter is a command only if no text follows, so a paste or fast typing is never one.
                bindings.add(key.key, "enter", **given)(lambda _: key.do())
                bindings.add(key.key, Keys.Any, **given)(self._insert_both)

        for key in keys:
            bind(key)
        return bindings

    def _insert_both(self, event: KeyPressEvent) -> None:
        first, second = event.key_sequence
        self._buffer.insert_text(first.data)
        # The second key goes back to the front of the queue, so the order of typing stays.
        event.key_processor.feed(second, first=True)


class _Keys(Vt100Input):
    """Input from a terminal that sends signals, read only in the foreground."""

    _before: list[Any] | None = None  # terminal modes before the change; None while no keys are read
    _is_entered = False

    @contextmanager
    def raw_mode(self) -> Iterator[None]:
        import termios

        self._before = termios.tcgetattr(self.fileno())
        self.keep_modes()
        try:
            yield
        finally:
            self.leave_modes()

    def keep_modes(self) -> bool:
        """Switch to unbuffered input while in the foreground; return whether that is the case."""
        if in_background(self.fileno()):
            self._is_entered = False  # the foreground process sets its own modes
        elif self._before is not None and not self._is_entered:
            self._enter_modes(self._before)
        return self._is_entered

    def leave_modes(self) -> None:
        """Restore the terminal."""
        import termios

        # Writing modes from the background would change the terminal under another program.
        if self._before is not None and self._is_entered and not in_background(self.fileno()):
            with suppress(OSError, termios.error):  # the terminal is gone
                termios.tcsetattr(self.fileno(), termios.TCSADRAIN, self._before)
        self._is_entered = False

    def _enter_modes(self, before: list[Any]) -> None:
        import termios

        self._is_entered = True
        # Ctrl-S, Ctrl-Q and Enter must arrive as they are.
        keys = termios.IXON | termios.IXOFF | termios.ICRNL | termios.INLCR | termios.IGNCR
        # Ctrl-C must reach the editor: as a signal it would make the terminal drop the keys before it.
        key_by_key(self.fileno(), before, without_input=keys, without_local=termios.IEXTEN, without=termios.VINTR)

    def read_keys(self) -> list[KeyPress]:
        # Reading in the background stops the process.
        return [] if in_background(self.fileno()) else super().read_keys()


@contextmanager
def _stops_in_order(step_aside: Callable[[], None], keys: _Keys) -> Iterator[None]:
    """Restore the terminal for the shell on Ctrl-Z."""
    loop = asyncio.get_running_loop()

    def stop() -> None:
        step_aside()
        keys.leave_modes()
        # The handler of the loop catches the signal, so it is removed for the one that really stops.
        loop.remove_signal_handler(signal.SIGTSTP)
        os.kill(os.getpid(), signal.SIGTSTP)  # execution continues here on SIGCONT
        loop.add_signal_handler(signal.SIGTSTP, stop)

    try:
        loop.add_signal_handler(signal.SIGTSTP, stop)
    except (RuntimeError, ValueError):  # not in the main thread, where no key can stop the process
        yield
        return
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGTSTP)


_MOST_ROWS: Final = 5
_LOOK_SECONDS: Final = 0.2
"""Interval for redrawing after a resize or a return from the background."""
_ANSWERS: Final = InMemoryHistory()
"""History of answers, for this process only: an answer may be confidential and is rarely repeated."""


async def read_line(console: Console, fd: int, prompt: str, *, secret: bool) -> str:
    """Read a line from the terminal with this descriptor.

    Raises:
        EOFError: Ctrl-D was typed on an empty line, or the terminal is gone.
    """
    region, ended, indent = Region(console), anyio.Event(), cell_len(prompt)
    is_over = False

    def end() -> None:
        nonlocal is_over
        is_over = True
        ended.set()

    def draw() -> None:
        text, cursor = ("", 0) if secret else (editor.text, editor.cursor)
        # As wide as `Region` shows a line.
        rows, (row, column) = line_rows(text, cursor, width=console.width - 1 - indent, most=_MOST_ROWS)
        region.draw(_behind(prompt, rows), (row, indent + column))

    keys = [Key("enter", ended.set), Key("c-d", end, on_empty_line=True)]
    editor = LineEditor(fd, keys, draw, None if secret else _ANSWERS)
    try:
        async with editor.reading(end, region.erase):
            draw()
            while not ended.is_set():
                # Looks again without an event: neither a resize nor a return to the foreground wakes the reader.
                with anyio.move_on_after(_LOOK_SECONDS):
                    await ended.wait()
                if editor.has_keys:  # may have been in the background
                    draw()
    finally:
        region.erase()
    text = editor.take(keep=not secret)
    region.print([Text.assemble((prompt, "bold"), "" if secret else one_line(text))])
    if is_over:
        raise EOFError
    return text


def _behind(prompt: str, rows: list[str]) -> list[Text]:
    return [
        Text.assemble((" " * cell_len(prompt) if number else prompt, "bold"), row) for number, row in enumerate(rows)
    ]
