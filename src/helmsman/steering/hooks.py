"""What the core asks of the capabilities that stand on it; `helmsman.service.Helmsman` passes it on to them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from pathlib import Path

    from helmsman.errors import BudgetExceeded
    from helmsman.model.events import Event
    from helmsman.sessions.session import Session
    from helmsman.steering.memory import SpentTurn
    from helmsman.tasks.model import Task


class Hooks(ABC):
    """Part of `helmsman.steering.turns.Turns`."""

    @abstractmethod
    async def check_remaining(self, percent: float, agent: str) -> tuple[str, ...]:
        """Refuse a start when less than so much of the account's limit is left; else what there is to remark."""

    @abstractmethod
    async def used_up(self, directory: str | None, task_id: str) -> BudgetExceeded | None:
        """Why a new task in a directory may not begin before somebody has granted more than a budget, if it may not."""

    @abstractmethod
    async def needs_session_first(self, task_id: str, directory: Path) -> bool:
        """Whether a session in a new worktree is opened before its first turn is asked for, which `holds` has wait then."""

    @abstractmethod
    async def holds(self, session: Session, task_id: str, go_on: Callable[[], Awaitable[None]]) -> bool:
        """Whether a turn that was requested does not begin yet: somebody is asked, or the session's worktree is set up.

        Then `go_on` is called, unless the answer is no.
        """

    @abstractmethod
    def before_turn(self, session: Session, task_id: str, sandbox: str | None) -> Callable[[], Awaitable[None]]:
        """Begin what has to be done before an agent hears of a turn; what is returned waits for it. Neither raises.

        `sandbox` is what holds the session, as far as it is known.
        """

    @abstractmethod
    def after_turn(self, session: Session) -> None:
        """A turn has ended."""

    @abstractmethod
    async def spent_by(self, session_id: str) -> Sequence[SpentTurn]:
        """Return what each turn of a session and of its sub-agents has spent, by what is on disk."""

    @abstractmethod
    def check_spending(self, session: Session) -> None:
        """Look at what a session has spent: its turn may have to be stopped."""

    @abstractmethod
    def resume_job(self, task: Task) -> None:
        """Go on with a job that an earlier hub left."""

    @abstractmethod
    def holds_back(self, session: Session, event: Event) -> bool:
        """Whether a session is not to hear of this yet: somebody is asked first how it goes on."""
