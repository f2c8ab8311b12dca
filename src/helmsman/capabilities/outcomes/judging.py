"""Judge verified changes with an agent that did not write them, before they count as done.

The judge reads the request, the diff and the output of the check, in a read-only sandbox. It answers fixed questions and
quotes a line of the diff for each objection; quotes that the diff does not contain are rejected. It never sees what the
author said of the change.
"""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from msgspec import Meta

from helmsman.base.structs import Value
from helmsman.capabilities.outcomes.agent_selection import choose
from helmsman.capabilities.outcomes.claims import Evidence, verdict
from helmsman.capabilities.outcomes.reports import (
    QUESTIONS,
    ReportUnreadable,
    Text,
    asked_for,
    prompt,
    quoted,
    read_report,
)
from helmsman.capabilities.outcomes.request import AUTO, NEVER, Wanted
from helmsman.capabilities.outcomes.work import Candidate
from helmsman.errors import HelmsmanError
from helmsman.git.diff import read_diff

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from helmsman.capabilities.outcomes.work import DoneTurn, Work

_DIFF_CHARS: Final = 400_000
_OUTPUT_CHARS: Final = 4_000

JudgementState = Literal["clean", "objects", "off", "failed"]
"""Result of a judgement: no objection, objections with quotes, no judge was to be asked, no usable answer."""


class JudgeFinding(Value, frozen=True, kw_only=True):
    """Objection with the line of the diff that shows it."""

    question: Text
    file: Text
    quote: Text
    why: Text


class JudgeReport(Value, frozen=True, kw_only=True):
    """Answers of a judge: whether it objects, for each question, and why."""

    answers: dict[str, bool]
    findings: Annotated[tuple[JudgeFinding, ...], Meta(max_length=50)] = ()


def lines_by_file(diff: str) -> dict[str, frozenset[str]]:
    """Return the lines that a diff shows, without indentation, by file."""
    return {
        path: frozenset(line.text[1:].strip() for line in file.lines if line.kind in ("add", "remove", "same"))
        for file in read_diff(diff)
        for path in filter(None, (file.path, file.old_path))
    }


def is_quoted(finding: JudgeFinding, lines: Mapping[str, frozenset[str]]) -> bool:
    """Return whether a finding quotes whole lines that the diff shows for its file."""
    # Agents copy the path from the diff, where git puts `a/` or `b/` before it.
    shown = lines.get(finding.file.strip().removeprefix("a/").removeprefix("b/").removeprefix("./"))
    quoted_lines = [line.strip() for line in finding.quote.splitlines() if line.strip()]
    return (
        shown is not None
        # A lone brace is in almost every diff, so to quote it shows nothing.
        and any(re.search(r"\w", line) for line in quoted_lines)
        # A quotation may keep the mark of the diff before each line.
        and all(line in shown or (line[:1] in "+-" and line[1:].strip() in shown) for line in quoted_lines)
    )


def read_judgement(said: str, diff: str) -> dict[str, Any]:
    """Return a judge's answer as data: `verified` if it can be used, its `state`, and its findings.

    An objection without a line of the diff is rejected. If no other objection is left, the answer cannot be used.
    """
    try:
        report = read_report(said, JudgeReport)
    except ReportUnreadable as error:
        return _unusable(error.message)
    # An answer that skips a question must not count as “no objection”.
    if report.answers.keys() != QUESTIONS.keys():
        return _unusable(f"It has to answer {', '.join(QUESTIONS)}, each with true or false.")
    lines = lines_by_file(diff)
    findings = [one for one in report.findings if one.question in QUESTIONS and is_quoted(one, lines)]
    rejected = [one for one in report.findings if one not in findings]
    proved = {one.question for one in findings}
    unproved = [name for name, objects in report.answers.items() if objects and name not in proved]
    data = {"findings": [one.to_json() for one in findings], "rejected": [one.to_json() for one in rejected]}
    if not findings and (unproved or rejected):
        named = "; ".join(one.quote for one in rejected[:3]) or ", ".join(unproved)
        return (
            _unusable(f"An objection needs a finding that quotes a whole line of the diff. There is none for: {named}.")
            | data
        )
    seen = verdict([Evidence(ok=True, what="The judgement can be read.")])
    return {**seen.to_json(), "state": "objects" if findings else "clean", **data}


def _unusable(why: str) -> dict[str, Any]:
    seen = verdict([Evidence(ok=False, what=why)])
    return {**seen.to_json(), "state": "failed", "findings": [], "rejected": []}


class Judging:
    """Judgements of a job's candidates."""

    def __init__(self, work: Work, who: str | None = None) -> None:
        self._work = work
        self._who = who or work.wanted.judge

    async def judge(self, name: str, author: str, session_id: str, seen: Mapping[str, Any]) -> dict[str, Any]:
        """Ask for a judgement of a session's change, as it was verified (`seen`), and return it as data.

        It has `state`, `says`, `agent`, `why`, `sessionId`, `findings` and `rejected`.
        """
        made: dict[str, Any] = await self._work.once(
            f"{name} judged", partial(self._judged, name, author, session_id, seen)
        )
        return made

    async def _judged(self, name: str, author: str, session_id: str, seen: Mapping[str, Any]) -> dict[str, Any]:
        work = self._work
        agent, why = await self._select(author)
        told: dict[str, Any] = {"agent": agent, "why": why, "sessionId": None, "findings": [], "rejected": []}
        if agent is None:
            return told | {"state": "off", "says": f"Not judged: {why}."}
        try:
            diff = await self._diff(session_id, seen)
            work.report_progress(f"{agent} judges the change ({name}).")
            made = await self._ask(name, agent, diff, seen)
        # A judgement that fails is reported as such, and never counts as one without objections.
        except HelmsmanError as error:
            return told | {"state": "failed", "says": f"{agent} could not judge it: {error.message.rstrip('.')}."}
        told |= {key: made.seen[key] for key in ("state", "findings", "rejected")} | {"sessionId": made.session_id}
        if not made.verified:
            return told | {
                "state": "failed",
                "says": f"{agent} gave no judgement that can be used: {made.error or made.against}",
            }
        if told["state"] == "clean":
            return told | {"says": f"{agent} ({why}) read the diff and objects to nothing."}
        shown = "; ".join(f"{one['file']}: `{one['quote'].strip()}`: {one['why']}" for one in told["findings"][:3])
        return told | {"says": f"{agent} ({why}) objects: {shown}"}

    async def _diff(self, session_id: str, seen: Mapping[str, Any]) -> str:
        """Return the diff that was verified.

        Raises:
            HelmsmanError: The worktree has changed since, or the diff is too long.
        """
        diff = (await self._work.changes.diff(session_id)).diff
        if diff.digest != seen["diff"]["digest"]:
            raise HelmsmanError("the worktree changed after the check ran")
        if len(diff.text) > _DIFF_CHARS:
            raise HelmsmanError(f"the diff has more than {_DIFF_CHARS} characters")
        return diff.text

    async def _ask(self, name: str, agent: str, diff: str, seen: Mapping[str, Any]) -> Candidate:
        work = self._work
        output = ((seen.get("after") or {}).get("output") or "")[-_OUTPUT_CHARS:]
        questions = "\n".join(f"- {key}: {question}" for key, question in QUESTIONS.items())
        asked = prompt(
            "judge",
            kind=work.wanted.kind,
            request=quoted(work.wanted.request, "text"),
            diff=quoted(diff, "diff"),
            output=quoted(output, "text"),
            questions=questions,
            report=asked_for("judge"),
        )
        turn = await work.start_reader(f"{name} judge", asked, agent, on_limit="fail")
        made = Candidate(number=1, agent=agent, why="", turn=turn)

        async def read(turn: DoneTurn) -> dict[str, Any]:
            return read_judgement(turn.said, diff)

        # A judge may correct an answer that cannot be used, once.
        await work.until_verified(f"{name} judgement", made, read, _again, most=1)
        return made

    async def _select(self, author: str) -> tuple[str | None, str]:
        """Return who judges, or None, and why: the named agent, another one, or another session of the author's agent."""
        work = self._work
        wanted = work.wanted
        if self._who == NEVER:
            return None, "that was not requested"
        if (too_much := await work.too_expensive()) is not None:
            return None, too_much
        if self._who != AUTO:
            return self._who, "it was asked for"
        try:
            able = [one.agent for one in await choose(work.helm, judging_for(wanted))]
        except HelmsmanError as error:
            return None, error.message.rstrip(".")
        other = next((agent for agent in able if agent != author), None)
        if other is not None:
            return other, f"another agent than {author}"
        # No person looks at such a change before it counts, so its author's agent is a better judge than none.
        if wanted.apply == "verified" or wanted.kind == "loop":
            return author, "another session, as no other agent is available"
        return None, f"no other agent than {author} is available, and you decide; --judge {author} has it judge itself"


def judging_for(wanted: Wanted) -> Wanted:
    """Return the request by which a job's judge is selected."""
    agents = () if wanted.judge == AUTO else (wanted.judge,)
    return Wanted(
        kind="review", request="Judge.", directory=wanted.directory, agents=agents, budget_usd=wanted.budget_usd
    )


def objections(findings: Sequence[Mapping[str, Any]]) -> list[Evidence]:
    """Return the evidence against a change that a judge objects to."""
    return [
        Evidence(
            ok=False,
            what=f"The judge objects to {one['file']}: {one['why']} ({QUESTIONS[one['question']]})",
            file=one["file"],
            detail=one["quote"],
        )
        for one in findings
    ]


def _again(evidence: Sequence[Any]) -> str:
    return f"Your judgement cannot be used. {evidence[0]['what']} {asked_for('judge')}"
