"""Claude Code as a dialect: the conversation with it, how its processes are started, and its verbs beyond other agents.

A session lives on disk between its turns. Its access is fixed when its process starts, so a turn with other options gets
another process, which resumes the same session.
"""

from __future__ import annotations

import hashlib
import uuid
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

import anyio
import anyio.to_thread

from helmsman.agents.agent_process import Greeting, Launch, open_child_agent
from helmsman.agents.claude.access import TRUST, WRITABLE_AT_HOME, access_of, plan_launch
from helmsman.agents.claude.binary import CLAUDE, TITLE, ClaudeBinary, capabilities
from helmsman.agents.claude.normalise import (
    EXIT_PLAN,
    NOBODY_ASKED,
    SYNTHETIC,
    TurnReader,
    allowed,
    cost_of,
    failure_of,
    not_answered,
    read_question,
    refused,
    usage_of,
    was_interrupted,
    write_answer,
)
from helmsman.agents.claude.storage import refuse_if_open
from helmsman.agents.found_programs import check_command
from helmsman.agents.process_engine import (
    AgentDialect,
    AgentTurn,
    Conversation,
    ForkPoint,
    LaunchConfig,
    ProcessEngine,
    as_words,
    image_data,
    note_on,
    require_config,
)
from helmsman.agents.protocol import Account, Model, Opened, is_enforced
from helmsman.agents.sandbox import refuse_planted
from helmsman.agents.sandbox_view import cloud_logins, cloud_variables
from helmsman.agents.supervisor.client import GREETING_ID
from helmsman.base.concurrency import background_tasks
from helmsman.base.files import refuse_outside
from helmsman.base.json_values import integer, mapping, optional_text, sequence, text, texts
from helmsman.base.mount_points import MountPoints
from helmsman.base.structs import replace
from helmsman.errors import EngineLost, EngineProtocolError, EngineRefused, EngineTimeout, InvalidInput, QuestionNotOpen
from helmsman.git.command import careful_environment
from helmsman.model.events import QuestionAsked, QuestionClosed, TurnEnded, TurnStarted, Usage, UsageReported
from helmsman.model.options import TurnInput

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from anyio.streams.memory import MemoryObjectSendStream

    from helmsman.agents.agent_process import AgentProcess
    from helmsman.agents.claude.access import PlannedLaunch, SessionAccess
    from helmsman.agents.claude.normalise import Asked
    from helmsman.agents.claude.storage import ClaudeSessions
    from helmsman.agents.process_engine import AgentSession
    from helmsman.model.events import Failure, PastTurn, TurnOutcome
    from helmsman.model.options import SessionOptions
    from helmsman.model.questions import Choice, Question

COMPACT: Final = "/compact"
TAKEN_UP_SECONDS: Final = 10.0
"""Seconds that Claude Code may take to begin with a message."""


# --- messages --------------------------------------------------------------------------------------------------------


def control(subtype: str, **more: Any) -> dict[str, Any]:
    """Return a request to the program itself, with an id."""
    return {"type": "control_request", "request_id": str(uuid.uuid4()), "request": {"subtype": subtype, **more}}


def user_message(content: str | list[dict[str, Any]]) -> dict[str, Any]:
    """Return a message for the model. The only command to the program itself is the one that the engine has a verb for."""
    # `as_words` keeps text from being read as one of the program's own slash commands.
    if isinstance(content, str) and content != COMPACT:
        content = as_words(content)
    message = {"role": "user", "content": content}
    return {"type": "user", "message": message, "parent_tool_use_id": None, "session_id": "default"}


def prompt_message(turn: TurnInput) -> dict[str, Any]:
    """Return a prompt with its images. Blocks, to read these."""
    if not turn.images:
        return user_message(turn.text)
    blocks: list[dict[str, Any]] = [{"type": "text", "text": as_words(turn.text)}]
    for kind, data in map(image_data, turn.images):
        blocks.append({"type": "image", "source": {"type": "base64", "media_type": kind, "data": data}})
    return user_message(blocks)


# --- the conversation ------------------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class ClaudeTurn(AgentTurn):
    """Turn. `reader` converts its lines to events."""

    reader: TurnReader = field(kw_only=True)
    planned: bool = False
    """True after it has proposed its plan, and was stopped."""
    steered: set[str] = field(default_factory=set[str])
    """Messages that were put into it, and that Claude Code has not taken up yet."""
    taken_up: anyio.Event = field(default_factory=anyio.Event)
    """Claude Code has begun with it, and said its name."""
    used: Usage = field(default_factory=Usage)
    """Usage up to the last finished message, as Claude Code reports it."""
    calls: dict[str, Usage] = field(default_factory=dict[str, Usage])
    """Usage of model calls since then, including sub-agents. Several lines report the same call."""
    result: Mapping[str, Any] | None = None
    """Line with the result of the turn."""


class ClaudeConversation(Conversation):
    """See `Conversation`. `access` is that of the process."""

    def __init__(
        self, engine: ProcessEngine, session: AgentSession, process: AgentProcess, access: SessionAccess
    ) -> None:
        super().__init__(engine, session, process)
        self.access = access
        self._questions: dict[str, Asked] = {}
        self._replies: dict[str, MemoryObjectSendStream[Mapping[str, Any]]] = {}

    @property
    def _turn(self) -> ClaudeTurn | None:
        turn = self.session.turn
        assert turn is None or isinstance(turn, ClaudeTurn)
        return turn

    def _new_turn(self, turn_id: str) -> ClaudeTurn:
        turn = ClaudeTurn(turn_id, reader=self._reader(turn_id))
        self.process.turn_begins()
        self.session.begin(turn)
        return turn

    def _reader(self, turn_id: str) -> TurnReader:
        return TurnReader(self.session.id, turn_id or None, str(self.session.directory))

    async def set_up(self, options: SessionOptions) -> None:
        """Answer questions as these options say. A process that an earlier hub left may have been adopted under others."""
        self.access = access_of(options, enforced=self.access.enforced, plans=self.access.plans)

    async def prompt(self, turn: TurnInput) -> AgentTurn:
        message = await anyio.to_thread.run_sync(prompt_message, turn) if turn.images else prompt_message(turn)
        begun = self._new_turn(str(uuid.uuid4()))
        try:
            # The id of the message is the id of the turn: Claude Code repeats it when it takes the message up.
            await self.process.send_object({**message, "uuid": begun.id})
        except EngineLost:
            self.session.finish(begun)
            raise
        self.deliver(TurnStarted(session_id=self.session.id, turn_id=begun.id))
        return begun

    async def steer(self, turn: AgentTurn, message: str) -> None:
        assert isinstance(turn, ClaudeTurn)
        message_id = str(uuid.uuid4())
        turn.steered.add(message_id)
        await self.process.send_object({**user_message(message), "uuid": message_id})

    async def stop_turn(self, turn: AgentTurn) -> None:
        assert isinstance(turn, ClaudeTurn)
        for message_id in turn.steered:  # or they would be taken up next
            await self.process.send_object(control("cancel_async_message", message_uuid=message_id))
        for asked in list(self._questions.values()):
            self._withdraw(self._questions.pop(asked.question.id))
            # A refusal that stops, before the interrupt: a request without an answer would outlive the turn.
            await self.process.send_object(refused(asked, "Stopped.", stop=True))
        with anyio.move_on_after(TAKEN_UP_SECONDS):
            await turn.taken_up.wait()  # a message that is only queued would begin after the interrupt
        await self.process.send_object(control("interrupt"))

    async def answer(self, question: Question, choices: tuple[Choice, ...] | None) -> bool:
        asked = self._questions.pop(question.id, None)
        if asked is None:
            raise QuestionNotOpen.any_more(question.id)
        stops = choices is not None and choices[0].value in ("abort", "cancel")
        # Before the answer is sent: the result may arrive immediately.
        if stops and self.session.turn is not None:
            self.session.turn.interrupted = True
        await self.process.send_object(write_answer(asked, choices))
        return False  # a refusal that stops the turn says so

    async def request(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        """Send a request to the program, and wait for its answer. The caller bounds the wait."""
        send, receive = anyio.create_memory_object_stream["Mapping[str, Any]"](1)
        with send, receive:
            self._replies[request["request_id"]] = send
            try:
                await self.process.send_object(request)
                return await receive.receive()
            finally:
                del self._replies[request["request_id"]]

    def recall(self, notes: Mapping[str, Any], *, is_running: bool) -> None:
        if is_running:
            self.session.left_turn = ""  # its first line has its name
            self._new_turn("")

    async def caught_up(self, *, is_running: bool) -> None:
        # The name of a running turn comes with a replayed line.
        if (turn := self._turn) is not None:
            await turn.taken_up.wait()

    async def adopt(self, options: SessionOptions) -> None:
        before = self.access
        # A process may run under other options than those that the session is adopted with.
        self.access = access_of(options, enforced=before.enforced, plans=before.plans)
        for asked in list(self._questions.values()):  # they were read before it was known who answers them
            if not self.access.asks_about(asked):
                self._withdraw(self._questions.pop(asked.question.id))
                await self._decide(asked)

    def close(self) -> None:
        self._questions.clear()

    # --- its lines ---------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        async for line in self.process.lines():
            try:
                await self._read(line)
            except EngineLost:
                continue  # it takes no more answers, but its last messages may still arrive

    async def _read(self, line: Mapping[str, Any]) -> None:
        turn = self._turn
        match line.get("type"):
            case "control_request":
                await self._ask(line)
            case "control_cancel_request":
                for asked in [one for one in self._questions.values() if one.request_id == line.get("request_id")]:
                    self._withdraw(self._questions.pop(asked.question.id))
            case "control_response" if (
                waiting := self._replies.get(text(mapping(line.get("response")).get("request_id")))
            ) is not None:
                waiting.send_nowait(mapping(line.get("response")))
            case "command_lifecycle":
                self._read_lifecycle(line)
            case "result":
                if turn is not None:
                    await self._read_result(turn, line)
            case _:
                if turn is not None:
                    for event in turn.reader.read(line):
                        self.deliver(event)
                    self._count(turn, line)

    async def _read_result(self, turn: ClaudeTurn, line: Mapping[str, Any]) -> None:
        # A result with more queued messages ends only a part of the turn.
        is_end = not integer(line.get("queued_turn_count")) or turn.interrupted
        if is_end:  # before the end is reported: a check may begin at that moment
            await anyio.to_thread.run_sync(self.process.end_started_by_turns)
        self._report(turn, line)  # all events of a line without a pause, so that they are stored together
        if is_end:
            turn.result = line
            self.end_turn(turn)

    def _read_lifecycle(self, line: Mapping[str, Any]) -> None:
        message_id, turn = text(line.get("command_uuid")), self._turn
        if line.get("state") != "started" or turn is None:
            return
        # Only messages that were not begun have to be cancelled when the turn is stopped.
        turn.steered.discard(message_id)
        if not turn.id:  # one that was left running: its first message is its name
            turn.id = self.session.left_turn = message_id
            turn.reader = self._reader(message_id)
            self.deliver(TurnStarted(session_id=self.session.id, turn_id=message_id))
        if turn.id == message_id:
            turn.taken_up.set()

    async def _ask(self, line: Mapping[str, Any]) -> None:
        turn, request_id, session = self._turn, text(line.get("request_id")), self.session
        # The supervisor's output is read again, with questions that have their answer.
        if self.process.was_answered(request_id):
            return
        place = None if session.directory is None else str(session.directory)
        sandbox = self.access.enforced and self.access.writes != "anything"
        turn_id = None if turn is None else turn.id
        asked = read_question(line, session.id, turn_id, place, "inside" if sandbox else "outside")
        if asked is None:
            subtype = text(mapping(line.get("request")).get("subtype"))
            # Any request has to be answered, or Claude Code waits for ever.
            await self.process.send_object(not_answered(request_id, subtype))
        elif turn is None or turn.interrupted:
            await self.process.send_object(refused(asked, "Stopped.", stop=True))
        elif self.access.plans and asked.tool == EXIT_PLAN:
            # A plan ends with its proposal: stop here, so that it is not carried out.
            turn.planned = True
            await self.process.send_object(refused(asked, "Stopped.", stop=True))
        elif not self.access.asks_about(asked):
            await self._decide(asked)
        elif (
            other := self._questions.pop(asked.question.id, None)
        ) is not None:  # an answer to either would be to both
            self._withdraw(other)
            await self.process.send_object(refused(asked, "Stopped.", stop=True))
        else:
            self._questions[asked.question.id] = asked
            event = QuestionAsked(session_id=session.id, turn_id=turn_id, question=asked.question)
            self.deliver(event.with_raw(line))

    async def _decide(self, asked: Asked) -> None:
        """Answer without the user, as the policy of the session says."""
        yes = self.access.answers == "allow" and asked.question.type != "user_input"
        await self.process.send_object(allowed(asked) if yes else refused(asked, NOBODY_ASKED))

    def _withdraw(self, asked: Asked) -> None:
        """Report that Claude Code no longer waits for the answer to a question."""
        session_id, question_id = self.session.id, asked.question.id
        self.deliver(QuestionClosed(session_id=session_id, question_id=question_id, answer=None, by="turn ended"))

    # --- usage and end of a turn
    # ------------------------------------------------------------------------------------------

    def _count(self, turn: ClaudeTurn, line: Mapping[str, Any]) -> None:
        message = mapping(line.get("message")) if line.get("type") == "assistant" else {}
        used, call = usage_of(message.get("usage")), text(message.get("id"))
        # Several lines repeat the usage of one message.
        if used is not None and message.get("model") != SYNTHETIC and turn.calls.get(call) != used:
            turn.calls[call] = used
            so_far = turn.used + sum(turn.calls.values(), Usage())
            self.deliver(UsageReported(session_id=self.session.id, turn_id=turn.id, turn=so_far))

    def _report(self, turn: ClaudeTurn, result: Mapping[str, Any]) -> None:
        usage, session = usage_of(result.get("usage")), self.session
        before, session.cost = session.cost, cost_of(result)
        # Claude Code reports the running total of the session.
        if usage is not None and before is not None and session.cost is not None:
            usage = replace(usage, cost_usd=max(0.0, session.cost - before))
        if usage is not None:
            turn.used += usage
            # The result includes all calls so far, which must not be counted twice.
            turn.calls.clear()
            reported = UsageReported(session_id=session.id, turn_id=turn.id, turn=turn.used)
            self.deliver(reported.with_raw(result))

    def withdraw_all(self) -> None:
        for asked in list(self._questions.values()):
            self._withdraw(self._questions.pop(asked.question.id))

    def ended(self, turn: AgentTurn) -> TurnEnded:
        assert isinstance(turn, ClaudeTurn)
        for event in turn.reader.close():
            self.deliver(event)
        outcome, failure = _outcome(turn)
        result = turn.result
        final = optional_text(result.get("result")) if result is not None and outcome == "completed" else None
        return TurnEnded(
            session_id=self.session.id, turn_id=turn.id, outcome=outcome, failure=failure, final_message=final
        ).with_raw(result)


def _outcome(turn: ClaudeTurn) -> tuple[TurnOutcome, Failure | None]:
    """Return how a turn has ended: as its result says, or without one because it was stopped with its process."""
    if turn.result is None:
        return "interrupted", None
    failure = failure_of(turn.result)
    if turn.planned and not turn.interrupted:
        return "completed", None
    # An error after an interrupt comes from the interrupt.
    if was_interrupted(turn.result) or (turn.interrupted and failure is not None):
        return "interrupted", None
    return ("completed", None) if failure is None else ("failed", failure)


# --- the dialect -----------------------------------------------------------------------------------------------------


_START_SECONDS: Final = 30.0
_REPLY_SECONDS: Final = 20.0
_CLOUDS: Final = {
    "CLAUDE_CODE_USE_BEDROCK": "aws",
    "CLAUDE_CODE_USE_VERTEX": "google",
    "CLAUDE_CODE_USE_FOUNDRY": "azure",
}
"""Variables that select a cloud for its model. Claude Code then needs that cloud's login."""


def _read_greeting(answer: Mapping[str, Any]) -> Mapping[str, Any]:
    response = mapping(answer.get("response"))
    if response.get("subtype") != "success":
        raise EngineProtocolError("Claude Code refused the handshake. Run `helmsman doctor` to find out why.")
    return mapping(response.get("response"))


_GREETING: Final = Greeting(
    title=TITLE,
    request={
        "type": "control_request",
        "request_id": GREETING_ID,
        # No hooks: each call of one would be another request to answer.
        "request": {"subtype": "initialize", "hooks": None},
    },
    read_answer=_read_greeting,
    watcher="helmsman.agents.claude.watching:ClaudeWatcher",
    seconds=_START_SECONDS,
    advice="Run `helmsman doctor` to find out why.",
    answer=("response", "request_id", GREETING_ID),
)


class ClaudeEngine(ProcessEngine):
    """See `ProcessEngine`: with the verbs that Claude Code has beyond other agents."""

    dialect: ClaudeDialect
    _said_of_itself: Mapping[str, Any] = {}

    async def compact(self, session_id: str) -> None:
        session = self._sessions.get(session_id)
        if session is None:
            raise self.dialect.not_found(session_id)
        await self.run_turn(session_id, session.options, TurnInput(text=COMPACT))

    async def rename(self, session_id: str, name: str) -> None:
        self._check()
        request = control("rename_session", title=name)
        session = self._sessions.get(session_id)
        with anyio.move_on_after(_REPLY_SECONDS):
            if session is not None and session.process is not None:
                assert isinstance(session.conversation, ClaudeConversation)
                reply = await session.conversation.request(request)
            else:
                # A session without a process gets one for this request only.
                reply = await self._ask_about(session_id, request)
            if reply.get("subtype") != "success":
                raise EngineRefused(f"Claude Code did not take the name: {text(reply.get('error'))}. Try another one.")
            return
        raise EngineTimeout(
            f"Claude Code did not say within {_REPLY_SECONDS:g} s whether it took the name. Look, try again."
        )

    async def _ask_about(self, session_id: str, request: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the answer to a request about a stored session. The caller bounds the wait."""
        directory = await anyio.to_thread.run_sync(self.dialect.find, session_id)
        await refuse_if_open(self.dialect.stored.home, session_id)
        async with self._started("--resume", session_id, directory=directory or Path("/")) as process:
            await process.send_object(request)
            async for line in process.lines():
                response = mapping(line.get("response"))
                if response.get("request_id") == request["request_id"]:
                    return response
            raise await process.end_of_output()

    async def models(self) -> tuple[Model, ...]:
        return models_in(await self._about_itself())

    async def account(self) -> Account:
        return account_in(await self._about_itself())

    async def _about_itself(self) -> Mapping[str, Any]:
        self._check()
        running = (session.process for session in self._sessions.values() if session.process is not None)
        # A process that runs anyway has said it in its greeting.
        self._said_of_itself = next((process.answer for process in running if process.answer), self._said_of_itself)
        if not self._said_of_itself:
            async with self._started("--no-session-persistence", directory=Path("/")) as process:
                self._said_of_itself = process.answer
        return self._said_of_itself

    @asynccontextmanager
    async def _started(self, *arguments: str, directory: Path) -> AsyncIterator[AgentProcess]:
        """Start a Claude Code in which nothing of the directory runs, and which gets no work.

        Raises:
            ProgramRefused: A session may have replaced it.
        """
        config = require_config(self.config)
        await anyio.to_thread.run_sync(check_command, config.argv, config.env)
        argv = [*config.argv, "-p", "--input-format", "stream-json", "--output-format", "stream-json"]
        # No MCP servers: starting them takes seconds, and nothing will use them.
        argv += ["--verbose", "--setting-sources", "user", "--strict-mcp-config", *arguments]
        env = self.dialect.binary.environment(config.env)
        env = await anyio.to_thread.run_sync(careful_environment, env, directory)
        launch = Launch(argv=argv, env=env, directory=directory, fingerprint="", about={})
        async with background_tasks() as tasks, open_child_agent(_GREETING, launch, tasks) as process:
            yield process


class ClaudeDialect(AgentDialect):
    """See `AgentDialect`. Sessions may only work in `roots`, if there are any."""

    agent = CLAUDE
    title = TITLE
    engine_name = CLAUDE
    engine_class = ClaudeEngine
    trust = TRUST
    greeting = _GREETING
    starts_with_session = False
    idle_seconds: ClassVar[float | None] = 120.0  # it holds 200 MB, and another one starts within a second

    def __init__(self, sessions: ClaudeSessions, binary: ClaudeBinary, roots: Sequence[Path] = ()) -> None:
        self.stored = sessions
        self.binary = binary
        self.roots = roots
        self.version = binary.version
        self.capabilities = capabilities(binary)

    def converse(self, engine: ProcessEngine, session: AgentSession, process: AgentProcess) -> ClaudeConversation:
        access = access_of(session.options, enforced=session.is_enforced, plans=session.about.get("plans") is True)
        return ClaudeConversation(engine, session, process, access)

    def opened(self, session: AgentSession, options: SessionOptions) -> Opened:
        # A running turn keeps the enforcement its process was started with.
        enforced = is_enforced(options) if session.turn is None else session.is_enforced
        access = access_of(options, enforced=enforced)
        turn_id = session.left_turn if session.turn is None else session.turn.id
        return Opened(
            session_id=session.id,
            turn_id=turn_id or None,
            directory=None if session.directory is None else str(session.directory),
            model=options.model,
            approval_policy=access.approval_policy,
            sandbox=access.sandbox,
            enforced=access.enforced,
            notes=access.notes,
        )

    def notes_on(self, turn: TurnInput) -> tuple[str, ...]:
        return () if turn.text == COMPACT else note_on(turn.text, TITLE)

    # --- processes ---------------------------------------------------------------------------------------------------

    async def check(self, config: LaunchConfig | None, options: SessionOptions) -> None:
        if is_enforced(options):
            await require_config(config).sandbox()

    def fits(self, session: AgentSession, options: SessionOptions, turn: TurnInput | None) -> bool:
        plans = turn is not None and turn.plan
        # A process that plans refuses everything, so it cannot do another turn.
        return super().fits(session, options, turn) and (session.about.get("plans") is True) == plans

    def _plan(self, session: AgentSession, options: SessionOptions, turn: TurnInput | None) -> PlannedLaunch:
        assert session.directory is not None
        given = TurnInput(text="") if turn is None else turn
        enforced = is_enforced(options)
        return plan_launch(self.binary, options, given, session.directory, session.id, enforced=enforced)

    def fingerprint(
        self, config: LaunchConfig, session: AgentSession, options: SessionOptions, turn: TurnInput | None
    ) -> str:
        return _digest(self._plan(session, options, turn))

    async def launch(
        self, config: LaunchConfig, session: AgentSession, options: SessionOptions, turn: TurnInput | None
    ) -> Launch:
        """Return how to start a process for a turn.

        Raises:
            Unsupported: There is no sandbox that holds.
            SessionLocked: Another process has the session open.
            InvalidInput: Outside, it would write where a command in the sandbox may have led it.
            ProgramRefused: A session may have replaced it.
        """
        assert session.directory is not None
        for root in (session.directory, *options.writable_roots) if self.roots else ():
            refuse_outside(root, self.roots, "cwd")
        planned = self._plan(session, options, turn)
        await refuse_if_open(self.stored.home, session.id)
        stored = await anyio.to_thread.run_sync(self.stored.path, session.id)
        # A new process counts from zero, a resumed one from what the session has cost.
        session.cost = 0.0
        if stored is not None:
            session.cost = await anyio.to_thread.run_sync(self.stored.cost, session.id)
        identity = _identity(session) if stored is None else ("--resume", session.id)
        # Immediately before the start, so that little time is left to replace the program.
        await anyio.to_thread.run_sync(check_command, config.argv, config.env)
        argv, env = [*config.argv, *planned.arguments, *identity], self.binary.environment(config.env)
        if not options.trust_repository:
            env = await anyio.to_thread.run_sync(careful_environment, env, session.directory)
        about = {"plans": planned.access.plans}
        line, used = await self._confined(config, planned, argv, env, stored)
        return Launch(argv=line, env=used, directory=session.directory, fingerprint=_digest(planned), about=about)

    async def _confined(
        self,
        config: LaunchConfig,
        planned: PlannedLaunch,
        argv: Sequence[str],
        env: Mapping[str, str],
        stored: Path | None,
    ) -> tuple[Sequence[str], Mapping[str, str]]:
        if planned.confined is None:
            places = [self.binary.home / name for name in WRITABLE_AT_HOME]
            await anyio.to_thread.run_sync(refuse_planted, TITLE, places)
            return argv, env
        sandbox, confined = await config.sandbox(), planned.confined
        # A session that was moved is in another directory than its project's; a link could lead out of the sandbox.
        if stored is not None and not stored.parent.is_symlink():
            confined = replace(confined, writable=(*confined.writable, stored.parent))
        confined = replace(
            confined,
            needs=(*confined.needs, *cloud_logins(env, _CLOUDS)),
            variables=(*confined.variables, *cloud_variables(env, _CLOUDS)),
        )
        return await anyio.to_thread.run_sync(lambda: sandbox.around(argv, env, confined))

    def clear_up(self, state_dir: Path, session: AgentSession) -> None:
        """Remove what the sandbox has left. Its temporary files stay, for the session's next process."""
        MountPoints(state_dir).clear(session.id)

    # --- session files -----------------------------------------------------------------------------------------------

    def find(self, session_id: str) -> Path | None:
        info = self.stored.find(session_id)
        if info is None:
            raise self.not_found(session_id)
        return None if info.directory is None else Path(info.directory)

    def history(self, session: AgentSession | None, session_id: str) -> tuple[PastTurn, ...]:
        turns = self.stored.past_turns(session_id)
        if turns is None and session is None:
            raise self.not_found(session_id)
        return turns or ()

    def fork_point(self, session_id: str, last_turn_id: str | None) -> ForkPoint:
        line = self.stored.last_line(session_id, last_turn_id)
        if line is None:
            raise InvalidInput(f"Nothing has been said yet in session {session_id}. Start a new one instead.")
        # The id of a line, since Claude Code forks after lines, not turns.
        return ForkPoint(session_id, last_turn_id, None if last_turn_id is None else line)


def _identity(session: AgentSession) -> tuple[str, ...]:
    """Return the arguments that say which session a process begins."""
    own, fork = ("--session-id", session.id), session.forked_from
    if fork is None:
        return own
    # Without the own id, Claude Code would choose one that is known only after its start.
    line = () if fork.line is None else ("--resume-session-at", fork.line)
    return ("--resume", fork.session_id, "--fork-session", *line, *own)


def _digest(planned: PlannedLaunch) -> str:
    return hashlib.sha256(repr(planned).encode("utf-8", "surrogateescape")).hexdigest()


# --- what it says of itself -------------------------------------------------------------------------------------------


def models_in(said: Mapping[str, Any]) -> tuple[Model, ...]:
    return tuple(
        Model(
            id=text(one.get("value")),
            name=text(one.get("displayName")),
            description=optional_text(one.get("description")),
            is_default=one.get("value") == "default",
            efforts=tuple(texts(one.get("supportedEffortLevels"))),
            default_effort=None,
        )
        for one in map(mapping, sequence(said.get("models")))
    )


def account_in(said: Mapping[str, Any]) -> Account:
    about = mapping(said.get("account"))
    source = optional_text(about.get("apiKeySource")) or optional_text(about.get("tokenSource"))
    kind = None if source in (None, "none") else source
    return Account(
        kind=kind,
        email=optional_text(about.get("email")),
        plan=optional_text(about.get("subscriptionType")),
        requires_login=kind is None,
    )
