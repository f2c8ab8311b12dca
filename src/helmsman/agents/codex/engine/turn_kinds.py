"""How a turn begins: an ordinary one, one in plan mode, or Codex's own review.

Plan mode and the policy of a turn are sticky in Codex: they hold for later turns too, and in newer versions even when
another process resumes the thread. So whoever begins the turn after a plan has to say that planning is over.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from helmsman.agents.codex.features import Feature
from helmsman.errors import EngineRefused

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from helmsman.agents.codex.access.confinement import Policy
    from helmsman.agents.codex.access.plan import Access
    from helmsman.agents.codex.binary import CodexBinary
    from helmsman.agents.codex.wire.app_server import AppServer, Thread
    from helmsman.model.options import ReviewTarget, TurnInput

_PLAN: Final = "plan"
_DEFAULT: Final = "default"
_OLDEST_DEFAULT: Final = "code"
"""What Codex 0.93 calls the mode in which it works."""

_READ_ONLY: Final[Mapping[str, Any]] = {"type": "readOnly"}

_PLAN_INSTRUCTIONS: Final = """\
You are in plan mode. Look at whatever you need, but change nothing: no file is written, nothing is installed, no commit is
made, until the person has approved the plan. Ask about what you cannot find out by looking. When the plan is complete enough
that somebody else could carry it out, end your answer with it, in Markdown, between a line <proposed_plan> and a line
</proposed_plan>, each alone on its line. If the person asks for changes, answer with the whole plan again in the same form.
Plan mode ends when the person says that the plan is approved.
"""
"""For versions of Codex that have plan mode and do not themselves say what it is."""


@dataclass(slots=True)
class ThreadMode:
    """What a change of mode has to repeat (it would be reset otherwise), and whether the thread is in plan mode."""

    model: str = ""
    effort: str | None = None
    planning: bool = False

    def learn(self, thread: Thread) -> None:
        """Take in what Codex says of a thread it has opened."""
        self.model = thread.model or self.model
        self.effort = thread.effort or self.effort
        self.planning = self.planning or thread.mode == _PLAN


def turn_policy(
    binary: CodexBinary, access: Access, turn: TurnInput, known: Policy | None, directory: str | None
) -> Policy:
    """All that will decide where a turn may write, when it is said with the turn; a review cannot say it."""
    policy = access.policy(directory)
    if turn.plan:
        policy = replace(policy, sandbox=_READ_ONLY)
    if known is None:
        return policy
    roots = policy.workspace_roots if binary.can(Feature.WORKSPACE_ROOTS) else known.workspace_roots
    return replace(policy, reviewer=known.reviewer, workspace_roots=roots)


async def begin(
    api: AppServer,
    binary: CodexBinary,
    thread_id: str,
    turn: TurnInput,
    access: Access,
    mode: ThreadMode,
    *,
    model: str | None,
    workspace_roots: Sequence[str] | None = None,
) -> str:
    """Begin a turn in a loaded, idle thread; its id. `workspace_roots` replace those the thread was opened with."""
    if turn.review is not None:
        return await api.start_review(thread_id, _review_target(turn.review))
    mode.model = model or mode.model
    mode.effort = turn.effort or mode.effort
    if turn.plan:
        instructions = None if binary.can(Feature.PLAN_INSTRUCTIONS) else _PLAN_INSTRUCTIONS
        turn_id = await api.start_turn(
            thread_id,
            replace(turn, output_schema=None),  # the work has to fit it, not the plan
            sandbox_policy=_READ_ONLY,
            approval_policy="never",
            model=model,
            mode=_mode(_PLAN, mode, instructions),
        )
        mode.planning = True
        return turn_id
    if mode.planning or turn.kind == "work":  # a thread that was resumed may be in plan mode without anybody knowing
        turn_id = await _leave_plan_mode(api, thread_id, turn, access, mode, model, workspace_roots)
        mode.planning = False
        return turn_id
    return await api.start_turn(
        thread_id,
        turn,
        sandbox_policy=access.turn_sandbox,
        approval_policy=access.approval_policy,
        model=model,
        workspace_roots=workspace_roots,
    )


async def _leave_plan_mode(
    api: AppServer,
    thread_id: str,
    turn: TurnInput,
    access: Access,
    mode: ThreadMode,
    model: str | None,
    workspace_roots: Sequence[str] | None,
) -> str:
    async def start(name: str) -> str:
        return await api.start_turn(
            thread_id,
            turn,
            sandbox_policy=access.turn_sandbox,
            approval_policy=access.approval_policy,
            model=model,
            mode=_mode(name, mode),
            workspace_roots=workspace_roots,
        )

    try:
        return await start(_DEFAULT)
    except EngineRefused as refused:
        if f"unknown variant `{_DEFAULT}`" not in str(refused.details.get("rpc_message")):
            raise
    return await start(_OLDEST_DEFAULT)


def _mode(name: str, mode: ThreadMode, instructions: str | None = None) -> dict[str, Any]:
    settings = {"model": mode.model, "reasoning_effort": mode.effort, "developer_instructions": instructions}
    return {"mode": name, "settings": settings}


def _review_target(target: ReviewTarget) -> dict[str, Any]:
    match target.kind:
        case "uncommitted":
            return {"type": "uncommittedChanges"}
        case "base":
            return {"type": "baseBranch", "branch": target.value}
        case "commit":
            return {"type": "commit", "sha": target.value}
        case "custom":
            return {"type": "custom", "instructions": target.value}
