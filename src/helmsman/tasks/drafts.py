"""A turn as a task that has not begun, and the idempotency key by which it is begun once."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

from helmsman.base.structs import pack, replace
from helmsman.model.handover_text import own_words
from helmsman.model.options import without_secrets
from helmsman.tasks.calls import call_key
from helmsman.tasks.model import MAX_COST, OPTIONS, POLICY, SCHEDULE, TaskDraft, new_task_id

if TYPE_CHECKING:
    from collections.abc import Mapping

    from helmsman.model.options import SessionOptions


class NextTurn:
    """Metadata for the next drafted turn. It applies to one turn only, not to others begun in the same context."""

    def __init__(self, **noted: str) -> None:
        self._noted = noted

    def take(self) -> dict[str, str]:
        noted, self._noted = self._noted, {}
        return noted


next_turn: Final[ContextVar[NextTurn | None]] = ContextVar("next_turn", default=None)


def draft_task(
    instruction: str,
    options: SessionOptions,
    *,
    session_id: str | None = None,
    idempotency_key: str | None = None,
    policy: Mapping[str, Any] | None,
    max_cost_usd: float | None = None,
    schedule: str | None = None,
    spec: Mapping[str, Any] | None = None,
) -> tuple[str, TaskDraft]:
    """A turn as a task that has not begun: its id, and all that is known of it."""
    task_id = new_task_id("local")
    turn = next_turn.get()
    if idempotency_key is None and (called := call_key.get()) is not None:
        idempotency_key = called.take()
    return task_id, TaskDraft(
        id=task_id,
        agent=options.agent,
        instruction=own_words(instruction) or "",
        directory=str(options.cwd) if options.cwd is not None else None,
        session_id=session_id,
        idempotency_key=idempotency_key,
        model=options.model,
        metadata={
            OPTIONS: pack(without_secrets(replace(options, tools=()))),
            **({} if policy is None else {POLICY: dict(policy)}),
            **({} if max_cost_usd is None else {MAX_COST: max_cost_usd}),
            **({} if schedule is None else {SCHEDULE: schedule}),
            **({} if turn is None else turn.take()),
        },
        spec=spec,
    )
