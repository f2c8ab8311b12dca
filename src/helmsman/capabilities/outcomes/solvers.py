"""`debug`, `refactor` and `test`: what each asks of an agent, and what Helmsman itself then looks at."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final

import anyio.to_thread

from helmsman.capabilities.outcomes.agent_reports import (
    ReportUnreadable,
    asked_for,
    place_data,
    places_of,
    read_report,
    text_of,
)
from helmsman.capabilities.outcomes.claims import CitedLines, places_exist, within_scope
from helmsman.capabilities.outcomes.evidence import Evidence, Verdict, joined, verdict
from helmsman.capabilities.outcomes.job_checks import find_the_check
from helmsman.capabilities.outcomes.reproduction import came_to_its_end, fixed, reproduced
from helmsman.capabilities.outcomes.solving import Solver, Solving, Verified

if TYPE_CHECKING:
    from collections.abc import Mapping

    from helmsman.capabilities.outcomes.checks import CheckResult
    from helmsman.capabilities.outcomes.reproduction import Reproduction
    from helmsman.capabilities.outcomes.trials import Trial
    from helmsman.capabilities.outcomes.work import Found, Work

_ROOT_CAUSE: Final = (
    '{"rootCause": "what was wrong, and why it showed", "places": [{"file": "path", "startLine": 1, "endLine": 2}]}'
)
_UNDER_TEST: Final = '{"underTest": [{"file": "path of the code that is tested", "startLine": 1, "endLine": 20}]}'


class Debug(Solver):
    """The named failure is seen before, and gone after; its cause is named by lines that exist."""

    kind: ClassVar = "debug"
    needs_before: ClassVar = True

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

    async def verify(self, checks: Trial, said: str, before: CheckResult | None) -> Verified:
        assert before is not None
        seen = self._reproduction(before)
        after, looked = await _after(checks, self.command)
        done = fixed(seen, after)
        cause, more = await _root_cause(checks, said)
        told = joined(done, looked, came_to_its_end(before, after), await checks.check_kept(), cause)
        return Verified(verdict=told, after=after, more=more)

    def report(self, before: CheckResult | None, more: Mapping[str, Any]) -> dict[str, Any]:
        seen = None if before is None else self._reproduction(before)
        return {
            "reproduced": None if seen is None else seen.how,
            "tests": [] if seen is None else list(seen.tests),
            "rootCause": more.get("rootCause"),
        }


async def _root_cause(checks: Trial, said: str) -> tuple[Verdict, dict[str, Any]]:
    try:
        report = read_report(said)
        summary, places = text_of(report, "rootCause"), places_of(report, "places")
    except ReportUnreadable as error:
        return verdict([Evidence(ok=False, what=f"The root cause is not told. {error.message}")]), {}
    await checks.put_back()
    exist = await anyio.to_thread.run_sync(places_exist, places, checks.directory)
    return exist, {"rootCause": {"summary": summary, "places": [place_data(place) for place in places]}}


async def _after(checks: Trial, command: str) -> tuple[CheckResult, Verdict]:
    """The check as it was, on the change; and, where the change adds to the tests, with these as they are now."""
    after = await checks.after(command)
    if not after.passed or not any(file.kind == "test" for file in await checks.own_files()):
        return after, Verdict(verified=True)
    now = await checks.now(command)
    what = f"With the tests as they are now: {now.in_words()}."
    told = verdict([Evidence(ok=now.passed, what=what, detail=now.tail)])
    return after, joined(told, came_to_its_end(after, now))


class Refactor(Solver):
    """The check is green before and after, nothing outside of the scope was touched, and the interface is told."""

    kind: ClassVar = "refactor"
    needs_before: ClassVar = True

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

    async def verify(self, checks: Trial, said: str, before: CheckResult | None) -> Verified:
        assert before is not None
        after, looked = await _after(checks, self.command)
        green = verdict([Evidence(ok=after.passed, what=f"After the change: {after.in_words()}.", detail=after.tail)])
        scope = within_scope(await checks.changed(), self._scope)
        whole = came_to_its_end(before, after)
        told = joined(self.judge(before), green, looked, whole, scope, await checks.check_kept())
        return Verified(verdict=told, after=after, more={"interfaces": (await checks.interfaces()).as_dict()})

    def report(self, before: CheckResult | None, more: Mapping[str, Any]) -> dict[str, Any]:
        return {"scope": self._scope, "interfaces": more.get("interfaces")}


class NewTests(Solver):
    """The new tests pass each time, and at least one of them can fail."""

    kind: ClassVar = "test"
    needs_before: ClassVar = False

    def judge(self, before: CheckResult) -> Verdict:
        return Verdict(verified=True)

    def prompt(self) -> str:
        return "\n\n".join(
            [
                f"Write tests:\n\n{self.wanted.request}",
                self.rules,
                "They must pass each time, and fail when the code under test is wrong: that is tried. "
                + asked_for(_UNDER_TEST),
            ]
        )

    async def verify(self, checks: Trial, said: str, before: CheckResult | None) -> Verified:
        steady, after = await checks.steady(self.command)
        old = await self._old_tests(checks) if steady.verified else Verdict(verified=True)
        kept = joined(old, await checks.check_kept(new_helpers=True))
        try:
            places = places_of(read_report(said), "underTest")
        except ReportUnreadable as error:
            told = verdict([Evidence(ok=False, what=f"What is under test is not told. {error.message}")])
            return Verified(verdict=joined(steady, kept, told), after=after)
        await checks.put_back()
        exist = await anyio.to_thread.run_sync(places_exist, places, checks.directory)
        verdicts = [steady, kept, exist]
        if steady.verified and exist.verified:
            verdicts.append(await self._can_fail(checks, places))
        tests = [file.path for file in await checks.own_files() if file.kind == "test"]
        more = {"tests": tests, "underTest": [place_data(place) for place in places]}
        return Verified(verdict=joined(*verdicts), after=after, more=more)

    async def _old_tests(self, checks: Trial) -> Verdict:
        """Whether the tests that were there still pass as they were, where more was changed than new tests were added."""
        own = {file.path for file in await checks.own_files() if file.status == "A"}
        if own.issuperset(await checks.changed()) or not (before := await checks.before(self.command)).passed:
            return Verdict(verified=True)
        after, looked = await _after(checks, self.command)
        what = f"With the tests as they were before: {after.in_words()}."
        passed = verdict([Evidence(ok=after.passed, what=what, detail=after.tail)])
        return joined(passed, looked, came_to_its_end(before, after))

    async def _can_fail(self, checks: Trial, places: list[CitedLines]) -> Verdict:
        tried = await checks.can_fail(self.command, places, self.wanted.more.get("base"))
        # What was tried in vain before one failed speaks against nothing.
        return Verdict(verified=True, evidence=tried.evidence[-1:]) if tried.verified else tried

    def report(self, before: CheckResult | None, more: Mapping[str, Any]) -> dict[str, Any]:
        return {"tests": more.get("tests", []), "underTest": more.get("underTest", [])}


async def _solve(solver: type[Solver], work: Work) -> Found:
    return await Solving(solver(work, await find_the_check(work))).run()


debug: Final = partial(_solve, Debug)
refactor: Final = partial(_solve, Refactor)
new_tests: Final = partial(_solve, NewTests)
