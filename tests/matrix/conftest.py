"""What the stories of the matrix share, and the record from which docs/compatibility.md is made."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from helmsman.errors import HelmsmanError

RECORDS = Path(__file__).parent.parent.parent / ".cache" / "matrix"


@dataclass
class Verdict:
    """What a version can do of a story: all of it, or not, with the error a user gets."""

    refusal: str | None = None

    def refused(self, error: HelmsmanError) -> None:
        self.refusal = error.message


@pytest.fixture
def verdict(request: pytest.FixtureRequest, codex_version: tuple[int, int, int]) -> Iterator[Verdict]:
    """Recorded when the story has been told to its end."""
    verdict = Verdict()
    failures = request.session.testsfailed
    yield verdict
    if request.session.testsfailed == failures:
        story = request.node.originalname.removeprefix("test_")
        choice = request.node.callspec.params.get("choice")
        name = f"{story}-{choice}" if choice else story
        folder = RECORDS / ".".join(map(str, codex_version))
        folder.mkdir(parents=True, exist_ok=True)
        record = {"story": name, "refusal": verdict.refusal}
        (folder / f"{name}.json").write_text(json.dumps(record), encoding="utf-8")
