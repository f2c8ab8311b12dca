"""What Codex's own review found, from its storage or from the text it shows.

The reviewer answers in JSON. Codex records that in the session's file (`exited_review_mode`; in paginated files as an item,
`ExitedReviewMode`), and shows everybody else a text made of it, without confidence, and without a priority that is not in
the title. So the file is read first, and the text where the file does not tell. Nothing in either raises.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from helmsman.agents.codex.rollout_turns import lines_from_end, open_to_the_end
from helmsman.agents.protocol import Finding, ReviewReport, review_text
from helmsman.base.json_values import fraction, integer, json_object, mapping, sequence, text

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_RECORDED: Final = re.compile(rb'"(?:exited_review_mode|ExitedReviewMode)"')
_PRIORITY: Final = re.compile(r"^\s*\[P([0-9])\]\s*")
_HEADING: Final = re.compile(r"^(?:full )?review comments?:\s*$", re.IGNORECASE | re.MULTILINE)
_COMMENT: Final = re.compile(
    r"^- (?:\[[ xX]\] )?(?P<title>.+) (?:—|–|--) (?P<file>.+?):(?P<start>[0-9]{1,9})(?:-(?P<end>[0-9]{1,9}))?\s*$"
)


def read_review(path: Path) -> ReviewReport | None:
    """What the newest review in a rollout file found; None if there is none, it did not end, or it cannot be read."""
    try:
        with open_to_the_end(path) as file:
            for line in lines_from_end(file):
                if _RECORDED.search(line) and (output := _recorded(json_object(line))) is not None:
                    return from_record(output)
    except OSError:
        return None
    return None


def _recorded(entry: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """The reviewer's answer in a line that records the end of a review; None in any other line."""
    payload = mapping(mapping(entry).get("payload"))
    ended = mapping(payload.get("item")) if payload.get("type") == "item_completed" else payload
    if ended.get("type") not in ("exited_review_mode", "ExitedReviewMode"):
        return None
    return mapping(ended.get("review_output"))


def from_record(output: Mapping[str, Any]) -> ReviewReport | None:
    """The reviewer's answer as Codex records it; None where it gave none."""
    if not output:
        return None
    if not output.get("findings"):  # Codex is strict: an answer with a field missing it takes for prose
        output = _answer_in(text(output.get("overall_explanation"))) or output
    findings = tuple(_finding(mapping(raw)) for raw in sequence(output.get("findings")))
    explanation = text(output.get("overall_explanation")).strip()
    return ReviewReport(
        findings=findings,
        explanation=explanation,
        verdict=text(output.get("overall_correctness")).strip() or None,
        confidence=fraction(output.get("overall_confidence_score")),
        text=review_text(explanation, findings),
    )


def from_text(shown: str) -> ReviewReport:
    """The text Codex shows of a review: an explanation, a heading, and the comments as a list."""
    report = from_record(_answer_in(shown) or {})
    if report is not None:
        return report
    heading = _HEADING.search(shown)
    if heading is None:
        return ReviewReport(text=shown, explanation=shown.strip())
    findings: list[Finding] = []
    body: list[str] = []
    for line in [*shown[heading.end() :].splitlines(), "- "]:
        found = _COMMENT.match(line)
        if (found or line == "- ") and findings:
            findings[-1] = _with_body(findings[-1], body)
        if found:
            findings.append(_shown_finding(found))
            body = []
        else:
            body.append(line)
    return ReviewReport(text=shown, findings=tuple(findings), explanation=shown[: heading.start()].strip())


def _answer_in(said: str) -> Mapping[str, Any] | None:
    """The reviewer's answer in a text that should be nothing else; None where there is none."""
    begin, end = said.find("{"), said.rfind("}")
    found = json_object(said[begin : end + 1].encode("utf-8", "replace")) if 0 <= begin < end else None
    return found if found is not None and sequence(found.get("findings")) else None


def is_of(report: ReviewReport, shown: str) -> bool:
    """Whether a text that Codex shows was made of this report."""
    return report.explanation in shown and all(finding.title in shown for finding in report.findings)


def _finding(raw: Mapping[str, Any]) -> Finding:
    place = mapping(raw.get("code_location"))
    lines = mapping(place.get("line_range"))
    title, tagged = _title(text(raw.get("title")))
    priority = integer(raw.get("priority"))
    return Finding(
        title=title,
        body=text(raw.get("body")).strip(),
        priority=priority if priority is not None else tagged,
        confidence=fraction(raw.get("confidence_score")),
        file=text(place.get("absolute_file_path")) or None,
        start_line=integer(lines.get("start")),
        end_line=integer(lines.get("end")),
    )


def _shown_finding(found: re.Match[str]) -> Finding:
    title, priority = _title(found["title"])
    start = int(found["start"])
    return Finding(
        title=title, priority=priority, file=found["file"], start_line=start, end_line=int(found["end"] or start)
    )


def _with_body(finding: Finding, lines: list[str]) -> Finding:
    body = "\n".join(line.removeprefix("  ") for line in lines).strip()
    return Finding(
        title=finding.title,
        body=body,
        priority=finding.priority,
        file=finding.file,
        start_line=finding.start_line,
        end_line=finding.end_line,
    )


def _title(title: str) -> tuple[str, int | None]:
    """A title without the priority that reviewers put before it."""
    tag = _PRIORITY.match(title)
    return (title[tag.end() :].strip(), int(tag[1])) if tag else (title.strip(), None)
