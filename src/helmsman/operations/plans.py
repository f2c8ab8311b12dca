"""Plan first, then work."""

from __future__ import annotations

from helmsman.agents.protocol import Capability
from helmsman.model.nature import ACTS
from helmsman.operations.sessions import refuse_unknown_effort, state_in_words
from helmsman.operations.table import OperationCall, operation
from helmsman.operations.texts import CODEX
from helmsman.shapes.contract import StartInput, StartOutput
from helmsman.shapes.session_status import started


class PlanInput(StartInput):
    """Options of {tool}_start: they hold for the work, once the plan is approved."""


@operation(
    "{tool}_plan", "Let {agent} plan before it works", ACTS, state_in_words, needs=Capability.PLAN, like="{tool}_start"
)
async def plan(call: OperationCall, args: PlanInput) -> StartOutput:
    """Hand a task to {agent} that it first only plans: until the plan is approved it only reads, whatever the sandbox.
    Returns at once with a sessionId; {tool}_wait brings the plan as pendingQuestion (details.plan). Answer
    with {tool}_respond: approve (it does it with the options given here; wait again), "revise: what should change"
    (it plans again), or stop. Where no plan is needed use {tool}_start."""
    await refuse_unknown_effort(call, args.effort, CODEX)
    return started(
        await call.helm.extras.plans.start(args.prompt, on_question=call.on_question, agent=CODEX, **args.options())
    )
