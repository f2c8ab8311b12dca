"""Carry out steps in a worktree: each is a turn, verified by its check and returned to its agent until it passes.

The steps are those of an approved plan, or of a loop, which a person wrote. A step of a loop may also have a judge.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import anyio.to_thread

from helmsman.capabilities.outcomes.checks import find_the_check, runner_for
from helmsman.capabilities.outcomes.claims import Evidence, PlannedFile, inside, require_repository, verdict
from helmsman.capabilities.outcomes.experiments import trial
from helmsman.capabilities.outcomes.judging import Judging, objections
from helmsman.capabilities.outcomes.reports import prompt
from helmsman.capabilities.outcomes.request import NEVER
from helmsman.capabilities.outcomes.solving import applied_as, apply_change, diff_data, tests_still_fail
from helmsman.capabilities.outcomes.work import SENT_BACK, Candidate
from helmsman.errors import HelmsmanError
from helmsman.tasks.jobs import TurnGate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from helmsman.capabilities.held_turns import HeldTurn
    from helmsman.capabilities.outcomes.check_files import OwnFile
    from helmsman.capabilities.outcomes.reports import DiffData
    from helmsman.capabilities.outcomes.work import DoneTurn, Work
    from helmsman.tasks.outcome import TaskOutcome

_ASKED: Final = "The checks of its steps are asked for."
_WHY_ASKED: Final = "The check of a step that was approved."
StepData = dict[str, Any]
"""Step as data: `title`, `details`, `files`, `check`, `status`, `taskId`, `attempts`, `evidence`; in a loop also `judge`
and `most` (attempts).
"""


def step_data(title: str, details: str, check: str, files: Sequence[PlannedFile] = (), **more: Any) -> StepData:
    """Return a step that has not begun."""
    return {
        "title": title,
        "details": details,
        "files": [{"file": one.file, "new": one.new} for one in files],
        "check": check,
        "status": "planned",
        "taskId": None,
        "attempts": 0,
        "evidence": [],
        **more,
    }


async def loop(work: Work) -> TaskOutcome:
    """Run the procedure of a loop."""
    root = await require_repository(work.helm, work.wanted)
    wanted = work.wanted
    below = await anyio.to_thread.run_sync(lambda: inside(root, str(Path(wanted.directory).resolve())))
    folder, check = below or "", ""
    # Only if a step needs it, because a repository may have none.
    if wanted.check is not None or any(one.check is None for one in wanted.steps):
        found = await find_the_check(work)
        folder, check = found["folder"], found["command"]
    steps = [
        step_data(
            one.name,
            one.prompt.replace("{goal}", wanted.request),
            one.check or check,
            [PlannedFile(file=file) for file in one.files],
            judge=one.judge,
            most=one.attempts or SENT_BACK + 1,
        )
        for one in wanted.steps
    ]
    chosen = work.chosen[0]
    runner = StepRunner(work, root, folder, chosen.agent, steps, prompt("loop", goal=wanted.request))
    carried = await runner.run()
    shown = Candidate(number=1, agent=chosen.agent, why=chosen.why, session_id=carried.session_id)
    shown.attempts = sum(step["attempts"] for step in steps)
    return await work.found(
        shown,
        verified=all(step["status"] == "done" for step in steps),
        says=carried.says(steps, "The loop is complete"),
        evidence=[one for step in steps for one in step["evidence"]],
        change=carried.text,
        summary=wanted.request,
        steps=steps,
        **carried.as_report(),
    )


@dataclass(slots=True)
class CarriedOut:
    """Result of carrying out steps, besides the steps themselves."""

    session_id: str | None = None
    diff: DiffData | None = None
    text: str | None = None
    applied: dict[str, Any] = field(default_factory=applied_as)
    error: str | None = None

    def as_report(self) -> dict[str, Any]:
        """Return these results as part of a job's report."""
        return {
            "workSessionId": self.session_id,
            "diff": self.diff,
            **self.applied,
        }

    def says(self, steps: Sequence[StepData], what: str) -> str:
        """Return the verdict in a sentence."""
        done = [step for step in steps if step["status"] == "done"]
        if len(done) == len(steps):
            return f"{what}, and each step passed its check."
        failed = next((step for step in steps if step["status"] == "failed"), None)
        against = "" if failed is None else " ".join(one["what"] for one in failed["evidence"] if not one["ok"])
        return " ".join(filter(None, [f"{len(done)} of {len(steps)} steps are done.", against, self.error]))


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
        self._unjudged: dict[str, Any] | None = None
        """Judgement of a step that has a judge, if the judge was left out."""

    async def run(self) -> CarriedOut:
        work, carried = self._work, CarriedOut()
        for step in self._steps:
            step["status"] = "not_run"
        work.steps = self._steps
        try:
            for number, step in enumerate(self._steps, 1):
                step["status"] = "running"
                work.report_progress(f"{self._agent} is at step {number} of {len(self._steps)}: {step['title']}")
                turn = await self._begin(number, step, carried.session_id)
                carried.session_id = turn.session.id
                if not await self._to_its_check(number, step, turn):
                    break
        except HelmsmanError as error:
            carried.error = error.message
            for step in self._steps:
                if step["status"] == "running":
                    # A step that was never verified counts as not run.
                    step["status"] = "failed" if step["attempts"] else "not_run"
            # The turn that failed may have begun the session.
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
            seen = {"verified": True, "diff": carried.diff, "evidence": evidence, "judgement": self._unjudged}
            carried.applied = await apply_change(work, carried.session_id, seen)
        return carried

    async def _begin(self, number: int, step: StepData, session_id: str | None) -> DoneTurn:
        judged = "" if step.get("judge") is None else ", and another agent objects to nothing"
        told = {name: step[name] for name in ("title", "details", "check")}
        asked = prompt("step", number=number, judged=judged, **told)
        if session_id is not None:
            return await self._work.say(f"step {number}", session_id, asked)
        gate = TurnGate(note=_ASKED, do=self._pass_gate)
        return await self._work.start_writer(f"step {number}", f"{self._introduction}\n\n{asked}", self._agent, gate)

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
        most = step.get("most", SENT_BACK + 1) - 1
        await self._work.until_verified(f"step {number}", made, partial(self._verify, number, step, made), most=most)
        assert made.turn is not None
        step["attempts"], step["taskId"], step["evidence"] = made.attempts, made.turn.task.id, made.evidence
        step["status"] = "done" if made.verified else "failed"
        judgement = made.seen.get("judgement")
        if judgement is not None and judgement["state"] == "off":
            self._unjudged = judgement
        if made.error is not None:
            raise HelmsmanError(made.error)
        return made.verified

    async def _verify(self, number: int, step: StepData, made: Candidate, turn: DoneTurn) -> dict[str, Any]:
        """Run the step's checks on the current state. Files of a check may change only as planned."""
        step["attempts"] = made.attempts
        planned = {inside(self._root, one["file"]) or "" for each in self._steps for one in each["files"]}
        runner = runner_for(self._work, turn.session, self._folder)
        # What still runs there could change files while they are checked.
        await self._work.changes.end_commands(runner.worktree)
        told: list[Evidence] = []
        async with trial(runner) as checks:
            change = diff_data(checks.change)
            new = {path for path, status in (await checks.changed()).items() if status == "A"}
            edited: dict[str, OwnFile] = {}
            output = ""
            for command in self._checks_of(step):
                results = [await checks.now(command)]
                await checks.find_held(command, results[0].reads)
                # The check may name a test file that this step adds.
                kept = planned | {path for path in new if path in command}
                if results[0].passed and not kept.issuperset(one.path for one in checks.held):
                    results.append(await checks.after(command, planned=kept))  # new tests could change what they test
                if results[-1].passed:
                    fail = await tests_still_fail(self._work, checks, command, results[-1])
                    told += fail.against
                now, shown = results[0], results[-1]
                output = shown.output
                what = "" if shown.passed or not now.passed else ", with the files of the check as they were before"
                told.append(
                    Evidence(ok=shown.passed, what=f"Step {number}: {shown.in_words()}{what}.", detail=shown.tail)
                )
                edited |= {file.path: file for file in await checks.edited(planned=planned)}
        told += [
            Evidence(ok=False, what=f"The check was edited, and the plan does not say so: {file.in_words}.", file=path)
            for path, file in edited.items()
        ]
        judged: dict[str, Any] | None = None
        if step.get("judge") not in (None, NEVER) and verdict(told).verified:
            seen = {"diff": change, "after": {"output": output}}
            judging = Judging(self._work, step["judge"])
            judged = await judging.judge(f"step {number}.{made.attempts}", self._agent, turn.session.id, seen)
            objected = objections(judged["findings"]) if judged["state"] == "objects" else []
            told += objected or [Evidence(ok=judged["state"] != "failed", what=judged["says"])]
        return {**verdict(told).to_json(), "judgement": judged}
