"""Access of a session, as a command line. It is computed for each process, so that no earlier state applies.

Claude Code asks before all but commands that only read, in its mode `default`; that mode (or, for a plan, `plan`) is named
every time, since its settings may name another. The owner of the session answers its questions (`SessionAccess.answers`). Of
a repository it reads only the files that it works on. Settings, hooks, plugins, MCP servers and instructions would run or
apply before the user is asked, so they are left out until the caller trusts the repository.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from helmsman.agents.claude.binary import PROJECTS, spelled
from helmsman.agents.protocol import Trust
from helmsman.agents.sandbox import NETWORK, Confined
from helmsman.agents.sandbox_view import spellings
from helmsman.model.options import Writes, approval_word, sandbox_word

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from helmsman.agents.claude.binary import ClaudeBinary
    from helmsman.agents.claude.normalise import Asked
    from helmsman.model.options import Asks, SessionOptions, TurnInput

_PROTOCOL: Final = (
    *("-p", "--input-format", "stream-json", "--output-format", "stream-json", "--verbose"),
    *("--permission-prompt-tool", "stdio", "--include-partial-messages"),
)
_ALWAYS_LEFT_OUT: Final = (
    *("CronCreate", "CronDelete", "CronList", "EnterWorktree", "ExitWorktree", "ScheduleWakeup"),
    *("Monitor", "Workflow", "ListAgents", "SendMessage"),
)
"""Tools that begin turns without a request, leave the session's directory, or reach other sessions of the user, which may
have more access than this one: Claude Code does not ask before it sends them a message.
"""
_WRITING: Final = ("Edit", "MultiEdit", "NotebookEdit", "Write")
_RUNNING: Final = ("Bash",)

_LONGEST_NAME: Final = 200
"""Claude Code truncates longer names and appends a hash."""
WRITABLE_AT_HOME: Final = (
    *(PROJECTS, "todos", "tasks", "plans", "file-history", "sessions"),
    *("debug", "statsig", "telemetry", "cache", "paste-cache", "image-cache", "usage-data"),
)
"""Places that Claude Code writes in its home as it works.

Its settings, hooks, plugins and the list of its MCP servers are not among them: code that a command wrote there would run
outside the sandbox, later. Nor are `shell-snapshots` and `session-env`, which run before each of its commands, also in the
user's own terminal, nor `jobs`, which start without asking, nor the `backups` of its configuration. It works without them.
"""


_SUB_AGENTS: Final = "agent-memory*/**"
TRUST: Final = Trust(
    asking_mode="default",
    reading_mode="plan",
    asking_options={},
    acts_unasked=True,
    memory=(f"{PROJECTS}/*/memory/**", _SUB_AGENTS),
    runs_repository_files=False,  # its settings, hooks, plugins and servers are left out (`--setting-sources`)
    variables=("ANTHROPIC_*", "CLAUDE_*"),
    shared=WRITABLE_AT_HOME,
)
"""Trust of Claude Code. Its sub-agents share its memory.

It writes memory without asking, with its tools and with commands, and every later session follows the instructions
there, including sessions with more access and those in the user's terminal. Rules that ask do not cover its commands,
so these rules deny. Reading stays allowed.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionAccess:
    """Access of a session. `answers` says how to handle a question: ask the user, or answer it automatically."""

    answers: Literal["ask", "refuse", "allow"]
    asks: Asks
    writes: Writes
    enforced: bool
    plans: bool = False
    notes: tuple[str, ...] = ()

    def asks_about(self, asked: Asked) -> bool:
        """Return whether to ask the user. A turn that plans gets no approvals, but may ask the user for input."""
        may_ask_user = self.plans and self.asks != "never" and asked.question.type == "user_input"
        return self.answers == "ask" or may_ask_user

    @property
    def approval_policy(self) -> str | None:
        return approval_word(self.asks)

    @property
    def sandbox(self) -> str | None:
        return sandbox_word(self.writes)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedLaunch:
    """Command for a process, without the session it is started for. Two equal ones have the same access."""

    arguments: tuple[str, ...]
    directory: Path
    confined: Confined | None
    access: SessionAccess


def access_of(options: SessionOptions, *, enforced: bool, plans: bool = False) -> SessionAccess:
    """Return the access for the options of a session, in a turn that works or one that plans."""
    writes: Writes = "nothing" if plans else options.writes or "workspace"
    asks: Asks = options.asks or "when_needed"
    notes: list[str] = []
    if asks == "after_failure":
        asks = "unless_harmless"
        notes.append("Claude Code cannot ask only after a failure: it asks before all but harmless commands.")
    if asks == "never" and writes != "anything":
        notes.append("Claude Code asks no questions: what needs approval is refused.")
    if writes != "anything" and not enforced:
        notes.append("Nothing enforces the sandbox: what is approved can write anywhere.")
    elif enforced:
        notes.append(NETWORK)
    answers: Literal["ask", "refuse", "allow"] = "ask"
    # Without questions, calls that need approval are refused, unless the session may write anything.
    if asks == "never":
        answers = "allow" if writes == "anything" else "refuse"
    if plans:
        answers = "refuse"
    return SessionAccess(answers=answers, asks=asks, writes=writes, enforced=enforced, plans=plans, notes=tuple(notes))


def own_project(home: Path, directory: Path) -> Path:
    """Return the directory with a project's sessions, or the one with all sessions if the spelling is uncertain."""
    place = str(directory.resolve())
    own = home / PROJECTS / spelled(place)
    # A link here could have been made by a command, and lead elsewhere.
    is_known = place.isascii() and len(own.name) <= _LONGEST_NAME and not own.is_symlink()
    return own if is_known else home / PROJECTS


def plan_launch(
    binary: ClaudeBinary, options: SessionOptions, turn: TurnInput, directory: Path, session_id: str, *, enforced: bool
) -> PlannedLaunch:
    """Return how to start a process for this turn of a session."""
    access = access_of(options, enforced=enforced, plans=turn.plan)
    left_out = [*_ALWAYS_LEFT_OUT]
    if access.writes == "nothing":
        # A plan is a file in its own home: its mode asks before it writes to any other, and gets no.
        left_out += [*(() if turn.plan else _WRITING), *(() if enforced else _RUNNING)]
    arguments = [*_PROTOCOL, "--permission-mode", "plan" if turn.plan else TRUST.asking_mode or ""]
    arguments.append(f"--disallowedTools={','.join(left_out)}")
    # Also of MCP servers these are all: those of the user, and of a repository only where it is trusted.
    arguments += ["--setting-sources", "user,project,local" if options.trust_repository else "user"]
    if access.answers != "allow":
        denied = [f"Edit(/{home}/{place})" for home in spellings(binary.home) for place in TRUST.memory]
        rules = [*denied, f"Edit(//**/.claude/{_SUB_AGENTS})"]
        arguments.append(f"--settings={json.dumps({'permissions': {'deny': rules}})}")
    for flag, value in (
        ("--model", options.model),
        ("--effort", turn.effort),
        ("--system-prompt", options.base_instructions),
        ("--append-system-prompt", options.developer_instructions),
    ):
        if value:
            # Joined with `=`: a value that begins with a dash would be read as an option.
            arguments.append(f"{flag}={value}")
    if turn.output_schema is not None and not turn.plan:
        arguments.append(f"--json-schema={json.dumps(turn.output_schema)}")
    arguments += [f"--add-dir={root}" for root in options.writable_roots]
    roots: Sequence[Path] = () if access.writes == "nothing" else (directory, *options.writable_roots)
    confined = None
    if enforced and access.writes != "anything":
        own = (
            own_project(binary.home, directory),
            *(binary.home / name for name in WRITABLE_AT_HOME if name != PROJECTS),
        )
        confined = Confined(
            writable=(*roots, *own),
            own_home=binary.home,
            scratch=session_id,
            directory=directory.resolve(),
            # Claude Code also keeps `~/.claude.json`, beside its home.
            needs=(binary.home, binary.home.with_name(f"{binary.home.name}.json")),
            hides=(binary.home / PROJECTS,),  # sessions of other directories
            variables=TRUST.variables,
        )
    return PlannedLaunch(arguments=tuple(arguments), directory=directory, confined=confined, access=access)
