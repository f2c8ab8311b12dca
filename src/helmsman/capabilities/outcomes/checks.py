"""Find and run checks: commands of the repository that test whether it works.

A command needs consent before its first run (`Consent`). A runner belongs to one task, and consent holds for the same
words in it. A check runs in a clean room, in the sandbox of its session, with a time limit.
"""

from __future__ import annotations

import re
import shutil
import tomllib
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import anyio.to_thread

from helmsman.base.caller_context import environment
from helmsman.base.json_values import json_object
from helmsman.base.sanitize import word_set
from helmsman.base.structs import replace
from helmsman.capabilities.outcomes.failures import TestFailure, error_lines, failed_tests, missing_program, not_checked
from helmsman.capabilities.repository_commands import CommandAllowance, CommandResult, run_command
from helmsman.capabilities.worktree_setup import set_up_with
from helmsman.errors import CheckRefused, InvalidInput
from helmsman.git.command import find_git
from helmsman.git.patches import named
from helmsman.settings import CONFIG_NAME

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from helmsman.capabilities.outcomes.failures import NotChecked
    from helmsman.capabilities.outcomes.work import Work
    from helmsman.capabilities.repository_commands import Consent
    from helmsman.git.worktree import Worktree
    from helmsman.sessions.session import Session
    from helmsman.settings import Settings

CHECK_SECONDS: Final = 900.0
SHOWN_CHARS: Final = 4000
_VARIABLES: Final = {
    "CI": "1",  # some runners otherwise watch for changes and never exit
    "NO_COLOR": "1",
    "PYTHONDONTWRITEBYTECODE": "1",  # bytecode files do not notice changes within a second
}


@dataclass(frozen=True, kw_only=True)
class CheckResult(CommandResult):
    """Result of a check. Its output is untrusted: a program of the repository wrote it.

    `reads` lists the files it opened, in order of the first read; None if unknown. A quick check runs `runs` times, of
    which `passes` pass; this is the first run that failed, or the last one.
    """

    reads: tuple[str, ...] | None = None
    runs: int = 1
    passes: int | None = None

    @property
    def passed(self) -> bool:
        """Return whether it exited with 0 and ran at least one check."""
        return self.exit_code == 0 and self.not_checked is None

    @property
    def is_flaky(self) -> bool:
        """Return whether it passed only some of the times."""
        return self.passes is not None and 0 < self.passes < self.runs

    @property
    def tail(self) -> str:
        """End of the output, limited for display."""
        return self.output.strip()[-SHOWN_CHARS:]

    @cached_property
    def failures(self) -> tuple[TestFailure, ...]:
        """Failed tests, if the format is known."""
        return () if self.passed else failed_tests(self.output)

    @cached_property
    def errors(self) -> tuple[str, ...]:
        """Normalized lines that look like errors, if no failed test is known."""
        return () if self.passed or self.failures else error_lines(self.output)

    @cached_property
    def not_checked(self) -> NotChecked | None:
        """Why the result is meaningless, if so: something is missing, or no test ran."""
        return not_checked(self.exit_code, self.output)

    @property
    def missing_program(self) -> str | None:
        """Line that reports a missing program of the check, if any."""
        return missing_program(self.exit_code, self.output)

    @property
    def failed_names(self) -> frozenset[str]:
        return frozenset(failure.name for failure in self.failures)

    def in_words(self) -> str:
        """Return a summary, such as: `make test` failed with exit code 2 after 1.4 s (2 tests failed)."""
        if self.is_flaky:
            names = f": {named(sorted(self.failed_names))}" if self.failures else ""
            return f"`{self.command}` is flaky, as it passed {self.passes} of {self.runs} times{names}"
        if self.passed:
            return f"`{self.command}` passed in {self.seconds:.1f} s"
        how = "did not end in time" if self.exit_code is None else f"failed with exit code {self.exit_code}"
        count = f" ({len(self.failures)} failed)" if self.failures else ""
        return f"`{self.command}` {how} after {self.seconds:.1f} s{count}"

    def as_dict(self) -> dict[str, Any]:
        told: dict[str, Any] = {
            "command": self.command,
            "passed": self.passed,
            "exitCode": self.exit_code,
            "seconds": round(self.seconds, 1),
            "output": self.tail,
        }
        if self.failures:
            told["failures"] = [{"name": failure.name, "message": failure.message} for failure in self.failures]
        if self.errors:
            told["errors"] = list(self.errors[:20])
        if self.not_checked is not None:
            told["notChecked"] = self.not_checked.why
        return told


class CheckRunner:
    """Runner for the checks of a worktree, each with consent."""

    def __init__(
        self,
        worktree: Worktree,
        consent: Consent,
        allowance: CommandAllowance,
        *,
        settings: Settings,
        env: Mapping[str, str] | None = None,
        timeout: float = CHECK_SECONDS,
        set_up: str | None = None,
    ) -> None:
        self.worktree = worktree
        self.set_up = set_up
        """Set-up command of the worktree, which installs dependencies of checks, if it has one."""
        self.folder = allowance.folder
        self._consent = consent
        self._allowance = replace(allowance, writable_roots=())  # an agent could have written there
        self._settings = settings
        self._env = env
        self._timeout = timeout
        self._allowed: set[str] = set()

    async def allow(self, command: str, why: str = "A check of the repository.") -> None:
        """Ask for consent to a command, unless it was given before.

        Raises:
            CheckRefused: Consent was refused.
            InvalidInput: The command is empty.
        """
        if not command.strip():
            raise InvalidInput("A check is a command. Name one, for example `make test`.", parameter="check")
        if command in self._allowed:
            return
        refused = await self._consent(command, self.worktree, self._allowance, why)
        if refused is not None:
            raise CheckRefused(
                f"The check `{command}` was not run: {refused}. Allow it with a rule, or name another check.",
                command=command,
            )
        self._allowed.add(command)

    @property
    def programs(self) -> str | None:
        """PATH of checks."""
        return (environment() if self._env is None else self._env).get("PATH")

    async def install(self, room: Path) -> CommandResult | None:
        """Run the set-up command in a clean room, if there is one; it was approved for the worktree."""
        if self.set_up is None:
            return None
        # At the root, where the worktree was set up, although the check may have a directory.
        return await self._run(self.set_up, room, self._timeout, replace(self._allowance, folder=""))

    async def run(
        self, command: str, room: Path, *, allowed_as: str | None = None, timeout: float | None = None
    ) -> CheckResult:
        """Run a command in a clean room, with consent. `allowed_as` is the check that it is part of.

        Raises:
            CheckRefused: Consent was refused.
            Unsupported: No suitable sandbox is available.
        """
        await self.allow(allowed_as or command)
        done = await self._run(command, room, min(self._timeout, timeout or self._timeout), self._allowance)
        return CheckResult(**asdict(done))

    async def _run(self, command: str, room: Path, timeout: float, allowance: CommandAllowance) -> CommandResult:
        return await run_command(
            command, room, allowance, settings=self._settings, env=self._env, timeout=timeout, more=_VARIABLES
        )


# --- Find the check of a repository from its files, without running any of its code -----------------------------------

# The result states its reason. Like any command of a repository, it needs consent before it runs.

_READ_BYTES: Final = 512 * 1024
_MAKEFILES: Final = ("GNUmakefile", "makefile", "Makefile")
_MAKE_TARGET: Final = re.compile(r"^(test|tests|check)[ \t]*:(?![=:])", re.MULTILINE)
# `npm init` writes a test script with these words, and it always fails.
_PLACEHOLDER: Final = "no test specified"
_LOCK_FILES: Final = (
    ("pnpm-lock.yaml", "pnpm test"),
    ("yarn.lock", "yarn test"),
    ("bun.lock", "bun run test"),
    ("bun.lockb", "bun run test"),
)


@dataclass(frozen=True, slots=True)
class FoundCheck:
    """Command that checks the repository, and the reason for this choice."""

    command: str
    why: str


def find_check(directory: Path) -> FoundCheck | None:
    """Return the check for a repository root; None if it is unclear. Reads files; blocks."""
    return next((found for find in _WAYS for found in find(directory)), None)


def _make(directory: Path) -> Iterator[FoundCheck]:
    for name in _MAKEFILES:  # in the order of make, which uses the first one
        text = _text(directory / name)
        if text is None:
            continue
        found = _MAKE_TARGET.search(text)
        if found is not None:
            yield FoundCheck(f"make {found[1]}", f"{name} has a target {found[1]}.")
        # make would use this file, whether it has such a target or not.
        return


def _python(directory: Path) -> Iterator[FoundCheck]:
    runner = "python -m pytest"
    project = _toml(directory / "pyproject.toml")
    tool = project.get("tool")
    if isinstance(tool, dict) and isinstance(tool.get("pytest"), dict):
        yield FoundCheck(runner, "pyproject.toml configures pytest.")
        return
    for name, section in (("pytest.ini", "[pytest]"), ("tox.ini", "[pytest]"), ("setup.cfg", "[tool:pytest]")):
        if section in (_text(directory / name) or ""):
            yield FoundCheck(runner, f"{name} configures pytest.")
            return
    if (directory / "tox.ini").is_file():
        yield FoundCheck("tox", "There is a tox.ini.")
    tests = [folder for folder in ("tests", "test") if (directory / folder).is_dir()]
    places = [directory, *(directory / folder for folder in tests)]
    files = [path for place in places for path in [*place.glob("test_*.py"), *place.glob("*_test.py")]]
    if files or (directory / "conftest.py").is_file():
        where = (
            f"There are tests for Python ({files[0].relative_to(directory)})." if files else "There is a conftest.py."
        )
        yield FoundCheck(runner, where)


def _node(directory: Path) -> Iterator[FoundCheck]:
    scripts = (json_object(_text(directory / "package.json")) or {}).get("scripts")
    script = scripts.get("test") if isinstance(scripts, dict) else None
    if not isinstance(script, str) or not script.strip() or _PLACEHOLDER in script:
        return
    # The lock file shows which package manager the project uses.
    lock, command = next(
        ((lock, command) for lock, command in _LOCK_FILES if (directory / lock).is_file()), ("", "npm test")
    )
    yield FoundCheck(command, "package.json has a script test" + (f", and there is a {lock}." if lock else "."))


_BY_FILE: Final = {
    "Cargo.toml": "cargo test",
    "go.mod": "go test ./...",
    "gradlew": "./gradlew test",
    "mvnw": "./mvnw test",
    "pom.xml": "mvn test",
}


def _others(directory: Path) -> Iterator[FoundCheck]:
    for name, command in _BY_FILE.items():
        if (directory / name).is_file():
            yield FoundCheck(command, f"There is a {name}.")


_WAYS: Final[tuple[Callable[[Path], Iterator[FoundCheck]], ...]] = (_make, _python, _node, _others)
"""Makefile first: `make test` states the author's intention."""


def _text(path: Path) -> str | None:
    try:
        # A link could lead out of the repository.
        if path.is_symlink() or not path.is_file() or path.stat().st_size > _READ_BYTES:
            return None
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None


def _toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(_text(path) or "")
    except (ValueError, RecursionError):
        return {}


_FIRST_WORD: Final = re.compile(r"\s*([A-Za-z0-9_.+-]+)(?=\s|$)")
_BUILT_IN: Final = word_set(
    "if for while case until test true false exit cd set export unset eval exec command trap umask ."
)


async def find_the_check(work: Work) -> dict[str, str]:
    """Return the command that verifies the job, and its directory.

    A given check runs in the given directory; otherwise the check of the nearest directory with one is used, up to the
    root of the repository.

    Raises:
        InvalidInput: There is no check, or its program is not installed.
    """
    wanted = work.wanted

    def look() -> dict[str, str]:
        git = find_git(Path(wanted.directory), work.helm.settings.state_dir)
        root = None if git is None else git.work_tree.resolve()
        place = Path(wanted.directory).resolve()
        if root is None or not place.is_relative_to(root):
            root = place
        return check_of(root, place, wanted.check, work.helm.environment)

    check: dict[str, str] = await work.once("check", partial(anyio.to_thread.run_sync, look))
    return check


def check_of(root: Path, place: Path, given: str | None, env: Mapping[str, str] | None) -> dict[str, str]:
    """Return the check of a directory in a repository: the given one, or the nearest up to its root. Blocks.

    Raises:
        InvalidInput: There is no check, or its program is not installed.
    """
    if given is not None:
        _require_program(given, root, env)
        return {"command": given, "why": "It was given.", "folder": _below(root, place)}
    for folder in (place, *place.parents):
        if (found := find_check(folder)) is not None:
            _require_program(found.command, root, env)
            return {"command": found.command, "why": found.why, "folder": _below(root, folder)}
        if folder == root:
            break
    raise InvalidInput(
        f"No command that runs tests was found in the files of {place}. Name one (check, on the shell --check), for example "
        "`make test`.",
        parameter="check",
    )


def _require_program(command: str, root: Path, env: Mapping[str, str] | None) -> None:
    """Reject a check without an installed program before the job begins.

    Commands that need a shell, or a program that a set-up command may install, are left to the first run of the check.

    Raises:
        InvalidInput: There is no such program.
    """
    first = _FIRST_WORD.match(command)
    if first is None or first[1] in _BUILT_IN or (root / CONFIG_NAME).is_file():
        return
    if shutil.which(first[1], path=(environment() if env is None else env).get("PATH")) is None:
        raise InvalidInput(
            f"`{first[1]}` is not installed, so the check `{command}` cannot run. Install it, or name another check.",
            parameter="check",
        )


def _below(root: Path, folder: Path) -> str:
    below = folder.relative_to(root).as_posix()
    return "" if below == "." else below


def runner_for(work: Work, session: Session, folder: str) -> CheckRunner:
    """Return a runner for a session's checks, in this directory of a clean room, with the session's permissions.

    Raises:
        InvalidInput: The session's worktree is gone.
    """
    if session.worktree is None:
        raise InvalidInput(f"The worktree of session {session.id} is gone, so nothing can be verified. Ask again.")
    return CheckRunner(
        session.worktree,
        work.consent(session),
        replace(CommandAllowance.of(session, work.helm.agents), folder=folder),
        settings=work.helm.settings,
        env=work.helm.environment,
        set_up=set_up_with(session.worktree),
    )
