"""Conversation with an agent over the Agent Client Protocol: prompts, updates and questions.

The protocol has no turn ids and no "turn started": a turn is one or more unanswered prompts. Each turn gets an id, one
beginning and one end. The mode in which the agent asks is set after every load, before the first prompt. Every question
is answered once.
"""

from __future__ import annotations

import logging
import math
import re
import uuid
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import anyio
import anyio.to_thread

from helmsman.agents.acp.profile import MODE, AgentAccess
from helmsman.agents.acp.updates import (
    ACTS,
    CANCELLED,
    ELICITATION,
    REQUEST,
    Asking,
    TurnItems,
    cancelling,
    is_form,
    joined,
    read_question,
    refusing,
    unasked,
    write_answer,
)
from helmsman.agents.process_engine import AgentTurn, Conversation, as_words, image_data, session_not_found
from helmsman.base.json_values import amount, integer, mapping, optional_text, sequence, text, texts
from helmsman.base.jsonrpc import Peer
from helmsman.base.redaction import redact
from helmsman.base.structs import replace
from helmsman.errors import (
    EngineProtocolError,
    EngineRefused,
    EngineStartFailed,
    HelmsmanError,
    QuestionNotOpen,
)
from helmsman.model.answered_by import TURN_ENDED
from helmsman.model.events import (
    Failure,
    Notice,
    ProcessState,
    QuestionAsked,
    QuestionClosed,
    SessionRenamed,
    TurnEnded,
    TurnStarted,
    Unknown,
    Usage,
    UsageReported,
)
from helmsman.model.questions import ABORT

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

    from helmsman.agents.acp.profile import Profile
    from helmsman.agents.agent_process import AgentProcess
    from helmsman.agents.process_engine import AgentSession, ProcessEngine
    from helmsman.base.jsonrpc import IncomingRequest, RequestId
    from helmsman.model.events import Event, TurnOutcome
    from helmsman.model.options import SessionOptions, TurnInput
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
DATA: Final = "data"
"""The field of a process record with the directory that holds the data of its session."""
_BEGUN: Final = "in_progress"
_CHANGED: Final = "its call changed"
_STEERING: Final = "craft/drainMidTurnQueue"
_PROMPT: Final = "session/prompt"
REQUEST_SECONDS: Final = 60.0
_OUTCOMES: Final[Mapping[str, TurnOutcome]] = {"end_turn": "completed", "cancelled": "interrupted"}
_NEEDS_LOGIN: Final = -32000
# Agents put the HTTP status into the code or only into the text of an error. Three digits inside a longer number are
# not one.
_STATUS: Final = re.compile(r"(?<!\d)([45]\d\d)(?!\d)")
_CODES: Final = {401: "unauthorized", 403: "unauthorized", 429: "rate_limit_exceeded"}
_SERVER_ERROR: Final = 500
_SHOWN_CHARS: Final = 500


@dataclass(slots=True, eq=False)
class AcpTurn(AgentTurn):
    """Running turn. `unanswered` is the number of its prompts without an answer.

    `later` is given to the agent when it asks, or sent after its prompts are answered. `reasons` are sent only then,
    since an agent whose request was refused may still ask and stop.
    """

    items: TurnItems = field(kw_only=True)
    prompts: list[tuple[RequestId, int]] = field(default_factory=list[tuple["RequestId", int]])
    """Requests of all prompts, each with the amount of input that the process had received before."""
    unanswered: int = 0
    later: list[str] = field(default_factory=list[str])
    reasons: list[str] = field(default_factory=list[str])
    told: set[str] = field(default_factory=set[str])
    """The calls whose input it has told. It may ask several questions about one."""
    asked: set[str] = field(default_factory=set[str])
    """The calls that it has asked about."""
    usage: Usage | None = None
    answer: Mapping[str, Any] = field(default_factory=dict[str, Any])
    answered_at: int | None = None
    """Line of the newest answer to a prompt, in the output of a supervised process."""
    failure: Failure | None = None
    sent: anyio.Event = field(default_factory=anyio.Event)
    """Its process has the first prompt."""

    def noted(self) -> dict[str, Any]:
        """Return the facts that the next owner of the process needs and cannot read again."""
        return {
            "id": self.id,
            "prompts": self.prompts,
            "later": self.later,
            "reasons": self.reasons,
            "interrupted": self.interrupted,
            "declined": sorted(self.items.declined),
        }

    def recall(self, noted: Mapping[str, Any]) -> None:
        """Restore the facts that an earlier owner has recorded."""
        self.later, self.reasons = texts(noted.get("later")), texts(noted.get("reasons"))
        self.interrupted = noted.get("interrupted") is True
        self.items.declined.update(texts(noted.get("declined")))

    def decline(self, request: IncomingRequest) -> None:
        """Record that a request was refused."""
        self.items.declined.add(text(mapping(request.params.get("toolCall")).get("toolCallId")))

    def count(self, used: Usage | None) -> None:
        """Add usage, if it was reported."""
        if used is not None:
            self.usage = used if self.usage is None else self.usage + used

    def outcome(self, title: str) -> tuple[TurnOutcome, Failure | None]:
        """Return how the turn ended, after all its prompts were answered."""
        if self.interrupted:
            return "interrupted", None
        if self.failure is not None:
            return "failed", self.failure
        if self.items.failure is not None:
            return "failed", Failure(code="agent_error", message=self.items.failure)
        reason = text(self.answer.get("stopReason"))
        if reason in _OUTCOMES:
            return _OUTCOMES[reason], None
        return "failed", Failure(
            code=reason or "unknown", message=f"{title} stopped: {reason or 'it does not say why'}."
        )


@dataclass(slots=True)
class OpenRequest:
    """Open request. `announced` is the earlier title of its call."""

    request: IncomingRequest
    announced: str | None
    question: Question | None = None
    """Question as shown to the user; None before the user is asked."""
    times: int = 0

    @property
    def call_id(self) -> str:
        return text(mapping(self.request.params.get("toolCall")).get("toolCallId"))


class AcpConversation(Conversation):
    """See `Conversation`."""

    def __init__(
        self,
        engine: ProcessEngine,
        session: AgentSession,
        process: AgentProcess,
        profile: Profile,
        env: Mapping[str, str],
    ) -> None:
        """`env` says where the agent keeps its sessions."""
        super().__init__(engine, session, process)
        self._profile = profile
        self._reader = profile.reader(env)
        self._env = env
        self.access = self._profile.access(session.options)
        self._closed: HelmsmanError | None = None
        self.peer = Peer(
            process,
            on_notification=self.on_notification,
            on_request=self.on_request,
            on_close=self._on_close,
            join=lambda messages: joined(self._profile, messages),
            other=self.title,
            with_version=True,
        )
        self._loading = False
        self.questions: dict[str, OpenRequest] = {}
        self.untold: dict[str, OpenRequest] = {}
        """Requests about tool calls whose input the agent has not reported yet."""
        self._counted = Usage()
        """Usage counted so far, for agents that report a sum."""
        self._told_cost: float | None = None
        self._set_up_for: SessionOptions | None = None
        """None if the options, or the current settings, are unknown: those of a turn that an earlier hub has left."""
        self._is_set_up = False
        """True after the agent has received its mode. From then on, every change that it reports takes effect immediately.
        """
        self._news: dict[str, str | None] = {}
        """Reported modes and options during setup, each since it was set. They take effect when the setup is complete."""
        self._option_names: frozenset[str] = frozenset()
        """Options of the agent that make it ask."""
        self.model: str | None = None

    @property
    def turn(self) -> AcpTurn | None:
        """Turn that runs."""
        turn = self.session.turn
        assert turn is None or isinstance(turn, AcpTurn)
        return turn

    def _on_close(self, reason: HelmsmanError) -> None:
        self._closed = reason

    async def run(self) -> None:
        await self.peer.run()
        if isinstance(self._closed, EngineProtocolError):
            raise self._closed

    def close(self) -> None:
        self.questions.clear()
        self.untold.clear()

    # --- the session -------------------------------------------------------------------------------------------------

    async def load(self, options: SessionOptions, *, is_new: bool) -> None:
        # Check again: the agent would find files that have appeared since its start.
        directory, session = self.session.directory, self.session
        assert directory is not None
        await anyio.to_thread.run_sync(self._profile.refuse_danger, options, directory)
        known = mapping(mapping(self.process.answer.get("agentCapabilities")).get("sessionCapabilities"))
        place: dict[str, Any] = {"cwd": str(directory), "mcpServers": []}
        if options.writable_roots and "additionalDirectories" in known:
            place["additionalDirectories"] = [str(root) for root in options.writable_roots]
        if is_new:
            made = await self.ask("session/new", place)
            session.id = text(made.get("sessionId"))
            if not session.id:
                raise EngineStartFailed(f"{self.title} gave the new session no id. Try another version of it.")
            # Only now is the session's id known, which its data is filed under.
            if data := text(session.about.get(DATA)):
                await anyio.to_thread.run_sync(self._profile.was_begun, session.id, Path(data))
            await self._set_up(options)
        else:
            self._loading, session.cost = True, None
            # Resume does not replay. Agents without it replay the whole conversation before they answer; `_loading`
            # drops that.
            method = "session/resume" if "resume" in known else "session/load"
            try:
                made = await self.ask(method, {"sessionId": session.id, **place})
            except EngineRefused as error:
                raise session_not_found(self.title, session.id) from error
            await self._set_up(options)
            self._loading = False
            await anyio.to_thread.run_sync(self._profile.was_loaded, session.id, self._env)
            # Counts from before this load are not usage of the next turn.
            if self._profile.counting == "files" and self._reader is not None:
                self._counted = await anyio.to_thread.run_sync(self._reader.spent, session.id)
        self.model = options.model or optional_text(mapping(made.get("models")).get("currentModelId"))
        version = optional_text(mapping(self.process.answer.get("agentInfo")).get("version"))
        self.process.note(session_id=session.id, version=version)

    async def set_up(self, options: SessionOptions) -> None:
        if self._set_up_for != options:
            await self._set_up(options)

    async def ask(self, method: str, params: Mapping[str, Any], *, sets: str = "") -> Mapping[str, Any]:
        """Send a request to the process. Its answer voids earlier reports of the setting that this request `sets`."""

        def answered(result: Any) -> None:
            self._news.pop(sets, None)
            self._hear(self._profile.settings_in(mapping(result)))

        return mapping(await self.peer.request(method, params, timeout=REQUEST_SECONDS, on_answer=answered))

    async def _set_up(self, options: SessionOptions) -> None:
        """Set what no agent keeps: the mode, before anything else is said, and the model. If it fails, it is to be ended.

        What the agent says of a setting is from before until it has answered that this is set. From then on it counts: no
        prompt may go to one that has said since that it is in another mode.

        Raises:
            EngineStartFailed: It does not take the mode that is needed for it to ask, or does not stay in it.
        """
        access = self._profile.access(options)
        self._is_set_up = False
        if access.mode is not None:
            # The mode comes first: no agent keeps it across a load, and some start in one that asks nothing.
            await self._set("session/set_mode", MODE, access.mode, modeId=access.mode)
        for name, value in self._profile.trust.asking_options.items():
            if name in self._option_names:
                await self._set("session/set_config_option", name, value, configId=name, value=value)
        if options.model is not None and self._profile.model_by == "set_model":
            await self.ask("session/set_model", {"sessionId": self.session.id, "modelId": options.model})
        self.access, self._is_set_up = access, True
        news, self._news = self._news, {}
        # Settings reported during the set-up count from here, in case the agent has changed one again since.
        self._hear(news)
        if self.stopped:
            raise EngineStartFailed(self.stopped)
        self._set_up_for = options

    async def _set(self, method: str, name: str, wanted: str, **params: str) -> None:
        try:
            await self.ask(method, {"sessionId": self.session.id, **params}, sets=name)
        except EngineRefused as error:
            what = "the mode" if name == MODE else name
            raise EngineStartFailed(
                f"{self.title} does not take {what} {wanted!r}, so it is not known what it would do "
                f"unasked: {error.details.get('rpc_message')}. Use a version that Helmsman knows."
            ) from error

    def _emit(self, events: Iterable[Event]) -> None:
        for event in events:
            self.deliver(event)

    # --- turns -------------------------------------------------------------------------------------------------------

    async def prompt(self, turn: TurnInput) -> AgentTurn:
        content = await anyio.to_thread.run_sync(prompt_content, turn) if turn.images else prompt_content(turn)
        begun = self._new_turn(str(uuid.uuid4()))
        self.send(begun, content)
        with anyio.move_on_after(REQUEST_SECONDS):
            await begun.sent.wait()
        return begun

    def _new_turn(self, turn_id: str) -> AcpTurn:
        session = self.session
        turn = AcpTurn(turn_id, items=TurnItems(self._profile, session.id, turn_id, str(session.directory)))
        session.begin(turn)
        self.deliver(TurnStarted(session_id=session.id, turn_id=turn_id))
        return turn

    def send(self, turn: AcpTurn, content: Sequence[Mapping[str, Any]]) -> None:
        """Send a prompt that belongs to a turn. It is answered when the turn has ended, whenever that is."""
        # The id is chosen before the request is sent, so that it can be noted first. The next owner awaits the answer
        # by it.
        prompt_id = self.peer.new_id()
        self.process.turn_begins()
        turn.prompts.append((prompt_id, self.process.inputs))
        self.note(turn)
        ask = partial(
            self.peer.request,
            _PROMPT,
            {"sessionId": self.session.id, "prompt": list(content)},
            # A turn may take hours, so the answer has no time limit.
            timeout=math.inf,
            request_id=prompt_id,
            on_sent=turn.sent.set,
            on_answer=partial(self._note_answer, turn),
        )
        self._await_answer(turn, ask)

    def _note_answer(self, turn: AcpTurn, _result: Any) -> None:
        turn.answered_at = self.process.position.offset

    def _await_answer(self, turn: AcpTurn, ask: Callable[[], Awaitable[Any]]) -> None:
        turn.unanswered += 1
        self.engine.tasks.start_soon(self._await_prompt, turn, ask)

    async def _await_prompt(self, turn: AcpTurn, ask: Callable[[], Awaitable[Any]]) -> None:
        try:
            turn.answer = mapping(await ask())
            await self._count(turn, turn.answer)
        except EngineRefused as error:
            turn.failure = turn_failure(error)
        except HelmsmanError:
            return  # the process has gone, and the session knows
        finally:
            turn.unanswered -= 1
            turn.sent.set()
        # Another prompt of this turn is open, or the turn was ended during the wait.
        if turn.unanswered or self.turn is not turn:
            return
        if (turn.later or turn.reasons) and not turn.interrupted and turn.failure is None:
            said, turn.later, turn.reasons = "\n\n".join((*turn.reasons, *turn.later)), [], []
            # The joined texts become a prompt of the same turn: close the open message, so that the next text begins
            # another one.
            self._emit(turn.items.pause())
            self.send(turn, [text_block(said)])
            return
        # Before the end is reported: a check may begin at that moment.
        await anyio.to_thread.run_sync(self.process.end_started_by_turns)
        if self.turn is turn and not turn.unanswered:
            with self.process.position.at(turn.answered_at):  # other lines may have been read since
                self.end_turn(turn)

    def ended(self, turn: AgentTurn) -> TurnEnded:
        assert isinstance(turn, AcpTurn)
        outcome, failure = turn.outcome(self.title)
        # Items are closed before the turn, since readers wait for its end.
        self._emit(turn.items.end(completed=outcome == "completed"))
        if (used := self._used_in(turn)) is not None:
            self.deliver(UsageReported(session_id=self.session.id, turn_id=turn.id, last=used))
        return TurnEnded(session_id=self.session.id, turn_id=turn.id, outcome=outcome, failure=failure)

    async def _count(self, turn: AcpTurn, answer: Mapping[str, Any]) -> None:
        reader, counting = self._reader, self._profile.counting
        if counting == "files" and reader is not None:
            turn.count(self._since_last(await anyio.to_thread.run_sync(reader.spent, self.session.id)))
        elif (used := self._profile.prompt_usage(answer)) is not None:
            turn.count(self._since_last(used) if counting == "process" else used)

    def _note_cost(self, update: Mapping[str, Any]) -> None:
        """Store the session's cost if an update reports it. Agents report a sum, or 0 if they know no price."""
        cost = mapping(update.get("cost"))
        if cost.get("currency", "USD") == "USD":
            self._told_cost = amount(cost.get("amount")) or self._told_cost

    def _used_in(self, turn: AcpTurn) -> Usage | None:
        """Return the usage and cost of a turn that ends, as far as the agent reported them."""
        told, self._told_cost = self._told_cost, None
        if told is None or (turn.usage is not None and turn.usage.cost_usd is not None):
            return turn.usage
        # The agent reports the session's sum. The first one after a load has nothing to be compared with, and may cover
        # earlier turns.
        before, self.session.cost = self.session.cost, told
        return turn.usage if before is None else replace(turn.usage or Usage(), cost_usd=max(0.0, told - before))

    def _since_last(self, total: Usage) -> Usage:
        """Return the part of a sum that was not counted yet."""
        used, self._counted = total - self._counted, total
        return used

    async def steer(self, turn: AgentTurn, message: str) -> None:
        assert isinstance(turn, AcpTurn)
        match self._profile.steering:
            case "second prompt":
                self.send(turn, [text_block(message)])
            case "when asked":
                turn.later.append(message)
                self.note(turn)
            case _:
                await super().steer(turn, message)

    async def stop_turn(self, turn: AgentTurn) -> None:
        assert isinstance(turn, AcpTurn)
        self.note(turn)
        # Answer open requests before the cancel: Gemini does not end a cancelled turn while it waits for one.
        self.withdraw_all()
        self.peer.notify("session/cancel", {"sessionId": self.session.id})

    # --- turns of an earlier owner -----------------------------------------------------------------------------------

    def note(self, turn: AcpTurn) -> None:
        """Note what the next owner has to know of a turn, and under which terms it runs."""
        terms = {"mode": self.access.mode, "answers": self.access.answers, "options": sorted(self._option_names)}
        self.process.note(turn={**turn.noted(), **terms, "counted": self._counted.counts})

    def recall(self, notes: Mapping[str, Any], *, is_running: bool) -> None:
        answers, session = notes.get("answers"), self.session
        self.access = AgentAccess(optional_text(notes.get("mode")), answers if answers in ("no", "yes") else None)
        self._option_names = frozenset(texts(notes.get("options")))
        self._is_set_up = True
        self._counted = Usage(*(integer(one) or 0 for one in sequence(notes.get("counted"))[:4]))
        prompts = [(one[0], int(one[1])) for one in sequence(notes.get("prompts"))]
        # A prompt reached the agent if the process had received more input than when the prompt was noted.
        sent = [prompt_id for prompt_id, before in prompts if self.process.inputs > before]
        if not sent:
            return  # the earlier owner died before it was sent
        session.left_turn = text(notes.get("id"))
        self.process.turn_begins()
        turn = self._new_turn(session.left_turn)
        turn.recall(notes)
        turn.prompts = prompts
        for prompt_id in sent:
            waiter = self.peer.expect(prompt_id, _PROMPT)
            # The waiter exists before output is read again, which may already contain the answer.
            waiter.on_answer = partial(self._note_answer, turn)
            self._await_answer(turn, partial(self.peer.answer, waiter, timeout=math.inf))
        if len(sent) < len(prompts):
            message = f"A message did not reach {self.title}, since the hub had ended. Send it again."
            self.deliver(Notice(session_id=session.id, kind="warning", message=message))

    async def caught_up(self, *, is_running: bool) -> None:
        if self.turn is not None and not is_running:  # it has ended, and its answer is on its way
            await self.turn.ended.wait()

    async def adopt(self, options: SessionOptions) -> None:
        self.model = options.model
        truly = replace(options, unenforced=not self.session.is_enforced)
        self.access = replace(self.access, notes=self._profile.access(truly).notes)

    # --- what the agent says -----------------------------------------------------------------------------------------

    def on_notification(self, method: str, params: Mapping[str, Any]) -> None:
        """Handle a notification."""
        if method != "session/update":
            return
        update = self._profile.read_update(mapping(params.get("update")))
        settings = self._profile.settings_in(update)
        self._hear(settings)
        # A replay while the session is loaded is history, not news.
        if self._loading or not self.session.id:
            return
        kind, turn = text(update.get("sessionUpdate")), self.turn
        if kind == "session_info_update" and (title := optional_text(update.get("title"))) is not None:
            self.deliver(SessionRenamed(session_id=self.session.id, name=title))
        elif kind in _QUIET or turn is None or (settings and kind == "agent_message_chunk"):
            self._note_cost(update)
        elif kind in ("agent_message_chunk", "agent_thought_chunk", "tool_call", "tool_call_update", "plan"):
            self._emit(turn.items.take(update))
            # After `take`, which records the call that both look up.
            self._stop_if_unasked(turn, update)
            self._look_again(turn, update)
            turn.count(self._profile.update_usage(update))
        else:
            self.deliver(Unknown(session_id=self.session.id, turn_id=turn.id, name=kind, payload=update))

    def _hear(self, settings: Mapping[str, str | None]) -> None:
        """Handle reported settings."""
        self._option_names = self._option_names.union(settings)
        if not self._is_set_up:
            self._news.update(settings)
            return
        for name, value in settings.items():
            if name == MODE:
                self._on_mode(value)
            elif self._profile.trust.asking_options[name] != value and self.access.answers != "yes":
                self._stop_unasking(f"{name} to {value}")

    def _on_mode(self, mode: str | None) -> None:
        wanted = self.access.mode
        if wanted is None or mode == wanted:
            return
        asks_then = mode is not None and mode in (self._profile.trust.asking_mode, self._profile.trust.reading_mode)
        if not asks_then and self.access.answers != "yes":
            self._stop_unasking(f"its mode to {mode}")
            return
        # Another mode that still asks is harmless: set it back without stopping the turn.
        self.warn(f"{self.title} changed its mode to {mode}; it is set back to {wanted}.")
        self.engine.tasks.start_soon(self._set_back, wanted)

    def _stop_if_unasked(self, turn: AcpTurn, update: Mapping[str, Any]) -> None:
        """Stop an agent that asks before every act, if it has acted without asking."""
        call = turn.items.known(text(update.get("toolCallId")))
        if self._profile.trust.acts_unasked or call is None or update.get("status") != "completed":
            return
        if self.access.answers != "yes" and text(call.fields.get("kind")) in ACTS and call.id not in turn.asked:
            self._stop_unasking("what it may do")

    def _stop_unasking(self, what: str) -> None:
        """Stop an agent that might have stopped asking, regardless of who changed that. The next message loads it again."""
        if self.stopped:
            return
        self.stopped = message = f"{self.title} changed {what}, and might not ask any more. It was stopped."
        self.warn(message)
        if self.turn is not None:
            self.turn.failure = Failure(code="agent_error", message=message)
        self.withdraw_all()
        self.peer.notify("session/cancel", {"sessionId": self.session.id})
        self.engine.tasks.start_soon(self._end_stopped, self.turn)

    async def _end_stopped(self, turn: AcpTurn | None) -> None:
        with anyio.move_on_after(CANCEL_SECONDS):
            if turn is not None:
                await turn.ended.wait()
        # The next message may have loaded the session into another process.
        if self.session.process is not self.process:
            return
        if turn is not None and self.turn is turn:  # it still runs, and a graceful end would leave it time to continue
            self.session.enter(ProcessState.ENDING)
            await anyio.to_thread.run_sync(self.process.kill)
            self.end_turn(turn)
        await self.engine.end(self.session)

    async def _set_back(self, mode: str) -> None:
        try:
            await self.ask("session/set_mode", {"sessionId": self.session.id, "modeId": mode})
        except HelmsmanError as error:
            log.warning("%s stays in a mode that was not asked for, so it is ended: %s", self.title, error)
            await self.process.end(at_once=True)

    # --- questions ---------------------------------------------------------------------------------------------------

    def on_request(self, request: IncomingRequest) -> bool:
        """Handle a request. Return False if it needs no answer of a user."""
        # After a restart of the hub the request is read again. An earlier owner has answered it.
        if request.was_answered and request.method != REQUEST:
            return True
        if request.method == ELICITATION and is_form(request.params):
            return self._on_form(request)
        if request.method == _STEERING and self._profile.steering == "when asked":
            return self._give_later(request)
        if request.method != REQUEST:
            return False
        # Every request must be answered: OpenCode asks nothing more, in any session of the process, while one is open.
        turn = self.turn
        if turn is None or turn.interrupted or self.stopped:
            return self.peer.respond(request.id, CANCELLED)
        asked = mapping(request.params.get("toolCall"))
        call_id = text(asked.get("toolCallId"))
        before = turn.items.known(call_id)
        announced = None if before is None else optional_text(before.fields.get("title"))
        turn.asked.add(call_id)
        # Gemini announces no call before it asks: the question itself creates the item.
        self._emit(turn.items.call(asked))
        if request.was_answered:
            return True
        answers = self.access.answers
        if answers is not None:
            return self._answer_unasked(turn, request, answers == "yes")
        waiting = OpenRequest(request, announced)
        if call_id in turn.told or not self._profile.tells_later:
            self._ask(turn, waiting)
        # A second request before the input is known cannot be told apart from the first.
        elif call_id in self.untold:
            return self.peer.respond(request.id, CANCELLED)
        else:
            self.untold[call_id] = waiting
            self.engine.tasks.start_soon(self._refuse_untold, turn, waiting)
        return True

    def _on_form(self, request: IncomingRequest) -> bool:
        turn = self.turn
        # No answer of Helmsman's own: only a user can fill in a form.
        if turn is None or turn.interrupted or self.stopped or self.access.answers is not None:
            return self.peer.respond(request.id, cancelling(request.params))
        self._ask(turn, OpenRequest(request, None))
        return True

    def _ask(self, turn: AcpTurn, waiting: OpenRequest) -> None:
        question = self._read(turn, waiting)
        if question.id in self.questions:  # an answer to either would be one to both
            self._withdraw(question.id)
            return
        waiting.question = question
        self.questions[question.id] = waiting
        asked = QuestionAsked(session_id=self.session.id, turn_id=turn.id, question=question)
        self.deliver(asked.with_raw(waiting.request.params))

    def _read(self, turn: AcpTurn, waiting: OpenRequest, times: int = 0) -> Question:
        """Read a request as a question. When it is read again, include what the agent has reported about the call since."""
        call, request = turn.items.known(waiting.call_id), waiting.request
        # A call that has ended is another one under the same name, which may be the model's choice.
        known = {} if call is None or call.ended else call.fields
        params = {**request.params, "toolCall": dict(known)} if times else request.params
        asking = Asking(
            title=self.title,
            session_id=self.session.id,
            turn_id=turn.id,
            directory=str(self.session.directory),
            request_id=request.id,
            sandbox="inside" if self.session.is_enforced else "outside",
            tool=self._profile.tool_of(mapping(params.get("toolCall"))),
            announced=waiting.announced,
            times=times,
        )
        return read_question(params, known, asking)

    def _look_again(self, turn: AcpTurn, update: Mapping[str, Any]) -> None:
        """Ask again about a call whose details have changed: the user must always see its current state."""
        call_id = text(update.get("toolCallId"))
        if update.get("status") == _BEGUN:
            turn.told.add(call_id)
        call = turn.items.known(call_id)
        if call is None or call.ended:
            return
        if update.get("status") == _BEGUN and (untold := self.untold.pop(call_id, None)) is not None:
            self._ask(turn, untold)
        for waiting in [one for one in self.questions.values() if one.call_id == call_id]:
            shown, now = waiting.question, self._read(turn, waiting, waiting.times + 1)
            # Close and ask anew instead of changing the open question: an answer must match the text on the screen.
            if shown is not None and _said(now) != _said(shown):
                waiting.times += 1
                waiting.question = now
                del self.questions[shown.id]
                self.deliver(QuestionClosed(session_id=self.session.id, question_id=shown.id, answer=None, by=_CHANGED))
                self.questions[now.id] = waiting
                asked = QuestionAsked(session_id=self.session.id, turn_id=turn.id, question=now)
                self.deliver(asked.with_raw(update))

    async def _refuse_untold(self, turn: AcpTurn, waiting: OpenRequest) -> None:
        await anyio.sleep(UNTOLD_SECONDS)
        if self.untold.get(waiting.call_id) is waiting:
            turn.decline(waiting.request)
            del self.untold[waiting.call_id]
            self.warn(f"{self.title} asked about a tool and did not say what it is given. It was refused.")
            self.peer.respond(waiting.request.id, refusing(waiting.request.params))

    def _answer_unasked(self, turn: AcpTurn, request: IncomingRequest, yes: bool) -> bool:
        # The user does not see this answer, so record the refusal: agents do not always report that the call failed.
        result = unasked(request.params, yes=yes)
        if result == refusing(request.params):
            turn.decline(request)
            self.note(turn)
        return self.peer.respond(request.id, result)

    def _give_later(self, request: IncomingRequest) -> bool:
        messages: list[str] = []
        if self.turn is not None and self.turn.later:
            messages, self.turn.later = [as_words(text) for text in self.turn.later], []
            # Noted before the answer is sent: a crash in between loses a message rather than delivering it twice.
            self.note(self.turn)
        return self.peer.respond(request.id, {"messages": messages, "hasQueuedPrompt": False})

    async def answer(self, question: Question, choices: tuple[Choice, ...] | None) -> bool:
        waiting = self.questions.get(question.id)
        if waiting is None or waiting.question is None:
            raise QuestionNotOpen.any_more(question.id)
        turn, request = self.turn, waiting.request
        result = write_answer(request.params, waiting.question, choices)  # one that does not fit leaves it open
        del self.questions[question.id]
        granted = result not in (cancelling(request.params), refusing(request.params))
        if turn is not None and not granted:
            turn.decline(request)
            reason = choices[0].reason if choices else None
            # An abort ends the turn, so the reason would begin another one.
            if reason is not None and choices is not None and choices[0].value != ABORT:
                turn.reasons.append(reason)  # a refusal has no place for it: it is the next thing the model reads
            self.note(turn)
        if not self.peer.respond(request.id, result):
            raise QuestionNotOpen.any_more(question.id)
        # The fields of a form may have any values.
        return bool(choices and choices[0].value == ABORT and waiting.question.type != "user_input")

    def withdraw_all(self) -> None:
        for question_id in list(self.questions):
            self._withdraw(question_id)
        untold, self.untold = self.untold, {}
        for waiting in untold.values():
            self.peer.respond(waiting.request.id, CANCELLED)

    def _withdraw(self, question_id: str) -> None:
        waiting = self.questions.pop(question_id)
        self.peer.respond(waiting.request.id, cancelling(waiting.request.params))
        self.deliver(
            QuestionClosed(session_id=self.session.id, question_id=question_id, answer=None, by=str(TURN_ENDED))
        )


def _said(question: Question) -> tuple[object, ...]:
    """Return all that the user sees of a question."""
    return question.type, question.prompts, question.details


def prompt_content(turn: TurnInput) -> list[Mapping[str, Any]]:
    """Return a prompt in the protocol's format.

    Raises:
        InvalidInput: An image cannot be read.
    """
    content: list[Mapping[str, Any]] = [text_block(turn.text)]
    for kind, data in map(image_data, turn.images):
        content.append({"type": "image", "data": data, "mimeType": kind})
    return content


def text_block(said: str) -> dict[str, Any]:
    """Return a text in the protocol's format."""
    return {"type": "text", "text": as_words(said)}


def turn_failure(error: EngineRefused) -> Failure:
    """Return the failure for an error that answered a prompt."""
    code, said = integer(error.details.get("rpc_code")), text(error.details.get("rpc_message"))
    data = mapping(error.details.get("rpc_data"))
    # Gemini puts the HTTP status into the code; others only write it, and Qwen puts the text into `details`.
    said = " ".join(filter(None, (said, optional_text(data.get("details")))))
    status = _http_status(code, said)
    if code == _NEEDS_LOGIN:
        name = "unauthorized"
    elif status is not None:
        name = _CODES.get(status, "internal_server_error" if status >= _SERVER_ERROR else "bad_request")
    else:
        name = optional_text(data.get("errorKind")) or "agent_error"
    retryable = name in ("rate_limit_exceeded", "internal_server_error", "server_error", "rate_limit")
    return Failure(code=name, message=redact(said)[:_SHOWN_CHARS], retryable=retryable, http_status=status)


def _http_status(code: int | None, said: str) -> int | None:
    if code is not None and 400 <= code < 600:
        return code
    found = _STATUS.search(said)
    return None if found is None else int(found[1])
