"""What a turn did, beside what it said: its diff, the files it changed, the commands it ran, how its tests went.

It is worked out when the turn ends and kept with its task until the result expires, so that whoever asks gets it after any
restart, too. Everything here is pure.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from helmsman.base.redaction import redact, redact_value
from helmsman.base.shortening import cut
from helmsman.base.shown_text import shell_script
from helmsman.model.events import CommandExecution, FileChange
from helmsman.model.unified_diff import read_change
from helmsman.sessions.progress import read_tally
from helmsman.worktrees.changes import FileStat
from helmsman.worktrees.patch_stat import files_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from helmsman.model.events import ChangeKind, Item, PathChange
    from helmsman.model.unified_diff import FileKind

DIFF_LIMIT: Final = 1_000_000
_MOST_FILES: Final = 1000
_MOST_COMMANDS: Final = 500
_COMMAND_CHARS: Final = 2000
_KINDS: Final[dict[ChangeKind, FileKind]] = {"add": "added", "delete": "deleted", "update": "modified"}


@dataclass(frozen=True, slots=True, kw_only=True)
class RanCommand:
    """A command; without an exit code it was declined, or did not come to its end."""

    command: str
    exit_code: int | None = None
    declined: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TestCount:
    """What the last test run of a turn said of itself."""

    __test__ = False
    passed: int
    failed: int
    skipped: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOutcome:
    """What a turn did."""

    diff: str | None = None
    files: tuple[FileStat, ...] = ()
    commands: tuple[RanCommand, ...] = ()
    tests: TestCount | None = None


def outcome_of(items: Sequence[Item], diff: str | None = None) -> TaskOutcome:
    """What the items of a turn show. Where nobody told the diff of the whole, it is put together from its changes."""
    commands = [item for item in items if isinstance(item, CommandExecution)]
    return TaskOutcome(
        diff=diff or _diff_of(_changes(items)) or None,
        files=changed_files(items, diff),
        commands=tuple(
            RanCommand(
                command=cut(shell_script(one.command), _COMMAND_CHARS), exit_code=one.exit_code, declined=one.declined
            )
            for one in commands[-_MOST_COMMANDS:]
        ),
        tests=_tests(commands),
    )


def changed_files(items: Iterable[Item], diff: str | None = None) -> tuple[FileStat, ...]:
    """The files that a turn changed, each once. A diff tells what is left of all changes; else their lines are summed up."""
    if diff:
        return files_of(diff)[:_MOST_FILES]
    found: dict[str, FileStat] = {}
    for change in _changes(items):
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


def _changes(items: Iterable[Item]) -> Iterable[PathChange]:
    for item in items:
        if isinstance(item, FileChange) and item.status == "completed" and not item.declined:
            yield from item.changes


def _sum(before: int | None, more: int | None) -> int | None:
    return more if before is None else before if more is None else before + more


def _diff_of(changes: Iterable[PathChange]) -> str:
    """The changes one after another, each as a diff of its own."""
    parts: list[str] = []
    for change in changes:
        if change.diff is None:
            continue
        after = change.moved_to or change.path
        old = "/dev/null" if change.kind == "add" else f"a/{change.path}"
        new = "/dev/null" if change.kind == "delete" else f"b/{after}"
        lines = [line.text for line in read_change(change).lines]
        count = len(lines)
        if change.kind in ("add", "delete"):
            lines.insert(0, f"@@ -0,0 +1,{count} @@" if change.kind == "add" else f"@@ -1,{count} +0,0 @@")
        parts.append("\n".join([f"diff --git a/{change.path} b/{after}", f"--- {old}", f"+++ {new}", *lines, ""]))
    return "".join(parts)


def _tests(commands: Sequence[CommandExecution]) -> TestCount | None:
    for command in reversed(commands):
        tally = read_tally(command.output)
        if tally is not None and tally.unit != "percent":
            return TestCount(passed=tally.passed, failed=tally.failed, skipped=tally.skipped)
    return None


# --- as it is kept ---------------------------------------------------------------------------------------------------


def to_keep(outcome: TaskOutcome) -> dict[str, Any]:
    """As JSON, bounded, without secrets."""
    kept: dict[str, Any] = redact_value({**asdict(outcome), "diff": None})
    return {**kept, "diff": None if outcome.diff is None else cut(redact(outcome.diff), DIFF_LIMIT)}


def kept(content: Mapping[str, Any]) -> TaskOutcome:
    """As it was kept; what makes no sense counts as absent."""
    try:
        tests = content.get("tests")
        return TaskOutcome(
            diff=content.get("diff"),
            files=tuple(FileStat(**file) for file in content.get("files", ())),
            commands=tuple(RanCommand(**command) for command in content.get("commands", ())),
            tests=None if tests is None else TestCount(**tests),
        )
    except (AttributeError, TypeError):
        return TaskOutcome()
