"""The tools' inputs and outputs, as clients see them: the contract of the toolset `sessions`.

Field names are camelCase on the wire. Inputs refuse what they do not know, so that a misspelt argument is an error and not
a silent default. Descriptions are written for an agent that has never seen the tool.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from helmsman.base.unknown_names import nearest
from helmsman.errors import InvalidInput
from helmsman.model.options import ApprovalPolicy, SandboxMode
from helmsman.sessions.state import SessionStatus
from helmsman.settings import OnLimit


class Input(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="forbid", defer_build=True)

    @classmethod
    def read(cls, given: Any, *, whole: str) -> Self:
        """What somebody sent, checked; `whole` is what the whole of it is called.

        Raises:
            InvalidInput: It does not fit. The error says which names there are.
        """
        try:
            return cls.model_validate(given, by_alias=True, by_name=False)
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False)[0]
        name = ".".join(str(part) for part in first["loc"]) or whole
        known = [field.alias or key for key, field in cls.model_fields.items()]
        meant = nearest(name, known) if name not in known else None
        advice = (f"Did you mean {meant}? " if meant else "") + f"The arguments are: {', '.join(known) or 'none'}."
        raise InvalidInput(f"{name}: {first['msg']}. {advice}", parameter=name)


class Output(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, defer_build=True)

    def as_dict(self) -> dict[str, Any]:
        """As it goes over the wire; what is None is left out."""
        return self.model_dump(by_alias=True, mode="json", exclude_none=True)

    def is_failure(self) -> bool:
        """Whether the call as a whole failed, and not only what it tells of."""
        return False


SessionId = Annotated[
    str,
    Field(description="The session, as codex_start or codex_list gave it, e.g. 0199a0f2-7c11-7d20-9f0a-3b2d5c8e1f00."),
]
Images = Annotated[
    list[str], Field(default_factory=list[str], description='Files to show to the model, e.g. ["/src/app/screen.png"].')
]


# --- inputs ----------------------------------------------------------------------------------------------------------


class StartInput(Input):
    prompt: str = Field(description='What Codex is to do, e.g. "Fix the failing test in tests/test_parser.py".')
    working_directory: str | None = Field(
        None, description="Where it works: an existing directory, e.g. /src/app. Default: where the server was started."
    )
    model: str | None = Field(None, description="A model other than the configured one, e.g. gpt-5.5.")
    approval_policy: ApprovalPolicy | None = Field(
        None,
        description="When Codex asks before it acts: untrusted (nearly always), on-request (when it wants more than the "
        "sandbox allows), never. on-failure exists in older Codex only. Default: as configured.",
    )
    sandbox: SandboxMode | None = Field(
        None,
        description="What commands may touch: read-only, workspace-write (the working directory), danger-full-access. "
        "Default: as configured.",
    )
    full_auto: bool = Field(False, description="Short for approvalPolicy on-request with sandbox workspace-write.")
    profile: str | None = Field(None, description="A profile of Codex's configuration, e.g. careful.")
    config: dict[str, Any] | None = Field(
        None, description='Settings of config.toml for this session, e.g. {"model_verbosity": "low"}.'
    )
    base_instructions: str | None = Field(None, description="Replaces Codex's own instructions. Rarely needed.")
    developer_instructions: str | None = Field(
        None, description='Added to its instructions, e.g. "Write British English."'
    )
    images: Images
    skip_git_repo_check: bool = Field(
        False, description="Only for the exec engine: allow a directory that is no git repository."
    )
    dangerously_bypass_approvals_and_sandbox: bool = Field(
        False, description="No sandbox and no questions. Only inside something that is itself a sandbox."
    )
    trust_repository: bool = Field(
        False, description="Load the repository's own Codex configuration (MCP servers, hooks) in this session."
    )
    writable_roots: list[str] = Field(
        default_factory=list[str],
        description='More directories that workspace-write may write to, e.g. ["/src/shared"].',
    )
    output_schema: dict[str, Any] | None = Field(
        None, description='A JSON schema the final message has to fit, e.g. {"type": "object", "properties": …}.'
    )
    effort: str | None = Field(None, description="How hard the model thinks, e.g. low, medium, high.")
    worktree: bool = Field(
        False, description="Work in a new git worktree of the repository, on a branch of its own; the reply says where."
    )
    min_remaining_percent: float | None = Field(
        None,
        ge=0,
        le=100,
        description="Start only while so much of the account's rate limit is left, e.g. 20; else error rate_limit_low.",
    )
    on_limit: OnLimit | None = Field(
        None,
        description="When the account's usage limit is reached: ask, wait (go on by itself when it is there again) or fail. "
        "Default: as configured.",
    )
    idempotency_key: str | None = Field(
        None, description="The same key again gives the same session instead of a second one, e.g. fix-issue-17."
    )

    def options(self) -> dict[str, Any]:
        """All but the prompt, by the names that the library has for them."""
        return {"cwd": self.working_directory, **self.model_dump(exclude={"prompt", "working_directory"})}


class SayInput(Input):
    session_id: SessionId
    message: str = Field(description='The next message, e.g. "Now add a test for it".')
    images: Images
    when_busy: Literal["error", "steer", "queue"] = Field(
        "error",
        description="While a turn is running: error (tells you so), steer (into the running turn), queue (the next turn).",
    )


class StatusInput(Input):
    session_id: SessionId
    output_lines: int = Field(50, ge=0, le=2000, description="How many lines of recent output to return, e.g. 50.")
    since_cursor: int | None = Field(
        None, ge=0, description="Only the item events since this cursor of an earlier reply, e.g. 42."
    )


class WaitInput(Input):
    session_id: SessionId
    timeout_sec: float = Field(
        25,
        ge=0,
        le=3600,
        description="How long to wait at most, e.g. 25. Keep it below your client's own limit for a call.",
    )
    until: Literal["attention", "change"] = Field(
        "attention", description="attention: the turn ended or Codex asks something. change: anything happened."
    )


class RespondInput(Input):
    session_id: SessionId
    id: str = Field(description="The id of pendingQuestion, e.g. q_1f3a9c0b2d.")
    answers: list[str] = Field(
        description='One answer for each part of the question: an option, e.g. ["approve"], or with a reason that Codex is '
        'told, e.g. ["deny: touches production"]; or free text where there are no options.'
    )


class NothingInput(Input):
    pass


class SessionInput(Input):
    session_id: SessionId


class ListInput(Input):
    working_directory: str | None = Field(None, description="Only sessions of this directory, e.g. /src/app.")
    limit: int = Field(50, ge=1, le=500, description="How many at most, e.g. 50.")
    cursor: str | None = Field(None, description="nextCursor of the page before.")
    query: str | None = Field(None, description='Words in the first prompt or the name, e.g. "parser".')
    include_archived: bool = Field(False, description="Archived sessions too.")


# --- outputs ---------------------------------------------------------------------------------------------------------


class WorktreeOutput(Output):
    path: str
    branch: str


class StartOutput(Output):
    session_id: str
    status: SessionStatus
    task_id: str | None = None
    worktree: WorktreeOutput | None = None
    note: str | None = Field(None, description="What was done differently from what was asked, if anything.")


class SayOutput(Output):
    session_id: str
    status: SessionStatus
    task_id: str | None = None


class QuestionPart(Output):
    question: str
    options: list[str] = Field(description="Empty: any text is an answer.")


class DeadlineOutput(Output):
    seconds_left: int = Field(description="The question is denied after so many seconds without an answer.")
    paused: bool = Field(description="The time stands still: the question is on somebody's screen.")


class PendingQuestion(Output):
    id: str
    type: Literal["command_approval", "patch_approval", "permission_approval", "user_input", "mcp_elicitation"]
    questions: list[QuestionPart]
    details: dict[str, Any] = Field(description="What one needs to see to decide: command, directory, diff, reason, …")
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


class ProgressOutput(Output):
    text: str
    done: int | None = None
    total: int | None = None
    unit: str | None = None
    eta_seconds: int | None = None


class ErrorOutput(Output):
    code: str
    message: str
    retryable: bool


class StatusOutput(Output):
    session_id: str
    agent: str
    status: SessionStatus
    result: str | None = Field(None, description="The final message, once the turn has completed.")
    output: Any = Field(None, description="The final message as an object, where an output schema was given.")
    error: ErrorOutput | None = None
    recent_output: list[str]
    pending_question: PendingQuestion | None = Field(None, description="Answer it with codex_respond.")
    more_questions: int | None = Field(None, description="How many further questions are open.")
    item_events: list[ItemEvent]
    usage: UsageOutput | None = None
    turn_count: int
    progress: ProgressOutput | None = None
    note: str | None = Field(None, description="What holds it up, if something does, or what nobody answered.")
    timed_out: list[str] | None = Field(
        None, description="Questions of this turn that nobody answered in time, so that they were denied."
    )
    cursor: int
    recommended_poll_ms: int
    working_directory: str | None = None
    model: str | None = None
    worktree: WorktreeOutput | None = None


class StateOutput(Output):
    session_id: str
    status: SessionStatus


class ListedSession(Output):
    session_id: str
    agent: str
    directory: str | None = None
    summary: str | None = None
    timestamp: str
    is_active: bool
    active_status: SessionStatus | None = None
    source: str | None = None
    model: str | None = None
    task_ids: list[str] | None = None


class ListOutput(Output):
    sessions: list[ListedSession]
    next_cursor: str | None = None
