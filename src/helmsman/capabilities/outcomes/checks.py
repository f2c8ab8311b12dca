"""Run checks: commands of the repository that test whether it works.

A command needs consent before its first run (`Consent`). A runner belongs to one task, and consent holds for the same
words in it. A check runs in a clean room, in the sandbox of its session, with a time limit.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from helmsman.base.caller_context import environment
from helmsman.base.structs import replace
from helmsman.capabilities.outcomes.failures import TestFailure, error_lines, failed_tests, missing_program, not_checked
from helmsman.capabilities.repository_commands import CommandResult, run_command
from helmsman.errors import CheckRefused, InvalidInput

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from helmsman.capabilities.outcomes.failures import NotChecked
    from helmsman.capabilities.repository_commands import CommandAllowance, Consent
    from helmsman.model.worktree import Worktree
    from helmsman.settings import Settings

CHECK_SECONDS: Final = 900.0
SHOWN_CHARS: Final = 4000
_KEPT_CHARS: Final = 64 * 1024
_VARIABLES: Final = {
    "CI": "1",  # some runners otherwise watch for changes and never exit
    "NO_COLOR": "1",
    "PYTHONDONTWRITEBYTECODE": "1",  # bytecode files do not notice changes within a second
}


@dataclass(frozen=True)
class CheckResult:
    """Result of a check. Its output is untrusted: a program of the repository wrote it.

    `reads` lists the files it opened, in order of the first read; None if unknown.
    """

    run: CommandResult
    reads: tuple[str, ...] | None = None

    @property
    def command(self) -> str:
        return self.run.command

    @property
    def exit_code(self) -> int | None:
        """Exit code; None after a timeout."""
        return self.run.exit_code

    @property
    def passed(self) -> bool:
        """Return whether it exited with 0 and ran at least one check."""
        return self.run.passed and self.not_checked is None

    @property
    def output(self) -> str:
        return self.run.output

    @property
    def tail(self) -> str:
        """End of the output, limited for display."""
        return self.run.output.strip()[-SHOWN_CHARS:]

    @property
    def seconds(self) -> float:
        return self.run.seconds

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
        if self.passed:
            return f"`{self.command}` passed in {self.seconds:.1f} s"
        how = "did not end in time" if self.exit_code is None else f"failed with exit code {self.exit_code}"
        count = f" ({len(self.failures)} failed)" if self.failures else ""
        return f"`{self.command}` {how} after {self.seconds:.1f} s{count}"

    def kept(self) -> dict[str, Any]:
        """Return the JSON form for a step of a job."""
        return {**asdict(self.run), "output": self.run.output[-_KEPT_CHARS:], "reads": self.reads}

    @classmethod
    def of(cls, kept: Mapping[str, Any]) -> CheckResult:
        """Restore a result from a step of a job."""
        run = CommandResult(**{name: kept[name] for name in ("command", "exit_code", "output", "seconds")})
        return cls(run, None if kept["reads"] is None else tuple(kept["reads"]))

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
        return CheckResult(
            await self._run(command, room, min(self._timeout, timeout or self._timeout), self._allowance)
        )

    async def _run(self, command: str, room: Path, timeout: float, allowance: CommandAllowance) -> CommandResult:
        return await run_command(
            command, room, allowance, settings=self._settings, env=self._env, timeout=timeout, more=_VARIABLES
        )
