"""The line framer against the simplest thing that could work: keep all bytes, split them at the end."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from helmsman.base.line_framer import LineFramer
from helmsman.errors import EngineProtocolError
from tests.fuzz.effort import fuzzed

CHUNKS = st.lists(
    st.binary(max_size=40) | st.lists(st.sampled_from([b"\n", b"\r\n", b" ", b"{}", b"\x00", b"\xff"])).map(b"".join),
    max_size=20,
)


def naive_lines(stream: bytes) -> list[bytes]:
    """All complete lines that are not blank."""
    return [line for line in stream.split(b"\n")[:-1] if line.strip()]


@fuzzed(600)
@given(CHUNKS)
def test_the_lines_are_those_of_the_whole_stream(chunks: list[bytes]) -> None:
    framer = LineFramer()
    assert [line for chunk in chunks for line in framer.feed(chunk)] == naive_lines(b"".join(chunks))


@fuzzed(600)
@given(CHUNKS, st.integers(1, 30))
def test_a_limit_costs_no_line_before_the_one_that_is_too_long(chunks: list[bytes], limit: int) -> None:
    framer = LineFramer(limit)
    stream = b"".join(chunks)
    found: list[bytes] = []
    try:
        for number, chunk in enumerate(chunks):
            found += framer.feed(chunk)
            assert found == naive_lines(b"".join(chunks[: number + 1]))
    except EngineProtocolError:
        assert max(map(len, stream.split(b"\n"))) > limit
        assert found == naive_lines(stream)[: len(found)]
