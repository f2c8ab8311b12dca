"""The picker: which lines match what is typed, in which order."""

from __future__ import annotations

import pytest

from helmsman.terminal.picker import PickerLine, fuzzy

LINES = ("Fix the parser", "Add a test", "Profile the importer", "Parse faster")


@pytest.mark.parametrize(
    ("typed", "found"),
    [
        ("", LINES),
        ("parse", ("Fix the parser", "Parse faster")),
        ("the p", ("Fix the parser", "Profile the importer")),
        ("ptr", ("Profile the importer", "Parse faster")),
        ("nothing like it", ()),
    ],
)
def test_lines_are_found_by_parts_of_their_words(typed: str, found: tuple[str, ...]) -> None:
    choices = [PickerLine(line, "", line) for line in LINES]
    picked = [one.value for one in fuzzy(choices, typed)]
    assert sorted(picked) == sorted(found)
    if typed == "":
        assert tuple(picked) == LINES


def test_beginnings_of_words_come_before_other_parts_of_words() -> None:
    choices = [PickerLine(name, "", name) for name in ("Deploy to staging", "Tag the release")]
    assert [line.value for line in fuzzy(choices, "tag")] == ["Tag the release", "Deploy to staging"]


def test_whole_words_come_before_scattered_letters() -> None:
    choices = [PickerLine("far", "", "a t e s t"), PickerLine("near", "", "the test")]
    assert [one.value for one in fuzzy(choices, "test")] == ["near", "far"]


def test_a_line_shows_no_control_characters() -> None:
    assert "\x1b" not in PickerLine(1, "abc", "red \x1b[31m\nalert").line
