"""Agent Client Protocol as a dialect: start an agent with a `Profile` for a session.

Each session has a separate process, because an agent's permissions are partly in its environment, some agents keep
approvals for all sessions of a process, one that waits for an answer blocks the other sessions, and some show their own
directory instead of the session's.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import shutil
import time
from contextlib import suppress
from fnmatch import fnmatchcase
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import anyio.to_thread

from helmsman._version import __version__
from helmsman.agents.acp.conversation import DATA, AcpConversation
from helmsman.agents.agent_process import Greeting, Launch
from helmsman.agents.found_programs import check_command
from helmsman.agents.process_engine import AgentDialect, note_on
from helmsman.agents.protocol import Capability, Opened, is_enforced
from helmsman.agents.sandbox import Confined, clear_up, refuse_planted
from helmsman.agents.supervisor.client import GREETING_ID
from helmsman.base.files import replace_file
from helmsman.base.json_values import mapping
from helmsman.base.processes import Process
from helmsman.base.structs import replace
from helmsman.errors import EngineProtocolError, EngineStartFailed
from helmsman.git.command import careful_environment
from helmsman.model.options import approval_word, sandbox_word

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from helmsman.agents.acp.profile import AgentHome, Profile
    from helmsman.agents.agent_process import AgentProcess
    from helmsman.agents.process_engine import AgentSession, LaunchConfig, ProcessEngine
    from helmsman.agents.protocol import Trust
    from helmsman.agents.sandbox import Sandbox
    from helmsman.model.events import PastTurn
    from helmsman.model.options import SessionOptions, TurnInput

# --- a home in the sandbox -------------------------------------------------------------------------------------------
# An agent keeps its sessions beside its settings, hooks, extensions and trust lists. Code that a command wrote there
# would run outside the sandbox later. So each sandboxed process has a private home: files are copies, directories are
# the real ones and read-only, except those with sessions, which are shared. A file beside the home names the process
# that uses it, so that any Helmsman can remove it afterwards.


_HOMES: Final = "homes"
_HOME: Final = "home"
_USED_BY: Final = "used-by"
_FRESH_SECONDS: Final = 120.0
"""Lifetime of a home without a process: its process is about to start."""
_COPIED_BYTES: Final = 16 * 1024 * 1024
"""Limit for copied files. Larger ones are not settings: they are shown unchanged and read-only."""


class PrivateHome:
    """Home of one process in a sandbox, in the state directory. Methods block briefly."""

    def __init__(self, places: Path, name: str) -> None:
        self._place = (places / _HOMES).resolve() / name  # not the target of a link, which is not ours to remove
        self._state_dir = places.parent
        self.path = self._place / _HOME

    def used_by(self, process: Process | None) -> None:
        """Tie the home to a process; None if the process has ended."""
        replace_file(self._place / _USED_BY, json.dumps(process or Process(0, "")), durable=False)

    def is_of_use(self) -> bool:
        try:
            return Process(*json.loads((self._place / _USED_BY).read_bytes())).is_alive()
        except FileNotFoundError:
            return time.time() - self._place.stat().st_mtime < _FRESH_SECONDS
        except (OSError, ValueError, TypeError):
            return False

    def remove(self) -> None:
        shutil.rmtree(self._place, ignore_errors=True)
        clear_up(self._state_dir, self._place.name)


def put_inside(
    profile: Profile,
    options: SessionOptions,
    argv: Sequence[str],
    env: Mapping[str, str],
    *,
    places: Path,
    place: Path | None,
    sandbox: Sandbox,
) -> tuple[Sequence[str], dict[str, str], PrivateHome]:
    """Return how to start a process for such a session in a sandbox, and its home there. Blocks.

    `place` is the directory with the data of the session, if it has one to itself.

    Raises:
        EngineStartFailed: The agent could not be prepared for it.
    """
    try:
        profile.prepare(argv, env)
        # No daemon removes the homes of dead processes, so each start does.
        clear_away(places)
        home = PrivateHome(places, secrets.token_hex(8))
        home.path.mkdir(mode=0o700, parents=True)
        try:
            line, used = _around(profile, options, argv, env, home.path, place, sandbox)
        # Also when the start is cancelled: the copies hold logins.
        except BaseException:
            home.remove()
            raise
    except OSError as error:
        raise EngineStartFailed(f"There is no room for a sandbox: {error}. Free some, then try again.") from error
    return line, used, home


def clear_away(places: Path) -> None:
    """Remove the homes without a process. Blocks."""
    homes = places / _HOMES
    for place in homes.iterdir() if homes.is_dir() else ():
        with suppress(FileNotFoundError):
            if not (home := PrivateHome(places, place.name)).is_of_use():
                home.remove()


def _around(
    profile: Profile,
    options: SessionOptions,
    argv: Sequence[str],
    env: Mapping[str, str],
    made: Path,
    place: Path | None,
    sandbox: Sandbox,
) -> tuple[Sequence[str], dict[str, str]]:
    assert options.cwd is not None
    directory, home = options.cwd.resolve(), profile.home(env)
    roots = () if options.writes == "nothing" else (directory, *options.writable_roots)
    for path in profile.writable:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    used = profile.environment(env, options, made)
    confined = Confined(
        writable=(*roots, *profile.writable, made),
        own_home=made,
        scratch=made.parent.name,
        directory=directory,
        needs=profile.reads(env),
        variables=profile.trust.variables,
    )
    homes = (*(() if home is None else (home,)), *profile.more_homes(env))
    for one in homes:
        inside = made / one.inside
        _fill(one, inside / one.below)
        used[one.variable] = str(inside)
        # Links to files that were too large to copy lead out of the private home, so the sandbox must show their
        # targets.
        needs = (link.resolve() for link in (inside / one.below).iterdir() if link.is_symlink())
        confined = replace(confined, needs=(*confined.needs, *needs))
    if home is not None:
        shared = tuple((home.path / name).resolve() for name in home.shared)
        kept = tuple((home.path / name).resolve() for name in home.kept)
        project = place or profile.own_project(home.path, directory)
        # A link could have been placed by a command, and would make another directory writable.
        if project is not None and not project.is_symlink():
            project.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not home.kept:  # below a hidden directory nothing can be shown for reading
                # Hide the sessions of other projects, which may hold their code and secrets.
                confined = replace(confined, hides=shared)
            shared = (project.resolve(),)
            kept += () if home.mark is None else (shared[0] / home.mark,)
        confined = replace(confined, writable=(*confined.writable, *shared), kept=kept)
    return sandbox.around(argv, used, confined)


def _fill(home: AgentHome, inside: Path) -> None:
    """Make a home in which an agent finds all that its own has."""
    inside.mkdir(mode=0o700, parents=True, exist_ok=True)
    if home.others is not None and home.others.is_dir():
        for entry in home.others.iterdir():
            if entry.name != home.below:
                (inside.parent / entry.name).symlink_to(entry)
    # Made first: a bind needs an existing directory.
    for name in (*home.shared, *home.kept):
        (home.path / name).mkdir(mode=0o700, parents=True, exist_ok=True)
    for entry in home.path.iterdir() if home.path.is_dir() else ():
        if not any(fnmatchcase(entry.name, pattern) for pattern in home.empty):
            with suppress(FileNotFoundError):  # one that is just being replaced
                _show(entry.resolve(), inside / entry.name, copied=entry.name in home.copied)


def _show(real: Path, shown: Path, *, copied: bool) -> None:
    # Directories with code, such as extensions, are copied: the agent must write in them, and a change must not outlive
    # the process.
    if real.is_dir() and copied:
        shutil.copytree(real, shown, symlinks=True)
    elif real.is_file() and real.stat().st_size <= _COPIED_BYTES:
        shutil.copyfile(real, shown)
        shown.chmod(0o600)
    elif real.is_file() or real.is_dir():
        shown.symlink_to(real)


# --- the dialect -----------------------------------------------------------------------------------------------------


PROTOCOL_VERSION: Final = 1
PLACES: Final = "agents"
"""Directory for files of agents, in the state directory."""
# No `fs` and no `terminal`: with them some agents write files through the client, and nothing is gained on one machine.
_CLIENT: Final = {
    "protocolVersion": PROTOCOL_VERSION,
    "clientCapabilities": {
        "fs": {"readTextFile": False, "writeTextFile": False},
        "terminal": False,
        "elicitation": {"form": {}},
    },
    "clientInfo": {"name": "helmsman", "title": "Helmsman", "version": __version__},
}


def greeting_of(profile: Profile) -> Greeting:
    """Return how an agent with this profile is greeted."""

    def read_answer(message: Mapping[str, Any]) -> Mapping[str, Any]:
        about, title = mapping(message.get("result")), profile.title
        if "result" not in message:
            # Agents answer an unknown version with their own, so compare instead of trusting the success.
            why = mapping(message.get("error")).get("message")
            raise EngineProtocolError(f"{title} refused the handshake: {why}. Use another version of it.")
        if about.get("protocolVersion") != PROTOCOL_VERSION:
            raise EngineProtocolError(
                f"{title} speaks version {about.get('protocolVersion')!r:.20} of the Agent Client Protocol, and Helmsman "
                f"version {PROTOCOL_VERSION}. Install a version of it that speaks that."
            )
        return about

    advice = (
        "Start it by hand to see why. In a sandbox, name what else it must write as `writable` under "
        f"[agents.{profile.name}]."
    )
    return Greeting(
        title=profile.title,
        request={"jsonrpc": "2.0", "id": GREETING_ID, "method": "initialize", "params": _CLIENT},
        read_answer=read_answer,
        watcher="helmsman.agents.acp.watching:AcpWatcher",
        seconds=profile.start_seconds,
        advice=advice,
    )


class AcpDialect(AgentDialect):
    """See `AgentDialect`. `env` has to say only where the agent keeps its sessions."""

    engine_name = "acp"
    starts_with_session = True

    def __init__(self, profile: Profile, env: Mapping[str, str]) -> None:
        self.profile = profile
        self.agent, self.title = profile.name, profile.title
        self.greeting = greeting_of(profile)
        self.capabilities = profile.capabilities
        self.reader = profile.reader(env)
        self._env = env

    @property
    def trust(self) -> Trust:
        return self.profile.trust

    def converse(self, engine: ProcessEngine, session: AgentSession, process: AgentProcess) -> AcpConversation:
        return AcpConversation(engine, session, process, self.profile, self._env)

    def opened(self, session: AgentSession, options: SessionOptions) -> Opened:
        assert isinstance(session.conversation, AcpConversation)
        options, conversation = session.options, session.conversation
        # Without a sandbox nothing enforces the policy, so none is reported.
        says_sandbox = session.is_enforced or options.writes == "anything"
        return Opened(
            session_id=session.id,
            turn_id=session.left_turn if session.turn is None else session.turn.id,
            directory=str(session.directory),
            model=conversation.model,
            approval_policy=approval_word(options.asks or "unless_harmless"),
            sandbox=sandbox_word(options.writes or "workspace") if says_sandbox else None,
            enforced=session.is_enforced,
            notes=conversation.access.notes,
        )

    def notes_on(self, turn: TurnInput) -> tuple[str, ...]:
        effort = () if turn.effort is None else (f"{self.title} cannot be told how hard to think.",)
        return (*note_on(turn.text, self.title), *effort)

    # --- processes ---------------------------------------------------------------------------------------------------

    async def check(self, config: LaunchConfig | None, options: SessionOptions) -> None:
        if is_enforced(options):
            self.capabilities.require(Capability.SANDBOX)

    def fingerprint(
        self, config: LaunchConfig, session: AgentSession, options: SessionOptions, turn: TurnInput | None
    ) -> str:
        env = self._environment(config, options)
        fixed = [list(config.argv), env, str(session.directory), self.confinement(options)]
        return hashlib.sha256(json.dumps(fixed, sort_keys=True).encode("utf-8", "surrogateescape")).hexdigest()

    def _environment(self, config: LaunchConfig, options: SessionOptions) -> dict[str, str]:
        return self.profile.environment(config.env, options, places_in(config.state_dir))

    async def launch(
        self, config: LaunchConfig, session: AgentSession, options: SessionOptions, turn: TurnInput | None
    ) -> Launch:
        """Return how to start a process for a session.

        Raises:
            SessionNotFound: It is to be loaded, and is not stored.
            Unsupported: There is no sandbox that holds.
            EngineStartFailed: The agent could not be made ready for it.
            InvalidInput: It would run files of the repository. Outside, it would write where a command may have led it.
            ProgramRefused: A session may have replaced it.
        """
        directory = session.directory
        assert directory is not None
        if session.id:
            # Check for existence first: Gemini leaves a file behind for an unknown id.
            await anyio.to_thread.run_sync(self.find, session.id)
            await self.profile.may_load(session.id, config.env)
        # As late as possible, since a command of an earlier turn may have added files.
        await anyio.to_thread.run_sync(self.profile.refuse_danger, options, directory)
        fingerprint = await anyio.to_thread.run_sync(self.fingerprint, config, session, options, turn)
        await anyio.to_thread.run_sync(check_command, config.argv, config.env)
        enforced = is_enforced(options)
        find_place = partial(self.profile.session_place, session.id, config.env, enforced=enforced)
        try:
            place = await anyio.to_thread.run_sync(find_place)
        except OSError as error:
            raise EngineStartFailed(
                f"The place of the session in the home of {self.title} cannot be prepared: {error}. Look there, then "
                "try again."
            ) from error
        if enforced:
            sandbox, places = await config.sandbox(), places_in(config.state_dir)
            inside = partial(put_inside, places=places, place=place, sandbox=sandbox)
            argv, env, home = await anyio.to_thread.run_sync(inside, self.profile, options, config.argv, config.env)
        else:
            own = self.profile.home(config.env)
            shared = () if own is None else tuple(own.path / name for name in own.shared)
            # Without a sandbox the agent follows links in its own home, which a sandboxed command may have planted.
            await anyio.to_thread.run_sync(refuse_planted, self.title, shared)
            argv, home = config.argv, None
            env = await anyio.to_thread.run_sync(self._environment, config, options)
        about: dict[str, str] = {}
        if place is not None:
            env, about = {**env, **self.profile.place_environment(place)}, {DATA: str(place)}
        if not options.trust_repository:
            env = await anyio.to_thread.run_sync(careful_environment, env, directory)
        return Launch(argv=argv, env=env, directory=directory, fingerprint=fingerprint, about=about, files=home)

    def clear_up(self, state_dir: Path, session: AgentSession) -> None:
        clear_away(state_dir / PLACES)

    # --- session files -----------------------------------------------------------------------------------------------

    def find(self, session_id: str) -> Path | None:
        if self.reader is not None and self.reader.find(session_id) is None:
            raise self.not_found(session_id)  # some agents begin a session of that id
        return None

    def history(self, session: AgentSession | None, session_id: str) -> tuple[PastTurn, ...]:
        turns = None if self.reader is None else self.reader.past_turns(session_id)
        if turns is None:
            raise self.not_found(session_id)
        return turns


def places_in(state_dir: Path) -> Path:
    """Return the directory for Helmsman's files for agents. Blocks, briefly."""
    places = state_dir / PLACES
    places.mkdir(mode=0o700, parents=True, exist_ok=True)
    return places
