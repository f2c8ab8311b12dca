"""A session while a process has it: what that says and asks, and the turn that runs in it."""

from __future__ import annotations

import logging
import uuid
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import anyio
import anyio.to_thread

from helmsman.agents.acp import permissions
from helmsman.agents.acp.asked import text_block
from helmsman.agents.acp.failures import turn_failure
from helmsman.agents.acp.process import REQUEST_SECONDS
from helmsman.agents.acp.profile import MODE, AgentAccess
from helmsman.agents.acp.turn import AgentTurn
from helmsman.agents.acp.updates import TurnItems
from helmsman.agents.prompt_words import as_words
from helmsman.agents.protocol import Opened
from helmsman.base.json_values import amount, integer, mapping, optional_text, sequence, text, texts
from helmsman.base.structs import replace
from helmsman.errors import EngineLost, EngineRefused, EngineStartFailed, HelmsmanError, QuestionNotOpen
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
    Usage,
    UsageReported,
)
from helmsman.model.options import approval_word, sandbox_word
from helmsman.model.questions import ABORT

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from anyio.abc import TaskGroup

    from helmsman.agents.acp.process import AgentProcess
    from helmsman.agents.acp.profile import Profile
    from helmsman.agents.acp.storage.reader import SessionReader
    from helmsman.agents.event_router import EventRouter
    from helmsman.base.jsonrpc import IncomingRequest
    from helmsman.model.events import Event
    from helmsman.model.options import SessionOptions
    from helmsman.model.questions import Choice, Question

log = logging.getLogger(__name__)

_QUIET: Final = frozenset(
    {"available_commands_update", "config_option_update", "current_mode_update", "user_message_chunk", "usage_update"}
)
"""Updates that change nothing Helmsman shows. One agent sends half a megabyte of commands with each session."""
CANCEL_SECONDS: Final = 0.5
"""Seconds that a turn may take to stop in an agent that might have stopped asking, before Helmsman kills the agent."""
UNTOLD_SECONDS: Final = 30.0
"""Seconds that an agent may take to report the input of a tool call that it asks about. Agents were seen to need a moment.
"""
_BEGUN: Final = "in_progress"
_CHANGED: Final = "its call changed"
_STEERING: Final = "craft/drainMidTurnQueue"


@dataclass(frozen=True, slots=True)
class Around:
    """State that the sessions of an engine share."""

    tasks: TaskGroup
    router: EventRouter
    profile: Profile
    reader: SessionReader | None


@dataclass(slots=True)
class OpenRequest:
    """A request that waits for its answer. `announced` is the title that its call had before."""

    request: IncomingRequest
    announced: str | None
    question: Question | None = None
    """The question as shown to the user; None before the user is asked."""
    times: int = 0

    @property
    def call_id(self) -> str:
        return text(mapping(self.request.params.get("toolCall")).get("toolCallId"))


class HeldSession:
    """One session. Its engine starts and ends its process; this object turns the messages of the process into events."""

    def __init__(self, around: Around, options: SessionOptions, directory: Path) -> None:
        self._around = around
        self._profile = around.profile
        self._router = around.router
        self.options = options
        self.directory = directory
        self.access = around.profile.access(options)
        self.id = ""
        self.process: AgentProcess | None = None
        self.launch = ""
        """A fingerprint of how the process was started, for comparing."""
        self.confinement: str | None = None
        """A fingerprint of the sandbox of the process, for comparing; None without a sandbox."""
        self.scope = anyio.CancelScope()
        self.gone = anyio.Event()
        self.loading = False
        self.turn: AgentTurn | None = None
        self.left_turn: str | None = None
        """The turn that an earlier owner left, until a caller asks for it. It may have ended."""
        self.was_left = False
        """True if the options that the process was started with, or its current settings, are unknown."""
        self.questions: dict[str, OpenRequest] = {}
        self.untold: dict[str, OpenRequest] = {}
        """Requests about tool calls whose input the agent has not reported yet."""
        self.counted = Usage()
        """The usage counted so far, for agents that report a sum."""
        self.cost: float | None = 0.0
        """The session's cost before this turn, as reported by the agent; None if unknown."""
        self.told_cost: float | None = None
        self.idle_since = 0.0
        self.leaving = False
        self.stopped = ""
        """The reason why the session is about to be ended: the agent might have stopped asking."""
        self.is_set_up = False
        """True after the agent has received its mode. From then on, every change that it reports takes effect immediately.
        """
        self._news: dict[str, str | None] = {}
        """Reported modes and options during setup, each since it was set. They take effect when the setup is complete."""
        self.option_names: frozenset[str] = frozenset()
        """The options in which it asks, as far as the agent has them for it."""
        self.model: str | None = None

    @property
    def is_enforced(self) -> bool:
        """Return whether a sandbox restricts where the process may write."""
        return self.confinement is not None

    @property
    def is_ending(self) -> bool:
        """Return whether the process is about to end, so that nothing may be started in it."""
        return bool(self.stopped) or self.leaving

    def opened(self) -> Opened:
        """Return the session as reported to the caller who opened it."""
        options = self.options
        says_sandbox = self.is_enforced or options.writes == "anything"
        return Opened(
            session_id=self.id,
            turn_id=self.left_turn if self.turn is None else self.turn.id,
            directory=str(self.directory),
            model=self.model,
            approval_policy=approval_word(options.asks or "unless_harmless"),
            sandbox=sandbox_word(options.writes or "workspace") if says_sandbox else None,
            enforced=self.is_enforced,
            notes=self.access.notes,
        )

    async def ask(self, method: str, params: Mapping[str, Any], *, sets: str = "") -> Mapping[str, Any]:
        """Send a request to the process. Its answer voids earlier reports of the setting that this request `sets`."""
        if self.process is None:
            raise EngineLost(f"{self._profile.title} has ended. Send the message again to start it.")

        def answered(result: Any) -> None:
            self._news.pop(sets, None)
            self._hear(self._profile.settings_in(mapping(result)))

        return mapping(await self.process.request(method, params, answered))

    async def set_up(self, options: SessionOptions) -> None:
        """Set what no agent keeps: the mode, before anything else is said, and the model. If it fails, it is to be ended.

        What the agent says of a setting is from before until it has answered that this is set. From then on it counts: no
        prompt may go to one that has said since that it is in another mode.

        Raises:
            EngineStartFailed: It does not take the mode that is needed for it to ask, or does not stay in it.
        """
        access = self._profile.access(options)
        self.is_set_up = False
        if access.mode is not None:
            await self._set("session/set_mode", MODE, access.mode, modeId=access.mode)
        for name, value in self._profile.asking_options.items():
            if name in self.option_names:
                await self._set("session/set_config_option", name, value, configId=name, value=value)
        if options.model is not None and self._profile.model_by == "set_model":
            await self.ask("session/set_model", {"sessionId": self.id, "modelId": options.model})
        elif options.model is not None and self._profile.model_by == "set_config_option":
            params = {"sessionId": self.id, "configId": "model", "value": options.model}
            await self.ask("session/set_config_option", params)
        self.access, self.is_set_up = access, True
        news, self._news = self._news, {}
        self._hear(news)
        if self.stopped:
            raise EngineStartFailed(self.stopped)
        self.options, self.was_left = options, False

    async def _set(self, method: str, name: str, wanted: str, **params: str) -> None:
        try:
            await self.ask(method, {"sessionId": self.id, **params}, sets=name)
        except EngineRefused as error:
            what = "the mode" if name == MODE else name
            raise EngineStartFailed(
                f"{self._profile.title} does not take {what} {wanted!r}, so nobody can say what it would do "
                f"unasked: {error.details.get('rpc_message')}. Use a version that Helmsman knows."
            ) from error

    def _emit(self, events: Iterable[Event]) -> None:
        for event in events:
            self._deliver(event)

    def _deliver(self, event: Event) -> None:
        if self.process is not None:
            self.process.position.stamp(event)
        self._router.deliver(event)

    # --- turns -------------------------------------------------------------------------------------------------------

    async def begin(self, content: Sequence[Mapping[str, Any]]) -> AgentTurn:
        """Begin a turn with a prompt; the process has it then, or has gone."""
        turn = self._new_turn(str(uuid.uuid4()))
        self.send(turn, content)
        with anyio.move_on_after(REQUEST_SECONDS):
            await turn.sent.wait()
        return turn

    def _new_turn(self, turn_id: str) -> AgentTurn:
        turn = AgentTurn(turn_id, TurnItems(self._profile, self.id, turn_id, str(self.directory)))
        self.turn = turn
        self._deliver(TurnStarted(session_id=self.id, turn_id=turn_id))
        return turn

    def send(self, turn: AgentTurn, content: Sequence[Mapping[str, Any]]) -> None:
        """Send a prompt that belongs to a turn."""
        assert self.process is not None
        prompt = self.process.new_prompt()
        turn.prompts.append(prompt)
        self.note(turn)
        answered = partial(self._note_answer, turn)
        self._await_answer(turn, partial(self.process.prompt, prompt[0], self.id, content, turn.sent.set, answered))

    def _note_answer(self, turn: AgentTurn, _result: Any) -> None:
        turn.answered_at = None if self.process is None else self.process.position.offset

    def _await_answer(self, turn: AgentTurn, ask: Callable[[], Awaitable[Mapping[str, Any]]]) -> None:
        turn.unanswered += 1
        self._around.tasks.start_soon(self._prompt, turn, ask)

    async def _prompt(self, turn: AgentTurn, ask: Callable[[], Awaitable[Mapping[str, Any]]]) -> None:
        try:
            turn.answer = await ask()
            await self._count(turn, turn.answer)
        except EngineRefused as error:
            turn.failure = turn_failure(error)
        except HelmsmanError:
            return  # the process has gone, and the session knows
        finally:
            turn.unanswered -= 1
            turn.sent.set()
        if turn.unanswered or self.turn is not turn:
            return
        if (turn.later or turn.reasons) and not turn.interrupted and turn.failure is None:
            said, turn.later, turn.reasons = "\n\n".join((*turn.reasons, *turn.later)), [], []
            self._emit(turn.items.pause())
            self.send(turn, [text_block(said)])
            return
        if self.process is not None:  # before the end is reported: a check may begin at that moment
            await anyio.to_thread.run_sync(self.process.processes.end_started_by_turns)
        if self.turn is turn and not turn.unanswered:
            self._end_at_answer(turn)

    def _end_at_answer(self, turn: AgentTurn) -> None:
        """Tell the end as part of the line that answered the prompt, though other lines may have been read since."""
        if self.process is None:
            self.end(turn)
            return
        with self.process.position.at(turn.answered_at):
            self.end(turn)

    def end(self, turn: AgentTurn) -> None:
        """End the turn: close all that is open in it, and report the end once."""
        if turn.is_told:
            return
        turn.is_told = True
        outcome, failure = turn.outcome(self._profile.title)
        self.withdraw_all()
        self._emit(turn.items.end(completed=outcome == "completed"))
        if (used := self._used_in(turn)) is not None:
            self._deliver(UsageReported(session_id=self.id, turn_id=turn.id, last=used))
        self.turn = None
        self.idle_since = anyio.current_time()
        self._deliver(TurnEnded(session_id=self.id, turn_id=turn.id, outcome=outcome, failure=failure))
        turn.ended.set()
        if self.process is not None:
            self.process.turn_ended()

    async def _count(self, turn: AgentTurn, answer: Mapping[str, Any]) -> None:
        reader, counting = self._around.reader, self._profile.counting
        if counting == "files" and reader is not None:
            turn.count(self._since_last(await anyio.to_thread.run_sync(reader.spent, self.id)))
        elif (used := self._profile.prompt_usage(answer)) is not None:
            turn.count(self._since_last(used) if counting == "process" else used)

    def _note_cost(self, update: Mapping[str, Any]) -> None:
        """Store the session's cost if an update reports it. Agents report a sum, or 0 if they know no price."""
        cost = mapping(update.get("cost"))
        if cost.get("currency", "USD") == "USD":
            self.told_cost = amount(cost.get("amount")) or self.told_cost

    def _used_in(self, turn: AgentTurn) -> Usage | None:
        """Return the usage and cost of a turn that ends, as far as the agent reported them."""
        told, self.told_cost = self.told_cost, None
        if told is None or (turn.usage is not None and turn.usage.cost_usd is not None):
            return turn.usage
        before, self.cost = self.cost, told
        return turn.usage if before is None else replace(turn.usage or Usage(), cost_usd=max(0.0, told - before))

    def _since_last(self, total: Usage) -> Usage:
        """Return the part of a sum that was not counted yet."""
        used, self.counted = total - self.counted, total
        return used

    def on_gone(self, reason: HelmsmanError | None, *, told: bool) -> None:
        """Clean up after the process has ended or was handed over. With `told` the session gets an event."""
        self.questions.clear()
        self.untold.clear()
        turn, self.turn = self.turn, None
        if turn is not None:
            turn.ended.set()
        if told and self.id:
            why = reason or EngineLost(f"{self._profile.title} has ended. Send the next message to start it again.")
            failure = Failure(code=why.code, message=why.message, retryable=True)
            self._deliver(EngineGone(session_id=self.id, failure=failure))

    # --- turns of an earlier owner -----------------------------------------------------------------------------------

    def note(self, turn: AgentTurn) -> None:
        """Note what the next owner has to know of a turn, and under which terms it runs."""
        if self.process is None:
            return
        terms = {"mode": self.access.mode, "answers": self.access.answers, "options": sorted(self.option_names)}
        self.process.note(turn={**turn.noted(), **terms, "counted": self.counted.counts})

    def recall(self, noted: Mapping[str, Any]) -> AgentTurn | None:
        """Resume the turn that was noted, all of whose messages arrive again; None if it never began.

        Call it before any of these messages is handled.
        """
        process, answers = self.process, noted.get("answers")
        assert process is not None
        self.access = AgentAccess(optional_text(noted.get("mode")), answers if answers in ("no", "yes") else None)
        self.option_names = frozenset(texts(noted.get("options")))
        self.is_set_up = True
        self.counted = Usage(*(integer(one) or 0 for one in sequence(noted.get("counted"))[:4]))
        prompts = [(one[0], int(one[1])) for one in sequence(noted.get("prompts"))]
        waiters = [process.expect(*prompt) for prompt in prompts]
        sent = [waiter for waiter in waiters if waiter is not None]
        if not sent:
            return None
        self.left_turn, self.was_left, self.cost = text(noted.get("id")), True, None
        turn = self._new_turn(self.left_turn)
        turn.recall(noted)
        turn.prompts = prompts
        for waiter in sent:
            waiter.on_answer = partial(self._note_answer, turn)
            self._await_answer(turn, partial(process.answer, waiter))
        for asked in turn.only_asked:
            with process.position.at(integer(asked.get("offset"))):
                self._emit(turn.items.call(mapping(asked.get("call"))))
        if len(sent) < len(prompts):
            message = f"A message did not reach {self._profile.title}, since the hub had ended. Send it again."
            self._deliver(Notice(session_id=self.id, kind="warning", message=message))
        return turn

    # --- what the agent says -----------------------------------------------------------------------------------------

    def on_notification(self, method: str, params: Mapping[str, Any]) -> None:
        """It tells something."""
        if method != "session/update":
            return
        update = mapping(params.get("update"))
        settings = self._profile.settings_in(update)
        self._hear(settings)
        if self.loading or not self.id:
            return
        kind, turn = text(update.get("sessionUpdate")), self.turn
        if kind == "session_info_update" and (title := optional_text(update.get("title"))) is not None:
            self._deliver(SessionRenamed(session_id=self.id, name=title))
        elif kind in _QUIET or turn is None or (settings and kind == "agent_message_chunk"):
            self._note_cost(update)
        elif kind in ("agent_message_chunk", "agent_thought_chunk", "tool_call", "tool_call_update", "plan"):
            self._emit(turn.items.take(update))
            self._look_again(turn, update)
            turn.count(self._profile.update_usage(update))
        else:
            self._deliver(Unknown(session_id=self.id, turn_id=turn.id, name=kind, payload=update))

    def _hear(self, settings: Mapping[str, str | None]) -> None:
        """It says what its settings are."""
        self.option_names = self.option_names.union(settings)
        if not self.is_set_up:
            self._news.update(settings)
            return
        for name, value in settings.items():
            if name == MODE:
                self._on_mode(value)
            elif self._profile.asking_options[name] != value and self.access.answers != "yes":
                self._stop_unasking(f"{name} to {value}")

    def _on_mode(self, mode: str | None) -> None:
        wanted = self.access.mode
        if wanted is None or mode == wanted or self.process is None:
            return
        asks_then = mode is not None and mode in (self._profile.asking_mode, self._profile.reading_mode)
        if not asks_then and self.access.answers != "yes":
            self._stop_unasking(f"its mode to {mode}")
            return
        self._warn(f"{self._profile.title} changed its mode to {mode}; it is set back to {wanted}.")
        self._around.tasks.start_soon(self._set_back, wanted)

    def _stop_unasking(self, what: str) -> None:
        """Stop an agent that might have stopped asking, regardless of who changed that. The next message loads it again."""
        if self.process is None or self.stopped:
            return
        self.stopped = message = f"{self._profile.title} changed {what}, and might not ask any more. It was stopped."
        self._warn(message)
        if self.turn is not None:
            self.turn.failure = Failure(code="agent_error", message=message)
        self.withdraw_all()
        self.process.peer.notify("session/cancel", {"sessionId": self.id})
        self._around.tasks.start_soon(self._end_stopped, self.turn)

    async def _end_stopped(self, turn: AgentTurn | None) -> None:
        with anyio.move_on_after(CANCEL_SECONDS):
            if turn is not None:
                await turn.ended.wait()
        self.leaving = True  # all events are delivered
        if turn is not None and self.turn is turn:  # it still runs, and a graceful end would leave it time to continue
            await self.kill()
            self.end(turn)
        await self._end_process()

    async def kill(self) -> None:
        """Kill the process, which might have stopped asking, and all its descendants."""
        if self.process is not None:
            await self.process.kill()

    def _warn(self, message: str) -> None:
        self._deliver(Notice(session_id=self.id, kind="warning", message=message))

    async def _set_back(self, mode: str) -> None:
        try:
            await self.ask("session/set_mode", {"sessionId": self.id, "modeId": mode})
        except HelmsmanError as error:
            log.warning("%s stays in a mode that was not asked for, so it is ended: %s", self._profile.title, error)
            await self._end_process()

    async def _end_process(self) -> None:
        if self.process is not None:
            await self.process.end()
        self.scope.cancel()

    # --- questions ---------------------------------------------------------------------------------------------------

    def on_request(self, request: IncomingRequest) -> bool:
        """It asks something; False where that is nothing anybody answers."""
        if request.method == _STEERING and self._profile.steering == "when asked":
            return self._give_later(request)
        if request.method != permissions.REQUEST or self.process is None:
            return False
        turn = self.turn
        if turn is None or turn.interrupted or self.stopped:
            return self.process.peer.respond(request.id, permissions.CANCELLED)
        asked = mapping(request.params.get("toolCall"))
        call_id = text(asked.get("toolCallId"))
        before = turn.items.known(call_id)
        announced = None if before is None else optional_text(before.fields.get("title"))
        is_told = before is not None and before.fields.get("status") == _BEGUN
        if before is None:
            turn.only_asked.append({"offset": self.process.position.offset, "call": asked})
            self.note(turn)
        self._emit(turn.items.call(asked))
        answers = self.access.answers
        if answers is not None:
            return self._answer_unasked(turn, request, answers == "yes")
        waiting = OpenRequest(request, announced)
        if is_told or not self._profile.tells_later:
            self._ask(turn, waiting)
        elif call_id in self.untold:
            return self.process.peer.respond(request.id, permissions.CANCELLED)
        else:
            self.untold[call_id] = waiting
            self._around.tasks.start_soon(self._refuse_untold, turn, waiting)
        return True

    def _ask(self, turn: AgentTurn, waiting: OpenRequest) -> None:
        question = self._read(turn, waiting)
        if question.id in self.questions:  # an answer to either would be one to both
            self._withdraw(question.id)
            return
        waiting.question = question
        self.questions[question.id] = waiting
        asked = QuestionAsked(session_id=self.id, turn_id=turn.id, question=question)
        self._deliver(asked.with_raw(waiting.request.params))

    def _read(self, turn: AgentTurn, waiting: OpenRequest, times: int = 0) -> Question:
        """Read a request as a question. When it is read again, include what the agent has reported about the call since."""
        call, request = turn.items.known(waiting.call_id), waiting.request
        # A call that has ended is another one under the same name, which may be the model's choice.
        known = {} if call is None or call.ended else call.fields
        params = {**request.params, "toolCall": dict(known)} if times else request.params
        asking = permissions.Asking(
            title=self._profile.title,
            session_id=self.id,
            turn_id=turn.id,
            directory=str(self.directory),
            request_id=request.id,
            sandbox="inside" if self.is_enforced else "outside",
            tool=self._profile.tool_of(mapping(params.get("toolCall"))),
            announced=waiting.announced,
            times=times,
        )
        return permissions.read_question(params, known, asking)

    def _look_again(self, turn: AgentTurn, update: Mapping[str, Any]) -> None:
        """Ask again about a call whose details changed: the user must always see its current state."""
        call_id = text(update.get("toolCallId"))
        call = turn.items.known(call_id)
        if call is None or call.ended or self.process is None:
            return
        if update.get("status") == _BEGUN and (untold := self.untold.pop(call_id, None)) is not None:
            self._ask(turn, untold)
        for waiting in [one for one in self.questions.values() if one.call_id == call_id]:
            shown, now = waiting.question, self._read(turn, waiting, waiting.times + 1)
            if shown is not None and _said(now) != _said(shown):
                waiting.times += 1
                waiting.question = now
                del self.questions[shown.id]
                self._deliver(QuestionClosed(session_id=self.id, question_id=shown.id, answer=None, by=_CHANGED))
                self.questions[now.id] = waiting
                asked = QuestionAsked(session_id=self.id, turn_id=turn.id, question=now)
                self._deliver(asked.with_raw(update))

    async def _refuse_untold(self, turn: AgentTurn, waiting: OpenRequest) -> None:
        await anyio.sleep(UNTOLD_SECONDS)
        if self.untold.get(waiting.call_id) is waiting and self.process is not None:
            turn.decline(waiting.request)
            del self.untold[waiting.call_id]
            self._warn(f"{self._profile.title} asked about a tool and did not say what it is given. It was refused.")
            self.process.peer.respond(waiting.request.id, permissions.refusing(waiting.request.params))

    def _answer_unasked(self, turn: AgentTurn, request: IncomingRequest, yes: bool) -> bool:
        assert self.process is not None
        result = permissions.unasked(request.params, yes=yes)
        if result == permissions.refusing(request.params):
            turn.decline(request)
            self.note(turn)
        return self.process.peer.respond(request.id, result)

    def _give_later(self, request: IncomingRequest) -> bool:
        assert self.process is not None
        messages: list[str] = []
        if self.turn is not None and self.turn.later:
            messages, self.turn.later = [as_words(text) for text in self.turn.later], []
            self.note(self.turn)
        return self.process.peer.respond(request.id, {"messages": messages, "hasQueuedPrompt": False})

    def answer(self, question: Question, choices: tuple[Choice, ...] | None) -> None:
        """Give an answer to a question.

        Raises:
            QuestionNotOpen: It was answered, or its turn has ended.
        """
        waiting = self.questions.pop(question.id, None)
        if waiting is None or waiting.question is None or self.process is None:
            raise QuestionNotOpen.any_more(question.id)
        turn, request = self.turn, waiting.request
        result = permissions.write_answer(request.params, waiting.question, choices)
        granted = result not in (permissions.CANCELLED, permissions.refusing(request.params))
        if turn is not None and not granted:
            turn.decline(request)
            reason = choices[0].reason if choices else None
            if reason is not None and choices is not None and choices[0].value != ABORT:
                turn.reasons.append(reason)  # a refusal has no place for it: it is the next thing the model reads
            self.note(turn)
        if not self.process.peer.respond(request.id, result):
            raise QuestionNotOpen.any_more(question.id)

    def withdraw_all(self) -> None:
        """Withdraw all open questions."""
        for question_id in list(self.questions):
            self._withdraw(question_id)
        untold, self.untold = self.untold, {}
        for waiting in untold.values():
            if self.process is not None:
                self.process.peer.respond(waiting.request.id, permissions.CANCELLED)

    def _withdraw(self, question_id: str) -> None:
        waiting = self.questions.pop(question_id)
        if self.process is not None:
            self.process.peer.respond(waiting.request.id, permissions.CANCELLED)
        self._deliver(QuestionClosed(session_id=self.id, question_id=question_id, answer=None, by=str(TURN_ENDED)))


def _said(question: Question) -> tuple[object, ...]:
    """Return all that the user sees of a question."""
    return question.type, question.prompts, question.details
