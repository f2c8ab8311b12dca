from __future__ import annotations

import functools
import sys
import unicodedata
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helmsman.base.sanitize import exact, in_sight, named, one_line, plain_output, shell_script, visible


@functools.cache
def every() -> str:
    """Every character there is."""
    return "".join(map(chr, range(sys.maxunicode + 1)))


@pytest.mark.parametrize(
    ("hostile", "shown"),
    [
        ("rm -rf /\x1b[2K\x1b[1Gls", "rm -rf /\\x1b[2K\\x1b[1Gls"),
        ("rm -rf /\rls      ", "rm -rf /\\x0dls      "),
        ("ls\x08\x08rm", "ls\\x08\\x08rm"),
        ("a\u202eb", "a\\u202eb"),
        ("pass\u200bword", "pass\\u200bword"),
        ("x\x9b31m", "x\\x9b31m"),
        ("tag\U000e0041", "tag\\U000e0041"),
        ("half \ud800", "half \\ud800"),
        ("not\u200djoined", "not\\u200djoined"),
    ],
)
def test_terminal_controls_are_escaped(hostile: str, shown: str) -> None:
    assert visible(hostile) == shown


@pytest.mark.parametrize(
    "text",
    [
        "plain\n\ttext",
        "Grüße, 世界",
        "👩\u200d💻 and ✔\ufe0f",
        "1\ufe0f\u20e3",
        "e\u0301 שָׁלוֹם नमस्ते ไม่ได้",
        "🏳\ufe0f\u200d🌈",
    ],
)
def test_honest_text_stays_as_it_is(text: str) -> None:
    assert visible(text) == text


def test_one_line_has_no_line_breaks() -> None:
    assert one_line("  a\n b\tc\x1b ") == "a b c\\x1b"


@pytest.mark.parametrize(
    ("output", "shown"),
    [
        ("\x1b[1;32mok\x1b[0m", "ok"),
        ("\x1b]0;title\x07text\x1b]8;;http://x\x1b\\link", "textlink"),
        ("10%\r50%\r100%\ndone\r\n", "100%\ndone\n"),
        ("b\x08bo\x08ol\x08ld\x08d", "bold"),
        ("\x1b(Btext\x1b", "text\\x1b"),
        ("bell\x07", "bell\\x07"),
    ],
)
def test_output_is_shown_as_it_would_stand_on_a_terminal(output: str, shown: str) -> None:
    assert plain_output(output) == shown


@pytest.mark.parametrize(
    ("command", "script"),
    [
        ("/bin/bash -lc 'git pull && make'", "git pull && make"),
        ('/bin/zsh -c "ls -l"', "ls -l"),
        ("bash -lc ls -l", "bash -lc ls -l"),
        ("bash script.sh", "bash script.sh"),
        ("bash -lc 'unclosed", "bash -lc 'unclosed"),
        ("python -c 'print(1)'", "python -c 'print(1)'"),
        ("", ""),
    ],
)
def test_only_what_a_shell_is_told_to_run_is_shown(command: str, script: str) -> None:
    assert shell_script(command) == script


@given(st.text(st.characters(exclude_categories=())))
def test_no_text_whatever_reaches_the_terminal_with_controls_in_it(text: str) -> None:
    for shown in (visible(text), plain_output(text), one_line(text)):
        assert not [
            char for char in shown if unicodedata.category(char) in ("Cc", "Cs", "Zl", "Zp") and char not in "\n\t"
        ]
        assert not set(shown) & set("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u200e\u200f")
        shown.encode("utf-8")


def test_unicode_categories_decide_which_characters_are_escaped() -> None:
    """Every character there is: controls, formats, halves, what is private or not assigned, and blanks but the space."""
    unseen = [char for char in every() if unicodedata.category(char)[0] in "CZ" and char not in " \n\t"]
    for several in batched(unseen, 1000):
        assert not set(visible("a".join(several))) & set(several)


def batched(chars: list[str], size: int) -> Iterator[list[str]]:
    """One call for many of them: there are a million."""
    return (chars[start : start + size] for start in range(0, len(chars), size))


@functools.cache
def names() -> dict[str, str]:
    return {char: unicodedata.name(char, "") for char in every()}


WITHOUT_INK = (
    "SEONG FILLER",
    "HANGUL FILLER",
    "SCRIPT FILLER",
    "VARIATION SELECTOR",
    "PATTERN BLANK",
    "GRAPHEME JOINER",
)


@pytest.mark.parametrize("word", [*WITHOUT_INK, "VOWEL INHERENT", "NULL NOTEHEAD"])
def test_letters_marks_and_symbols_without_ink_are_written_out(word: str) -> None:
    found = [char for char, name in names().items() if word in name]
    assert found
    assert all(visible(f"a{char}b") != f"a{char}b" for char in found)


def test_bytes_hidden_in_selectors_are_seen() -> None:
    hidden = "".join(chr(0xE0100 + byte) for byte in b"rm -rf")
    assert visible("🙂" + hidden).count("\\U") == 6
    assert visible("✔\ufe0f\ufe0f") == "✔\ufe0f\\ufe0f"
    assert visible("ls\ufe0f") == "ls\\ufe0f"


def test_a_tower_of_marks_covers_nothing() -> None:
    assert visible("a" + "\u0301" * 5) == "a" + "\u0301" * 3 + "\\u0301\\u0301"
    assert visible("\u0301a") == "\\u0301a"
    assert visible(": \u0338") == ": \\u0338"


def test_carriage_returns_are_seen() -> None:
    assert visible("a\r\nb\r") == "a\\x0d\nb\\x0d"


def test_exact_tells_every_blank() -> None:
    assert exact("a\n\tb ") == "a\\n\\tb\\x20"
    assert exact("a" + " " * 500 + "rm") == "a\\x20×500rm"
    assert in_sight("+" + "\t" * 50 + "rm") == "+\\x09×50rm"


@pytest.mark.parametrize(
    ("name", "shown"), [("/a/b", "/a/b"), ("/a b", '"/a b"'), ("", '""'), ('a"b', '"a\\"b"'), ("a\nb", "a\\nb")]
)
def test_a_name_among_words_ends_where_it_ends(name: str, shown: str) -> None:
    assert named(name) == shown
