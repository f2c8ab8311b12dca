"""What differs between agents that speak the Agent Client Protocol, with the careful answer where nothing is known of one.

The protocol says how to talk; it does not say what an agent does unasked, what a second prompt means, where the exit code
of a command is, or whether its token counts are of one call or of the whole session. Each agent has a `Profile` that does;
`profiles` holds them. What is here is what holds for an agent nobody has looked at.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from helmsman.agents.protocol import Capabilities, Capability
from helmsman.agents.sandbox import NETWORK
from helmsman.base.json_values import count, integer, mapping, optional_text, sequence, text
from helmsman.base.structs import Value
from helmsman.model.events import Usage

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from helmsman.agents.acp.storage.reader import SessionReader
    from helmsman.agents.transcripts import CarriedTranscripts
    from helmsman.model.options import SessionOptions

SteeringWay = Literal["no", "second prompt", "when asked", "request"]
"""How a message gets into a running turn: not at all; as a second prompt; when the agent asks for it; by a request."""

Counting = Literal["nothing", "turn", "process", "files"]
"""What the token counts in the answer to a prompt are of: of nothing, of the turn, or of all that the process has done. Some
say too little there, and the truth is in their files."""

MODE: Final = "mode"
"""The name of the mode among the settings of a session."""
_OF_EVERY_AGENT: Final = frozenset({Capability.ASK, Capability.IMAGES, Capability.RESUME})


class AgentAccess(Value, frozen=True):
    """What a session may do, in this agent's way.

    `mode` is what it is set to before every first prompt. With `answers` Helmsman answers what the agent asks itself: `no`
    where nobody may be asked or nothing may be written, `yes` where anything may be done unasked.
    """

    mode: str | None = None
    answers: Literal["no", "yes"] | None = None
    notes: tuple[str, ...] = ()


class AgentHome(Value, frozen=True, kw_only=True):
    """Where an agent keeps what it keeps, and what of it a sandbox lets through.

    `variable` names the directory that has its home, as `below` there (nothing: the directory is its home). `shared` are
    the directories with its sessions, `kept` what is below these and holds programs. Directories that it has to write are
    `copied`, or, where it needs nothing of them, `empty`. `mark` is the file that says whose sessions a directory has.
    """

    path: Path
    variable: str
    below: str = ""
    shared: tuple[str, ...]
    kept: tuple[str, ...] = ()
    copied: tuple[str, ...] = ()
    empty: tuple[str, ...] = ()
    mark: str | None = None


class Profile:
    """One agent. The class is what is known of an agent that nobody has looked at; others say what they do otherwise."""

    name: str = ""
    title: str = ""
    program: str = ""
    """What is looked for on the PATH."""
    arguments: tuple[str, ...] = ()
    install: str = ""
    """The command that installs it."""
    start_seconds: float = 180.0
    """How long it may take to answer its first request: on a busy machine, on its very first start."""
    asking_mode: str | None = None
    """The mode in which it asks before it writes or runs anything but harmless commands."""
    asking_options: Mapping[str, str] = {}
    """Settings of a session, besides its mode, in which it asks, where it has them."""
    reading_mode: str | None = None
    """The mode in which it changes nothing."""
    model_by: Literal["set_model", "set_config_option", "environment", "nothing"] = "nothing"
    """How its model is chosen."""
    steering: SteeringWay = "no"
    counting: Counting = "nothing"
    cached_beside: bool = False
    """Whether cached tokens are counted beside the input tokens, and not within."""
    thoughts_beside: bool = False
    """Whether thought tokens are counted beside the output tokens, and not within."""
    tells_later: bool = False
    """Whether it asks about a call before it has said what the tool is given."""
    runs_repository_files: bool = True
    """Whether, for all that is known, it may run files of a repository that nobody has trusted."""
    has_history: bool = False
    """Whether `reader` reads its sessions."""
    moves: bool = False
    """Whether `transcripts` can carry its sessions to another machine."""
    not_confined: str = ""
    """Why no sandbox can be put around it, as what follows "since"."""
    writable: tuple[Path, ...] = ()
    """What it may write in a sandbox besides what the session may and what is shared of its home."""

    variables: tuple[str, ...] = ()
    """Variables with secrets that it gets in a sandbox, by their names or as `NAME_*`."""

    # --- starting it -------------------------------------------------------------------------------------------------

    def environment(self, env: Mapping[str, str], options: SessionOptions, places: Path) -> dict[str, str]:
        """The environment it is started with for such a session; `places` is a directory for files of ours."""
        return dict(env)

    def dangerous_files(self, directory: Path) -> list[Path]:
        """Files that it would run in this directory before anybody has been asked, whatever it is started with."""
        return []

    def session_meta(self, options: SessionOptions) -> Mapping[str, Any]:
        """What a session is begun and loaded with beyond what the protocol has, under its `_meta`."""
        return {}

    def home(self, env: Mapping[str, str]) -> AgentHome | None:
        """What it keeps at home, and what of that is let into a sandbox; None where it needs nothing there."""
        return None

    def reads(self, env: Mapping[str, str]) -> tuple[Path, ...]:
        """Return what it reads in a sandbox besides its own home: its code, and logins of others that it uses."""
        return ()

    def own_project(self, home: Path, directory: Path) -> Path | None:
        """Where the sessions of one directory are; None where those of all are in one place. Blocks, briefly."""
        return None

    def prepare(self, argv: Sequence[str], env: Mapping[str, str]) -> None:
        """Do what must be done outside before it can run in a sandbox. Blocks.

        Raises:
            EngineStartFailed: It cannot be done.
        """

    # --- what a session may do ---------------------------------------------------------------------------------------

    def access(self, options: SessionOptions) -> AgentAccess:
        """What such a session may do."""
        notes: list[str] = []
        if options.asks == "after_failure":
            notes.append(f"{self.title} cannot ask only after a failure, so it asks before.")
        if is_enforced(options):
            notes.append(NETWORK)
        elif options.writes != "anything":
            notes.append(f"Nothing holds {self.title} to a sandbox: what is approved can write anywhere.")
        if options.writes == "nothing":
            return AgentAccess(self.reading_mode or self.asking_mode, "no", tuple(notes))
        if options.writes == "anything" and options.asks == "never":
            return AgentAccess(self.asking_mode, "yes", tuple(notes))
        if options.asks == "never":
            notes.append(f"Nobody is asked: what {self.title} would have to ask for is refused.")
            return AgentAccess(self.asking_mode, "no", tuple(notes))
        return AgentAccess(self.asking_mode, None, tuple(notes))

    # --- what it says ------------------------------------------------------------------------------------------------

    def tool_of(self, call: Mapping[str, Any]) -> str | None:
        """The name of the tool that is called, where the program itself says it; a title may be the model's choice."""
        return None

    def mode_in(self, text: str) -> str | None:
        """The mode it has changed to, where a piece of a message says so and nothing else does."""
        return None

    def settings_in(self, said: Mapping[str, Any]) -> dict[str, str | None]:
        """What an update, or an answer, says of its mode and of the options in which it asks; None where it is not clear."""
        kind, settings = said.get("sessionUpdate"), dict[str, str | None]()
        if kind == "current_mode_update":
            settings[MODE] = optional_text(said.get("currentModeId"))
        elif kind == "agent_message_chunk":
            mode = self.mode_in(text(mapping(said.get("content")).get("text")))
            return {} if mode is None else {MODE: mode}
        for option in map(mapping, sequence(said.get("configOptions"))):
            name, value = text(option.get("id")), optional_text(option.get("currentValue"))
            if name == MODE or name in self.asking_options:
                settings[name] = value if settings.get(name, value) == value else None
        return settings

    def is_remark(self, text: str) -> bool:
        """Whether a piece of a message is the program's own, and nothing the model said."""
        return False

    def failure_in(self, text: str) -> str | None:
        """What went wrong, where a piece of a message says so and nothing else does."""
        return None

    def command_end(self, fields: Mapping[str, Any]) -> tuple[str | None, int | None]:
        """Output and exit code of a command, as far as its updates tell."""
        return optional_text(fields.get("rawOutput")), None

    def prompt_usage(self, answer: Mapping[str, Any]) -> Usage | None:
        """What the answer to a prompt says was used; `counting` says of what."""
        return self.read_usage(mapping(answer.get("usage"))) if self.counting != "nothing" else None

    def update_usage(self, update: Mapping[str, Any]) -> Usage | None:
        """What an update says one model call has used."""
        return None

    def read_usage(self, counts: Mapping[str, Any]) -> Usage | None:
        """Counts by the protocol's names."""
        if integer(counts.get("inputTokens")) is None:
            return None
        cached = count(counts.get("cachedReadTokens"))
        written = count(counts.get("cachedWriteTokens"))
        thoughts = count(counts.get("thoughtTokens"))
        return Usage(
            input_tokens=count(counts.get("inputTokens")) + (cached + written if self.cached_beside else 0),
            cached_input_tokens=cached,
            output_tokens=count(counts.get("outputTokens")) + (thoughts if self.thoughts_beside else 0),
            reasoning_output_tokens=thoughts,
        )

    # --- what it keeps on disk ---------------------------------------------------------------------------------------

    def reader(self, env: Mapping[str, str]) -> SessionReader | None:
        """Its sessions on disk; None where nobody knows where they are."""
        return None

    def logins(self, env: Mapping[str, str]) -> tuple[Sequence[str], Sequence[Path]]:
        """The variables and the files in which a login of it is found, as far as that is known."""
        return (), ()

    def transcripts(self, env: Mapping[str, str]) -> CarriedTranscripts | None:
        """Its sessions on disk as what can be carried to another machine; None where they cannot."""
        return None

    async def may_load(self, session_id: str, env: Mapping[str, str]) -> None:
        """Wait until a session can be loaded without harm."""

    def was_loaded(self, session_id: str, env: Mapping[str, str]) -> None:
        """Do what must be done after a load for no harm to come of it. Blocks."""

    # --- what it can do ----------------------------------------------------------------------------------------------

    @property
    def able(self) -> frozenset[Capability]:
        """What its engine can do."""
        can = set(_OF_EVERY_AGENT)
        if self.steering != "no":
            can.add(Capability.STEER)
        if self.model_by != "nothing":
            can.add(Capability.MODEL)
        if self.has_history:
            can.add(Capability.HISTORY)
        if self.counting != "nothing":
            can.add(Capability.USAGE)
        if self.moves:
            can.add(Capability.MOVE)
        if not self.not_confined:
            can.add(Capability.SANDBOX)
        return frozenset(can)

    @property
    def capabilities(self) -> Capabilities:
        """What its engine can do, and what to do instead of the rest."""
        able = self.able
        lacking = {capability: "" for capability in Capability if capability not in able}
        if Capability.INSTRUCTIONS in lacking:
            lacking[Capability.INSTRUCTIONS] = "Put what matters into the prompt."
        if Capability.SANDBOX in lacking:
            lacking[Capability.SANDBOX] = (
                f"None can be put around it, since {self.not_confined}. Use another agent; docs/acp.md says "
                "what it takes to run this one."
            )
        return Capabilities(self.name, self.title, lacking)


def is_enforced(options: SessionOptions) -> bool:
    """Whether such a session runs in a sandbox."""
    return options.writes != "anything" and not options.unenforced
