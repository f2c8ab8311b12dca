"""Attempts of a task: silence limits of its turn, and whether and with which prompt it resumes after its machine is lost."""

from __future__ import annotations

from datetime import UTC
from typing import TYPE_CHECKING, Any, Final, cast, get_args

from helmsman.base.structs import pack, replace, unpack_if_valid
from helmsman.model.options import OnMachineLoss, TurnLimits
from helmsman.model.questions import OWN_ASKER, Prompt, Question

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from helmsman.agents.registry import Agents
    from helmsman.fleet.owned_task import OwnedTask
    from helmsman.model.options import SessionOptions
    from helmsman.model.request import TurnRequest
    from helmsman.tasks.model import Task, TaskChanges

ON_LOSS: Final = "onMachineLoss"
"""Key in a task's specification: the client's choice of what to do after a loss."""
CONTINUE, FAIL = "continue", "fail"
_SILENCE: Final = "silenceSec"
"""Key in a task's policy: the limits on its silence, at the beginning of a turn and later; None means no limit."""

_CUT: Final = (
    "The machine that worked on this was lost in the middle of it, and you continue on another one. Uncommitted changes "
    "may be missing, and a command that was running may or may not have taken effect. Look at the current state before "
    "you continue. "
)
_HANDED_OVER: Final = (
    "The machine that worked on this was stopped in order, and you continue on another one. A running command was cut off. "
    "Look at the current state before you continue. "
)
_CUT_SINCE: Final = (
    "The machine that worked on this was lost in the middle of it, and you continue on another one, in another directory. "
    "Your files are as they were at {:%H:%M:%S} UTC, and so is this conversation: work after that is missing in both. So is "
    "what git ignores, and a command may have had effects elsewhere. Look at the current state before you continue. "
)
_NOT_BROUGHT: Final = "You are in another directory, and what git ignores is not there. "


def moved_words(prompt: str) -> str:
    """Return the prompt of a session's next turn on another machine."""
    return f"You continue on another machine. Your files are as you left them. {_NOT_BROUGHT}\n\n{prompt}"


def silence_to_keep(limits: TurnLimits | None) -> Mapping[str, Any]:
    """Return the limits on silence for the policy of a task; empty if its machine decides."""
    return {} if limits is None else {_SILENCE: pack(replace(limits, on_limit=None))}


def silence_of(task: Task) -> TurnLimits | None:
    """Return the stored limits."""
    # Tasks of other versions may hold another form; then the machine's own limits apply.
    return unpack_if_valid((task.policy or {}).get(_SILENCE), TurnLimits)


def was_cut(task: Task) -> bool:
    """Return whether an agent may have started the turn of a task in an earlier attempt."""
    # Written before the request: a turn counts as cut even if it may not have reached the agent.
    return task.asked_at is not None


def on_loss(task: Task, spec: TurnRequest, agents: Agents) -> OnMachineLoss:
    """Return what to do with a turn that was cut off: the client's choice, or `ask` if effects can be outside its tree."""
    wanted = (task.spec or {}).get(ON_LOSS)
    if wanted in get_args(OnMachineLoss):
        return cast("OnMachineLoss", wanted)
    return "ask" if _reaches_out(spec.options, agents) else "continue"


def _reaches_out(options: SessionOptions, agents: Agents) -> bool:
    """Return whether a turn may have had effects outside its tree: in the network, or anywhere on its machine."""
    agent = agents.get(options.agent)
    # An unknown agent may have had effects anywhere.
    return options.writes == "anything" or options.unenforced or agent is None or agent.reaches_network(options)


def question_of(owned: OwnedTask) -> Question:
    """Return the question whether to continue, for the clients that follow the task."""
    return Question(
        # The epoch makes it another question if a later machine is lost as well.
        id=f"machine-loss-{owned.epoch}",
        type="user_input",
        session_id=owned.session_id,
        turn_id=None,
        prompts=(
            Prompt(
                text="The machine that ran this task was lost in the middle of it. May it continue on another one?",
                options=(CONTINUE, FAIL),
                key="machine_loss",
                descriptions={
                    CONTINUE: "The agent is told what happened, looks at the current state and continues. Work that it did "
                    "elsewhere (in the network, outside of its tree) may be done a second time.",
                    FAIL: "The task ends as it is.",
                },
            ),
        ),
        details={"reason": owned.task.note or ""},
        asker=OWN_ASKER,
    )


def words_for(owned: OwnedTask, prompt: str, *, same_session: bool, kept_at: datetime | None) -> str:
    """Return the prompt to resume a turn. `kept_at` is the time of the stored files, if they were restored."""
    is_handed_over = owned.row["is_handed_over"]
    cut = _HANDED_OVER if is_handed_over else _CUT
    # Restored files are from the last snapshot; without one the files are still those of the same machine.
    if kept_at is not None:
        cut = (_HANDED_OVER + _NOT_BROUGHT) if is_handed_over else _CUT_SINCE.format(kept_at.astimezone(UTC))
    if same_session:
        return f"{cut}What you were asked for was:\n\n{prompt}"
    return f"{cut}You do not see what was said before. What was asked for is:\n\n{prompt}"


def loss_failure(task: Task) -> TaskChanges:
    lost = task.note or "Its machine was lost."
    text = f"{lost} It was cut off in the middle of its work. Look at it, then start it anew."
    return {"status": "failed", "error": {"code": "machine_lost", "message": text, "retryable": True}}
