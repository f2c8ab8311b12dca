"""What jobs report, as data: one shape for each kind of outcome. This is what doors show and what the registry keeps.

Keys are in the words of JSON. What is not known, or does not apply, is None; every key is always there.
"""

from __future__ import annotations

from typing import Any, Literal, NotRequired

from typing_extensions import TypedDict  # of which schemas can be made in Python 3.11 too

ApplyOutcome = Literal["applied", "not_asked", "refused", "failed", "nothing"]
"""What became of the change: it is in the main tree; nobody was asked (`apply: never`); somebody said no, or nobody
answered; it could not be applied (`applyError` says why); or there is nothing to apply."""


class EvidenceData(TypedDict):
    """One thing that was looked at. `detail` is what was seen, for example the end of an output."""

    ok: bool
    what: str
    file: NotRequired[str]
    startLine: NotRequired[int]
    endLine: NotRequired[int]
    detail: NotRequired[str]


class FailureData(TypedDict):
    """A test that failed."""

    name: str
    message: str


class CheckRunData(TypedDict):
    """A check that was run. `exitCode` is None where its time was up; `output` is the end of what it said."""

    command: str
    passed: bool
    exitCode: int | None
    seconds: float
    output: str
    failures: NotRequired[list[FailureData]]
    errors: NotRequired[list[str]]
    notChecked: NotRequired[str]


class CheckData(TypedDict):
    """The command that verifies, and why it is this one. `folder` is where it runs, from the root of the repository."""

    command: str
    why: str
    folder: str


class FileData(TypedDict):
    """A changed file; `added` and `removed` are None of a binary one."""

    path: str
    kind: str
    added: int | None
    removed: int | None


class DiffData(TypedDict):
    """A change: its size, and its digest, by which `apply` takes it."""

    files: list[FileData]
    added: int
    removed: int
    stat: str
    digest: str


class PlaceData(TypedDict):
    """Lines of a file; without numbers, the file as a whole."""

    file: str
    startLine: int | None
    endLine: int | None


class CandidateData(TypedDict):
    """One solution. `why` is why this agent made it, `told` what its agent said last, `error` why it came to no end."""

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
    """A changed file that belongs to the check, and why."""

    file: str
    what: str


class JobReport(TypedDict):
    """What every kind has. `review` has no candidates.

    `says` is the verdict in a sentence. `agent`, `why`, `sessionId`, `attempts` and `evidence` are those of the winner, or
    of the only one. `costUsd` is None where no price is known.
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
    """What `debug`, `refactor` and `test` have: a change in a worktree. `compared` says why the winner is the winner.

    `checkChanges` are the changed files that belong to the check: it ran with them as they were before. `notes` are for a
    person to look at: the rule cannot tell whether they belong to the check.
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
    """`reproduced` says how the failure is the named one: `test`, `message`, `words`, `any` or `no`; `tests` show it."""

    reproduced: str | None
    tests: list[str]
    rootCause: RootCauseData | None


class RefactorReport(SolvedReport):
    """`interfaces` is `same`, `added`, `removed`, `changed` (`before`, `after`) and `unknown`, by full names."""

    scope: list[str]
    interfaces: dict[str, Any] | None


class NewTestsReport(SolvedReport):
    """`tests` are the files of the new tests, `underTest` the lines that they are said to test."""

    tests: list[str]
    underTest: list[PlaceData]


class SecondLookData(TypedDict):
    """Somebody tried to refute a finding."""

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
    """Who reviewed. `error` says why nothing came of it."""

    agent: str
    why: str
    sessionId: str | None
    verdict: str | None
    error: str | None


class ReviewJobReport(JobReport):
    """`findings` hold; `refuted` did not hold at the second look; `rejected` cite what is not in the diff."""

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
    """A step of a plan. `status` is what became of it; `taskId` is the turn that carried it out last."""

    title: str
    details: str
    files: list[PlannedFileData]
    check: str | None
    status: Literal["planned", "done", "failed", "not_run"]
    taskId: str | None
    attempts: int
    evidence: list[EvidenceData]


class PlanReport(JobReport):
    """`candidates` are there of several plans, and `compared` says why it is this one. `approved` is None where nobody was
    asked. What was carried out is a change, as of `SolvedReport`.
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
