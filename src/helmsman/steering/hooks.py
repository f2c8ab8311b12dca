"""Hooks that the core calls in the capabilities; `helmsman.service.HelmsmanService` dispatches them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from pathlib import Path

    from helmsman.errors import BudgetExceeded
    from helmsman.model.events import Event
    from helmsman.sessions.session import Session
    from helmsman.steering.session_loader import SpentTurn
    from helmsman.tasks.model import Task


class Hooks(ABC):
    """Part of `helmsman.steering.turn_runner.TurnRunner`."""

    @abstractmethod
    async def check_remaining(self, percent: float, agent: str) -> tuple[str, ...]:
        """Refuse a start when less than this percentage of the account's limit is left. Return remarks otherwise."""

    @abstractmethod
    async def used_up(self, directory: str | None, task_id: str) -> BudgetExceeded | None:
        """Return the reason why a new task in a directory needs a person to grant more than a budget, or None."""

    @abstractmethod
    async def needs_session_first(self, task_id: str, directory: Path) -> bool:
        """Return whether a session in a new worktree is opened before its first turn is requested. `defer_turn` then
        delays the turn.
        """

    @abstractmethod
    async def defer_turn(self, session: Session, task_id: str, go_on: Callable[[], Awaitable[None]]) -> bool:
        """Return whether a requested turn is delayed: a person is asked, or the session's worktree is set up.

        Then `go_on` is called, unless the answer is no.
        """

    @abstractmethod
    def before_turn(self, session: Session, task_id: str, sandbox: str | None) -> Callable[[], Awaitable[None]]:
        """Start the preparations for a turn. The returned function waits for them before the agent gets the turn. Neither
        raises.

        `sandbox` is the sandbox of the session, as far as it is known.
        """

    @abstractmethod
    def after_turn(self, session: Session) -> None:
        """Run after the end of a turn."""

    @abstractmethod
    async def spent_by(self, session_id: str) -> Sequence[SpentTurn]:
        """Return the usage of each turn of a session and of its sub-agents, by the records on disk."""

    @abstractmethod
    def check_spending(self, session: Session) -> None:
        """Check the spending of a session: its turn may have to be stopped."""

    @abstractmethod
    def resume_job(self, task: Task) -> None:
        """Resume a job that an earlier hub left."""

    @abstractmethod
    def intercept_event(self, session: Session, event: Event) -> bool:
        """Return whether to withhold this event from the session: a person is asked first how to continue."""
