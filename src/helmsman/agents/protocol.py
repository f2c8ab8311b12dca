"""What Helmsman asks of anything that runs an agent's turns. Above this line nobody knows Codex.

Engines are opened as async context managers: leaving the block ends all they started, and attached sinks get `EngineGone`.
An engine starts and resumes sessions, runs turns in them, and calls the sink attached to a session with each event, in
order, from the event loop. A sink must not block. Events that come before a sink is attached are kept for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import datetime
    from pathlib import Path

    from helmsman.errors import HelmsmanError
    from helmsman.model.events import Event, Item, RateLimitsReported
    from helmsman.model.options import SessionOptions, TurnInput
    from helmsman.model.questions import Choice, Question

EngineName = Literal["app-server", "exec"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """A session as the engine opened it: what is really in force, and remarks for the caller.

    `turn_id` is the running turn: the one just started, or one found running on resume. `raw` is the agent's own answer, for
    the event that tells of it (`helmsman.model.events.Event`).
    """

    session_id: str
    turn_id: str | None
    directory: str | None = None
    model: str | None = None
    approval_policy: str | None = None
    sandbox: str | None = None
    notes: tuple[str, ...] = ()
    raw: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PastTurn:
    """A turn as the agent's own storage has it."""

    id: str
    status: str
    items: tuple[Item, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionInfo:
    """A session as listings show it."""

    session_id: str
    updated_at: datetime
    created_at: datetime | None = None
    directory: str | None = None
    name: str | None = None
    first_prompt: str | None = None
    model: str | None = None
    source: str | None = None
    originator: str | None = None
    engine_version: str | None = None
    parent_id: str | None = None
    archived: bool = False
    path: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A model the agent can use; `efforts` are how hard it can think."""

    id: str
    name: str
    description: str | None
    is_default: bool
    efforts: tuple[str, ...]
    default_effort: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """Who is logged in, if anyone: `kind` is for example `chatgpt` or `apiKey`."""

    kind: str | None
    email: str | None
    plan: str | None
    requires_login: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """What a session is to reach; `status` is for example `active`, `paused` or `complete`."""

    objective: str
    status: str
    tokens_used: int | None = None
    token_budget: int | None = None
    seconds_used: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing a review found. `priority` is 0 (drop everything) to 3 (nice to have), `confidence` 0 to 1."""

    title: str
    body: str = ""
    priority: int | None = None
    confidence: float | None = None
    file: str | None = None
    start_line: int | None = None
    end_line: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReviewReport:
    """What a review came to: its findings, and the whole as text. `verdict` is the reviewer's own, in its words."""

    text: str
    findings: tuple[Finding, ...] = ()
    explanation: str = ""
    verdict: str | None = None
    confidence: float | None = None


class Engine(Protocol):
    """Runs turns. Every method raises only `HelmsmanError`s, and every wait in it is bounded."""

    @property
    def name(self) -> EngineName: ...

    @property
    def id(self) -> str | None:
        """The name of an engine that goes on when we leave it; None of one that ends with us."""
        ...

    @property
    def lost(self) -> HelmsmanError | None:
        """Why this engine is of no use any more, or None while it is."""
        ...

    @property
    def extras(self) -> EngineExtras | None:
        """What this engine can do beyond running turns; None where it is nothing."""
        ...

    async def until_lost(self) -> None:
        """Wait until this engine is of no use any more; for ever, where that cannot happen."""
        ...

    def attach(self, session_id: str, sink: Callable[[Event], None]) -> None:
        """Deliver the session's events to `sink`, beginning with those already waiting."""
        ...

    def detach(self, session_id: str) -> None:
        """Stop delivering; later events of the session are dropped."""
        ...

    async def start(self, options: SessionOptions, turn: TurnInput) -> Opened:
        """A new session and its first turn. Returns when the turn is under way, not when it ends."""
        ...

    async def resume(self, session_id: str, options: SessionOptions, turn: TurnInput | None = None) -> Opened:
        """Load a session from the agent's storage, and run a turn in it if one is given."""
        ...

    async def fork(
        self,
        session_id: str,
        options: SessionOptions,
        turn: TurnInput | None = None,
        *,
        last_turn_id: str | None = None,
    ) -> Opened:
        """A new session that shares the history of another, up to and including `last_turn_id` where one is given."""
        ...

    async def history(self, session_id: str) -> tuple[PastTurn, ...]:
        """All turns of a session, oldest first, from the agent's storage; the session need not be loaded."""
        ...

    async def run_turn(self, session_id: str, options: SessionOptions, turn: TurnInput) -> str:
        """Start a turn in a loaded, idle session; the turn's id."""
        ...

    async def steer(self, session_id: str, text: str) -> None:
        """Put a message into the running turn; raises `SessionIdle` when there is none."""
        ...

    async def interrupt(self, session_id: str) -> None:
        """Stop the running turn, its sub-agents and every command left running. Returns when they have stopped."""
        ...

    async def answer(self, question: Question, choices: tuple[Choice, ...] | None) -> None:
        """Send the answer to a question; None refuses. The first answer counts, later ones raise `QuestionNotOpen`."""
        ...


class DetachedEngine(Engine, Protocol):
    """An engine that goes on when we leave it, and in which others may have left something running."""

    async def running_sessions(self) -> tuple[str, ...]:
        """The sessions with a running turn in this engine, whoever began it."""
        ...

    async def adopt(self, session_id: str, options: SessionOptions) -> Opened:
        """Take over a session that another process began: what its turn has done and asks comes as events."""
        ...


class EngineExtras(Protocol):
    """What an agent can do beside running turns. Like `Engine`: only `HelmsmanError`s, and every wait bounded.

    Where a session has to be loaded for it, the method says so; load it with `Engine.resume` first.
    """

    # --- upkeep ------------------------------------------------------------------------------------------------------

    async def roll_back(self, session_id: str, turns: int) -> None:
        """Forget the last turns of an idle, loaded session. Files stay as they are."""
        ...

    def check_compacting(self) -> None:
        """Raises `CodexUnsupported` where the agent cannot compact."""
        ...

    async def compact(self, session_id: str) -> None:
        """Begin to shorten the history of an idle, loaded session; that is a turn, told as events."""
        ...

    async def rename(self, session_id: str, name: str) -> None:
        """Give a session a name."""
        ...

    async def archive(self, session_id: str) -> None:
        """Put a session away. A turn that runs in it ends."""
        ...

    async def unarchive(self, session_id: str) -> None:
        """Bring a session back from the archive."""
        ...

    async def goal(self, session_id: str) -> Goal | None:
        """What the session is to reach, if that was said."""
        ...

    async def set_goal(self, session_id: str, objective: str | None) -> Goal | None:
        """Say what a session is to reach; None clears it. In a loaded session that begins a turn, told as events."""
        ...

    # --- reviews -----------------------------------------------------------------------------------------------------

    async def review_report(self, session_id: str, shown: str | None) -> ReviewReport | None:
        """What the newest review in a session found, from the agent's storage; None where it holds no finished one.

        `shown` is the text the agent showed of it, where that is known; what the storage lacks is read from there.
        """
        ...

    # --- about the agent ---------------------------------------------------------------------------------------------

    async def models(self) -> tuple[Model, ...]:
        """The models one can choose."""
        ...

    async def account(self) -> Account:
        """Who is logged in."""
        ...

    @property
    def known_rate_limits(self) -> RateLimitsReported | None:
        """The account's limits as last reported, if they were."""
        ...

    async def rate_limits(self) -> RateLimitsReported | None:
        """How much of the account's limits is used, asked now or as last reported; None where nothing is known."""
        ...
