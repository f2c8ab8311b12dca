"""Toolset `compat`: `codex` and `codex-reply`, as a replacement for the removed `codex mcp-server`.

A call is a turn: it returns when the turn has ended, and cancelling the call stops the turn.
`docs/appendix/compat.md` lists the differences from the original; tests compare both.
"""

from __future__ import annotations

from collections import Counter
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

import anyio
import mcp_types as types

from helmsman.base.concurrency import background_tasks
from helmsman.errors import EngineRefused, HelmsmanError, SessionBusy, SessionIdle, SessionNotFound, Unsupported
from helmsman.mcp.compat_call import CallInFlight
from helmsman.mcp.compat_schema import CODEX, CODEX_REPLY, BadArguments, read_codex, read_reply

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from helmsman.capabilities.service import AgentService
    from helmsman.mcp.call import CallContext, CallOutcome
    from helmsman.sessions.session import Session

_STOP_SECONDS: Final = 15.0
"""Time limit for a cancelled call to stop its turn."""
_END_SECONDS: Final = 5.0
"""Time to wait for the end of a turn after Codex reports that no turn is running."""


class CompatTool:
    """Tool with a fixed listing, whose results and errors have the original's shape."""

    def __init__(self, listing: types.Tool, run: Callable[[CallContext], Awaitable[CallOutcome]]) -> None:
        self._listing = listing
        self._run = run

    @property
    def name(self) -> str:
        return self._listing.name

    def listed(self) -> types.Tool:
        return self._listing

    async def called(self, call: CallContext) -> CallOutcome:
        try:
            return await self._run(call)
        except BadArguments as error:
            return _failed(str(error))
        except HelmsmanError as error:
            return _failed(error.message)


def compat_tools() -> Sequence[CompatTool]:
    """Return the two tools of one server."""
    calls = _Calls()
    return (CompatTool(CODEX, calls.codex), CompatTool(CODEX_REPLY, calls.reply))


class _Calls:
    """Calls of one server, and the sessions that they wait for."""

    def __init__(self) -> None:
        self._waiting = Counter[str]()

    async def codex(self, call: CallContext) -> CallOutcome:
        arguments = read_codex(call.params.arguments)
        # The second request of a client of 2026-07-28 repeats the arguments, but must not start another turn.
        if call.params.request_state is not None:
            return await self._second_leg(call, call.params.request_state)
        async with _in_flight(call, is_new=True) as in_flight:
            # The original took an empty directory for its own.
            session = await call.helm.start(
                arguments.prompt, cwd=arguments.cwd or None, on_question=in_flight.ask, **arguments.options
            )
            return await self._until_ended(call, session, in_flight)

    async def reply(self, call: CallContext) -> CallOutcome:
        arguments = read_reply(call.params.arguments)
        if call.params.request_state is not None:
            return await self._second_leg(call, call.params.request_state)
        try:
            session = await call.helm.session(arguments.thread_id)
        except SessionNotFound:
            return _failed(
                f"Session not found for thread_id: {arguments.thread_id}. Use the threadId that codex returned.",
                arguments.thread_id,
            )
        async with _in_flight(call, is_new=False) as in_flight:
            await _say(call.helm, session, arguments.prompt, in_flight)
            return await self._until_ended(call, session, in_flight)

    async def _second_leg(self, call: CallContext, session_id: str) -> CallOutcome:
        """Handle the second request of a 2026-07-28 client, which brings its user's answer.

        Its turn has been waiting.
        """
        session = await call.helm.session(session_id)
        await call.elicitor.take_responses(call.context, call.params.input_responses, session)
        async with _in_flight(call, is_new=False) as in_flight:
            in_flight.follow(session)
            return await self._until_ended(call, session, in_flight)

    async def _until_ended(self, call: CallContext, session: Session, in_flight: CallInFlight) -> CallOutcome:
        # Counted: several calls may wait for the same turn.
        self._waiting[session.id] += 1
        try:
            async with background_tasks() as tasks:
                tasks.start_soon(in_flight.report_progress, session)
                required = await _wait(call, session)
        except anyio.get_cancelled_exc_class():
            if self._waiting[session.id] == 1:  # another call may wait for the same turn and needs it to continue
                # Shielded, because this task is being cancelled, and bounded, because Codex may hang.
                with anyio.move_on_after(_STOP_SECONDS, shield=True):
                    await call.helm.interrupt(session.id)
                    await in_flight.flush()
            raise
        finally:
            self._waiting[session.id] -= 1
        # Events come before the result, as the client expects.
        await in_flight.flush()
        # Remarks concern the start of the session.
        return required or _result(session, session.notes if in_flight.is_new else ())


@asynccontextmanager
async def _in_flight(call: CallContext, *, is_new: bool) -> AsyncIterator[CallInFlight]:
    """Yield the call. Its client gets notifications during the block."""
    in_flight = CallInFlight(call, is_new=is_new)
    stop = call.helm.listen(in_flight.listen)
    try:
        async with background_tasks() as tasks:
            tasks.start_soon(in_flight.send_events)
            yield in_flight
    finally:
        stop()


async def _say(helm: AgentService, session: Session, prompt: str, in_flight: CallInFlight) -> None:
    """Start a turn, or put the prompt into the running one, whose result then also answers this call.

    The original also did the latter, but never answered the call.
    """
    # The turn may end or begin between looking and acting, so each race leads back to the start.
    while True:
        if not session.state.is_running:
            in_flight.follow(session)
            try:
                await helm.say(session.id, prompt, on_question=in_flight.ask)
            except SessionBusy:
                continue
            return
        # A turn that has not begun cannot take a message.
        await session.begun.wait()
        try:
            await session.steer(prompt)
        except (SessionIdle, Unsupported):
            await session.wait(until="end")  # it is over by now, or this Codex takes nothing in: the next turn then
        except EngineRefused:
            # Codex may refuse because the turn has just ended. Its end then arrives within moments.
            if not await session.wait(until="end", timeout=_END_SECONDS):
                raise  # the turn continues, so Codex did not mean its end
        else:
            return


async def _wait(call: CallContext, session: Session) -> types.InputRequiredResult | None:
    """Wait until the turn has ended, or return the reply with which the client asks its user and calls again."""
    while session.state.is_running:
        for question in session.questions:
            required = await call.elicitor.input_required(call.context, session, question)
            if required is not None:
                # The state of the request is the session: the second call finds the turn by it.
                return required.model_copy(update={"request_state": session.id})
        with session.watched():
            await session.feed.changed()
    return None


def _result(session: Session, remarks: Sequence[str]) -> types.CallToolResult:
    if session.status == "interrupted":
        return _failed("The turn was interrupted. Use codex-reply to continue.", session.id)
    if session.error is not None:
        return _failed(session.error.message, session.id)
    return _answer(session.result or "", session.id, remarks)


def _failed(text: str, thread_id: str | None = None) -> types.CallToolResult:
    return _answer(text, thread_id, is_error=True)


def _answer(
    text: str, thread_id: str | None, remarks: Sequence[str] = (), *, is_error: bool = False
) -> types.CallToolResult:
    return types.CallToolResult(
        is_error=is_error,
        # The answer alone is the first content, because many clients read only that.
        content=[types.TextContent(type="text", text=one) for one in (text, *remarks)],
        # The original had no thread id before a session existed.
        structured_content=None if thread_id is None else {"threadId": thread_id, "content": text},
    )
