"""A session that is carried to another machine, as a fleet would."""

from __future__ import annotations

from helmsman.agents.transcripts import TranscriptPart
from helmsman.service import HelmsmanService
from helmsman.steering.carrying import CarriedSession


async def carried(helm: HelmsmanService, session_id: str, *, agent: str = "codex") -> CarriedSession:
    session = await CarriedSession.of(helm, agent, session_id)
    assert session is not None
    return session


async def gathered(session: CarriedSession) -> list[TranscriptPart]:
    """All that it has written, in the order in which a database would give it."""
    found: list[TranscriptPart] = []
    while parts := await session.tails():
        for part in parts:
            session.kept(part)
        found += parts
    return sorted(found, key=lambda part: (part.file, part.start))
