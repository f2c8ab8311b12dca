"""Tests that a terminal gets only text and colours of another machine."""

from __future__ import annotations

import pytest

from helmsman.base.terminal_text import TerminalFilter


@pytest.mark.parametrize(
    "hostile",
    [
        b"\x1b]52;c;cm0gLXJmIH4=\x07",  # the clipboard
        b"\x1b]0;title\x1b\\",
        b"\x1b]8;;file:///etc\x1b\\link\x1b]8;;\x1b\\",
        b"\x1b[2J\x1b[H",
        b"\x1b[6n",  # answered on stdin
        b'\x1bP$q"p\x1b\\',
        b"\x1bc",
        b"\x1b[?1049h",
        b"\x1b[10A",
        b"\x1b[8mhidden",
        b"\x1b[38;5;1;8mhidden",
        b"\x1b[5mblinking",
        b"\x9b2J",
        "\x9b2J".encode(),
        b"over\rwritten",
        b"\x07\x08\x0b\x0c\x0e\x7f",
        "left\u202eright".encode(),
        b"\x1b[1;" + b"1;" * 100 + b"m",
    ],
)
@pytest.mark.parametrize("size", [1, 3, 1000])
def test_no_terminal_obeys_another_machine(hostile: bytes, size: int) -> None:
    stream = TerminalFilter()
    pieces = [stream.feed(hostile[place : place + size]) for place in range(0, len(hostile), size)]
    shown = (b"".join(pieces) + stream.finish()).replace(b"\x1b[0m", b"").decode()
    assert all(char.isprintable() for char in shown), shown


def test_text_colours_and_lines_stay_however_they_are_cut() -> None:
    text = "\x1b[1;31mrot\x1b[0m grün\t🎉\n\x1b[38;5;208mx\x1b[48;2;1;2;3my\x1b[m\n".encode()
    stream = TerminalFilter()
    assert b"".join(stream.feed(bytes([one])) for one in text) + stream.finish() == text


def test_a_colour_does_not_outlive_what_was_shown() -> None:
    assert TerminalFilter.whole(b"\x1b[31mred") == b"\x1b[31mred\x1b[0m"
