"""Input and output models of the toolset `sessions`.

Field names are camelCase on the wire. Inputs forbid unknown fields, so that a misspelt argument is an error and not a
silent default. Descriptions are written for an agent that has never seen the tool.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic.alias_generators import to_camel

from helmsman.base.unknown_names import nearest
from helmsman.errors import InvalidInput
from helmsman.git.diff import FileKind
from helmsman.model.inputs import worktree_words
from helmsman.model.options import ApprovalPolicy, OnMachineLoss, Placement, SandboxMode
from helmsman.sessions.progress import STEPS
from helmsman.sessions.state import SessionStatus
from helmsman.settings import OnLimit


class Input(BaseModel):
    # `defer_build`: only the schemas that a server lists are built, because clients wait for it to start.
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="forbid", defer_build=True)

    @model_validator(mode="before")
    @classmethod
    def _null_is_left_out(cls, given: Any) -> Any:
        """Drop nulls of optional fields: some agents send null for an argument they mean to omit."""
        if not isinstance(given, dict):
            return given
        # A required argument keeps its null, so that it is refused and not silently empty.
        optional = {field.alias or key for key, field in cls.model_fields.items() if not field.is_required()}
        return {name: value for name, value in given.items() if value is not None or name not in optional}

    @classmethod
    def read(cls, given: Any, *, whole: str) -> Self:
        """Validate the arguments of a call. `whole` names the value as a whole in errors without a field.

        Raises:
            InvalidInput: The arguments do not match. The error lists the known names.
        """
        try:
            # Only the wire names: an alias and its field name in one call would be two values for one field.
            return cls.model_validate(given, by_alias=True, by_name=False)
        except ValidationError as error:
            # One problem at a time: a model corrects the first and calls again.
            first = error.errors(include_url=False, include_context=False)[0]
        name = ".".join(str(part) for part in first["loc"]) or whole
        known = [field.alias or key for key, field in cls.model_fields.items()]
        all_known = f"The arguments are: {', '.join(known) or 'none'}."
        match first["type"]:
            case "missing":
                problem = f"{name} is missing. {all_known}"
            case "extra_forbidden":
                meant = nearest(name, known)
                problem = f"There is no argument {name}. {f'Did you mean {meant}? ' if meant else ''}{all_known}"
            case _:
                problem = f"{name}: {first['msg'].replace('Input should', 'it should')}."
        raise InvalidInput(problem, parameter=name)


class Output(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, defer_build=True)

    def as_dict(self) -> dict[str, Any]:
        """Return the model as it goes over the wire, without fields that are None."""
        return self.model_dump(by_alias=True, mode="json", exclude_none=True)

    def is_failure(self) -> bool:
        """Return whether the call itself failed, as opposed to the work it reports."""
        return False


_SUMMARY_CHARS: Final = 200

SessionId = Annotated[
    str,
    Field(description="From {tool}_start or {tool}_list."),
]
AgentName = Annotated[
    str | None,
    Field(
        default=None,
        description="codex, claude, gemini, opencode, qwen, copilot or one of your own. Default: as configured.",
    ),
]
Images = Annotated[
    list[str], Field(default_factory=list[str], description='Files to show it, e.g. ["/src/app/screen.png"].')
]


# --- inputs ----------------------------------------------------------------------------------------------------------


UNLISTED: Final[dict[str, Any]] = {"unlisted": True}
"""Marks a parameter that `tools/list` names only in `options`."""


class StartInput(Input):
    prompt: str = Field(description='What {agent} is to do, e.g. "Fix the failing test in tests/test_parser.py".')
    working_directory: str | None = Field(
        None, description="Where it works, e.g. /src/app. Default: where the server was started."
    )
    model: str | None = Field(None, description="A model other than the configured one, e.g. gpt-5.5.")
    approval_policy: ApprovalPolicy | None = Field(
        None,
        description="When {agent} asks first: untrusted (nearly always), on-request (when it wants more than the sandbox "
        "allows), never. Default: as configured.",
    )
    sandbox: SandboxMode | None = Field(
        None,
        description="What it may write. workspace-write suits most work. Default: as configured, often read-only.",
    )
    full_auto: bool = Field(
        False,
        description="Short for approvalPolicy on-request with sandbox workspace-write.",
        json_schema_extra=UNLISTED,
    )
    profile: str | None = Field(
        None, description="A profile of Codex's configuration, e.g. careful.", json_schema_extra=UNLISTED
    )
    config: dict[str, Any] | None = Field(
        None,
        description='Settings of config.toml for this session, e.g. {"model_verbosity": "low"}.',
        json_schema_extra=UNLISTED,
    )
    base_instructions: str | None = Field(
        None, description="Replaces {agent}'s own instructions.", json_schema_extra=UNLISTED
    )
    developer_instructions: str | None = Field(
        None, description='Added to its instructions, e.g. "Write British English."', json_schema_extra=UNLISTED
    )
    images: Images
    skip_git_repo_check: bool = Field(
        False, description="Only for the exec engine: allow a directory without git.", json_schema_extra=UNLISTED
    )
    dangerously_bypass_approvals_and_sandbox: bool = Field(
        False, description="No sandbox, no questions. Only inside another sandbox.", json_schema_extra=UNLISTED
    )
    trust_repository: bool = Field(
        False,
        description="Load the repository's own {kind} configuration (MCP servers, hooks).",
        json_schema_extra=UNLISTED,
    )
    writable_roots: list[str] = Field(
        default_factory=list[str],
        description='More that workspace-write may write to, e.g. ["/src/shared"].',
        json_schema_extra=UNLISTED,
    )
    output_schema: dict[str, Any] | None = Field(
        None, description="A JSON schema for the final message.", json_schema_extra=UNLISTED
    )
    effort: str | None = Field(None, description="How hard it thinks, e.g. high.")
    worktree: bool = Field(
        False,
        description="Leave the tree alone: work in a git worktree of the last commit; then {tool}_apply.",
    )
    worktree_from: str | None = Field(
        None,
        description="A worktree that starts from a branch, tag or commit, from a pull request (pr:17), or with the "
        "uncommitted changes (dirty).",
        json_schema_extra=UNLISTED,
    )
    add_dirs: list[str] = Field(
        default_factory=list[str],
        description='More repositories to work in, e.g. ["/src/lib"]: with worktree one each, applied together.',
        json_schema_extra=UNLISTED,
    )
    min_remaining_percent: float | None = Field(
        None,
        ge=0,
        le=100,
        description="Start only if so much of the rate limit is left, e.g. 20; else rate_limit_low.",
        json_schema_extra=UNLISTED,
    )
    on_limit: OnLimit | None = Field(
        None,
        description="When the account's usage limit is reached: ask, wait (resume by itself when it resets) or fail. "
        "Default: as configured.",
        json_schema_extra=UNLISTED,
    )
    max_cost_usd: float | None = Field(
        None, gt=0, description="Stop it when it has cost more, e.g. 2.5.", json_schema_extra=UNLISTED
    )
    idempotency_key: str | None = Field(
        None, description="The same key again gives the same session, e.g. fix-issue-17.", json_schema_extra=UNLISTED
    )
    more: dict[str, Any] | None = Field(
        None,
        alias="options",
        description="Rare: developerInstructions, baseInstructions, config{}, profile, outputSchema{}, "
        "writableRoots[], addDirs[], worktreeFrom, trustRepository, fullAuto, dangerouslyBypassApprovalsAndSandbox, "
        "skipGitRepoCheck, "
        "minRemainingPercent, onLimit (ask, wait, fail), maxCostUsd, idempotencyKey.",
    )

    @model_validator(mode="before")
    @classmethod
    def _options_are_parameters(cls, given: Any) -> Any:
        """Treat each option in `options` as a parameter of the tool."""
        more = given.get("options") if isinstance(given, dict) else None
        if not isinstance(more, dict):
            return given
        for name, value in more.items():
            if given.get(name, value) != value:
                raise ValueError(f"{name} is given twice, at the top and in options: give it once")
        return {**more, **{name: value for name, value in given.items() if name != "options"}}

    def options(self) -> dict[str, Any]:
        """Return the library's options: all fields except the prompt."""
        options = self.model_dump(exclude={"prompt", "working_directory", "more", "worktree_from", "add_dirs"})
        return {"cwd": self.working_directory, **options} | worktree_words(
            self.add_dirs, self.worktree_from, options["writable_roots"], worktree=self.worktree
        )


class AgentStartInput(StartInput):
    agent: AgentName
    unenforced: bool = Field(
        False, description="Start even if no sandbox can hold the agent: what is approved may write anywhere."
    )


class PlacementInput(Input):
    """Placement of a run in a fleet: machine, priority, times."""

    machine: str | None = Field(None, description="The one machine of the fleet that is to do it, e.g. build-1.")
    labels: list[str] = Field(default_factory=list[str], description='What its machine must have, e.g. ["gpu"].')
    priority: int | None = Field(None, ge=1, le=1000, description="1 comes first. Default: 100.")
    delay_sec: float | None = Field(None, ge=0, description="Begin so many seconds from now.")
    deadline_sec: float | None = Field(None, gt=0, description="Stop it so many seconds from now.")
    in_place: bool = Field(
        False, description="Work in the directory of this path on that machine; else the repository is brought there."
    )
    on_machine_loss: OnMachineLoss | None = Field(
        None, description="What becomes of a turn that is cut off with its machine. Default: ask if it could reach out."
    )

    def placed(self) -> dict[str, Any]:
        return {
            "placement": Placement(
                machine=self.machine,
                labels=tuple(self.labels),
                priority=self.priority,
                delay=self.delay_sec,
                deadline=self.deadline_sec,
                in_place=self.in_place,
                on_machine_loss=self.on_machine_loss,
            )
        }


class FleetStartInput(StartInput, PlacementInput):
    def options(self) -> dict[str, Any]:
        return _without_place(super().options()) | self.placed()


class FleetAgentStartInput(AgentStartInput, PlacementInput):
    def options(self) -> dict[str, Any]:
        return _without_place(super().options()) | self.placed()


def _without_place(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name not in PlacementInput.model_fields}


class SayInput(Input):
    session_id: SessionId
    message: str = Field(description='The next message, e.g. "Now add a test for it".')
    images: Images
    when_busy: Literal["error", "steer", "queue"] = Field(
        "error",
        description="While a turn is running: refuse, put it into that turn, or make it the next one.",
    )

    def options(self) -> dict[str, Any]:
        """Return the library's options that were set: all fields except the message."""
        return self.model_dump(exclude={"session_id", "message"}, exclude_defaults=True)


class AgentSayInput(SayInput):
    agent: str | None = Field(
        None,
        description="Another agent than the session's: hand over to it. A new session there begins with what was said and "
        "done, in the same directory, and may do no more unless sandbox and approvalPolicy say so.",
    )
    sandbox: SandboxMode | None = Field(None, description="From now on; as for agent_start.")
    approval_policy: ApprovalPolicy | None = Field(None, description="From now on; as for agent_start.")
    trust_repository: bool = Field(False, description="As for agent_start.")
    unenforced: bool = Field(False, description="As for agent_start.")


class StatusInput(Input):
    session_id: SessionId
    output_lines: int = Field(50, ge=0, le=2000, description="How many lines of recent output to return.")
    since_cursor: int | None = Field(
        None, ge=0, description="Only the item events since this cursor of an earlier reply, e.g. 42."
    )


class WaitInput(Input):
    session_id: str | None = Field(None, description="From {tool}_start or {tool}_list.")
    session_ids: list[str] | None = Field(None, description="Several instead: wait for any of them, or for all.")
    timeout_sec: float = Field(
        25,
        ge=0,
        le=3600,
        description="How long this call waits. 25 suits every client.",
    )
    until: Literal["attention", "change", "all"] = Field(
        "attention",
        description="attention: a turn ended or {agent} asks something. change: anything happened. all: every turn ended, "
        "or {agent} asks.",
    )

    @property
    def ids(self) -> list[str]:
        """Return the sessions to wait for, without duplicates.

        Raises:
            InvalidInput: None is given, or both parameters are.
        """
        if (self.session_id is None) == (not self.session_ids):
            raise InvalidInput("Give sessionId, or several as sessionIds.", parameter="sessionId")
        # Order kept, duplicates dropped: the answer lists the sessions as they were asked for.
        return list(dict.fromkeys(self.session_ids or [self.session_id or ""]))


class RespondInput(Input):
    session_id: SessionId
    id: str = Field(description="The id of pendingQuestion, e.g. q_1f3a9c0b2d.")
    answers: list[str] = Field(
        description='One for each part of the question: an option, ["yes"] or ["no: touches production"] with a reason for '
        "{agent}; free text where there are no options. yes approves this one thing only."
    )


class NothingInput(Input):
    pass


class SessionInput(Input):
    session_id: SessionId


class ListInput(Input):
    working_directory: str | None = Field(None, description="Only sessions of this directory, e.g. /src/app.")
    limit: int = Field(50, ge=1, le=500, description="How many at most.")
    cursor: str | None = Field(None, description="nextCursor of the page before.")
    query: str | None = Field(None, description="Words in the first prompt or the name.")
    search: str | None = Field(None, description='Words in all that was said and done, e.g. "flaky test". Not paged.')
    include_archived: bool = Field(False, description="Archived ones too.")


class AgentListInput(ListInput):
    agent: str | None = Field(None, description="Only sessions of this agent, e.g. claude.")


# --- outputs ---------------------------------------------------------------------------------------------------------


class WorktreeOutput(Output):
    path: str
    branch: str


class StartOutput(Output):
    session_id: str
    status: SessionStatus
    task_id: str | None = None
    worktree: WorktreeOutput | None = None
    note: str | None = Field(None, description="What was done differently from what was asked.")


class SayOutput(Output):
    session_id: str
    status: SessionStatus
    task_id: str | None = None
    handed_over_from: str | None = Field(None, description="The session that this new one goes on with.")
    note: str | None = None


class QuestionPart(Output):
    question: str
    options: list[str] = Field(description="Empty: any text is an answer.")


class DeadlineOutput(Output):
    seconds_left: int = Field(description="After that it is denied; a question for words stays unanswered.")
    paused: bool = Field(description="A user has it on screen.")


class PendingQuestion(Output):
    id: str
    type: Literal["command_approval", "patch_approval", "permission_approval", "user_input", "mcp_elicitation"]
    questions: list[QuestionPart]
    details: dict[str, Any] = Field(description="What to see before deciding: command, directory, diff, reason, …")
    deadline: DeadlineOutput | None = None


class ItemEvent(Output):
    item_type: str
    status: Literal["started", "in_progress", "completed", "failed"]
    summary: str | None = None


class UsageOutput(Output):
    input_tokens: int
    cached_input_tokens: int
    output_tokens: int
    reasoning_output_tokens: int
    cost_usd: float | None = Field(None, description="As the agent tells it. Absent: it does not.")


class NowOutput(Output):
    command: str | None = None
    file: str | None = None
    tool: str | None = None
    step: str | None = None


class StepOutput(Output):
    key: str
    label: str
    done: bool


class ProgressOutput(Output):
    text: str
    done: int | None = None
    total: int | None = None
    unit: str | None = None
    percent: int | None = Field(None, description="Only where a plan or a test run says how much there is.")
    eta_seconds: int | None = None
    elapsed_seconds: int | None = Field(None, description="How long the turn has run.")
    now: NowOutput | None = Field(None, description="What is being done at the moment.")
    steps: list[StepOutput] | None = Field(None, description="The agent's plan, where it has one.")
    percentage: int | None = None
    current_step: int | None = None
    total_steps: int | None = None
    step_description: str | None = None

    @model_validator(mode="after")
    def _by_other_names(self) -> Self:
        """Repeat percentage and steps under the names that other tools use for them."""
        self.percentage = self.percent
        if self.unit == STEPS and self.done is not None and self.total is not None:
            # The step at work is the one after those that are done; at the end there is no further one.
            self.total_steps, self.current_step = self.total, min(self.done + 1, self.total)
            self.step_description = self.now.step if self.now is not None else None
        return self

    @field_validator("now", "steps", mode="after")
    @classmethod
    def _nothing_is_left_out(cls, value: Any) -> Any:
        # An empty list or object would read as a plan without steps.
        return None if not value or value == NowOutput() else value


class ChangedFile(Output):
    path: str
    kind: FileKind = Field(description="mode: only its mode was changed.")
    old_path: str | None = Field(None, description="If renamed or copied.")
    added: int | None = Field(None, description="Absent for a binary file.")
    removed: int | None = None


class ErrorOutput(Output):
    code: str
    message: str
    retryable: bool


class Waits(BaseModel):
    """Wait state of a task, or of the session that runs it."""

    waiting_for: Literal["quota", "budget"] | None = Field(
        None, description="What holds it up: the account's usage limit, or a question about a budget."
    )
    resumes_at: str | None = Field(None, description="When it goes on by itself.")
    resumes_in_sec: int | None = None


class WaitedSession(Output):
    session_id: str
    status: SessionStatus
    result: str | None = None


class StatusOutput(Output, Waits):
    session_id: str
    agent: str
    handed_over_from: str | None = Field(None, description="The session that this one goes on with.")
    status: SessionStatus
    result: str | None = Field(None, description="The final message, once the turn has completed.")
    output: Any = Field(None, description="The same as an object, where an output schema was given.")
    error: ErrorOutput | None = None
    recent_output: list[str]
    pending_question: PendingQuestion | None = Field(None, description="Answer it with {tool}_respond.")
    more_questions: int | None = Field(None, description="How many further questions are open.")
    item_events: list[ItemEvent]
    files_changed: list[ChangedFile] | None = Field(
        None, description="What the turn's edits changed, with the lines added and removed."
    )
    usage: UsageOutput | None = None
    turn_count: int
    progress: ProgressOutput | None = None
    note: str | None = Field(None, description="What it waits for, or which question timed out.")
    timed_out: list[str] | None = Field(
        None, description="Questions of this turn without an answer in time, so that nothing was granted."
    )
    cursor: int
    recommended_poll_ms: int
    ttl_ms: int | None = Field(None, description="How much longer its result is kept.")
    working_directory: str | None = None
    enforced: bool | None = Field(None, description="Whether a sandbox holds the agent, or nothing does.")
    model: str | None = None
    worktree: WorktreeOutput | None = None
    sessions: list[WaitedSession] | None = Field(
        None, description="All that were waited for. The rest is about the first of them that needs attention."
    )


class StateOutput(Output):
    session_id: str
    status: SessionStatus


class ListedSession(Output, Waits):
    session_id: str
    agent: str
    handed_over_from: str | None = None
    directory: str | None = None
    summary: str | None = None
    timestamp: str
    is_active: bool
    active_status: SessionStatus | None = None
    source: str | None = None
    enforced: bool | None = None
    model: str | None = None
    task_ids: list[str] | None = None
    excerpt: str | None = Field(None, description="Where the words of `search` are.")

    @classmethod
    def of(cls, listed: dict[str, Any]) -> Self:
        """Return a short entry for the tool's list. `helmsman.shapes.listed_sessions` has the full one."""
        # Cut here and not in the full entry, because the dashboard and the terminal have more room.
        summary = " ".join(listed.get("summary", "").split())[:_SUMMARY_CHARS] or None
        excerpt = "".join(listed.get("excerpt", ())) or None
        more = {"summary": summary, "activeStatus": listed.get("status"), "excerpt": excerpt}
        return cls.model_validate({**listed, **more})


class ListOutput(Output):
    sessions: list[ListedSession]
    next_cursor: str | None = None
    note: str | None = None
