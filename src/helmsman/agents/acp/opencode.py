"""OpenCode and Kilo, which is made of it: their profiles, and their sessions in SQLite databases.

They are read beside the program that may be writing them.

Sessions that were begun in OpenCode itself share `opencode.db`. Each session of Helmsman has a directory with a database,
which its sandbox may write: its contents are not trusted, and count for that session only. A file `<session>.place`
beside the directories names the one of a session.
"""

from __future__ import annotations

import json
import re
import secrets
import shutil
import sqlite3
import time
from abc import abstractmethod
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from helmsman.agents.acp.profile import AgentHome, Profile, files_in, home_in, with_all_above
from helmsman.agents.protocol import SessionInfo, Trust
from helmsman.agents.session_files import Gathering, SessionReader, StoredTurn, is_id, spending_of, used_in
from helmsman.base.files import replace_file, size_and_time
from helmsman.base.json_values import amount, count, integer, json_object, mapping, optional_text, text
from helmsman.base.structs import replace
from helmsman.errors import InvalidInput
from helmsman.model.events import Usage

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from helmsman.agents.spending import SessionSpending
    from helmsman.model.options import SessionOptions


PLACES = "helmsman"
"""Below its data, a directory for each session of Helmsman."""


class PlacePerSession(Profile):
    """Profile of an agent that keeps the data of all sessions in one place: each session of Helmsman has its own."""

    @abstractmethod
    def home(self, env: Mapping[str, str]) -> AgentHome: ...

    def check_place(self, place: Path) -> None:
        """Take away what a command has left there, and a later process would obey. Blocks, briefly."""

    def session_place(self, session_id: str, env: Mapping[str, str], *, enforced: bool) -> Path | None:
        places = self.home(env).path / PLACES
        if not session_id:
            # The id of the session is known only after its start, so the directory has a random name.
            place = places / secrets.token_hex(8)
            place.mkdir(mode=0o700, parents=True)
            return place
        place_of_session = place_of(places, session_id)
        if place_of_session is not None:
            # Before every start: the previous process ran commands that could write here.
            self.check_place(place_of_session)
        elif enforced:
            raise InvalidInput(
                f"Session {session_id} was begun in {self.title} itself, in one place with all other sessions, which a "
                "sandbox would have to show. Start a new session instead.",
                parameter="unenforced",
            )
        return place_of_session

    def was_begun(self, session_id: str, place: Path) -> None:
        name_place(place, session_id)


_TRUST = Trust(
    asking_mode="build",  # its own agent that may do everything, with the permissions below
    reading_mode=None,
    asking_options={},
    acts_unasked=False,  # a command could change what its own session may do
    memory=(),
    runs_repository_files=False,
    variables=("OPENCODE_*", "*_API_KEY"),  # its settings, and the keys of its providers
    shared=(PLACES,),
)


class OpenCode(PlacePerSession):
    """OpenCode. Without a permission setting it asks nothing, and plugins of a repository are run whatever one says."""

    name = "opencode"
    title = "OpenCode"
    program = "opencode"
    arguments = ("acp",)
    install = "npm install -g opencode-ai"
    trust: Trust = _TRUST
    model_by = "set_model"
    steering = "second prompt"
    counting = "files"
    tells_later = True
    _XDG: Mapping[str, str] = {"DATA": ".local/share", "CONFIG": ".config", "CACHE": ".cache", "STATE": ".local/state"}
    _PREFIX = "OPENCODE"
    """How the names of its variables begin."""
    _FUNCTIONS = False
    """True if indexes of its database call functions. None of SQLite's own has effects."""
    _FOLDERS: tuple[str, ...] = (".opencode",)
    """Directories of a repository that it reads."""
    _CONFIGURATIONS: tuple[str, ...] = ("opencode.json", "opencode.jsonc")
    _PLUGIN = re.compile(rb"plugin|\\u|\{(?:file|env):")
    """Words in a configuration that may name a plugin. Of all its content, only plugins are run."""
    _READS = ("read", "grep", "glob", "list", "todoread", "todowrite")
    _ACTS = ("bash", "edit", "webfetch", "websearch", "codesearch", "skill", "external_directory", "doom_loop")
    _NEVER = ("task",)
    """Its sub-agents. What they ask it keeps to itself, and waits for the answer for ever."""

    def environment(self, env: Mapping[str, str], options: SessionOptions, places: Path) -> dict[str, str]:
        # Each by its name too, as rules of the user's own configuration are: what must be asked is asked.
        acts = "deny" if options.writes == "nothing" else "ask"
        permission = {"*": acts, **dict.fromkeys(self._ACTS, acts), **dict.fromkeys(self._READS, "allow")}
        permission |= dict.fromkeys(self._NEVER, "deny")
        # The last matching rule counts, and these are merged with the user's own, which keep their position. So each
        # rule is repeated as a pattern that users do not write, and therefore comes last.
        again = {**dict.fromkeys(self._READS, "allow"), **dict.fromkeys(self._NEVER, "deny")}
        permission |= {"**": acts, **{f"{name[:-1]}?": effect for name, effect in again.items()}}
        # The caller's configuration is extended, not replaced: it may define the model's provider.
        given = json_object(env.get(f"{self._PREFIX}_CONFIG_CONTENT")) or {}
        # Permissions of an agent in the configuration override those for all.
        agents, agent = mapping(given.get("agent")), text(self.trust.asking_mode)
        used = {**mapping(agents.get(agent)), "permission": permission}
        content = {**given, "permission": permission, "agent": {**agents, agent: used}}
        content |= {"default_agent": agent, "autoupdate": False, "share": "disabled"}
        made = dict(env)
        made |= {f"{self._PREFIX}_CONFIG_CONTENT": json.dumps(content), f"{self._PREFIX}_DISABLE_AUTOUPDATE": "1"}
        # Set by the user, these would replace the permissions above, and the database of the session.
        for name in ("PERMISSION", "DB"):
            made.pop(f"{self._PREFIX}_{name}", None)
        if not options.trust_repository:
            made[f"{self._PREFIX}_DISABLE_PROJECT_CONFIG"] = "1"
        return made

    def dangerous_files(self, directory: Path) -> list[Path]:
        found: list[Path] = []
        for above in with_all_above(directory):
            folders = [above / name for name in self._FOLDERS]
            configurations = [place / name for place in (above, *folders) for name in self._CONFIGURATIONS]
            # Plugin files are imported even with the project's configuration disabled; no option prevents that.
            found += [path for folder in folders for name in ("plugin", "plugins") for path in files_in(folder / name)]
            found += [path for path in configurations if _may_say(path, self._PLUGIN)]
        return found

    def home(self, env: Mapping[str, str]) -> AgentHome:
        # Sandboxed processes get no logs, no snapshots and no shared database, which hold the data of other sessions.
        return self._xdg(env, "DATA", shared=self.trust.shared, empty=("*.db", "*.db-*", "log", "repos", "snapshot"))

    def more_homes(self, env: Mapping[str, str]) -> tuple[AgentHome, ...]:
        state = self._xdg(env, "STATE", empty=("*",))
        return self._xdg(env, "CONFIG"), self._xdg(env, "CACHE"), state

    def _xdg(
        self, env: Mapping[str, str], kind: str, *, shared: tuple[str, ...] = (), empty: tuple[str, ...] = ()
    ) -> AgentHome:
        variable = f"XDG_{kind}_HOME"
        others = Path(env.get(variable) or home_in(env) / self._XDG[kind])
        return AgentHome(
            path=others / self.name,
            variable=variable,
            below=self.name,
            shared=shared,
            empty=empty,
            inside=kind.lower(),
            others=others,
        )

    def check_place(self, place: Path) -> None:
        forget_permissions(place, functions=self._FUNCTIONS)

    def place_environment(self, place: Path) -> Mapping[str, str]:
        return {f"{self._PREFIX}_DB": str(place / _DATABASE)}

    def command_end(self, fields: Mapping[str, Any]) -> tuple[str | None, int | None]:
        output = mapping(fields.get("rawOutput"))
        return optional_text(output.get("output")), integer(mapping(output.get("metadata")).get("exit"))

    def reader(self, env: Mapping[str, str]) -> SessionReader:
        data = self.home(env).path
        return OpenCodeReader(self.name, data / f"{self.name}.db", data / PLACES, functions=self._FUNCTIONS)

    def logins(self, env: Mapping[str, str]) -> tuple[Sequence[str], Sequence[Path]]:
        return (), (self.home(env).path / "auth.json",)


class Kilo(OpenCode):
    """Kilo: OpenCode under other names, with directories of its own."""

    name = "kilo"
    title = "Kilo"
    program = "kilo"
    install = "npm install -g @kilocode/cli"
    trust = replace(_TRUST, asking_mode="code", variables=("KILO_*", "*_API_KEY"))

    _PREFIX = "KILO"
    _FUNCTIONS = True
    _FOLDERS = (".kilo", ".kilocode", ".opencode")
    _CONFIGURATIONS = ("kilo.json", "kilo.jsonc", "opencode.json", "opencode.jsonc")


def _may_say(path: Path, what: re.Pattern[bytes]) -> bool:
    """Return whether a file contains such words; True if it cannot be read."""
    try:
        return what.search(path.read_bytes()) is not None
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True


# --- sessions ----------------------------------------------------------------------------------------------------------


_SESSIONS = "select id, title, directory, parent_id, version, time_created, time_updated, time_archived from session"
_BUSY_SECONDS = 2.0
_QUERY_SECONDS = 5.0
_INSTRUCTIONS = 10_000
"""Steps of SQLite between two looks at the clock."""
_DATABASE = "opencode.db"
_PLACE = ".place"
_ABANDONED_SECONDS = 86400.0


def place_of(places: Path, session_id: str) -> Path | None:
    """Return the directory with the database of a session; None if it has none to itself. Blocks, briefly."""
    if not is_id(session_id):
        return None
    try:
        return places / (places / f"{session_id}{_PLACE}").read_text(encoding="ascii")
    except (OSError, ValueError):
        return None


def name_place(place: Path, session_id: str) -> None:
    """Note which session has its database in a directory, and remove those that no session has. Blocks, briefly."""
    if is_id(session_id):
        replace_file(place.with_name(f"{session_id}{_PLACE}"), place.name)
    named = set(_places(place.parent).values())
    for other in place.parent.iterdir():
        # A directory without a session may belong to a start that is under way.
        if other.is_dir() and other not in named and time.time() - other.stat().st_mtime > _ABANDONED_SECONDS:
            shutil.rmtree(other, ignore_errors=True)


def _places(places: Path) -> dict[str, Path]:
    found = {path.stem: place_of(places, path.stem) for path in places.glob(f"*{_PLACE}")}
    return {session_id: place for session_id, place in found.items() if place is not None}


def forget_permissions(place: Path, *, functions: bool = False) -> None:
    """Remove approvals from the database of a session. Helmsman gives none that last, so a command has written them.

    Raises:
        InvalidInput: A command has changed the database itself.
    """
    if not (place / _DATABASE).exists():
        return
    try:
        with _opened(place / _DATABASE, "rw", functions=functions) as connection, connection:
            # Triggers and views could make the statements below read or change other data.
            if connection.execute("select 1 from sqlite_master where type in ('trigger', 'view')").fetchall():
                raise sqlite3.DatabaseError("it has triggers or views")
            for table, change in _PERMISSIONS.items():
                # The schema differs between versions of OpenCode.
                if any(row[1] == "permission" or table == "permission" for row in _columns(connection, table)):
                    connection.execute(change)
    except sqlite3.Error as error:
        raise InvalidInput(
            f"The database of this OpenCode session at {place} is damaged, or a command has changed it: {error}. "
            "Start a new session."
        ) from error


_PERMISSIONS = {"permission": "delete from permission", "session": "update session set permission = null"}


def _columns(connection: sqlite3.Connection, table: str) -> list[tuple[Any, ...]]:
    return connection.execute("select * from pragma_table_info(?)", (table,)).fetchall()


@contextmanager
def _opened(database: Path, mode: str, *, functions: bool) -> Iterator[sqlite3.Connection]:
    """Open a database that a command may have written: it leads to no other file, and no query takes for ever."""
    # A link to another database would be opened with the rights of the hub. SQLite opens the side files by name.
    if any(path.is_symlink() for path in (database, *(Path(f"{database}-{one}") for one in ("wal", "shm", "journal")))):
        raise sqlite3.DatabaseError("it has links")
    # Not `immutable`, which would miss rows in the log that OpenCode has not written back yet.
    address = f"{database.absolute().as_uri()}?mode={mode}"
    until = time.monotonic() + _QUERY_SECONDS
    with closing(sqlite3.connect(address, uri=True, timeout=_BUSY_SECONDS)) as connection:
        # Functions in the schema of an untrusted database must not run.
        if not functions:
            connection.execute("pragma trusted_schema = off")
        # A crafted schema could make a query endless.
        connection.set_progress_handler(lambda: time.monotonic() > until, _INSTRUCTIONS)
        yield connection


class OpenCodeReader(SessionReader):
    """See `SessionReader`."""

    def __init__(self, agent: str, database: Path, places: Path, *, functions: bool) -> None:
        self._agent = agent
        self._functions = functions
        self.home = self._database = database
        self._places = places
        self._known: dict[Path, tuple[tuple[int, int], list[SessionInfo]]] = {}

    def sessions(self) -> Iterator[SessionInfo]:
        own = _places(self._places)
        yield from (info for info in self._infos(self._database) if info.session_id not in own)
        for session_id, place in own.items():
            database = place / _DATABASE
            stamp, known = _stamp(database), self._known.get(database)
            if known is None or known[0] != stamp:
                known = self._known[database] = stamp, self._infos(database)
            # A database that a command may have written counts only for its own session, and for sub-agents of it.
            yield from (info for info in known[1] if session_id in (info.session_id, info.parent_id))

    def find(self, session_id: str) -> SessionInfo | None:
        found = self._infos(self._database_of(session_id), " where id = ?", session_id)
        return next(iter(found), None)

    def _database_of(self, session_id: str) -> Path:
        place = place_of(self._places, session_id)
        return self._database if place is None else place / _DATABASE

    def stored_turns(self, session_id: str) -> list[StoredTurn] | None:
        if self.find(session_id) is None:
            return None
        gathered = Gathering()
        parts: dict[str, list[Mapping[str, Any]]] = {}
        # All parts in one query: one for each message would take seconds in a long session.
        for message_id, data in self._rows(
            session_id, "select message_id, data from part where session_id = ? order by id"
        ):
            parts.setdefault(message_id, []).append(json_object(text(data)) or {})
        query = "select id, time_created, data from message where session_id = ? order by time_created, id"
        for message_id, created, data in self._rows(session_id, query):
            _take(gathered, json_object(text(data)) or {}, parts.get(message_id, []), _time(created))
        return gathered.turns

    def spent(self, session_id: str) -> Usage:
        return used_in(self._counted_turns(session_id))

    def files(self) -> Iterator[tuple[str, int, int]]:
        own = _places(self._places)
        query = "select session_id, count(*), max(time_updated) from message group by session_id"
        for session_id, messages, changed in self._read(self._database, query):
            if session_id not in own:
                # Comparable with file times, which are in nanoseconds.
                yield session_id, messages, 1_000_000 * changed
        yield from ((session_id, *_stamp(place / _DATABASE)) for session_id, place in own.items())

    def read(self, key: str) -> SessionSpending | None:
        info = self.find(key)
        return None if info is None else spending_of(info, self._counted_turns(key))

    def _counted_turns(self, session_id: str) -> list[StoredTurn]:
        """Return the turns without their messages and tool calls, which may be large."""
        gathered = Gathering()
        query = "select time_created, data from message where session_id = ? order by time_created, id"
        for created, data in self._rows(session_id, query):
            _take(gathered, json_object(text(data)) or {}, [], _time(created))
        return gathered.turns

    def _rows(self, session_id: str, query: str) -> list[tuple[Any, ...]]:
        return self._read(self._database_of(session_id), query, session_id)

    def _infos(self, database: Path, where: str = "", *values: str) -> list[SessionInfo]:
        return [_info(self._agent, database, row) for row in self._read(database, _SESSIONS + where, *values)]

    def _read(self, database: Path, query: str, *values: str) -> list[tuple[Any, ...]]:
        try:
            with _opened(database, "ro", functions=self._functions) as connection:
                return connection.execute(query, values).fetchall()
        except sqlite3.Error:  # no database, or one of another version
            return []


def _stamp(database: Path) -> tuple[int, int]:
    """Return the size of a database with its log, and when it changed."""
    stamps = [size_and_time(path) for path in (database, Path(f"{database}-wal")) if path.exists()]
    return sum(size for size, _ in stamps), max((changed for _, changed in stamps), default=0)


def _info(agent: str, database: Path, row: tuple[Any, ...]) -> SessionInfo:
    session_id, title, directory, parent, version, created, updated, archived = row
    return SessionInfo(
        session_id=session_id,
        agent=agent,
        created_at=_time(created),
        updated_at=_time(updated),
        directory=optional_text(directory),
        name=optional_text(title),
        parent_id=optional_text(parent),
        engine_version=optional_text(version),
        archived=archived is not None,
        path=database,
    )


def _take(gathered: Gathering, message: Mapping[str, Any], parts: list[Mapping[str, Any]], at: datetime) -> None:
    said = "\n".join(text(part.get("text")) for part in parts if part.get("type") == "text")
    if message.get("role") == "user":
        gathered.asked(said, at)
        return
    for part in parts:
        if part.get("type") == "tool":
            state = mapping(part.get("state"))
            gathered.called(
                text(part.get("tool")),
                mapping(state.get("input")),
                at,
                output=text(state.get("output")),
                exit_code=integer(mapping(state.get("metadata")).get("exit")),
                failed=state.get("status") != "completed",
            )
    gathered.said(said, at)
    if mapping(message.get("error")).get("name") == "MessageAbortedError":
        gathered.cut_off()
    tokens = mapping(message.get("tokens"))
    if tokens:
        cache = mapping(tokens.get("cache"))
        read, thoughts = count(cache.get("read")), count(tokens.get("reasoning"))
        usage = Usage(
            # OpenCode counts cached input and thoughts beside the other tokens; Helmsman's counts include them.
            input_tokens=count(tokens.get("input")) + read + count(cache.get("write")),
            cached_input_tokens=read,
            output_tokens=count(tokens.get("output")) + thoughts,
            reasoning_output_tokens=thoughts,
            cost_usd=amount(message.get("cost")) or None,  # 0 where it knows no price
        )
        gathered.used(usage, optional_text(message.get("modelID")), at)


def _time(milliseconds: object) -> datetime:
    return datetime.fromtimestamp((integer(milliseconds) or 0) / 1000, UTC)
