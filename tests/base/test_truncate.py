"""Tests of truncating texts with a mark."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helmsman.base.truncate import ANSWER_CHARS, LINE_CHARS, TEXT_CHARS, cut, last_lines, shortened, within


def test_short_text_is_not_truncated() -> None:
    value = {"a": ["x" * TEXT_CHARS, {"b": None}], "n": 3}
    assert cut("x" * 10, 10) == "x" * 10
    assert within(value) is value


def test_a_long_text_keeps_its_beginning_and_its_end_and_says_what_is_missing() -> None:
    text = cut("begin\n" + "x" * 30_000_000 + "\nend", 100, "all of it: elsewhere")
    assert text.startswith("begin\n")
    assert text.endswith("\nend")
    assert "29999910 characters left out (all of it: elsewhere)" in text
    assert len(text) < 200


def test_one_line_stays_one_line() -> None:
    assert "\n" not in cut("x" * 300, 100)


def test_the_last_lines_have_a_size_and_not_only_a_number() -> None:
    assert last_lines(["a", "b", "c"], 2) == ["b", "c"]
    assert last_lines(["a"], 0) == []
    (line,) = last_lines(["x" * 1_000_000], 50)
    assert len(line) < LINE_CHARS + 100
    many = last_lines(["x" * LINE_CHARS] * 1000, 1000)
    assert sum(map(len, many)) < 40_000
    assert many[0].startswith("… ")
    assert many[-1] == "x" * LINE_CHARS


def test_every_file_stays_named_where_only_a_text_is_too_long() -> None:
    value = {"diff": "x" * 10_000_000, "files": [{"path": f"file{number}"} for number in range(1000)]}
    shown = within(value)
    assert shown["files"] == value["files"]
    assert len(shown["diff"]) < TEXT_CHARS + 200


@pytest.mark.parametrize(
    "value",
    [
        {"many": ["x" * 50_000] * 500},
        {"many": [{"a": "y" * 1000}] * 10_000},
        {"keys": {"k" * 50_000 + str(number): 1 for number in range(100)}},
        ["z" * 30_000_000],
        {"deep": [[[[[["x" * 300_000] * 5] * 5] * 5]]]},
    ],
    ids=["texts", "objects", "keys", "one", "deep"],
)
def test_an_answer_has_a_size_whatever_is_in_it(value: object) -> None:
    assert len(json.dumps(within(value))) <= ANSWER_CHARS


@given(
    st.recursive(
        st.text() | st.integers() | st.none(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=20,
    ),
    st.integers(1, 50),
)
def test_any_data_can_be_cut(value: object, limit: int) -> None:
    shown, missing = shortened(value, limit)
    json.dumps(shown)
    assert missing >= 0
    assert type(within(value, 400)) is type(value)
