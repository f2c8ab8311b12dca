"""Interfaces of agents and of the engines that run their turns. Code above this module does not depend on any one agent.

An `Agent` opens engines and reads the agent's files on disk; `Helmsman(agents=…)` accepts custom agents. Engines are opened
as async context managers: leaving the block ends all processes they started, and attached sinks get `EngineGone`. An engine
opens sessions, runs turns in them, and calls the sink attached to a session with each event, in order, from the event loop.
A sink must not block. The engine buffers events until a sink is attached.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from datetime import datetime
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self

from msgspec import field

from helmsman.base.structs import Value
from helmsman.errors import EngineLost, HelmsmanError, QuestionNotOpen, Unsupported
from helmsman.model.events import Failure, TurnOutcome, Usage
from helmsman.model.options import DEFAULT_AGENT, SessionOptions, TurnInput
from helmsman.model.prompts import message_part

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence
    from contextlib import AbstractAsyncContextManager

    from helmsman.agents.found_programs import Installed
    from helmsman.agents.spending import SpendingFiles
    from helmsman.agents.transcripts import CarriedTranscripts
    from helmsman.model.client_tools import ToolResult
    from helmsman.model.events import Event, PastTurn, RateLimitsReported, ToolCalled
    from helmsman.model.questions import Choice, Question
    from helmsman.settings import Settings


class Model(Value, frozen=True, kw_only=True):
    """Model that the agent can use, with its levels of reasoning effort."""

    id: str
    name: str
    description: str | None
    is_default: bool
    efforts: tuple[str, ...]
    default_effort: str | None


class Account(Value, frozen=True, kw_only=True):
    """Account, if any: `kind` is for example `chatgpt` or `apiKey`."""

    kind: str | None
    email: str | None
    plan: str | None
    requires_login: bool


class Login(Value, frozen=True, kw_only=True):
    """Login in progress: the page to open, and the code to enter there, if there is one."""

    id: str
    url: str
    code: str | None = None


class Skill(Value, frozen=True, kw_only=True):
    """Skill of the agent. `scope` is its source (`user`, `repo`, `system`, …), `path` its file."""

    name: str
    description: str
    scope: str
    path: str
    enabled: bool


class SkillList(Value, frozen=True, kw_only=True):
    """Skills, and sentences about those that could not be read."""

    skills: tuple[Skill, ...]
    problems: tuple[str, ...] = ()


class ConfigLayer(Value, frozen=True, kw_only=True):
    """Source of a configuration. `kind` is for example `user` or `project`; `version` changes with its content."""

    kind: str
    file: str | None = None
    version: str | None = None
    values: Mapping[str, Any] = field(default_factory=dict[str, Any])


class AgentConfig(Value, frozen=True, kw_only=True):
    """Effective configuration and its layers. The first layer that sets a key takes precedence."""

    values: Mapping[str, Any]
    layers: tuple[ConfigLayer, ...]


class InForce(Value, frozen=True, kw_only=True):
    """Defaults of a session whose caller leaves everything to the configuration; None where only the agent knows."""

    model: str | None = None
    effort: str | None = None
    sandbox: str | None = None
    approval_policy: str | None = None


class ConfigEdit(Value, frozen=True, kw_only=True):
    """Edit of the user's configuration: a dotted key, and its value; None removes the key."""

    key: str
    value: Any


class OwnTerminal(Value, frozen=True, kw_only=True):
    """Command line of the agent's own terminal program, with additional variables.

    `engine` is the engine that has the session and must stay alive while the program runs; None if it is not ours.
    """

    command: tuple[str, ...]
    variables: Mapping[str, str]
    engine: str | None


# --- capabilities ----------------------------------------------------------------------------------------------------


class NothingBegun(EngineLost):
    """Engine that is ending or lost has not begun the requested work. Another engine can begin it."""

    code = EngineLost.code


class EngineHangs(EngineLost):
    """Engine exists but answers nothing, so it was abandoned."""

    code = EngineLost.code


class Capability(Enum):
    """Something not every agent can do. `text` completes "it cannot …"."""

    # --- turns ---
    ASK = "ask", "ask before it acts"
    STEER = "steer", "take a message in the middle of a turn"
    IMAGES = "images", "look at images"
    OUTPUT_SCHEMA = "output_schema", "keep to an output schema"
    INSTRUCTIONS = "instructions", "take instructions besides the prompt"
    SESSION_CONFIG = "session_config", "take a profile or a configuration for one session"
    MODEL = "model", "be told which model to use"
    REVIEW = "review", "review by a command of its own"
    PLAN = "plan", "plan first"
    CLIENT_TOOLS = "client_tools", "call functions of a program"
    SANDBOX = "sandbox", "hold its commands to a sandbox"
    USAGE = "usage", "tell what it has used"

    # --- sessions ---
    RESUME = "resume", "go on with an earlier session"
    FORK = "fork", "fork a session"
    FORK_AT_TURN = "fork_at_turn", "fork a session from an earlier turn"
    HISTORY = "history", "show the history of a session"
    ROLL_BACK = "rollback", "forget the last turns of a session"
    COMPACT = "compact", "compact a session"
    RENAME = "rename", "name a session"
    ARCHIVE = "archive", "archive a session"
    GOALS = "goals", "keep a goal for a session"
    ATTACH = "attach", "open a session that is loaded here in its own terminal program"
    MOVE = "move", "go on with a session on another machine"

    # --- about the agent ---
    MODELS = "models", "list its models"
    ACCOUNT = "account", "tell whose account it uses"
    LOGIN = "login", "be logged in from here"
    SKILLS = "skills", "list its skills"
    CONFIGURE = "configure", "be configured from here"

    text: str

    def __new__(cls, word: str, text: str) -> Self:
        capability = object.__new__(cls)
        capability._value_, capability.text = word, text
        return capability

    @property
    def word(self) -> str:
        return str(self.value)


class Capabilities(Value, frozen=True):
    """Capabilities of an engine.

    Attributes:
        agent: The agent's name.
        engine: The engine's name, as it begins a sentence.
        lacking: Missing capabilities, each with an alternative or "". The registry adds capable agents (`Agents.explained`).
    """

    agent: str
    engine: str
    lacking: Mapping[Capability, str] = field(default_factory=dict[Capability, str])

    def __contains__(self, capability: Capability) -> bool:
        return capability not in self.lacking

    def as_dict(self) -> dict[str, Any]:
        """Return JSON for front ends: the capabilities (`can`), and an alternative for each missing one."""
        return {
            "agent": self.agent,
            "can": [capability.word for capability in Capability if capability in self],
            "cannot": {capability.word: instead for capability, instead in self.lacking.items()},
        }

    def require(self, *needed: Capability) -> None:
        """Raise if the engine lacks one of these capabilities.

        Raises:
            Unsupported: It cannot.
        """
        for capability in needed:
            if capability in self.lacking:
                raise self.refusal(capability)

    def refusal(self, capability: Capability) -> Unsupported:
        """Return the error for a missing capability, with an alternative."""
        message = f"{self.engine} cannot {capability.text}. {self.lacking.get(capability, '')}"
        return Unsupported(message.rstrip(), agent=self.agent, capability=capability.word)


def is_enforced(options: SessionOptions) -> bool:
    """Return whether such a session runs in a sandbox."""
    return options.writes != "anything" and not options.unenforced


class Trust(Value, frozen=True, kw_only=True):
    """Trust in an agent. There are no defaults: a new agent must answer each question.

    Attributes:
        asking_mode: The mode in which it asks before it acts; every session is set to it. None if it has no modes.
        reading_mode: The mode in which it changes nothing, if it has one. It is set back from there if it was not asked for,
            and stopped in all others.
        asking_options: Settings besides the mode with which it asks, where it has them. It is stopped with other values.
        acts_unasked: True if it may run commands or change files without asking, such as harmless ones. Others are
            stopped when they do.
        memory: Patterns below its home of files that later sessions follow. It may not write them without asking.
        runs_repository_files: True if it may run files of a repository that the user has not trusted.
        variables: Variables with secrets that its sandbox shows, by their names or as `NAME_*`.
        shared: Directories of its home that its sandbox shows unchanged: those of its sessions.
    """

    asking_mode: str | None
    reading_mode: str | None
    asking_options: Mapping[str, str]
    acts_unasked: bool
    memory: tuple[str, ...]
    runs_repository_files: bool
    variables: tuple[str, ...]
    shared: tuple[str, ...]


class Opened(Value, frozen=True, kw_only=True):
    """Session as the engine opened it: the settings in force, and remarks for the caller.

    Without `is_named` the agent gives the session another id with its first turn (`Begun`). `enforced` says whether a
    sandbox other than the agent's own confines the agent. `turn_id` is a turn that was found running, and `is_asking`
    says that it waits for an answer: the agent repeats the questions that it asked the previous owner. `raw` is the
    agent's own answer, for the event that reports it (`helmsman.model.events.Event`).
    """

    session_id: str
    is_named: bool = True
    turn_id: str | None = None
    is_asking: bool = False
    directory: str | None = None
    model: str | None = None
    approval_policy: str | None = None
    sandbox: str | None = None
    enforced: bool | None = None
    notes: tuple[str, ...] = ()
    raw: Mapping[str, Any] | None = None


class Begun(Value, frozen=True, kw_only=True):
    """Running turn. `session_id` is the session's, which some agents name only with its first turn."""

    session_id: str
    turn_id: str | None = None
    notes: tuple[str, ...] = ()


class RecordedTurn(Value, frozen=True, kw_only=True):
    """Turn from the agent's files, regardless of which client followed it. `open` is one without a recorded end.

    `turn_id` is None if the agent does not name turns; `forgotten` is a turn that was rolled back. `spent_before` is
    the session's usage before the turn, if `usage` is known.
    """

    turn_id: str | None = None
    outcome: TurnOutcome | Literal["open"]
    message: str | None = None
    error: Failure | None = None
    usage: Usage | None = None
    spent_before: Usage | None = None
    model: str | None = None
    began_at: datetime | None = None
    ended_at: datetime | None = None
    last_written_at: datetime | None = None
    forgotten: bool = False


class SessionInfo(Value, frozen=True, kw_only=True):
    """Session in a listing. `open_elsewhere` is one that a user has open in the agent's own program."""

    session_id: str
    agent: str = DEFAULT_AGENT
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
    open_elsewhere: bool = False
    path: Path | None = None

    @property
    def about(self) -> str | None:
        """Return the subject: the session's name, or the first prompt in the user's words."""
        return message_part(self.name or self.first_prompt)


class Goal(Value, frozen=True, kw_only=True):
    """Goal of a session; `status` is for example `active`, `paused` or `complete`."""

    objective: str
    status: str
    tokens_used: int | None = None
    seconds_used: int | None = None


class Finding(Value, frozen=True, kw_only=True):
    """Finding of a review. `priority` is 0 (drop everything) to 3 (nice to have), `confidence` 0 to 1."""

    title: str
    body: str = ""
    priority: int | None = None
    confidence: float | None = None
    file: str | None = None
    start_line: int | None = None
    end_line: int | None = None


class ReviewReport(Value, frozen=True, kw_only=True):
    """Result of a review: its findings, and the whole report as text. `verdict` is in the reviewer's own words.

    `note` says which parts were left out, and why.
    """

    text: str
    findings: tuple[Finding, ...] = ()
    explanation: str = ""
    verdict: str | None = None
    confidence: float | None = None
    note: str | None = None


class Engine(ABC):
    """Runs turns. Every method raises only `HelmsmanError`s, and every wait in it is bounded.

    `capabilities` lists the supported methods beyond the abstract ones. The other methods raise the refusal from there.
    """

    @property
    @abstractmethod
    def name(self) -> str:
        """Kind of engine, among those of its agent."""

    @property
    @abstractmethod
    def capabilities(self) -> Capabilities:
        """Capabilities of this engine."""

    @property
    def id(self) -> str | None:
        """Name of an engine that keeps running after the hub detaches; None for an engine that ends with the hub."""
        return None

    @property
    def program(self) -> Path | None:
        """Local program that the engine starts for its sessions; None if it starts none on this machine."""
        return None

    search_path: str = ""
    """PATH on which it finds programs that it starts itself, outside of sandboxes; empty if it starts none."""

    @property
    def is_of_a_person(self) -> bool:
        """Return whether a person uses this engine with the agent's own program. That person answers the questions there."""
        return False

    @property
    @abstractmethod
    def lost(self) -> HelmsmanError | None:
        """Reason why this engine is unusable, or None while it is usable."""

    @abstractmethod
    async def until_lost(self) -> None:
        """Wait until this engine becomes unusable; wait forever if that cannot happen."""

    def input_position(self, session_id: str) -> str | None:
        """Return a comparable position of the input that a session has received, from all owners; None if unknown."""
        return None

    @abstractmethod
    def attach(self, session_id: str, sink: Callable[[Event], None]) -> None:
        """Deliver the session's events to `sink`, beginning with those already waiting."""

    @abstractmethod
    def detach(self, session_id: str) -> None:
        """Stop delivering; later events of the session are dropped."""

    # --- sessions ----------------------------------------------------------------------------------------------------

    @abstractmethod
    async def open(self, options: SessionOptions) -> Opened:
        """Open a new, idle session."""

    @abstractmethod
    async def resume(self, session_id: str, options: SessionOptions) -> Opened:
        """Load a session from the agent's storage."""

    async def fork(self, session_id: str, options: SessionOptions, *, last_turn_id: str | None = None) -> Opened:
        """Fork a session: the new one shares its history, up to and including `last_turn_id` if given."""
        raise self._refusal(Capability.FORK)

    async def history(self, session_id: str) -> tuple[PastTurn, ...]:
        """Return all turns of a session, oldest first, from the agent's storage; the session need not be loaded."""
        raise self._refusal(Capability.HISTORY)

    # --- turns -------------------------------------------------------------------------------------------------------

    async def get_ready(self, session_id: str, options: SessionOptions, turn: TurnInput) -> None:  # noqa: B027 - most are
        """Do the slow preparation for a turn in a loaded, idle session. The agent receives no part of the turn.

        Until this returns, a later owner may begin the turn again without risk of running it twice.
        """

    @abstractmethod
    async def run_turn(self, session_id: str, options: SessionOptions, turn: TurnInput) -> Begun:
        """Start a turn in a loaded, idle session. Returns when it is under way, not when it ends."""

    async def steer(self, session_id: str, text: str) -> None:
        """Send a message to the running turn; raises `SessionIdle` if no turn is running."""
        raise self._refusal(Capability.STEER)

    @abstractmethod
    async def interrupt(self, session_id: str) -> None:
        """Stop the running turn, its sub-agents and every command left running. Returns when they have stopped."""

    async def end_leftovers(self, session_id: str) -> None:  # noqa: B027 - an agent may leave nothing
        """End every process that an idle session has left, so that none can touch its files. Returns when they are gone.

        An agent that runs its commands itself is ended with them, as they may have changed it; its next turn starts it
        again.

        Raises:
            SessionBusy: A turn is running in it.
        """

    async def answer(self, question: Question, choices: tuple[Choice, ...] | None) -> None:
        """Send the answer to a question; None refuses. The first answer counts, later ones raise `QuestionNotOpen`."""
        raise QuestionNotOpen(f"Question {question.id} is not open: {self.capabilities.engine} never asks.")

    async def answer_tool(self, call: ToolCalled, result: ToolResult) -> None:
        """Send the result of a client's function. The agent may have stopped waiting for it."""
        raise self._refusal(Capability.CLIENT_TOOLS)

    # --- engines that outlive the hub, in which an earlier owner may have left running turns
    # ---------------------------------

    async def running_sessions(self) -> tuple[str, ...]:
        """Return the sessions with a running turn in this engine, regardless of their owner."""
        return ()

    async def adopt(self, session_id: str, options: SessionOptions) -> Opened:
        """Take over a session that another process began: what its turn has done and asks comes as events."""
        raise EngineLost(
            f"{self.capabilities.engine} has nothing left running. Send the session a message to continue."
        )

    async def own_terminal(self, session_id: str) -> OwnTerminal:
        """Return how to open a loaded session in the agent's own terminal program, next to the hub."""
        raise self._refusal(Capability.ATTACH)

    # --- upkeep of sessions. Methods that need a loaded session say so; load it with `resume` first -----

    async def roll_back(self, session_id: str, turns: int) -> None:
        """Forget the last turns of an idle, loaded session. Files stay as they are."""
        raise self._refusal(Capability.ROLL_BACK)

    async def compact(self, session_id: str) -> None:
        """Start to compact the history of an idle, loaded session. That is a turn, reported as events."""
        raise self._refusal(Capability.COMPACT)

    async def rename(self, session_id: str, name: str) -> None:
        """Give a session a name."""
        raise self._refusal(Capability.RENAME)

    async def archive(self, session_id: str) -> None:
        """Put a session away. A turn that runs in it ends."""
        raise self._refusal(Capability.ARCHIVE)

    async def unarchive(self, session_id: str) -> None:
        """Bring a session back from the archive."""
        raise self._refusal(Capability.ARCHIVE)

    async def unload(self, session_id: str) -> None:
        """Unload an idle session, so that its files may be replaced (`Agent.transcripts`). The next user loads it again."""
        raise self._refusal(Capability.MOVE)

    async def goal(self, session_id: str) -> Goal | None:
        """Return the session's goal, if one is set."""
        raise self._refusal(Capability.GOALS)

    async def set_goal(self, session_id: str, objective: str | None) -> Goal | None:
        """Set the goal of a session; None clears it. In a loaded session that begins a turn, reported as events."""
        raise self._refusal(Capability.GOALS)

    async def review_report(self, session_id: str, shown: str | None) -> ReviewReport | None:
        """Return the newest review in a session from the agent's storage; None if it holds no finished one.

        `shown` is the text that the agent displayed, if known. It supplies the parts that the storage lacks.
        """
        raise self._refusal(Capability.REVIEW)

    # --- about the agent ---------------------------------------------------------------------------------------------

    async def models(self) -> tuple[Model, ...]:
        """Return the available models."""
        raise self._refusal(Capability.MODELS)

    async def account(self) -> Account:
        """Return the account that is logged in."""
        raise self._refusal(Capability.ACCOUNT)

    async def start_login(self, *, with_code: bool) -> Login:
        """Begin to log in: with a page that this machine's browser opens, or a code to enter on any."""
        raise self._refusal(Capability.LOGIN)

    async def login_ended(self, login: Login) -> str | None:
        """Wait until the login ends. Return None after a success, else the reason of the failure."""
        raise self._refusal(Capability.LOGIN)

    async def skills(self, directory: Path) -> SkillList:
        """Return its skills for a directory."""
        raise self._refusal(Capability.SKILLS)

    async def read_config(self, directory: Path | None) -> AgentConfig:
        """Its configuration for work in a directory."""
        raise self._refusal(Capability.CONFIGURE)

    async def in_force(self, directory: Path) -> InForce:
        """Return the effective configuration for work in a directory."""
        raise self._refusal(Capability.CONFIGURE)

    async def write_config(self, edits: Sequence[ConfigEdit], *, version: str | None) -> str | None:
        """Change the user's configuration, if it still is of this version; what overrides that, if something does."""
        raise self._refusal(Capability.CONFIGURE)

    async def refuse_unknown_settings(self, edits: Sequence[ConfigEdit], env: Mapping[str, str]) -> None:
        """Refuse a key that it would ignore, as far as it can tell.

        Raises:
            InvalidInput: It does not know a key. The message names keys that it knows.
        """
        raise self._refusal(Capability.CONFIGURE)

    @property
    def known_rate_limits(self) -> RateLimitsReported | None:
        """Account's limits as last reported, if they were."""
        return None

    async def rate_limits(self) -> RateLimitsReported | None:
        """Return the usage of the account's limits, requested now or as last reported; None if unknown."""
        return None

    def _refusal(self, capability: Capability) -> HelmsmanError:
        return self.capabilities.refusal(capability)


class SessionIndex(Protocol):
    """Sessions that an agent keeps on disk. Thread-safe; calls block briefly."""

    def list(
        self,
        *,
        directories: Collection[str] | None = None,
        query: str | None = None,
        limit: int = 50,
        cursor: str | None = None,
        include_archived: bool = False,
        include_sub_agents: bool = False,
    ) -> tuple[Sequence[SessionInfo], str | None]:
        """Return one page, the session that last changed first, and the cursor of the next page if there is one.

        With `directories`, only sessions that work in one of these; symbolic links are resolved.
        """
        ...

    def find(self, session_id: str) -> SessionInfo | None:
        """Return one session by its id, archived or not; None if it is not on disk."""
        ...

    def turn(self, session_id: str, turn_id: str | None, *, since: datetime | None = None) -> RecordedTurn | None:
        """Return the record of a turn; None if there is no record.

        If `turn_id` is None, or the agent does not name turns, `since` decides: the first turn that began then or later, or
        the last one that the session still has.
        """
        ...

    def last_turn(self, info: SessionInfo) -> RecordedTurn | None:
        """Return the last turn of a session that was just listed; None if none is recorded."""
        ...

    def turns(self, session_id: str) -> Iterable[RecordedTurn]:
        """Yield all recorded turns of a session, last first."""
        ...

    def history(self, info: SessionInfo) -> tuple[PastTurn, ...] | None:
        """Return all turns of a session as just listed, with their items, oldest first; None if the session is gone.

        They hold prompts, messages, commands and changed files; an engine's `history` may know more.
        """
        ...


class Agent(ABC):
    """Coding agent: opens its engines and reads its files on disk. Methods that are not async may block."""

    @property
    @abstractmethod
    def name(self) -> str:
        """Name by which callers choose it."""

    @property
    def title(self) -> str:
        """Name of the agent in sentences."""
        return self.name.capitalize()

    able: Collection[Capability] = ()
    """Capabilities of the agent at best, installed or not.

    Refusals name the agents that have the missing capability.
    """

    async def installed(self, settings: Settings, env: Mapping[str, str] | None) -> Installed | None:
        """Return the agent's program; None for an agent that is not a separate program.

        Raises:
            HelmsmanError: The program is missing. The message says how to get it.
        """
        return None

    def reaches_network(self, options: SessionOptions) -> bool:
        """Return whether commands of such a session can reach the network, in any sandbox they run in."""
        return True

    async def try_sandbox(self, settings: Settings, env: Mapping[str, str] | None) -> str:
        """Test the sandbox that restricts where a session may write, and return its description.

        Raises:
            HelmsmanError: There is no working sandbox. The message says what to do.
        """
        return "a sandbox of its own"

    def is_here(self, settings: Settings, env: Mapping[str, str] | None) -> bool:
        """Return whether the agent's program exists. It is not started: `installed` says whether it works."""
        return True

    @abstractmethod
    async def capabilities(self, settings: Settings, env: Mapping[str, str] | None) -> Capabilities:
        """Return the capabilities of the engine that `open_engine` would open."""

    @abstractmethod
    def open_engine(self, settings: Settings, env: Mapping[str, str] | None) -> AbstractAsyncContextManager[Engine]:
        """Open the engine of these settings for the block."""

    def reopen_engine(self, settings: Settings, engine_id: str) -> AbstractAsyncContextManager[Engine]:
        """Reattach to an engine that outlived the hub, for the length of the block, even if it takes no new work.

        Raises:
            EngineLost: It has ended.
        """
        raise EngineLost(f"Engine {engine_id} has ended. Send the session a message to continue.")

    def persons_engine(self, settings: Settings) -> str | None:
        """Return the engine that runs a user's sessions of the agent's own program (`reopen_engine`); None without one."""
        return None

    async def takes_work(self, settings: Settings, env: Mapping[str, str] | None, engine_id: str) -> bool:
        """Return whether `open_engine` would return this engine, which outlived an earlier hub."""
        return False

    def need_engines(self, state_dir: Path, engine_ids: Collection[str]) -> None:
        """Record that only these engines need a hub that follows their turns. Without one, they start the next hub."""
        return

    def engine_is_alive(self, settings: Settings, engine_id: str) -> bool:
        """Return whether an engine that outlived an earlier hub still runs."""
        return False

    def resets_at(self, failure: Failure) -> datetime | None:
        """Return when the account's limit is reset, as far as the agent said in the failure of a turn."""
        return None

    def sessions(self, settings: Settings, env: Mapping[str, str] | None) -> SessionIndex | None:
        """Return the agent's sessions on disk; None for an agent that stores none."""
        return None

    async def transcripts(self, settings: Settings, env: Mapping[str, str] | None) -> CarriedTranscripts | None:
        """Its sessions on disk as what can be carried to another machine; None where they cannot (`Capability.MOVE`).

        Raises:
            HelmsmanError: There is no such agent here.
        """
        return None

    def spending(self, settings: Settings, env: Mapping[str, str] | None) -> SpendingFiles | None:
        """Return the spending of the sessions on disk; None for an agent that stores no sessions or does not report it."""
        return None

    def commands_left(self, session_ids: Collection[str], directory: Path) -> tuple[str, ...]:
        """Describe the commands that these sessions, or any in this directory, left running."""
        return ()

    def end_commands(self, session_ids: Collection[str], directory: Path) -> None:
        """End what they have left running, and wait until it is gone."""
        return


# --- reviews ---------------------------------------------------------------------------------------------------------


def review_text(explanation: str, findings: Iterable[Finding]) -> str:
    """Return the report as text, like Codex's own."""
    shown = [explanation] if explanation else []
    for finding in findings:
        tag = "" if finding.priority is None else f"[P{finding.priority}] "
        lines = "" if finding.start_line is None else f":{finding.start_line}-{finding.end_line or finding.start_line}"
        where = f" — {finding.file}{lines}" if finding.file else ""
        body = "".join(f"\n  {line}" for line in finding.body.splitlines())
        shown.append(f"- {tag}{finding.title}{where}{body}")
    return "\n\n".join(shown)
