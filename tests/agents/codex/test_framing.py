"""Bytes to lines, whatever the chunks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helmsman.base.line_framer import LineFramer
from helmsman.errors import EngineProtocolError


@given(st.binary(max_size=300), st.lists(st.integers(1, 20), min_size=1))
def test_lines_do_not_depend_on_how_the_bytes_are_cut(data: bytes, sizes: list[int]) -> None:
    framer = LineFramer()
    got: list[bytes] = []
    position = 0
    step = 0
    while position < len(data):
        size = sizes[step % len(sizes)]
        got += framer.feed(data[position : position + size])
        position += size
        step += 1
    complete, _, _ = data.rpartition(b"\n")
    assert got == [line for line in complete.split(b"\n") if line.strip()]


def test_a_line_beyond_the_limit_is_an_error_not_a_crash() -> None:
    framer = LineFramer(limit=10)
    assert framer.feed(b"1234567890\n") == [b"1234567890"]
    framer.feed(b"123456")
    with pytest.raises(EngineProtocolError, match="more than 10 bytes"):
        framer.feed(b"78901")


def test_a_line_beyond_the_limit_comes_to_nothing_where_that_is_wanted() -> None:
    framer = LineFramer(limit=10, drops_long=True)
    assert framer.feed(b"123456") == []
    assert framer.feed(b"78901") == []
    assert framer.feed(b"2345\nnext\nand") == [b"next"]
    assert framer.feed(b" on\n") == [b"and on"]
