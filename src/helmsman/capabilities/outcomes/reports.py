"""Reports of jobs as data, one type per kind, for clients and the registry.

Keys use JSON style. Every key is present; unknown or inapplicable values are None.
"""

from __future__ import annotations

from typing import Any, Literal, NotRequired

from typing_extensions import TypedDict  # for JSON schemas in Python 3.11

ApplyOutcome = Literal["applied", "not_asked", "refused", "failed", "nothing"]
"""Outcome of the apply step: applied to the main tree; not asked (`apply: never`); refused or unanswered; failed (see
`applyError`); or nothing to apply.
"""


class EvidenceData(TypedDict):
    """Single observation. `detail` is the observed data, such as the end of an output."""

    ok: bool
    what: str
    file: NotRequired[str]
    startLine: NotRequired[int]
    endLine: NotRequired[int]
    detail: NotRequired[str]


class FailureData(TypedDict):
    """Failed test."""

    name: str
    message: str


class CheckRunData(TypedDict):
    """Run of a check. `exitCode` is None after a timeout; `output` is the end of its output."""

    command: str
    passed: bool
    exitCode: int | None
    seconds: float
    output: str
    failures: NotRequired[list[FailureData]]
    errors: NotRequired[list[str]]
    notChecked: NotRequired[str]


class CheckData(TypedDict):
    """Command that verifies, and the reason for it. `folder` is its directory, relative to the repository's root."""

    command: str
    why: str
    folder: str


class FileData(TypedDict):
    """Changed file; `added` and `removed` are None for a binary file."""

    path: str
    kind: str
    added: int | None
    removed: int | None


class DiffData(TypedDict):
    """Size of a change, and the digest that `apply` requires."""

    files: list[FileData]
    added: int
    removed: int
    stat: str
    digest: str


class PlaceData(TypedDict):
    """Lines of a file, or the whole file without numbers."""

    file: str
    startLine: int | None
    endLine: int | None


class CandidateData(TypedDict):
    """Candidate. `why` is the reason for its agent, `told` the agent's last message, `error` the reason for a failure."""

    number: int
    agent: str
    why: str
    sessionId: str | None
    verified: bool
    attempts: int
    evidence: list[EvidenceData]
    diff: DiffData | None
    checkSeconds: float | None
    told: str
    error: str | None
    winner: bool


class HeldData(TypedDict):
    """Changed file that belongs to the check, and the reason."""

    file: str
    what: str


class JobReport(TypedDict):
    """Fields of every kind. `review` has no candidates.

    `says` is the verdict in a sentence. `agent`, `why`, `sessionId`, `attempts` and `evidence` belong to the winner, or
    to the only candidate. `costUsd` is None if no price is known.
    """

    kind: str
    verified: bool
    says: str
    evidence: list[EvidenceData]
    agent: str | None
    why: str
    sessionId: str | None
    attempts: int
    candidates: list[CandidateData]
    seconds: float
    tokens: int
    costUsd: float | None


class SolvedReport(JobReport):
    """Fields of `debug`, `refactor` and `test`: a change in a worktree. `compared` is the reason for the winner.

    `checkChanges` lists changed files that belong to the check, which ran with their previous versions. `notes` lists
    doubtful files for a person.
    """

    check: CheckData | None
    before: CheckRunData | None
    after: CheckRunData | None
    diff: DiffData | None
    compared: str | None
    applied: ApplyOutcome
    applyError: str | None
    discarded: list[str]
    checkChanges: list[HeldData]
    notes: list[str]


class RootCauseData(TypedDict):
    summary: str
    places: list[PlaceData]


class DebugReport(SolvedReport):
    """`reproduced` tells how the failure was identified: `test`, `message`, `words`, `any` or `no`; `tests` show it."""

    reproduced: str | None
    tests: list[str]
    rootCause: RootCauseData | None


class RefactorReport(SolvedReport):
    """`interfaces` contains `same`, `added`, `removed`, `changed` (`before`, `after`) and `unknown`, by qualified name."""

    scope: list[str]
    interfaces: dict[str, Any] | None


class NewTestsReport(SolvedReport):
    """`tests` lists the new test files, `underTest` the lines that they are claimed to test."""

    tests: list[str]
    underTest: list[PlaceData]


class SecondLookData(TypedDict):
    """Result of an attempt to refute a finding."""

    by: str
    refuted: bool
    why: str
    confidence: float | None


class FindingData(TypedDict):
    """`priority` is 0 (drop everything) to 3, `confidence` 0 to 1. Verified: its lines are part of the diff."""

    priority: int | None
    file: str | None
    startLine: int | None
    endLine: int | None
    title: str
    body: str
    confidence: float | None
    by: list[str]
    verified: bool
    evidence: EvidenceData
    secondLook: SecondLookData | None


class ReviewerData(TypedDict):
    """Reviewer. `error` is the reason for a failed review."""

    agent: str
    why: str
    sessionId: str | None
    verdict: str | None
    error: str | None


class ReviewJobReport(JobReport):
    """`findings` are valid; `refuted` failed the second look; `rejected` cite lines outside the diff."""

    target: str
    nothingToReview: bool
    findings: list[FindingData]
    refuted: list[FindingData]
    rejected: list[FindingData]
    reviewers: list[ReviewerData]


class PlannedFileData(TypedDict):
    file: str
    new: bool


class StepData(TypedDict):
    """Step of a plan. `status` is its result; `taskId` is the last turn that executed it."""

    title: str
    details: str
    files: list[PlannedFileData]
    check: str | None
    status: Literal["planned", "done", "failed", "not_run"]
    taskId: str | None
    attempts: int
    evidence: list[EvidenceData]


class PlanReport(JobReport):
    """Report of a plan.

    `candidates` is filled for several plans, and `compared` is the reason for the choice. `approved` is None if no
    question was asked. The executed change is described as in `SolvedReport`.
    """

    summary: str
    steps: list[StepData]
    risks: list[str]
    checks: list[str]
    openQuestions: list[str]
    compared: str | None
    approved: bool | None
    workSessionId: str | None
    diff: DiffData | None
    applied: ApplyOutcome
    applyError: str | None
