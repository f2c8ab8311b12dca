"""The engine of agents that speak the Agent Client Protocol: a process for each session, and the same promises for all.

The protocol has no turn ids and no "turn started": a turn is a prompt that has not been answered. What the engine adds: each
turn has an id, one beginning and one end; the mode that asks is set after every load, before the first prompt; a question is
answered once, and always; an interrupt has stopped the turn and all it had started; and a process that dies takes its own
session with it, and no other.
"""

from __future__ import annotations

import contextlib
import logging
import uuid
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

import anyio
import anyio.to_thread

from helmsman.agents.acp import permissions
from helmsman.agents.acp.asked import model_in, prompt_content, refuse_danger, refuse_unknown
from helmsman.agents.acp.confined import command_line
from helmsman.agents.acp.failures import turn_failure
from helmsman.agents.acp.held import AgentTurn, HeldSession
from helmsman.agents.acp.process import open_agent
from helmsman.agents.acp.profile import is_enforced
from helmsman.agents.acp.updates import TurnItems
from helmsman.agents.event_router import EventRouter
from helmsman.agents.protocol import Begun, Engine
from helmsman.base.concurrency import background_tasks
from helmsman.base.json_values import mapping, optional_text, text
from helmsman.errors import (
    EngineLost,
    EngineRefused,
    EngineStartFailed,
    HelmsmanError,
    InvalidInput,
    QuestionNotOpen,
    SessionBusy,
    SessionIdle,
    SessionNotFound,
)
from helmsman.model.answered_by import TURN_ENDED
from helmsman.model.events import (
    EngineGone,
    Failure,
    Notice,
    QuestionAsked,
    QuestionClosed,
    SessionRenamed,
    TurnEnded,
    TurnStarted,
    Unknown,
    UsageReported,
)
from helmsman.model.questions import ABORT

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from anyio.abc import TaskGroup, TaskStatus

    from helmsman.agents.acp.process import AgentProcess
    from helmsman.agents.acp.profile import Profile
    from helmsman.agents.protocol import Capabilities, Opened, PastTurn
    from helmsman.agents.sandbox import Sandbox
    from helmsman.base.jsonrpc import IncomingRequest
    from helmsman.model.events import Event
    from helmsman.model.options import SessionOptions, TurnInput
    from helmsman.model.questions import Choice, Question

log = logging.getLogger(__name__)

INTERRUPT_SECONDS: Final = 10.0
"""How long an agent may take to answer a prompt that was cancelled: half a second was seen, or never, while it retries."""

CLOSE_SECONDS: Final = 2.0
"""How long it may take when the engine is closed; then it is ended anyway."""

_LOOK_FOR_IDLE: Final = 30.0
_QUIET: Final = frozenset({"available_commands_update", "user_message_chunk", "usage_update", "config_option_update"})
"""Updates that change nothing Helmsman shows. One agent sends half a megabyte of commands with each session."""
_STEERING: Final = "craft/drainMidTurnQueue"


class AcpEngine(Engine):
    """See `helmsman.agents.protocol.Engine`. Made by `open_acp_engine` only."""

    def __init__(
        self,
        tasks: TaskGroup,
        profile: Profile,
        argv: Sequence[str],
        env: Mapping[str, str],
        places: Path,
        idle: float,
        sandbox: Callable[[], Awaitable[Sandbox]],
    ) -> None:
        self._tasks = tasks
        self._profile = profile
        self._argv = argv
        self._env = env
        self._places = places
        self._idle = idle
        self._sandbox = sandbox
        self._router = EventRouter()
        self._sessions: dict[str, HeldSession] = {}
        self._reader = profile.reader(env)
        self._capabilities = profile.capabilities(has_history=self._reader is not None)
        self._lost: HelmsmanError | None = None

    @property
    def name(self) -> str:
        return "acp"

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    @property
    def lost(self) -> HelmsmanError | None:
        return self._lost

    async def until_lost(self) -> None:
        await anyio.sleep_forever()

    def attach(self, session_id: str, sink: Callable[[Event], None]) -> None:
        self._check()
        self._router.attach(session_id, sink)

    def detach(self, session_id: str) -> None:
        self._router.detach(session_id)

    def _tell(self, events: Iterable[Event]) -> None:
        for event in events:
            self._router.deliver(event)

    def _check(self) -> None:
        if self._lost is not None:
            raise self._lost.again()

    # --- sessions ----------------------------------------------------------------------------------------------------

    async def open(self, options: SessionOptions) -> Opened:
        session = await self._start(options)
        try:
            made = await self._ask(session, "session/new", self._place(session))
            session.id = self._id_in(made)
            await self._apply(session, options)
        except BaseException:
            await self._stop(session)
            raise
        self._sessions[session.id] = session
        session.model = options.model or model_in(made)
        return session.opened()

    def _place(self, session: HeldSession) -> dict[str, Any]:
        meta = self._profile.session_meta(session.options)
        return {"cwd": str(session.directory), "mcpServers": [], **({"_meta": meta} if meta else {})}

    def _id_in(self, made: Mapping[str, Any]) -> str:
        if session_id := text(made.get("sessionId")):
            return session_id
        raise EngineStartFailed(f"{self._profile.title} gave the new session no id. Try another version of it.")

    async def resume(self, session_id: str, options: SessionOptions) -> Opened:
        self._check()
        session = await self._loaded(session_id, options)
        return session.opened()

    async def history(self, session_id: str) -> tuple[PastTurn, ...]:
        self._check()
        if self._reader is None:
            return await super().history(session_id)
        turns = await anyio.to_thread.run_sync(self._reader.history, session_id)
        if turns is None:
            raise self._not_found(session_id)
        return turns

    async def _loaded(self, session_id: str, options: SessionOptions) -> HeldSession:
        """A session in a process that was started for these options."""
        session = self._sessions.get(session_id)
        if session is not None and session.process is not None:
            if session.turn is not None or session.options == options:
                return session
            if self._launch(session.options) == self._launch(options):
                await self._apply(session, options)
                return session
            await self._stop(session)
        return await self._load(session_id, options)

    async def _load(self, session_id: str, options: SessionOptions) -> HeldSession:
        if self._reader is not None and await anyio.to_thread.run_sync(self._reader.find, session_id) is None:
            raise self._not_found(session_id)  # some agents begin a session of that id
        await self._profile.may_load(session_id, self._env)
        session = await self._start(options)
        session.id, session.loading = session_id, True
        can = {} if session.process is None else session.process.session_capabilities
        method = "session/resume" if "resume" in can else "session/load"
        try:
            params = {"sessionId": session_id, **self._place(session)}
            try:
                made = await self._ask(session, method, params)
            except EngineRefused as error:
                raise self._not_found(session_id) from error
            await self._apply(session, options)
        except BaseException:
            await self._stop(session)
            raise
        session.loading = False
        await anyio.to_thread.run_sync(self._profile.was_loaded, session_id, self._env)
        if self._profile.counting == "files" and self._reader is not None:
            session.counted = await anyio.to_thread.run_sync(self._reader.spent, session_id)
        session.model = options.model or model_in(made)
        self._sessions[session_id] = session
        return session

    def _launch(self, options: SessionOptions) -> object:
        """What of the options is in the process itself."""
        held = (options.writes, options.writable_roots) if is_enforced(options) else None
        return options.cwd, held, self._profile.environment(self._env, options, self._places)

    async def _apply(self, session: HeldSession, options: SessionOptions) -> None:
        """Set what no agent keeps: the mode, before anything else is said, and the model.

        Raises:
            EngineStartFailed: It does not take the mode that is needed for it to ask.
        """
        access = self._profile.access(options)
        if access.mode is not None:
            try:
                await self._ask(session, "session/set_mode", {"sessionId": session.id, "modeId": access.mode})
            except EngineRefused as error:
                raise EngineStartFailed(
                    f"{self._profile.title} does not take the mode {access.mode!r}, so nobody can say what it would do "
                    f"unasked: {error.details.get('rpc_message')}. Use a version that Helmsman knows."
                ) from error
        if options.model is not None and self._profile.model_by == "set_model":
            await self._ask(session, "session/set_model", {"sessionId": session.id, "modelId": options.model})
        elif options.model is not None and self._profile.model_by == "set_config_option":
            await self._ask(
                session,
                "session/set_config_option",
                {"sessionId": session.id, "configId": "model", "value": options.model},
            )
        session.options, session.access = options, access

    # --- processes ---------------------------------------------------------------------------------------------------

    async def _start(self, options: SessionOptions) -> HeldSession:
        """A process for a session under these options.

        Raises:
            InvalidInput: Something is asked for that it cannot do, or that would run what nobody has trusted.
            EngineStartFailed: It does not come up.
        """
        self._check()
        if options.cwd is None or not await anyio.to_thread.run_sync(options.cwd.is_dir):
            raise InvalidInput("A session needs a working directory. Name one that exists.")
        refuse_unknown(self._profile, options)
        await anyio.to_thread.run_sync(refuse_danger, self._profile, options, options.cwd)
        session = HeldSession(options, options.cwd, self._profile.access(options))
        await self._tasks.start(self._serve, session)
        return session

    async def _serve(self, session: HeldSession, *, task_status: TaskStatus[None]) -> None:
        argv, env = await command_line(
            self._profile, session.options, self._argv, self._env, places=self._places, find=self._sandbox
        )
        reason: HelmsmanError | None = None

        def closed(why: HelmsmanError) -> None:
            nonlocal reason
            reason = why
            if session.process is not None:  # else whoever greets it is told
                session.scope.cancel()

        try:
            with session.scope:
                async with (
                    background_tasks() as tasks,
                    open_agent(
                        self._profile,
                        argv,
                        env=env,
                        directory=session.directory,
                        on_notification=lambda method, params: self._on_notification(session, method, params),
                        on_request=lambda request: self._on_request(session, request),
                        on_close=closed,
                        tasks=tasks,
                    ) as process,
                ):
                    session.process = process
                    session.idle_since = anyio.current_time()
                    task_status.started()
                    await anyio.sleep_forever()
        finally:
            was_up, session.process = session.process is not None, None
            session.gone.set()
            if was_up:
                self._on_gone(session, reason)
        if not was_up:
            raise reason or EngineStartFailed(f"{self._profile.title} did not come up. Start it by hand to see why.")

    async def _stop(self, session: HeldSession) -> None:
        """End the process of a session, with all it has started."""
        session.leaving = True
        session.scope.cancel()
        with anyio.CancelScope(shield=True):
            await session.gone.wait()

    def _on_gone(self, session: HeldSession, reason: HelmsmanError | None) -> None:
        session.questions.clear()
        turn, session.turn = session.turn, None
        if turn is not None:
            turn.ended.set()
        if self._lost is None and not session.leaving and session.id:
            why = reason or EngineLost(f"{self._profile.title} has ended. Send the next message to start it again.")
            failure = Failure(code=why.code, message=why.message, retryable=True)
            self._router.deliver(EngineGone(session_id=session.id, failure=failure))

    async def end_idle(self) -> None:
        """End the processes of sessions in which nothing has run for long; they load again."""
        while True:
            await anyio.sleep(min(_LOOK_FOR_IDLE, self._idle))
            for session in list(self._sessions.values()):
                is_idle = session.turn is None and session.process is not None
                if is_idle and anyio.current_time() - session.idle_since > self._idle:
                    await self._stop(session)

    async def close(self) -> None:
        """Stop what runs and end all processes."""
        self._lost = EngineLost("The engine was closed. Open another one; sessions continue from disk.")
        async with anyio.create_task_group() as tasks:
            for session in self._sessions.values():
                tasks.start_soon(self._cancel_and_stop, session)
        self._router.engine_gone(Failure(code=self._lost.code, message=self._lost.message, retryable=True))

    async def _cancel_and_stop(self, session: HeldSession) -> None:
        turn, process = session.turn, session.process
        if turn is not None and process is not None:  # cancelled, it is written down as such, and its commands end
            turn.interrupted = True
            with contextlib.suppress(HelmsmanError), anyio.move_on_after(CLOSE_SECONDS):
                process.peer.notify("session/cancel", {"sessionId": session.id})
                await turn.ended.wait()
        await self._stop(session)

    async def _ask(self, session: HeldSession, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        if session.process is None:
            raise EngineLost(f"{self._profile.title} has ended. Send the message again to start it.")
        return mapping(await session.process.request(method, params))

    # --- turns -------------------------------------------------------------------------------------------------------

    async def run_turn(self, session_id: str, options: SessionOptions, turn: TurnInput) -> Begun:
        self._check()
        known = self._sessions.get(session_id)
        if known is not None and known.turn is not None:
            raise SessionBusy(f"A turn is running in session {session_id}. Wait for it, or interrupt it.")
        content = await anyio.to_thread.run_sync(prompt_content, turn)
        session = await self._loaded(session_id, options)
        process = session.process
        if process is None:
            raise EngineLost(f"{self._profile.title} has ended. Send the message again to start it.")
        await process.remember_own()
        if session.turn is not None:
            raise SessionBusy(f"A turn is running in session {session_id}. Wait for it, or interrupt it.")
        turn_id = str(uuid.uuid4())
        items = TurnItems(self._profile, session_id, turn_id, str(session.directory))
        running = session.turn = AgentTurn(turn_id, items)
        self._router.deliver(TurnStarted(session_id=session_id, turn_id=turn_id))
        self._send(session, process, running, content)
        notes = (f"{self._profile.title} cannot be told how hard to think.",) if turn.effort is not None else ()
        return Begun(session_id=session_id, turn_id=turn_id, notes=notes)

    def _send(
        self, session: HeldSession, process: AgentProcess, turn: AgentTurn, content: Sequence[Mapping[str, Any]]
    ) -> None:
        turn.prompts += 1
        self._tasks.start_soon(self._prompt, session, process, turn, content)

    async def _prompt(
        self, session: HeldSession, process: AgentProcess, turn: AgentTurn, content: Sequence[Mapping[str, Any]]
    ) -> None:
        try:
            answer = await process.prompt(session.id, content)
            turn.answer = answer
            await self._count(session, turn, answer)
        except EngineRefused as error:
            turn.failure = turn_failure(error)
        except HelmsmanError:
            return  # the process has gone, and the session was told
        finally:
            turn.prompts -= 1
        if turn.prompts or session.turn is not turn:
            return
        if (turn.later or turn.reasons) and not turn.interrupted and turn.failure is None:
            said, turn.later, turn.reasons = "\n\n".join((*turn.reasons, *turn.later)), [], []
            self._tell(turn.items.pause())
            self._send(session, process, turn, [{"type": "text", "text": said}])
            return
        self._end(session, turn)

    def _end(self, session: HeldSession, turn: AgentTurn) -> None:
        """The turn is over: all that is open in it is closed, and it is told once."""
        outcome, failure = turn.outcome(self._profile.title)
        for question_id, request in list(session.questions.items()):
            self._withdraw(session, question_id, request)
        self._tell(turn.items.end(completed=outcome == "completed"))
        if turn.usage is not None:
            self._router.deliver(UsageReported(session_id=session.id, turn_id=turn.id, last=turn.usage))
        session.turn = None
        session.idle_since = anyio.current_time()
        self._router.deliver(TurnEnded(session_id=session.id, turn_id=turn.id, outcome=outcome, failure=failure))
        turn.ended.set()

    async def _count(self, session: HeldSession, turn: AgentTurn, answer: Mapping[str, Any]) -> None:
        if self._profile.counting == "files" and self._reader is not None:
            total = await anyio.to_thread.run_sync(self._reader.spent, session.id)
            turn.count(session.since_last(total))
        elif (used := self._profile.prompt_usage(answer)) is not None:
            turn.count(session.since_last(used) if self._profile.counting == "process" else used)

    async def steer(self, session_id: str, text: str) -> None:
        self._check()
        session = self._sessions.get(session_id)
        turn = None if session is None else session.turn
        if session is None or turn is None or session.process is None:
            raise SessionIdle(f"No turn is running in session {session_id}. Send it as a new message instead.")
        match self._profile.steering:
            case "second prompt":
                self._send(session, session.process, turn, [{"type": "text", "text": text}])
            case "when asked":
                turn.later.append(text)
            case "request":
                content = [{"type": "text", "text": text}]
                await self._ask(session, "_session/steering", {"sessionId": session_id, "prompt": content})
            case _:
                await super().steer(session_id, text)

    async def interrupt(self, session_id: str) -> None:
        self._check()
        session = self._sessions.get(session_id)
        if session is None or session.turn is None or session.process is None:
            return
        turn, process = session.turn, session.process
        turn.interrupted = True
        noted = await process.commands()  # those that leave their parents are found by this alone on some systems
        if session.turn is turn:
            for question_id, request in list(session.questions.items()):
                self._withdraw(session, question_id, request)
            process.peer.notify("session/cancel", {"sessionId": session_id})
        with anyio.move_on_after(INTERRUPT_SECONDS):
            await turn.ended.wait()
        if session.turn is turn:  # it does not listen, for example while it waits to ask its model again
            await self._stop(session)
            session.turn = turn
            self._end(session, turn)
            return
        await process.end_commands(noted)

    # --- what the agent says -----------------------------------------------------------------------------------------

    def _on_notification(self, session: HeldSession, method: str, params: Mapping[str, Any]) -> None:
        if method != "session/update" or session.loading or not session.id:
            return
        update = mapping(params.get("update"))
        kind, turn = text(update.get("sessionUpdate")), session.turn
        if kind == "session_info_update" and (title := optional_text(update.get("title"))) is not None:
            self._router.deliver(SessionRenamed(session_id=session.id, name=title))
        elif kind == "current_mode_update":
            self._on_mode(session, optional_text(update.get("currentModeId")))
        elif kind in _QUIET or turn is None:
            return
        elif kind in ("agent_message_chunk", "agent_thought_chunk", "tool_call", "tool_call_update", "plan"):
            self._tell(turn.items.take(update))
            turn.count(self._profile.update_usage(update))
        else:
            self._router.deliver(Unknown(session_id=session.id, turn_id=turn.id, name=kind, payload=update))

    def _on_mode(self, session: HeldSession, mode: str | None) -> None:
        wanted = session.access.mode
        if wanted is None or mode == wanted or session.process is None:
            return
        # Only an answer that Helmsman never gives was seen to lead to this.
        message = f"{self._profile.title} changed its mode to {mode}; it is set back to {wanted}."
        self._router.deliver(Notice(session_id=session.id, kind="warning", message=message))
        self._tasks.start_soon(self._set_back, session, wanted)

    async def _set_back(self, session: HeldSession, mode: str) -> None:
        try:
            await self._ask(session, "session/set_mode", {"sessionId": session.id, "modeId": mode})
        except HelmsmanError as error:
            log.warning("%s stays in a mode that was not asked for, so it is ended: %s", self._profile.title, error)
            session.scope.cancel()

    # --- questions ---------------------------------------------------------------------------------------------------

    def _on_request(self, session: HeldSession, request: IncomingRequest) -> bool:
        if request.method == _STEERING and self._profile.steering == "when asked":
            return self._give_later(session, request)
        if request.method != permissions.REQUEST or session.process is None:
            return False
        turn = session.turn
        if turn is None or turn.interrupted:
            return session.process.peer.respond(request.id, permissions.CANCELLED)
        asked = mapping(request.params.get("toolCall"))
        self._tell(turn.items.call(asked))
        answers = session.access.answers
        if answers is not None:
            return self._answer_unasked(session, turn, request, answers == "yes")
        call = turn.items.known(text(asked.get("toolCallId")))
        asking = permissions.Asking(
            title=self._profile.title,
            session_id=session.id,
            turn_id=turn.id,
            directory=str(session.directory),
            request_id=request.id,
            sandbox="inside" if is_enforced(session.options) else "outside",
        )
        question = permissions.read_question(request.params, {} if call is None else call.fields, asking)
        session.questions[question.id] = request
        self._router.deliver(
            QuestionAsked(session_id=session.id, turn_id=turn.id, question=question, raw=request.params)
        )
        return True

    def _answer_unasked(self, session: HeldSession, turn: AgentTurn, request: IncomingRequest, yes: bool) -> bool:
        assert session.process is not None
        result = permissions.unasked(request.params, yes=yes)
        if result == permissions.refusing(request.params):
            turn.decline(request)
        return session.process.peer.respond(request.id, result)

    def _give_later(self, session: HeldSession, request: IncomingRequest) -> bool:
        assert session.process is not None
        messages: list[str] = []
        if session.turn is not None:
            messages, session.turn.later = session.turn.later, []
        return session.process.peer.respond(request.id, {"messages": messages, "hasQueuedPrompt": False})

    async def answer(self, question: Question, choices: tuple[Choice, ...] | None) -> None:
        self._check()
        session = self._sessions.get(question.session_id)
        request = None if session is None else session.questions.pop(question.id, None)
        if session is None or request is None or session.process is None:
            raise _not_open(question)
        turn = session.turn
        result = permissions.write_answer(request.params, choices)
        granted = result not in (permissions.CANCELLED, permissions.refusing(request.params))
        if turn is not None and not granted:
            turn.decline(request)
            reason = choices[0].reason if choices else None
            if reason is not None and choices is not None and choices[0].value != ABORT:
                turn.reasons.append(reason)  # a refusal has no place for it: it is the next thing the model reads
        if not session.process.peer.respond(request.id, result):
            raise _not_open(question)
        if choices and choices[0].value == ABORT:
            await self.interrupt(question.session_id)

    def _withdraw(self, session: HeldSession, question_id: str, request: IncomingRequest) -> None:
        session.questions.pop(question_id, None)
        if session.process is not None:
            session.process.peer.respond(request.id, permissions.CANCELLED)
        self._router.deliver(
            QuestionClosed(session_id=session.id, question_id=question_id, answer=None, by=str(TURN_ENDED))
        )

    def _not_found(self, session_id: str) -> SessionNotFound:
        return SessionNotFound(
            f"{self._profile.title} knows no session {session_id}. List the sessions to find the right id."
        )


@asynccontextmanager
async def open_acp_engine(
    profile: Profile,
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    places: Path,
    idle: float,
    sandbox: Callable[[], Awaitable[Sandbox]],
) -> AsyncIterator[AcpEngine]:
    """An engine for the length of the block; its processes end with it. `sandbox` finds what is put around them."""
    async with background_tasks() as tasks:
        engine = AcpEngine(tasks, profile, argv, env, places, idle, sandbox)
        tasks.start_soon(engine.end_idle)
        try:
            yield engine
        finally:
            with anyio.CancelScope(shield=True):
                await engine.close()


def _not_open(question: Question) -> QuestionNotOpen:
    return QuestionNotOpen(
        f"Question {question.id} is not open any more: it was answered, or its turn ended. Look at the status."
    )
