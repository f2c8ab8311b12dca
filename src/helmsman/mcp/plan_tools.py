"""The tool of the toolset `extras` that plans before it works."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from helmsman.mcp.session_tools import start_arguments, state_in_words
from helmsman.mcp.toolset import ACTS, Tool
from helmsman.shapes.contract import StartInput, StartOutput
from helmsman.shapes.session_status import started

if TYPE_CHECKING:
    from helmsman.mcp.toolset import CallContext


class PlanInput(StartInput):
    """The options of codex_start: they hold for the work, once the plan is approved."""


async def _plan(call: CallContext, args: PlanInput) -> StartOutput:
    return started(await call.helm.extras.plans.start(args.prompt, **start_arguments(call, args)))


PLAN_TOOLS: Final[tuple[Tool[Any], ...]] = (
    Tool(
        name="codex_plan",
        title="Let Codex plan before it works",
        description=(
            "Hand a task to Codex that it first only plans: until the plan is approved it can read and change nothing, "
            "whatever sandbox is asked for. Returns at once with a sessionId; codex_wait brings the plan as pendingQuestion "
            "(details.plan). Answer with codex_respond: approve (it goes on to do it with the options given here; wait "
            'again), "revise: what is to be different" (it plans again), or stop. Where no plan is needed use codex_start.'
        ),
        takes=PlanInput,
        gives=StartOutput,
        annotations=ACTS,
        run=_plan,
        in_words=state_in_words,
    ),
)
