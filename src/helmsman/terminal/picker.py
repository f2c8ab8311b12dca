"""Let the user pick one of several lines on the terminal, by typing parts of it."""

from __future__ import annotations

import re
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from helmsman.base.sanitize import one_line
from helmsman.terminal.keyboard import terminal_keys

if TYPE_CHECKING:
    from collections.abc import Sequence

    from prompt_toolkit.formatted_text import StyleAndTextTuples
    from prompt_toolkit.key_binding import KeyPressEvent

ValueT = TypeVar("ValueT")

_ROWS: Final = 10
_ESCAPE_SECONDS: Final = 0.1


@dataclass(frozen=True)
class PickerLine(Generic[ValueT]):
    """Line to pick, with a remark in front of its text. The remark may be padded, so that texts stand below each other."""

    value: ValueT
    remark: str
    text: str

    @property
    def line(self) -> str:
        return f"{self.remark}  {one_line(self.text)}" if self.remark else one_line(self.text)


def fuzzy(choices: Sequence[PickerLine[ValueT]], typed: str) -> list[PickerLine[ValueT]]:
    """Return the choices that contain the characters of each typed word in order: first those with a word that begins so,
    then those with the characters together.
    """
    words = typed.casefold().split()
    # Letters in order with gaps: "sp" finds "session picker".
    patterns = [re.compile(".*?".join(map(re.escape, word))) for word in words]

    def distance(line: str) -> int | None:
        total = 0
        for word, pattern in zip(words, patterns, strict=True):
            found = pattern.search(line)
            if found is None:
                return None
            if word in line:
                # Smaller is better: beginning of a word, inside a word, scattered letters by their spread.
                total += 0 if re.search(rf"\b{re.escape(word)}", line) else 1
            else:
                total += 2 + len(found[0]) - len(word)
        return total

    ranked = [(distance(one.line.casefold()), number) for number, one in enumerate(choices)]
    return [choices[number] for far, number in sorted((far, number) for far, number in ranked if far is not None)]


async def pick(choices: Sequence[PickerLine[ValueT]], heading: str) -> ValueT | None:
    """Return the picked value, or None if the user leaves. Requires a terminal (`helmsman.terminal.has_terminal`)."""
    import os

    from prompt_toolkit.application import Application
    from prompt_toolkit.buffer import Buffer
    from prompt_toolkit.input.vt100 import Vt100Input
    from prompt_toolkit.key_binding import KeyBindings
    from prompt_toolkit.layout import BufferControl, FormattedTextControl, HSplit, Layout, VSplit, Window
    from prompt_toolkit.output import create_output

    at = 0

    def moved(_: object) -> None:
        nonlocal at
        # The match at the cursor may be gone, so it goes back to the best one.
        at = 0

    typed = Buffer(multiline=False, on_text_changed=moved)

    def found() -> list[PickerLine[ValueT]]:
        return fuzzy(choices, typed.text)

    def rows() -> StyleAndTextTuples:
        shown = found()
        # Scroll only as far as needed to keep the line in view.
        begin = max(0, min(at - _ROWS + 1, len(shown) - _ROWS))
        lines: StyleAndTextTuples = []
        for number, one in enumerate(shown[begin : begin + _ROWS], begin):
            is_at = number == at
            lines.append(("bold" if is_at else "", f"{'›' if is_at else ' '} {one.line}\n"))
        below = f"  {len(shown)} of {len(choices)}. Type to search, Enter picks, Esc leaves."
        return [*lines, ("class:dim fg:ansibrightblack", below)]

    keys = KeyBindings()

    def go(by: int) -> None:
        nonlocal at
        at = max(0, min(at + by, len(found()) - 1))

    for key in ("down", "c-n", "tab"):
        keys.add(key)(lambda _: go(1))
    for key in ("up", "c-p", "s-tab"):
        keys.add(key)(lambda _: go(-1))

    @keys.add("enter")
    def _(event: KeyPressEvent) -> None:
        if shown := found():
            event.app.exit(result=shown[at].value)

    for key in ("escape", "c-c", "c-d"):
        keys.add(key)(lambda event: event.app.exit(result=None))

    with ExitStack() as stack:
        fd = terminal_keys(stack)
        if fd is None:
            return None
        # A duplicate, because the input closes its file.
        file = stack.enter_context(os.fdopen(os.dup(fd), encoding="utf-8", errors="replace"))
        line = VSplit([Window(FormattedTextControl("› "), width=2), Window(BufferControl(typed), height=1)])
        application = Application[ValueT | None](
            Layout(HSplit([Window(FormattedTextControl(heading), height=1), line, Window(FormattedTextControl(rows))])),
            key_bindings=keys,
            input=Vt100Input(file),
            # stderr: the output of a command with a picker stays usable in a pipe.
            output=create_output(stdout=sys.stderr),
            # The list goes away, and the command's own output takes its place.
            erase_when_done=True,
        )
        application.ttimeoutlen = _ESCAPE_SECONDS
        return await application.run_async()
