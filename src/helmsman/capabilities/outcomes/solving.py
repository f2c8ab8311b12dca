"""`debug`, `refactor` and `test`: changes in worktrees that are verified, compared, and applied if requested.

Consent to the check is requested once, before the first turn, and the check is run. If it cannot run, or does not show
what was reported, no turn is spent. Helmsman verifies each candidate in a clean room and returns a failed one to its
agent with the evidence, at most three times. Only a verified candidate can win. A change that passes only with changes
to the check's files is not verified: a person sees them and decides.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

import anyio
import anyio.to_thread

from helmsman.base.structs import pack, unpack
from helmsman.base.truncate import counted
from helmsman.capabilities.outcomes.checks import CheckResult, find_the_check, runner_for
from helmsman.capabilities.outcomes.claims import Evidence, Verdict, joined, places_exist, verdict, within_scope
from helmsman.capabilities.outcomes.differential import Comparison, compare, interfaces
from helmsman.capabilities.outcomes.experiments import MORE_RUNS, RUNS, steadily, trial
from helmsman.capabilities.outcomes.judging import Judging, objections
from helmsman.capabilities.outcomes.reports import (
    ReportUnreadable,
    RootCause,
    UnderTest,
    asked_for,
    candidates_table,
    for_agent,
    promise,
    prompt,
    read_report,
)
from helmsman.capabilities.outcomes.reproduction import (
    Reproduction,
    came_to_its_end,
    fails_elsewhere,
    fixed,
    reproduced,
)
from helmsman.capabilities.outcomes.request import NEVER
from helmsman.capabilities.outcomes.work import Candidate, TurnNotDone, makers_of
from helmsman.errors import HelmsmanError
from helmsman.git.tree_changes import diff_of_directory
from helmsman.model.questions import APPROVE, DENY, Prompt, Question, own_question
from helmsman.tasks.jobs import TurnGate

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from helmsman.capabilities.outcomes.check_files import OwnFile
    from helmsman.capabilities.outcomes.checks import CheckRunner
    from helmsman.capabilities.outcomes.experiments import Experiment
    from helmsman.capabilities.outcomes.reports import ApplyOutcome, DiffData
    from helmsman.capabilities.outcomes.work import DoneTurn, Work
    from helmsman.capabilities.repository_commands import HeldTurn
    from helmsman.git.tree_changes import TreeDiff
    from helmsman.settings import OnLimit
    from helmsman.tasks.outcome import TaskOutcome

log = logging.getLogger(__name__)

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


def applied_as(outcome: ApplyOutcome = "nothing", error: str | None = None, **more: Any) -> dict[str, Any]:
    """Return the report fields of the apply step."""
    return {"applied": outcome, "applyError": error, **more}


async def apply_change(
    work: Work, session_id: str, seen: Mapping[str, Any], candidates: Sequence[Candidate] = ()
) -> dict[str, Any]:
    """Apply exactly the change that was checked, if requested and approved; then discard the other worktrees.

    Return the report fields. `seen` is the result of its verification. If the change edits the check, or was to be judged
    and was not, a person always decides.
    """
    wanted, is_verified = work.wanted.apply, bool(seen["verified"])
    if wanted == "never":
        return applied_as("not_asked" if is_verified else "nothing")
    diff: DiffData = seen["diff"]
    # A judge that was to be asked and was left out, or gave no usable answer, leaves the decision to a person.
    is_unjudged = (seen.get("judgement") or {}).get("state") in ("failed", "off") and work.wanted.judge != NEVER
    if wanted == "ask" or not is_verified or seen.get("edited") or is_unjudged:

        async def ask() -> bool | str:
            work.report_progress("Waiting for your decision: apply the change?")
            chosen = next((one for one in candidates if one.session_id == session_id and one.verified), None)
            rows = [one.as_dict(chosen) for one in candidates]
            question = await _question(work, session_id, seen, ["", candidates_table(rows)] if len(rows) > 1 else [])
            if isinstance(question, str):
                return question
            answer = await work.ask(session_id, question)
            return answer is not None and answer.value == APPROVE

        answered = await work.once("apply it", ask)
        if isinstance(answered, str):
            return applied_as("failed", answered)
        if not answered:
            return applied_as("refused")

    async def apply() -> dict[str, str | None]:
        work.report_progress("The change is being applied.")
        try:
            await work.changes.apply(session_id, digest=diff["digest"])
        except HelmsmanError as problem:
            return {"error": problem.message}
        return {"error": None}

    error: str | None = (await work.once("applied", apply))["error"]
    if error is not None:
        return applied_as("failed", error)
    others = [one.session_id for one in candidates if one.session_id not in (None, session_id)]
    if not others:
        return applied_as("applied")
    return applied_as("applied", discarded=await work.once("discarded", partial(_discard, work, others)))


async def _discard(work: Work, sessions: Sequence[str | None]) -> list[str]:
    """Discard the worktrees of sessions, and return those that are gone."""
    dropped: list[str] = []
    for session_id in sessions:
        if session_id is not None:
            try:
                await work.changes.discard(session_id)
                dropped.append(session_id)
            except HelmsmanError as problem:
                log.info("the worktree of session %s stays: %s", session_id, problem)
    return dropped


async def _question(work: Work, session_id: str, seen: Mapping[str, Any], table: Sequence[str]) -> Question | str:
    """Return the question whether to apply a change, or why it cannot be asked."""
    session = await work.helm.session(session_id)
    tree = session.worktree
    change = (await work.changes.diff(session_id)).diff
    # The question must not show another change than the one that was checked.
    if change.digest != seen["diff"]["digest"]:
        return "The worktree was changed after the check ran. Nothing was applied; ask again."
    where = work.wanted.directory if tree is None else str(tree.repository)
    is_verified = bool(seen.get("verified", True))
    first = [f"Apply this verified change to {where}?"]
    judgement = seen.get("judgement") or {}
    if not is_verified:
        objected = judgement.get("state") == "objects"
        why = "the judge objects to it" if objected else "the check passes only with changes to its own files"
        first = [f"Apply this change to {where}? It is NOT verified: {why}."]
    elif judgement:
        first.append(judgement["says"])
    evidence = [f"- {one['what']}" for one in seen["evidence"] if one["ok"] or not is_verified]
    held = [f"- {one['what']}" for one in seen.get("held", ())]
    if held:
        said = "Changes to the check, which it passed without:" if is_verified else "Changes to the check:"
        held = [said, *held]
    notes = [f"- {one}" for one in seen.get("notes", ())]
    if notes:
        notes = ["Look at these yourself; the check cannot tell:", *notes]
    cut = [] if len(change.text) <= _DIFF_CHARS else [f"Not all of it is shown here: see helmsman diff {session_id}"]
    means = [promise(work.wanted.kind)] if is_verified else []
    text = "\n".join([*first, *cut, change.stat.rstrip(), *evidence, *means, *held, *notes, *table])
    prompt = Prompt(
        text=text,
        options=(APPROVE, DENY),
        key="apply",
        descriptions={APPROVE: "bring it into the main tree, unstaged", DENY: "leave it in its worktree"},
    )
    details = {"diff": change.text[:_DIFF_CHARS], "directory": where}
    return own_question(session_id, session.state.turn_id, prompt, details)


_ASKED: Final = "Its check is asked for, and run on what there is."
_WHY_ASKED: Final = "The repository's check, with which Helmsman verifies the agent's work."


def _seen(
    said: Verdict, *, after: CheckResult, held: Iterable[OwnFile], edited: Iterable[OwnFile], **more: Any
) -> dict[str, Any]:
    """Return the stored result of verifying one attempt.

    Args:
        said: The verdict.
        after: The run of the check that counts.
        held: Changed files that belong to the check, which ran with their previous versions.
        edited: Those of them with other changes than added tests.
        more: `more` has additional report fields of the kind, and `notes` doubtful files for a person. `decide`: the check
            passes only with the changes to its files. `settled`: another attempt of the agent cannot help.
    """
    return {
        **said.to_json(),
        "after": after.as_dict(),
        "held": [{"file": one.path, "what": one.in_words} for one in held],
        "edited": [one.path for one in edited],
        **more,
    }


class ChangeJob(ABC):
    """Job that ends with a change, from its candidates to the applied change. Each kind defines its verification."""

    is_cross_examined: ClassVar[bool] = True
    """Whether the tests that one candidate adds run on the others."""

    def __init__(self, work: Work, check: Mapping[str, str]) -> None:
        self.work = work
        self.check = check
        self.wanted = work.wanted
        # Candidates begin together, and only one of them may run the check before the change.
        self._at_gate = anyio.Lock()

    @classmethod
    async def procedure(cls, work: Work) -> TaskOutcome:
        return await cls(work, await find_the_check(work)).run()

    @abstractmethod
    def judge(self, before: CheckResult) -> Verdict:
        """Verify the check's result before the first turn; the job does not begin if that fails."""

    @abstractmethod
    def prompt(self) -> str:
        """Return the prompt for the agent."""

    @abstractmethod
    async def verify(self, checks: Experiment, said: str, before: CheckResult) -> dict[str, Any]:
        """Verify the work of a session (`_seen`). `said` is the agent's last message."""

    @abstractmethod
    def report(self, before: CheckResult | None, more: Mapping[str, Any]) -> dict[str, Any]:
        """Return the report fields of this kind; `more` is from the winner's verification."""

    @property
    def command(self) -> str:
        return self.check["command"]

    @property
    def rules(self) -> str:
        folder = self.check["folder"]
        rules = prompt("rules", check=self.command, where=f" in {folder}" if folder else "")
        several = self.is_cross_examined and len(makers_of(self.work)) > 1
        return rules + prompt("cross_examined") if several else rules

    async def run(self) -> TaskOutcome:
        work = self.work
        made = await work.side_by_side("candidate", makers_of(work), self._begin, self._verify)
        before = self._before
        if before is not None and not self.judge(before).verified:
            await _discard(work, [one.session_id for one in made])  # no turn has begun there
            return await self._found(made, None)
        verified = [one for one in made if one.verified]
        matrix: list[dict[str, Any]] = []
        if len(verified) > 1 and self.is_cross_examined:
            matrix = await work.once("cross-examination", partial(self._cross_examine, verified))
        winner, compared = (
            # Ranked by the tests of others that it passes, then by changed lines, then by the time of its check.
            await self._judged(sorted(verified, key=lambda one: (-_passes(matrix, one), *_size(one)))),
            "",
        )
        if winner is not None and len(verified) > 1:
            lines, seconds = _size(winner)
            against = [one for one in matrix if one["on"] == winner.number]
            passed = (
                f"passes {_passes(matrix, winner)} of {len(against)} sets of tests that others wrote, and "
                if against
                else ""
            )
            which = "the smallest" if not against else "no other passes as many with fewer lines"
            compared = (
                f"Candidate {winner.number} {passed}changes {counted(lines, 'line')}, and its check took "
                f"{seconds:.1f} s: {which}."
            )
        # Without a verified candidate, a person may decide about one that passes with its own changes to the check.
        chosen = winner or next((one for one in made if one.seen.get("decide")), None)
        applied = applied_as()
        if chosen is not None:
            assert chosen.session_id is not None
            applied = await apply_change(work, chosen.session_id, chosen.seen, made)
        return await self._found(made, winner, compared or None, applied, matrix)

    # --- cross-examination -------------------------------------------------------------------------------------------

    async def _cross_examine(self, candidates: Sequence[Candidate]) -> list[dict[str, Any]]:
        """Run each candidate's new tests on every other candidate; return one entry for each pair."""
        matrix: list[dict[str, Any]] = []
        for one in candidates:
            others = [other for other in candidates if other is not one and other.seen.get("addedTests")]
            if not others:
                continue
            self.work.report_progress(f"Candidate {one.number} has to pass the tests of {len(others)} other(s).")
            runner = runner_for(self.work, await self.work.helm.session(one.session_id or ""), self.check["folder"])
            async with trial(runner) as checks:
                if checks.change.digest != one.seen["diff"]["digest"]:
                    continue  # it is not the verified change, so nothing of it counts
                for other in others:
                    seen = await checks.with_tests(self.command, other.seen["addedTests"])
                    entry = {"testsOf": other.number, "on": one.number, "passed": seen.passed, "what": seen.in_words()}
                    matrix.append(entry)
        return matrix

    # --- judgement ---------------------------------------------------------------------------------------------------

    async def _judged(self, ranked: Sequence[Candidate]) -> Candidate | None:
        """Return the first of these candidates without an objection of a judge."""
        judging = Judging(self.work)
        for one in ranked:
            await self._judge(judging, one)
            if one.verified:
                return one
        return None

    async def _judge(self, judging: Judging, one: Candidate) -> None:
        """Ask for a judgement of a candidate. Objections go back to its author once; then they make it unverified."""
        name, session_id = f"candidate {one.number}", one.session_id or ""
        judgement = await judging.judge(name, one.agent, session_id, one.seen)
        if judgement["state"] == "objects":
            before, first = one.seen, judgement
            self.work.report_progress(f"It goes back to {one.agent} ({name}): the judge objects.")
            feedback = for_agent([each.to_json() for each in objections(judgement["findings"])])
            try:
                one.turn = await self.work.say(f"{name} objected", session_id, feedback)
                await self.work.until_verified(f"{name} after the judgement", one, self._verify)
            except HelmsmanError as error:
                one.error = error.message
            # The same change would get the same judgement.
            if one.verified and one.seen["diff"]["digest"] != before["diff"]["digest"]:
                judgement = await judging.judge(f"{name} again", one.agent, session_id, one.seen)
            judgement = {**judgement, "sentBack": True}
            if judgement["state"] == "clean":
                corrected = "; ".join(each["why"] for each in first["findings"])
                judgement["says"] += f" The author corrected the change once, because of an objection: {corrected}"
        against = objections(judgement["findings"]) if judgement["state"] == "objects" else []
        # An objection that remains makes the change unverified, and a person may still decide for it.
        one.seen = {
            **one.seen,
            "judgement": judgement,
            "verified": one.verified and judgement["state"] != "objects",
            "decide": one.seen.get("decide") or (one.verified and judgement["state"] == "objects"),
            "evidence": [*one.evidence, *(each.to_json() for each in against)],
        }

    # --- candidates --------------------------------------------------------------------------------------------------

    async def _begin(self, name: str, agent: str, on_limit: OnLimit | None) -> DoneTurn:
        self.work.report_progress(f"{agent} is at work on {name}.")
        gate = TurnGate(note=_ASKED, do=self._pass_gate)
        return await self.work.start_writer(f"{name} {agent}", self.prompt(), agent, gate, on_limit=on_limit)

    async def _verify(self, turn: DoneTurn) -> dict[str, Any]:
        """Verify the work of a session; return the JSON form."""
        before = self._before
        assert before is not None
        runner = runner_for(self.work, turn.session, self.check["folder"])
        # What still runs there could change files while they are checked.
        await self.work.changes.end_commands(runner.worktree)
        seen = verdict([Evidence(ok=False, what="Nothing was changed.")]).to_json()
        async with trial(runner) as checks:
            change = checks.change  # fixed here: later writes to the worktree are neither verified nor applied
            if change.files:
                seen = await self.verify(checks, turn.said, before)
                seen["addedTests"] = await checks.added_tests() if len(makers_of(self.work)) > 1 else {}
        return {**seen, "diff": diff_data(change)}

    async def _after(self, checks: Experiment, before: CheckResult) -> CheckResult:
        """Run the check on the change, with the previous versions of its files."""
        # A flaky check may pass by chance, so it has to pass more often, also if an earlier attempt showed it.
        flaky = f"flaky {checks.directory}"
        most = MORE_RUNS if before.is_flaky or self.work.known(flaky) else RUNS
        after = await steadily(partial(checks.after, self.command, before.reads), most)
        if after.is_flaky:
            await self.work.keep(flaky, True)
        return after

    async def _with_check(
        self, checks: Experiment, after: CheckResult, *verdicts: Verdict, **more: Any
    ) -> dict[str, Any]:
        """Return these verdicts on `_after` with those on the files of the check, and whether tests that have to fail do."""
        held = checks.held
        # Without a changed file of the check, it would be the same run once more.
        now = await checks.now(self.command) if held else None
        fail = await tests_still_fail(self.work, checks, self.command, after)
        files = "; ".join(file.in_words for file in held)
        left = (
            f"Left as it was, because it belongs to the check: {files}."
            if held
            else "No file of the check was changed."
        )
        told = [Evidence(ok=after.passed or not held, what=left)]
        ended = Verdict()
        # Then a person must decide.
        decide = not after.passed and now is not None and now.passed
        if decide:
            what = (
                "With the change to the check it passes. Put those files back; if they must change, a person decides."
            )
            told.append(Evidence(ok=False, what=what))
        elif now is not None and after.passed:
            what = f"With the tests as they are now: {now.in_words()}."
            told.append(Evidence(ok=now.passed, what=what, detail=now.tail))
            ended = came_to_its_end(after, now)
        notes = await checks.remarks((now or after).reads)
        if after.passed and after.runs == 1:
            notes.append(
                f"The check ran once, because it takes {after.seconds:.0f} s. If it is flaky, that was not seen."
            )
        said, edited = joined(*verdicts, verdict(told), ended, fail), await checks.edited()
        return _seen(said, after=after, held=held, edited=edited, decide=decide, notes=notes, **more)

    # --- before ------------------------------------------------------------------------------------------------------

    @property
    def _before(self) -> CheckResult | None:
        kept = self.work.known("before")
        return None if kept is None else unpack(kept, CheckResult)

    async def _pass_gate(self, held: HeldTurn) -> None:
        """Request consent to the check and run it before any change, once for all candidates."""
        work = self.work
        # While a candidate waits for the lock, its session can still be interrupted.
        with held.at_work("another candidate's check"):
            await self._at_gate.acquire()
        try:
            runner = runner_for(work, held.session, self.check["folder"])
            await runner.allow(self.command, _WHY_ASKED)
            with held.at_work("the check before"):
                before = unpack(await work.once("before", partial(self._run_before, runner)), CheckResult)
        finally:
            self._at_gate.release()
        judged = self.judge(before)
        if not judged.verified:
            raise TurnNotDone(" ".join(one.what for one in judged.against), cause="not_as_named")

    async def _run_before(self, runner: CheckRunner) -> dict[str, Any]:
        self.work.report_progress(f"`{self.command}` runs on what was there before.")
        async with trial(runner) as checks:
            # Twice, so that a flaky check is known before a change is blamed for it.
            kept: dict[str, Any] = pack(await steadily(partial(checks.before, self.command), 2))
            return kept

    # --- result ------------------------------------------------------------------------------------------------------

    async def _found(
        self,
        made: Sequence[Candidate],
        winner: Candidate | None,
        compared: str | None = None,
        applied: Mapping[str, Any] | None = None,
        matrix: Sequence[Mapping[str, Any]] = (),
    ) -> TaskOutcome:
        work, before, applied = self.work, self._before, applied or applied_as()
        shown = winner or max(made, key=lambda one: one.attempts)
        seen = shown.seen
        judged = None if before is None else self.judge(before)
        says, evidence = _says(work.wanted.kind, winner, shown, applied), shown.evidence
        begun = judged is None or judged.verified
        if judged is not None and not begun:
            says = "No turn was started. " + " ".join(one.what for one in judged.against) + await self._not_committed()
            evidence = judged.to_json()["evidence"]
            shown.session_id = None  # its worktree is gone
        report: dict[str, Any] = {
            "candidates": [one.as_dict(winner) for one in made] if begun else [],
            "check": self.check,
            "before": None if before is None else before.as_dict(),
            "after": seen.get("after"),
            "diff": seen.get("diff"),
            "compared": compared,
            "discarded": [],
            **applied,
            "checkChanges": seen.get("held", []),
            "notes": seen.get("notes", []),
            "judgement": seen.get("judgement"),
            "matrix": list(matrix),
            **self.report(before, seen.get("more", {})),
        }
        diff = await self._diff(shown) if seen else None
        return await work.found(shown, verified=winner is not None, says=says, evidence=evidence, change=diff, **report)

    async def _not_committed(self) -> str:
        """Return a note that uncommitted changes were not checked, if there are any."""
        state_dir = self.work.helm.settings.state_dir
        look = partial(diff_of_directory, Path(self.wanted.directory), state_dir=state_dir)
        try:
            changed = (await anyio.to_thread.run_sync(look)).files
        except HelmsmanError:
            return ""
        return " It ran on the last commit: uncommitted changes were left out. Commit them first." if changed else ""

    async def _diff(self, shown: Candidate) -> str | None:
        """Return the diff of a candidate; None if its worktree has changed since."""
        try:
            diff = (await self.work.changes.diff(shown.session_id or "")).diff
        except HelmsmanError:
            return None
        return diff.text or None if diff.digest == shown.seen["diff"]["digest"] else None


def _size(candidate: Candidate) -> tuple[int, float]:
    diff, after = candidate.seen["diff"], candidate.seen.get("after") or {"seconds": 0.0}
    return diff["added"] + diff["removed"], after["seconds"]


def _passes(matrix: Sequence[Mapping[str, Any]], candidate: Candidate) -> int:
    """Return how many of the others' tests a candidate passes."""
    return sum(one["passed"] for one in matrix if one["on"] == candidate.number)


def _says(kind: str, winner: Candidate | None, shown: Candidate, applied: Mapping[str, Any]) -> str:
    judgement = shown.seen.get("judgement") or {}
    attempts = f"{shown.attempts} attempt{'s' * (shown.attempts != 1)}"
    if winner is not None:
        judged = f" {judgement['says']}" if judgement else ""
        return f"Verified: {winner.agent} did it in {attempts}.{judged} {promise(kind)}"
    if shown.seen.get("decide"):
        decided = {
            "applied": "A person decided to apply it.",
            "refused": "It was not applied, because it was not approved.",
        }
        files = ", ".join(one["file"] for one in shown.seen["held"])
        said = f"Not verified: the check passes only with changes to its own files ({files})."
        if judgement.get("state") == "objects":
            said = f"Not verified: the check passes, but {judgement['says']}"
        return f"{said} {decided.get(applied['applied'], 'No decision was requested.')}"
    if shown.seen:
        last = f" {shown.error}" if shown.error else ""
        return f"Not verified after {attempts}: {shown.against}{last}"
    return f"Not done: {shown.error}"


async def tests_still_fail(work: Work, checks: Experiment, command: str, after: CheckResult) -> Verdict:
    """Verify that tests that have to fail do so with a change whose check passes, unless the check is slow."""
    if not after.passed or after.seconds > _QUICK_SECONDS:
        return Verdict()
    tests = await work.once(f"tests that fail {command}", partial(checks.tests_that_fail, command, after.reads))
    return await checks.still_fail(command, tests)


_QUICK_SECONDS: Final = 10.0


class Debug(ChangeJob):
    """Verify that the reported failure occurs before the change and not after it; report the cause if the agent names
    it.
    """

    def _reproduction(self, before: CheckResult) -> Reproduction:
        return reproduced(before, symptom=self.wanted.request, test=self.wanted.more.get("test"))

    def judge(self, before: CheckResult) -> Verdict:
        seen = self._reproduction(before)
        flaky = [Evidence(ok=True, what=f"Before the change {before.in_words()}.")] if before.is_flaky else []
        return verdict([*seen.evidence, *flaky])

    def prompt(self) -> str:
        report = asked_for("debug")
        return prompt("debug", request=self.wanted.request, check=self.command, rules=self.rules, report=report)

    async def verify(self, checks: Experiment, said: str, before: CheckResult) -> dict[str, Any]:
        after = await self._after(checks, before)
        cause, more = await _root_cause(checks, said)
        reproduction = self._reproduction(before)
        done, ended = fixed(reproduction, after), came_to_its_end(before, after)
        # Another attempt would not change tests that failed before for other reasons.
        settled = bool(fails_elsewhere(reproduction, after))
        return await self._with_check(checks, after, done, ended, cause, more=more, settled=settled)

    def report(self, before: CheckResult | None, more: Mapping[str, Any]) -> dict[str, Any]:
        seen = None if before is None else self._reproduction(before)
        return {
            "reproduced": None if seen is None else seen.how,
            "tests": [] if seen is None else list(seen.tests),
            "rootCause": more.get("rootCause"),
        }


async def _root_cause(checks: Experiment, said: str) -> tuple[Verdict, dict[str, Any]]:
    """Verify the agent's root cause. It never affects the verdict: a fix that passes is a fix."""
    try:
        cause = read_report(said, RootCause)
    except ReportUnreadable as error:
        what = f"The cause is not known: the agent did not report it. {error.message}"
        return verdict([Evidence(ok=True, what=what)]), {}
    exist = await anyio.to_thread.run_sync(places_exist, cause.places, checks.directory)
    right = [place.to_json() for place, seen in zip(cause.places, exist.evidence, strict=True) if seen.ok]
    seen = [
        one if one.ok else Evidence(ok=True, what=f"The agent cited a wrong place for the cause: {one.what}")
        for one in exist.evidence
    ]
    return verdict(seen), {"rootCause": {"summary": cause.root_cause, "places": right}}


class Refactor(ChangeJob):
    """Verify that the check passes before and after, that the change stays in scope, and that functions return the same."""

    @property
    def _scope(self) -> list[str]:
        return list(self.wanted.more.get("scope", ()))

    def judge(self, before: CheckResult) -> Verdict:
        return verdict(
            [Evidence(ok=before.passed, what=f"Before the change: {before.in_words()}.", detail=before.tail)]
        )

    def prompt(self) -> str:
        scope = prompt("scope", paths=", ".join(self._scope)) if self._scope else ""
        return prompt("refactor", request=self.wanted.request, scope=scope, rules=self.rules)

    async def verify(self, checks: Experiment, said: str, before: CheckResult) -> dict[str, Any]:
        after = await self._after(checks, before)
        green = verdict([Evidence(ok=after.passed, what=f"After the change: {after.in_words()}.", detail=after.tail)])
        scope = within_scope(await checks.changed(), self._scope)
        compared = await compare(checks, self.command, after.seconds) if after.passed else Comparison()
        more = {"interfaces": (await interfaces(checks)).to_json(), "comparison": compared.to_json()}
        ended = came_to_its_end(before, after)
        verdicts = self.judge(before), green, ended, scope, compared.verdict
        return await self._with_check(checks, after, *verdicts, more=more)

    def report(self, before: CheckResult | None, more: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "scope": self._scope,
            "interfaces": more.get("interfaces"),
            "comparison": more.get("comparison"),
        }


class NewTests(ChangeJob):
    """Verify that the new tests pass on every run, and that each of them can fail."""

    is_cross_examined = False

    def judge(self, before: CheckResult) -> Verdict:
        """Reject only a check that cannot run; tests may fail, or be missing."""
        if (missing := before.missing_program) is None:
            return verdict([Evidence(ok=True, what="The check can run.")])
        what = f"The check `{self.command}` cannot run here: {missing}. Install it, or name another check."
        return verdict([Evidence(ok=False, what=what, detail=before.tail)])

    def prompt(self) -> str:
        return prompt("test", request=self.wanted.request, rules=self.rules, report=asked_for("test"))

    async def verify(self, checks: Experiment, said: str, before: CheckResult) -> dict[str, Any]:
        steady, after = await checks.steady(self.command)
        await checks.find_held(self.command, after.reads)
        edited = await checks.edited(new_helpers=True)
        kept = verdict([_kept(edited)])
        old = await self._old_tests(checks, before) if steady.verified else Verdict()
        try:
            places = read_report(said, UnderTest).under_test
        except ReportUnreadable as error:
            what = f"The agent did not report what is under test: files that the new tests name are. {error.message}"
            places, exist = [], verdict([Evidence(ok=True, what=what)])
        else:
            exist = await anyio.to_thread.run_sync(places_exist, places, checks.directory)
        verdicts = [steady, old, kept, exist]
        # Mutations may take minutes, so only tests that pass each time are tried against them.
        if steady.verified and exist.verified:
            verdicts.append(await checks.can_fail(self.command, places, self.wanted.more.get("base"), after.reads))
        tests = [file.path for file in await checks.own_files() if file.kind == "test"]
        more = {"tests": tests, "underTest": [place.to_json() for place in places], "mutants": checks.mutants}
        held = [file for file in checks.held if file.path not in tests]
        notes = await checks.remarks(after.reads)
        return _seen(joined(*verdicts), after=after, held=held, edited=edited, more=more, notes=notes)

    async def _old_tests(self, checks: Experiment, before: CheckResult) -> Verdict:
        """Verify that existing tests still pass in their previous version, if more than new tests was changed."""
        own = {file.path for file in await checks.own_files() if file.status == "A"}
        # Where only tests were added, the old ones have passed together with them.
        if own.issuperset(await checks.changed()) or not before.passed:
            return Verdict()
        after = await checks.after(self.command, before.reads)
        what = f"With the tests as they were before: {after.in_words()}."
        passed = verdict([Evidence(ok=after.passed, what=what, detail=after.tail)])
        return joined(passed, came_to_its_end(before, after))

    def report(self, before: CheckResult | None, more: Mapping[str, Any]) -> dict[str, Any]:
        tests, under_test = more.get("tests", []), more.get("underTest", [])
        return {"tests": tests, "underTest": under_test, "mutants": more.get("mutants")}


def _kept(edited: Sequence[OwnFile]) -> Evidence:
    files = "; ".join(file.in_words for file in edited)
    return Evidence(
        ok=not edited,
        what=f"The check was edited: {files}." if edited else "No file of the check was changed but tests.",
    )
