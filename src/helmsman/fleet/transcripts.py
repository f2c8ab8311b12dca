"""Transcripts of sessions, stored in the fleet's database under the epoch of the task, and restored to resume elsewhere.

A transcript is shipped while the turn runs, so the loss of a machine loses only the last moments.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from helmsman.agents.transcripts import TranscriptPart
from helmsman.fleet.values import form_label
from helmsman.steering.carrying import CarriedSession

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from helmsman.fleet.owned_task import OwnedTask
    from helmsman.steering.core import Steering


class SharedTranscript:
    """Transcript of a task's session, while this machine has the task."""

    def __init__(self, owned: OwnedTask, agent: str, session: CarriedSession) -> None:
        self._owned = owned
        self._agent = agent
        self._session = session

    @classmethod
    async def of(cls, helm: Steering, owned: OwnedTask, agent: str, session_id: str) -> SharedTranscript | None:
        """Return the transcript of a session, or None if the agent's sessions cannot move."""
        session = await CarriedSession.of(helm, agent, session_id)
        return None if session is None else cls(owned, agent, session)

    @property
    def sizes(self) -> Mapping[str, int]:
        """Return the stored size of each file."""
        return self._session.sizes

    async def is_elsewhere(self, limits: Mapping[str, int] | None) -> bool:
        """Return whether the fleet's copy differs from the local one. `limits` first cuts the stored files to sizes."""
        database = self._owned.database
        if limits is not None:
            cut = limits
            # Cut under this epoch, so that no other machine can resume from the longer transcript.
            await database.keep_trying(lambda: self._owned.cut_rollouts(self._session.id, cut), "a transcript")
        sizes = await database.keep_trying(
            lambda: database.all(
                "select file, max(start + octet_length(data))::bigint as size from helmsman.rollouts "
                "where session_id = %s group by file",
                (self._session.id,),
            ),
            "a transcript",
        )
        return bool(sizes) and not await self._session.is_as_kept({row["file"]: row["size"] for row in sizes})

    async def bring(self, directory: Path) -> None:
        """Restore the session from the fleet, to resume it in a directory.

        Raises:
            CannotMove: It cannot be resumed here.
        """
        database = self._owned.database
        rows = await database.keep_trying(
            lambda: database.all(
                "select file, start, data from helmsman.rollouts where session_id = %s order by file, start",
                (self._session.id,),
            ),
            "a transcript",
        )
        await self._session.place([TranscriptPart(**row) for row in rows], directory)

    async def needs(self) -> str | None:
        """Return the label that a machine must have to resume the session, or None if its agent suffices."""
        form = await self._session.form()
        return None if form is None else form_label(self._agent, form)

    async def ship(self) -> None:
        """Ship the new parts of the transcript.

        Raises:
            NotOwner: Another machine has claimed the task.
        """
        while parts := await self._session.tails():
            # In order, and acknowledged one by one: an interruption continues at the next part.
            for part in parts:
                await self._owned.database.keep_trying(lambda part=part: self._store(part), "a transcript")  # type: ignore[misc]
                self._session.kept(part)

    async def _store(self, part: TranscriptPart) -> None:
        await self._owned.add_rollout(self._session.id, part.file, part.start, part.data)
