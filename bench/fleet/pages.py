"""Where in the documentation what was measured of a fleet is, and how it gets there."""

from __future__ import annotations

from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"
BEGIN, END = "<!-- measured of a fleet -->\n", "<!-- end of what is measured of a fleet -->\n"


def kept(page: str) -> str:
    """What is between the marks of a page, with them."""
    return f"{BEGIN}{page.partition(BEGIN)[2].partition(END)[0]}{END}"


def put(page: Path, told: str) -> None:
    """Put what was measured between the marks."""
    text = page.read_text(encoding="utf-8")
    head, begin, rest = text.partition(BEGIN)
    assert begin, f"{page} has no place for it."
    page.write_text(f"{head}{BEGIN}\n{told.strip()}\n\n{END}{rest.partition(END)[2]}", encoding="utf-8")
    print(f"It is in {page}.")
