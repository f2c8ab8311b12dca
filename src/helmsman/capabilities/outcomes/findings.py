"""Verify findings against the reviewed diff, and merge those of several reviewers."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from helmsman.base.structs import replace
from helmsman.capabilities.outcomes.claims import CitedLines, ShownDiff, inside, places_exist
from helmsman.capabilities.outcomes.evidence import Evidence

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from helmsman.agents.protocol import Finding

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

    def as_dict(self) -> dict[str, Any]:
        finding = self.finding
        return {
            "priority": finding.priority,
            "file": finding.file,
            "startLine": finding.start_line,
            "endLine": finding.end_line,
            "title": finding.title,
            "body": finding.body,
            "confidence": finding.confidence,
            "by": list(self.by),
            "verified": self.verified,
            "evidence": self.evidence.as_dict(),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Reviewed:
    """Subject of a review at its start; findings are verified against it.

    Attributes:
        root: The root of the files that findings name.
        shown: The lines of the diff. None without a diff: findings are then about the current files.
        before: The state of the working tree (`untouched.look`); None outside a repository.
    """

    root: str
    shown: ShownDiff | None
    before: Mapping[str, str] | None

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form for storage."""
        shown = None if self.shown is None else self.shown.as_dict()
        return {"root": self.root, "shown": shown, "before": None if self.before is None else dict(self.before)}

    @classmethod
    def of(cls, kept: Any) -> Reviewed | None:
        """Restore from storage; None if it is invalid."""
        try:
            shown = None if kept["shown"] is None else ShownDiff.of(kept["shown"])
            return cls(root=str(kept["root"]), shown=shown, before=kept["before"])
        except (LookupError, TypeError, ValueError):
            return None

    def look(self, finding: Finding) -> Evidence:
        """Verify that a finding's file and lines are part of the subject. May read the file; blocks."""
        if finding.file is None:
            return Evidence(ok=False, what="The finding names no file.")
        place = CitedLines(file=finding.file, start=finding.start_line, end=finding.end_line)
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
