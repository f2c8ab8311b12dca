"""tests/security/evidence.toml, from which docs/appendix/security.md is made, names tests that exist."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from tests.docs.pages import read

ROOT = Path(__file__).parents[2]
SECTIONS: dict[str, list[str]] = tomllib.loads(read(Path(__file__).with_name("evidence.toml")))
NAMED = sorted({entry for entries in SECTIONS.values() for entry in entries})


def test_the_page_has_a_section_for_each_heading() -> None:
    page = read(ROOT / "docs" / "appendix" / "security.md")
    assert re.findall(r"^## (.+)$", page, re.MULTILINE) == list(SECTIONS)


@pytest.mark.parametrize("entry", NAMED)
def test_a_named_test_exists(entry: str) -> None:
    file, _, name = entry.partition("::")
    source = (ROOT / file).read_text(encoding="utf-8")
    assert "def test_" in source
    assert not name or re.search(rf"^(?:async )?def {name}\(", source, re.MULTILINE)


def test_every_file_of_security_tests_is_named() -> None:
    for file in Path(__file__).parent.glob("test_*.py"):
        assert file == Path(__file__) or f"tests/security/{file.name}" in {entry.partition("::")[0] for entry in NAMED}
