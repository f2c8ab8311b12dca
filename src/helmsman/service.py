"""`Helmsman`: the one service that every front door calls.

The core (`helmsman.steering`) with what stands on it (`helmsman.capabilities`). It decides; front doors parse, call and
format.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from helmsman.steering.core import Steering

if TYPE_CHECKING:
    from helmsman.capabilities import Extras
    from helmsman.capabilities.all_tasks import Tasks
    from helmsman.model.events import Event
    from helmsman.sessions.session import Session


class Helmsman(Steering):
    """Runs Codex. Use it as an async context manager.

    Leaving the block stops everything it started, unless the engine is a detached one (`Settings.detach`, the default
    where Codex can): that goes on with what is running, and the next Helmsman finds it again.
    """

    @cached_property
    def tasks(self) -> Tasks:
        """All tasks: those of this Helmsman, those of others on this machine, and those in the cloud."""
        from helmsman.capabilities.all_tasks import Tasks

        return Tasks(self, env=self._env)

    @cached_property
    def extras(self) -> Extras:
        """What Codex can do beyond start and say."""
        from helmsman.capabilities import Extras

        return Extras(self, self.tasks)

    async def check_remaining(self, percent: float, agent: str) -> tuple[str, ...]:
        return await self.extras.account.check_remaining(percent, agent)

    def hold_to_budget(self, task_id: str, max_cost_usd: float | None, session: Session | None = None) -> None:
        if max_cost_usd is not None:
            self.tasks.local.hold_to(task_id, max_cost_usd, session)

    def keeps_back(self, session: Session, event: Event) -> bool:
        return self.extras.plans.keeps_back(session, event)

    def drop_plan(self, session: Session) -> None:
        self.extras.plans.stop(session)
