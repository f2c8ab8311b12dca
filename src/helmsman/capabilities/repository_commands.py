"""Commands of a repository that Helmsman itself runs: its set-up for worktrees, its check.

They come with the repository, so they are treated as an agent's commands are: rules decide, else a person is asked, and
nothing runs unasked. They run in the sandbox that the session's own commands have, never with more, in a bounded time; all
they start ends with them. Of the environment they get an allow list, and what the user's own settings name besides. Their
output is kept to a tail, without colours and secrets.

A turn for which they run is held until they have ended (`hold_turn`).
"""

from __future__ import annotations

import glob
import logging
import re
import secrets
import signal
import time
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

import anyio
import anyio.to_thread

from helmsman.agents.child_process import open_child
from helmsman.agents.sandbox import Confined, clear_up, find_sandbox
from helmsman.base.addresses import REMOTE_TOKEN
from helmsman.base.caller_context import environment
from helmsman.base.concurrency import background_tasks
from helmsman.base.redaction import redact
from helmsman.base.sanitize import word_set
from helmsman.errors import HelmsmanError, InvalidInput, InvalidSetting, Unsupported
from helmsman.model.events import TurnEnded
from helmsman.model.options import WRITES, Writes
from helmsman.model.questions import APPROVE, APPROVE_SESSION, DENY, REFUSALS, Choice, Prompt, Question, own_question
from helmsman.steering.turn_errors import failed_turn, known_error

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping

    from helmsman.agents.registry import Agents
    from helmsman.git.worktree import Worktree
    from helmsman.sessions.session import Session
    from helmsman.settings import Settings
    from helmsman.steering.core import Steering

log = logging.getLogger(__name__)

STOPPED: Final = "the turn was stopped"
OUTPUT_BYTES: Final = 256 * 1024
_OUTPUT_GRACE: Final = 1.0
"""Seconds to read output of processes that a command left running."""
_COMMAND_CHARS: Final = 4000
_ANSI: Final = re.compile(r"\x1b(?:\[[0-9;?]*[A-Za-z]|\][^\x07]*\x07)")
_PASSED: Final = word_set(Path(__file__).with_name("command_environment.txt").read_text(encoding="ascii"))
"""Variables by which programs find each other, and themselves. None of them is meant to hold a secret."""
_WITH_LOGIN: Final = re.compile(r"://[^/@\s]*@")
_CHECKS: Final = "checks"
# Both outputs in the order in which they come, and no input to wait for.
_SHELL: Final = 'exec /bin/sh -c "$1" 2>&1 </dev/null'


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandAllowance:
    """Permissions of a command: those of its session.

    With `anything` it runs without a sandbox. `folder` is its directory in the worktree, if not the root.
    """

    writes: Writes = "workspace"
    network: bool = False
    writable_roots: tuple[Path, ...] = ()
    folder: str = ""

    @classmethod
    def of(cls, session: Session, agents: Agents) -> CommandAllowance:
        """Return the permissions of a session, as its agent reported them. Unknown means none."""
        options = session.options
        writes = options.writes or WRITES.get(session.state.sandbox or "", "nothing")
        agent = agents.get(options.agent)
        network = agent is not None and agent.reaches_network(options)
        return cls(writes=writes, network=network, writable_roots=options.writable_roots)

    @property
    def place(self) -> str:
        """Where an approved command runs, for questions."""
        return "outside" if self.writes == "anything" else "inside"


# --- asked -----------------------------------------------------------------------------------------------------------

Consent: TypeAlias = "Callable[[str, Worktree, CommandAllowance, str], Awaitable[str | None]]"
"""Says whether a command may run in a worktree, and for what: None is a yes, anything else the reason of a no."""


def command_question(session: Session, command: str, tree: Worktree, allowance: CommandAllowance, why: str) -> Question:
    """Return the question whether a command may run. It is asked for the repository, so a rule applies to all its
    worktrees.

    Raises:
        InvalidInput: It is not a command.
    """
    if not command.strip() or len(command) > _COMMAND_CHARS or "\0" in command:
        raise InvalidInput(f"A command has 1 to {_COMMAND_CHARS} characters. Put a longer one into a script.")
    details = {
        "command": command,
        "directory": str(tree.repository / allowance.folder),
        "sandbox": allowance.place,
        "reason": f"{why} It runs in a worktree of this repository: {tree.path / allowance.folder}",
    }
    prompt = Prompt(text=why, options=(APPROVE, APPROVE_SESSION, DENY))
    return own_question(session.id, session.state.turn_id, prompt, details, "command_approval")


def end_stopped(helm: Steering, session: Session) -> None:
    """End the turn of a session that is interrupted while Helmsman itself works in it."""
    session.apply(TurnEnded(session_id=session.id, turn_id=session.state.turn_id, outcome="interrupted"))
    helm.make_room()


def says_no(choices: tuple[Choice, ...] | None) -> str | None:
    """Return why an answer refuses a command, or None if it allows the command."""
    if choices is None:
        return "it was not allowed"
    if any(choice.value in REFUSALS for choice in choices):
        reason = next((choice.reason for choice in choices if choice.reason), None)
        return "it was refused" + (f": {reason}" if reason else "")
    return None


def consent_of(helm: Steering, session: Session) -> Consent:
    """Return consent through the session's questions; if no turn of it runs, only rules can decide."""

    async def ask(command: str, tree: Worktree, allowance: CommandAllowance, why: str) -> str | None:
        question = command_question(session, command, tree, allowance, why)
        never = session.options.asks == "never"
        ruling = await anyio.to_thread.run_sync(helm.broker.ruling, session, question)
        if not session.state.is_running or (never and ruling.effect == "ask"):
            # No question is asked, so nothing else would record this decision.
            await helm.broker.record_ruling(question, ruling)
            if ruling.effect != "ask":
                return None if ruling.effect == "allow" else ruling.reason
            asked = "the session never asks" if never else "no one can be asked now"
            return f"no rule allows it, and {asked}: allow it with a rule for {tree.repository}"
        answered, answers = anyio.Event(), list[str | None]()

        def take(choices: tuple[Choice, ...] | None) -> None:
            by_rule = choices is None and ruling.effect == "deny"
            answers.append(STOPPED if session.is_stopping else ruling.reason if by_rule else says_no(choices))
            if session.is_stopping:
                end_stopped(helm, session)
            answered.set()

        helm.ask_first(session, question, take)
        await answered.wait()
        return answers[0]

    return ask


# --- run -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandResult:
    """Result of a command. `exit_code` is None after a timeout; `output` is the end of its output."""

    command: str
    exit_code: int | None
    output: str
    seconds: float

    @property
    def passed(self) -> bool:
        return self.exit_code == 0

    @property
    def timed_out(self) -> bool:
        return self.exit_code is None


async def run_command(
    command: str,
    directory: Path,
    allowance: CommandAllowance,
    *,
    settings: Settings,
    env: Mapping[str, str] | None,
    timeout: float,
    more: Mapping[str, str] | None = None,
) -> CommandResult:
    """Run an approved command. `directory` is the worktree, which it may write; `more` are variables.

    Raises:
        Unsupported: There is no sandbox for it here, or the session may not write, or its folder is gone.
        EngineStartFailed: It could not be run.
    """
    if allowance.writes == "nothing":
        raise Unsupported(
            f"The session may write nothing, so `{command}` cannot be run in its worktree. Start it with the sandbox "
            "workspace-write.",
            capability="sandbox",
        )
    place = directory / allowance.folder
    if not await anyio.to_thread.run_sync(_is_own_folder, directory, place):
        raise Unsupported(f"{place} is no longer a directory of the worktree, so `{command}` was not run there.")
    known = environment() if env is None else env
    passed = command_environment(known, settings) | dict(more or {})
    argv = ["/bin/sh", "-c", _SHELL, "sh", command]
    confined = None
    if allowance.writes != "anything":
        sandbox = await find_sandbox(settings, env)
        writable = (directory, *allowance.writable_roots)
        confined = Confined(
            writable=writable,
            own_home=directory,
            scratch=secrets.token_hex(8),
            # The sandbox takes patterns, and a name may contain their characters.
            variables=(*(more or ()), *map(glob.escape, named_variables(settings))),
            network=allowance.network,
        )
        argv, passed = await anyio.to_thread.run_sync(lambda: sandbox.around(argv, passed, confined))
    began, output, code = time.monotonic(), _Tail(), None
    try:
        async with background_tasks() as tasks, open_child(tasks, argv, env=passed, cwd=place) as child:
            try:
                with anyio.move_on_after(timeout):
                    async with anyio.create_task_group() as reading:
                        reading.start_soon(output.read, child.stdout)
                        code = await child.wait()
                        reading.cancel_scope.deadline = anyio.current_time() + _OUTPUT_GRACE
            finally:
                if code is None:
                    child.signal(signal.SIGTERM)  # it reads no input whose end could stop it
            said = child.stderr_tail
    finally:
        # Also after a cancellation, or the temporary directory of the sandbox would stay.
        if confined is not None:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(clear_up, settings.state_dir, confined.scratch)
    text = output.text() or said
    return CommandResult(command=command, exit_code=code, output=text, seconds=time.monotonic() - began)


def _is_own_folder(directory: Path, place: Path) -> bool:
    """Return whether a folder is in this directory and nowhere else: an agent could have put a link in its place."""
    return place.is_dir() and place.resolve() == directory.resolve() / place.relative_to(directory)


def command_environment(known: Mapping[str, str], settings: Settings) -> dict[str, str]:
    """Return the environment of a repository's command: an allow list, and what the user's own settings name.

    A value that is an address with a login is left out unless it is named.

    Raises:
        InvalidSetting: `[checks]` is invalid.
    """
    named = named_variables(settings)
    return {
        name: value
        for name, value in known.items()
        if name in named or ((name.upper() in _PASSED or name.startswith("LC_")) and not _WITH_LOGIN.search(value))
    }


def named_variables(settings: Settings) -> frozenset[str]:
    """Return the variables that the user's own file lets checks have: `[checks] env = ["DATABASE_URL"]`.

    A project's file names none: it would choose which secrets its own commands get.

    Raises:
        InvalidSetting: The table is invalid.
    """
    for file in settings.files:
        if not file.trusted or _CHECKS not in file.content:
            continue
        table = file.content[_CHECKS]
        names = table.get("env", []) if isinstance(table, dict) and table.keys() <= {"env"} else None
        if not isinstance(names, list) or not all(isinstance(name, str) and name for name in names):
            raise InvalidSetting(f'[{_CHECKS}] in {file.path} can say `env = ["DATABASE_URL", …]`. Correct it.')
        # The token of a remote Codex is never passed on, whatever the file names.
        return frozenset(names) - {REMOTE_TOKEN}
    return frozenset()


class _Tail:
    """End of a program's output."""

    def __init__(self) -> None:
        self._kept = bytearray()

    async def read(self, stream: anyio.abc.ByteReceiveStream) -> None:
        async for chunk in stream:
            self._kept += chunk
            # Cut at twice the length, so that not each chunk moves the whole tail.
            if len(self._kept) > 2 * OUTPUT_BYTES:
                del self._kept[:-OUTPUT_BYTES]

    def text(self) -> str:
        text = bytes(self._kept[-OUTPUT_BYTES:]).decode("utf-8", "replace").replace("\r\n", "\n")
        return redact(_ANSI.sub("", text))


# --- Hold a requested turn while Helmsman itself works in its session ----------------------------------------------------

Doing: TypeAlias = "Callable[[HeldTurn], Awaitable[TurnEnded | None]]"
"""Work before a turn begins. If it returns an end, or raises an error, the turn is over without having begun."""


class HeldTurn:
    """Turn that waits."""

    def __init__(self, helm: Steering, session: Session) -> None:
        self.helm = helm
        self.session = session
        self._scope = anyio.CancelScope()

    @contextmanager
    def at_work(self, what: str) -> Iterator[None]:
        """Something that takes its time. Questions end by themselves when the session is interrupted; this does here."""
        self.session.ask_own(what, self._stop)
        try:
            yield
        finally:
            _no_longer_asks(self.session, what)

    def _stop(self, *_: object) -> None:
        end_stopped(self.helm, self.session)
        self._scope.cancel()

    async def run(self, task_id: str, do: Doing, go_on: Callable[[], Awaitable[None]]) -> None:
        """Do it, then have the turn begin."""
        session = self.session
        with self._scope:
            ended = await self._do(do)
        # An interrupt has ended the turn already.
        if self._scope.cancelled_caught or not session.state.is_running:
            return
        # The work itself has ended the turn, for example because a question had no answer.
        if ended is not None:
            session.apply(ended)
            self.helm.make_room()
            return
        self.helm.task_writer.update(task_id, {"note": None})
        session.is_beginning()  # who stops it now waits until it can be stopped
        await go_on()

    async def _do(self, do: Doing) -> TurnEnded | None:
        try:
            return await do(self)
        except Exception as error:
            if not isinstance(error, HelmsmanError):
                log.exception("a step before a turn of session %s failed", self.session.id)
            return failed_turn(self.session.id, known_error(error))


def _no_longer_asks(session: Session, own: str) -> None:
    if session.own_question is not None and session.own_question[0] == own:
        session.drop_own_question()


def hold_turn(
    helm: Steering, session: Session, task_id: str, note: str, do: Doing, go_on: Callable[[], Awaitable[None]]
) -> None:
    """Hold a turn until some work is done; `note` describes the work."""
    helm.task_writer.hold(task_id, session, {"note": note})
    session.begun.set()  # who stops it now stops this
    run = partial(HeldTurn(helm, session).run, task_id, do, go_on)
    helm.in_background(run, f"session {session.id} could not continue")
