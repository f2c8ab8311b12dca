"""An agent made of nothing but the protocol: a test plays every part of it, what it says, when it asks, when it dies.

It is plugged in as anybody would plug in their own: `Helmsman(agents=[PlayedAgent()])`.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any, Final

import anyio
import anyio.lowlevel

from helmsman import Settings
from helmsman.agents.protocol import Agent, Begun, Capabilities, Capability, Engine, Opened
from helmsman.errors import EngineLost, HelmsmanError, QuestionNotOpen, SessionBusy, SessionIdle, SessionNotFound
from helmsman.model.events import EngineGone, Event, Failure, QuestionAsked, QuestionClosed, TurnEnded, TurnStarted
from helmsman.model.options import SessionOptions, TurnInput
from helmsman.model.questions import Choice, Prompt, Question, QuestionType

_CAN: Final = frozenset(
    {
        Capability.ASK,
        Capability.STEER,
        Capability.RESUME,
        Capability.IMAGES,
        Capability.OUTPUT_SCHEMA,
    }
)


class PlayedEngine(Engine):
    """An engine that does what the test says. Its verbs are about the session it opened last."""

    def __init__(self, sessions: set[str]) -> None:
        self._sessions = sessions
        self._sinks: dict[str, Callable[[Event], None]] = {}
        self._kept: dict[str, list[Event]] = {}
        self._running: dict[str, str] = {}
        self._lost: EngineLost | None = None
        self._gone = anyio.Event()
        self.session_id = ""
        self.turn_id = ""
        self.open_questions: set[str] = set()
        self.steered: list[str] = []
        self.at_once: Callable[[], None] | None = None
        """What happens while a turn is being asked for."""
        self.refusal: HelmsmanError | None = None
        """What every turn is refused with."""
        self._asked = 0

    @property
    def name(self) -> str:
        return "played"

    @property
    def capabilities(self) -> Capabilities:
        return capabilities()

    @property
    def lost(self) -> HelmsmanError | None:
        return self._lost

    async def until_lost(self) -> None:
        await self._gone.wait()

    def attach(self, session_id: str, sink: Callable[[Event], None]) -> None:
        self._check()
        self._sinks[session_id] = sink
        for event in self._kept.pop(session_id, ()):
            sink(event)

    def detach(self, session_id: str) -> None:
        self._sinks.pop(session_id, None)
        self._kept.pop(session_id, None)

    async def open(self, options: SessionOptions) -> Opened:
        self._check()
        self.session_id = str(uuid.uuid4())
        self._sessions.add(self.session_id)
        self._kept[self.session_id] = []
        return Opened(session_id=self.session_id, directory=str(options.cwd))

    async def resume(self, session_id: str, options: SessionOptions) -> Opened:
        self._check()
        if session_id not in self._sessions:
            raise SessionNotFound(f"There is no session {session_id}. Begin one.")
        self.session_id = session_id
        self._kept.setdefault(session_id, [])
        return Opened(session_id=session_id, directory=str(options.cwd), turn_id=self._running.get(session_id))

    async def run_turn(self, session_id: str, options: SessionOptions, turn: TurnInput) -> Begun:
        self._check()
        if session_id in self._running:
            raise SessionBusy(f"A turn is running in session {session_id}. Wait for it.")
        if self.refusal is not None:
            raise self.refusal.again()
        self.session_id, self.turn_id = session_id, str(uuid.uuid4())
        self._running[session_id] = self.turn_id
        self.emit(TurnStarted(session_id=session_id, turn_id=self.turn_id))
        if self.at_once is not None:
            self.at_once()
        return Begun(session_id=session_id, turn_id=self.turn_id)

    async def steer(self, session_id: str, text: str) -> None:
        self._check()
        if session_id not in self._running:
            raise SessionIdle(f"No turn is running in session {session_id}. Send it as a new message instead.")
        self.steered.append(text)

    async def interrupt(self, session_id: str) -> None:
        self._check()
        if session_id in self._running:
            self.session_id, self.turn_id = session_id, self._running[session_id]
            self.end("interrupted")

    async def answer(self, question: Question, choices: tuple[Choice, ...] | None) -> None:
        self._check()
        await anyio.lowlevel.checkpoint()
        if question.id not in self.open_questions:
            raise QuestionNotOpen(f"Question {question.id} is not open. Look at the status.")
        self.open_questions.discard(question.id)

    def _check(self) -> None:
        if self._lost is not None:
            raise self._lost.again()

    # --- what the agent does ---

    def emit(self, event: Event) -> None:
        """Say that something has happened."""
        if self._lost is not None:
            return
        sink = self._sinks.get(event.session_id)
        if sink is not None:
            sink(event)
        elif event.session_id in self._kept:
            self._kept[event.session_id].append(event)

    def ask(self, kind: QuestionType = "command_approval", **details: Any) -> None:
        """Ask whether a command may run, or something else happen."""
        self._asked += 1
        question = Question(
            asker="Codex",
            id=f"q{self._asked}",
            type=kind,
            session_id=self.session_id,
            turn_id=self.turn_id,
            prompts=(Prompt(text="?", options=("approve", "approve_session", "deny", "abort")),),
            details=details or {"command": "ls", "directory": "/"},
        )
        self.open_questions.add(question.id)
        self.emit(QuestionAsked(session_id=self.session_id, turn_id=self.turn_id, question=question))

    def withdraw(self) -> None:
        """Want no answer any more."""
        for question_id in sorted(self.open_questions):
            self.emit(QuestionClosed(session_id=self.session_id, question_id=question_id, answer=None, by="codex"))
        self.open_questions.clear()

    def end(self, outcome: Any, failure: Failure | None = None) -> None:
        """End the turn."""
        self.withdraw()
        self._running.pop(self.session_id, None)
        self.emit(TurnEnded(session_id=self.session_id, turn_id=self.turn_id, outcome=outcome, failure=failure))

    def die(self) -> None:
        """Be killed."""
        self.open_questions.clear()
        for session_id in {*self._sinks, *self._kept}:
            self.emit(EngineGone(session_id=session_id, failure=Failure(code="engine_lost", message="killed")))
        self._lost = EngineLost("It was killed. Open another.")
        self._gone.set()


class PlayedAgent(Agent):
    """Its engines are played ones; the one opened last is the last of `engines`."""

    limit_is_there_at: datetime | None = None
    """What it says of when a usage limit is there again."""

    def __init__(self) -> None:
        self.engines: list[PlayedEngine] = []
        self._sessions: set[str] = set()

    @property
    def name(self) -> str:
        return "played"

    async def capabilities(self, settings: Settings, env: Mapping[str, str] | None) -> Capabilities:
        return capabilities()

    def resets_at(self, failure: Failure) -> datetime | None:
        return self.limit_is_there_at

    @asynccontextmanager
    async def open_engine(self, settings: Settings, env: Mapping[str, str] | None) -> AsyncIterator[PlayedEngine]:
        engine = PlayedEngine(self._sessions)
        self.engines.append(engine)
        try:
            yield engine
        finally:
            engine.die()


def capabilities() -> Capabilities:
    """What a played engine can do."""
    lacking = {capability: "" for capability in Capability if capability not in _CAN}
    return Capabilities("played", "The played agent", lacking)
