"""Reviews by agents that have none of their own: one is shown the diff, and asked for its findings as JSON.

Nothing is made of an answer that is not what was asked for, and a finding about lines that are not in the diff is dropped,
which the report says. Which lines those are is written down with the task, so that whoever asks later gets the same.
Functions here block where they look at a repository.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from helmsman import worktrees
from helmsman.agents.protocol import Finding, ReviewReport
from helmsman.agents.review_text import review_text
from helmsman.base.git import find_git
from helmsman.base.json_values import mapping, sequence
from helmsman.base.snapshot import scratch
from helmsman.capabilities.review_scope import before_commit, comparison, in_words
from helmsman.errors import InvalidInput, ReviewUnreadable
from helmsman.model.unified_diff import read_diff
from helmsman.worktrees.changes import compare

if TYPE_CHECKING:
    from collections.abc import Mapping

    from helmsman.model.options import ReviewTarget
    from helmsman.model.unified_diff import FileDiff

REVIEWED: Final = "reviewed"
"""The key in a task's metadata for what was to be reviewed."""
_DIFF_CHARS: Final = 200_000
"""How much of a diff is shown: about 50,000 tokens. Of files beyond that, the names are."""
_FILES_NAMED: Final = 200
_TITLES_NAMED: Final = 5
_FENCED: Final = re.compile(r"```(?:json)?[ \t]*\n(.*?)\n```", re.DOTALL)

_ASKED: Final = """\
You are the reviewer of the change below, in the repository {root}. Change nothing, and run nothing that changes something.
Read whatever files you need. Report what its author would want to fix: bugs, security, data loss, broken promises; nothing
about style, and nothing that the change has not brought. Findings that you are not sure of have a low confidence.

Answer with one JSON object and nothing else, no words around it:
{{"findings": [{{"title": "…", "body": "why it is wrong, and when", "priority": 0, "confidence": 0.9,
"file": "its path as in the diff", "startLine": 1, "endLine": 1}}],
"verdict": "patch is correct", "explanation": "…", "confidence": 0.8}}
priority: 0 drop everything, 1 urgent, 2 normal, 3 nice to have. confidence: 0 to 1. startLine and endLine: lines of the new
file that the diff shows. verdict: "patch is correct" or "patch is incorrect". No findings: an empty list.
"""


@dataclass(frozen=True, slots=True)
class Scope:
    """What is reviewed: the root of the repository, and the lines of each new file that the diff shows, as ranges."""

    root: str
    files: Mapping[str, tuple[tuple[int, int], ...]]

    def as_dict(self) -> dict[str, Any]:
        """For a task's metadata."""
        return {
            "root": self.root,
            "files": {path: [list(each) for each in lines] for path, lines in self.files.items()},
        }

    @classmethod
    def of(cls, kept: Any) -> Scope | None:
        """What was written down; None where that is nothing."""
        if not isinstance(kept, dict) or not isinstance(kept.get("root"), str):
            return None
        files = {
            str(path): tuple((int(first), int(last)) for first, last in lines)
            for path, lines in mapping(kept.get("files")).items()
        }
        return cls(kept["root"], files)

    def path(self, named: str) -> str | None:
        """A file of the diff as somebody names it; None if it is none of them."""
        root = Path(self.root)
        path = Path(named)
        if path.is_absolute() and path.is_relative_to(root):
            path = path.relative_to(root)
        found = path.as_posix()
        return found if found in self.files else None


def ask_for_review(
    directory: Path, target: ReviewTarget, instructions: str | None, state_dir: Path
) -> tuple[str, Scope]:
    """What an agent is asked for, and what it is shown.

    Raises:
        InvalidInput: The target has no diff.
        WorktreeError: Git cannot read it.
    """
    git = find_git(directory, state_dir)
    if target.kind == "custom" or git is None:
        raise InvalidInput(
            "This agent has no review of its own and is shown a diff, so that it needs to know of what. Give uncommitted, a "
            "branch or a commit, with the instructions beside it; or let codex review.",
            parameter="target",
        )
    if target.kind == "commit":
        with scratch(git) as view:
            changed = compare(view, before_commit(view, target.value), target.value)
    else:
        since = comparison(git, target.value) if target.kind == "base" else None
        changed = worktrees.diff_of_directory(directory, since, state_dir=state_dir)
    shown, files = _shown(changed.text)
    scope = Scope(str(git.work_tree), {file.path: _ranges(file) for file in files})
    wanted = in_words(target) + (f" {instructions}" if instructions else "")
    return f"{wanted}\n\n{_ASKED.format(root=git.work_tree)}\n{shown}", scope


def read_answer(said: str, scope: Scope, session_id: str) -> ReviewReport:
    """The findings in an agent's answer.

    Raises:
        ReviewUnreadable: It is not what was asked for.
    """
    answer = _object_in(said)
    findings = answer.get("findings") if answer is not None else None
    if answer is None or not isinstance(findings, list):
        raise ReviewUnreadable(
            f"The reviewer did not answer with findings as it was asked to. What it said is the result of session "
            f"{session_id}; ask again for a review, or let another agent review.",
            session_id=session_id,
        )
    read = [_finding(mapping(one), scope) for one in sequence(findings)]
    kept = tuple(finding for finding in read if isinstance(finding, Finding))
    dropped = [title for title in read if isinstance(title, str)]
    explanation, verdict = (_text(answer.get(name)) for name in ("explanation", "verdict"))
    return ReviewReport(
        text=review_text(explanation, kept),
        findings=kept,
        explanation=explanation,
        verdict=verdict or None,
        confidence=_fraction(answer.get("confidence")),
        note=_said_of(dropped),
    )


def _said_of(dropped: list[str]) -> str | None:
    if not dropped:
        return None
    named = "; ".join(dropped[:_TITLES_NAMED]) + ("; …" if len(dropped) > _TITLES_NAMED else "")
    count = "1 finding was" if len(dropped) == 1 else f"{len(dropped)} findings were"
    return f"{count} dropped, being about nothing that the diff shows: {named}"


def _finding(given: Mapping[str, Any], scope: Scope) -> Finding | str:
    """A finding about lines that the diff shows; of any other, its title."""
    title, named = _text(given.get("title")), _text(given.get("file"))
    path = scope.path(named) if named else None
    first, last = given.get("startLine"), given.get("endLine")
    last = first if last is None else last
    if not title or path is None or not _is_shown(first, last, scope.files[path]):
        return title or "(without a title)"
    priority = given.get("priority")
    return Finding(
        title=title,
        body=_text(given.get("body")),
        priority=priority if type(priority) is int and 0 <= priority <= 3 else None,
        confidence=_fraction(given.get("confidence")),
        file=str(Path(scope.root, path)),
        start_line=first,
        end_line=last,
    )


def _is_shown(first: object, last: object, ranges: tuple[tuple[int, int], ...]) -> bool:
    if first is None:
        return last is None  # about the file as a whole
    if type(first) is not int or type(last) is not int or last < first:
        return False
    return all(any(low <= line <= high for low, high in ranges) for line in (first, last))


def _object_in(said: str) -> Mapping[str, Any] | None:
    """The one JSON object that an answer is, bare or as the only fenced block."""
    fenced = _FENCED.findall(said)
    for text in (said, *(fenced if len(fenced) == 1 else ())):
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            continue
        if isinstance(found, dict):
            return found
    return None


def _text(value: object) -> str:
    return value.strip() if isinstance(value, str) else ""


def _fraction(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 <= value <= 1 else None


def _ranges(file: FileDiff) -> tuple[tuple[int, int], ...]:
    """The lines of the new file that a diff shows."""
    ranges: list[tuple[int, int]] = []
    for line in file.lines:
        if line.after is None:
            continue
        if ranges and line.after == ranges[-1][1] + 1:
            ranges[-1] = ranges[-1][0], line.after
        else:
            ranges.append((line.after, line.after))
    return tuple(ranges)


def _shown(diff: str) -> tuple[str, list[FileDiff]]:
    """As much of a diff as is shown, and the files in it or named with it."""
    files = [file for file in read_diff(diff) if file.path]
    if len(diff) <= _DIFF_CHARS:
        return diff, files
    shown = diff[: diff.rfind("\n", 0, _DIFF_CHARS) + 1]
    whole = len([file for file in read_diff(shown) if file.path]) - 1  # the last one may have been cut
    rest = files[whole : whole + _FILES_NAMED]
    more = len(files) - whole - len(rest)
    named = ", ".join(file.path for file in rest) + (f" and {more} more, which are not reviewed" if more else "")
    return f"{shown}(The diff is longer than that. Read these files yourself: {named})\n", [*files[:whole], *rest]
