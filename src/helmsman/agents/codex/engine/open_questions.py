"""The requests of Codex that wait for an answer, as questions: each reaches the session it belongs to, and is answered once.

A request that is no question, or of a thread nobody knows, is refused. What the turn's end or Codex itself makes moot is
withdrawn.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

import anyio

from helmsman.agents.codex.engine.approvals import (
    COMMAND,
    RequestContext,
    item_of,
    read_question,
    thread_of,
    write_answer,
)
from helmsman.agents.codex.engine.sandbox_proof import prove
from helmsman.agents.codex.engine.thread_state import ThreadState
from helmsman.agents.codex.features import Feature
from helmsman.agents.codex.storage.rollouts import SESSIONS
from helmsman.errors import HelmsmanError, QuestionNotOpen
from helmsman.model.events import FileChange, McpToolCall, QuestionAsked, QuestionClosed, ToolCalled

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from anyio.abc import TaskGroup

    from helmsman.agents.codex.binary import CodexBinary
    from helmsman.agents.codex.wire.app_server import AppServer
    from helmsman.agents.event_router import EventRouter
    from helmsman.base.jsonrpc import IncomingRequest, Peer
    from helmsman.model.client_tools import ToolResult
    from helmsman.model.questions import Choice, Question, WhereItRuns

log = logging.getLogger(__name__)

STEER_TIMEOUT: Final = 5.0
_TOOL_CALL: Final = "item/tool/call"
_PROOF_SECONDS: Final = 0.5
"""How long a question waits for Codex to write down the call it is about. Nearly always it has done so before."""
_PROOF_AGAIN: Final = 0.02


class OpenQuestions:
    """Those of one engine."""

    def __init__(
        self,
        tasks: TaskGroup,
        peer: Peer,
        api: AppServer,
        binary: CodexBinary,
        router: EventRouter,
        threads: dict[str, ThreadState],
        codex_home: Path,
    ) -> None:
        self._tasks = tasks
        self._peer = peer
        self._api = api
        self._binary = binary
        self._router = router
        self._threads = threads
        self._sessions = codex_home / SESSIONS
        self._unproved: dict[int | str, IncomingRequest] = {}
        """Commands of which is not yet known whether a yes stays in the sandbox."""
        self._open: dict[str, IncomingRequest] = {}
        self._by_request: dict[int | str, str] = {}
        self._tool_calls: dict[str, IncomingRequest] = {}
        """Calls of a program's functions, by their ids."""

    async def answer(self, question: Question, choices: tuple[Choice, ...] | None) -> None:
        request = self._open.get(question.id)
        if request is None:
            raise QuestionNotOpen.any_more(question.id)
        result = write_answer(request, choices)
        self._forget(question.id)  # from here on nobody else can answer it
        reason = choices[0].reason if choices else None
        with anyio.CancelScope(shield=True):  # bounded; a caller who leaves now must not leave Codex without its answer
            if reason is not None:
                await self._send_reason(request, reason)
            if not self._peer.respond(request.id, result):
                raise QuestionNotOpen.any_more(question.id)

    def answer_tool(self, call: ToolCalled, result: ToolResult) -> None:
        request = self._tool_calls.pop(call.call_id, None)
        if request is not None:  # `output` is for Codex 0.93
            content = [{"type": "inputText", "text": result.text}]
            self._peer.respond(request.id, {"contentItems": content, "output": result.text, "success": result.success})

    async def _send_reason(self, request: IncomingRequest, reason: str) -> None:
        """A refusal has no field for its reason: a message put into the turn just before reaches the model with it."""
        thread_id, turn_id = thread_of(request), request.params.get("turnId")
        if thread_id is None or not isinstance(turn_id, str) or not self._binary.can(Feature.STEER):
            return
        try:
            with anyio.move_on_after(STEER_TIMEOUT):
                await self._api.steer_turn(thread_id, turn_id, reason)
        except HelmsmanError as error:
            log.warning("the reason did not reach Codex: %s", error)

    def take(self, request: IncomingRequest) -> bool:
        """Whether a request of Codex has found, or may yet find, somebody to answer it."""
        thread_id = thread_of(request)
        if thread_id is None:
            return False
        session_id = self._router.parent(thread_id) or thread_id
        owner = self._router.owner(thread_id) or (session_id if self._is_own(session_id) else None)
        if owner is not None:
            return self._prove_and_ask(request, owner)
        self._tasks.start_soon(self._ask_parent, request, thread_id)
        return True

    def _prove_and_ask(self, request: IncomingRequest, session_id: str) -> bool:
        sandbox = prove(self._sessions, request.params) if request.method == COMMAND else "outside"
        if sandbox is not None:
            return self._ask(request, session_id, sandbox)
        self._unproved[request.id] = request
        self._tasks.start_soon(self._ask_when_proved, request, session_id)
        return True

    async def _ask_when_proved(self, request: IncomingRequest, session_id: str) -> None:
        sandbox: WhereItRuns | None = None
        with anyio.move_on_after(_PROOF_SECONDS):
            while sandbox is None and request.id in self._unproved:
                await anyio.sleep(_PROOF_AGAIN)
                sandbox = prove(self._sessions, request.params)
        if self._unproved.pop(request.id, None) is not None:  # else nobody wants the answer any more
            self._ask(request, session_id, sandbox or "outside")

    def take_or_refuse(self, request: IncomingRequest) -> None:
        if not self.take(request):
            self._peer.refuse(request.id, f"Helmsman does not answer {request.method}")

    def resolved(self, params: Mapping[str, Any]) -> None:
        """Codex wants no answer any more."""
        request_id = params.get("requestId")
        if isinstance(request_id, int | str):
            self._unproved.pop(request_id, None)
            for call_id in [key for key, request in self._tool_calls.items() if request.id == request_id]:
                del self._tool_calls[call_id]
        question_id = self._by_request.get(request_id) if isinstance(request_id, int | str) else None
        if question_id is not None:
            self._withdraw(question_id, "codex")

    def withdraw_of(self, thread_id: str, *, by: str) -> None:
        """Withdraw the open requests of a thread."""
        for request_id in [key for key, request in self._unproved.items() if thread_of(request) == thread_id]:
            del self._unproved[request_id]
        for call_id in [key for key, request in self._tool_calls.items() if thread_of(request) == thread_id]:
            del self._tool_calls[call_id]
        for question_id in [key for key, request in self._open.items() if thread_of(request) == thread_id]:
            self._withdraw(question_id, by)

    def clear(self) -> None:
        self._unproved.clear()
        self._open.clear()
        self._tool_calls.clear()
        self._by_request.clear()

    def _forget(self, question_id: str) -> None:
        request = self._open.pop(question_id, None)
        if request is not None:
            self._by_request.pop(request.id, None)

    def _withdraw(self, question_id: str, by: str) -> None:
        request = self._open.get(question_id)
        self._forget(question_id)
        thread_id = thread_of(request) if request is not None else None
        if thread_id is not None:
            self._router.deliver(QuestionClosed(session_id=thread_id, question_id=question_id, answer=None, by=by))

    def _is_own(self, thread_id: str) -> bool:
        state = self._threads.get(thread_id)
        return state is not None and state.access is not None

    def _ask(self, request: IncomingRequest, session_id: str, sandbox: WhereItRuns) -> bool:
        if request.method == _TOOL_CALL:
            return self._call_tool(request, session_id)
        state = self._threads.setdefault(thread_of(request) or session_id, ThreadState())
        items = state.asked_about
        patch = items.get(item_of(request) or "")
        around = RequestContext(
            directory=state.directory,
            patch=patch if isinstance(patch, FileChange) else None,
            tools=frozenset((item.server, item.tool) for item in items.values() if isinstance(item, McpToolCall)),
            sandbox=sandbox,
        )
        question = read_question(request, session_id, around)
        if question is None:
            return False
        self._open[question.id] = request
        self._by_request[request.id] = question.id
        self._router.deliver(
            QuestionAsked(
                session_id=session_id,
                turn_id=question.turn_id,
                agent_id=question.agent_id,
                question=question,
            ).with_raw(request.params)
        )
        return True

    def _call_tool(self, request: IncomingRequest, session_id: str) -> bool:
        call_id, tool, arguments = (request.params.get(name) for name in ("callId", "tool", "arguments"))
        if not isinstance(call_id, str) or not isinstance(tool, str):
            return False
        is_known = call_id in self._tool_calls  # Codex asks again when a thread is joined
        self._tool_calls[call_id] = request
        if is_known:
            return True
        called = ToolCalled(
            session_id=thread_of(request) or session_id,
            call_id=call_id,
            tool=tool,
            arguments=arguments if isinstance(arguments, dict) else {},
        )
        self._router.deliver(called)
        return True

    async def _ask_parent(self, request: IncomingRequest, thread_id: str) -> None:
        """A thread nobody knows is a sub-agent whose start we have not been told of yet: Codex knows its parent."""
        try:
            parent = (await self._api.read_thread(thread_id)).parent_id
        except HelmsmanError as error:
            log.debug("thread/read of %s: %s", thread_id, error)
            parent = None
        if parent is not None:
            self._router.adopt(thread_id, parent)
        owner = self._router.owner(thread_id)
        if owner is None or not self._prove_and_ask(request, owner):
            self._peer.refuse(request.id, "Helmsman does not know this thread")
