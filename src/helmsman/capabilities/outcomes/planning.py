"""`plan`: turn a goal into steps without changing files, and execute them after approval.

An agent with read-only access makes the plan. Every file it names must exist or be marked as new. An approved plan is
executed in a worktree: each step is a turn, verified by its check and returned to the agent with the evidence if it
fails. The checks are commands, so consent is requested before the first step. The result is an ordinary change.
"""

from __future__ import annotations

from copy import deepcopy
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import anyio.to_thread

from helmsman.base.structs import replace
from helmsman.capabilities.outcomes.agent_selection import choose
from helmsman.capabilities.outcomes.checks import find_the_check
from helmsman.capabilities.outcomes.claims import (
    Evidence,
    PlannedFile,
    look,
    planned_files_exist,
    require_repository,
    untouched,
    verdict,
)
from helmsman.capabilities.outcomes.reports import (
    Preference,
    ReportedPlan,
    ReportUnreadable,
    asked_for,
    prompt,
    quoted,
    read_report,
)
from helmsman.capabilities.outcomes.steps import CarriedOut, StepRunner, step_data
from helmsman.capabilities.outcomes.work import Candidate, makers_of
from helmsman.errors import HelmsmanError, InvalidInput
from helmsman.model.questions import APPROVE, REVISE, STOP, Prompt, own_question

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from helmsman.capabilities.outcomes.work import DoneTurn, Work
    from helmsman.settings import OnLimit
    from helmsman.tasks.outcome import TaskOutcome

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
        approved, carried = None, CarriedOut()
        rounds = 0
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
        if approved:
            plan = prompt("carry_out", plan=_in_words(_plan_of(best)))
            carried = await StepRunner(work, self._root, self._folder, best.agent, steps, plan).run()
        return await self._found(made, best, compared, approved, steps, carried)

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

    async def _found(
        self,
        made: Sequence[Candidate],
        best: Candidate,
        compared: str | None,
        approved: bool | None,
        steps: Sequence[dict[str, Any]],
        carried: CarriedOut,
    ) -> TaskOutcome:
        is_done = all(step["status"] == "done" for step in steps)
        return await self._work.found(
            best,
            verified=best.verified and (not approved or is_done),
            says=_says(best, approved, steps, carried),
            evidence=[*best.evidence, *(one for step in steps for one in step["evidence"])],
            change=carried.text,
            **{
                "candidates": [one.as_dict(best) for one in made] if len(made) > 1 else [],
                **_plan_of(best),
                "steps": list(steps),
                "compared": compared,
                "approved": approved,
                **carried.as_report(),
            },
        )


def _plan_of(candidate: Candidate) -> PlanData:
    plan: PlanData = candidate.seen.get("plan", _NO_PLAN)
    return plan


def _says(best: Candidate, approved: bool | None, steps: Sequence[dict[str, Any]], carried: CarriedOut) -> str:
    if not best.verified:
        return f"There is no plan that holds. {best.against or best.error or 'No agent could plan.'}"
    if approved is None:
        return "The plan holds, and nothing was changed."
    if not approved:
        return "The plan holds, and was not approved: nothing was changed."
    return carried.says(steps, "The plan was carried out")


def _in_words(made: PlanData) -> str:
    lines = [made["summary"], ""]
    for number, step in enumerate(made["steps"], 1):
        lines.append(f"{number}. {step['title']}: {step['details']}")
        lines += [f"   - {one['file']}{' (new)' if one['new'] else ''}" for one in step["files"]]
        lines.append(f"   Check: {step['check']}")
    for title, told in (("Risks", made["risks"]), ("Open questions", made["openQuestions"])):
        lines += ["", f"{title}:", *(f"- {one}" for one in told)] if told else []
    return "\n".join(lines)
