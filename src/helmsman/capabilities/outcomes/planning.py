"""`plan`: turn a goal into steps without changing files, and execute them after approval.

An agent with read-only access makes the plan. Every file it names must exist or be marked as new. An approved plan is
executed in a worktree: each step is a turn, verified by its check and returned to the agent with the evidence if it
fails. The checks are commands, so consent is requested before the first step. The result is an ordinary change.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import anyio.to_thread

from helmsman.capabilities.outcomes.candidates import opinion_on
from helmsman.capabilities.outcomes.claims import (
    Evidence,
    PlannedFile,
    inside,
    look,
    planned_files_exist,
    require_repository,
    untouched,
)
from helmsman.capabilities.outcomes.experiments import trial
from helmsman.capabilities.outcomes.job_checks import find_the_check, runner_for
from helmsman.capabilities.outcomes.reports import (
    ReportUnreadable,
    as_markdown,
    asked_for,
    entries_of,
    for_agent,
    planned_files_of,
    read_report,
    text_of,
    texts_of,
)
from helmsman.capabilities.outcomes.solving import SENT_BACK, apply_change, diff_data
from helmsman.capabilities.outcomes.work import Found, first_able, makers_of
from helmsman.errors import HelmsmanError, InvalidInput
from helmsman.model.questions import APPROVE, REVISE, STOP, Prompt, own_question
from helmsman.tasks.jobs import TurnGate

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from pathlib import Path

    from helmsman.capabilities.held_turns import HeldTurn
    from helmsman.capabilities.outcomes.agent_selection import Chosen
    from helmsman.capabilities.outcomes.check_files import OwnFile
    from helmsman.capabilities.outcomes.reports import ApplyOutcome, CandidateData, DiffData, StepData
    from helmsman.capabilities.outcomes.work import DoneTurn, Work
    from helmsman.settings import OnLimit

_SHAPE: Final = (
    '{"summary": "…", "steps": [{"title": "…", "details": "…", "files": [{"file": "path", "new": false}], '
    '"check": "a command that shows that the step is done"}], "risks": ["…"], "checks": ["…"], "openQuestions": ["…"]}'
)
_ASKED: Final = "The checks of its steps are asked for."
_WHY_ASKED: Final = "The check of a step of the plan that was approved."


async def plan(work: Work) -> Found:
    """Run the procedure."""
    return await _Planning(work, await require_repository(work.helm, work.wanted)).run()


@dataclass(slots=True)
class _Plan:
    """Parsed plan with its evidence, as stored by a step."""

    evidence: list[Any]
    summary: str = ""
    steps: list[StepData] = field(default_factory=list)
    risks: list[str] = field(default_factory=list)
    checks: list[str] = field(default_factory=list)
    open_questions: list[str] = field(default_factory=list)
    untouched: bool = True

    @property
    def holds(self) -> bool:
        return bool(self.evidence) and all(one["ok"] for one in self.evidence)

    @property
    def against(self) -> list[str]:
        return [one["what"] for one in self.evidence if not one["ok"]]


@dataclass(slots=True)
class _Candidate:
    """Candidate plan; `turn` is the turn that made it, if it completed."""

    number: int
    agent: str
    why: str
    plan: _Plan
    attempts: int = 0
    turn: DoneTurn | None = None
    session_id: str | None = None

    def as_dict(self, *, winner: bool) -> CandidateData:
        return {
            "number": self.number,
            "agent": self.agent,
            "why": self.why,
            "sessionId": self.session_id if self.turn is None else self.turn.session.id,
            "verified": self.plan.holds,
            "attempts": self.attempts,
            "evidence": self.plan.evidence,
            "diff": None,
            "checkSeconds": None,
            "told": _in_words(self.plan),
            "error": None if self.turn is not None else " ".join(self.plan.against),
            "winner": winner,
        }


@dataclass(slots=True)
class _Carried:
    """Progress of the execution."""

    session_id: str | None = None
    evidence: list[Any] = field(default_factory=list)
    diff: DiffData | None = None
    text: str | None = None
    applied: ApplyOutcome = "nothing"
    apply_error: str | None = None
    error: str | None = None


class _Planning:
    def __init__(self, work: Work, root: Path) -> None:
        self._work = work
        self._root = root
        self._state_dir = work.helm.settings.state_dir
        self._check: str | None = None
        self._folder = ""
        self._candidates: list[_Candidate] = []

    async def run(self) -> Found:
        work = self._work
        try:
            found = await find_the_check(work)
            self._check, self._folder = found["command"], found["folder"]
        except InvalidInput:
            self._check = None  # then every step needs a check
        before = await work.once("snapshot", partial(anyio.to_thread.run_sync, look, self._root, self._state_dir))
        await self._make(before)
        best, compared = await self._best()
        made, turn = best.plan, best.turn
        if turn is None:
            return await self._found(best, compared, None, _Carried())
        approved: bool | None = None
        carried = _Carried()
        rounds = 0
        while made.holds and work.wanted.apply != "never":
            rounds += 1
            step = f"approve {rounds}"
            answer: list[str] = await work.once(step, partial(self._ask, turn.session.id, made, compared))
            if answer[0] == REVISE:
                turn = await work.say(f"revise {rounds}", turn.session.id, f"{answer[1]}\n\n{asked_for(_SHAPE)}")
                made, more, turn = await self._verified(turn, before, f"plan {rounds}")
                best.plan, best.turn, best.attempts = made, turn, best.attempts + more
                continue
            approved = answer[0] == APPROVE
            break
        if approved:
            carried = await self._carry_out(best.agent, made)
        return await self._found(best, compared, approved, carried)

    # --- planning ----------------------------------------------------------------------------------------------------

    async def _make(self, before: dict[str, str]) -> None:
        """Make the requested number of plans concurrently."""
        work = self._work
        makers = makers_of(work)
        work.side_by_side = len(makers)

        async def make(number: int, order: Sequence[Chosen]) -> None:
            name = "plan" if len(makers) == 1 else f"plan of candidate {number}"
            begun = await first_able(work, name, order, partial(self._begin, name))
            told = "No agent could plan." if begun.error is None else begun.error.message
            nothing = _Plan([Evidence(ok=False, what=told).as_dict()])
            candidate = _Candidate(number, begun.agent, begun.why, nothing, session_id=begun.session_id)
            self._candidates.append(candidate)
            if begun.done is None:
                return
            try:
                candidate.plan, candidate.attempts, candidate.turn = await self._verified(begun.done, before, name)
            except HelmsmanError as error:
                candidate.plan = _Plan([Evidence(ok=False, what=error.message).as_dict()])

        async with anyio.create_task_group() as tasks:
            for number, order in enumerate(makers, 1):
                tasks.start_soon(make, number, order)
        work.side_by_side = 1
        self._candidates.sort(key=lambda one: one.number)

    async def _best(self) -> tuple[_Candidate, str | None]:
        """Return the plan to be approved, and the reason if there are several."""
        holding = [one for one in self._candidates if one.plan.holds]
        if len(holding) < 2:
            return (holding or self._candidates)[0], None
        shown = {one.number: _in_words(one.plan) for one in holding}
        what = "Several plans for the same goal were made, and all files that they name are there."
        opinion = await opinion_on(self._work, what, {one.agent for one in holding}, shown)
        best = next((one for one in holding if one.number == opinion["best"]), None)
        if best is None:
            best = min(holding, key=lambda one: len(one.plan.steps))
        return best, f"Plan {best.number} has {len(best.plan.steps)} step(s). {opinion['said'] or 'It has the fewest.'}"

    async def _begin(self, name: str, agent: str, on_limit: OnLimit | None) -> DoneTurn:
        self._work.report_progress(f"{agent} plans.")
        check = "" if self._check is None else f" Where a step has no check, `{self._check}` is run."
        prompt = "\n\n".join(
            [
                f"Make a plan for this, and change nothing:\n\n{self._work.wanted.request}",
                "Look at the code first. Each step is small enough to be done and checked by itself. Name the files that a "
                f"step changes, by their paths from {self._root}; those that it makes are `new`.{check}",
                asked_for(_SHAPE),
            ]
        )
        return await self._work.start(
            f"{name} {agent}",
            prompt,
            cwd=self._root,
            agent=agent,
            on_limit=on_limit,
            sandbox="read-only",
            approval_policy="never",
        )

    async def _verified(self, turn: DoneTurn, before: dict[str, str], name: str) -> tuple[_Plan, int, DoneTurn]:
        """Return a valid plan, or the last invalid one, with the number of attempts and its turn."""
        attempt = 0
        while True:
            attempt += 1
            kept = await self._work.once(f"{name} read {attempt}", partial(self._read, turn.said, before))
            made = _Plan(**deepcopy(kept))
            if made.holds or not made.untouched or attempt > SENT_BACK:
                return made, attempt, turn
            turn = await self._work.say(f"{name} again {attempt}", turn.session.id, for_agent(made.evidence))

    async def _read(self, said: str, before: dict[str, str]) -> dict[str, Any]:
        """Parse and verify an agent's plan."""
        nothing = await untouched(self._root, self._state_dir, before)
        try:
            report = read_report(said)
            steps = [self._step(entry) for entry in entries_of(report, "steps")]
            made = _Plan(
                [],
                text_of(report, "summary"),
                steps,
                texts_of(report, "risks"),
                texts_of(report, "checks"),
                texts_of(report, "openQuestions"),
            )
        except ReportUnreadable as error:
            made, looked = _Plan([]), [Evidence(ok=False, what=f"The plan cannot be read. {error.message}")]
        else:
            files: dict[str, PlannedFile] = {}
            for step in steps:  # files created by one step exist for the next
                for one in step["files"]:
                    files.setdefault(one["file"], PlannedFile(file=one["file"], new=one["new"]))
            exist = await anyio.to_thread.run_sync(planned_files_exist, files.values(), self._root)
            told = Evidence(ok=True, what=f"The plan has {len(steps)} step(s), each with a check.")
            looked = [told, *exist.evidence]
        made.evidence, made.untouched = [one.as_dict() for one in (*looked, nothing)], nothing.ok
        return asdict(made)

    def _step(self, entry: Mapping[str, Any]) -> StepData:
        own = entry.get("check")
        check = text_of(entry, "check") if own is not None or self._check is None else self._check
        return {
            "title": text_of(entry, "title"),
            "details": text_of(entry, "details", required=False),
            "files": [{"file": one.file, "new": one.new} for one in planned_files_of(entry)],
            "check": check,
            "status": "planned",
            "taskId": None,
            "attempts": 0,
            "evidence": [],
        }

    async def _ask(self, session_id: str, made: _Plan, compared: str | None) -> list[str]:
        work = self._work
        work.report_progress("A question asks whether to carry out the plan.")
        prompt = Prompt(
            text="Carry out this plan, step by step, each verified by its check?"
            + (f" {compared}" if compared else ""),
            options=(APPROVE, REVISE, STOP),
            key="plan",
            words="What to change (with revise)",
            descriptions={APPROVE: "go ahead, in a worktree", REVISE: "plan again", STOP: "leave it at the plan"},
        )
        details = {"plan": _in_words(made), "directory": str(self._root)}
        answer = await work.ask(session_id, own_question(session_id, None, prompt, details))
        if answer is None:
            return [STOP, ""]
        if answer.value == REVISE and not answer.reason:
            return [REVISE, "Plan again, in another way."]
        return [answer.value, answer.reason or ""]

    # --- execution ---------------------------------------------------------------------------------------------------

    async def _carry_out(self, agent: str, made: _Plan) -> _Carried:
        work, carried = self._work, _Carried()
        for step in made.steps:
            step["status"] = "not_run"
        try:
            for number, step in enumerate(made.steps, 1):
                work.report_progress(f"{agent} is at step {number} of {len(made.steps)}: {step['title']}")
                turn = await self._begin_step(agent, made, number, carried.session_id)
                carried.session_id = turn.session.id
                if not await self._to_its_check(number, made, turn):
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
        carried.text = change.text or None
        carried.diff = diff_data(change)
        carried.evidence = [one for step in made.steps for one in step["evidence"]]
        if all(step["status"] == "done" for step in made.steps):
            seen = {"verified": True, "diff": carried.diff, "evidence": carried.evidence}
            carried.applied, carried.apply_error, _ = await apply_change(work, carried.session_id, seen, [], [])
        return carried

    async def _begin_step(self, agent: str, made: _Plan, number: int, session_id: str | None) -> DoneTurn:
        step = made.steps[number - 1]
        asked = f"Do step {number} of the plan now, and nothing else: {step['title']}\n\n{step['details']}"
        checked = f"It is done when `{step['check']}` passes."
        if session_id is not None:
            return await self._work.say(f"step {number}", session_id, f"{asked}\n\n{checked}")
        checks = list(dict.fromkeys([*(str(one["check"]) for one in made.steps), *self._at_the_end(made)]))
        return await self._work.start(
            f"step {number}",
            f"This plan was approved. You carry it out in a git worktree of your own, one step at a time.\n\n"
            f"{_in_words(made)}\n\n{asked}\n\n{checked}",
            worktree=True,
            gate=TurnGate(note=_ASKED, do=partial(self._pass_gate, checks)),
            agent=agent,
            sandbox="workspace-write",
            approval_policy="on-request",
        )

    def _at_the_end(self, made: _Plan) -> list[str]:
        """Return the requested check, if the last step has a different one: an agent's check must not replace it."""
        given = self._work.wanted.check
        return [given] if given is not None and given != made.steps[-1]["check"] else []

    async def _pass_gate(self, checks: Sequence[str], held: HeldTurn) -> None:
        runner = runner_for(self._work, held.session, self._folder)
        for check in checks:
            await runner.allow(check, _WHY_ASKED)

    async def _to_its_check(self, number: int, made: _Plan, turn: DoneTurn) -> bool:
        """Verify a step, returning it to the agent until it passes."""
        work, step = self._work, made.steps[number - 1]
        planned = {inside(self._root, one["file"]) or "" for each in made.steps for one in each["files"]}
        while True:
            step["attempts"] += 1
            step["taskId"] = turn.task.id
            name = f"step {number} verified {step['attempts']}"
            more = self._at_the_end(made) if number == len(made.steps) else []
            step["evidence"] = await work.once(name, partial(self._verify_step, number, step, more, planned, turn))
            if all(one["ok"] for one in step["evidence"]):
                step["status"] = "done"
                return True
            step["status"] = "failed"
            if step["attempts"] > SENT_BACK:
                return False
            again = f"step {number} again {step['attempts']}"
            turn = await work.say(again, turn.session.id, for_agent(step["evidence"]))

    async def _verify_step(
        self, number: int, step: StepData, more: Sequence[str], planned: Collection[str], turn: DoneTurn
    ) -> list[dict[str, Any]]:
        """Run the step's check and `more` on the current state. Files of a check may change only as planned."""
        runner = runner_for(self._work, turn.session, self._folder)
        await self._work.changes.end_commands(runner.worktree)
        async with trial(runner) as checks:
            results = [await checks.now(command) for command in (str(step["check"]), *more)]
            edited: dict[str, OwnFile] = {}
            for one in results:
                await checks.find_held(one.command, one.reads)
                edited |= {file.path: file for file in await checks.edited(planned=planned)}
        seen = [Evidence(ok=one.passed, what=f"Step {number}: {one.in_words()}.", detail=one.tail) for one in results]
        told = [
            Evidence(ok=False, what=f"The check was edited, and the plan does not say so: {file.in_words}.", file=path)
            for path, file in edited.items()
        ]
        return [one.as_dict() for one in (*seen, *told)]

    # --- result ------------------------------------------------------------------------------------------------------

    async def _found(self, best: _Candidate, compared: str | None, approved: bool | None, carried: _Carried) -> Found:
        made, session = best.plan, None if best.turn is None else best.turn.session.id
        work = self._work
        done = [step for step in made.steps if step["status"] == "done"]
        verified = made.holds and (not approved or (bool(done) and len(done) == len(made.steps)))
        used, cost = await work.spent()
        report: dict[str, Any] = {
            "kind": "plan",
            "verified": verified,
            "says": _says(made, approved, done, carried),
            "evidence": [*made.evidence, *carried.evidence],
            "agent": best.agent,
            "why": best.why,
            "sessionId": session or best.session_id,
            "attempts": best.attempts,
            "candidates": [one.as_dict(winner=one is best) for one in self._candidates]
            if len(self._candidates) > 1
            else [],
            "seconds": round(work.seconds, 1),
            "tokens": used.input_tokens + used.output_tokens,
            "costUsd": cost,
            "summary": made.summary,
            "steps": made.steps,
            "risks": made.risks,
            "checks": made.checks,
            "openQuestions": made.open_questions,
            "compared": compared,
            "approved": approved,
            "workSessionId": carried.session_id,
            "diff": carried.diff,
            "applied": carried.applied,
            "applyError": carried.apply_error,
        }
        return Found(verified=verified, summary=as_markdown(report), report=report, diff=carried.text)


def _says(made: _Plan, approved: bool | None, done: Sequence[StepData], carried: _Carried) -> str:
    if not made.holds:
        return "There is no plan that holds. " + " ".join(made.against[:3])
    if approved is None:
        return "The plan holds, and nothing was changed."
    if not approved:
        return "The plan holds, and was not approved: nothing was changed."
    if len(done) == len(made.steps):
        return "The plan was carried out, and each step passed its check."
    failed = next((step for step in made.steps if step["status"] == "failed"), None)
    against = "" if failed is None else " ".join(one["what"] for one in failed["evidence"] if not one["ok"])
    return f"{len(done)} of {len(made.steps)} steps are done. {against} {carried.error or ''}".strip()


def _in_words(made: _Plan) -> str:
    lines = [made.summary, ""]
    for number, step in enumerate(made.steps, 1):
        lines.append(f"{number}. {step['title']}: {step['details']}")
        lines += [f"   - {one['file']}{' (new)' if one['new'] else ''}" for one in step["files"]]
        lines.append(f"   Check: {step['check']}")
    for title, told in (("Risks", made.risks), ("Open questions", made.open_questions)):
        lines += ["", f"{title}:", *(f"- {one}" for one in told)] if told else []
    return "\n".join(lines)
