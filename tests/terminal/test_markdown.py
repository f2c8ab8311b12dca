"""Markdown on a terminal: what it means, in lines that fit, with nothing lost and nothing that the terminal obeys."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from helmsman.terminal.markdown import finished, markdown_lines

ANSWER = """# The *port*

It is read from `config.py`, see [the page](https://example.org/port).
Twice, even.

1. Open it
   - and look
9. Close it

| file | lines |
| :--- | ---: |
| 漢字.py | 12 |

```python
def port() -> int:
    return 80  # as ever
```

> Said before.
"""


def _console(width: int = 60, *, no_color: bool = False) -> Console:
    return Console(
        width=width,
        file=io.StringIO(),
        force_terminal=True,
        color_system="standard",
        no_color=no_color,
        highlight=False,
    )


def _plain(text: str, width: int = 60, **options: bool) -> list[str]:
    return [line.plain for line in markdown_lines(_console(width, **options), text)]


def _drawn(text: str, *, no_color: bool = False) -> str:
    console = _console(no_color=no_color)
    with console.capture() as captured:
        console.print(*markdown_lines(console, text), sep="\n", soft_wrap=True)
    return captured.get()


def test_an_answer_is_shown_as_what_it_means() -> None:
    assert _plain(ANSWER) == [
        "The port",
        "",
        "It is read from config.py, see the page",
        "(https://example.org/port).",
        "Twice, even.",
        "",
        "1. Open it",
        "   - and look",
        "9. Close it",
        "",
        "file      lines",
        "───────────────",
        "漢字.py      12",
        "",
        "  def port() -> int:",
        "      return 80  # as ever",
        "",
        "│ Said before.",
    ]


def test_code_has_colours_and_words_their_weight() -> None:
    drawn = _drawn(ANSWER)
    assert "\x1b[1;4mThe \x1b[0m" in drawn
    assert "\x1b[94" in drawn.partition("def")[0][-10:]
    assert "\x1b[36mconfig.py\x1b[0m" in drawn
    plain = _drawn(ANSWER, no_color=True)
    assert "`config.py`" in plain
    assert not any(f"\x1b[{colour}" in plain for colour in (36, 94, 33, 31))


def test_markup_and_control_characters_are_shown_and_never_obeyed() -> None:
    text = "List<String> <b>x</b>\n\n[1]: http://elsewhere.org\n\n\x1b[2J &#8238;evil ![cat](http://img.org/c.png)"
    assert _plain(text) == [
        "List<String> <b>x</b>",
        "",
        "[1]: http://elsewhere.org",
        "",
        "\\x1b[2J \\u202eevil cat (http://img.org/c.png)",
    ]
    assert _plain("see <https://example.org> [https://a.org](https://a.org)") == [
        "see https://example.org https://a.org"
    ]


@given(st.text(st.sampled_from("ab漢👩 \n\t`*_-#>|[]()!<&;1.~=\x1b\u202e\\:"), max_size=200), st.integers(12, 90))
def test_any_text_fits_and_controls_nothing(text: str, width: int) -> None:
    for line in markdown_lines(_console(width), text):
        assert line.cell_len <= width
        assert not set(line.plain) & set("\x1b\u202e\n")


@pytest.mark.parametrize("step", [1, 7])
def test_blocks_come_out_one_by_one_and_make_the_same_lines(step: int) -> None:
    given, shown, seen = 0, list[str](), 0
    for end in range(step, len(ANSWER) + step, step):
        written = ANSWER[given:end]
        ready = finished(written, seen)
        seen = 0 if ready else written.rfind("\n") + 1
        if ready:
            shown += [*([""] if shown else []), *_plain(written[:ready])]
            given += ready
    assert shown == _plain(ANSWER)[: len(shown)]
    assert shown[-3:] == _plain(ANSWER)[-5:-2]
    assert [*shown, "", *_plain(ANSWER[given:])] == _plain(ANSWER)
