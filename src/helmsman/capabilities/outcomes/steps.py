"""Carry out steps in a worktree: each is a turn, verified by its check and returned to its agent until it passes."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from helmsman.capabilities.outcomes.checks import runner_for
from helmsman.capabilities.outcomes.claims import Evidence, inside, verdict
from helmsman.capabilities.outcomes.experiments import trial
from helmsman.capabilities.outcomes.solving import AppliedDiff, apply_change, diff_data
from helmsman.capabilities.outcomes.work import Candidate
from helmsman.errors import HelmsmanError
from helmsman.tasks.jobs import TurnGate

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from helmsman.capabilities.held_turns import HeldTurn
    from helmsman.capabilities.outcomes.check_files import OwnFile
    from helmsman.capabilities.outcomes.reports import DiffData
    from helmsman.capabilities.outcomes.work import DoneTurn, Work

_ASKED: Final = "The checks of its steps are asked for."
_WHY_ASKED: Final = "The check of a step that was approved."

StepData = dict[str, Any]
"""Step as data: `title`, `details`, `files`, `check`, `status`, `taskId`, `attempts`, `evidence`."""


@dataclass(slots=True)
class CarriedOut:
    """Result of carrying out steps, besides the steps themselves."""

    session_id: str | None = None
    diff: DiffData | None = None
    text: str | None = None
    applied: AppliedDiff = field(default_factory=AppliedDiff)
    error: str | None = None

    def says(self, steps: Sequence[StepData], what: str) -> str:
        """Return the verdict in a sentence."""
        done = [step for step in steps if step["status"] == "done"]
        if len(done) == len(steps):
            return f"{what}, and each step passed its check."
        failed = next((step for step in steps if step["status"] == "failed"), None)
        against = "" if failed is None else " ".join(one["what"] for one in failed["evidence"] if not one["ok"])
        return f"{len(done)} of {len(steps)} steps are done. {against} {self.error or ''}".strip()


class StepRunner:
    """Runner for steps, which it updates. `introduction` begins the first turn."""

    def __init__(
        self, work: Work, root: Path, folder: str, agent: str, steps: Sequence[StepData], introduction: str
    ) -> None:
        self._work = work
        self._root = root
        self._folder = folder
        self._agent = agent
        self._steps = steps
        self._introduction = introduction

    async def run(self) -> CarriedOut:
        work, carried = self._work, CarriedOut()
        for step in self._steps:
            step["status"] = "not_run"
        try:
            for number, step in enumerate(self._steps, 1):
                work.report_progress(f"{self._agent} is at step {number} of {len(self._steps)}: {step['title']}")
                turn = await self._begin(number, step, carried.session_id)
                carried.session_id = turn.session.id
                if not await self._to_its_check(number, step, turn):
                    break
        except HelmsmanError as error:
            carried.error = error.message
            carried.session_id = carried.session_id or error.details.get("sessionId")
        if carried.session_id is None:
            return carried
        try:
            change = (await work.changes.diff(carried.session_id)).diff
        except HelmsmanError as error:
            carried.error = carried.error or error.message
            return carried
        carried.text, carried.diff = change.text or None, diff_data(change)
        if all(step["status"] == "done" for step in self._steps):
            evidence = [one for step in self._steps for one in step["evidence"]]
            seen = {"verified": True, "diff": carried.diff, "evidence": evidence}
            carried.applied = await apply_change(work, carried.session_id, seen)
        return carried

    async def _begin(self, number: int, step: StepData, session_id: str | None) -> DoneTurn:
        asked = f"Do step {number} of the plan now, and nothing else: {step['title']}\n\n{step['details']}"
        asked += f"\n\nIt is done when `{step['check']}` passes."
        if session_id is not None:
            return await self._work.say(f"step {number}", session_id, asked)
        return await self._work.start(
            f"step {number}",
            f"{self._introduction}\n\n{asked}",
            worktree=True,
            gate=TurnGate(note=_ASKED, do=self._pass_gate),
            agent=self._agent,
            sandbox="workspace-write",
            approval_policy="on-request",
        )

    def _checks_of(self, step: StepData) -> list[str]:
        """Return the checks of a step. The requested check ends the last one: an agent's check must not replace it."""
        given = self._work.wanted.check
        is_last = step is self._steps[-1]
        return list(dict.fromkeys([step["check"], *([given] if is_last and given is not None else [])]))

    async def _pass_gate(self, held: HeldTurn) -> None:
        runner = runner_for(self._work, held.session, self._folder)
        for check in dict.fromkeys(check for step in self._steps for check in self._checks_of(step)):
            await runner.allow(check, _WHY_ASKED)

    async def _to_its_check(self, number: int, step: StepData, turn: DoneTurn) -> bool:
        """Verify a step, returning it to the agent until it passes."""
        made = Candidate(number=number, agent=self._agent, why="", turn=turn)
        await self._work.until_verified(f"step {number}", made, partial(self._verify, number, step))
        assert made.turn is not None
        step["attempts"], step["taskId"], step["evidence"] = made.attempts, made.turn.task.id, made.evidence
        step["status"] = "done" if made.verified else "failed"
        if made.error is not None:
            raise HelmsmanError(made.error)
        return made.verified

    async def _verify(self, number: int, step: StepData, turn: DoneTurn) -> dict[str, Any]:
        """Run the step's checks on the current state. Files of a check may change only as planned."""
        planned = {inside(self._root, one["file"]) or "" for each in self._steps for one in each["files"]}
        runner = runner_for(self._work, turn.session, self._folder)
        await self._work.changes.end_commands(runner.worktree)
        told: list[Evidence] = []
        async with trial(runner) as checks:
            results = [await checks.now(command) for command in self._checks_of(step)]
            edited: dict[str, OwnFile] = {}
            for one in results:
                told.append(Evidence(ok=one.passed, what=f"Step {number}: {one.in_words()}.", detail=one.tail))
                await checks.find_held(one.command, one.reads)
                edited |= {file.path: file for file in await checks.edited(planned=planned)}
        told += [
            Evidence(ok=False, what=f"The check was edited, and the plan does not say so: {file.in_words}.", file=path)
            for path, file in edited.items()
        ]
        return verdict(told).to_json()
