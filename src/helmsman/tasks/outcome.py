"""Outcome of a turn besides its message: its diff, changed files, commands and test results.

It is computed when the turn ends and kept with its task until the result expires, so that it is available after any restart,
too. Everything here is pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Final

from helmsman.base.redaction import redact, redact_value
from helmsman.base.sanitize import shell_script
from helmsman.base.structs import Value, pack, replace, unpack_if_valid
from helmsman.base.truncate import cut
from helmsman.git.diff import FileKind, FileStat, files_of, read_change
from helmsman.model.change_diff import file_change_diff
from helmsman.model.events import AgentMessage, ChangeKind, CommandExecution, FileChange, Item, PathChange
from helmsman.sessions.progress import read_tally

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


TEXT_LIMIT: Final = 1_000_000
_MOST_FILES: Final = 1000
_MOST_COMMANDS: Final = 500
_COMMAND_CHARS: Final = 2000
_KINDS: Final[dict[ChangeKind, FileKind]] = {"add": "added", "delete": "deleted", "update": "modified"}


class RanCommand(Value, frozen=True, kw_only=True):
    """Command. Without an exit code it was declined or did not finish."""

    command: str
    exit_code: int | None = None
    declined: bool = False


class TestCount(Value, frozen=True, kw_only=True):
    """Result of the last test run of a turn."""

    # Keeps pytest from collecting the class.
    __test__ = False
    passed: int
    failed: int
    skipped: int


class TaskOutcome(Value, frozen=True, kw_only=True):
    """Outcome of a turn. `output` is the whole text of its agent. `report` is the result of a job, as data."""

    output: str | None = None
    diff: str | None = None
    files: tuple[FileStat, ...] = ()
    commands: tuple[RanCommand, ...] = ()
    tests: TestCount | None = None
    report: Mapping[str, Any] | None = None


def outcome_of(items: Sequence[Item], diff: str | None = None, directory: str | None = None) -> TaskOutcome:
    """Return the outcome from the items of a turn. Without a diff of the whole turn, one is built from its changes.

    Files are named relative to `directory`, if it is known.
    """
    commands = [item for item in items if isinstance(item, CommandExecution)]
    return TaskOutcome(
        output="\n\n".join(item.text for item in items if isinstance(item, AgentMessage) and item.text) or None,
        diff=diff or file_change_diff(one for one in _changes(items, directory) if one.diff is not None) or None,
        files=changed_files(items, diff, directory),
        commands=tuple(
            RanCommand(
                command=cut(shell_script(one.command), _COMMAND_CHARS), exit_code=one.exit_code, declined=one.declined
            )
            for one in commands[-_MOST_COMMANDS:]
        ),
        tests=_tests(commands),
    )


def changed_files(items: Iterable[Item], diff: str | None = None, directory: str | None = None) -> tuple[FileStat, ...]:
    """Return the files that a turn changed, each once. A diff has the net changes; without one, the lines of all changes are
    added.
    """
    if diff:
        return files_of(diff)[:_MOST_FILES]
    found: dict[str, FileStat] = {}
    for change in _changes(items, directory):
        path, before = change.moved_to or change.path, found.get(change.moved_to or change.path)
        stat = read_change(change) if change.diff is not None else change
        kind = "renamed" if change.moved_to else _KINDS[change.kind]
        found[path] = FileStat(
            path=path,
            old_path=change.path if change.moved_to else None if before is None else before.old_path,
            kind=kind if before is None or kind == "deleted" else before.kind,
            added=_sum(None if before is None else before.added, stat.added),
            removed=_sum(None if before is None else before.removed, stat.removed),
        )
    return tuple(found.values())[:_MOST_FILES]


def _changes(items: Iterable[Item], directory: str | None) -> Iterable[PathChange]:
    for item in items:
        if isinstance(item, FileChange) and item.status == "completed" and not item.declined:
            for change in item.changes:
                moved_to = None if change.moved_to is None else _seen_from(directory, change.moved_to)
                yield replace(change, path=_seen_from(directory, change.path), moved_to=moved_to)


def _seen_from(directory: str | None, path: str) -> str:
    inside = directory is not None and PurePath(path).is_relative_to(directory)
    return str(PurePath(path).relative_to(directory)) if inside and directory is not None else path


def _sum(before: int | None, more: int | None) -> int | None:
    return more if before is None else before if more is None else before + more


def _tests(commands: Sequence[CommandExecution]) -> TestCount | None:
    """Return the result of the newest test run. An aborted run is ignored: it did not reach all tests."""
    ended = (command for command in reversed(commands) if command.status in ("completed", "failed"))
    tallies = (read_tally(command.output) for command in ended)
    newest = next((tally for tally in tallies if tally is not None and tally.unit == "tests"), None)
    if newest is None or newest.total not in (None, newest.done):
        return None
    return TestCount(passed=newest.passed, failed=newest.failed, skipped=newest.skipped)


# --- as it is kept ---------------------------------------------------------------------------------------------------


def to_keep(outcome: TaskOutcome) -> Any:
    """Return the outcome as JSON, bounded and without secrets."""
    output, diff = (None if text is None else cut(redact(text), TEXT_LIMIT) for text in (outcome.output, outcome.diff))
    return redact_value(pack(replace(outcome, output=output, diff=diff)))


def kept(content: Mapping[str, Any]) -> TaskOutcome:
    """Read what `to_keep` returned; an empty outcome if it is something else."""
    return unpack_if_valid(content, TaskOutcome) or TaskOutcome()
