"""Verify agents' claims about files, lines and scopes. Pure, except for reading directories."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated, Any, Final

import anyio.to_thread
from msgspec import Meta

from helmsman.base.structs import Value, replace
from helmsman.base.truncate import counted
from helmsman.errors import InvalidInput
from helmsman.git.command import find_git
from helmsman.git.diff import read_diff
from helmsman.git.tree_changes import diff_of_directory

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from helmsman.agents.protocol import Finding
    from helmsman.capabilities.outcomes.request import Wanted
    from helmsman.git.diff import FileDiff
    from helmsman.steering.core import Steering


# --- Evidence and verdicts --------------------------------------------------------------------------------------------

# A verdict without evidence is never verified.


class Evidence(Value, frozen=True, kw_only=True):
    """Single observation. `what` is a sentence; `detail` is the observed data, such as the end of an output."""

    ok: bool
    what: str
    file: str | None = None
    start_line: int | None = None
    end_line: int | None = None
    detail: str | None = None


class Verdict(Value, frozen=True):
    """Result of a verification: its evidence. Without any, nothing is verified."""

    evidence: tuple[Evidence, ...] = ()

    @property
    def verified(self) -> bool:
        return bool(self.evidence) and not self.against

    @property
    def against(self) -> tuple[Evidence, ...]:
        """Evidence against it."""
        return tuple(one for one in self.evidence if not one.ok)

    def to_json(self) -> dict[str, Any]:
        return {"verified": self.verified, "evidence": [one.to_json() for one in self.evidence]}


def verdict(evidence: Iterable[Evidence]) -> Verdict:
    """Return a verdict that is verified if there is evidence and all of it is ok."""
    return Verdict(tuple(evidence))


def joined(*verdicts: Verdict) -> Verdict:
    """Combine the evidence of verdicts."""
    return Verdict(tuple(evidence for one in verdicts for evidence in one.evidence))


_READ_BYTES: Final = 16 * 1024 * 1024
_CONTEXT_LINES: Final = 3


class CitedLines(Value, frozen=True, kw_only=True):
    """Cited lines of a file, or the whole file without numbers."""

    file: Annotated[str, Meta(pattern=r"\S")]
    start_line: int | None = None
    end_line: int | None = None

    @property
    def lines(self) -> tuple[int, int] | None:
        if self.start_line is None:
            return None
        return self.start_line, self.start_line if self.end_line is None else self.end_line


class PlannedFile(Value, frozen=True, kw_only=True):
    """File named by a plan; `new` means that the plan creates it."""

    file: Annotated[str, Meta(pattern=r"\S")]
    new: bool = False


def inside(directory: Path, file: str) -> str | None:
    """Return the path of a file relative to the root, as git spells it; None if it is outside or invalid."""
    if not file or "\0" in file:
        return None
    path = PurePosixPath(file)
    if path.is_absolute():
        # An agent may name the root with its links resolved or not.
        for root in (directory, directory.resolve()):
            if path.is_relative_to(root.as_posix()):
                path = path.relative_to(root.as_posix())
                break
        else:
            return None
    parts = [part for part in path.parts if part != "."]
    return "/".join(parts) if parts and ".." not in parts else None


def places_exist(places: Iterable[CitedLines], directory: Path) -> Verdict:
    """Verify that the files and lines of a root cause exist. Reads files; blocks."""
    return verdict(_exists(place, directory) for place in places)


def _exists(place: CitedLines, directory: Path) -> Evidence:
    path = inside(directory, place.file)
    if path is None:
        return Evidence(ok=False, what=f"{place.file} is no file of the repository.", file=place.file)
    here = directory / path
    # A link could lead out of the repository.
    if not here.resolve().is_relative_to(directory.resolve()) or not here.is_file():
        return Evidence(ok=False, what=f"There is no file {path}.", file=path)
    lines = place.lines
    if lines is None:
        return Evidence(ok=True, what=f"{path} exists.", file=path)
    with here.open("rb") as content:
        # Split at line feeds only: these are the lines that git and editors count.
        text = content.read(_READ_BYTES).decode("utf-8", "replace").split("\n")
    count = len(text) - (text[-1] == "")
    start, end = lines
    if not 1 <= start <= end <= count:
        told = f"{path} has {counted(count, 'line')}, so not the lines {start} to {end}."
        return Evidence(ok=False, what=told, file=path, start_line=start, end_line=end)
    lines_shown = f"{start}" if start == end else f"{start}-{end}"
    shown = "\n".join(text[start - 1 : min(end, start + 4)])
    return Evidence(
        ok=True,
        what=f"The cited lines exist: {path}:{lines_shown}.",
        file=path,
        start_line=start,
        end_line=end,
        detail=shown,
    )


class ShownDiff(Value, frozen=True):
    """Lines shown by a diff, by path from the root of its repository.

    Each file has ranges (lines of the new file, and removed lines), and its last line if the diff shows it: then the
    last hunk has less trailing context than a hunk in the middle.
    """

    root: str
    files: Mapping[str, tuple[tuple[tuple[int, int], ...], int | None]]

    @classmethod
    def of_text(cls, root: Path, diff: str) -> ShownDiff:
        shown: dict[str, tuple[tuple[tuple[int, int], ...], int | None]] = {}
        for file in read_diff(diff):
            ranges = _ranges(file)
            # A finding may name a renamed file by either path.
            for path in filter(None, (file.path, file.old_path)):
                shown[path] = ranges, _last_line(file, ranges)
        return cls(str(root), shown)

    def shows(self, place: CitedLines) -> Evidence:
        """Verify that a place is part of the diff: at least one line is shown, and none is beyond the end of the file."""
        path = inside(Path(self.root), place.file)
        if path is None or path not in self.files:
            return Evidence(ok=False, what=f"{place.file} is not part of the diff.", file=place.file)
        if place.lines is None:
            return Evidence(ok=True, what=f"{path} is part of the diff.", file=path)
        first, last = place.lines
        ranges, end = self.files[path]
        ok, what = True, f"The diff of {path} shows the lines {first} to {last}."
        if not 1 <= first <= last or not any(low <= last and first <= high for low, high in ranges):
            ok, what = False, f"The diff of {path} does not show the lines {first} to {last}."
        elif end is not None and last > end:
            ok, what = False, f"{path} has {counted(end, 'line')}, so not the lines {first} to {last}."
        return Evidence(ok=ok, what=what, file=path, start_line=first, end_line=last)


def _ranges(file: FileDiff) -> tuple[tuple[int, int], ...]:
    after = {line.after for line in file.lines if line.after is not None}
    gone = {line.before for line in file.lines if line.before is not None and line.after is None}
    ranges: list[tuple[int, int]] = []
    for number in sorted(after | gone):
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1] = ranges[-1][0], number
        else:
            ranges.append((number, number))
    return tuple(ranges)


def _last_line(file: FileDiff, ranges: tuple[tuple[int, int], ...]) -> int | None:
    """Return the last line of the file, if the diff shows it."""
    behind = 0
    for line in reversed(file.lines):
        if line.kind in ("add", "remove", "hunk"):
            break
        behind += line.kind == "same"
    return ranges[-1][1] if ranges and behind < _CONTEXT_LINES else None


def planned_files_exist(files: Iterable[PlannedFile], directory: Path) -> Verdict:
    """Verify that every file of a plan exists, or is marked as new and does not exist. Blocks."""

    def look(planned: PlannedFile) -> Evidence:
        path = inside(directory, planned.file)
        if path is None:
            return Evidence(ok=False, what=f"{planned.file} is no file of the repository.", file=planned.file)
        there = (directory / path).exists()
        if planned.new:
            what = f"{path} is there already, and so not new." if there else f"{path} is new."
            return Evidence(ok=not there, what=what, file=path)
        what = f"{path} exists." if there else f"There is no file {path}, and the plan does not say that it is new."
        return Evidence(ok=there, what=what, file=path)

    return verdict(map(look, files))


_CODE: Final = "py|pyi|js|mjs|cjs|ts|tsx|jsx|vue|go|rs|java|kt|scala|c|h|cc|cpp|hpp|cs|rb|php|swift|sh|sql|html|css"
_OTHER: Final = "md|rst|txt|toml|ya?ml|json|cfg|ini|lock|mk|proto|gradle|xml"
_NAMED: Final = re.compile(rf"`((?:[\w.@+-]+/)*[\w.@+-]+\.(?:{_CODE}|{_OTHER}))(?::\d[\d:-]*)?`")
_NEW: Final = re.compile(
    r"\b(?:new|creat\w*|add(?:s|ing)?|introduc\w*|generat\w*|writ(?:e|es|ing)|mak(?:e|es|ing)|renam\w*|mov(?:e|es|ing))\b",
    re.IGNORECASE,
)


def named_files_exist(plan: str, files: Sequence[str], root: Path) -> list[Evidence]:
    """Verify that files named in backticks in a plan exist, or that the line marks them as new.

    A plan may name a file by the end of its path.
    """
    known = {*files}
    names: dict[str, bool] = {}
    for line in plan.splitlines():
        for match in _NAMED.finditer(line):
            # One line that marks it as new is enough.
            names[match[1]] = names.get(match[1], False) or _NEW.search(line) is not None
    there = [name for name in names if inside(root, name) in known or any(one.endswith(f"/{name}") for one in files)]
    missing = [name for name, new in names.items() if name not in there and not new]
    told = [
        Evidence(ok=False, what=f"There is no file {name}, and the plan does not say that it is new.", file=name)
        for name in missing
    ]
    if there:
        told.append(Evidence(ok=True, what=f"{len(there)} of the {len(names)} files that the plan names are there."))
    return told


def within_scope(changed: Collection[str], scope: Sequence[str]) -> Verdict:
    """Verify that a change stays inside a scope of files, directories or git patterns (`*`, `**`, `?`).

    An empty scope is the whole repository.
    """
    patterns = [_pattern(entry) for entry in scope]
    outside = [path for path in changed if patterns and not any(pattern.fullmatch(path) for pattern in patterns)]
    if not outside:
        said = "Nothing outside of the scope was touched." if patterns else "No scope was given."
        return verdict([Evidence(ok=True, what=said)])
    return verdict(Evidence(ok=False, what=f"{path} is outside of the scope.", file=path) for path in sorted(outside))


def _pattern(entry: str) -> re.Pattern[str]:
    """Compile an entry of a scope; a name covers the file or directory and everything below."""
    text = entry.strip().removeprefix("./").strip("/")
    if not text or text == ".":
        return re.compile(r".*", re.DOTALL)
    # The longer forms come first, or `**/` would be read as two stars and a slash.
    pieces = re.split(r"(\*\*/|/\*\*|\*\*|\*|\?)", text)
    forms = {"**/": r"(?:.*/)?", "/**": r"(?:/.*)?", "**": r".*", "*": r"[^/]*", "?": r"[^/]"}
    return re.compile("".join(forms.get(piece, re.escape(piece)) for piece in pieces) + r"(?:/.*)?", re.DOTALL)


# --- Verify findings against the reviewed diff, and merge those of several reviewers ----------------------------------

_NEAR_LINES: Final = 3
_ALIKE: Final = 0.5
_WORD: Final = re.compile(r"[a-z0-9_]+")
_LOWEST: Final = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class MergedFinding:
    """Finding with its reviewers. `evidence` tells whether its lines are part of the diff."""

    finding: Finding
    by: tuple[str, ...]
    evidence: Evidence

    @property
    def verified(self) -> bool:
        return self.evidence.ok

    def to_json(self) -> dict[str, Any]:
        shown = {"by": list(self.by), "verified": self.verified, "evidence": self.evidence.to_json()}
        return self.finding.to_json() | shown


class Reviewed(Value, frozen=True, kw_only=True):
    """Subject of a review at its start; findings are verified against it.

    Attributes:
        root: The root of the files that findings name.
        shown: The lines of the diff. None without a diff: findings are then about the current files.
        before: The state of the working tree (`look`); None outside a repository.
    """

    root: str
    shown: ShownDiff | None
    before: Mapping[str, str] | None

    def look(self, finding: Finding) -> Evidence:
        """Verify that a finding's file and lines are part of the subject. May read the file; blocks."""
        if finding.file is None:
            return Evidence(ok=False, what="The finding names no file.")
        place = CitedLines(file=finding.file, start_line=finding.start_line, end_line=finding.end_line)
        if self.shown is not None:
            return self.shown.shows(place)
        return places_exist([place], Path(self.root)).evidence[0]


def merge_findings(found: Mapping[str, Iterable[Finding]], reviewed: Reviewed) -> tuple[MergedFinding, ...]:
    """Merge the findings of several reviewers, by their names; duplicates once, the most urgent first.

    Of two duplicates the more urgent is kept, then the longer one, with the higher confidence. Two findings of one
    reviewer are never merged, and a verified finding is never merged into an unverified one.
    """
    merged: list[MergedFinding] = []
    for who, findings in found.items():
        for one in findings:
            finding = one if one.file is None else replace(one, file=inside(Path(reviewed.root), one.file) or one.file)
            fresh = MergedFinding(finding=finding, by=(who,), evidence=reviewed.look(finding))
            same = next((number for number, other in enumerate(merged) if _is_same(other, fresh)), None)
            if same is None:
                merged.append(fresh)
            else:
                merged[same] = _both(merged[same], fresh)
    return tuple(sorted(merged, key=lambda one: (_priority(one.finding), -len(one.by), one.finding.file or "")))


def _is_same(known: MergedFinding, fresh: MergedFinding) -> bool:
    one, other = known.finding, fresh.finding
    if one.file != other.file or known.verified != fresh.verified or fresh.by[0] in known.by:
        return False
    if _words(one.title) == _words(other.title):
        return True
    return (
        _lines_meet(one, other)
        and max(_likeness(one.title, other.title), _likeness(_text(one), _text(other))) >= _ALIKE
    )


def _lines_meet(one: Finding, other: Finding) -> bool:
    if one.start_line is None or other.start_line is None:
        return one.start_line is other.start_line
    first, last = one.start_line - _NEAR_LINES, (one.end_line or one.start_line) + _NEAR_LINES
    return other.start_line <= last and (other.end_line or other.start_line) >= first


def _likeness(one: str, other: str) -> float:
    """Return the share of the shorter text's words that the longer one contains; a single common word does not count."""
    mine, theirs = _words(one), _words(other)
    shared = len(mine & theirs)
    return shared / min(len(mine), len(theirs)) if shared > 1 else 0.0


def _words(text: str) -> frozenset[str]:
    return frozenset(_WORD.findall(text.lower()))


def _text(finding: Finding) -> str:
    return f"{finding.title} {finding.body}"


def _priority(finding: Finding) -> int:
    return _LOWEST if finding.priority is None else finding.priority


def _both(one: MergedFinding, other: MergedFinding) -> MergedFinding:
    kept = min(one, other, key=lambda each: (_priority(each.finding), -len(each.finding.body)))
    sure = [each.finding.confidence for each in (one, other) if each.finding.confidence is not None]
    finding = replace(kept.finding, confidence=max(sure, default=None))
    return MergedFinding(finding=finding, by=(*one.by, *other.by), evidence=kept.evidence)


# --- Detect changes to a working tree that agents may only read -------------------------------------------------------


async def require_repository(helm: Steering, wanted: Wanted) -> Path:
    """Return the root of the repository of a job.

    Raises:
        InvalidInput: The directory is not in a repository.
    """
    git = await anyio.to_thread.run_sync(find_git, Path(wanted.directory), helm.settings.state_dir)
    if git is None:
        raise InvalidInput(
            f"{wanted.directory} is not in a git repository. Name a directory that is.", parameter="workingDirectory"
        )
    return git.work_tree


def look(root: Path, state_dir: Path) -> dict[str, str]:
    """Return the state of the working tree, commit and digest of changes, as JSON. Blocks."""
    git = find_git(root, state_dir)
    head = "" if git is None else git.commit("HEAD") or ""
    return {"head": head, "diff": diff_of_directory(root, state_dir=state_dir).digest}


async def untouched(root: Path, state_dir: Path, before: Mapping[str, str]) -> Evidence:
    """Verify that the working tree is unchanged."""
    return nothing_changed(await anyio.to_thread.run_sync(look, root, state_dir) == before)


def nothing_changed(same: bool) -> Evidence:
    """Return the evidence for an unchanged or changed working tree."""
    changed = "Files of the working tree, or its commit, changed meanwhile. Look at the changes, and ask again."
    return Evidence(ok=same, what="Nothing in the working tree was changed." if same else changed)
