"""Differences between agents that speak the Agent Client Protocol, with cautious defaults for unknown agents.

The protocol defines the messages. It does not define which actions need approval, the meaning of a second prompt, where
the exit code of a command is, or whether its token counts are of one call or of the whole session. Each agent has a
`Profile` that does, in a module of its name, beside the reader of its sessions. This module holds the defaults for agents
that were never examined.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from helmsman.agents.protocol import Capabilities, Capability, Trust, is_enforced
from helmsman.agents.sandbox import NETWORK
from helmsman.base.json_values import count, integer, mapping, optional_text, sequence, text
from helmsman.base.structs import Value, replace
from helmsman.errors import InvalidInput
from helmsman.model.events import Usage

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from helmsman.agents.session_files import SessionReader
    from helmsman.agents.transcripts import CarriedTranscripts
    from helmsman.model.options import SessionOptions

SteeringWay = Literal["no", "second prompt", "when asked"]
"""Ways to send a message into a running turn: none; a second prompt; when the agent asks for it."""

Counting = Literal["nothing", "turn", "process", "files"]
"""Scope of the token counts in the answer to a prompt: none, the turn, or the whole process.

Some agents report too little there, and only their files have the correct counts.
"""

MODE: Final = "mode"
"""The name of the mode among the settings of a session."""
_OF_EVERY_AGENT: Final = frozenset({Capability.ASK, Capability.IMAGES, Capability.RESUME, Capability.SANDBOX})


class AgentAccess(Value, frozen=True):
    """Access of a session, in this agent's terms.

    The session is set to `mode` before every first prompt. With `answers` Helmsman answers the agent's requests
    automatically: `no` if the user may not be asked or nothing may be written, `yes` if anything is allowed without asking.
    """

    mode: str | None = None
    answers: Literal["no", "yes"] | None = None
    notes: tuple[str, ...] = ()


class AgentHome(Value, frozen=True, kw_only=True):
    """Home directory of an agent, and the parts of it that a sandbox exposes.

    The environment variable `variable` names the directory that has its home, as `below` there (empty: the directory is its
    home). `shared` are the directories with its sessions, `kept` are paths below these that hold programs. Directories that
    it has to write are `copied`. What the sandbox must not see, or the agent makes anew, is `empty`: names or patterns.
    `mark` is the file that names the owner of the sessions in a directory. In the sandbox the home is in a directory of the
    name `inside`. An agent with an XDG directory shares it with other programs: `others` is the real one, and its other
    entries are linked.
    """

    path: Path
    variable: str
    below: str = ""
    shared: tuple[str, ...]
    kept: tuple[str, ...] = ()
    copied: tuple[str, ...] = ()
    empty: tuple[str, ...] = ()
    mark: str | None = None
    inside: str = ""
    others: Path | None = None


class Profile(ABC):
    """Profile of one agent. Its trust has no defaults (`Trust`); everything else defaults to an unknown agent."""

    name: str = ""
    title: str = ""
    program: str = ""
    """Name of the program on the PATH."""
    arguments: tuple[str, ...] = ()
    install: str = ""
    """Command that installs it."""
    start_seconds: float = 180.0
    """Seconds until the first answer, which may take long on a busy machine and on the agent's very first start."""
    model_by: Literal["set_model", "environment", "nothing"] = "nothing"
    """Method to select the model."""
    steering: SteeringWay = "no"
    counting: Counting = "nothing"
    tells_later: bool = False
    """True if the agent asks about a call before it reports the tool's input."""
    writable: tuple[Path, ...] = ()
    """Paths that it may write in a sandbox, besides those of the session and the shared parts of its home."""

    # --- trust, without defaults -------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def trust(self) -> Trust:
        """How far the agent is trusted."""

    @abstractmethod
    def dangerous_files(self, directory: Path) -> list[Path]:
        """Files that it would run in this directory before anybody has been asked, whatever it is started with."""

    @abstractmethod
    def home(self, env: Mapping[str, str]) -> AgentHome | None:
        """Return the agent's home and the parts that a sandbox exposes; None if it needs nothing there."""

    def more_homes(self, env: Mapping[str, str]) -> tuple[AgentHome, ...]:
        """Return further directories that it keeps files in, none of which it shares with its next process."""
        return ()

    # --- starting it -------------------------------------------------------------------------------------------------

    def environment(self, env: Mapping[str, str], options: SessionOptions, places: Path) -> dict[str, str]:
        """Return the environment to start the agent with; `places` is a directory for Helmsman's files."""
        return dict(env)

    def refuse_danger(self, options: SessionOptions, directory: Path) -> None:
        """Refuse to work where the agent would run files of the repository without approval.

        Raises:
            InvalidInput: It would, and the repository is not trusted.
        """
        if not options.trust_repository and (found := self.dangerous_files(directory)):
            listed = ", ".join(str(path) for path in found[:10])
            raise InvalidInput(
                f"{self.title} would run files of this repository before it asks: {listed}. Take them away, "
                "or let a person decide whether the repository is trusted (`trust_repository`).",
                parameter="trust_repository",
                files=[str(path) for path in found],
            )

    def reads(self, env: Mapping[str, str]) -> tuple[Path, ...]:
        """Return the paths that it reads in a sandbox besides its home: its code, and logins of other programs."""
        return ()

    def own_project(self, home: Path, directory: Path) -> Path | None:
        """Return the directory with the sessions of one project; None if all projects share one. Blocks, briefly."""
        return None

    def session_place(self, session_id: str, env: Mapping[str, str], *, enforced: bool) -> Path | None:
        """Return the directory with the data of one session, made if it is new; None if sessions share one. Blocks, briefly.

        Raises:
            InvalidInput: The session has none, so that a sandbox would have to show the data of all sessions.
        """
        return None

    def place_environment(self, place: Path) -> Mapping[str, str]:
        """Return the variables that make it use such a directory."""
        return {}

    def was_begun(self, session_id: str, place: Path) -> None:  # noqa: B027 - most have none
        """Note which session the data in a directory is of. Blocks, briefly."""

    def prepare(self, argv: Sequence[str], env: Mapping[str, str]) -> None:  # noqa: B027 - most need nothing
        """Do what must be done outside before it can run in a sandbox. Blocks.

        Raises:
            EngineStartFailed: It cannot be done.
        """

    # --- access of a session -----------------------------------------------------------------------------------------

    def access(self, options: SessionOptions) -> AgentAccess:
        """Return the access of such a session."""
        notes: list[str] = []
        if options.asks == "after_failure":
            notes.append(f"{self.title} cannot ask only after a failure, so it asks before.")
        if is_enforced(options):
            notes.append(NETWORK)
        elif options.writes != "anything":
            notes.append(f"Nothing holds {self.title} to a sandbox: what is approved can write anywhere.")
        if options.writes == "nothing":
            # Read-only needs no questions: the agent's own mode refuses, and anything it still asks about is refused.
            return AgentAccess(self.trust.reading_mode or self.trust.asking_mode, "no", tuple(notes))
        # The asking mode even with full access: other modes need a trusted folder, and answering yes has the same
        # effect.
        if options.writes == "anything" and options.asks == "never":
            return AgentAccess(self.trust.asking_mode, "yes", tuple(notes))
        # An agent cannot be limited to its sandbox without asking, so what needs approval is refused.
        if options.asks == "never":
            notes.append(f"There are no questions: what {self.title} would have to ask for is refused.")
            return AgentAccess(self.trust.asking_mode, "no", tuple(notes))
        return AgentAccess(self.trust.asking_mode, None, tuple(notes))

    # --- messages of the agent ---------------------------------------------------------------------------------------

    def read_update(self, update: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return an update in the protocol's form."""
        return update

    def tool_of(self, call: Mapping[str, Any]) -> str | None:
        """Return the name of the called tool, if the program itself reports it; a title may be the model's choice."""
        return None

    def mode_in(self, text: str) -> str | None:
        """Return the mode that the agent changed to, if only a piece of a message reports it."""
        return None

    def settings_in(self, said: Mapping[str, Any]) -> dict[str, str | None]:
        """Read the mode and the approval options from an update or an answer; None for a value that is unclear."""
        kind, settings = said.get("sessionUpdate"), dict[str, str | None]()
        if kind == "current_mode_update":
            settings[MODE] = optional_text(said.get("currentModeId"))
        # Gemini reports a change of mode only in text.
        elif kind == "agent_message_chunk":
            mode = self.mode_in(text(mapping(said.get("content")).get("text")))
            return {} if mode is None else {MODE: mode}
        for option in map(mapping, sequence(said.get("configOptions"))):
            name, value = text(option.get("id")), optional_text(option.get("currentValue"))
            if name == MODE or name in self.trust.asking_options:
                # Two different values for one option leave it unclear, which is treated as unsafe.
                settings[name] = value if settings.get(name, value) == value else None
        return settings

    def is_remark(self, text: str) -> bool:
        """Return whether a piece of a message comes from the program and not from the model."""
        return False

    def failure_in(self, text: str) -> str | None:
        """Return the failure, if only a piece of a message reports it."""
        return None

    def command_end(self, fields: Mapping[str, Any]) -> tuple[str | None, int | None]:
        """Output and exit code of a command, as far as its updates tell."""
        return optional_text(fields.get("rawOutput")), None

    def prompt_usage(self, answer: Mapping[str, Any]) -> Usage | None:
        """Return the usage in the answer to a prompt; `counting` says which requests it covers."""
        return self.read_usage(mapping(answer.get("usage"))) if self.counting != "nothing" else None

    def update_usage(self, update: Mapping[str, Any]) -> Usage | None:
        """Return the usage of one model call from an update."""
        return None

    def read_usage(self, counts: Mapping[str, Any]) -> Usage | None:
        """Counts by the protocol's names."""
        if integer(counts.get("inputTokens")) is None:
            return None
        return Usage(
            input_tokens=count(counts.get("inputTokens")),
            cached_input_tokens=count(counts.get("cachedReadTokens")),
            output_tokens=count(counts.get("outputTokens")),
            reasoning_output_tokens=count(counts.get("thoughtTokens")),
        )

    # --- files on disk -----------------------------------------------------------------------------------------------

    def reader(self, env: Mapping[str, str]) -> SessionReader | None:
        """Return the reader of its sessions on disk; None if their place is unknown."""
        return None

    def logins(self, env: Mapping[str, str]) -> tuple[Sequence[str], Sequence[Path]]:
        """Return the variables and files that may contain its login, as far as known."""
        return (), ()

    def transcripts(self, env: Mapping[str, str]) -> CarriedTranscripts | None:
        """Its sessions on disk as what can be carried to another machine; None where they cannot."""
        return None

    async def may_load(self, session_id: str, env: Mapping[str, str]) -> None:  # noqa: B027 - most agents may always
        """Wait until a session can be loaded without harm."""

    def was_loaded(self, session_id: str, env: Mapping[str, str]) -> None:  # noqa: B027 - most need nothing
        """Do what must be done after a load for no harm to come of it. Blocks."""

    # --- capabilities ------------------------------------------------------------------------------------------------

    @property
    def able(self) -> frozenset[Capability]:
        """Capabilities of its engine."""
        can = set(_OF_EVERY_AGENT)
        if self.steering != "no":
            can.add(Capability.STEER)
        if self.model_by != "nothing":
            can.add(Capability.MODEL)
        # A profile that overrides the method has it: no separate flag can disagree with it.
        if type(self).reader is not Profile.reader:
            can.add(Capability.HISTORY)
        if self.counting != "nothing":
            can.add(Capability.USAGE)
        if type(self).transcripts is not Profile.transcripts:
            can.add(Capability.MOVE)
        return frozenset(can)

    @property
    def capabilities(self) -> Capabilities:
        """Capabilities of its engine, with alternatives for the missing ones."""
        able = self.able
        lacking = {capability: "" for capability in Capability if capability not in able}
        if Capability.INSTRUCTIONS in lacking:
            lacking[Capability.INSTRUCTIONS] = "Put what matters into the prompt."
        return Capabilities(self.name, self.title, lacking)


class OwnAgent(Profile):
    """Agent of the user, from `[agents.NAME]` in `helmsman.toml`."""

    trust = Trust(
        asking_mode=None,
        reading_mode=None,
        asking_options={},
        acts_unasked=True,
        memory=(),
        runs_repository_files=True,
        variables=("*",),  # which of them it needs is not known
        shared=(),
    )

    def __init__(
        self, name: str, title: str, *, mode: str | None, runs_repository_files: bool, writable: tuple[Path, ...] = ()
    ) -> None:
        self.name = name
        self.title = title
        self.trust = replace(self.trust, asking_mode=mode, runs_repository_files=runs_repository_files)
        self.writable = writable

    def dangerous_files(self, directory: Path) -> list[Path]:
        return []  # none are known

    def home(self, env: Mapping[str, str]) -> AgentHome | None:
        return None

    def access(self, options: SessionOptions) -> AgentAccess:
        found = super().access(options)
        note = f"Helmsman does not know what {self.title} does without asking."
        return AgentAccess(found.mode, found.answers, (*found.notes, note))


# --- for profiles ------------------------------------------------------------------------------------------------------


def home_in(env: Mapping[str, str]) -> Path:
    """Return the home directory of a user."""
    return Path(text(env.get("HOME")) or Path.home())


def with_all_above(directory: Path) -> Iterator[Path]:
    """Yield a directory and its parents, up to the user's home.

    Not up to the repository's root, because a repository can fake its root with a useless `.git` in a subdirectory. The
    agent searches the same directories, whatever links led here. Files are looked up by name, so the file system
    decides about upper and lower case.
    """
    real = directory.resolve()
    for above in (real, *real.parents):
        # Files in the user's own home are the user's settings, not the repository's.
        if above == Path.home():
            return
        yield above


def files_in(folder: Path) -> list[Path]:
    """Return what is in a directory, if it exists."""
    try:
        return sorted(Path(entry.path) for entry in os.scandir(folder))
    except OSError:
        return []
