"""What a session may do, as a command line: worked out anew for each process, so that nothing of an earlier one holds.

Claude Code asks before all but commands that only read, in its mode `default`; that mode (or, for a plan, `plan`) is named
every time, since its settings may name another. What it asks is answered by whoever holds the session
(`SessionAccess.answers`). Of a repository it reads nothing but the files that it is asked to work on: no settings, hooks,
plugins, MCP servers or instructions, which would run or hold before anybody was asked, until the caller trusts it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from helmsman.agents.claude.binary import PROJECTS, spelled
from helmsman.agents.sandbox import NETWORK, Confined, spellings
from helmsman.model.options import Writes, approval_word, sandbox_word

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from helmsman.agents.claude.binary import ClaudeBinary
    from helmsman.agents.claude.questions import Asked
    from helmsman.model.options import Asks, SessionOptions, TurnInput

_PROTOCOL: Final = (
    *("-p", "--input-format", "stream-json", "--output-format", "stream-json", "--verbose"),
    *("--permission-prompt-tool", "stdio", "--include-partial-messages"),
)
_ALWAYS_LEFT_OUT: Final = (
    *("CronCreate", "CronDelete", "CronList", "EnterWorktree", "ExitWorktree", "ScheduleWakeup"),
    *("Monitor", "Workflow", "ListAgents", "SendMessage"),
)
"""Tools that begin turns by themselves, leave the session's directory, or reach other sessions of the user, which may do
more than this one: nobody is asked about a message to them."""
_WRITING: Final = ("Edit", "MultiEdit", "NotebookEdit", "Write")
_RUNNING: Final = ("Bash",)

_LONGEST_NAME: Final = 200
"""A longer one is cut, and ends otherwise."""
WRITABLE_AT_HOME: Final = (
    *(PROJECTS, "todos", "tasks", "plans", "file-history", "sessions"),
    *("debug", "statsig", "telemetry", "cache", "paste-cache", "image-cache", "usage-data"),
)
"""What Claude Code writes in its home as it works. Its settings, hooks, plugins and the list of its MCP servers are not
among it: what a command wrote there would run outside the sandbox, later. Nor are `shell-snapshots` and `session-env`, which
each of its commands begins with, also in somebody's own terminal, nor `jobs`, which are begun without asking, nor the
`backups` of its configuration: it does without them."""


_VARIABLES: Final = ("ANTHROPIC_*", "CLAUDE_*")
"""Its own, of those that hold secrets."""
_SUB_AGENTS: Final = "agent-memory*/**"
_MEMORY: Final = (f"{PROJECTS}/*/memory/**", _SUB_AGENTS)
"""Where it and its sub-agents remember things, in its home. It writes there without asking, by its tools and by commands,
and each later session is told to heed what it finds: also those that may do more, and those in somebody's own terminal.
Rules that ask do not cover its commands, so these deny. What is there it still reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionAccess:
    """What a session may do. `answers` is what becomes of a question: it is asked, or answered without anybody."""

    answers: Literal["ask", "refuse", "allow"]
    asks: Asks
    writes: Writes
    enforced: bool
    plans: bool = False
    notes: tuple[str, ...] = ()

    def asks_about(self, asked: Asked) -> bool:
        """Whether somebody is asked; what plans is refused whatever it would have to ask for, but may ask the user."""
        may_ask_user = self.plans and self.asks != "never" and asked.question.type == "user_input"
        return self.answers == "ask" or may_ask_user

    @property
    def approval_policy(self) -> str | None:
        return approval_word(self.asks)

    @property
    def sandbox(self) -> str | None:
        return sandbox_word(self.writes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """How a process is started, but for the session it is started for. Two that are equal can do the same."""

    arguments: tuple[str, ...]
    directory: Path
    confined: Confined | None
    access: SessionAccess


def access_of(options: SessionOptions, *, enforced: bool, plans: bool = False) -> SessionAccess:
    """What the options of a session come to, in a turn that works or one that plans."""
    writes: Writes = "nothing" if plans else options.writes or "workspace"
    asks: Asks = options.asks or "when_needed"
    notes: list[str] = []
    if asks == "after_failure":
        asks = "unless_harmless"
        notes.append("Claude Code cannot ask only after a failure: it asks before all but harmless commands.")
    if asks == "never" and writes != "anything":
        notes.append("Nobody is asked: what Claude Code would have to ask for is refused.")
    if writes != "anything" and not enforced:
        notes.append("Nothing enforces the sandbox: what is approved can write anywhere.")
    elif enforced:
        notes.append(NETWORK)
    answers: Literal["ask", "refuse", "allow"] = "ask"
    if asks == "never":
        answers = "allow" if writes == "anything" else "refuse"
    if plans:
        answers = "refuse"
    return SessionAccess(answers=answers, asks=asks, writes=writes, enforced=enforced, plans=plans, notes=tuple(notes))


def own_project(home: Path, directory: Path) -> Path:
    """Where the sessions of a directory are; where it cannot be told how that is spelled, where all are."""
    place = str(directory.resolve())
    own = home / PROJECTS / spelled(place)
    is_known = place.isascii() and len(own.name) <= _LONGEST_NAME and not own.is_symlink()
    return own if is_known else home / PROJECTS


def plan_launch(
    binary: ClaudeBinary, options: SessionOptions, turn: TurnInput, directory: Path, session_id: str, *, enforced: bool
) -> Launch:
    """How a process for this turn of a session is started."""
    access = access_of(options, enforced=enforced, plans=turn.plan)
    left_out = [*_ALWAYS_LEFT_OUT]
    if access.writes == "nothing":
        # A plan is a file in its own home: its mode asks before it writes to any other, and gets no.
        left_out += [*(() if turn.plan else _WRITING), *(() if enforced else _RUNNING)]
    arguments = [*_PROTOCOL, "--permission-mode", "plan" if turn.plan else "default"]
    arguments.append(f"--disallowedTools={','.join(left_out)}")
    # Also of MCP servers these are all: those of the user, and of a repository only where it is trusted.
    arguments += ["--setting-sources", "user,project,local" if options.trust_repository else "user"]
    if access.answers != "allow":
        denied = [f"Edit(/{home}/{place})" for home in spellings(binary.home) for place in _MEMORY]
        rules = [*denied, f"Edit(//**/.claude/{_SUB_AGENTS})"]
        arguments.append(f"--settings={json.dumps({'permissions': {'deny': rules}})}")
    for flag, value in (
        ("--model", options.model),
        ("--effort", turn.effort),
        ("--system-prompt", options.base_instructions),
        ("--append-system-prompt", options.developer_instructions),
    ):
        if value:
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
            needs=(binary.home, binary.home.with_name(f"{binary.home.name}.json")),
            hides=(binary.home / PROJECTS,),  # what was said in other directories
            variables=_VARIABLES,
        )
    return Launch(arguments=tuple(arguments), directory=directory, confined=confined, access=access)
