"""What a job does, step by step: each step is done once, whatever becomes of hubs.

A job that goes on in the next hub runs its procedure from the beginning. What a step has found out is written down, and
turns have idempotency keys of the job's, so that nothing is done twice: it finds what there is, and waits for what runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Unpack

import anyio

from helmsman.errors import BudgetExceeded, HelmsmanError
from helmsman.model.events import Usage

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from pathlib import Path

    from helmsman.capabilities.all_tasks import Tasks
    from helmsman.capabilities.outcomes.wanted import Wanted
    from helmsman.model.inputs import StartOptions
    from helmsman.model.options import TurnKind
    from helmsman.sessions.session import Session
    from helmsman.steering.core import Steering
    from helmsman.tasks.model import Task
    from helmsman.tasks.running_task import RunningJob

_LOOK_SECONDS: Final = 1.0


class TurnNotDone(HelmsmanError):
    """A turn of a job came to no good end."""

    code = "turn_not_done"


@dataclass(frozen=True, slots=True, kw_only=True)
class DoneTurn:
    """A turn that has come to its end: its session, its task, and what its agent said last."""

    session: Session
    task: Task

    @property
    def said(self) -> str:
        return self.task.result or ""


class Work:
    """What a procedure has in its hands. `known` is what earlier steps have found out."""

    def __init__(
        self, helm: Steering, tasks: Tasks, task: Task, wanted: Wanted, job: RunningJob, known: dict[str, Any]
    ) -> None:
        self.helm = helm
        self.tasks = tasks
        self.task = task
        self.wanted = wanted
        self.job = job
        self._known = known
        self._turns: list[str] = []

    async def once(self, step: str, do: Callable[[], Awaitable[Any]]) -> Any:
        """What a step finds out, as JSON: done unless it was before, and written down before anybody goes on."""
        if step not in self._known:
            found = await do()
            await self.helm.ledger.registry(lambda registry: registry.keep_step(self.task.id, step, found))
            self._known[step] = found
        return self._known[step]

    def tell(self, text: str) -> None:
        """Say what is being done just now."""
        self.helm.ledger.update(self.task.id, {"progress": {"text": text}})
        self.job.tell()

    async def start(
        self,
        step: str,
        prompt: str,
        *,
        cwd: str | Path | None = None,
        worktree: bool = False,
        kind: TurnKind | None = None,
        output_schema: Mapping[str, Any] | None = None,
        **options: Unpack[StartOptions],
    ) -> DoneTurn:
        """A new session and its first turn, to its end.

        Raises:
            TurnNotDone: The turn failed, or was stopped.
            HelmsmanError: It could not be begun.
        """
        session = await self.helm.start(
            prompt,
            cwd=self.wanted.directory if cwd is None else cwd,
            worktree=worktree,
            kind=kind,
            output_schema=output_schema,
            idempotency_key=self._key(step),
            max_cost_usd=await self._left_usd(),
            **options,
        )
        return await self._to_its_end(session, session.task_id or "")

    async def say(self, step: str, session_id: str, message: str) -> DoneTurn:
        """Another turn of a session, to its end.

        Raises:
            TurnNotDone: The turn failed, or was stopped.
            HelmsmanError: It could not be begun.
        """
        task_id = await self.tasks.local.follow_up(
            session_id, message, idempotency_key=self._key(step), max_cost_usd=await self._left_usd()
        )
        return await self._to_its_end(await self.helm.session(session_id), task_id)

    def _key(self, step: str) -> str:
        return f"{self.task.id} {step}"

    async def _to_its_end(self, session: Session, task_id: str) -> DoneTurn:
        self.job.sessions.add(session.id)
        self._turns.append(task_id)
        self.job.tell()
        while True:
            await session.wait(until="end")
            task = await self.tasks.get(task_id)
            if not task.is_running:
                break
            await anyio.sleep(_LOOK_SECONDS)  # it goes on after this turn, when a limit or a budget lets it
        if task.status != "completed":
            told = (task.error or {}).get("message") or task.note or f"it is {task.status}"
            raise TurnNotDone(
                f"The turn of {task.agent} in session {session.id} came to no end: {told}",
                sessionId=session.id,
                agent=task.agent,
                cause=(task.error or {}).get("code"),
            )
        return DoneTurn(session=session, task=task)

    async def _left_usd(self) -> float | None:
        """What the next turn may cost.

        Raises:
            BudgetExceeded: Nothing is left.
        """
        if self.wanted.budget_usd is None:
            return None
        left = self.wanted.budget_usd - (await self.spent())[1]
        if left <= 0:
            raise BudgetExceeded(
                f"The budget of {self.wanted.budget_usd:g} USD for {self.task.id} is used up. Ask again with a larger one."
            )
        return left

    async def spent(self) -> tuple[Usage, float]:
        """What its turns have used, and what that has cost as far as prices are known."""
        used, cost = Usage(), 0.0
        for task_id in dict.fromkeys(self._turns):
            results = await self.tasks.results(await self.tasks.find(task_id))
            used += results.task.usage or Usage()
            cost += results.cost_usd or 0.0
        return used, cost
