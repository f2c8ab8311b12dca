"""A session while Claude Code has it: its process, its running turn, what it asks, and what its lines mean."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread

from helmsman.agents.claude.normalise import (
    SYNTHETIC,
    TurnReader,
    cost_of,
    failure_of,
    spent,
    usage_of,
    was_interrupted,
)
from helmsman.agents.claude.questions import EXIT_PLAN, NOBODY_ASKED, allowed, not_answered, read_question, refused
from helmsman.base.json_values import integer, mapping, optional_text, text
from helmsman.base.structs import replace
from helmsman.errors import SessionBusy
from helmsman.model.events import (
    Failure,
    QuestionAsked,
    QuestionClosed,
    TurnEnded,
    TurnStarted,
    Usage,
    UsageReported,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from anyio.streams.memory import MemoryObjectSendStream

    from helmsman.agents.claude.access import Launch, SessionAccess
    from helmsman.agents.claude.pipes import ClaudePipe
    from helmsman.agents.claude.questions import Asked
    from helmsman.agents.event_router import EventRouter
    from helmsman.errors import EngineLost
    from helmsman.model.events import Event, TurnOutcome
    from helmsman.model.options import SessionOptions


@dataclass(frozen=True, slots=True)
class ForkPoint:
    """Where a session branches off: after a turn of another, whose last line is named, or at the end."""

    session_id: str
    last_turn_id: str | None
    line: str | None


@dataclass(slots=True, eq=False)
class LiveTurn:
    id: str
    reader: TurnReader
    interrupted: bool = False
    planned: bool = False
    """It has proposed its plan, and was stopped there."""
    steered: set[str] = field(default_factory=set[str])
    """Messages that were put into it, and that Claude Code has not taken up yet."""
    taken_up: anyio.Event = field(default_factory=anyio.Event)
    """Claude Code has begun with it, and said its name."""
    ended: anyio.Event = field(default_factory=anyio.Event)
    used: Usage = field(default_factory=Usage)
    """As Claude Code sums it up when a message to it is done with."""
    calls: dict[str, Usage] = field(default_factory=dict[str, Usage])
    """What model calls since then have used, its sub-agents' too: several lines tell of one."""


@dataclass(slots=True, eq=False)
class LiveProcess:
    """A process, and how it was started."""

    pipe: ClaudePipe
    launch: Launch | None
    access: SessionAccess
    gone: anyio.Event


class LiveSession:
    """One session. Its engine starts and ends its process; what that says comes here, and goes on as events."""

    def __init__(self, session_id: str, directory: Path | None, router: EventRouter) -> None:
        self.id = session_id
        self.directory = directory
        self.options: SessionOptions | None = None
        """Those it was last used with."""
        self.forked_from: ForkPoint | None = None
        self.process: LiveProcess | None = None
        self.turn: LiveTurn | None = None
        self.questions: dict[str, Asked] = {}
        self.last_used = 0.0
        self.cost: float | None = None
        """What the session has cost by now, as its process tells it; None where that is not known."""
        self.starting = anyio.Lock()
        self._router = router
        self._replies: dict[str, MemoryObjectSendStream[Mapping[str, Any]]] = {}

    def _deliver(self, event: Event) -> None:
        if self.process is not None:
            self.process.pipe.position.stamp(event)
        self._router.deliver(event)

    @property
    def identity(self) -> tuple[str, ...]:
        """How a process is told which session it begins."""
        own = ("--session-id", self.id)
        if self.forked_from is None:
            return own
        line = () if self.forked_from.line is None else ("--resume-session-at", self.forked_from.line)
        return ("--resume", self.forked_from.session_id, "--fork-session", *line, *own)

    def is_idle_in(self, running: LiveProcess) -> bool:
        """Whether this is its process, and no turn runs in it."""
        return self.process is running and self.turn is None

    def refuse_if_running(self) -> None:
        if self.turn is not None:
            raise SessionBusy(f"A turn is running in session {self.id}. Wait for it, or interrupt it.")

    async def request(self, running: LiveProcess, request: Mapping[str, Any]) -> Mapping[str, Any]:
        """Ask the process for something, and wait for its answer. The caller bounds the wait."""
        send, receive = anyio.create_memory_object_stream["Mapping[str, Any]"](1)
        with send, receive:
            self._replies[request["request_id"]] = send
            try:
                await running.pipe.send(request)
                return await receive.receive()
            finally:
                del self._replies[request["request_id"]]

    def begin(self, turn_id: str) -> LiveTurn:
        """A turn, of which the process is about to be told; without an id, one that was left running."""
        self.turn = LiveTurn(turn_id, TurnReader(self.id, turn_id or None, str(self.directory)))
        return self.turn

    async def take(self, running: LiveProcess, line: Mapping[str, Any]) -> None:
        """What the process says."""
        turn = self.turn
        match line.get("type"):
            case "control_request":
                await self._ask(running, line)
            case "control_cancel_request":
                for asked in [one for one in self.questions.values() if one.request_id == line.get("request_id")]:
                    self.questions.pop(asked.question.id)
                    self.withdraw(asked)
            case "control_response" if (
                waiting := self._replies.get(text(mapping(line.get("response")).get("request_id")))
            ) is not None:
                waiting.send_nowait(mapping(line.get("response")))
            case "command_lifecycle":
                self._take_lifecycle(line)
            case "result":
                if turn is not None:
                    is_end = not integer(line.get("queued_turn_count")) or turn.interrupted
                    if is_end:  # before the end is told: a check may begin at that moment
                        await anyio.to_thread.run_sync(running.pipe.processes.end_started_by_turns)
                    self._report(turn, line)  # all events of a line without a pause, so that they are stored together
                    if is_end:
                        self.end_turn(line, None)
            case _:
                if turn is not None:
                    for event in turn.reader.read(line):
                        self._deliver(event)
                    self._count(turn, line)

    def _take_lifecycle(self, line: Mapping[str, Any]) -> None:
        message_id, turn = text(line.get("command_uuid")), self.turn
        if line.get("state") != "started" or turn is None:
            return
        turn.steered.discard(message_id)
        if not turn.id:  # one that was left running: its first message is its name
            turn.id = message_id
            turn.reader = TurnReader(self.id, message_id, str(self.directory))
            self._deliver(TurnStarted(session_id=self.id, turn_id=message_id))
        if turn.id == message_id:
            turn.taken_up.set()

    async def _ask(self, running: LiveProcess, line: Mapping[str, Any]) -> None:
        turn, request_id = self.turn, text(line.get("request_id"))
        place = None if self.directory is None else str(self.directory)
        sandbox = running.access.enforced and running.access.writes != "anything"
        turn_id = None if turn is None else turn.id
        asked = read_question(line, self.id, turn_id, place, "inside" if sandbox else "outside")
        if asked is None or turn is None or turn.interrupted:
            subtype = text(mapping(line.get("request")).get("subtype"))
            answer = not_answered(request_id, subtype) if asked is None else refused(asked, "Stopped.", stop=True)
            await running.pipe.send(answer, answering=request_id)
        elif running.access.plans and asked.tool == EXIT_PLAN:
            turn.planned = True
            await running.pipe.send(refused(asked, "Stopped.", stop=True), answering=request_id)
        elif not running.access.asks_about(asked):
            await self.decide(running, asked)
        elif (other := self.questions.pop(asked.question.id, None)) is not None:  # an answer to either would be to both
            self.withdraw(other)
            await running.pipe.send(refused(asked, "Stopped.", stop=True), answering=request_id)
        else:
            self.questions[asked.question.id] = asked
            event = QuestionAsked(session_id=self.id, turn_id=turn_id, question=asked.question)
            self._deliver(event.with_raw(line))

    async def decide(self, running: LiveProcess, asked: Asked) -> None:
        """Answer without anybody: the policy of the session says that nobody is asked."""
        yes = running.access.answers == "allow" and asked.question.type != "user_input"
        await running.pipe.send(allowed(asked) if yes else refused(asked, NOBODY_ASKED), answering=asked.request_id)

    def withdraw(self, asked: Asked) -> None:
        """Nobody waits any more for the answer to a question."""
        closed = QuestionClosed(session_id=self.id, question_id=asked.question.id, answer=None, by="turn ended")
        self._deliver(closed)

    def _count(self, turn: LiveTurn, line: Mapping[str, Any]) -> None:
        message = mapping(line.get("message")) if line.get("type") == "assistant" else {}
        used, call = usage_of(message.get("usage")), text(message.get("id"))
        if used is not None and message.get("model") != SYNTHETIC and turn.calls.get(call) != used:
            turn.calls[call] = used
            so_far = turn.used + spent(turn.calls.values())
            self._deliver(UsageReported(session_id=self.id, turn_id=turn.id, turn=so_far))

    def _report(self, turn: LiveTurn, result: Mapping[str, Any]) -> None:
        usage = usage_of(result.get("usage"))
        before, self.cost = self.cost, cost_of(result)
        if usage is not None and before is not None and self.cost is not None:
            usage = replace(usage, cost_usd=max(0.0, self.cost - before))
        if usage is not None:
            turn.used += usage
            turn.calls.clear()
            reported = UsageReported(session_id=self.id, turn_id=turn.id, turn=turn.used)
            self._deliver(reported.with_raw(result))

    def end_turn(self, result: Mapping[str, Any] | None, loss: EngineLost | None) -> None:
        """Tell the end of the running turn, once."""
        turn = self.turn
        if turn is None:
            return
        self.turn = None
        self.last_used = anyio.current_time()
        for asked in list(self.questions.values()):
            self.withdraw(asked)
        self.questions.clear()
        for event in turn.reader.close():
            self._deliver(event)
        failure: Failure | None = None
        final: str | None = None
        interrupted = turn.interrupted
        if result is not None:
            failure = failure_of(result)
            interrupted = was_interrupted(result) or (turn.interrupted and failure is not None)
            if turn.planned and not turn.interrupted:
                failure, interrupted = None, False
            final = None if failure is not None or interrupted else optional_text(result.get("result"))
        elif loss is not None:
            failure = Failure(code=loss.code, message=loss.message, retryable=loss.retryable)
        outcome: TurnOutcome = "interrupted" if interrupted else "failed" if failure is not None else "completed"
        self._deliver(
            TurnEnded(
                session_id=self.id,
                turn_id=turn.id,
                outcome=outcome,
                failure=failure if outcome == "failed" else None,
                final_message=final,
            ).with_raw(result)
        )
        turn.ended.set()
