"""Findings of several reviewers as one list: what two of them found is told once, with both their names."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from helmsman.capabilities.outcomes.claims import CitedLines, in_diff, inside
from helmsman.capabilities.outcomes.evidence import Evidence

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from helmsman.agents.protocol import Finding

_NEAR_LINES: Final = 3
_ALIKE: Final = 0.5
_WORD: Final = re.compile(r"[a-z0-9_]+")
_LOWEST: Final = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class MergedFinding:
    """A finding, and who found it. `evidence` says whether its lines are part of the diff, once that was looked at."""

    finding: Finding
    by: tuple[str, ...]
    evidence: Evidence | None = None

    @property
    def verified(self) -> bool:
        return self.evidence is not None and self.evidence.ok

    def as_dict(self) -> dict[str, Any]:
        finding = self.finding
        told: dict[str, Any] = {
            "priority": finding.priority,
            "file": finding.file,
            "startLine": finding.start_line,
            "endLine": finding.end_line,
            "title": finding.title,
            "body": finding.body,
            "confidence": finding.confidence,
            "by": list(self.by),
            "verified": self.verified,
        }
        return told if self.evidence is None else told | {"evidence": self.evidence.as_dict()}


def merge_findings(found: Mapping[str, Iterable[Finding]], directory: Path) -> tuple[MergedFinding, ...]:
    """The findings of several, by their names; duplicates once, the most urgent first.

    Of two that are the same, the higher priority and the longer text are kept; the confidence is that of the surest.
    """
    merged: list[MergedFinding] = []
    for who, findings in found.items():
        for one in findings:
            finding = one if one.file is None else replace(one, file=inside(directory, one.file) or one.file)
            same = next((number for number, other in enumerate(merged) if _is_same(other.finding, finding)), None)
            if same is None:
                merged.append(MergedFinding(finding=finding, by=(who,)))
            else:
                known = merged[same]
                by = known.by if who in known.by else (*known.by, who)
                merged[same] = MergedFinding(finding=_both(known.finding, finding), by=by)
    return tuple(sorted(merged, key=lambda one: (_priority(one.finding), -len(one.by), one.finding.file or "")))


def with_evidence(merged: Iterable[MergedFinding], diff: str, directory: Path) -> tuple[MergedFinding, ...]:
    """The same, each with whether its file and lines are part of the diff that was reviewed."""

    def look(one: MergedFinding) -> MergedFinding:
        finding = one.finding
        if finding.file is None:
            return replace(one, evidence=Evidence(ok=False, what="The finding names no file."))
        place = CitedLines(file=finding.file, start=finding.start_line, end=finding.end_line)
        return replace(one, evidence=in_diff(place, diff, directory))

    return tuple(map(look, merged))


def _is_same(one: Finding, other: Finding) -> bool:
    if one.file != other.file:
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
    """How many of the words of the shorter text the longer has, too; one word alone says nothing."""
    mine, theirs = _words(one), _words(other)
    shared = len(mine & theirs)
    return shared / min(len(mine), len(theirs)) if shared > 1 else 0.0


def _words(text: str) -> frozenset[str]:
    return frozenset(_WORD.findall(text.lower()))


def _text(finding: Finding) -> str:
    return f"{finding.title} {finding.body}"


def _priority(finding: Finding) -> int:
    return _LOWEST if finding.priority is None else finding.priority


def _both(one: Finding, other: Finding) -> Finding:
    longer = max(one, other, key=lambda finding: len(finding.body))
    urgent = min(one, other, key=_priority)
    sure = [finding.confidence for finding in (one, other) if finding.confidence is not None]
    return replace(longer, priority=urgent.priority, confidence=max(sure, default=None))
