"""Options of callers: for a session, for one of its turns, and for the permitted silence.

`helmsman.model.inputs` makes these from the input of front ends; all later code uses only these values.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeAlias, TypedDict, TypeVar, get_args

from msgspec import field
from msgspec.structs import force_setattr

from helmsman.base.redaction import redact_value
from helmsman.base.structs import Value, pack, replace
from helmsman.model.client_tools import ToolDefinition
from helmsman.settings import OnLimit, Settings

Writes = Literal["nothing", "workspace", "anything"]
"""Write access of a session: nothing, its directory and its writable roots, or anything. The last runs without a sandbox.

All sessions may read. Each agent's package decides how to enforce the access.
"""

Asks = Literal["unless_harmless", "after_failure", "when_needed", "never"]
"""When to ask the user: before all but harmless commands, after one has failed in the sandbox, before work that needs more
access than the session has, or never.
"""

SandboxMode = Literal["read-only", "workspace-write", "danger-full-access"]
ApprovalPolicy = Literal["untrusted", "on-failure", "on-request", "never"]

WRITES: Final[Mapping[str, Writes]] = {
    "read-only": "nothing",
    "workspace-write": "workspace",
    "danger-full-access": "anything",
}
ASKS: Final[Mapping[str, Asks]] = {
    "untrusted": "unless_harmless",
    "on-failure": "after_failure",
    "on-request": "when_needed",
    "never": "never",
}
"""Meaning of the callers' words. They are Codex's words, since callers know them; every agent's package has its own."""

ReviewKind = Literal["uncommitted", "base", "commit", "custom"]

LIST_LIMIT: Final = 50
"""Default number of entries on a page of a list."""

DEFAULT_AGENT: Final = "codex"
"""Agent for requests that name none."""


OnMachineLoss = Literal["continue", "ask", "fail"]
"""Policy for a turn that was cut off because its machine was lost."""


class Placement(Value, frozen=True, kw_only=True):
    """Place and time for work in a fleet: `helm.start(…, placement=Placement(machine="build-1"))`.

    Attributes:
        machine: The one machine that may do it; else any that has the agent and all of `labels`.
        priority: From 1, which comes first, to 1000.
        delay: Seconds from now before which the work does not begin.
        deadline: Seconds from now after which the work is stopped, on any machine.
        on_machine_loss: Policy for its turn when its machine dies. The default continues the turn, or asks if the turn could
            have effects outside its tree.
        in_place: Work in the directory of this path on the machine that does it. Nothing is copied there, or back.
    """

    machine: str | None = None
    labels: tuple[str, ...] = ()
    priority: int | None = None
    delay: float | None = None
    deadline: float | None = None
    on_machine_loss: OnMachineLoss | None = None
    in_place: bool = False


class WorktreeOptions(Value, frozen=True, kw_only=True):
    """New worktree of a session: `helm.start(…, worktree=WorktreeOptions(start="develop"))`.

    Attributes:
        start: A branch, tag or commit; `pr:17`, a pull request of the remote; or `dirty`, the main tree with its uncommitted
            changes. By default the last commit.
        add_dirs: Directories in further repositories, in which the session works too. Each has a worktree, of its last
            commit or `dirty`; all are reviewed and applied together.
    """

    start: str | None = None
    add_dirs: tuple[Path, ...] = ()


class SessionOptions(Value, frozen=True, kw_only=True):
    """Options of a session. A value that is None (or empty) is not sent: the agent's own configuration decides.

    `agent` runs the session for its whole life. `tools` are functions of the program that starts it. `unenforced`
    accepts an agent without a sandbox, so nothing enforces its write access. `environment` are variables of its worktree.
    """

    agent: str = DEFAULT_AGENT
    cwd: Path | None = None
    model: str | None = None
    asks: Asks | None = None
    writes: Writes | None = None
    writable_roots: tuple[Path, ...] = ()
    profile: str | None = None
    config: Mapping[str, Any] = field(default_factory=dict[str, Any])
    base_instructions: str | None = None
    developer_instructions: str | None = None
    skip_git_repo_check: bool = False
    trust_repository: bool = False
    unenforced: bool = False
    tools: tuple[ToolDefinition, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict[str, str])


ContentT = TypeVar("ContentT")


def without_secrets(content: ContentT) -> ContentT | None:
    """Return content that may be stored and used by a later process.

    Options lose the fields that hold secrets. Other content is returned as a whole or not at all, since callers may put
    secrets anywhere. Half of a value is never used.
    """
    if isinstance(content, SessionOptions):
        names = [name for name in content.__struct_fields__ if _holds_secret(getattr(content, name))]
        return replace(content, **{name: getattr(_DEFAULTS, name) for name in names})
    return None if _holds_secret(content) else content


def _holds_secret(content: object) -> bool:
    plain = pack(content)
    return bool(redact_value(plain) != plain)


_DEFAULTS: Final = SessionOptions()


def sandbox_word(writes: Writes | None) -> SandboxMode | None:
    """Return the callers' word for this write access."""
    return next((word for word in get_args(SandboxMode) if WRITES[word] == writes), None)


def approval_word(asks: Asks | None) -> ApprovalPolicy | None:
    """Return the callers' word for this approval policy."""
    return next((word for word in get_args(ApprovalPolicy) if ASKS[word] == asks), None)


class ReviewTarget(Value, frozen=True, kw_only=True):
    """Target of a review. `value` is the branch, the commit or the instructions; empty for `uncommitted`."""

    kind: ReviewKind = "uncommitted"
    value: str = ""


TurnKind: TypeAlias = ReviewTarget | Literal["plan", "work"]


class TurnInput(Value, frozen=True, kw_only=True):
    """One prompt with the options of this turn alone (`effort` stays for later turns, as in Codex).

    A turn with a `kind` is not a plain message: with a review target it is the agent's own review, and the text only says
    so; with `plan` the agent plans the work in the text, and can change nothing; `work` says that planning is over.
    """

    text: str
    images: tuple[Path, ...] = ()
    output_schema: Mapping[str, Any] | None = None
    effort: str | None = None
    kind: TurnKind | None = None

    @property
    def review(self) -> ReviewTarget | None:
        return self.kind if isinstance(self.kind, ReviewTarget) else None

    @property
    def plan(self) -> bool:
        return self.kind == "plan"


class TurnLimits(Value, frozen=True):
    """Limits on the silence of a turn, in seconds, at its beginning and later; infinite means no limit.

    `on_limit` says what to do at the account's usage limit; None means as the settings say.
    """

    first_event: float = math.inf
    inactivity: float = math.inf
    on_limit: OnLimit | None = None

    def __post_init__(self) -> None:
        for name in ("first_event", "inactivity"):
            if math.isinf(getattr(self, name)):
                force_setattr(self, name, math.inf)  # JSON has no infinity, so the default is left out

    @classmethod
    def of(cls, settings: Settings) -> TurnLimits:
        """Return the limits of the settings, where 0 means no limit."""
        return cls(settings.first_event_timeout or math.inf, settings.inactivity_timeout or math.inf)

    @property
    def on_silence(self) -> bool:
        """Return whether the silence of the turn is limited."""
        return not (math.isinf(self.first_event) and math.isinf(self.inactivity))


# --- what callers pass -------------------------------------------------------------------------------------------------

PathLike = str | os.PathLike[str]
Name = Annotated[str, "a name"]
"""Text on one line, which is not blank."""


class SafetyOptions(TypedDict, total=False):
    """Options that let an agent do more than its sandbox would."""

    trust_repository: bool
    unenforced: bool


class StartOptions(SafetyOptions, total=False):
    """Options of a session, all optional. The agent's own configuration decides for those that are left out."""

    agent: Name | None
    model: Name | None
    approval_policy: ApprovalPolicy | None
    sandbox: SandboxMode | None
    full_auto: bool
    dangerously_bypass_approvals_and_sandbox: bool
    writable_roots: Sequence[PathLike]
    profile: Name | None
    config: Mapping[str, Any] | None
    base_instructions: str | None
    developer_instructions: str | None
    skip_git_repo_check: bool


class WorkOptions(StartOptions, total=False):
    """Options of a session and of work in it, which may begin later."""

    output_schema: Mapping[str, Any] | None
    effort: Name | None
    max_cost_usd: float | None


class TurnOptions(WorkOptions, total=False):
    """Options of a session and of a turn that begins now."""

    images: Sequence[PathLike]
    kind: TurnKind | None
    limits: TurnLimits | None
    on_limit: OnLimit | None
    placement: Placement | None
