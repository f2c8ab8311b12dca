"""Insert measurements of a fleet into the documentation."""

from __future__ import annotations

from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"
BEGIN, END = "<!-- measured of a fleet -->\n", "<!-- end of what is measured of a fleet -->\n"


def kept(page: str) -> str:
    """Return the text between the marks of a page, with the marks."""
    return f"{BEGIN}{page.partition(BEGIN)[2].partition(END)[0]}{END}"


def put(page: Path, told: str) -> None:
    """Replace the text between the marks."""
    text = page.read_text(encoding="utf-8")
    head, begin, rest = text.partition(BEGIN)
    assert begin, f"{page} has no place for it."
    page.write_text(f"{head}{BEGIN}\n{told.strip()}\n\n{END}{rest.partition(END)[2]}", encoding="utf-8")
    print(f"It is in {page}.")
