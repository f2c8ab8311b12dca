"""Dialect of the toy agent."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from helmsman.agents.agent_process import AgentProcess, Greeting, Launch
from helmsman.agents.process_engine import (
    AgentDialect,
    AgentSession,
    AgentTurn,
    Conversation,
    LaunchConfig,
    ProcessEngine,
)
from helmsman.agents.protocol import Capabilities, Capability, Opened, Trust
from helmsman.agents.supervisor.client import GREETING_ID
from helmsman.errors import QuestionNotOpen
from helmsman.model.events import AgentMessage, ItemEnded, PastTurn, QuestionAsked, TurnEnded, TurnStarted
from helmsman.model.options import SessionOptions, TurnInput
from helmsman.model.questions import APPROVE, DENY, Choice, Prompt, Question


class ToyConversation(Conversation):
    """Turns its lines into events."""

    question: str | None = None
    how = "interrupted"

    async def run(self) -> None:
        async for line in self.process.lines():
            turn, session_id = self.session.turn, self.session.id
            if turn is None:
                continue
            if "began" in line and not turn.id:
                turn.id = self.session.left_turn = line["began"]
                self.deliver(TurnStarted(session_id=session_id, turn_id=turn.id))
            elif "text" in line:
                item = AgentMessage(id=turn.id, text=line["text"])
                self.deliver(ItemEnded(session_id=session_id, turn_id=turn.id, item=item))
            elif "ask" in line and not self.process.was_answered(line["ask"]):
                self.question = line["ask"]
                prompt = Prompt(text="Toy asks to run a command.", options=(APPROVE, DENY))
                question = Question(
                    asker="Toy",
                    id=f"q_{turn.id}",
                    type="command_approval",
                    session_id=session_id,
                    turn_id=turn.id,
                    prompts=(prompt,),
                    details={"command": line["command"]},
                )
                self.deliver(QuestionAsked(session_id=session_id, turn_id=turn.id, question=question))
            elif "ended" in line:
                self.how = line["how"]
                self.end_turn(turn)

    async def prompt(self, turn: TurnInput) -> AgentTurn:
        begun = AgentTurn(str(uuid.uuid4()))
        self.process.turn_begins()
        self.session.begin(begun)
        self.deliver(TurnStarted(session_id=self.session.id, turn_id=begun.id))
        await self.process.send_object({"turn": begun.id, "session": self.session.id, "text": turn.text})
        return begun

    async def stop_turn(self, turn: AgentTurn) -> None:
        await self.process.send_object({"stop": True})

    async def answer(self, question: Question, choices: tuple[Choice, ...] | None) -> bool:
        if self.question is None:
            raise QuestionNotOpen.any_more(question.id)
        self.question = None
        yes = choices is not None and choices[0].value == APPROVE
        await self.process.send_object({"answer": yes})
        return False

    def ended(self, turn: AgentTurn) -> TurnEnded:
        outcome: Any = "interrupted" if turn.interrupted else self.how
        return TurnEnded(session_id=self.session.id, turn_id=turn.id, outcome=outcome)

    def recall(self, notes: Mapping[str, Any], *, is_running: bool) -> None:
        if is_running:
            self.session.left_turn = ""
            self.process.turn_begins()
            self.session.begin(AgentTurn(""))


class ToyDialect(AgentDialect):
    """Toy agent, with its sessions in a directory."""

    agent = "toy"
    title = "Toy"
    engine_name = "toy"
    trust = Trust(
        asking_mode=None,
        reading_mode=None,
        asking_options={},
        acts_unasked=True,
        memory=(),
        runs_repository_files=False,
        variables=(),
        shared=("sessions",),
    )
    starts_with_session = False
    capabilities = Capabilities("toy", "Toy", dict.fromkeys(set(Capability) - {Capability.RESUME}, ""))
    greeting = Greeting(
        title="Toy",
        request={"id": GREETING_ID},
        read_answer=lambda answer: answer,
        watcher="tests.agents.toy.watching:ToyWatcher",
        seconds=30,
        advice="",
    )

    def __init__(self, sessions: Path) -> None:
        self._sessions = sessions

    def converse(self, engine: ProcessEngine, session: AgentSession, process: AgentProcess) -> ToyConversation:
        return ToyConversation(engine, session, process)

    def opened(self, session: AgentSession, options: SessionOptions) -> Opened:
        return Opened(session_id=session.id, directory=str(session.directory))

    def notes_on(self, turn: TurnInput) -> tuple[str, ...]:
        return ()

    async def check(self, config: LaunchConfig | None, options: SessionOptions) -> None:
        return

    def fingerprint(
        self, config: LaunchConfig, session: AgentSession, options: SessionOptions, turn: TurnInput | None
    ) -> str:
        return str(session.directory)

    async def launch(
        self, config: LaunchConfig, session: AgentSession, options: SessionOptions, turn: TurnInput | None
    ) -> Launch:
        assert session.directory is not None
        program = Path(__file__).with_name("program.py")
        return Launch(
            argv=[sys.executable, "-I", str(program), str(self._sessions)],
            env=config.env,
            directory=session.directory,
            fingerprint=str(session.directory),
            about={},
        )

    def find(self, session_id: str) -> Path | None:
        if not (self._sessions / session_id).exists():
            raise self.not_found(session_id)
        return None

    def history(self, session: AgentSession | None, session_id: str) -> tuple[PastTurn, ...]:
        return ()
