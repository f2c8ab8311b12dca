"""Jobs with steps: each is a turn in a worktree, verified by its check and returned to its agent until it passes.

The steps of a loop were written by a person, and a step may also have a judge. Those of a `plan` are made by an agent with
read-only access, which turns a goal into steps without changing files. Every file that it names must exist or be marked as
new. The steps are carried out after approval. The checks are commands, so consent is requested before the first step. The
result is an ordinary change.
"""

from __future__ import annotations

from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import anyio.to_thread

from helmsman.base.structs import replace
from helmsman.capabilities.outcomes.agent_selection import choose
from helmsman.capabilities.outcomes.checks import find_the_check, runner_for
from helmsman.capabilities.outcomes.claims import (
    Evidence,
    PlannedFile,
    inside,
    look,
    planned_files_exist,
    require_repository,
    untouched,
    verdict,
)
from helmsman.capabilities.outcomes.experiments import trial
from helmsman.capabilities.outcomes.judging import Judging, objections
from helmsman.capabilities.outcomes.reports import (
    Preference,
    ReportedPlan,
    ReportUnreadable,
    asked_for,
    prompt,
    quoted,
    read_report,
)
from helmsman.capabilities.outcomes.request import NEVER
from helmsman.capabilities.outcomes.solving import applied_as, apply_change, diff_data, tests_still_fail
from helmsman.capabilities.outcomes.work import SENT_BACK, Candidate, makers_of
from helmsman.errors import HelmsmanError, InvalidInput
from helmsman.model.questions import APPROVE, REVISE, STOP, Prompt, own_question
from helmsman.tasks.jobs import TurnGate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from helmsman.capabilities.outcomes.check_files import OwnFile
    from helmsman.capabilities.outcomes.reports import DiffData
    from helmsman.capabilities.outcomes.work import DoneTurn, Work
    from helmsman.capabilities.repository_commands import HeldTurn
    from helmsman.settings import OnLimit
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
    await runner.run()
    shown = Candidate(number=1, agent=chosen.agent, why=chosen.why, session_id=runner.session_id)
    shown.attempts = sum(step["attempts"] for step in steps)
    return await work.found(
        shown,
        verified=runner.is_done,
        says=runner.says("The loop is complete"),
        evidence=runner.evidence,
        change=runner.text,
        summary=wanted.request,
        **runner.as_report(),
    )


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
        self.session_id: str | None = None
        self.text: str | None = None
        self.evidence: list[dict[str, Any]] = []
        """Evidence of all steps."""
        self._diff: DiffData | None = None
        self._applied = applied_as()
        self._error: str | None = None

    def as_report(self) -> dict[str, Any]:
        """Return the results as part of a job's report."""
        return {"steps": self._steps, "workSessionId": self.session_id, "diff": self._diff, **self._applied}

    @property
    def is_done(self) -> bool:
        return all(step["status"] == "done" for step in self._steps)

    def says(self, what: str) -> str:
        """Return the verdict in a sentence."""
        if self.is_done:
            return f"{what}, and each step passed its check."
        done = sum(step["status"] == "done" for step in self._steps)
        failed = next((step for step in self._steps if step["status"] == "failed"), None)
        against = "" if failed is None else " ".join(one["what"] for one in failed["evidence"] if not one["ok"])
        return " ".join(filter(None, [f"{done} of {len(self._steps)} steps are done.", against, self._error]))

    async def run(self) -> None:
        """Carry out the steps, and apply the change if requested."""
        work = self._work
        for step in self._steps:
            step["status"] = "not_run"
        work.steps = self._steps
        try:
            for number, step in enumerate(self._steps, 1):
                step["status"] = "running"
                work.report_progress(f"{self._agent} is at step {number} of {len(self._steps)}: {step['title']}")
                turn = await self._begin(number, step)
                self.session_id = turn.session.id
                if not await self._to_its_check(number, step, turn):
                    break
        except HelmsmanError as error:
            self._error = error.message
            for step in self._steps:
                if step["status"] == "running":
                    # A step that was never verified counts as not run.
                    step["status"] = "failed" if step["attempts"] else "not_run"
            # The turn that failed may have begun the session.
            self.session_id = self.session_id or error.details.get("sessionId")
        self.evidence = [one for step in self._steps for one in step["evidence"]]
        if self.session_id is None:
            return
        try:
            change = (await work.changes.diff(self.session_id)).diff
        except HelmsmanError as error:
            self._error = self._error or error.message
            return
        self.text, self._diff = change.text or None, diff_data(change)
        if self.is_done:
            seen = {"verified": True, "diff": self._diff, "evidence": self.evidence, "judgement": self._unjudged}
            self._applied = await apply_change(work, self.session_id, seen)

    async def _begin(self, number: int, step: StepData) -> DoneTurn:
        judged = "" if step.get("judge") is None else ", and another agent objects to nothing"
        told = {name: step[name] for name in ("title", "details", "check")}
        asked = prompt("step", number=number, judged=judged, **told)
        if self.session_id is not None:
            return await self._work.say(f"step {number}", self.session_id, asked)
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


# --- Plans ---------------------------------------------------------------------------------------------------------------
_NO_PLAN: Final[dict[str, Any]] = {"summary": "", "steps": [], "risks": [], "checks": [], "openQuestions": []}

PlanData = dict[str, Any]
"""Parsed plan as data, with the keys of `_NO_PLAN`. A step also has `status`, `taskId`, `attempts` and `evidence`."""


async def plan(work: Work) -> TaskOutcome:
    """Run the procedure."""
    root = await require_repository(work.helm, work.wanted)
    try:
        found = await find_the_check(work)
        check, folder = found["command"], found["folder"]
    except InvalidInput:
        check, folder = None, ""  # then every step needs a check
    # At the end, this shows whether an agent has changed files against the rule.
    before = await work.once("snapshot", partial(anyio.to_thread.run_sync, look, root, work.helm.settings.state_dir))
    return await _Planning(work, root, check, folder, before).run()


class _Planning:
    def __init__(self, work: Work, root: Path, check: str | None, folder: str, before: dict[str, str]) -> None:
        self._work = work
        self._root = root
        self._check = check
        self._folder = folder
        self._before = before

    async def run(self) -> TaskOutcome:
        work = self._work
        made = await work.side_by_side("plan", makers_of(work), self._begin, self._verify)
        best, compared = await self._best(made)
        approved, rounds = None, 0
        while best.verified and work.wanted.apply != "never":
            rounds += 1
            assert best.turn is not None
            answer: list[str] = await work.once(f"approve {rounds}", partial(self._ask, best, compared))
            if answer[0] == REVISE:
                again = f"{answer[1]}\n\n{asked_for('plan')}"
                best.turn = await work.say(f"revise {rounds}", best.turn.session.id, again)
                await work.until_verified(f"revised plan {rounds}", best, self._verify)
                continue
            approved = answer[0] == APPROVE
            break
        # The steps are updated while they run. The plan stays as it was approved.
        steps = deepcopy(_plan_of(best)["steps"])
        plan = prompt("carry_out", plan=_in_words(_plan_of(best)))
        runner = StepRunner(work, self._root, self._folder, best.agent, steps, plan)
        if approved:
            await runner.run()
        return await work.found(
            best,
            verified=best.verified and (not approved or runner.is_done),
            says=_says(best, approved, runner),
            evidence=[*best.evidence, *runner.evidence],
            change=runner.text,
            **{
                "candidates": [one.as_dict(best) for one in made] if len(made) > 1 else [],
                **_plan_of(best),
                "compared": compared,
                "approved": approved,
                **runner.as_report(),
            },
        )

    # --- planning ----------------------------------------------------------------------------------------------------

    async def _begin(self, name: str, agent: str, on_limit: OnLimit | None) -> DoneTurn:
        self._work.report_progress(f"{agent} plans.")
        check = "" if self._check is None else f" Where a step has no check, `{self._check}` is run."
        asked = prompt(
            "plan",
            request=self._work.wanted.request,
            root=self._root,
            default_check=check,
            report=asked_for("plan"),
        )
        return await self._work.start_reader(name, asked, agent, cwd=self._root, on_limit=on_limit)

    async def _verify(self, turn: DoneTurn) -> dict[str, Any]:
        """Parse and verify an agent's plan."""
        nothing = await untouched(self._root, self._work.helm.settings.state_dir, self._before)
        made: PlanData = _NO_PLAN
        try:
            reported = read_report(turn.said, ReportedPlan)
            made = {
                "summary": reported.summary,
                "steps": [self._step(one.title, one.details, one.files, one.check) for one in reported.steps],
                "risks": list(reported.risks),
                "checks": list(reported.checks),
                "openQuestions": list(reported.open_questions),
            }
        except ReportUnreadable as error:
            seen = [Evidence(ok=False, what=f"The plan cannot be read. {error.message}")]
        else:
            files: dict[str, PlannedFile] = {}
            for one in (one for step in reported.steps for one in step.files):
                files.setdefault(one.file, one)  # files created by one step exist for the next
            exist = await anyio.to_thread.run_sync(planned_files_exist, files.values(), self._root)
            count = Evidence(ok=True, what=f"The plan has {len(made['steps'])} step(s), each with a check.")
            seen = [count, *exist.evidence]
        # Files that were changed against the rule stay changed, so another attempt cannot help.
        holds = verdict([*seen, nothing]).to_json()
        return {**holds, "plan": made, "told": _in_words(made), "settled": not nothing.ok}

    def _step(self, title: str, details: str, files: Sequence[PlannedFile], check: str | None) -> dict[str, Any]:
        if (check := check or self._check) is None:
            raise ReportUnreadable(f"The step {title!r:.80} has no check, and the repository has none to run instead.")
        return step_data(title, details, check, files)

    async def _best(self, made: Sequence[Candidate]) -> tuple[Candidate, str | None]:
        """Return the plan to be approved, and the reason if there are several: an independent agent's opinion, or the
        fewest steps.
        """
        holding = [one for one in made if one.verified]
        if len(holding) < 2:
            return (holding or made)[0], None
        opinion = await self._work.once("compared", partial(self._opinion, holding))
        best = next((one for one in holding if one.number == opinion["best"]), None)
        if best is None:
            best = min(holding, key=lambda one: len(_plan_of(one)["steps"]))
        steps = len(_plan_of(best)["steps"])
        return best, f"Plan {best.number} has {steps} step(s). {opinion['said'] or 'It has the fewest.'}"

    async def _opinion(self, holding: Sequence[Candidate]) -> dict[str, Any]:
        """Ask an agent that made none of the plans for the best; it is None if there is no such agent."""
        work, makers = self._work, {one.agent for one in holding}
        try:
            others = [one.agent for one in await choose(work.helm, replace(work.wanted, agents=()))]
        except HelmsmanError:
            others = []
        other = next((agent for agent in others if agent not in makers), None)
        if other is None:
            return {"best": None, "said": ""}
        work.report_progress(f"{other} compares the plans.")
        plans = (f"Plan {one.number}:\n{quoted(_in_words(_plan_of(one)), 'text')}" for one in holding)
        asked = prompt(
            "best_plan", request=work.wanted.request, plans="\n\n".join(plans), report=asked_for("best_plan")
        )
        try:
            turn = await work.start_reader("compare", asked, other)
            preferred = read_report(turn.said, Preference)
        # Without an opinion, the plan with the fewest steps is taken.
        except HelmsmanError as error:
            return {"best": None, "said": f"{other} could not compare them: {error.message}"}
        return {"best": preferred.best, "said": f"{other} prefers it: {preferred.why}"}

    async def _ask(self, best: Candidate, compared: str | None) -> list[str]:
        work, session_id = self._work, best.session_id or ""
        work.report_progress("A question asks whether to carry out the plan.")
        prompt = Prompt(
            text="Carry out this plan, step by step, each verified by its check?"
            + (f" {compared}" if compared else ""),
            options=(APPROVE, REVISE, STOP),
            key="plan",
            words="What to change (with revise)",
            descriptions={APPROVE: "go ahead, in a worktree", REVISE: "plan again", STOP: "leave it at the plan"},
        )
        details = {"plan": _in_words(_plan_of(best)), "directory": str(self._root)}
        answer = await work.ask(session_id, own_question(session_id, None, prompt, details))
        # Without an answer, nothing is carried out.
        if answer is None:
            return [STOP, ""]
        if answer.value == REVISE and not answer.reason:
            return [REVISE, "Plan again, in another way."]
        return [answer.value, answer.reason or ""]


def _plan_of(candidate: Candidate) -> PlanData:
    plan: PlanData = candidate.seen.get("plan", _NO_PLAN)
    return plan


def _says(best: Candidate, approved: bool | None, runner: StepRunner) -> str:
    if not best.verified:
        return f"There is no plan that holds. {best.against or best.error or 'No agent could plan.'}"
    if approved is None:
        return "The plan holds, and nothing was changed."
    if not approved:
        return "The plan holds, and was not approved: nothing was changed."
    return runner.says("The plan was carried out")


def _in_words(made: PlanData) -> str:
    lines = [made["summary"], ""]
    for number, step in enumerate(made["steps"], 1):
        lines.append(f"{number}. {step['title']}: {step['details']}")
        lines += [f"   - {one['file']}{' (new)' if one['new'] else ''}" for one in step["files"]]
        lines.append(f"   Check: {step['check']}")
    for title, told in (("Risks", made["risks"]), ("Open questions", made["openQuestions"])):
        lines += ["", f"{title}:", *(f"- {one}" for one in told)] if told else []
    return "\n".join(lines)
