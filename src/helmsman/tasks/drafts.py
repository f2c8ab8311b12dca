"""Create a task for a turn that has not begun, with the idempotency key that lets it begin only once."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from helmsman.base.structs import pack, replace
from helmsman.model.options import without_secrets
from helmsman.model.prompts import message_part
from helmsman.tasks.call_key import call_key
from helmsman.tasks.model import TaskDraft, new_task_id

if TYPE_CHECKING:
    from collections.abc import Mapping

    from helmsman.model.request import TurnRequest


@dataclass(slots=True)
class NextTurn:
    """Job or handover that requests the next drafted turn. It applies to one turn only, not to others begun in the same
    context.
    """

    of_job: str | None = None
    handed_over_from: str | None = None

    def take(self) -> NextTurn:
        """Return the origin, once."""
        taken = NextTurn(self.of_job, self.handed_over_from)
        self.of_job = self.handed_over_from = None
        return taken


next_turn: Final[ContextVar[NextTurn | None]] = ContextVar("next_turn", default=None)


def draft_task(
    request: TurnRequest,
    *,
    session_id: str | None = None,
    idempotency_key: str | None = None,
    policy: Mapping[str, Any] | None,
    schedule: str | None = None,
    spec: Mapping[str, Any] | None = None,
) -> tuple[str, TaskDraft]:
    """Return the id and the draft of a task for a turn."""
    task_id, options = new_task_id("local"), request.options
    origin = (next_turn.get() or NextTurn()).take()
    if idempotency_key is None and (called := call_key.get()) is not None:
        idempotency_key = called.take()
    return task_id, TaskDraft(
        id=task_id,
        agent=options.agent,
        instruction=message_part(request.turn.text) or "",
        directory=str(options.cwd) if options.cwd is not None else None,
        session_id=session_id,
        idempotency_key=idempotency_key,
        model=options.model,
        of_job=origin.of_job,
        handed_over_from=origin.handed_over_from,
        # Tools are functions of a connected program, and no later process has them.
        stored_options=pack(without_secrets(replace(options, tools=()))),
        policy=policy,
        max_cost_usd=request.max_cost_usd,
        schedule=schedule,
        spec=spec,
    )
