"""Input and output models of the toolset `router`: the tool `codex` and its primitives.

The names are a public contract. Primitives use snake_case, `codex` uses camelCase except for a few names.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import ConfigDict, Field, model_validator

from helmsman.model.options import ApprovalPolicy, SandboxMode
from helmsman.router.vocabulary import RouterVerb
from helmsman.shapes.contract import (
    ChangedFile,
    ErrorOutput,
    Input,
    Output,
    PendingQuestion,
    ProgressOutput,
    UsageOutput,
    Waits,
)
from helmsman.tasks.model import TaskOrigin, TaskStatus

Dollars = Annotated[float, Field(gt=0, allow_inf_nan=False)]  # infinity and NaN would disable the limit


class _Named(Output):
    """Output with snake_case field names on the wire."""

    # The primitives' names are snake_case in a published contract.
    model_config = ConfigDict(alias_generator=None)


class _NamedInput(Input):
    model_config = ConfigDict(alias_generator=None)


# --- the tool `codex` ------------------------------------------------------------------------------------------------


class HintsInput(Input):
    operation: RouterVerb | None = Field(None, description="What to do, if you know: then the words are not parsed.")
    mode: Literal["auto", "local", "cloud"] | None = Field(None, description="Where to run, e.g. local.")
    task_id: str | None = Field(
        None,
        description="Which task is meant: its id or alias, e.g. T-local-0f3a9c1b2d4e. With work: the task to go on with.",
    )
    timeout_ms: int | None = Field(None, ge=1, le=3_600_000, description="How long a wait may take, e.g. 25000.")
    poll_frequency_ms: int | None = Field(
        None, ge=100, le=600_000, description="How often to tell of progress while waiting, e.g. 5000."
    )
    sync: Literal["auto", "sync", "async"] | None = Field(
        None, description="sync: wait for the work you start, as timeoutMs says. Default: return at once."
    )
    answers: list[str] | None = Field(
        None, description='With respond: one answer for each part of the question, e.g. ["approve"].'
    )
    question_id: str | None = Field(None, description="With respond: which question, by the id of pendingQuestion.")
    environment: str | None = Field(None, description="[[Cloud only: the environment, by name, id or label.]]")
    attempts: int | None = Field(None, ge=1, le=4, description="[[Cloud only: how many attempts to make, e.g. 1.]]")
    branch: str | None = Field(None, description="[[Cloud only: the branch to start from, e.g. main.]]")
    attempt: int = Field(1, ge=1, le=4, description="[[Cloud only, with results and apply: which attempt, e.g. 1.]]")


class PreferenceInput(_NamedInput):
    mode: Literal["auto", "local", "cloud"] | None = None
    sync: Literal["auto", "sync", "async"] | None = None
    task_id: str | None = None


class ContextInput(_NamedInput):
    working_dir: str | None = Field(None, description="Where the work is: an existing directory, e.g. /src/app.")
    repo_root: str | None = Field(None, description="The root of its repository, used where working_dir is left out.")
    model: str | None = Field(
        None, description="For new work: a model other than the configured one[[, e.g. gpt-5.5]]."
    )


class SafetyInput(_NamedInput):
    require_confirmation: bool = Field(
        False, description="Return what would be done and a token; nothing happens until the token comes back."
    )
    confirmation_token: str | None = Field(None, description="The token of that answer, to do it now.")
    max_cost_usd: Dollars | None = Field(
        None, description="Stop the task when its tokens have cost more than this, e.g. 2.5."
    )
    sandbox: SandboxMode | None = Field(
        None, description="For new work: what it may touch, e.g. workspace-write. Default: as configured."
    )
    approval_policy: ApprovalPolicy | None = Field(
        None, description="For new work: when {agent} asks first, e.g. on-request. Default: as configured."
    )
    trust_repository: bool = Field(False, description="For new work: load the repository's own {kind} configuration.")
    unenforced: bool = Field(False, description="For new work: start also where no sandbox can hold it.")
    allow_dirty: bool = Field(False, description="With apply: go on where there are uncommitted changes.")


class CodexInput(Input):
    request: str = Field(
        "",
        description='What you want, in plain words: work to do ("fix the failing test in tests/test_parser.py"), or '
        'something about a task ("check my task", "wait for T-local-0f3a9c1b2d4e", "approve it", "cancel it", "show the '
        'results").',
    )
    hints: HintsInput = Field(default_factory=HintsInput, description="What you know already; it wins over the words.")
    context: ContextInput = Field(default_factory=ContextInput, description="Where the work is, and its model.")
    safety: SafetyInput = Field(default_factory=SafetyInput, description="Limits, permissions and confirmation.")
    idempotency_key: str | None = Field(
        None, description="With work: the same key again gives the same task, e.g. issue-17."
    )
    dry_run: bool = Field(False, description="Say what would be done, and do nothing.")
    explain: bool = Field(False, description="Say how the request was understood (decisionTrace).")
    instruction: str | None = Field(None, description="Another name of request.")
    preference: PreferenceInput | None = Field(None, description="Another name of hints: mode, sync and task_id.")

    @model_validator(mode="after")
    def _by_other_names(self) -> Self:
        """Accept `instruction` as the request and `preference` as hints, the names that earlier tools used."""
        # hints can replace words: `operation` says what, `task_id` about which task.
        hinted = self.hints.operation is not None or self.hints.task_id is not None
        if "request" not in self.model_fields_set and self.instruction is None and not hinted:
            raise ValueError("say what you want in request")
        if self.instruction is not None:
            if self.request and self.request != self.instruction:
                raise ValueError("request and instruction are the same thing: give one of them")
            self.request = self.instruction
        # The older names only fill gaps. Contradictions are errors, because either value may be the intended one.
        for name, value in () if self.preference is None else self.preference:
            known = getattr(self.hints, name)
            if value is not None and known not in (None, value):
                raise ValueError(f"preference.{name} is {value}, and hints say {known}: give one of them")
            if value is not None:
                setattr(self.hints, name, value)
        return self


class TaskOutput(Output, Waits):
    id: str
    alias: str
    agent: str
    mode: TaskOrigin
    status: TaskStatus
    progress: ProgressOutput | None = None
    input_required: bool = Field(False, description="It waits for an answer to pendingQuestion.")
    session_id: str | None = None
    enforced: bool | None = Field(None, description="False: nothing holds the agent to a sandbox.")
    created_at: str
    updated_at: str
    ttl_ms: int | None = Field(None, description="How much longer its result is kept.")
    recommended_poll_ms: int
    url: str | None = Field(None, description="[[Where a cloud task can be seen.]]")
    note: str | None = None


class ChoiceOutput(Output):
    number: int
    request: str = Field(description="What to send to choose it.")
    id: str | None = None
    alias: str | None = None
    status: TaskStatus | None = None
    age: str | None = Field(None, description="How long ago it ended, or else began.")
    instruction: str


class CommandOutput(Output):
    command: str
    exit_code: int | None = None
    declined: bool = False


class ResultSummary(Output):
    text: str | None = Field(None, description="{agent}'s final message.")
    diff: str | None = Field(None, description="What it changed, as a unified diff, where that is known.")
    files_changed: list[ChangedFile] | None = None
    artifacts: list[str] | None = Field(None, description="The files it made.")
    commands: list[CommandOutput] | None = Field(None, description="The commands it ran, in their order.")
    passed: int | None = Field(None, description="Tests, as the last test run counted them.")
    failed: int | None = None
    skipped: int | None = None
    duration_ms: int | None = None
    usage: UsageOutput | None = None
    cost_usd: float | None = Field(None, description="Left out where no price is known for the model.")
    error: ErrorOutput | None = None
    url: str | None = Field(None, description="[[Where a cloud task can be seen.]]")


class ConfirmationOutput(Output):
    token: str
    would_do: str
    expires_at: str


class AnsweredOutput(Output):
    question_id: str
    question: str = Field(description="What was asked, and now is answered.")
    answers: list[str]


class PollOutput(Output):
    next_action: Literal["poll"] = "poll"
    request: str
    after_ms: int


class RouterError(Output):
    code: str
    message: str
    retry_after_ms: int | None = None


class EnvironmentOutput(_Named):
    name: str
    reference: str
    source: str
    is_default: bool


class CodexOutput(Output):
    acknowledged: bool = Field(description="Whether the request was understood and is being seen to.")
    action: Literal[RouterVerb, "none"]
    decision_trace: list[str] | None = None
    task: TaskOutput | None = None
    result_summary: ResultSummary | None = None
    pending_question: PendingQuestion | None = None
    answered: AnsweredOutput | None = None
    tasks: list[TaskOutput] | None = Field(None, description="All tasks, when all were asked for.")
    environments: list[EnvironmentOutput] | None = None
    applied_files: list[str] | None = None
    choices: list[ChoiceOutput] | None = Field(
        None, description="What may be meant: say a number, or send its request."
    )
    alternatives: list[ChoiceOutput] | None = Field(None, description="What else an automatic choice could have been.")
    # A token makes the second call do exactly what was shown.
    confirmation: ConfirmationOutput | None = None
    next_action: Literal["await", "answer", "choose", "confirm", "none"]
    poll: PollOutput | None = Field(None, description="What a client that cannot wait does instead of await.")
    user_message: str = Field(description="The answer in a sentence or two, for a person.")
    next_actions: Annotated[list[str], Field(alias="next_actions", description="Requests that make sense now.")]
    error: RouterError | None = None

    def is_failure(self) -> bool:
        return self.error is not None


# --- the primitives --------------------------------------------------------------------------------------------------

WorkingDir = Annotated[
    str | None,
    Field(description="E.g. /src/app. Default: where the server was started."),
]


class LocalRunInput(_NamedInput):
    task: str = Field(description='What {agent} is to do, e.g. "Run the unit tests and report failures".')
    mode: SandboxMode = Field("read-only", description="What it may touch.")
    working_dir: WorkingDir = None
    model: str | None = Field(None, description="Other than the configured one[[, e.g. gpt-5.5]].")
    approval_policy: ApprovalPolicy | None = Field(None, description="When {agent} asks first. Default: as configured.")
    trust_repository: bool = Field(
        False, description="Load the repository's own {kind} configuration (MCP servers, hooks)."
    )
    unenforced: bool = Field(False, description="Start also where no sandbox can hold it.")
    max_cost_usd: Dollars | None = Field(None, description="Stop it when it has cost more, e.g. 2.5.")
    idempotency_key: str | None = Field(None, description="The same key again gives the same task, e.g. issue-17.")


class LocalExecInput(LocalRunInput):
    thread_id: str | None = Field(
        None, description="A thread to follow up on; its own options then stay in force, e.g. 0199a0f2-…"
    )


class LocalResumeInput(_NamedInput):
    thread_id: str = Field(description="As an earlier answer gave it, e.g. 0199a0f2-…")
    task: str = Field(description='The next message, e.g. "Now add a test for it".')
    max_cost_usd: Dollars | None = Field(None, description="Stop it when it has cost more, e.g. 2.5.")


class LocalTaskInput(_NamedInput):
    task_id: str = Field(description="Its id or alias, e.g. T-local-0f3a9c1b2d4e.")


_TIMEOUT = Field(300, ge=0, le=3600, description="The longest wait. Keep it below your client's own limit for a call.")


class LocalWaitInput(LocalTaskInput):
    timeout_sec: float = _TIMEOUT
    initial_delay_sec: float = Field(0, ge=0, le=600, description="When to tell of progress first.")
    poll_interval_sec: float = Field(
        5, ge=0.1, le=600, description="How often to tell of it then. The end is told at once."
    )


Reason = Annotated[str | None, Field(description='Why, kept with the task, e.g. "takes too long".')]


class LocalCancelInput(LocalTaskInput):
    reason: Reason = None


class CloudSubmitInput(_NamedInput):
    task: str = Field(description='What the cloud is to do, e.g. "Add rate limiting to the API, with tests".')
    env_id: str | None = Field(
        None, description="The environment, by id, label or configured name, e.g. env_1. Default: the configured one."
    )
    attempts: int = Field(1, ge=1, le=4, description="How many to make, side by side.")
    branch: str | None = Field(None, description="The branch to start from, e.g. main.")
    model: str | None = Field(None, description="Where this {agent} can choose one; leave it out otherwise.")
    working_dir: WorkingDir = None
    idempotency_key: str | None = Field(None, description="The same key again gives the same task, e.g. issue-17.")


class CloudTaskInput(_NamedInput):
    task_id: str = Field(description="Its id or alias, e.g. T-cloud-7be1042c9a55.")


class CloudWaitInput(CloudTaskInput):
    timeout_sec: float = _TIMEOUT
    initial_delay_sec: float = Field(2, ge=0, le=600, description="It is looked at now, and again after this.")
    # Cloud tasks take minutes, and each look is a request to a server.
    poll_interval_sec: float = Field(5, ge=1, le=600, description="Then after this, twice as long, … up to 15.")


class CloudCancelInput(CloudTaskInput):
    reason: Reason = None


class CloudListInput(_NamedInput):
    env_id: str | None = Field(None, description="Only of this environment, by id, label or configured name.")
    cursor: str | None = Field(None, description="next_cursor of the page before.")


class CloudResultsInput(CloudTaskInput):
    attempt: int = Field(1, ge=1, le=4, description="Which attempt to read.")
    apply_to: str | None = Field(None, description="A repository to bring the change into, e.g. /src/app.")
    allow_dirty: bool = Field(False, description="Apply despite uncommitted changes there.")
    digest: str | None = Field(None, description="Apply only the diff with this digest; else diff_changed.")


class GitHubSetupInput(_NamedInput):
    working_dir: WorkingDir = None


class TaskAnswer(_Named, Waits):
    task_id: str
    alias: str
    agent: str
    status: TaskStatus
    progress: ProgressOutput | None = None
    input_required: bool = False
    pending_question: PendingQuestion | None = None
    thread_id: str | None = None
    external_id: str | None = None
    url: str | None = None
    cancel_reason: str | None = None
    poll_frequency_ms: int
    keep_alive_until: str | None = None
    last_event_at: str | None = None
    note: str | None = None
    error: ErrorOutput | None = None
    next_actions: list[str]


class WaitAnswer(TaskAnswer):
    timed_out: bool = False
    result: str | None = None


class CancelAnswer(TaskAnswer):
    message: str = Field(description="What was stopped, or why nothing was.")


class ResultsAnswer(TaskAnswer):
    result: str | None = Field(None, description="The final message.")
    output: str | None = Field(None, description="All its messages.")
    diff: str | None = None
    files_changed: list[str] | None = None
    artifacts: list[str] | None = Field(None, description="Files it made.")
    passed: int | None = Field(None, description="Tests, in its last run of them.")
    failed: int | None = None
    usage: UsageOutput | None = None
    cost_usd: float | None = None
    duration_ms: int | None = None
    attempt: int | None = None
    attempts: int | None = None
    digest: str | None = Field(None, description="[[What the diff of a cloud task is called.]]")
    applied_files: list[str] | None = None


class EnvironmentsAnswer(_Named):
    environments: list[EnvironmentOutput]
    note: str


class GuideAnswer(_Named):
    guide: str = Field(description="The whole guide, as Markdown.")
    steps: list[str] = Field(description="The titles of its steps.")


class CloudListedTask(_Named):
    external_id: str
    task_id: str | None = Field(None, description="Where it was submitted from here.")
    title: str
    status: TaskStatus
    environment: str | None = None
    updated_at: str | None = None
    url: str
    files: int | None = Field(None, description="How many it changed.")
    added: int | None = None
    removed: int | None = None


class CloudTasksAnswer(_Named):
    tasks: list[CloudListedTask]
    next_cursor: str | None = None
