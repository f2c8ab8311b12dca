"""A line edited with the keys of a terminal: prompt_toolkit reads and edits, and draws nothing.

Whoever has the screen shows the text (`helmsman.terminal.line_view`). Ctrl-C, Ctrl-\\ and Ctrl-Z stay signals, as without an
editor. What was typed for one line never ends up in another. Only imported where somebody types.
"""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import anyio
from prompt_toolkit.application import Application
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition
from prompt_toolkit.input.typeahead import clear_typeahead
from prompt_toolkit.input.vt100 import Vt100Input
from prompt_toolkit.key_binding import KeyBindings
from prompt_toolkit.keys import Keys
from prompt_toolkit.layout import BufferControl, Layout, Window
from prompt_toolkit.output import DummyOutput

from helmsman.terminal.keyboard import in_background, key_by_key

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Sequence

    from prompt_toolkit.history import History
    from prompt_toolkit.key_binding import KeyPress, KeyPressEvent

_ESCAPE_SECONDS: Final = 0.1
"""After Esc, before it is a key of its own and not the beginning of an arrow key."""
_SEQUENCE_SECONDS: Final = 0.4
"""Before a key that could be the beginning of more (Esc, or a letter that is a command by itself) is only that key."""


@dataclass(frozen=True, slots=True)
class Key:
    """What a key does. `on_empty_line`: only there. `alone`: only when nothing is typed right after it."""

    key: str
    do: Callable[[], None]
    on_empty_line: bool = False
    alone: bool = False


class LineEditor:
    """One line, on the terminal with this descriptor."""

    def __init__(
        self, fd: int, keys: Sequence[Key], on_change: Callable[[], None], history: History | None = None
    ) -> None:
        self._fd = fd
        self._buffer = Buffer(multiline=False, history=history, enable_history_search=True)
        self._buffer.on_text_changed += lambda _: on_change()
        self._buffer.on_cursor_position_changed += lambda _: on_change()
        self._bindings = self._bound(keys)
        self._keys: _Keys | None = None
        self._application: Application[None] | None = None

    @property
    def has_keys(self) -> bool:
        """Whether keys come here now; asked again and again, for a process that was in the background may come back."""
        return self._keys is not None and self._keys.keep_modes()

    def release(self) -> None:
        """Put the terminal back as it was, now, until somebody asks for keys again."""
        if self._keys is not None:
            self._keys.leave_modes()

    @property
    def text(self) -> str:
        return self._buffer.text

    @property
    def cursor(self) -> int:
        return self._buffer.cursor_position

    def take(self, *, keep: bool = True) -> str:
        """The text; the line is empty then. `keep` it for the arrow keys."""
        text = self._buffer.text
        if keep and text.strip():
            self._buffer.append_to_history()
        self._buffer.reset()
        if self._application is not None:
            self._application.invalidate()  # or it would load the history only after the next key
        return text

    def put(self, text: str) -> None:
        """Make this the text."""
        self._buffer.set_document(Document(text), bypass_readonly=True)

    @asynccontextmanager
    async def reading(self, on_end: Callable[[], None], step_aside: Callable[[], None]) -> AsyncIterator[None]:
        """Keys edit the line, for the length of the block.

        `on_end` is called if the terminal goes away, `step_aside` before Ctrl-Z stops the process: the shell writes next.
        """
        with os.fdopen(os.dup(self._fd), encoding="utf-8", errors="replace") as file:
            keys = self._keys = _Keys(file)
            application = self._application = Application[None](
                Layout(Window(BufferControl(self._buffer))),
                key_bindings=self._bindings,
                input=keys,
                output=DummyOutput(),
            )
            application.ttimeoutlen, application.timeoutlen = _ESCAPE_SECONDS, _SEQUENCE_SECONDS
            started = asyncio.Event()
            running = asyncio.ensure_future(
                application.run_async(started.set, set_exception_handler=False, handle_sigint=False)
            )
            running.add_done_callback(lambda done: None if done.cancelled() or done.exception() is None else on_end())
            try:
                await started.wait()
                with _stops_in_order(step_aside, keys):
                    yield
            finally:
                self._keys = self._application = None
                with anyio.CancelScope(shield=True):
                    if not started.is_set():
                        running.cancel()
                    elif not running.done():
                        application.exit()
                    await asyncio.wait([running])
                clear_typeahead(keys)

    def _bound(self, keys: Sequence[Key]) -> KeyBindings:
        bindings = KeyBindings()
        is_empty = Condition(lambda: not self._buffer.text)

        @bindings.add("escape", "enter")
        def _(_: KeyPressEvent) -> None:
            self._buffer.insert_text("\n")

        def bind(key: Key) -> None:
            given: dict[str, Any] = {"filter": is_empty} if key.on_empty_line else {}
            bindings.add(key.key, **given)(lambda _: key.do())
            if key.alone:
                bindings.add(key.key, "enter", **given)(lambda _: key.do())
                bindings.add(key.key, Keys.Any, **given)(self._insert_both)

        for key in keys:
            bind(key)
        return bindings

    def _insert_both(self, event: KeyPressEvent) -> None:
        first, second = event.key_sequence
        self._buffer.insert_text(first.data)
        event.key_processor.feed(second, first=True)


class _Keys(Vt100Input):
    """The keys of a terminal that sends signals, and that is read only while it is ours."""

    _before: list[Any] | None = None  # its modes before they were changed; none as long as nothing reads keys
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
        """Have keys come one by one, as long as the terminal is ours; whether it is."""
        if in_background(self.fileno()):
            self._is_entered = False  # whoever has it sets it as they need it
        elif self._before is not None and not self._is_entered:
            self._enter_modes(self._before)
        return self._is_entered

    def leave_modes(self) -> None:
        """Put the terminal back as it was."""
        import termios

        if self._before is not None and self._is_entered and not in_background(self.fileno()):
            with suppress(OSError, termios.error):  # a terminal that is gone
                termios.tcsetattr(self.fileno(), termios.TCSADRAIN, self._before)
        self._is_entered = False

    def _enter_modes(self, before: list[Any]) -> None:
        import termios

        self._is_entered = True
        keys = termios.IXON | termios.IXOFF | termios.ICRNL | termios.INLCR | termios.IGNCR
        key_by_key(self.fileno(), before, without_input=keys, without_local=termios.IEXTEN)

    def read_keys(self) -> list[KeyPress]:
        return [] if in_background(self.fileno()) else super().read_keys()


@contextmanager
def _stops_in_order(step_aside: Callable[[], None], keys: _Keys) -> Iterator[None]:
    """Ctrl-Z leaves the terminal to the shell as it was found."""
    loop = asyncio.get_running_loop()

    def stop() -> None:
        step_aside()
        keys.leave_modes()
        loop.remove_signal_handler(signal.SIGTSTP)
        os.kill(os.getpid(), signal.SIGTSTP)  # goes on here when somebody continues it
        loop.add_signal_handler(signal.SIGTSTP, stop)

    try:
        loop.add_signal_handler(signal.SIGTSTP, stop)
    except (RuntimeError, ValueError):  # not in the main thread: nobody stops it there with a key
        yield
        return
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGTSTP)
