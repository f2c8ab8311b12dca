"""docs/security.md names tests: each of them exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
NAMED = sorted(set(re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", PAGE)))


def test_the_page_names_tests() -> None:
    assert len(NAMED) > 30


@pytest.mark.parametrize(("file", "name"), NAMED)
def test_a_test_that_the_page_names_exists(file: str, name: str) -> None:
    source = (ROOT / file).read_text(encoding="utf-8")
    assert "def test_" in source
    assert not name or re.search(rf"^(?:async )?def {name}\(", source, re.MULTILINE)


def test_every_file_of_security_tests_is_on_the_page() -> None:
    for file in Path(__file__).parent.glob("test_*.py"):
        assert f"tests/security/{file.name}" in PAGE
