"""The tool of the toolset `extras` that plans before it works."""

from __future__ import annotations

from helmsman.mcp.session_tools import state_in_words
from helmsman.mcp.toolset import ACTS, CODEX, CallContext, tool
from helmsman.shapes.contract import StartInput, StartOutput
from helmsman.shapes.session_status import started


class PlanInput(StartInput):
    """The options of codex_start: they hold for the work, once the plan is approved."""


@tool("Let Codex plan before it works", ACTS, state_in_words)
async def codex_plan(call: CallContext, args: PlanInput) -> StartOutput:
    """Hand a task to Codex that it first only plans: until the plan is approved it only reads, whatever the sandbox.
    Returns at once with a sessionId; codex_wait brings the plan as pendingQuestion (details.plan). Answer
    with codex_respond: approve (it does it with the options given here; wait again), "revise: what should change"
    (it plans again), or stop. Where no plan is needed use codex_start."""
    return started(
        await call.helm.extras.plans.start(args.prompt, on_question=call.on_question, agent=CODEX, **args.options())
    )
