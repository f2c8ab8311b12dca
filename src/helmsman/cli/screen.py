"""A terminal on which lines scroll by above a small part that changes: what is being written, and how far the work is.

The changing part is drawn from the event loop, never from a thread, so it may look at anything. It steps aside while
somebody else uses the terminal (`paused`); lines that come meanwhile are kept.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Self

import anyio
from rich.live import Live
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from rich.console import Console

_FRAME_SECONDS: Final = 0.1


class Screen:
    """Lines for a console; with `changing`, a part below them that is drawn again and again."""

    def __init__(self, console: Console, changing: Callable[[], Text] | None) -> None:
        self._console = console
        self._kept: list[Text] = []
        self._pauses = 0
        self._live: Live | None = None
        if changing is not None:
            self._live = Live(
                console=console,
                auto_refresh=False,
                transient=True,
                redirect_stdout=False,
                redirect_stderr=False,
                get_renderable=changing,
            )

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Take the changing part away, for good."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def print(self, lines: Sequence[Text]) -> None:
        if self._pauses:
            self._kept += lines
        elif lines:
            if self._live is not None and self._live.is_started:
                self._live.refresh()  # what is given out now is not drawn again below itself
            self._console.print(Text("\n").join(lines), soft_wrap=True)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leave the terminal to somebody else for the length of the block."""
        self._pauses += 1
        if self._live is not None:
            self._live.stop()
        try:
            yield
        finally:
            self._pauses -= 1
            if not self._pauses:
                kept, self._kept = self._kept, []
                self.print(kept)
                if self._live is not None:
                    self._live.start()

    async def animate(self) -> None:
        """Keep drawing; runs until it is cancelled."""
        while self._live is not None:
            if not self._pauses:
                self._live.refresh()
            await anyio.sleep(_FRAME_SECONDS)
