"""Shared fixtures of the agents' stories: the record for docs/compatibility.md."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from helmsman.errors import HelmsmanError

RECORDS = Path(__file__).parent.parent.parent / ".cache" / "stories"


class Record:
    """Result of each story for an agent: passed, or the error that a user gets."""

    def __init__(self, agent: str, title: str, version: str) -> None:
        self._folder = RECORDS / agent
        self._about = {"agent": title, "version": version}

    @contextmanager
    def story(self, name: str, *refusals: type[HelmsmanError]) -> Iterator[None]:
        """Record a story after its end, or its refusal with one of these errors."""
        refusal: str | None = None
        try:
            yield
        except HelmsmanError as error:
            if not isinstance(error, refusals):
                raise
            refusal = error.message.replace(self._about["agent"], "It")  # so that agents share a note
        self._folder.mkdir(parents=True, exist_ok=True)
        told = {**self._about, "story": name, "refusal": refusal}
        (self._folder / f"{name}.json").write_text(json.dumps(told), encoding="utf-8")
