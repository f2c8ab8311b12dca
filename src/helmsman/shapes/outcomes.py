"""Inputs and outputs of the five jobs: debug, review, plan, refactor, test.

All kinds share most inputs, and each adds a few. `capabilities.outcomes.reports` defines their reports.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Final

from pydantic import Field, SkipValidation

from helmsman.base.caller_context import from_here
from helmsman.base.structs import replace
from helmsman.capabilities.outcomes import reports
from helmsman.capabilities.outcomes.request import AUTO, DEFAULT_SECONDS, MOST_CANDIDATES, Apply, Kind, Wanted
from helmsman.errors import InvalidInput
from helmsman.shapes.contract import UNLISTED, ErrorOutput, Input, Output, PendingQuestion
from helmsman.tasks.model import TaskStatus

WAIT_SECONDS: Final = 25.0


class OutcomeInput(Input):
    kind: ClassVar[Kind]
    own: ClassVar[frozenset[str]] = frozenset()
    """Fields that only this kind accepts, passed on as `more`."""

    request: str | None = Field(None, description="What is wanted, in words. Required to begin.")
    working_directory: str | None = Field(None, description="Default: where the server was started.")
    agent: str | list[str] | None = Field(
        None, description="Who: codex, claude, …; several work side by side. Default: auto."
    )
    budget_usd: float | None = Field(None, gt=0, description="Stop when it has cost this much.")
    job_limit_sec: float = Field(DEFAULT_SECONDS, gt=0, description="Stop the job after this long.")
    idempotency_key: str | None = Field(None, description="The same key again gives the same task.")
    task_id: str | None = Field(None, description="Follow this one instead of beginning.")
    timeout_sec: float | None = Field(
        None, ge=0, le=3600, description="How long this call waits. Default: 25 with taskId, else 0."
    )
    wait_sec: float | None = Field(
        None, ge=0, le=3600, description="Deprecated: timeoutSec.", json_schema_extra=UNLISTED
    )
    cancel: bool = Field(False, description="With taskId: stop it.")
    with_output: bool = Field(
        False, description="With taskId: the report with all evidence and output.", json_schema_extra=UNLISTED
    )

    @property
    def wants_diff(self) -> bool:
        return False

    def wanted(self) -> Wanted:
        """Return the job to start.

        Raises:
            InvalidInput: The request is missing, or an option needs an existing task.
        """
        if self.request is None:
            # Optional in the schema, because a call with taskId has none.
            raise InvalidInput("Say what is wanted (request), or which task to follow (taskId).", parameter="request")
        if self.cancel or self.wants_diff:
            raise InvalidInput(
                "cancel and withDiff are for a task that was begun: give its taskId.", parameter="taskId"
            )
        return Wanted(
            kind=self.kind,
            request=self.request,
            # Resolved now: the job runs in the hub, whose directory is another.
            directory=str(from_here(self.working_directory or ".").resolve()),
            agents=agents_of(self.agent),
            budget_usd=self.budget_usd,
            seconds=self.job_limit_sec,
            more=self.model_dump(by_alias=True, include=set(self.own), exclude_none=True),
            # Kinds without one of these options simply have no such field.
            **self.model_dump(include={"check", "candidates", "apply", "judge"}),
        )


class CheckedInput(OutcomeInput):
    """Inputs of jobs that end with a change."""

    check: str | None = Field(
        None, description="The command that tells whether it works, e.g. make test. Default: as the repository has it."
    )
    apply: Apply = Field(
        "ask",
        description="What becomes of a verified change. One that changes the check is asked about, unless never.",
    )
    with_diff: bool = Field(False, description="With taskId: the change as text too.")

    @property
    def wants_diff(self) -> bool:
        return self.with_diff


class SolvedInput(CheckedInput):
    """Inputs of jobs that can run several candidates in parallel."""

    candidates: int = Field(1, ge=1, le=MOST_CANDIDATES, description="Solutions made side by side.")


class JudgedInput(SolvedInput):
    """Inputs of jobs whose verified change another agent can judge."""

    judge: str = Field(AUTO, description="Who judges a verified change: auto (another agent), never, or an agent.")


def agents_of(given: str | list[str] | None) -> tuple[str, ...]:
    """Return the requested agents. An empty tuple lets Helmsman choose."""
    names = [given] if isinstance(given, str) else given or []
    return () if names == [AUTO] else tuple(names)


class JobQuestion(PendingQuestion):
    session_id: str


class OutcomeOutput(Output):
    task_id: str
    status: TaskStatus = Field(description="working: call again with taskId.")
    agent: str | None = Field(None, description="Who does it.")
    why: str | None = None
    progress: str | None = None
    verified: bool | None = Field(None, description="At the end. Only true is done; report.says says what it means.")
    report: Annotated[reports.JobReport | None, SkipValidation] = None
    diff: str | None = None
    pending_question: JobQuestion | None = Field(None, description="Answer it with {tool}_respond.")
    more_questions: int | None = None
    note: str | None = None
    error: ErrorOutput | None = None
    result: str | None = Field(None, exclude=True)
    """Report for people, used as the text of the tool result."""


class DebugInput(JudgedInput):
    kind: ClassVar[Kind] = "debug"
    own: ClassVar[frozenset[str]] = frozenset({"test"})
    request: str | None = Field(
        None, description='The symptom, e.g. "make test fails: KeyError in parse()". Required to begin.'
    )
    test: str | None = Field(None, description="The failing test, by its name.")


class ReviewJobInput(OutcomeInput):
    kind: ClassVar[Kind] = "review"
    own: ClassVar[frozenset[str]] = frozenset({"branch", "commit", "diff"})
    request: str | None = Field(None, description='What to look at, e.g. "Look only at security".')
    branch: str | None = Field(
        None, description="Review all that differs from it, e.g. main. Default: what is not committed."
    )
    commit: str | None = Field(None, description="Review this commit.")
    diff: str | None = Field(None, description="Review this text, e.g. a pull request's diff.")
    candidates: int = Field(1, ge=1, le=MOST_CANDIDATES, description="How many agents look at it.")

    def wanted(self) -> Wanted:
        more = reviewed(branch=self.branch, commit=self.commit, diff=self.diff)
        # Reviews need no request, unlike the other kinds.
        given = self if self.request is not None else self.model_copy(update={"request": WHOLE_REVIEW})
        return replace(super(ReviewJobInput, given).wanted(), more=more)


def reviewed(*, branch: str | None, commit: str | None, diff: str | None) -> dict[str, Any]:
    """Return the target of a review, as the review procedure expects it.

    Raises:
        InvalidInput: More than one target is given.
    """
    given = {
        name: value for name, value in (("branch", branch), ("commit", commit), ("diff", diff)) if value is not None
    }
    if len(given) > 1:
        raise InvalidInput(f"Review one thing: {' or '.join(given)}.", parameter=next(iter(given)))
    target = "base" if branch is not None else "commit" if commit is not None else None
    return given if target is None else {"target": target, **given}


WHOLE_REVIEW: Final = "Review the change."  # the request if none is given


class PlanJobInput(SolvedInput):
    kind: ClassVar[Kind] = "plan"
    candidates: int = Field(1, ge=1, le=MOST_CANDIDATES, description="Plans made side by side; the best is offered.")
    request: str | None = Field(None, description='The goal, e.g. "Split the parser in two". Required to begin.')
    apply: Apply = Field("ask", description="What becomes of the change of an approved plan; never: only plan.")


class RefactorInput(JudgedInput):
    kind: ClassVar[Kind] = "refactor"
    own: ClassVar[frozenset[str]] = frozenset({"scope"})
    request: str | None = Field(None, description="What is to become better. Required to begin.")
    scope: list[str] | None = Field(
        None, description='Only these files and directories may change, e.g. ["src/parser"]. Default: all.'
    )


class NewTestsInput(JudgedInput):
    kind: ClassVar[Kind] = "test"
    own: ClassVar[frozenset[str]] = frozenset({"base"})
    request: str | None = Field(None, description="What is to be tested. Required to begin.")
    base: str | None = Field(None, description="A commit whose code the new tests are to fail with, e.g. HEAD~1.")


INPUTS: Final[dict[Kind, type[OutcomeInput]]] = {
    one.kind: one for one in (DebugInput, ReviewJobInput, PlanJobInput, RefactorInput, NewTestsInput)
}
