"""What a caller may ask for: how a session is to run, what one turn of it is to do, and how long it may be silent.

`helmsman.model.inputs` makes these of what front doors are given; from there on nothing else travels.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, TypeVar, get_args

from msgspec import field
from msgspec.structs import force_setattr

from helmsman.base.redaction import redact_value
from helmsman.base.structs import Value, pack, replace
from helmsman.model.client_tools import ToolDefinition
from helmsman.settings import OnLimit

Writes = Literal["nothing", "workspace", "anything"]
"""What a session may write: nothing, its directory and its writable roots, or anything; the last runs in no sandbox.

All of them may read; how an agent is held to it is its package's business.
"""

Asks = Literal["unless_harmless", "after_failure", "when_needed", "never"]
"""When somebody is asked: before all but harmless commands, after one has failed in the sandbox, before what needs more than
the session may do, or never.
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
"""What the words of callers mean. They are Codex's, since callers know them; every agent's package has its own for these."""

ReviewKind = Literal["uncommitted", "base", "commit", "custom"]

LIST_LIMIT: Final = 50
"""So much is on a page of a list where the caller does not say."""

DEFAULT_AGENT: Final = "codex"
"""Who runs what names no agent; also all that was recorded before there were others."""


OnMachineLoss = Literal["continue", "ask", "fail"]
"""What becomes of a turn that was cut off because its machine was lost."""


class Placement(Value, frozen=True, kw_only=True):
    """Where and when a fleet does something: `helm.start(…, placement=Placement(machine="build-1"))`.

    Attributes:
        machine: The one machine that may do it; else any that has the agent and all of `labels`.
        priority: From 1, which comes first, to 1000.
        delay: It begins so many seconds from now, not before.
        deadline: It is stopped so many seconds from now, wherever it is.
        on_machine_loss: What becomes of its turn when its machine dies. By itself it goes on, or asks where it could do what
            nobody sees in its tree.
        in_place: Work in the directory of this path on the machine that does it. Nothing is brought there, or back.
    """

    machine: str | None = None
    labels: tuple[str, ...] = ()
    priority: int | None = None
    delay: float | None = None
    deadline: float | None = None
    on_machine_loss: OnMachineLoss | None = None
    in_place: bool = False


class SessionOptions(Value, frozen=True, kw_only=True):
    """How a session is to run. What is None (or empty) is not sent: the agent's own configuration decides.

    `agent` is who runs it, for as long as the session lives. `tools` are functions of the program that starts it.
    `unenforced` is for an agent without a sandbox of its own: it runs in none, and nothing holds it to what it may write.
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


ContentT = TypeVar("ContentT")


def without_secrets(content: ContentT) -> ContentT | None:
    """Return what may be stored and used by a later process: options without the fields that hold secrets, else all or None.

    Callers may write secrets anywhere, by mistake or not. Half of a value is never used.
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
    """What callers call it."""
    return next((word for word in get_args(SandboxMode) if WRITES[word] == writes), None)


def approval_word(asks: Asks | None) -> ApprovalPolicy | None:
    """What callers call it."""
    return next((word for word in get_args(ApprovalPolicy) if ASKS[word] == asks), None)


class ReviewTarget(Value, frozen=True, kw_only=True):
    """What is to be reviewed. `value` is the branch, the commit or the instructions; nothing for `uncommitted`."""

    kind: ReviewKind = "uncommitted"
    value: str = ""


TurnKind: TypeAlias = ReviewTarget | Literal["plan", "work"]


class TurnInput(Value, frozen=True, kw_only=True):
    """One prompt with what belongs to this turn alone (`effort` stays for later turns, as in Codex).

    A turn of a `kind` is no plain message: with a review target it is the agent's own review, and the text only says so;
    with `plan` the agent plans what the text asks for, and can change nothing; `work` says that planning is over.
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
    """Seconds of silence a turn may have, at its beginning and later; infinite where there is no limit. False: no limits.

    `on_limit` is what becomes of it when the account's usage limit is reached; None is what the settings say.
    """

    first_event: float = math.inf
    inactivity: float = math.inf
    on_limit: OnLimit | None = None

    def __post_init__(self) -> None:
        for name in ("first_event", "inactivity"):
            if math.isinf(getattr(self, name)):
                force_setattr(self, name, math.inf)  # the default is left out of JSON, which knows no infinity

    @classmethod
    def of(cls, first_event: float, inactivity: float) -> TurnLimits:
        """The limits as settings have them, where 0 is none."""
        return cls(first_event or math.inf, inactivity or math.inf)

    def __bool__(self) -> bool:
        return not (math.isinf(self.first_event) and math.isinf(self.inactivity))
