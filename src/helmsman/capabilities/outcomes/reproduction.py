"""Decide whether a failed check shows the reported failure, and whether the failure is fixed.

An exit code identifies nothing. A failure matches if the named test failed, if the message occurs in the output, or if
names and messages of failed tests share distinctive words with the report. A missing dependency, a missing command, a
failed import and a run without tests do not match, unless exactly that message was reported.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from helmsman.base.sanitize import word_set
from helmsman.capabilities.outcomes.claims import Evidence, Verdict, verdict
from helmsman.capabilities.outcomes.failures import normalised, not_checked
from helmsman.sessions.progress import read_tally

if TYPE_CHECKING:
    from collections.abc import Iterator

    from helmsman.capabilities.outcomes.checks import CheckResult
    from helmsman.capabilities.outcomes.failures import TestFailure

How = Literal["test", "message", "words", "any", "no"]
"""Evidence that identified the failure: test, message or words; `any` if the report named none."""

_RAISED: Final = re.compile(r"\b((?:[\w.]+\.)?[A-Z]\w*(?:Error|Exception|Failure|Panic)\b(?::[ \t]*[^\n`\"]+)?)")
_QUOTED: Final = re.compile(r"[`\"“'‘]([^`\"”'’\n]{6,200})[`\"”'’]")
_TESTS: Final = re.compile(r"(?:[\w/-]+(?:\.py)?(?:::|\.))*\b(?:test_\w+|Test[A-Z]\w*|\w+_test)\b(?:(?:::|\.)\w+)*")
_EXACT: Final = re.compile(r"[\d=<>(){}\[\]]")
_WORD: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{2,}|\d{2,}")
_COMMON: Final = word_set("""
    the and for with from that this when then there are was were has have not does doesn didn fails fail failed failing
    failure test tests testing error errors bug issue wrong broken should would could must instead return returns returned
    get gets got give gives given function method class file line code run running after before but which what why where
    assert assertion assertionerror expected actual equal none null true false value values result results output some
    into out its only also all any can cannot make makes use used using please fix debug problem
""")
_ENOUGH_WORDS: Final = 2
_ANY_FAILURE: Final = frozenset(
    {"AssertionError", "TestFailure", "Error", "Exception", "RuntimeError", "AssertionFailure"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reproduction:
    """Result of reproducing the reported failure. `tests` show it."""

    verified: bool
    how: How
    why: str
    tests: tuple[str, ...]
    check: CheckResult

    @property
    def evidence(self) -> tuple[Evidence, ...]:
        return (Evidence(ok=self.verified, what=self.why, detail=self.check.tail),)


def reproduced(check: CheckResult, *, symptom: str = "", test: str | None = None) -> Reproduction:
    """Compare a check's failures with a symptom or the name of a test."""

    def is_(how: How, why: str, *tests: str) -> Reproduction:
        return Reproduction(verified=how != "no", how=how, why=why, tests=tests, check=check)

    nothing = check.not_checked
    if check.exit_code == 0 and nothing is None:
        runs = f" in {check.runs} runs" if check.runs > 1 else ""
        return is_("no", f"The check did not fail{runs}: {check.in_words()}.")
    # A test that failed because something is missing shows nothing of the report.
    shown = [failure for failure in check.failures if not_checked(1, failure.message) is None]
    wanted = [test] if test is not None else list(_named_tests(symptom))
    hits = [failure.name for failure in shown if any(is_same_test(failure.name, name) for name in wanted)]
    if hits:
        return is_("test", f"The named test failed before the change: {', '.join(hits[:5])}.", *hits)
    if test is not None:
        seen = ", ".join(failure.name for failure in check.failures[:5]) or "no test that is known by name"
        why = "" if nothing is None else f" ({nothing.why}: {nothing.line})"
        return is_("no", f"The test {test} did not fail. What failed: {seen}{why}.")
    said = normalised(check.output)
    message = next((one for one in _messages(symptom) if normalised(one) in said), None)
    # If nothing was checked, a short message may be there by chance.
    if message is not None and (nothing is None or shown or len(_distinctive(message)) >= _ENOUGH_WORDS):
        tests = [failure.name for failure in shown if normalised(message) in normalised(failure.message)]
        return is_("message", f"The named message was in the output before the change: {message}", *tests)
    if nothing is not None and not shown:
        return is_(
            "no", f"The check failed for another reason: {nothing.why} ({nothing.line}). Nothing was reproduced."
        )
    if not symptom.strip():
        names = [failure.name for failure in shown]
        return is_("any", f"No failure was named, and the check failed before the change: {check.in_words()}.", *names)
    # With an exact test or error in the report, a mere resemblance is not enough.
    is_exact = bool(wanted) or any(_raised(symptom))
    related = [failure for failure in shown if not is_exact and _speaks_of(failure, symptom)]
    if related:
        names = [failure.name for failure in related]
        return is_(
            "words", f"Tests that match the description failed before the change: {', '.join(names[:5])}.", *names
        )
    seen = "; ".join([f"{one.name}: {one.message}" for one in shown[:3]] or check.errors[:3]) or check.in_words()
    return is_("no", f"The check fails, but not as described. Seen: {seen}. Name the failing test or its message.")


def fixed(before: Reproduction, after: CheckResult) -> Verdict:
    """Verify that the reproduced failure is gone and no other test fails."""
    broken = sorted(after.failed_names - before.check.failed_names)
    still = sorted(after.failed_names & before.check.failed_names)
    ok = after.passed
    evidence = [
        *before.evidence,
        Evidence(ok=ok, what=f"After the change: {after.in_words()}.", detail=after.tail),
    ]
    if others := fails_elsewhere(before, after):
        what = "The named failure is fixed, but these tests failed before the change too, and still do"
        evidence.append(
            Evidence(ok=False, what=f"{what}: {', '.join(others[:10])}. Name a check that leaves them out.")
        )
    elif still:
        evidence.append(Evidence(ok=False, what=f"Still failing: {', '.join(still[:10])}."))
    if broken:
        evidence.append(Evidence(ok=False, what=f"These did not fail before the change: {', '.join(broken[:10])}."))
    if not ok and after.not_checked is not None:
        evidence.append(Evidence(ok=False, what=f"Nothing was checked: {after.not_checked.why}."))
    return verdict(evidence)


def fails_elsewhere(before: Reproduction, after: CheckResult) -> list[str]:
    """Return the tests that failed before and after, if only tests that are not the reproduced ones still fail."""
    still = after.failed_names
    if after.passed or not before.tests or still & {*before.tests} or not still <= before.check.failed_names:
        return []
    return sorted(still)


def came_to_its_end(before: CheckResult, after: CheckResult) -> Verdict:
    """Verify that as many tests ran as before, if the runner counts them.

    A program can exit before its tests finish, and code can cause tests to be skipped.
    """
    was, now = _count(before), _count(after)
    if not after.passed or was is None or (now is not None and now >= was):
        return Verdict()
    seen = "the check ended without counting any" if now is None else f"only {now}"
    what = f"Before the change {was} test(s) were run and not skipped; after it {seen}."
    return verdict([Evidence(ok=False, what=what, detail=after.tail)])


def _count(check: CheckResult) -> int | None:
    """Return the number of completed tests."""
    tally = read_tally(check.output)
    return None if tally is None or tally.unit == "percent" else tally.done - tally.skipped


def is_same_test(seen: str, named: str) -> bool:
    """Return whether a runner's test name is the named test, possibly only by the end of its name."""
    # pytest puts the parameters of a test in brackets behind its name.
    seen, named = (re.sub(r"\[.*\]$", "", name.strip()) for name in (seen, named))
    if not named:
        return False
    if seen == named:
        return True
    parts = re.split(r"::|\.(?!py\b)| > | › |/", seen)
    asked = re.split(r"::|\.(?!py\b)| > | › |/", named)
    return parts[-len(asked) :] == asked


def _named_tests(symptom: str) -> Iterator[str]:
    for match in _TESTS.finditer(symptom):
        yield match[0]


def _raised(symptom: str) -> Iterator[str]:
    """Yield the errors that a text names, without generic ones such as a failed assertion."""
    for match in _RAISED.finditer(symptom):
        message = match[1].rstrip(" .,;:")
        if message not in _ANY_FAILURE:
            yield message


def _messages(symptom: str) -> Iterator[str]:
    """Yield parts of a text that look like messages: errors, quotations, and long lines."""
    yield from _raised(symptom)
    for match in _QUOTED.finditer(symptom):
        if len(_distinctive(match[1])) >= _ENOUGH_WORDS or _EXACT.search(match[1]):
            yield match[1]
    for line in symptom.splitlines():
        if len(line.strip()) >= 20 and line.strip() != symptom.strip():
            yield line.strip()


def _speaks_of(failure: TestFailure, symptom: str) -> bool:
    about = _distinctive(symptom)
    shared = about & _distinctive(f"{failure.name} {failure.message}")
    return len(shared) >= min(_ENOUGH_WORDS, len(about)) > 0


def _distinctive(text: str) -> frozenset[str]:
    """Return the distinctive words of a text; identifiers are split."""
    apart = re.sub(r"([a-z])([A-Z])", r"\1 \2", text).replace("_", " ")
    words = (word.lower().rstrip("s") for word in _WORD.findall(apart))
    return frozenset(word for word in words if word not in _COMMON and f"{word}s" not in _COMMON)
