"""Progress of a turn, as far as it is known.

Three sources, best first: the plan that Codex made ("3 of 5 steps"), the tally that a test runner prints ("87 of 132
tests"), and otherwise the number of finished items, without a total. No percentage is ever made up. The remaining time is
estimated only if a plan or a tally gives a total.

Everything here is pure: items and seconds in, a `Progress` out.
"""

from __future__ import annotations

import math
import re
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from helmsman.base.sanitize import exact, shell_script
from helmsman.base.structs import Value, replace
from helmsman.model.events import (
    AgentMessage,
    CollabToolCall,
    CommandExecution,
    DynamicToolCall,
    FileChange,
    McpToolCall,
    TodoList,
    WebSearch,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from helmsman.model.events import Item

_LONGEST_ETA: Final = 7 * 24 * 3600
"""Longest estimate in seconds. An estimate beyond a week is no estimate."""
_MOST_STEPS: Final = 50
_NOW_CHARS: Final = 200
STEPS: Final = "steps"
"""Unit of progress by the steps of a plan."""


class Now(Value, frozen=True, kw_only=True):
    """Current activity: the running command, the file being changed, the tool being called, and the step of the plan."""

    command: str | None = None
    file: str | None = None
    tool: str | None = None
    step: str | None = None

    def in_words(self) -> str:
        """Return the progress in one line; empty if nothing is known."""
        named = (("running", self.command), ("changing", self.file), ("calling", self.tool), ("at the step", self.step))
        return ", ".join(f"{doing} {what}" for doing, what in named if what)


class PlannedStep(Value, frozen=True, kw_only=True):
    """Step of the plan, with its number."""

    key: str
    label: str
    done: bool


class Progress(Value, frozen=True, kw_only=True):
    """`done` of `total` (None where nothing says how many), counted in `unit`; `text` is that in words."""

    done: int
    total: int | None
    unit: str
    text: str
    eta_seconds: int | None = None
    now: Now = Now()
    steps: tuple[PlannedStep, ...] = ()

    @property
    def percent(self) -> int | None:
        """Return the percentage if a plan or a tally gives a total, else None."""
        return self.done * 100 // self.total if self.total else None


class Tally(Value, frozen=True, kw_only=True):
    """Tally that a test runner prints. `done` includes `failed` and `skipped`."""

    done: int
    total: int | None = None
    failed: int = 0
    unit: str = "tests"
    skipped: int = 0

    @property
    def passed(self) -> int:
        return self.done - self.failed - self.skipped

    @property
    def text(self) -> str:
        failed = f", {self.failed} failed" if self.failed else ""
        if self.unit == "percent":
            return f"{self.done} % of the tests{failed}"
        if self.total is None:
            return f"{_counted(self.done, self.unit.removesuffix('s'))}{failed}"
        return f"{self.done} of {self.total} {self.unit}{failed}"


def infer_progress(
    items: Sequence[Item], *, turn_seconds: float | None = None, command_seconds: float | None = None
) -> Progress:
    """Return the progress that the items of a turn show.

    Args:
        items: The items of the turn so far, in order.
        turn_seconds: How long the turn has been running, for the time left of a plan.
        command_seconds: How long the newest command has been running, for the time left of a test run.
    """
    plan = next((item for item in reversed(items) if isinstance(item, TodoList) and item.steps), None)
    progress = _counted_progress(items, plan, turn_seconds, command_seconds)
    steps = () if plan is None else plan.steps[:_MOST_STEPS]
    return replace(
        progress,
        now=_now(items, plan),
        steps=tuple(
            PlannedStep(key=str(number), label=_short(step.text) or "", done=step.status == "completed")
            for number, step in enumerate(steps, 1)
        ),
    )


def _now(items: Sequence[Item], plan: TodoList | None) -> Now:
    """Return the newest item that has not ended."""
    step = next((step.text for step in plan.steps if step.status == "in_progress"), None) if plan is not None else None
    at_work = Now(step=_short(step))
    for item in reversed(items):
        if item.status in ("completed", "failed"):
            continue
        match item:
            case CommandExecution(announced=False):
                return replace(at_work, command=_short(shell_script(item.command)))
            case FileChange() if item.changes:
                return replace(at_work, file=_short(", ".join(change.path for change in item.changes)))
            case McpToolCall() | DynamicToolCall() | WebSearch() | CollabToolCall():
                return replace(at_work, tool=_short(item.summary() or item.type))
            case _:
                pass
    return at_work


def _short(text: str | None) -> str | None:
    """Return a short text that is safe to show on one line."""
    if not text:
        return None
    # Cut before the text is made safe, which takes longer the longer it is.
    shown = exact(text[: 2 * _NOW_CHARS])
    return shown if len(shown) <= _NOW_CHARS else shown[: _NOW_CHARS - 1] + "…"


def _counted_progress(
    items: Sequence[Item], plan: TodoList | None, turn_seconds: float | None, command_seconds: float | None
) -> Progress:
    command = _newest_command(items)
    tally = None if command is None else read_tally(command.output)
    if plan is not None:
        done, total = sum(step.status == "completed" for step in plan.steps), len(plan.steps)
        # The tally belongs to the running step, so the plan gives the total.
        text = f"{done} of {total} steps" + (f", {tally.text}" if tally is not None else "")
        return Progress(done=done, total=total, unit=STEPS, text=text, eta_seconds=_eta(done, total, turn_seconds))
    if command is not None and tally is not None:
        running = command.status not in ("completed", "failed")
        eta = _eta(tally.done, tally.total, command_seconds) if running else None
        return Progress(done=tally.done, total=tally.total, unit=tally.unit, text=tally.text, eta_seconds=eta)
    return _finished(items)


def _newest_command(items: Sequence[Item]) -> CommandExecution | None:
    """Return the newest command that is running, or else the newest one."""
    commands = [item for item in items if isinstance(item, CommandExecution)]
    running = [command for command in commands if command.status not in ("completed", "failed")]
    return next(reversed(running or commands), None)


def _eta(done: int, total: int | None, seconds: float | None) -> int | None:
    # Without a finished step there is no rate, and a finished plan has no time left.
    if total is None or seconds is None or not 0 < done < total or not math.isfinite(seconds) or seconds <= 0:
        return None
    left = seconds / done * (total - done)
    return round(left) if left <= _LONGEST_ETA else None


# --- what has been finished ------------------------------------------------------------------------------------------

_COUNTED: Final[tuple[tuple[type[Item] | tuple[type[Item], ...], str], ...]] = (
    (CommandExecution, "command"),
    (FileChange, "file change"),
    ((McpToolCall, DynamicToolCall), "tool call"),
    (WebSearch, "search"),
    (CollabToolCall, "sub-agent call"),
    (AgentMessage, "message"),
)


def _finished(items: Sequence[Item]) -> Progress:
    finished = [item for item in items if item.status in ("completed", "failed")]
    counts = [(sum(isinstance(item, kinds) for item in finished), name) for kinds, name in _COUNTED]
    text = ", ".join(_counted(count, name) for count, name in counts if count)
    return Progress(
        done=sum(count for count, _ in counts), total=None, unit="items", text=text or "nothing finished yet"
    )


def _counted(count: int, name: str) -> str:
    plural = f"{name}es" if name.endswith("ch") else f"{name}s"
    return f"{count} {name if count == 1 else plural}"


# --- what test runners print -----------------------------------------------------------------------------------------

# Every repetition is bounded or possessive (`++`), so that no output, however odd, takes more than linear time.
_COLOUR: Final = re.compile(r"\x1b\[[0-9;]{0,16}m")
_COUNT: Final = r"(\d{1,7}+)"

_PYTEST_COLLECTED: Final = re.compile(rf"^collected {_COUNT} items?(?: / .{{0,80}}?{_COUNT} selected)?", re.MULTILINE)
_PYTEST_WORKERS: Final = re.compile(rf"^\d{{1,4}} workers? \[{_COUNT} items?\]", re.MULTILINE)
_PYTEST_PERCENT: Final = re.compile(r"(?:\[ {0,2}(\d{1,3}+)%\]$|^\[gw\d{1,4}\] \[ {0,2}(\d{1,3}+)%\] )", re.MULTILINE)
_PYTEST_COUNT: Final = re.compile(rf"\[ {{0,6}}{_COUNT}/{_COUNT}\]$", re.MULTILINE)
_PYTEST_OUTCOME: Final = r"(?:passed|failed|errors?|skipped|xfailed|xpassed|deselected|warnings?|rerun)"
_PYTEST_SUMMARY: Final = re.compile(
    rf"^(?:=+ )?(\d{{1,7}} {_PYTEST_OUTCOME}(?:, \d{{1,7}} {_PYTEST_OUTCOME}){{0,9}}) in [\d.]{{1,12}}s", re.MULTILINE
)
_UNITTEST_SUMMARY: Final = re.compile(rf"^Ran {_COUNT} tests? in ", re.MULTILINE)
_UNITTEST_VERDICT: Final = re.compile(r"^FAILED \((.{1,80})\)$", re.MULTILINE)
_UNITTEST_FAILURES: Final = re.compile(rf"(?:(?<!expected )failures|errors)={_COUNT}")
_UNITTEST_SKIPPED: Final = re.compile(rf"^(?:OK|FAILED) \(.{{0,60}}?skipped={_COUNT}", re.MULTILINE)
_JEST_SUMMARY: Final = re.compile(rf"^ {{0,8}}Tests: {{1,8}}(.{{0,120}}?){_COUNT} total", re.MULTILINE)
_VITEST_SUMMARY: Final = re.compile(rf"^ {{0,8}}Tests {{1,8}}(.{{1,120}}?) \({_COUNT}\)", re.MULTILINE)
_CARGO_RUNNING: Final = re.compile(rf"^running {_COUNT} tests?$", re.MULTILINE)
_CARGO_TEST: Final = re.compile(r"^test \S.{0,300}? \.\.\. (ok|FAILED|ignored)", re.MULTILINE)
_NEXTEST_STARTING: Final = re.compile(rf"^ {{0,8}}Starting {_COUNT} tests? across", re.MULTILINE)
_NEXTEST_TEST: Final = re.compile(r"^ {1,12}(PASS|FAIL|SIGABRT|TIMEOUT|LEAK) \[", re.MULTILINE)
_GO_TEST: Final = re.compile(r"^--- (PASS|FAIL|SKIP): ", re.MULTILINE)
_GO_PACKAGE: Final = re.compile(r"^(ok {2}|FAIL)\t\S{1,300}\t", re.MULTILINE)
_CTEST: Final = re.compile(rf"^ {{0,6}}{_COUNT}/{_COUNT} Test {{1,4}}#", re.MULTILINE)
_PLAIN: Final = re.compile(
    rf"(?<![\d/.]){_COUNT}(?: ?/ ?| of ){_COUNT} (?:tests? |specs? |checks? )?(?:passed|passing|passes|tests\b|specs\b)",
    re.IGNORECASE,
)
_COUNTED_WORD: Final = re.compile(rf"{_COUNT} ([a-z]{{1,16}})")


@lru_cache(maxsize=4)  # a display asks several times a second, and outputs go up to a megabyte
def read_tally(output: str) -> Tally | None:
    """Return the newest tally in the output of a command, or None."""
    output = _COLOUR.sub("", output).replace("\r\n", "\n").replace("\r", "\n")
    for read in _READERS:
        tally = read(output)
        if tally is not None:
            return _sane(tally)
    return None


def _sane(tally: Tally) -> Tally:
    """Limit the counts to the total: a program may print anything."""
    total = None if tally.total is None else max(tally.total, tally.done)
    failed = min(tally.failed, tally.done)
    return replace(tally, total=total, failed=failed, skipped=min(tally.skipped, tally.done - failed))


def _last(pattern: re.Pattern[str], output: str) -> re.Match[str] | None:
    found = None
    for found in pattern.finditer(output):  # noqa: B007 -- only the last one counts
        pass
    return found


def _pytest(output: str) -> Tally | None:
    summary = _last(_PYTEST_SUMMARY, output)
    if summary is not None:
        counts = _words(summary[1])
        failed = counts.get("failed", 0) + counts.get("error", 0) + counts.get("errors", 0)
        done = failed + sum(counts.get(word, 0) for word in ("passed", "skipped", "xfailed", "xpassed"))
        skipped = counts.get("skipped", 0) + counts.get("xfailed", 0)
        return Tally(done=done, total=done, failed=failed, skipped=skipped)
    counted = _last(_PYTEST_COUNT, output)
    if counted is not None:
        return Tally(done=int(counted[1]), total=int(counted[2]))
    shown = _last(_PYTEST_PERCENT, output)
    percent = None if shown is None else min(int(shown[1] or shown[2]), 100)
    collected = _last(_PYTEST_COLLECTED, output) or _last(_PYTEST_WORKERS, output)
    if collected is None:
        # The start of the output, with the number of tests, may be lost.
        return None if percent is None else Tally(done=percent, total=100, unit="percent")
    total = int(collected[collected.lastindex or 1])
    return Tally(done=total * (percent or 0) // 100, total=total)


def _unittest(output: str) -> Tally | None:
    ran = _last(_UNITTEST_SUMMARY, output)
    if ran is None:
        return None
    verdict = _last(_UNITTEST_VERDICT, output)
    failed = sum(map(int, _UNITTEST_FAILURES.findall(verdict[1]))) if verdict is not None else 0
    skipped = _last(_UNITTEST_SKIPPED, output)
    done = int(ran[1])
    return Tally(done=done, total=done, failed=failed, skipped=0 if skipped is None else int(skipped[1]))


def _javascript(output: str) -> Tally | None:
    summary = _last(_JEST_SUMMARY, output) or _last(_VITEST_SUMMARY, output)
    if summary is None:
        return None
    counts = _words(summary[1])
    skipped = counts.get("skipped", 0) + counts.get("todo", 0)
    return Tally(done=sum(counts.values()), total=int(summary[2]), failed=counts.get("failed", 0), skipped=skipped)


def _cargo(output: str) -> Tally | None:
    for announcement, test in ((_CARGO_RUNNING, _CARGO_TEST), (_NEXTEST_STARTING, _NEXTEST_TEST)):
        announced = list(announcement.finditer(output))
        if announced:
            # The beginning of a long output may be lost: what stands before the first announcement belongs to none.
            verdicts = [found[1] for found in test.finditer(output, announced[0].end())]
            failed = sum(verdict not in ("ok", "ignored", "PASS", "LEAK") for verdict in verdicts)
            total = sum(int(found[1]) for found in announced)
            return Tally(done=len(verdicts), total=total, failed=failed, skipped=verdicts.count("ignored"))
    return None


def _go(output: str) -> Tally | None:
    # `go test` names single tests only with -v.
    for pattern, unit in ((_GO_TEST, "tests"), (_GO_PACKAGE, "packages")):
        verdicts = [found[1] for found in pattern.finditer(output)]
        if verdicts:
            skipped = verdicts.count("SKIP")
            return Tally(done=len(verdicts), failed=verdicts.count("FAIL"), unit=unit, skipped=skipped)
    return None


def _plain(output: str) -> Tally | None:
    found = _last(_CTEST, output) or _last(_PLAIN, output)
    if found is None or int(found[1]) > int(found[2]):
        return None
    return Tally(done=int(found[1]), total=int(found[2]))


def _words(text: str) -> dict[str, int]:
    """Return `2 failed, 85 passed` as a mapping."""
    return {word: int(count) for count, word in _COUNTED_WORD.findall(text)}


# The plain patterns come last: they would match parts of what the other runners print.
_READERS: Final[tuple[Callable[[str], Tally | None], ...]] = (_pytest, _unittest, _javascript, _cargo, _go, _plain)
