"""Format the result of a job: as Markdown for people, and as feedback for an agent with failed verification."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from helmsman.model.prompts import NOT_HELD

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from helmsman.capabilities.outcomes.reports import CandidateData, EvidenceData, FindingData

_DETAIL_CHARS: Final = 3000
_SHOWN_LINES: Final = 20
PROMISE: Final = (
    "Verified means: the check's own files, as they were before, pass on exactly this change, in a fresh checkout that no "
    "agent can write to. It does not mean that the code is right."
)
_APPLIED: Final = {
    "applied": "It is in the main tree, unstaged.",
    "not_asked": "Not applied: that was not requested. The change is in its worktree.",
    "refused": "Not applied: it was not approved. The change is in its worktree.",
    "failed": "It could not be applied: {error} It is in its worktree.",
}


def for_agent(evidence: Sequence[EvidenceData]) -> str:
    """Return the feedback for an agent: failed evidence with its details."""
    lines = [NOT_HELD, ""]
    for one in evidence:
        if one["ok"]:
            continue
        lines.append(f"- {one['what']}")
        if detail := one.get("detail"):
            lines += ["", "```", detail.strip()[-_DETAIL_CHARS:], "```", ""]
    lines += ["", "Correct it, and end with the same block of JSON as before, if one was asked for."]
    return "\n".join(lines)


def as_markdown(report: Mapping[str, Any]) -> str:
    """Format a report for people."""
    return "\n".join(_parts(report)).strip() + "\n"


def _parts(report: Mapping[str, Any]) -> Iterator[str]:
    yield f"## {report['kind']}: {'verified' if report['verified'] else 'not verified'}"
    yield ""
    yield report["says"]
    yield ""
    yield from _of_kind(report)
    if report["evidence"]:
        yield "**Evidence**"
        yield ""
        yield from (f"- {'✓' if one['ok'] else '✗'} {one['what']}" for one in report["evidence"])
        yield ""
        yield from _seen(report["evidence"])
    for title, entries in (
        ("Changes to the check, left out when it ran", [one["what"] for one in report.get("checkChanges", ())]),
        ("For you to look at: the check cannot tell", report.get("notes", ())),
    ):
        if entries:
            yield f"**{title}**"
            yield ""
            yield from (f"- {one}" for one in entries)
            yield ""
    if len(report["candidates"]) > 1:
        yield candidates_table(report["candidates"])
        yield ""
        if report.get("compared"):
            yield report["compared"]
            yield ""
    if (diff := report.get("diff")) is not None and diff["files"]:
        yield "```"
        yield diff["stat"].rstrip()
        yield "```"
        yield ""
    if report["verified"] and (applied := report.get("applied")) in _APPLIED:
        yield _APPLIED[applied].format(error=report.get("applyError"))
        yield ""
    cost = "" if report["costUsd"] is None else f", {report['costUsd']:.4f} USD"
    who = "" if report["agent"] is None else f"{report['agent']} ({report['why']}); "
    yield f"{who}{report['seconds']:.0f} s, {report['tokens']} tokens{cost}."


def _seen(evidence: Sequence[EvidenceData]) -> Iterator[str]:
    """Yield the end of the details of the first failed evidence, usually the output of a check."""
    seen = next((one["detail"] for one in evidence if not one["ok"] and one.get("detail")), "")
    if seen.strip():
        yield from (f"    {line}" for line in seen.strip().splitlines()[-_SHOWN_LINES:])
        yield ""


def _of_kind(report: Mapping[str, Any]) -> Iterator[str]:
    if check := report.get("check"):
        where = f" in {check['folder']}" if check["folder"] else ""
        yield f"Check: `{check['command']}`{where} ({check['why'].rstrip('.')})"
        yield ""
    if cause := report.get("rootCause"):
        yield f"**Root cause**: {cause['summary']}"
        yield ""
        yield from (f"- {_place(place)}" for place in cause["places"])
        yield ""
    interfaces = report.get("interfaces")
    if interfaces is not None:
        if interfaces["same"]:
            yield "The public interface is the same." + (
                " (Not all files could be read.)" if interfaces["unknown"] else ""
            )
        for word in ("added", "removed", "changed"):
            yield from (f"- {word}: `{name}`" for name in interfaces[word])
        yield ""
    for word in ("findings", "refuted", "rejected"):
        if report.get(word):
            yield f"**{word.capitalize()}**"
            yield ""
            yield from map(_finding, report[word])
            yield ""
    if report["kind"] == "plan":
        yield from _plan(report)


def _plan(report: Mapping[str, Any]) -> Iterator[str]:
    yield report["summary"]
    yield ""
    for number, step in enumerate(report["steps"], 1):
        status = "" if step["status"] == "planned" else f" [{step['status'].replace('_', ' ')}]"
        yield f"{number}. **{step['title']}**{status}: {step['details']}"
        files = ", ".join(f"`{one['file']}`{' (new)' if one['new'] else ''}" for one in step["files"])
        if files:
            yield f"   Files: {files}"
        if step["check"]:
            yield f"   Check: `{step['check']}`"
    for title, key in (("Risks", "risks"), ("Checks", "checks"), ("Open questions", "openQuestions")):
        if report[key]:
            yield ""
            yield f"**{title}**"
            yield ""
            yield from (f"- {one}" for one in report[key])
    yield ""


def _place(place: Mapping[str, Any]) -> str:
    start, end = place["startLine"], place["endLine"]
    lines = "" if start is None else f":{start}" if end in (None, start) else f":{start}-{end}"
    return f"{place['file'] or '(no file)'}{lines}"


def _finding(one: FindingData) -> str:
    level = "" if one["priority"] is None else f"P{one['priority']} "
    sure = "" if one["confidence"] is None else f", confidence {one['confidence']:.2f}"
    look = one["secondLook"]
    second = (
        ""
        if look is None
        else f"; {look['by']}, second look: {'refuted' if look['refuted'] else 'holds'}, {look['why']}"
    )
    body = f" {one['body']}" if one["body"] else ""
    why = "" if one["verified"] else f" ({one['evidence']['what']})"
    return f"- **{level}{one['title']}** {_place(one)}{why}{body} ({', '.join(one['by'])}{sure}{second})"


def candidates_table(candidates: Sequence[CandidateData]) -> str:
    """Format all candidates as a table."""
    rows = ["| candidate | agent | verified | attempts | lines | check |", "| --- | --- | --- | --- | --- | --- |"]
    for one in candidates:
        diff, seconds = one["diff"], one["checkSeconds"]
        lines = "" if diff is None else f"+{diff['added']} −{diff['removed']}"
        shown = f"{one['number']}{' (winner)' if one['winner'] else ''}"
        check = "" if seconds is None else f"{seconds:.1f} s"
        said = "yes" if one["verified"] else "no" if one["error"] is None else f"no: {one['error'][:80]}"
        rows.append(f"| {shown} | {one['agent']} | {said} | {one['attempts']} | {lines} | {check} |")
    return "\n".join(rows)
