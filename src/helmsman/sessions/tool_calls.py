"""Call of a program's function by the agent. It ends at the latest with its turn."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

import anyio

from helmsman.errors import HelmsmanError
from helmsman.model.client_tools import ClientTool, ToolDefinition, ToolFunction, ToolResult, functions_of, result_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from helmsman.model.events import ToolCalled
    from helmsman.sessions.session import Session, ToolRunner

log = logging.getLogger(__name__)

_OFFERED_SECONDS: Final = 15.0
"""Seconds that a call waits for its program. A program that just started the session, or lost its hub, offers its tools
soon.
"""


async def answer_call(session: Session, call: ToolCalled) -> None:
    """Run the function in the program, and send the result to the agent. Never raises."""
    turn, engine = session.turn_count, session.engine
    result: ToolResult | None = None

    async def run(turn_over: anyio.CancelScope) -> None:
        nonlocal result
        while result is None:
            runner = await _offered(session, call.tool)
            if runner is None:
                result = ToolResult(text=f"The program that offers {call.tool} is not there.", success=False)
            else:
                result = await runner(call)
        turn_over.cancel()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run, tasks.cancel_scope)
        # Compared with the turn of the call, since the next one may have begun when this wakes.
        while session.state.is_running and session.turn_count == turn:
            await session.feed.changed()
        tasks.cancel_scope.cancel()
    if result is not None and engine is not None:
        try:
            await engine.answer_tool(call, result)
        except HelmsmanError as error:  # the agent has stopped waiting for it
            log.info("the result of %s did not reach session %s: %s", call.tool, session.id, error)


def runners_of(tools: Sequence[ClientTool | ToolDefinition]) -> dict[str, ToolRunner]:
    """Return functions of this process in the form that sessions call."""

    def runner(function: ToolFunction) -> ToolRunner:
        return lambda call: result_of(function, call.arguments)

    return {name: runner(function) for name, function in functions_of(tools).items()}


async def _offered(session: Session, tool: str) -> ToolRunner | None:
    with anyio.move_on_after(_OFFERED_SECONDS):
        while tool not in session.tools:
            await session.tools_offered.wait()
    return session.tools.get(tool)
