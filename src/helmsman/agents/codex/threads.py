"""State of the threads of an app-server engine, and the parameters that open threads and begin turns."""

from __future__ import annotations

import logging
import os
import time
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import anyio

from helmsman.agents.codex.access import Policy, read_policy
from helmsman.agents.codex.configuration import Configuration, files_state, merge_config
from helmsman.agents.codex.connection import AppServer, Thread, user_input
from helmsman.agents.codex.features import Feature
from helmsman.agents.codex.watching import turn_id
from helmsman.agents.process_engine import AgentTurn, EngineSession
from helmsman.agents.protocol import Opened
from helmsman.base.files import file_identity
from helmsman.base.structs import replace
from helmsman.base.user_directories import upwards
from helmsman.errors import EngineRefused, HelmsmanError, InvalidInput
from helmsman.git.command import repository_root
from helmsman.model.events import ProcessState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from anyio.abc import TaskGroup

    from helmsman.agents.codex.access import Access
    from helmsman.agents.codex.binary import CodexBinary
    from helmsman.base.jsonrpc import IncomingRequest
    from helmsman.model.events import FileChange, McpToolCall
    from helmsman.model.options import ReviewTarget, SessionOptions, TurnInput

log = logging.getLogger(__name__)

# Parameters that begin a turn: a normal one, one in plan mode, or Codex's own review. Plan mode and the policy of a
# turn are sticky in Codex: they apply to later turns too, and in newer versions even when another process resumes the
# thread. So the turn after a plan must end plan mode explicitly.

_PLAN: Final = "plan"
_DEFAULT: Final = "default"
_OLDEST_DEFAULT: Final = "code"
"""Default mode in Codex 0.93."""
_START: Final = "turn/start"

_READ_ONLY: Final[Mapping[str, Any]] = {"type": "readOnly"}

_PLAN_INSTRUCTIONS: Final = """\
You are in plan mode. Look at whatever you need, but change nothing: no file is written, nothing is installed, no commit is
made, until the person has approved the plan. Ask about what you cannot find out by looking. When the plan is complete enough
that somebody else could carry it out, end your answer with it, in Markdown, between a line <proposed_plan> and a line
</proposed_plan>, each alone on its line. If the person asks for changes, answer with the whole plan again in the same form.
Plan mode ends when the person says that the plan is approved.
"""
"""Instructions of plan mode, for versions of Codex that have the mode without instructions."""


def _review_target(target: ReviewTarget) -> dict[str, Any]:
    match target.kind:
        case "uncommitted":
            return {"type": "uncommittedChanges"}
        case "base":
            return {"type": "baseBranch", "branch": target.value}
        case "commit":
            return {"type": "commit", "sha": target.value}
        case "custom":
            return {"type": "custom", "instructions": target.value}


# --- state of a thread -----------------------------------------------------------------------------------------------


class CodexThread(EngineSession):
    """A thread of Codex. One that was not opened here, such as that of a sub-agent, stays STORED."""

    def __init__(self, thread_id: str, on_state: Callable[[CodexThread], None]) -> None:
        super().__init__(thread_id, on_state)
        self.options: SessionOptions | None = None
        self.directory: str | None = None
        self.access: Access | None = None
        self.model: str | None = None
        """Model to send with the next turn."""
        self.is_goal_paused = False
        """Its goal was paused while it was loaded, and may be gone on with after the next turn."""
        self.policy: Policy | None = None
        """Policy in force: as Codex reported it, or as the newest turn set it."""
        self.planning = False
        """Whether it is in plan mode."""
        self.known_model = ""
        self.effort: str | None = None
        """Both are reset by a change of mode that does not repeat them."""
        self.ended_turn_id: str | None = None
        self.reviewing = False
        """Review in progress: a turn that contains a turn of the reviewer, which Codex (0.115 and newer) reports under
        another id.
        """
        self.asked_about: dict[str, FileChange | McpToolCall] = {}
        """Items of the running turn to which a question may refer, by id."""

    @property
    def turn_id(self) -> str | None:
        """The turn that runs in it."""
        return None if self.turn is None else self.turn.id

    def loaded(self, *, is_active: bool) -> None:
        """Codex has loaded the thread, unless it had before. An active one has a turn, which may not be known yet."""
        if self.state is ProcessState.STORED:
            self.enter(ProcessState.STARTING)
            if self.turn is not None:
                self.enter(ProcessState.RUNNING)
            elif not is_active:
                self.enter(ProcessState.IDLE)

    def began(self, turn_id: str) -> None:
        """A turn runs, as Codex reports twice: with an answer, and with a notification."""
        if turn_id != self.turn_id:
            if self.turn is not None:  # the turn of a review, which now has the reviewer's id
                self.turn.ended.set()
            self.turn = AgentTurn(turn_id)
        if self.state in (ProcessState.STARTING, ProcessState.IDLE):
            self.enter(ProcessState.RUNNING)

    def ended(self, turn_id: str | None) -> None:
        """No turn runs in the thread any longer."""
        self.ended_turn_id, self.reviewing = turn_id, False
        # Codex reports no end for items that an interrupt cuts off.
        self.asked_about.clear()
        if self.turn is not None:
            self.finish(self.turn)
        elif self.state is ProcessState.STARTING:
            self.enter(ProcessState.IDLE)

    def opened(self, thread: Thread, options: SessionOptions, access: Access) -> None:
        """Codex has opened the thread under these options."""
        self.options, self.access, self.directory, self.policy = options, access, thread.cwd, thread.policy
        # Not every answer names them.
        self.known_model = thread.model or self.known_model
        self.effort = thread.effort or self.effort
        self.planning = self.planning or thread.mode == _PLAN

    def changed(self, params: Mapping[str, Any]) -> None:
        """Handle changed settings of the thread: by our own turn, or by another client of the same engine."""
        settings = params.get("threadSettings")
        if isinstance(settings, dict):
            # The notification does not repeat the workspace roots.
            roots = self.policy.workspace_roots if self.policy is not None else ()
            reported = read_policy({**settings, "sandbox": settings.get("sandboxPolicy")})
            self.policy = replace(reported, workspace_roots=roots)

    def policy_of(self, turn: TurnInput, access: Access, binary: CodexBinary) -> Policy:
        """Return the policy of a turn with explicit settings; a review has none."""
        policy = access.policy(self.directory)
        if turn.plan:
            policy = replace(policy, sandbox=_READ_ONLY)
        if self.policy is None:
            return policy
        # Older versions keep the roots that the thread was opened with.
        roots = policy.workspace_roots if binary.can(Feature.WORKSPACE_ROOTS) else self.policy.workspace_roots
        return replace(policy, reviewer=self.policy.reviewer, workspace_roots=roots)

    async def begin_turn(
        self,
        api: AppServer,
        binary: CodexBinary,
        turn: TurnInput,
        access: Access,
        workspace_roots: Sequence[str] | None,
    ) -> str:
        """Begin a turn in the loaded, idle thread; its id. `workspace_roots` replace those the thread was opened with."""
        if turn.review is not None:
            return await api.begin_turn("review/start", threadId=self.id, target=_review_target(turn.review))
        self.known_model = self.model or self.known_model
        self.effort = turn.effort or self.effort
        params: dict[str, Any] = {
            "threadId": self.id,
            "input": user_input(turn.text, turn.images),
            "effort": turn.effort,
            "model": self.model,
        }
        if turn.plan:
            # A plan must not change anything, whatever the session allows. The work has to fit the schema, not the plan.
            params |= {"sandboxPolicy": _READ_ONLY, "approvalPolicy": "never"}
            instructions = None if binary.can(Feature.PLAN_INSTRUCTIONS) else _PLAN_INSTRUCTIONS
            turn_id = await api.begin_turn(_START, **params, collaborationMode=self._mode(_PLAN, instructions))
            self.planning = True
            return turn_id
        params |= {
            "outputSchema": turn.output_schema,
            "sandboxPolicy": access.turn_sandbox,
            "approvalPolicy": access.approval_policy,
            "runtimeWorkspaceRoots": workspace_roots,
        }
        if not self.planning and turn.kind != "work":  # a resumed thread may be in plan mode without our knowledge
            return await api.begin_turn(_START, **params)
        # Ending plan mode must name a mode, and its name differs by version.
        try:
            turn_id = await api.begin_turn(_START, **params, collaborationMode=self._mode(_DEFAULT))
        except EngineRefused as refused:
            if f"unknown variant `{_DEFAULT}`" not in str(refused.details.get("rpc_message")):
                raise
            turn_id = await api.begin_turn(_START, **params, collaborationMode=self._mode(_OLDEST_DEFAULT))
        self.planning = False
        return turn_id

    def _mode(self, name: str, instructions: str | None = None) -> dict[str, Any]:
        settings = {"model": self.known_model, "reasoning_effort": self.effort, "developer_instructions": instructions}
        return {"mode": name, "settings": settings}

    def is_news(self, turn_id: str) -> bool:
        """Return whether the answer of Codex is the first that names a turn: its events, even its end, may come before."""
        # Its end came first, or the reviewer's own turn, which an interrupt must name.
        return turn_id != self.ended_turn_id and not (self.reviewing and self.turn is not None)


# --- opening one -----------------------------------------------------------------------------------------------------

_ONLY_AT_OPENING: Final = ("profile", "config", "base_instructions", "developer_instructions", "trust_repository")


def thread_settings(options: SessionOptions, access: Access) -> dict[str, Any]:
    """Return the parameters with which Codex opens a thread; None is not sent."""
    return {
        "cwd": None if options.cwd is None else str(options.cwd),
        "model": options.model,
        "sandbox": access.thread_sandbox,
        "approvalPolicy": access.approval_policy,
        "config": _with_variables(access.config, options.environment) or None,
        "baseInstructions": options.base_instructions,
        "developerInstructions": options.developer_instructions,
    }


def client_tools(options: SessionOptions) -> dict[str, Any]:
    """Return the parameter with the functions of a program. Only new threads take it, and keep them."""
    tools = [
        {"type": "function", "name": tool.name, "description": tool.description, "inputSchema": tool.input_schema}
        for tool in options.tools
    ]
    return {"dynamicTools": tools or None}


def _with_variables(config: Mapping[str, Any], environment: Mapping[str, str]) -> dict[str, Any]:
    """Return a configuration with variables for commands. A table of them would replace that of the process."""
    table, rest = "shell_environment_policy", dict(config)
    variables = {f"{table}.set.{name}": value for name, value in environment.items()}
    return merge_config(rest, variables) if table in rest else rest | variables


def as_opened(thread: Thread, access: Access) -> Opened:
    return Opened(
        session_id=thread.id,
        directory=thread.cwd,
        model=thread.model,
        approval_policy=thread.approval_policy,
        sandbox=access.sandbox or thread.sandbox,
        is_asking=thread.is_asking,
        notes=access.notes,
        raw=thread.raw,
    )


def remark_on_ignored(options: SessionOptions) -> tuple[str, ...]:
    """Return remarks for a caller that resumes, with options, a session that its engine already has open."""
    given = [name for name in _ONLY_AT_OPENING if getattr(options, name)]
    if not given:
        return ()
    return (f"Codex has this session open already and did not take {', '.join(given)}. Start a new session for that.",)


def refuse_what_only_opening_takes(known: SessionOptions, wanted: SessionOptions) -> None:
    """Refuse options that a loaded thread ignores: it takes only model, sandbox and approval policy with its next turn.

    Raises:
        InvalidInput: An option needs a new session.
    """
    # The directory belongs to the thread as well.
    changed = [name for name in ("cwd", *_ONLY_AT_OPENING) if getattr(known, name) != getattr(wanted, name)]
    if changed:
        raise InvalidInput(
            f"Codex takes {', '.join(changed)} only when it opens a session, and this one is open. Start a new one for it."
        )


# --- attaching to a thread ---------------------------------------------------------------------------------------------


class _Message(NamedTuple):
    turn_id: str | None
    request_id: int | str | None
    call: Callable[[], object]


@dataclass(slots=True)
class _Held:
    is_replayed: bool
    messages: list[_Message] = field(default_factory=list[_Message])
    is_running: bool = False


class HeldMessages:
    """Messages of Codex about threads to which this engine is not attached yet. They are handled when it is, in order.

    While `replaying`, the output that an earlier owner has read is read again: every thread in it is held, with its newest
    turn. Any other thread is held while it is joined.
    """

    def __init__(self, *, replaying: bool) -> None:
        self.replaying = replaying
        self._threads: dict[str, _Held] = {}

    def has_replayed(self, thread_id: str) -> bool:
        return thread_id in self._threads and self._threads[thread_id].is_replayed

    def is_running(self, thread_id: str) -> bool:
        """Return whether a turn of an earlier owner runs in the thread."""
        return thread_id in self._threads and self._threads[thread_id].is_running

    def begin(self, thread_id: str) -> None:
        """Hold the messages about a thread from now on."""
        self._threads.setdefault(thread_id, _Held(is_replayed=False))

    def hold(self, method: str, params: Mapping[str, Any], call: Callable[[], object]) -> bool:
        """Hold a notification about such a thread. Return whether it is one."""
        held = self._of(params)
        if held is None:
            return False
        turn = turn_id(params)
        if held.is_replayed:
            if method == "turn/started":  # its first items may have come before
                # Keep only the newest turn; earlier ones have been followed to their end.
                held.messages = [one for one in held.messages if turn is not None and one.turn_id == turn]
            if method in ("turn/started", "turn/completed"):
                held.is_running = method == "turn/started"
            # Text is repeated in the item's end.
            if method.lower().endswith("delta"):
                return True
        held.messages.append(_Message(turn, None, call))
        return True

    def hold_request(self, request: IncomingRequest, call: Callable[[], object]) -> bool:
        """As `hold`. Codex repeats an open request when its thread is joined."""
        held = self._of(request.params)
        # Codex sends it again under the same id.
        if held is not None and all(one.request_id != request.id for one in held.messages):
            held.messages.append(_Message(turn_id(request.params), request.id, call))
        return held is not None

    def _of(self, params: Mapping[str, Any]) -> _Held | None:
        thread_id = params.get("threadId")
        if not isinstance(thread_id, str):
            return None
        # While replaying, every thread belonged to an earlier owner.
        if self.replaying and thread_id not in self._threads:
            self._threads[thread_id] = _Held(is_replayed=True)
        return self._threads.get(thread_id)

    def release(self, thread_id: str) -> None:
        """Handle the messages about a thread, and hold no more of them."""
        held = self._threads.pop(thread_id, None)
        for message in held.messages if held is not None else ():
            message.call()

    def forget(self, thread_id: str) -> None:
        self._threads.pop(thread_id, None)


# --- goals ------------------------------------------------------------------------------------------------------------

# Codex begins a turn towards an active goal as soon as the thread is loaded. A message sent then merges into that turn or is
# lost. So the goal is paused before the thread is loaded, and resumed after the next requested turn.


async def pause_goal(api: AppServer, binary: CodexBinary, thread_id: str) -> bool:
    """Pause the active goal of a thread that is about to be loaded. Return whether there was one."""
    if not binary.can(Feature.GOALS):
        return False
    try:
        goal = await api.goal(thread_id)
    except HelmsmanError as error:  # goals may be switched off
        log.debug("thread/goal/get of %s: %s", thread_id, error)
        return False
    if goal is None or goal.status != "active":
        return False
    await _set_goal_status(api, thread_id, "paused")
    return True


async def resume_goal(api: AppServer, thread_id: str) -> None:
    """Resume the goal of a thread if it is still paused."""
    try:
        goal = await api.goal(thread_id)
        if goal is not None and goal.status == "paused":
            await _set_goal_status(api, thread_id, "active")
    except HelmsmanError as error:
        log.warning("the goal of session %s stays paused: %s", thread_id, error)


async def _set_goal_status(api: AppServer, thread_id: str, status: str) -> None:
    await api.call("thread/goal/set", threadId=thread_id, status=status)


# --- a thread opened in advance --------------------------------------------------------------------------------------

# Spare threads: after two equal starts, the next equal start finds its thread open. Opening a thread is a third of
# Codex's work for a short turn, and callers that start one session often start many. Before its first turn a thread
# leaves no trace: it has no file, no list shows it, and Codex looks at git and the skills when the turn begins. When it
# is opened, Codex reads the configuration, the rules and `AGENTS.md`. All of these are checked again before the spare
# thread is used. There is no spare thread if opening one does more than read them (MCP servers, hooks), if it is
# unknown what was read, or while a turn runs.

SPARE_SECONDS: Final = 60.0
"""Lifetime of a spare thread. Short, because a session's file is named after the time its thread was opened."""

_INSTRUCTIONS: Final = ("AGENTS.override.md", "AGENTS.md")
_WITH_EFFECTS: Final = ("mcp_servers", "plugins", "hooks")
_OTHER_FILES: Final = ("_file", "_json")
"""Suffixes of keys that name further files, which Codex reads when it opens a thread."""


@dataclass(slots=True)
class _Spare:
    settings: Mapping[str, Any]
    context: object
    opened: anyio.Event = field(default_factory=anyio.Event)
    gone: anyio.Event = field(default_factory=anyio.Event)
    thread: Thread | None = None
    is_used: bool = False


class SpareThread:
    """Spare thread of an engine, if there is one."""

    def __init__(self, tasks: TaskGroup, api: AppServer, binary: CodexBinary, configuration: Configuration) -> None:
        self._tasks = tasks
        self._api = api
        self._can = binary.can(Feature.TRACELESS_THREADS) and binary.can(Feature.UNSUBSCRIBE)
        self._configuration = configuration
        self._spare: _Spare | None = None
        self._last: Mapping[str, Any] | None = None
        self._wanted: Mapping[str, Any] | None = None

    async def open(self, settings: Mapping[str, Any]) -> Thread:
        """Return a new thread with these settings: the spare one if it is equal, otherwise one that is opened now."""
        # Only the second equal start in a row makes another one likely.
        self._wanted = settings if self._can and settings == self._last else None
        self._last = settings
        spare = self._spare
        if spare is not None and spare.settings == settings:
            # Taken immediately, so that two callers never share a thread.
            self._spare = None
            try:
                await spare.opened.wait()
                # Anything it was opened under may have changed since.
                if spare.thread is not None and spare.context == self._context_of(settings):
                    spare.is_used = True
                    return spare.thread
            finally:
                spare.gone.set()
        return await self._api.open_thread("thread/start", **settings)

    def turn_ended(self, is_busy: Callable[[], bool]) -> None:
        """Open a thread for the next start if nothing runs and the next start is likely to equal the last."""
        # A thread that is being opened would slow the running turns.
        if self._wanted is None or is_busy():
            return
        wanted, self._wanted = self._wanted, None
        context = self._context_of(wanted)
        if context is None:
            return
        if self._spare is not None:
            self._spare.gone.set()
        self._spare = _Spare(wanted, context)
        self._tasks.start_soon(self._keep, self._spare)

    async def _keep(self, spare: _Spare) -> None:
        try:
            spare.thread = await self._api.open_thread("thread/start", **spare.settings)
        except HelmsmanError as error:
            log.debug("no thread could be opened in advance: %s", error)
            return
        finally:
            # Also after a failure, since `open` waits for it.
            spare.opened.set()
        with anyio.move_on_after(SPARE_SECONDS):
            await spare.gone.wait()
        if self._spare is spare:
            self._spare = None
        if not spare.is_used:
            try:
                # Codex unloads it after a while; without a turn it leaves no file.
                await self._api.call("thread/unsubscribe", threadId=spare.thread.id)
            except HelmsmanError as error:
                log.debug("a thread opened in advance could not be let go of: %s", error)

    def _context_of(self, settings: Mapping[str, Any]) -> object | None:
        """Return everything that a thread opened now would depend on, apart from its settings; None forbids a spare
        thread.
        """
        # Only a cached configuration tells, without asking, that nothing has changed.
        directory = Path(settings["cwd"])
        known = self._configuration.cached(directory)
        if known is None or not all(map(_is_plain, (settings["config"] or {}).items())):
            return None
        # Servers and hooks would be started for a thread that may never be used.
        if any(known.config.get(key) for key in _WITH_EFFECTS) or _names_files(known.config):
            return None
        fallbacks = known.config.get("project_doc_fallback_filenames")
        names = (*_INSTRUCTIONS, *(map(str, fallbacks) if isinstance(fallbacks, list) else ()))
        homes = tuple(map(os.fspath, self._configuration.homes))
        hooks, instructions, folders = _files(homes, _places(directory, known.config), names)
        if any(files_state(hooks)):
            return None
        rules = tuple(_rules(folders))
        today = time.strftime("%Y-%m-%d %Z")
        # Codex puts the date into a new thread's context.
        return known.state, files_state(instructions), rules, files_state(rules), file_identity(directory), today


def _places(directory: Path, config: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the directories where Codex looks for project files: from the working directory up to the repository's
    root.
    """
    places = tuple(upwards(os.fspath(directory)))
    # With other markers the root is unknown, so look in all directories above.
    root = repository_root(directory) if config.get("project_root_markers") in (None, [".git"]) else None
    return places[: places.index(str(root)) + 1] if str(root) in places else places


@lru_cache(16)
def _files(homes: tuple[str, ...], places: tuple[str, ...], names: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
    """Return the possible paths of hooks, instructions and rules.

    Cached, because every turn needs them and building paths is slow.
    """
    settings = (*homes, *_inside(places, (".codex",)))
    return _inside(settings, ("hooks.json",)), _inside((*homes, *places), names), _inside(settings, ("rules",))


def _inside(places: Iterable[str], names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(os.path.join(place, name) for place in places for name in names)  # noqa: PTH118


def _is_plain(override: tuple[str, Any]) -> bool:
    """Return whether an override is a plain value: tables, paths and profiles can bring in servers, trust and further
    files.
    """
    key, value = override
    is_value = isinstance(value, str | int | float) and "." not in key
    return is_value and key != "profile" and not key.endswith(_OTHER_FILES)


def _names_files(config: Mapping[str, Any]) -> bool:
    return any(
        _names_files(value) if isinstance(value, dict) else isinstance(value, str) and key.endswith(_OTHER_FILES)
        for key, value in config.items()
    )


def _rules(folders: Iterable[str]) -> Iterator[str]:
    for place in folders:
        try:
            yield from sorted(entry.path for entry in os.scandir(place))
        except OSError:  # there are none
            continue
