"""A check in a session's worktree, with other files in it than the session left there.

A change is checked with the check's own files as they were before it, and without what git does not know and its agent has
made: that is no part of the change. That new tests can fail is shown by letting them
fail: against the code before the change, or with small mutations, which are hunks taken back or lines taken out. What could
not even be built, or failed for want of something, shows nothing. After each trial the worktree is as it was.
"""

from __future__ import annotations

import ast
import re
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import anyio
import anyio.to_thread

from helmsman.base.patches import named
from helmsman.capabilities.outcomes.check_files import as_before, own_files_in, own_kind, runs_with, stands_for_a_runner
from helmsman.capabilities.outcomes.claims import CitedLines, inside
from helmsman.capabilities.outcomes.evidence import Evidence, Verdict, verdict
from helmsman.capabilities.outcomes.failures import failed_tests, not_checked
from helmsman.capabilities.outcomes.interfaces import compare_interfaces
from helmsman.capabilities.outcomes.reproduction import is_same_test
from helmsman.model.unified_diff import read_diff
from helmsman.worktrees.lending import lend

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Sequence
    from pathlib import Path
    from typing import TypeVar

    from helmsman.capabilities.outcomes.check_files import OwnFile
    from helmsman.capabilities.outcomes.checks import CheckResult, CheckRunner
    from helmsman.capabilities.outcomes.interfaces import InterfaceChange
    from helmsman.worktrees.lending import Lent

    T = TypeVar("T")

RUNS: Final = 3
"""How often tests are run that must not be flaky."""
MOST_MUTATIONS: Final = 12
_TEST_NAMES: Final = (
    re.compile(r"^\s*(?:async )?def (test\w*)"),
    re.compile(r"^\s*(?:it|test)(?:\.\w+)?\(\s*(['\"`])(?P<name>.+?)\1"),
    re.compile(r"^func (Test\w+)\("),
    re.compile(r"^\s*(?:async )?fn (\w+)\(\)"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutation:
    """A file with a hunk taken back, or a line taken out."""

    path: str
    what: str
    content: bytes | None


class Trial:
    """A worktree that belongs to a check for a while. Made by `trial`."""

    def __init__(self, lent: Lent, runner: CheckRunner) -> None:
        self._lent = lent
        self._runner = runner
        self._aside: tuple[str, ...] = ()
        self._failed = False
        """Whether the check failed on what the session left."""
        self._printed: set[str] = set()
        """Tests that were told to have failed where all passed: whoever prints that says nothing by it."""

    async def changed(self) -> dict[str, str]:
        """The files that the session changed since its worktree was made, each with `A`, `M`, `D` or `T`."""
        return await _blocking(lambda: self._lent.changed(self._lent.base, self._lent.now))

    async def own_files(self) -> tuple[OwnFile, ...]:
        """The files of the check among them."""
        return await _blocking(self._own_files)

    def _own_files(self) -> tuple[OwnFile, ...]:
        lent = self._lent
        return own_files_in(lent.changed(lent.base, lent.now), lent.links(lent.base))

    @property
    def directory(self) -> Path:
        """Where the worktree is."""
        return self._lent.worktree.path

    async def put_back(self) -> None:
        """Have in the worktree what the session left, to look at."""
        await _blocking(lambda: self._lent.put(self._lent.now))

    async def before(self, command: str) -> CheckResult:
        """The check, with the code as it was before the session."""
        return await self._at(self._lent.base, command)

    async def now(self, command: str) -> CheckResult:
        """The check, with all that the session changed, its tests too."""
        return self._noted(await self._at(self._lent.now, command))

    async def after(self, command: str) -> CheckResult:
        """The check, with what the session changed, but with the check's own files as they were."""
        tree = await _blocking(self._with_old_check)
        return self._noted(await self._at(tree, command))

    def _noted(self, result: CheckResult) -> CheckResult:
        self._failed = self._failed or not result.passed
        return result

    async def set_aside(self) -> None:
        """Take away what git does not know and the session has made, until the worktree is given back."""
        if (since := self._runner.since) is not None:
            self._aside = await _blocking(lambda: self._lent.set_aside(since))

    async def check_kept(self, *, new_helpers: bool = False, planned: Collection[str] = ()) -> Verdict:
        """Whether the change left the check what it was: tests were added, and nothing else of it was touched.

        `new_helpers` lets there be new files that say how tests are run, too, such as a `conftest.py`; `planned` files may
        change.
        """
        lent = self._lent
        told: list[Evidence] = []
        for file in await self.own_files():
            helps = new_helpers and not stands_for_a_runner(file.path)
            if file.path in planned or (file.status == "A" and (file.kind == "test" or helps)):
                continue
            if file.kind == "test" and file.status == "M":
                patch = await _blocking(lambda path=file.path: lent.patch(lent.base, lent.now, path))  # type: ignore[misc]
                kinds = {line.kind for one in read_diff(patch) for line in one.lines}
                if "add" in kinds and "remove" not in kinds:  # neither: it is shown as binary, or has another mode
                    continue
            told.append(Evidence(ok=False, what=f"The check was edited: {file.in_words}.", file=file.path))
        if (since := self._runner.since) is not None:
            folders = {path.rpartition("/")[0] for path in await _blocking(lambda: lent.files(lent.now))} | {""}
            unknown = {*self._aside, *await _blocking(lambda: lent.unknown_since(since))}
            for path in sorted(one for one in unknown if runs_with(one, folders)):
                what = f"The check runs with {path}, which git does not know, and which was made or changed meanwhile."
                told.append(Evidence(ok=False, what=what, file=path))
            if self._failed and self._aside:
                what = f"It ran without what git does not know and would not be applied: {named(self._aside)}."
                told.append(Evidence(ok=False, what=what))
        if not told:
            return Verdict(verified=True, evidence=(Evidence(ok=True, what="The check is what it was before."),))
        return Verdict(verified=False, evidence=tuple(told))

    async def interfaces(self) -> InterfaceChange:
        """The public interface before and after."""
        lent, changed = self._lent, await self.changed()
        return await _blocking(
            lambda: compare_interfaces(
                sorted(changed), lambda path: lent.content(lent.base, path), lambda path: lent.content(lent.now, path)
            )
        )

    def _with_old_check(self) -> str:
        lent = self._lent
        return lent.mixed(lent.now, as_before(self._own_files(), lent.base))

    async def _at(self, tree: str, command: str) -> CheckResult:
        await self._runner.allow(command)  # before anything is exchanged
        await _blocking(lambda: self._lent.put(tree))
        return await self._runner.run(command)

    # --- new tests ---------------------------------------------------------------------------------------------------

    async def steady(self, command: str, runs: int = RUNS) -> tuple[Verdict, CheckResult]:
        """Whether the tests that the session left pass, each time that they are run; and what the last run came to."""
        results = [await self.now(command) for _ in range(runs)]
        self._printed |= {
            failure.name for result in results if result.passed for failure in failed_tests(result.output)
        }
        passed = [result.passed for result in results]
        told = [Evidence(ok=result.passed, what=f"{result.in_words()}.", detail=result.tail) for result in results]
        if any(passed) and not all(passed):
            failed = sorted({name for result in results for name in result.failed_names})
            which = f": {named(failed)}" if failed else ""
            told.append(Evidence(ok=False, what=f"It is flaky: of {runs} runs {sum(passed)} passed{which}."))
        return verdict(told), results[-1]

    async def can_fail(self, command: str, targets: Sequence[CitedLines] = (), base: str | None = None) -> Verdict:
        """Whether at least one of the session's new tests fails where the code is wrong.

        Tried are the code of a commit (`base`), if there is one, and that before the change, then each hunk of the change
        taken back, then lines of the `targets` (what is under test, where the session changed nothing but tests) taken out,
        one at a time.
        """
        lent, changed = self._lent, await self.changed()
        tests = [file.path for file in await self.own_files() if file.kind == "test" and file.status != "D"]
        names = await _blocking(lambda: _new_tests(lent, tests))
        if not tests:
            return Verdict(verified=False, evidence=(Evidence(ok=False, what="There is no new test."),))
        code = [path for path in changed if own_kind(path) is None]
        tried: list[Evidence] = []
        if base is not None:
            tree = await _blocking(lambda: self._with_code_of(base))
            if (hit := await self._fails(tree, command, tests, names, f"the code of {base[:12]}", tried)) is not None:
                return Verdict(verified=True, evidence=(*tried, hit))
        if code:
            tree = await _blocking(lambda: lent.mixed(lent.now, dict.fromkeys(code, lent.base)))
            if (hit := await self._fails(tree, command, tests, names, "the code before the change", tried)) is not None:
                return Verdict(verified=True, evidence=(*tried, hit))
        mutations = await _blocking(lambda: list(_mutations(lent, code, targets)))
        for mutation in mutations[:MOST_MUTATIONS]:
            tree = await _blocking(lambda one=mutation: lent.mixed(lent.now, {one.path: one.content}))  # type: ignore[misc]
            if (hit := await self._fails(tree, command, tests, names, mutation.what, tried)) is not None:
                return Verdict(verified=True, evidence=(*tried, hit))
        if not code and not mutations:
            tried.append(Evidence(ok=False, what="Nothing says which lines are under test, so none could be changed."))
        tried.append(Evidence(ok=False, what="No new test was seen to fail, whatever was wrong with the code."))
        return Verdict(verified=False, evidence=tuple(tried))

    def _with_code_of(self, commit: str) -> str:
        """What the session left, with all but the check's own files as in a commit."""
        lent, tree = self._lent, self._lent.tree_of(commit)
        return lent.mixed(lent.now, {path: tree for path in lent.changed(tree, lent.now) if own_kind(path) is None})

    async def _fails(
        self,
        tree: str,
        command: str,
        tests: Sequence[str],
        names: Sequence[str],
        against: str,
        tried: list[Evidence],
    ) -> Evidence | None:
        result = await self._at(tree, command)
        hits = [
            failure.name
            for failure in result.failures
            if not_checked(1, failure.message) is None
            and _is_new(failure.name, tests, names)
            and failure.name not in self._printed
        ]
        if hits:
            what = f"Against {against} a new test fails: {', '.join(hits[:5])}."
            return Evidence(ok=True, what=what, detail=result.tail)
        why = result.not_checked.why if result.not_checked is not None else "no new test fails"
        what = f"Against {against}: " + ("all pass." if result.passed else f"{why}.")
        tried.append(Evidence(ok=not result.passed and result.not_checked is not None, what=what))
        return None


@asynccontextmanager
async def trial(runner: CheckRunner) -> AsyncIterator[Trial]:
    """Have the runner's worktree for trials; after the block it is as it was. Nobody may work in it meanwhile.

    Raises:
        WorktreeError: The worktree is gone, or another check has it.
    """
    lending = lend(runner.worktree)
    lent = await _blocking(lending.__enter__)
    try:
        await _blocking(lent.drop_bytecode)
        checks = Trial(lent, runner)
        await checks.set_aside()
        yield checks
    finally:
        with anyio.CancelScope(shield=True):
            await _blocking(lambda: lending.__exit__(None, None, None))


async def _blocking(function: Callable[[], T]) -> T:
    return await anyio.to_thread.run_sync(function)


# --- which tests are new ---------------------------------------------------------------------------------------------


def _new_tests(lent: Lent, tests: Sequence[str]) -> list[str]:
    """The names of tests in added lines."""
    found: list[str] = []
    for file in read_diff(lent.patch(lent.base, lent.now, *tests)) if tests else ():
        for line in file.lines:
            if line.kind == "add":
                matches = (pattern.match(line.text[1:]) for pattern in _TEST_NAMES)
                found += [match.groupdict().get("name") or match[1] for match in matches if match is not None]
    return found


def _is_new(failed: str, tests: Sequence[str], names: Sequence[str]) -> bool:
    if names:
        return any(is_same_test(failed, name) for name in names)
    return any(failed.startswith(path) for path in tests)


# --- mutations -------------------------------------------------------------------------------------------------------


def _mutations(lent: Lent, code: Iterable[str], targets: Sequence[CitedLines]) -> Iterator[Mutation]:
    for path in code:
        yield from _hunks_taken_back(lent, path)
    for place in targets:
        cited = inside(lent.worktree.path, place.file)
        content = None if cited is None else lent.content(lent.now, cited)
        if cited is not None and content is not None and own_kind(cited) is None:
            yield from lines_taken_out(cited, content, place.lines)


def _hunks_taken_back(lent: Lent, path: str) -> Iterator[Mutation]:
    before, after = lent.content(lent.base, path), lent.content(lent.now, path)
    if before is None or after is None:
        if after is not None:
            yield from lines_taken_out(path, after, None)
        return
    old, new = _lines(before), _lines(after)
    for file in read_diff(lent.patch(lent.base, lent.now, path)):
        hunks: list[tuple[list[int], list[int]]] = []
        for line in file.lines:
            if line.kind == "hunk":
                hunks.append(([], []))
            elif hunks and line.kind == "remove" and line.before is not None:
                hunks[-1][0].append(line.before)
            elif hunks and line.kind == "add" and line.after is not None:
                hunks[-1][1].append(line.after)
        for removed, added in hunks:
            if added:
                put = b"".join(old[number - 1] for number in removed)
                content = b"".join(new[: added[0] - 1]) + put + b"".join(new[added[-1] :])
                what = f"{path} with the lines {added[0]} to {added[-1]} taken back"
                yield Mutation(path=path, what=what, content=content)
        for _, added in hunks:
            if len(added) > 1:
                yield from lines_taken_out(path, after, (added[0], added[-1]))


def lines_taken_out(path: str, content: bytes, lines: tuple[int, int] | None) -> Iterator[Mutation]:
    """A file with one line of these taken out at a time, from the last: what comes last in a block is most often what
    counts. Where Python needs a statement in its place, there is `pass`.
    """
    text = _lines(content)
    first, last = lines or (1, len(text))
    for number in range(min(last, len(text)), max(first, 1) - 1, -1):
        line = text[number - 1]
        if not line.strip() or not re.search(rb"\w", line) or line.lstrip().startswith((b"#", b"//", b"/*", b"*")):
            continue
        left = b"".join([*text[: number - 1], *text[number:]])
        if path.endswith(".py") and not _parses(left):
            indent = line[: len(line) - len(line.lstrip())]
            left = b"".join([*text[: number - 1], indent + b"pass\n", *text[number:]])
            if not _parses(left):
                continue
        yield Mutation(path=path, what=f"{path} without line {number}", content=left)


def _lines(content: bytes) -> list[bytes]:
    """Lines as git counts them."""
    return re.findall(rb"[^\n]*\n|[^\n]+", content)


def _parses(content: bytes) -> bool:
    try:
        ast.parse(content)
    except (SyntaxError, ValueError, RecursionError):
        return False
    return True
