"""The pages of the documentation, taken apart: links, headings, and the commands in their code blocks."""

from __future__ import annotations

import re
import shlex
import textwrap
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "packaging/mcpb/README.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]

_BLOCK = re.compile(r"^(?P<fence> *```+)(?P<language>\w*)\n(?P<body>.*?)^(?P=fence)$", re.MULTILINE | re.DOTALL)
_INDENTED = re.compile(r"\n\n((?:    .*\n)+)")
_CODE = re.compile(r"`+[^`]+`+")
_LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ +(.+)$", re.MULTILINE)
_INLINE = re.compile(r"`((?:helmsman|codex-helmsman) [^`\n]+|make [a-z-]+)`")
_PLACEHOLDER = re.compile(r"…|\[|<|\b[A-Z]{2,}\b(?!=)|\|")
"""Inline commands that name their parts (`helmsman run PROMPT`) are not for typing."""


def read(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def links(page: Path) -> set[str]:
    """Where the page's links lead, pictures too."""
    return set(_LINK.findall(_CODE.sub("", _BLOCK.sub("", read(page)))))


def anchors(page: Path) -> set[str]:
    """What its headings can be linked by, as GitHub makes it."""
    headings = _HEADING.findall(_BLOCK.sub("", read(page)))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def blocks(page: Path, *languages: str) -> list[str]:
    """Return the page's code blocks in these languages."""
    return [textwrap.dedent(block["body"]) for block in _BLOCK.finditer(read(page)) if block["language"] in languages]


def commands(page: Path) -> Iterator[list[str]]:
    """The words of every `helmsman` and `make` command on the page that a reader could type."""
    text = _BLOCK.sub("", read(page))
    for block in (*blocks(page, "sh", "console", "yaml"), *_INDENTED.findall(text)):
        for line in block.replace("\\\n", " ").splitlines():
            yield from _commands_in(line)
    for inline in _INLINE.findall(text):
        if not _PLACEHOLDER.search(inline):
            yield from _commands_in(inline)


def _commands_in(line: str) -> Iterator[list[str]]:
    """Each command of a shell line: at its beginning, after a variable, an operator or `--`."""
    words = _words(line)
    for index, word in enumerate(words):
        if word.removeprefix(".venv/bin/") in ("helmsman", "codex-helmsman") and _begins(words, index):
            yield [word, *_until_operator(words[index + 1 :])]
        elif word == "make" and index == 0:
            yield ["make", *_until_operator(words[1:])]


def _words(line: str) -> list[str]:
    try:
        lexer = shlex.shlex(line.strip().removeprefix("$ ").removeprefix("- run: "), posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        return list(lexer)
    except ValueError:  # prose, or a line of a longer script
        return []


def _begins(words: list[str], index: int) -> bool:
    before = words[:index]
    return all("=" in word for word in before) or before[-1] in ("|", "&&", "||", ";", "(", "do", "--")


def _until_operator(words: list[str]) -> list[str]:
    for index, word in enumerate(words):
        if word and set(word) <= set("|&;<>()"):
            return words[:index]
    return words
