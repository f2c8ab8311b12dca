"""What the stories of agents share: the record from which docs/compatibility.md is made."""

from __future__ import annotations

import json
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from helmsman.errors import HelmsmanError

if TYPE_CHECKING:
    from collections.abc import Iterator

RECORDS = Path(__file__).parent.parent.parent / ".cache" / "stories"


class Record:
    """What an agent can do of each story: all of it, or not, with the error a user gets."""

    def __init__(self, agent: str, title: str, version: str) -> None:
        self._folder = RECORDS / agent
        self._about = {"agent": title, "version": version}

    @contextmanager
    def story(self, name: str, *refusals: type[HelmsmanError]) -> Iterator[None]:
        """Written down when it has been told to its end, or was refused in one of these ways."""
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
