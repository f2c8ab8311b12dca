"""The pages are short and spelled correctly, and pages and code read as plain technical English."""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.docs.pages import ROOT, name_of, read

GENERATED: Final = ("commands.md", "reference.md", "events.md", "compatibility.md")
PAGES: Final = sorted(
    [
        ROOT / "README.md",
        ROOT / "CHANGELOG.md",
        *(page for page in (ROOT / "docs").glob("*.md") if page.name not in GENERATED),
    ]
)
GUIDE_WORDS: Final = 620
BACKGROUND_WORDS: Final = 1200
LARGER: Final = dict.fromkeys(
    (
        "codex-behaviour", "faq", "how-it-works", "mcp", "permissions", "security",
        "troubleshooting", "CHANGELOG",
    ),
    BACKGROUND_WORDS,
) | {"architecture": 1500}  # fmt: skip
ALL_WORDS: Final = 30_000

MARKERS: Final = re.compile(
    r"\b(nobody|somebody|everybody|whoever|whom|whose|whichever|is told|are told|was told|told of|hears? of|heard of|"
    r"what is|what it|what was|what an?|what comes|of its own|of their own|of ours|of theirs|any more|comes of|came of|"
    r"goes on|go on|went on|written down|at once|beside it|there is none|that is none|is none of|by itself|as well as|"
    r"meanwhile|be it|in the place of|stands? for|so long|so many|so much)\b",
    re.IGNORECASE,
)
"""Turns of phrase that make sentences hard to read."""
CEILING_OF_PAGES: Final = 5.0
CEILING_OF_CODE: Final = 2.0
"""Markers per 1,000 words. Lower them when they can be lowered; never raise them."""


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_page_is_short(page: Path) -> None:
    assert _count(read(page)) <= LARGER.get(page.stem, GUIDE_WORDS)


def test_all_pages_together_are_short() -> None:
    assert sum(len(read(page).split()) for page in PAGES) <= ALL_WORDS


def test_pages_are_spelled_correctly() -> None:
    words = ROOT / "tests" / "docs" / "words.txt"
    skipped = "*.svg,*.png,compatibility.md"
    command = [sys.executable, "-m", "codespell_lib", f"--ignore-words={words}", f"--skip={skipped}"]
    done = subprocess.run(
        [*command, "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "docs"],
        cwd=ROOT, capture_output=True, encoding="utf-8", timeout=60, check=False,
    )  # fmt: skip
    assert not done.stdout + done.stderr


def test_pages_are_in_plain_english() -> None:
    texts = [re.sub(r"```.*?```", "", read(page), flags=re.DOTALL) for page in PAGES]
    assert _markers(texts) <= CEILING_OF_PAGES


def test_docstrings_and_comments_are_in_plain_english() -> None:
    texts = [text for path in (ROOT / "src" / "helmsman").rglob("*.py") for text in _prose(read(path))]
    assert _markers(texts) <= CEILING_OF_CODE


def _count(text: str) -> int:
    """Return the number of words; table rules and lone punctuation are none."""
    return sum(any(letter.isalnum() for letter in word) for word in text.split())


def _markers(texts: list[str]) -> float:
    """Return the number of markers per 1,000 words."""
    flat = [" ".join(text.split()) for text in texts]
    return 1000 * sum(len(MARKERS.findall(text)) for text in flat) / max(sum(len(text.split()) for text in flat), 1)


def _prose(source: str) -> Iterator[str]:
    """Yield the docstrings and comments of a module."""
    for node in ast.walk(ast.parse(source)):
        body = getattr(node, "body", None)
        for statement in body if isinstance(body, list) else ():
            if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
                value = statement.value.value
                if isinstance(value, str):
                    yield value
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.string.lstrip("# ")
