"""Run checks in a clean room: before a change, after it, and with small mutations.

A change is checked with the previous versions of the check's files (`check_files`). New tests must fail against the
code before the change, or with hunks reverted or lines removed. A mutation that cannot be built, or fails because
something is missing, proves nothing. A failure counts if it is repeatable, and if the same tests pass without the
mutation in between.
"""

from __future__ import annotations

import ast
import json
import posixpath
import re
import shlex
import time
import tomllib
import uuid
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import cache
from itertools import islice, zip_longest
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Final

import anyio
import anyio.to_thread

from helmsman.base.structs import replace
from helmsman.capabilities.outcomes.check_files import (
    ChangedFiles,
    OwnFile,
    as_before,
    files_of_check,
    installed_modules,
    is_installed,
    is_test_name,
    own_files_in,
    own_kind,
    remarks,
    shadows,
)
from helmsman.capabilities.outcomes.claims import CitedLines, Evidence, Verdict, inside, verdict
from helmsman.capabilities.outcomes.failures import failed_tests, files_without_names, not_checked
from helmsman.capabilities.outcomes.reproduction import is_same_test
from helmsman.errors import WorktreeError
from helmsman.git.clean_room import open_room
from helmsman.git.diff import read_diff
from helmsman.git.patches import named

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
    from typing import TypeVar

    from helmsman.capabilities.outcomes.checks import CheckResult, CheckRunner
    from helmsman.git.clean_room import CleanRoom
    from helmsman.git.tree_changes import TreeDiff

    T = TypeVar("T")


RUNS: Final = 3
"""Runs to detect flaky tests, and repetitions of a proof."""
_REPEAT_SECONDS: Final = 30.0
"""A check that takes longer than this in all runs together is not repeated."""
MOST_MUTATIONS: Final = 40
_MUTATION_SECONDS: Final = 300.0
"""Limits for mutations that are to make each new test fail."""
_SAMPLE: Final = 10
_SAMPLE_SECONDS: Final = 20.0
"""Limits for mutations that only measure the share that new tests detect."""
_SLOWER: Final = 10.0
_LEAST_SECONDS: Final = 15.0
"""Time limit of a mutation, as a multiple of the run without it; mutated loops may not end."""
MORE_RUNS: Final = 10
_MORE_RUNS_SECONDS: Final = 20.0
"""Limits for additional runs of new tests alone."""
_ROUNDS: Final = 3
_MOST_FILES: Final = 5
_TEST_BYTES: Final = 64 * 1024
_TEST_NAMES: Final = (
    re.compile(r"^\s*(?:async )?def (test\w*)"),
    re.compile(r"^\s*(?:it|test)(?:\.\w+)?\(\s*(['\"`])(?P<name>.+?)\1"),
    re.compile(r"^func (Test\w+)\("),
    re.compile(r"^\s*(?:async )?fn (\w+)\(\)"),
)
# With any of these characters, a shell reads more in a command than a list of words.
_NEVER: Final = re.compile(r"[;&|<>`$(){}\n]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutation:
    """File with a reverted hunk or a removed line."""

    path: str
    what: str
    content: bytes | None


class Experiment:
    """Clean room with a check runner. Created by `trial`."""

    def __init__(self, room: CleanRoom, runner: CheckRunner) -> None:
        self._room = room
        self._runner = runner
        self.held: tuple[OwnFile, ...] = ()
        """Changed files that belong to the check, as far as runs have shown."""
        self._printed: set[str] = set()
        """Tests reported as failed in a passing run; such reports prove nothing."""
        self.mutant_seconds: float | None = None
        """Time limit of a run with a mutation."""
        self.mutants: dict[str, Any] | None = None
        """Mutations of `can_fail`: how many were `tried` and `killed`, and by `tests` the one that made each fail."""

    @property
    def change(self) -> TreeDiff:
        """Change that is checked and would be applied."""
        return self._room.change

    @property
    def directory(self) -> Path:
        """Session's worktree, for reading."""
        return self._room.worktree.path

    async def changed(self) -> dict[str, str]:
        """Return the files that the session changed, with `A`, `M`, `D` or `T`."""
        return await _blocking(lambda: self._room.changed(self._room.base, self._room.now))

    async def own_files(self) -> tuple[OwnFile, ...]:
        """Return the files of the check among them, by name."""
        return await _blocking(lambda: own_files_in(self._files()))

    def _files(self, command: str = "") -> ChangedFiles:
        room = self._room
        return ChangedFiles(
            changed=room.changed(room.base, room.now),
            before=room.files(room.base),
            after=room.files(room.now),
            links_before=room.links(room.base),
            links_after=room.links(room.now),
            content_before=cache(lambda path: room.content(room.base, path)),
            content_after=cache(lambda path: room.content(room.now, path)),
            naming=cache(lambda word: room.naming(room.base, word)),
            modules=installed_modules(command, self._runner.programs),
            installed=room.installed,
            programs=self._runner.programs,
        )

    async def before(self, command: str) -> CheckResult:
        """Run the check on the code before the session."""
        return await self._at(self._room.base, command)

    async def now(self, command: str) -> CheckResult:
        """Run the check on the whole change, including its tests."""
        return await self._at(self._room.now, command)

    async def after(
        self, command: str, reads: Sequence[str] | None = None, *, planned: Collection[str] = ()
    ) -> CheckResult:
        """Run the check on the change, with the previous versions of the check's files but `planned` ones.

        `reads` lists the files that the check opened before the change. If a run shows that more files belong to the
        check, it is repeated without their changes.
        """
        room, files = self._room, await _blocking(lambda: self._files(command))
        held = {one.path: one for one in await self._find_held(files, command, reads)}
        rounds = 0
        while True:
            rounds += 1
            back = as_before([one for path, one in held.items() if path not in planned], room.base)
            tree = await _blocking(lambda back=back: room.mixed(room.now, back))  # type: ignore[misc]
            result = await self._at(tree, command)
            found = await self._find_held(files, command, result.reads)
            # A file that this run reveals may name others, which the next run reveals.
            fresh = {one.path: one for one in found if one.path not in held}
            held |= fresh
            if not fresh or rounds == _ROUNDS:
                self.held = tuple(held[path] for path in sorted(held))
                return result

    async def find_held(self, command: str, reads: Sequence[str] | None) -> None:
        """Set `held` from a run of the check."""
        self.held = await self._find_held(await _blocking(lambda: self._files(command)), command, reads)

    async def _find_held(self, files: ChangedFiles, command: str, reads: Sequence[str] | None) -> tuple[OwnFile, ...]:
        return await _blocking(lambda: files_of_check(files, command, self._runner.folder, reads))

    async def edited(self, *, new_helpers: bool = False, planned: Collection[str] = ()) -> list[OwnFile]:
        """Return the files of `held` with other changes than added tests.

        `new_helpers` also allows new files that control how tests run, such as a `conftest.py`; `planned` files may
        change.
        """
        room, found = self._room, list[OwnFile]()
        files = await _blocking(lambda: room.files(room.base))
        for file in self.held:
            helps = new_helpers and own_kind(file.path) == "how" and not is_installed(file.path)
            helps = helps and not shadows(file.path, files)
            if file.path in planned or (file.status == "A" and (file.kind == "test" or helps)):
                continue
            if file.kind == "test" and file.status == "M":
                patch = await _blocking(lambda path=file.path: room.patch(room.base, room.now, path))  # type: ignore[misc]
                kinds = {line.kind for one in read_diff(patch) for line in one.lines}
                if "add" in kinds and "remove" not in kinds:  # neither: a binary file, or only the mode changed
                    continue
            found.append(file)
        return found

    @property
    def room_path(self) -> Path:
        """Directory in which commands run, for reading what they wrote."""
        return self._room.path

    async def both(self, path: str) -> tuple[bytes | None, bytes | None]:
        """Return the content of a file before the session and now."""
        room = self._room
        return await _blocking(lambda: (room.content(room.base, path), room.content(room.now, path)))

    async def with_files(
        self, place: str, command: str, files: Mapping[str, bytes], *, allowed_as: str, timeout: float
    ) -> CheckResult:
        """Run a command on the code `before` the session or after it, with other files added."""
        room = self._room
        tree = await _blocking(lambda: room.mixed(room.base if place == "before" else room.now, files))
        return await self._at(tree, command, allowed_as=allowed_as, timeout=timeout)

    async def added_tests(self) -> dict[str, str]:
        """Return the test files that the session added, with their text, for other candidates."""
        room = self._room
        added = [file.path for file in await self.own_files() if file.kind == "test" and file.status == "A"]

        def read() -> dict[str, str]:
            found: dict[str, str] = {}
            for path in added[:_MOST_FILES]:
                with suppress(UnicodeDecodeError):
                    content = room.content(room.now, path) or b""
                    found |= {path: content.decode()} if len(content) <= _TEST_BYTES else {}
            return found

        return await _blocking(read)

    async def with_tests(self, command: str, tests: Mapping[str, str]) -> CheckResult:
        """Run another candidate's tests on the change: alone if the check accepts files, otherwise with all tests."""
        room = self._room
        put = {path: text.encode() for path, text in tests.items()}
        tree = await _blocking(lambda: room.mixed(room.now, put))
        narrow = narrowed(command, [*tests], self._runner.folder)
        return await self._at(tree, narrow or command, allowed_as=command)

    async def tests_that_fail(self, command: str, reads: Sequence[str] | None) -> dict[str, Any]:
        """Return tests that have to fail (`path`, `text`), and which of them do on the code before (`names`)."""
        room, word = self._room, f"z{uuid.uuid4().hex[:7]}"  # of the last tests, which see what others loaded
        files = await _blocking(lambda: room.files(room.base))
        made = failing_tests(word, [*(reads or ()), *files])
        if made is None:
            return {"names": []}
        path, text = made
        # Elsewhere its import would fail, and so the whole file.
        if path.endswith(".py") and await _blocking(lambda: bool(room.naming(room.base, "hypothesis"))):
            text += _FAILING["property"].format(word)
        tree = await _blocking(lambda: room.mixed(room.base, {path: text.encode()}))
        seen = await self._at(tree, command)
        return {"path": path, "text": text, "names": [one.name for one in seen.failures if word in one.name]}

    async def still_fail(self, command: str, tests: Mapping[str, Any]) -> Verdict:
        """Verify that tests that have to fail do so with the change, which otherwise decides what its tests say."""
        names, room = {*tests["names"]}, self._room
        if not names:
            return Verdict()
        path, text = tests["path"], tests["text"]
        if not path.endswith(".py"):  # each file of tests has its own process
            changed = [one for one in await self.changed() if one.endswith((".js", ".cjs")) and own_kind(one) is None]
            folder = posixpath.dirname(path)
            loaded = (json.dumps(f"./{posixpath.relpath(one, folder)}") for one in changed)
            text += "".join(f"try {{ require({one}); }} catch {{}}\n" for one in loaded)
        back = {**as_before(self.held, room.base), path: text.encode()}
        tree = await _blocking(lambda: room.mixed(room.now, back))
        seen = await self._at(tree, command)
        missing = sorted(names - seen.failed_names)
        what = "Tests that Helmsman wrote to fail do so with this change too."
        if missing:
            what = (
                f"With this change, tests pass that Helmsman wrote to fail; it decides their results: {named(missing)}."
            )
        return verdict([Evidence(ok=not missing, what=what, detail=seen.tail)])

    async def remarks(self, reads: Sequence[str] | None) -> list[str]:
        """Return remarks on files that may belong to the check, for a person."""
        room = self._room

        def look() -> list[str]:
            added = [
                (file.path, line.after or 0, line.text[1:])
                for file in read_diff(room.patch(room.base, room.now))
                for line in file.lines
                if line.kind == "add"
            ]
            return remarks(self._files(), {one.path for one in self.held}, reads, added)

        return await _blocking(look)

    async def _at(
        self, tree: str, command: str, *, allowed_as: str | None = None, timeout: float | None = None
    ) -> CheckResult:
        room, runner = self._room, self._runner
        await runner.allow(allowed_as or command)  # before anything runs
        # The room is new, or a run has changed an installed file.
        if not await _blocking(lambda: room.put(tree)):
            await _blocking(room.begin)
            installed = await runner.install(room.path)
            if installed is not None and not installed.passed:
                raise WorktreeError(
                    f"The set-up command of the repository failed in the clean room of a check: {installed.output[-500:]}"
                )
            await _blocking(room.keep_installed)
            await _blocking(lambda: room.put(tree))
        result = await runner.run(command, room.path, allowed_as=allowed_as, timeout=timeout)
        reads = await _blocking(room.reads)
        output = result.output
        for path in [] if result.passed else files_without_names(output, room.path)[:_MOST_FILES]:
            # Without network, Node's runner cannot relay a test file's output, so the file is run directly.
            one = await runner.run(shlex.join(["node", path]), room.path, allowed_as=allowed_as or command)
            output += f"\n{one.output}"
        return replace(result, output=output, reads=reads)

    # --- new tests ---------------------------------------------------------------------------------------------------

    async def steady(self, command: str, runs: int = RUNS) -> tuple[Verdict, CheckResult]:
        """Verify that the session's tests pass on every run; also return the last result."""
        results = [await self.now(command) for _ in range(runs)]
        self._printed |= {
            failure.name for result in results if result.passed for failure in failed_tests(result.output)
        }
        passed = [result.passed for result in results]
        told = [Evidence(ok=result.passed, what=f"{result.in_words()}.", detail=result.tail) for result in results]
        if any(passed) and not all(passed):
            told.append(Evidence(ok=False, what=_flaky(results)))
        return verdict(told), results[-1]

    async def can_fail(
        self,
        command: str,
        targets: Sequence[CitedLines] = (),
        base: str | None = None,
        reads: Sequence[str] | None = None,
    ) -> Verdict:
        """Verify that each of the session's new tests fails reliably on wrong code.

        Tries the code of a commit (`base`), if given, the code before the change, each hunk reverted, then small
        mutations of the `targets` and of the rest of their files, one at a time. Without targets, files among `reads`
        that the new tests name are used. Where tests have no names that can be read, one of them has to fail.
        """
        room, changed = self._room, await self.changed()
        tests = [file.path for file in await self.own_files() if file.kind == "test" and file.status != "D"]
        names = await _blocking(lambda: _new_tests(room, tests))
        if not tests:
            return verdict([Evidence(ok=False, what="There is no new test.")])
        code = [path for path in changed if own_kind(path) is None]
        if not code and not targets:
            targets = await _blocking(lambda: _named_by_tests(room, tests, reads or ()))
        proof = _Proof(self, command, await self._narrowed(command, tests), tests, names)
        if (flaky := await proof.repeat()) is not None:
            return verdict([flaky])
        trees: list[tuple[str, Callable[[], str]]] = []
        if base is not None:
            trees.append((f"the code of {base[:12]}", lambda: self._with_code_of(base)))
        if code:
            old = dict.fromkeys(code, room.base)
            trees.append(("the code before the change", lambda: room.mixed(room.now, old)))
        mutations = await _blocking(lambda: [*islice(_mutations(room, code, targets), MOST_MUTATIONS)])
        trees += [
            (one.what, lambda one=one: room.mixed(room.now, {one.path: one.content}))  # type: ignore[misc]
            for one in mutations
        ]
        began = time.monotonic()
        for what, make in trees:
            seconds = time.monotonic() - began
            # Once each test has failed, a sample of the others is enough to measure their share.
            if proof.is_done and (proof.tried_count >= _SAMPLE or seconds > _SAMPLE_SECONDS):
                break
            if seconds > _MUTATION_SECONDS:
                break
            if (flaky := await proof.try_(await _blocking(make), what)) is not None:
                return verdict([flaky])
        self.mutants = proof.as_dict()
        return verdict(proof.evidence(has_mutations=bool(code or mutations)))

    def _with_code_of(self, commit: str) -> str:
        """Return the session's tree with all files except the check's from a commit."""
        room, tree = self._room, self._room.tree_of(commit)
        return room.mixed(room.now, {path: tree for path in room.changed(tree, room.now) if own_kind(path) is None})

    async def _narrowed(self, command: str, tests: Sequence[str]) -> str | None:
        """Return the check for the new tests alone, if it accepts files and passes; otherwise None."""
        narrow = narrowed(command, tests, self._runner.folder)
        if narrow is None:
            return None
        # Some tests pass only after others.
        result = await self._at(self._room.now, narrow, allowed_as=command)
        return narrow if result.passed else None

    async def run_narrow(self, tree: str | None, command: str, narrow: str | None) -> CheckResult:
        """Run a check, or its part for the new tests, on a tree, by default the session's."""
        tree = self._room.now if tree is None else tree
        return await self._at(tree, narrow or command, allowed_as=command, timeout=self.mutant_seconds)

    def hits(self, result: CheckResult, tests: Sequence[str], names: Sequence[str]) -> set[str]:
        """Return the new tests that failed in a run."""
        return {
            failure.name
            for failure in result.failures
            # A test that fails because something is missing would fail for any code.
            if not_checked(1, failure.message) is None
            and _is_new(failure.name, tests, names)
            and failure.name not in self._printed
        }


class _Proof:
    """Proof by running new tests on wrong code, and on the right code in between."""

    def __init__(
        self, checks: Experiment, command: str, narrow: str | None, tests: Sequence[str], names: Sequence[str]
    ) -> None:
        self._checks, self._command = checks, command
        self.narrow = narrow
        self._tests, self._names = tests, names
        # A runner prints such a name only with its placeholders replaced.
        self._missing = {name for name in names if not _PLACEHOLDER.search(name)} if _are_counted(tests) else set()
        self._needs_one = not self._missing
        self._killers: dict[str, str] = {}
        self._proofs: list[Evidence] = []
        self._survivors: list[Evidence] = []
        self.tried_count = 0
        self._killed = 0

    @property
    def is_done(self) -> bool:
        """Return whether each new test has failed."""
        return not self._missing and not self._needs_one

    def as_dict(self) -> dict[str, Any]:
        return {"tried": self.tried_count, "killed": self._killed, "tests": self._killers}

    def evidence(self, *, has_mutations: bool) -> list[Evidence]:
        """Return the proofs, and the missing ones."""
        if not self._proofs:
            none = [] if has_mutations else [Evidence(ok=False, what=_NOTHING_NAMED)]
            never = Evidence(ok=False, what="No new test was seen to fail, whatever was wrong with the code.")
            return [*self._survivors, *none, never]
        share = f"Of {self.tried_count} mutants of the code, the new tests killed {self._killed}."
        told = [*self._proofs, Evidence(ok=True, what=share)]
        if self._missing:
            what = f"Whatever was wrong with the code, these new tests passed: {named(sorted(self._missing))}."
            told.append(Evidence(ok=False, what=what))
        return told

    async def _run(self, tree: str | None = None) -> CheckResult:
        return await self._checks.run_narrow(tree, self._command, self.narrow)

    async def repeat(self) -> Evidence | None:
        """Run the new tests more often while that is quick; return evidence if one fails."""
        began = time.monotonic()
        results: list[CheckResult] = []
        # A check that cannot be narrowed runs all tests each time.
        most = MORE_RUNS if self.narrow is not None else 1
        while len(results) < most and time.monotonic() - began < _MORE_RUNS_SECONDS:
            results.append(await self._run())
            if not results[-1].passed:
                return Evidence(ok=False, what=_flaky(results), detail=results[-1].tail)
        self._checks.mutant_seconds = max(_LEAST_SECONDS, _SLOWER * max(one.seconds for one in results))
        return None

    async def try_(self, tree: str, against: str) -> Evidence | None:
        """Run the new tests on wrong code; return evidence only if they turn out to be flaky.

        A test that fails for the first time has to fail each time with this tree, and to pass each time without.
        """
        result = await self._run(tree)
        self.tried_count += 1
        hits = self._checks.hits(result, self._tests, self._names)
        # A mutated loop that does not end is noticed, too.
        self._killed += bool(hits) or result.exit_code is None
        if not hits:
            why = result.not_checked.why if result.not_checked is not None else "no new test fails"
            what = f"Against {against}: " + ("all pass." if result.passed else f"{why}.")
            self._survivors.append(Evidence(ok=not result.passed and result.not_checked is not None, what=what))
            return None
        # All of these have failed before, so there is nothing more to prove.
        if not self._needs_one and not self._matching(hits):
            return None
        for _ in range(RUNS - 1):
            right = await self._run()
            if not right.passed:
                return Evidence(ok=False, what=_flaky([right]), detail=right.tail)
            again = self._checks.hits(await self._run(tree), self._tests, self._names)
            if not hits & again:
                what = (
                    f"It is flaky: against {against} {named(sorted(hits))} failed once, and not when it was repeated."
                )
                return Evidence(ok=False, what=what, detail=result.tail)
            hits &= again
        what = f"Against {against} a new test fails, {RUNS} times of {RUNS}: {', '.join(sorted(hits)[:5])}."
        self._proofs.append(Evidence(ok=True, what=what, detail=result.tail))
        self._killers |= {name: against for name in hits if name not in self._killers}
        self._missing -= self._matching(hits)
        self._needs_one = False
        return None

    def _matching(self, hits: Collection[str]) -> set[str]:
        """Return the tests that have not failed before, among those that failed now."""
        return {name for name in self._missing if any(is_same_test(hit, name) for hit in hits)}


_PLACEHOLDER: Final = re.compile(r"\$\{|%[sdifjop#]|\$\w")
"""Parts of names that a runner replaces, as in `test.each`."""
_NOTHING_NAMED: Final = "Nothing says which lines are under test, so none could be changed."


def _are_counted(tests: Sequence[str]) -> bool:
    """Return whether names in these files are those of tests alone. In other languages, helpers look the same."""
    return all(PurePosixPath(path).suffix in _NAMED_TESTS for path in tests)


_NAMED_TESTS: Final = frozenset({".py", ".js", ".mjs", ".cjs", ".ts", ".mts", ".jsx", ".tsx"})


def _flaky(results: Sequence[CheckResult]) -> str:
    failed = sorted({name for result in results for name in result.failed_names})
    which = f": {named(failed)}" if failed else ""
    return f"It is flaky: of {len(results)} more run(s) {sum(one.passed for one in results)} passed{which}."


@asynccontextmanager
async def trial(runner: CheckRunner) -> AsyncIterator[Experiment]:
    """Create a clean room from the runner's worktree, for the length of the block.

    Raises:
        WorktreeError: The worktree is gone, or the room cannot be created.
    """
    # Entered and left on threads, because it runs git and copies files.
    opening = open_room(runner.worktree)
    room = await _blocking(opening.__enter__)
    try:
        yield Experiment(room, runner)
    finally:
        # A cancelled job must not leave its room behind.
        with anyio.CancelScope(shield=True):
            await _blocking(lambda: opening.__exit__(None, None, None))


async def steadily(run: Callable[[], Awaitable[CheckResult]], most: int = RUNS) -> CheckResult:
    """Run a check again while it is quick, until it has both passed and failed; return the first failed run, or the last."""
    began, results = time.monotonic(), [await run()]
    while (
        len(results) < most
        and len({one.passed for one in results}) == 1
        and time.monotonic() - began + results[-1].seconds < _REPEAT_SECONDS
    ):
        results.append(await run())
    shown = next((one for one in results if not one.passed), results[-1])
    return replace(shown, reads=results[0].reads, runs=len(results), passes=sum(one.passed for one in results))


async def _blocking(function: Callable[[], T]) -> T:
    return await anyio.to_thread.run_sync(function)


# --- tests that have to fail ------------------------------------------------------------------------------------------

_TABLES: Final[dict[str, dict[str, Any]]] = tomllib.loads(
    Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")
)
_FAILING: Final[Mapping[str, str]] = _TABLES["failing"]
_FAILING_FILES: Final = {".py": _FAILING["py"], ".js": _FAILING["js"], ".cjs": _FAILING["js"]}


def failing_tests(word: str, files: Iterable[str]) -> tuple[str, str] | None:
    """Return a file of tests that fail, next to the first test of these files and named as it is, with its text."""
    for path in files:
        pure = PurePosixPath(path)
        text = _FAILING_FILES.get(pure.suffix)
        if text is None or own_kind(path) != "test" or "test" not in pure.name.casefold():
            continue
        name = re.sub(r"(?<=test_)\w+|\w+(?=_test\.|\.test\.|\.spec\.)", word, pure.name, count=1)
        if name != pure.name and is_test_name(name):
            return str(pure.with_name(name)), text.format(word)
    return None


# --- narrowing -------------------------------------------------------------------------------------------------------


def narrowed(command: str, tests: Sequence[str], folder: str) -> str | None:
    """Limit a check to these test files, if its program accepts files: pytest, unittest, node, Jest, Vitest."""
    below = [path.removeprefix(f"{folder}/") for path in tests if not folder or path.startswith(f"{folder}/")]
    if _NEVER.search(command) or len(below) < len(tests):
        return None
    try:
        words = shlex.split(command)
    except ValueError:
        return None
    while words and re.fullmatch(r"\w+=.*", words[0]):
        words.pop(0)
    if not words:
        return None
    program, rest = PurePosixPath(words[0]).name, words[1:]
    if re.fullmatch(r"python[\d.]*", program) and rest[:1] == ["-m"] and len(rest) > 1:
        program, rest = rest[1], rest[2:]
    elif program in ("npx", "bunx") and rest:
        program, rest = rest[0], rest[1:]
    suffixes = {"pytest": (".py",), "py.test": (".py",), "unittest": (".py",)}
    taken = suffixes.get(program, (".js", ".mjs", ".cjs", ".ts", ".tsx", ".jsx"))
    files = [path for path in below if path.endswith(taken) and PurePosixPath(path).name != "conftest.py"]
    # These options take the next word, which is no file then.
    values = [
        word for before, word in zip(["", *rest], rest, strict=False) if before not in ("-p", "-c", "-k", "-m", "-o")
    ]
    plain = [word for word in values if not word.startswith("-") and word != "run"]
    fits = program in suffixes or program in ("jest", "vitest") or (program == "node" and "--test" in rest)
    # A command that names tests already would run them in addition.
    if not fits or plain or not files:
        return None
    # A name that begins with a dash would be read as an option.
    return f"{command} {shlex.join(f'./{path}' if path.startswith('-') else path for path in files)}"


def _named_by_tests(room: CleanRoom, tests: Sequence[str], reads: Sequence[str]) -> list[CitedLines]:
    """Return opened files that the new tests name: the probable code under test."""
    text = b" ".join(room.content(room.now, path) or b"" for path in tests)
    words = {*re.findall(r"\w+", text.decode("utf-8", "replace"))}
    found = [path for path in reads if own_kind(path) is None and PurePosixPath(path).stem in words]
    return [CitedLines(file=path) for path in found]


# --- new tests -------------------------------------------------------------------------------------------------------


def _new_tests(room: CleanRoom, tests: Sequence[str]) -> list[str]:
    """Return the names of tests in added lines."""
    found: list[str] = []
    for file in read_diff(room.patch(room.base, room.now, *tests)) if tests else ():
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


def _mutations(room: CleanRoom, code: Iterable[str], targets: Sequence[CitedLines]) -> Iterator[Mutation]:
    seen: set[tuple[str, bytes | None]] = set()
    for one in _all_mutations(room, [*code], targets):
        if (one.path, one.content) not in seen:
            seen.add((one.path, one.content))
            yield one


def _all_mutations(room: CleanRoom, code: Sequence[str], targets: Sequence[CitedLines]) -> Iterator[Mutation]:
    for path in code:
        yield from _hunks_taken_back(room, path)
    files: dict[str, bytes] = {}
    named_paths = (inside(room.worktree.path, place.file) for place in targets)
    for path in (*code, *(one for one in named_paths if one is not None)):
        content = room.content(room.now, path)
        if content is not None and own_kind(path) is None:
            files[path] = content
    for mutate in (lines_taken_out, operators_changed):
        for place in targets:
            cited = inside(room.worktree.path, place.file)
            if cited in files:
                yield from mutate(cited, files[cited], place.lines)
    rest = [
        mutate(path, content, None)
        for path, content in files.items()
        for mutate in (operators_changed, lines_taken_out)
    ]
    # In turns, so that the limit on mutations cuts no file off.
    for row in zip_longest(*rest):
        yield from (one for one in row if one is not None)


def _hunks_taken_back(room: CleanRoom, path: str) -> Iterator[Mutation]:
    before, after = room.content(room.base, path), room.content(room.now, path)
    if before is None or after is None:
        if after is not None:
            yield from lines_taken_out(path, after, None)
        return
    old, new = _lines(before), _lines(after)
    for file in read_diff(room.patch(room.base, room.now, path)):
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


_COMMENTS: Final = (b"#", b"//", b"/*", b"*")


def lines_taken_out(path: str, content: bytes, lines: tuple[int, int] | None) -> Iterator[Mutation]:
    """Yield a file with one of the lines removed at a time, from the last: the last line of a block usually matters
    most.

    If Python needs a statement there, `pass` replaces the line.
    """
    text = _lines(content)
    first, last = lines or (1, len(text))
    skipped = _docstrings(path, content)
    for number in range(min(last, len(text)), max(first, 1) - 1, -1):
        line = text[number - 1]
        if number in skipped or not re.search(rb"\w", line) or line.lstrip().startswith(_COMMENTS):
            continue
        left = b"".join([*text[: number - 1], *text[number:]])
        if path.endswith(".py") and not _parses(left):
            indent = line[: len(line) - len(line.lstrip())]
            left = b"".join([*text[: number - 1], indent + b"pass\n", *text[number:]])
            if not _parses(left):
                continue
        yield Mutation(path=path, what=f"{path} without line {number}", content=left)


_OPERATORS: Final = tuple(
    (re.compile(pattern.encode()), put.encode()) for pattern, put in _TABLES["operators"]["changes"]
)
_PER_LINE: Final = 2


def operators_changed(path: str, content: bytes, lines: tuple[int, int] | None) -> Iterator[Mutation]:
    """Yield a file with an operator, a constant or a returned value of one line changed."""
    text = _lines(content)
    first, last = lines or (1, len(text))
    skipped = _docstrings(path, content)
    for number in range(max(first, 1), min(last, len(text)) + 1):
        line = text[number - 1]
        if number in skipped or line.lstrip().startswith(_COMMENTS):
            continue
        changed = (pattern.sub(put, line, count=1) for pattern, put in _OPERATORS if pattern.search(line))
        for other in islice(dict.fromkeys(one for one in changed if one != line), _PER_LINE):
            whole = b"".join([*text[: number - 1], other, *text[number:]])
            if not path.endswith(".py") or _parses(whole):
                shown = other.strip().decode("utf-8", "replace")[:60]
                yield Mutation(path=path, what=f"{path} with line {number} as `{shown}`", content=whole)


def _docstrings(path: str, content: bytes) -> frozenset[int]:
    """Return the numbers of lines of docstrings in Python: no test can notice a change of them."""
    if not path.endswith(".py"):
        return frozenset()
    try:
        nodes = [*ast.walk(ast.parse(content))]
    except (SyntaxError, ValueError, RecursionError):
        return frozenset()
    strings = (node.value for node in nodes if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
    return frozenset(number for one in strings for number in range(one.lineno, (one.end_lineno or one.lineno) + 1))


def _lines(content: bytes) -> list[bytes]:
    """Split into lines as git counts them."""
    return re.findall(rb"[^\n]*\n|[^\n]+", content)


def _parses(content: bytes) -> bool:
    try:
        ast.parse(content)
    except (SyntaxError, ValueError, RecursionError):
        return False
    return True
