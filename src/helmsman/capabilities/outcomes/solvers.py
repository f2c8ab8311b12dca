"""Solvers for `debug`, `refactor` and `test`: their prompts, and their verification."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final

import anyio.to_thread

from helmsman.capabilities.outcomes.claims import Evidence, Verdict, joined, places_exist, verdict, within_scope
from helmsman.capabilities.outcomes.job_checks import find_the_check
from helmsman.capabilities.outcomes.reports import (
    ReportUnreadable,
    asked_for,
    place_data,
    places_of,
    read_report,
    text_of,
)
from helmsman.capabilities.outcomes.reproduction import came_to_its_end, fixed, reproduced
from helmsman.capabilities.outcomes.solving import Solver, Solving, Verified

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from helmsman.capabilities.outcomes.check_files import OwnFile
    from helmsman.capabilities.outcomes.checks import CheckResult
    from helmsman.capabilities.outcomes.experiments import Experiment
    from helmsman.capabilities.outcomes.reproduction import Reproduction
    from helmsman.capabilities.outcomes.work import Found, Work

_ROOT_CAUSE: Final = (
    '{"rootCause": "what was wrong, and why it showed", "places": [{"file": "path", "startLine": 1, "endLine": 2}]}'
)
_UNDER_TEST: Final = '{"underTest": [{"file": "path of the code that is tested", "startLine": 1, "endLine": 20}]}'


class Debug(Solver):
    """Verify that the reported failure occurs before the change and not after it; report the cause if the agent names
    it.
    """

    kind: ClassVar = "debug"

    def _reproduction(self, before: CheckResult) -> Reproduction:
        return reproduced(before, symptom=self.wanted.request, test=self.wanted.more.get("test"))

    def judge(self, before: CheckResult) -> Verdict:
        seen = self._reproduction(before)
        return Verdict(verified=seen.verified, evidence=seen.evidence)

    def prompt(self) -> str:
        return "\n\n".join(
            [
                f"Find the cause of this failure and fix it:\n\n{self.wanted.request}",
                f"`{self.command}` shows it.",
                self.rules,
                "Name the lines of the cause as they are when you are done. " + asked_for(_ROOT_CAUSE),
            ]
        )

    async def verify(self, checks: Experiment, said: str, before: CheckResult | None) -> Verified:
        assert before is not None
        looked = await _after(checks, self.command, before)
        cause, more = await _root_cause(checks, said)
        done = fixed(self._reproduction(before), looked.after)
        return await looked.verified(done, came_to_its_end(before, looked.after), cause, more=more)

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
        report = read_report(said)
        summary, places = text_of(report, "rootCause"), places_of(report, "places")
    except ReportUnreadable as error:
        what = f"The cause is not known: the agent did not report it. {error.message}"
        return Verdict(verified=True, evidence=(Evidence(ok=True, what=what),)), {}
    exist = await anyio.to_thread.run_sync(places_exist, places, checks.directory)
    right = [place for place, seen in zip(places, exist.evidence, strict=True) if seen.ok]
    seen = tuple(
        one if one.ok else Evidence(ok=True, what=f"The agent cited a wrong place for the cause: {one.what}")
        for one in exist.evidence
    )
    cause = {"summary": summary, "places": [place_data(place) for place in right]}
    return Verdict(verified=True, evidence=seen), {"rootCause": cause}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Looked:
    """Check with its previous files (`after`), and with the whole change (`now`) if that differs."""

    checks: Experiment
    after: CheckResult
    now: CheckResult | None
    edited: Sequence[OwnFile]

    @property
    def decide(self) -> bool:
        """Return whether the check passes only with changes to its files, so that a person must decide."""
        return not self.after.passed and self.now is not None and self.now.passed

    async def verified(self, *verdicts: Verdict, more: Mapping[str, Any] | None = None) -> Verified:
        after, now, held = self.after, self.now, self.checks.held
        told: list[Evidence] = []
        if held:
            files = "; ".join(file.in_words for file in held)
            told.append(Evidence(ok=after.passed, what=f"Left as it was, because it belongs to the check: {files}."))
        else:
            told.append(Evidence(ok=True, what="No file of the check was changed."))
        if self.decide:
            what = (
                "With the change to the check it passes. Put those files back; if they must change, a person decides."
            )
            told.append(Evidence(ok=False, what=what))
        elif now is not None and after.passed:
            told.append(
                Evidence(ok=now.passed, what=f"With the tests as they are now: {now.in_words()}.", detail=now.tail)
            )
        ended = came_to_its_end(after, now) if now is not None and after.passed else Verdict(verified=True)
        said = joined(*verdicts, verdict(told), ended)
        return Verified(
            verdict=said,
            after=after,
            more=more or {},
            held=held,
            edited=[file.path for file in self.edited],
            decide=self.decide,
            notes=await self.checks.remarks((now or after).reads),
        )


async def _after(checks: Experiment, command: str, before: CheckResult) -> _Looked:
    after = await checks.after(command, before.reads)
    now = await checks.now(command) if checks.held else None
    return _Looked(checks=checks, after=after, now=now, edited=await checks.edited())


class Refactor(Solver):
    """Verify that the check passes before and after, and that the change stays in scope; report the interface."""

    kind: ClassVar = "refactor"

    @property
    def _scope(self) -> list[str]:
        return list(self.wanted.more.get("scope", ()))

    def judge(self, before: CheckResult) -> Verdict:
        return verdict(
            [Evidence(ok=before.passed, what=f"Before the change: {before.in_words()}.", detail=before.tail)]
        )

    def prompt(self) -> str:
        scope = f"Touch nothing outside of: {', '.join(self._scope)}." if self._scope else ""
        parts = [f"Refactor, and keep what the code does:\n\n{self.wanted.request}", scope, self.rules]
        return "\n\n".join(part for part in [*parts, "End with a short summary of what is better now."] if part)

    async def verify(self, checks: Experiment, said: str, before: CheckResult | None) -> Verified:
        assert before is not None
        looked = await _after(checks, self.command, before)
        after = looked.after
        green = verdict([Evidence(ok=after.passed, what=f"After the change: {after.in_words()}.", detail=after.tail)])
        scope = within_scope(await checks.changed(), self._scope)
        more = {"interfaces": (await checks.interfaces()).as_dict()}
        return await looked.verified(self.judge(before), green, came_to_its_end(before, after), scope, more=more)

    def report(self, before: CheckResult | None, more: Mapping[str, Any]) -> dict[str, Any]:
        return {"scope": self._scope, "interfaces": more.get("interfaces")}


class NewTests(Solver):
    """Verify that the new tests pass on every run, and that at least one of them can fail."""

    kind: ClassVar = "test"

    def judge(self, before: CheckResult) -> Verdict:
        """Reject only a check that cannot run; tests may fail, or be missing."""
        if (missing := before.missing_program) is None:
            return Verdict(verified=True)
        what = f"The check `{self.command}` cannot run here: {missing}. Install it, or name another check."
        return verdict([Evidence(ok=False, what=what, detail=before.tail)])

    def prompt(self) -> str:
        return "\n\n".join(
            [
                f"Write tests:\n\n{self.wanted.request}",
                self.rules,
                "They must pass each time, and fail when the code under test is wrong: that is tried. "
                + asked_for(_UNDER_TEST),
            ]
        )

    async def verify(self, checks: Experiment, said: str, before: CheckResult | None) -> Verified:
        assert before is not None
        steady, after = await checks.steady(self.command)
        await checks.find_held(self.command, after.reads)
        edited = await checks.edited(new_helpers=True)
        kept = verdict([_kept(edited)])
        old = await self._old_tests(checks, before) if steady.verified else Verdict(verified=True)
        try:
            places = places_of(read_report(said), "underTest")
        except ReportUnreadable as error:
            what = f"The agent did not report what is under test: files that the new tests name are. {error.message}"
            places, exist = [], Verdict(verified=True, evidence=(Evidence(ok=True, what=what),))
        else:
            exist = await anyio.to_thread.run_sync(places_exist, places, checks.directory)
        verdicts = [steady, old, kept, exist]
        if steady.verified and exist.verified:
            tried = await checks.can_fail(self.command, places, self.wanted.more.get("base"), after.reads)
            # Mutations without effect do not count once one test has failed.
            verdicts.append(Verdict(verified=True, evidence=tried.evidence[-1:]) if tried.verified else tried)
        tests = [file.path for file in await checks.own_files() if file.kind == "test"]
        more = {"tests": tests, "underTest": [place_data(place) for place in places]}
        return Verified(
            verdict=joined(*verdicts),
            after=after,
            more=more,
            held=[file for file in checks.held if file.path not in tests],
            edited=[file.path for file in edited],
            notes=await checks.remarks(after.reads),
        )

    async def _old_tests(self, checks: Experiment, before: CheckResult) -> Verdict:
        """Verify that existing tests still pass in their previous version, if more than new tests was changed."""
        own = {file.path for file in await checks.own_files() if file.status == "A"}
        if own.issuperset(await checks.changed()) or not before.passed:
            return Verdict(verified=True)
        after = await checks.after(self.command, before.reads)
        what = f"With the tests as they were before: {after.in_words()}."
        passed = verdict([Evidence(ok=after.passed, what=what, detail=after.tail)])
        return joined(passed, came_to_its_end(before, after))

    def report(self, before: CheckResult | None, more: Mapping[str, Any]) -> dict[str, Any]:
        return {"tests": more.get("tests", []), "underTest": more.get("underTest", [])}


def _kept(edited: Sequence[OwnFile]) -> Evidence:
    files = "; ".join(file.in_words for file in edited)
    return Evidence(
        ok=not edited,
        what=f"The check was edited: {files}." if edited else "No file of the check was changed but tests.",
    )


async def _solve(solver: type[Solver], work: Work) -> Found:
    return await Solving(solver(work, await find_the_check(work))).run()


debug: Final = partial(_solve, Debug)
refactor: Final = partial(_solve, Refactor)
new_tests: Final = partial(_solve, NewTests)
