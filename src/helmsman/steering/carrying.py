"""Move sessions between machines: read their transcripts here while they run, and place them there.

`CarriedSession` is one session on this machine. It returns its new output in parts (`tails`). Output of another machine is
put into the agent's own storage (`place`), after the engine that has the session loaded here has unloaded it: an engine that
continues from memory would write to a file that was replaced. Then `start(carried=…)` resumes the session. Directory,
sandbox and approval policy are set again there, never taken from the carried data.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, Self

import anyio.to_thread

from helmsman.agents.protocol import Capability
from helmsman.errors import HelmsmanError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from helmsman.agents.transcripts import CarriedTranscripts, TranscriptPart
    from helmsman.steering.core import Steering

log = logging.getLogger(__name__)

AWAY: Final = "carried-away"
"""Subdirectory of the state directory for copies that diverged from the carried session."""


class CarriedSession:
    """Session with a carried transcript. Create it with `of`, which returns None for agents that cannot move sessions."""

    def __init__(self, helm: Steering, agent: str, session_id: str, transcripts: CarriedTranscripts) -> None:
        self._helm = helm
        self._agent = agent
        self._transcripts = transcripts
        self.id = session_id
        self._stored: dict[str, int] = {}

    @classmethod
    async def of(cls, helm: Steering, agent: str, session_id: str) -> Self | None:
        """Raises: HelmsmanError: There is no such agent here."""
        transcripts = await helm.agents[agent].transcripts(helm.settings, helm.environment)
        return None if transcripts is None else cls(helm, agent, session_id, transcripts)

    async def tails(self) -> list[TranscriptPart]:
        """Return the output since the last `kept` part. Call it again until it returns nothing."""
        return await anyio.to_thread.run_sync(self._transcripts.tails, self.id, self._stored)

    async def form(self) -> str | None:
        """Return the format that a version of its agent must support to resume it (`CarriedTranscripts.forms`)."""
        return await anyio.to_thread.run_sync(self._transcripts.form_of, self.id)

    def kept(self, part: TranscriptPart) -> None:
        """Record that a part is stored safely, with all of its file before it."""
        self._stored[part.file] = part.start + len(part.data)

    @property
    def sizes(self) -> Mapping[str, int]:
        """Return the number of bytes kept of each file."""
        return dict(self._stored)

    async def is_as_kept(self, sizes: Mapping[str, int]) -> bool:
        """Return whether its files here have these sizes. If so, all of it counts as kept."""
        found = await anyio.to_thread.run_sync(self._transcripts.files, self.id)
        here = {file.name: file.path.stat().st_size for file in found if file.is_own}
        if not here or any(sizes.get(name) != size for name, size in here.items()):
            return False
        self._stored |= sizes
        return True

    async def place(self, parts: Iterable[TranscriptPart], directory: Path) -> None:
        """Place the carried session here, to continue in a directory.

        Raises:
            CannotMove: It cannot continue here.
        """
        helm, parts = self._helm, list(parts)
        engine = await helm.engine(Capability.MOVE, agent=self._agent)
        # An engine that continues from memory would write to the file that is replaced.
        await engine.unload(self.id)
        helm.forget(self.id)
        away = helm.settings.state_dir / AWAY
        placed = await anyio.to_thread.run_sync(
            lambda: self._transcripts.place(self.id, parts, directory=directory, away=away)
        )
        for part in parts:
            self.kept(part)
        if placed.moved_away is not None:
            log.warning("session %s had diverged here; that copy is kept in %s", self.id, placed.moved_away)
        if placed.name is not None and Capability.RENAME in engine.capabilities:
            try:
                await engine.rename(self.id, placed.name)
            except HelmsmanError as error:  # it can do without
                log.warning("session %s could not be named: %s", self.id, error)
