"""Reviews of a change by an agent, with the findings as data."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from helmsman.base.sanitize import exact
from helmsman.capabilities.outcomes.reports import EvidenceData
from helmsman.errors import InvalidInput
from helmsman.model.nature import REVIEWS
from helmsman.model.options import ReviewKind, ReviewTarget, SafetyOptions
from helmsman.operations.table import OperationCall, operation
from helmsman.operations.texts import CODEX
from helmsman.sessions.state import SessionStatus
from helmsman.shapes.contract import ErrorOutput, Input, Output, PendingQuestion
from helmsman.shapes.session_status import session_status

if TYPE_CHECKING:
    from helmsman.capabilities.reviews import VerifiedReview
    from helmsman.sessions.session import Session


class ReviewInput(Input):
    working_directory: str | None = Field(
        None, description="The repository, e.g. /src/app. Required without sessionId."
    )
    target: ReviewKind | None = Field(
        None,
        description="uncommitted (the default with workingDirectory), base (all that differs from branch), commit (one), "
        "custom (what instructions say).",
    )
    branch: str | None = Field(None, description="For target base, e.g. main.")
    commit: str | None = Field(None, description="For target commit, e.g. HEAD~1.")
    instructions: str | None = Field(
        None,
        description='Extra instructions; with target custom, all there is to do, e.g. "Look only at security".',
    )
    session_id: str | None = Field(
        None,
        description="Alone: wait for a review begun before. With target: review inside this session, so that {tool}_say can "
        "then tell it to fix what was found.",
    )
    detached: bool = Field(False, description="With sessionId and target: this session does not hear of it.")
    model: str | None = Field(None, description="A model other than the configured one, e.g. gpt-5.5.")
    timeout_sec: float = Field(
        25,
        ge=0,
        le=3600,
        description="How long this call waits. 25 suits every client.",
    )


class AgentReviewInput(ReviewInput):
    agent: str | None = Field(
        None,
        description="Who reviews: codex, claude, gemini, opencode, qwen, copilot or one of your own. With the sessionId of "
        "another agent's work: in a new session. Default: the session's, else as configured.",
    )
    trust_repository: bool = Field(False, description="As for agent_start.")
    unenforced: bool = Field(False, description="As for agent_start.")


class FindingOutput(Output):
    title: str
    body: str
    priority: int | None = Field(None, description="0 (drop everything) to 3 (nice to have).")
    confidence: float | None = Field(None, description="0 to 1.")
    file: str | None = None
    start_line: int | None = None
    end_line: int | None = None


class RejectedFindingOutput(FindingOutput):
    why: str


class ReviewOutput(Output):
    session_id: str | None = Field(None, description="Absent: there was nothing to review.")
    task_id: str | None = None
    status: SessionStatus = Field(description="active: call again with sessionId alone.")
    findings: list[FindingOutput] | None = Field(None, description="When done. Empty: nothing was found.")
    text: str | None = Field(None, description="The whole review.")
    verdict: str | None = Field(None, description='E.g. "patch is incorrect".')
    confidence: float | None = None
    nothing_to_review: bool = False
    note: str | None = Field(None, description="What was left out of the findings.")
    rejected: list[RejectedFindingOutput] | None = Field(None, description="They cite what is not in the diff.")
    verified: bool | None = Field(None, description="By evidence: what Helmsman itself looked at. false: not done.")
    evidence: list[EvidenceData] | None = None
    error: ErrorOutput | None = None
    pending_question: PendingQuestion | None = Field(None, description="Answer it with {tool}_respond.")
    progress: str | None = None


def _target(args: ReviewInput) -> ReviewTarget | None:
    if args.target is None and not args.branch and not args.commit:
        return None
    kind = args.target or "uncommitted"
    given = {"base": args.branch, "commit": args.commit, "custom": args.instructions}
    # A branch beside target commit is a contradiction. Choosing one of them would review something else than was meant.
    strays = [name for name, value in (("base", args.branch), ("commit", args.commit)) if value and name != kind]
    if strays:
        raise InvalidInput(
            f"target {kind} does not go with {' and '.join({'base': 'branch'}.get(name, name) for name in strays)}. Use "
            f"target {strays[0]}, or leave it out.",
            parameter="target",
        )
    return ReviewTarget(kind=kind, value=given.get(kind) or "")


def _output(session: Session, report: VerifiedReview | None) -> ReviewOutput:
    status = session_status(session, output_lines=0)
    output = ReviewOutput(
        session_id=session.id,
        task_id=session.task_id,
        status=status.status,
        error=status.error,
        pending_question=status.pending_question,
        progress=status.progress.text if status.progress is not None else None,
    )
    if report is not None:
        output.findings = [FindingOutput.model_validate(finding, from_attributes=True) for finding in report.findings]
        output.text, output.verdict, output.confidence = report.text, report.verdict, report.confidence
        output.note, output.verified = report.note, report.verified
        output.evidence = [one.to_json() for one in report.evidence]  # type: ignore[misc]
        output.rejected = [
            RejectedFindingOutput.model_validate(finding, from_attributes=True) for finding in report.rejected
        ]
    return output


def _in_words(output: ReviewOutput) -> str:
    if output.nothing_to_review:
        return output.text or ""
    lines = [f"{output.session_id}: {output.status}"]
    if output.progress is not None:
        lines.append(output.progress)
    if output.error is not None:
        lines.append(f"{output.error.code}: {output.error.message}")
    if output.findings is not None:
        lines.append(f"{len(output.findings)} finding(s)" + (f"; {output.verdict}" if output.verdict else ""))
    if output.note:
        lines.append(exact(output.note))
    lines += [exact(one["what"]) for one in output.evidence or () if not one["ok"]]
    if output.text:
        lines.append(output.text)
    return "\n".join(lines)


@operation("{tool}_review", "Let {agent} review a change", REVIEWS, _in_words, agent_input=AgentReviewInput)
async def review(call: OperationCall, args: ReviewInput) -> ReviewOutput:
    """A code review by {agent} of uncommitted changes, of a branch or of a commit, with the findings as data. Changes
    nothing. Waits up to timeoutSec; while status is active, call it again with sessionId alone. Where nothing changed,
    it says so at once. For other questions about code use {tool}_start with sandbox read-only."""
    reviews = call.helm.extras.reviews
    # Only the options that were given: a review inside a session otherwise keeps the session's own.
    given = args.model_dump(include={"agent", *SafetyOptions.__annotations__})
    session = None
    # sessionId alone follows a review. With a target it begins one inside that session.
    if args.session_id is not None and args.target is None:
        session = await call.helm.session(args.session_id)
        if given.get("agent") not in (None, session.options.agent):
            session = None  # it is what this one did that another agent is to review
    if session is None:
        if args.working_directory is None and args.session_id is None:
            raise InvalidInput(
                "A review needs a workingDirectory, or the sessionId of one begun before. Give one of them.",
                parameter="workingDirectory",
            )
        begun = await reviews.start(
            _target(args),
            cwd=args.working_directory,
            session_id=args.session_id,
            instructions=args.instructions,
            detached=args.detached,
            model=args.model,
            on_question=call.on_question,
            # Tools of Codex review with Codex; those of any agent let the caller choose.
            **({"agent": CODEX} | given),
        )
        if begun.session is None:
            # Decided before any agent starts, so an empty change costs no tokens.
            return ReviewOutput(status="done", findings=[], text=begun.nothing, nothing_to_review=True, verified=True)
        session = begun.session
    await call.watch(session, seconds=args.timeout_sec)
    report = await reviews.report(session.id)
    # Any session can be named, also one that never reviewed.
    if report is None and session.status == "done":
        raise InvalidInput(
            f"There was no review in session {session.id}. Give a target to begin one.", parameter="sessionId"
        )
    return _output(session, report)
