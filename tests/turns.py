"""Turns as they are asked for, and their questions, in a line."""

from __future__ import annotations

import anyio

from helmsman import Question, Session
from helmsman.model.options import SessionOptions, TurnInput
from helmsman.model.request import TurnRequest


def requested(text: str, options: SessionOptions) -> TurnRequest:
    return TurnRequest(turn=TurnInput(text=text), options=options)


async def asked(session: Session, seconds: float = 60) -> Question:
    """Return the question of a session, once there is one."""
    with anyio.fail_after(seconds):
        while not session.questions:
            await session.feed.changed()
    return session.questions[0]
