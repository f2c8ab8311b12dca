"""Common procedure of `debug`, `refactor` and `test`: verify candidates in worktrees, compare them, apply one.

Consent to the check is requested once, before the first turn, and the check is run. If it cannot run, or does not show
what was reported, no turn is spent. Helmsman verifies each candidate in a clean room and returns a failed one to its
agent with the evidence, at most three times. Only a verified candidate can win. A change that passes only with changes
to the check's files is not verified: a person sees them and decides.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

import anyio
import anyio.to_thread

from helmsman.capabilities.outcomes.candidates import Candidate, compare
from helmsman.capabilities.outcomes.checks import CheckResult
from helmsman.capabilities.outcomes.claims import Evidence, Verdict, verdict
from helmsman.capabilities.outcomes.experiments import trial
from helmsman.capabilities.outcomes.job_checks import runner_for
from helmsman.capabilities.outcomes.reports import PROMISE, as_markdown, candidates_table, for_agent
from helmsman.capabilities.outcomes.work import Found, TurnNotDone, first_able, makers_of
from helmsman.errors import HelmsmanError
from helmsman.model.questions import APPROVE, DENY, Prompt, Question, own_question
from helmsman.tasks.jobs import TurnGate
from helmsman.worktrees import diff_of_directory

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from helmsman.capabilities.held_turns import HeldTurn
    from helmsman.capabilities.outcomes.agent_selection import Chosen
    from helmsman.capabilities.outcomes.check_files import OwnFile
    from helmsman.capabilities.outcomes.checks import CheckRunner
    from helmsman.capabilities.outcomes.experiments import Experiment
    from helmsman.capabilities.outcomes.reports import ApplyOutcome, CandidateData, CheckData, DiffData
    from helmsman.capabilities.outcomes.request import Kind
    from helmsman.capabilities.outcomes.work import DoneTurn, Work
    from helmsman.settings import OnLimit
    from helmsman.worktrees import TreeDiff

# --- Apply a checked change to the main tree: after approval, immediately or never, as the caller requested -----------

_DIFF_CHARS: Final = 200_000


def diff_data(diff: TreeDiff) -> DiffData:
    """Return the report data of a change."""
    return {
        "files": [
            {"path": one.path, "kind": one.kind, "added": one.added, "removed": one.removed} for one in diff.files
        ],
        "added": sum(one.added or 0 for one in diff.files),
        "removed": sum(one.removed or 0 for one in diff.files),
        "stat": diff.stat,
        "digest": diff.digest,
    }


async def apply_change(
    work: Work,
    session_id: str,
    seen: Mapping[str, Any],
    candidates: Sequence[CandidateData],
    others: Sequence[str],
) -> tuple[ApplyOutcome, str | None, list[str]]:
    """Apply exactly the change that was checked, if requested and approved; then discard the worktrees of `others`.

    `seen` is the result of its verification. If the change edits the check, a person always decides. Returns the
    outcome, the error of a failed apply, and the sessions with discarded worktrees.
    """
    wanted = work.wanted.apply
    is_verified = bool(seen.get("verified", True))
    if wanted == "never":
        return "not_asked" if is_verified else "nothing", None, []
    diff: DiffData = seen["diff"]
    if wanted == "ask" or not is_verified or seen.get("edited"):

        async def ask() -> bool | str:
            work.report_progress("Waiting for your decision: apply the change?")
            question = await _question(work, session_id, seen, candidates)
            if isinstance(question, str):
                return question
            answer = await work.ask(session_id, question)
            return answer is not None and answer.value == APPROVE

        answered = await work.once("apply it", ask)
        if isinstance(answered, str):
            return "failed", answered, []
        if not answered:
            return "refused", None, []

    async def apply() -> dict[str, str | None]:
        work.report_progress("The change is being applied.")
        try:
            await work.changes.apply(session_id, digest=diff["digest"])
        except HelmsmanError as problem:
            return {"error": problem.message}
        return {"error": None}

    error: str | None = (await work.once("applied", apply))["error"]
    if error is not None:
        return "failed", error, []

    async def discard() -> list[str]:
        dropped: list[str] = []
        for other in others:
            try:
                await work.changes.discard(other)
                dropped.append(other)
            except HelmsmanError as problem:
                log.info("the worktree of session %s stays: %s", other, problem)
        return dropped

    return "applied", None, await work.once("discarded", discard)


async def _question(
    work: Work, session_id: str, seen: Mapping[str, Any], candidates: Sequence[CandidateData]
) -> Question | str:
    """Return the question whether to apply a change, or why it cannot be asked."""
    session = await work.helm.session(session_id)
    tree = session.worktree
    change = (await work.changes.diff(session_id)).diff
    if change.digest != seen["diff"]["digest"]:
        return "The worktree was changed after the check ran. Nothing was applied; ask again."
    where = work.wanted.directory if tree is None else str(tree.repository)
    is_verified = bool(seen.get("verified", True))
    first = [f"Apply this verified change to {where}?"]
    if not is_verified:
        first = [
            f"Apply this change to {where}? It is NOT verified: the check passes only with changes to its own files.",
        ]
    evidence = [f"- {one['what']}" for one in seen["evidence"] if one["ok"] or not is_verified]
    held = [f"- {one['what']}" for one in seen.get("held", ())]
    if held:
        said = "Changes to the check, which it passed without:" if is_verified else "Changes to the check:"
        held = [said, *held]
    notes = [f"- {one}" for one in seen.get("notes", ())]
    if notes:
        notes = ["Look at these yourself; the check cannot tell:", *notes]
    cut = [] if len(change.text) <= _DIFF_CHARS else [f"Not all of it is shown here: see helmsman diff {session_id}"]
    table = ["", candidates_table(candidates)] if len(candidates) > 1 else []
    promise = [PROMISE] if is_verified else []
    text = "\n".join([*first, *cut, change.stat.rstrip(), *evidence, *promise, *held, *notes, *table])
    prompt = Prompt(
        text=text,
        options=(APPROVE, DENY),
        key="apply",
        descriptions={APPROVE: "bring it into the main tree, unstaged", DENY: "leave it in its worktree"},
    )
    details = {"diff": change.text[:_DIFF_CHARS], "directory": where}
    return own_question(session_id, session.state.turn_id, prompt, details)


log = logging.getLogger(__name__)

SENT_BACK: Final = 3
"""Number of times a failed candidate is returned to its agent."""
_ASKED: Final = "Its check is asked for, and run on what there is."
_WHY_ASKED: Final = "The repository's check, with which Helmsman verifies the agent's work."
RULES: Final = (
    "You work in a git worktree of your own. Your work is verified by running `{check}`{where} in a fresh checkout: with "
    "your changes to files that git tracks or would add, and with the tests and all that runs them (Makefile, "
    "pyproject.toml, conftest.py, scripts, what they call, …) as they were before. Do not change or remove existing tests, "
    "and do not touch those files. You may add tests. Name files by their paths from the root of the repository."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """Result of verifying one attempt.

    Attributes:
        after: The run of the check that counts.
        more: Additional report fields of the kind.
        held: Changed files that belong to the check, which ran with their previous versions.
        edited: Those of them with other changes than added tests.
        decide: Whether the check passes only with the changes to these files.
        notes: Doubtful files for a person.
    """

    verdict: Verdict
    after: CheckResult | None = None
    more: Mapping[str, Any] = field(default_factory=dict[str, Any])
    held: Sequence[OwnFile] = ()
    edited: Sequence[str] = ()
    decide: bool = False
    notes: Sequence[str] = ()


class Solver(ABC):
    """Kind of outcome that is a change."""

    kind: ClassVar[Kind]

    def __init__(self, work: Work, check: CheckData) -> None:
        self.work = work
        self.check = check
        self.wanted = work.wanted

    @abstractmethod
    def judge(self, before: CheckResult) -> Verdict:
        """Verify the check's result before the first turn; the job does not begin if that fails."""

    @abstractmethod
    def prompt(self) -> str:
        """Return the prompt for the agent."""

    @abstractmethod
    async def verify(self, checks: Experiment, said: str, before: CheckResult | None) -> Verified:
        """Verify the work of a session. `said` is the agent's last message."""

    @abstractmethod
    def report(self, before: CheckResult | None, more: Mapping[str, Any]) -> dict[str, Any]:
        """Return the report fields of this kind; `more` is from the winner's verification."""

    @property
    def command(self) -> str:
        return self.check["command"]

    @property
    def rules(self) -> str:
        folder = self.check["folder"]
        return RULES.format(check=self.command, where=f" in {folder}" if folder else "")


class Solving:
    """Job of this kind, from its candidates to the applied change."""

    def __init__(self, solver: Solver) -> None:
        self._solver = solver
        self._work = solver.work
        self._at_gate = anyio.Lock()

    async def run(self) -> Found:
        work, solver = self._work, self._solver
        makers = makers_of(work)
        work.side_by_side = len(makers)
        candidates: list[Candidate | None] = [None] * len(makers)

        async def make(place: int, order: Sequence[Chosen]) -> None:
            candidates[place] = await self._candidate(place + 1, order)

        async with anyio.create_task_group() as tasks:
            for place, order in enumerate(makers):
                tasks.start_soon(make, place, order)
        work.side_by_side = 1
        made = [one for one in candidates if one is not None]
        before = self._before
        if before is not None and not solver.judge(before).verified:
            await self._drop(made)
            return await self._found(made, None)
        verified = [one for one in made if one.verified]
        winner, compared = await compare(work, verified) if verified else (None, None)
        applied: ApplyOutcome = "nothing"
        apply_error: str | None = None
        discarded: list[str] = []
        chosen = winner or next((one for one in made if one.needs_decision), None)
        if chosen is not None:
            assert chosen.session_id is not None
            others = [one.session_id for one in made if one is not chosen and one.session_id is not None]
            data = [one.as_dict(winner) for one in made]
            applied, apply_error, discarded = await apply_change(work, chosen.session_id, chosen.seen, data, others)
        return await self._found(made, winner, compared, applied, apply_error, discarded)

    # --- candidates --------------------------------------------------------------------------------------------------

    async def _candidate(self, number: int, order: Sequence[Chosen]) -> Candidate:
        begun = await first_able(self._work, f"candidate {number}", order, partial(self._begin, number))
        candidate = Candidate(number=number, agent=begun.agent, why=begun.why, session_id=begun.session_id)
        if begun.done is None:
            candidate.error = None if begun.error is None else begun.error.message
            return candidate
        try:
            return await self._to_a_verdict(candidate, begun.done)
        except HelmsmanError as error:
            candidate.error = error.message
            return candidate

    async def _begin(self, number: int, agent: str, on_limit: OnLimit | None) -> DoneTurn:
        work = self._work
        work.report_progress(f"{agent} is at work on candidate {number}.")
        return await work.start(
            f"candidate {number} {agent}",
            self._solver.prompt(),
            worktree=True,
            gate=TurnGate(note=_ASKED, do=self._pass_gate),
            on_limit=on_limit,
            agent=agent,
            sandbox="workspace-write",
            approval_policy="on-request",
        )

    async def _to_a_verdict(self, candidate: Candidate, turn: DoneTurn) -> Candidate:
        work = self._work
        candidate.session_id = session_id = turn.session.id
        while True:
            candidate.attempts += 1
            candidate.told = turn.said
            work.report_progress(f"What {candidate.agent} did (candidate {candidate.number}) is being verified.")
            step = f"candidate {candidate.number} verified {candidate.attempts}"
            seen_before = candidate.seen.get("diff") if candidate.needs_decision else None
            candidate.seen = await work.once(step, partial(self._verify, turn))
            if candidate.verified or candidate.attempts > SENT_BACK:
                return candidate
            if candidate.needs_decision and candidate.seen["diff"] == seen_before:
                return candidate  # the agent insists on it, so a person decides
            work.report_progress(f"Candidate {candidate.number} goes back to {candidate.agent}: it did not verify.")
            try:
                step = f"candidate {candidate.number} again {candidate.attempts}"
                turn = await work.say(step, session_id, for_agent(candidate.seen["evidence"]))
            except HelmsmanError as error:
                candidate.error = error.message
                return candidate

    async def _verify(self, turn: DoneTurn) -> dict[str, Any]:
        """Verify the work of a session; return the JSON form."""
        work, solver, session = self._work, self._solver, turn.session
        runner = runner_for(work, session, self._solver.check["folder"])
        await work.changes.end_commands(runner.worktree)
        seen = Verified(verdict=verdict([Evidence(ok=False, what="Nothing was changed.")]))
        async with trial(runner) as checks:
            change = checks.change  # fixed here: later writes to the worktree are neither verified nor applied
            if change.files:
                seen = await solver.verify(checks, turn.said, self._before)
        return {
            **seen.verdict.as_dict(),
            "after": None if seen.after is None else seen.after.as_dict(),
            "diff": diff_data(change),
            "more": dict(seen.more),
            "held": [{"file": one.path, "what": one.in_words} for one in seen.held],
            "edited": list(seen.edited),
            "decide": seen.decide,
            "notes": list(seen.notes),
        }

    # --- before ------------------------------------------------------------------------------------------------------

    @property
    def _before(self) -> CheckResult | None:
        kept = self._work.known("before")
        return None if kept is None else CheckResult.of(kept)

    async def _pass_gate(self, held: HeldTurn) -> None:
        """Request consent to the check and run it before any change, once for all candidates."""
        work, solver = self._work, self._solver
        with held.at_work("another candidate's check"):
            await self._at_gate.acquire()
        try:
            runner = runner_for(work, held.session, solver.check["folder"])
            await runner.allow(solver.command, _WHY_ASKED)
            with held.at_work("the check before"):
                before = CheckResult.of(await work.once("before", partial(self._run_before, runner)))
        finally:
            self._at_gate.release()
        judged = solver.judge(before)
        if not judged.verified:
            raise TurnNotDone(" ".join(one.what for one in judged.against), cause="not_as_named")

    async def _run_before(self, runner: CheckRunner) -> dict[str, Any]:
        self._work.report_progress(f"`{self._solver.command}` runs on what was there before.")
        async with trial(runner) as checks:
            return (await checks.before(self._solver.command)).kept()

    async def _drop(self, candidates: Sequence[Candidate]) -> None:
        """Discard worktrees in which no turn has begun."""
        for one in candidates:
            if one.session_id is not None:
                try:
                    await self._work.changes.discard(one.session_id)
                except HelmsmanError as error:
                    log.info("the worktree of session %s stays: %s", one.session_id, error)

    # --- result ------------------------------------------------------------------------------------------------------

    async def _found(
        self,
        made: Sequence[Candidate],
        winner: Candidate | None,
        compared: str | None = None,
        applied: ApplyOutcome = "nothing",
        apply_error: str | None = None,
        discarded: Sequence[str] = (),
    ) -> Found:
        work, solver, before = self._work, self._solver, self._before
        shown = winner or max(made, key=lambda one: one.attempts)
        judged = solver.judge(before) if before is not None else None
        begun = judged is None or judged.verified
        evidence = [one.as_dict() for one in judged.evidence] if judged is not None and not begun else []
        seen: dict[str, Any] = {"evidence": evidence, **shown.seen}
        used, cost = await work.spent()
        report: dict[str, Any] = {
            "kind": solver.kind,
            "verified": winner is not None,
            "says": _says(winner, shown, judged, applied) + ("" if begun else await self._not_committed()),
            "evidence": seen["evidence"],
            "agent": shown.agent,
            "why": shown.why,
            "sessionId": shown.session_id if begun else None,
            "attempts": shown.attempts,
            "candidates": [one.as_dict(winner) for one in made] if begun else [],
            "seconds": round(work.seconds, 1),
            "tokens": used.input_tokens + used.output_tokens,
            "costUsd": cost,
            "check": solver.check,
            "before": None if before is None else before.as_dict(),
            "after": seen.get("after"),
            "diff": seen.get("diff"),
            "compared": compared,
            "applied": applied,
            "applyError": apply_error,
            "discarded": list(discarded),
            "checkChanges": seen.get("held", []),
            "notes": seen.get("notes", []),
            **solver.report(before, seen.get("more", {})),
        }
        diff = await self._diff(shown) if shown.seen else None
        return Found(verified=winner is not None, summary=as_markdown(report), report=report, diff=diff)

    async def _not_committed(self) -> str:
        """Return a note that uncommitted changes were not checked, if there are any."""
        look = partial(
            diff_of_directory, Path(self._work.wanted.directory), state_dir=self._work.helm.settings.state_dir
        )
        try:
            changed = (await anyio.to_thread.run_sync(look)).files
        except HelmsmanError:
            return ""
        return " It ran on the last commit: uncommitted changes were left out. Commit them first." if changed else ""

    async def _diff(self, shown: Candidate) -> str | None:
        """Return the diff of a candidate; None if its worktree has changed since."""
        try:
            diff = (await self._work.changes.diff(shown.session_id or "")).diff
        except HelmsmanError:
            return None
        return diff.text or None if diff.digest == shown.seen["diff"]["digest"] else None


def _says(winner: Candidate | None, shown: Candidate, judged: Verdict | None, applied: ApplyOutcome) -> str:
    if winner is not None:
        return f"Verified: {winner.agent} did it in {winner.attempts} attempt(s). {PROMISE}"
    if shown.needs_decision:
        decided = {
            "applied": "A person decided to apply it.",
            "refused": "It was not applied, because it was not approved.",
        }
        files = ", ".join(one["file"] for one in shown.seen["held"])
        said = f"Not verified: the check passes only with changes to its own files ({files})."
        return f"{said} {decided.get(applied, 'No decision was requested.')}"
    if judged is not None and not judged.verified:
        return "Nothing was begun. " + " ".join(one.what for one in judged.against)
    if shown.seen:
        against = [one["what"] for one in shown.seen["evidence"] if not one["ok"]]
        last = f" {shown.error}" if shown.error else ""
        return f"Not verified after {shown.attempts} attempt(s): {' '.join(against[:3])}{last}"
    return f"Not done: {shown.error}"
