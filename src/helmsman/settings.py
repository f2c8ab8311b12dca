"""Read flags, environment and `helmsman.toml` once, into one frozen `Settings`.

Flags take precedence, then the environment, then the project's `helmsman.toml` (each one from the working directory up
to the root of the outermost repository), then the user's (in the platform's configuration directory). Every value is
checked, even one that another source overrides, so that mistakes appear at startup.

A project file comes with a repository that may be hostile, so it may only restrict what the user's file and the
defaults allow. Each setting says how (`SettingSource.project`). Other values are ignored and reported (`Settings.ignored`):
a repository can neither loosen anything nor keep Helmsman from starting. Tables of other modules (`[[rules]]`, …) stay
unread in `Settings.files`; those modules check `ConfigFile.trusted` before a file may loosen anything.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal, cast, get_args, get_type_hints

from msgspec import field
from msgspec.structs import asdict

from helmsman.base.addresses import REMOTE_TOKEN, engine_address
from helmsman.base.budget import Budget
from helmsman.base.caller_context import FLEET_URL, STORE, current
from helmsman.base.config_values import pair, read_value
from helmsman.base.structs import SecretValue, Value, replace
from helmsman.base.unknown_names import nearest
from helmsman.base.user_directories import (
    NOBODY_KNOWS,
    config_directory,
    home_directory,
    project_places,
    usual_state_directory,
)
from helmsman.errors import InvalidSetting

EngineChoice = Literal["auto", "app-server", "exec"]
SnapshotChoice = Literal["auto", "on", "off"]
OnLimit = Literal["ask", "wait", "fail"]
"""What to do with a turn when the account's usage limit is reached."""
LogLevel = Literal["debug", "info", "warning", "error"]

CONFIG_NAME: Final = "helmsman.toml"
WORKTREES: Final = "worktrees"
"""Directory for the worktrees of sessions, in the state directory."""
WORKSPACES: Final = "workspaces"
"""Directory for working trees from other machines."""
WORKSPACE_STORES: Final = "workspace-stores"
"""Directory for the repositories of those working trees."""

OTHER_TABLES: Final = frozenset(
    {
        *("agents", "allow_workspace_patches", "budget", "cloud", "notify", "prices", "rules", "trusted_projects"),
        *("capabilities", "checks", "worktree", "agents_answer_first", "clients_share_sessions"),
    }
)
"""Keys of `helmsman.toml` that other modules read (`helmsman.approvals.rule_book`, …). Add new ones here."""

_OWN_SWITCHES: Final = ("agents_answer_first", "clients_share_sessions")
"""Settings that let a model act in the user's place.

Only the user's own file may set them: a variable may come from a client configuration in a repository.
"""

TOOLSETS: Final = ("sessions", "agents", "extras", "capabilities", "compat", "router")
_CONFIG_LIMIT: Final = 1024 * 1024
MCP_ANSWER_SECONDS: Final = 300.0
"""Default timeout for questions of a session that an MCP client opened."""
RETENTION_DAYS: Final = 30
LONGEST_RETENTION_DAYS: Final = 36_500
_MONTH_MS: Final = 30 * 24 * 60 * 60 * 1000
_MS: Final = "_ms"
"""End of the key of a setting that users write in milliseconds, and code reads in seconds (`milliseconds`)."""


# --- readers of values -----------------------------------------------------------------------------------------------

# Each reader accepts one type, and its error names the allowed values.

_NAME: Final = re.compile(r"[a-z0-9][a-z0-9._-]*")
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\*?")


class Given(Value, frozen=True):
    """Raw value of a setting. `name` is the setting's name for the user; relative paths start at `base`."""

    key: str
    name: str
    value: object
    base: Path
    home: Path

    @property
    def setting(self) -> SettingSource:
        return SETTINGS[self.key]

    @property
    def field(self) -> str:
        """Field of `Settings`."""
        return self.key.removesuffix(_MS)

    def refuse(self, allowed: str) -> InvalidSetting:
        return InvalidSetting(f"{self.name} is {self.value!r}, which is not valid. Set it to {allowed}.")


def whole_number(least: int, most: int) -> Callable[[Given], int]:
    def parse(given: Given) -> int:
        value = given.value
        # `int` alone would also take signs, underscores and digits of other scripts.
        if isinstance(value, str) and value.strip().isascii() and value.strip().isdigit() and len(value) < 20:
            value = int(value)
        # True is an int to Python.
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise given.refuse(f"a whole number from {least} to {most}")
        return value

    return parse


def milliseconds(least: int) -> Callable[[Given], float]:
    def parse(given: Given) -> float:
        return whole_number(least, _MONTH_MS)(given) / 1000

    return parse


def one_of(*choices: str) -> Callable[[Given], str]:
    def parse(given: Given) -> str:
        value = given.value.strip().lower() if isinstance(given.value, str) else None
        if value not in choices:
            raise given.refuse(f"one of {', '.join(choices)}")
        return value

    return parse


def switch(given: Given) -> bool:
    value = given.value
    if isinstance(value, str):
        value = {"1": 1, "true": 1, "yes": 1, "on": 1, "0": 0, "false": 0, "no": 0, "off": 0}.get(value.strip().lower())
    if not isinstance(value, int) or value not in (0, 1):
        raise given.refuse("1 or 0 (also true or false, yes or no, on or off)")
    return bool(value)


def agent_name(given: Given) -> str:
    """Check only the form: the registry of agents is in a higher package."""
    value = given.value.strip().lower() if isinstance(given.value, str) else ""
    if not _NAME.fullmatch(value):
        raise given.refuse("the name of an agent, such as codex")
    return value


def plain_name(given: Given) -> str:
    value = given.value.strip() if isinstance(given.value, str) else ""
    if not value or not value.isprintable():
        raise given.refuse("a name, as Codex knows it")
    return value


def config_table(given: Given) -> dict[str, Any]:
    """Several `KEY=VALUE` of a command line, a table, or the text of one."""
    value = given.value
    try:
        if isinstance(value, list | tuple):
            return {key: read_value(key, text) for key, text in map(pair, value)}
        table = tomllib.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError):
        table = None
    if not isinstance(table, dict):  # the table may hold a secret, so the message does not repeat it
        raise InvalidSetting(
            f'{given.name} cannot be read. Set it to NAME=VALUE, with the value in TOML, such as model_verbosity="low".'
        )
    return table


def exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # directory without read permission
        return False


def any_path(given: Given) -> Path:
    value = given.value
    if not isinstance(value, str | Path) or not str(value).strip() or any(char < " " for char in str(value)):
        raise given.refuse("a path")
    path = Path(value)
    if path.parts[:1] == ("~",):
        path = given.home.joinpath(*path.parts[1:])
    return given.base / path


def program(given: Given) -> Path:
    """Return a path, or a bare name that is looked up on PATH."""
    path = any_path(given)
    has_directory = any(separator in str(given.value) for separator in (os.sep, os.altsep) if separator)
    return path if has_directory else Path(path.name)


def existing_directory(given: Given) -> Path:
    path = any_path(given)
    if not exists(path) or not path.is_dir():
        raise given.refuse("a directory that exists")  # Codex itself refuses to start with another
    return path


def directories(given: Given) -> tuple[Path, ...]:
    """Directories in a list, or in one text as PATH has them; links resolved."""
    parts = given.value.split(os.pathsep) if isinstance(given.value, str) else given.value
    if not isinstance(parts, list) or not parts:
        raise given.refuse("directories that exist")
    return tuple(existing_directory(replace(given, value=part)).resolve() for part in parts)


def paths(given: Given) -> tuple[Path, ...]:
    """Files and directories in a list, or in one text as PATH has them. They need not exist."""
    parts = given.value.split(os.pathsep) if isinstance(given.value, str) else given.value
    if not isinstance(parts, list) or not parts:
        raise given.refuse("a list of paths")
    return tuple(any_path(replace(given, value=part)) for part in parts)


def variable_names(given: Given) -> tuple[str, ...]:
    """Names of variables in a list, or in one text with commas. They may end in `*`, and not be only that."""
    parts = given.value.split(",") if isinstance(given.value, str) else given.value
    if not isinstance(parts, list) or not parts:
        raise given.refuse("a list of names of variables")
    names = tuple(part.strip() if isinstance(part, str) else "" for part in parts)
    if not all(map(_VARIABLE.fullmatch, names)):
        raise given.refuse("a list of names of variables, such as GH_TOKEN or NPM_*")
    return names


def database_address(given: Given) -> str:
    """Return the address of a database. Errors never show it: it may contain a password."""
    value = given.value.strip() if isinstance(given.value, str) else ""
    if not value.startswith(("postgresql://", "postgres://")):
        raise InvalidSetting(f"{given.name} is no address of a database. Use postgresql://USER@HOST/DATABASE.")
    return value


def level_of_log(given: Given) -> str:
    """`warn` is what most other programs call it."""
    is_short = isinstance(given.value, str) and given.value.strip().lower() == "warn"
    return "warning" if is_short else one_of(*get_args(LogLevel))(given)


def toolsets(given: Given) -> tuple[str, ...]:
    value = given.value
    names = value.split(",") if isinstance(value, str) else value
    if not isinstance(names, list | tuple) or not names or not all(isinstance(name, str) for name in names):
        raise given.refuse(f"one or several of {', '.join(TOOLSETS)}, separated by commas")
    chosen = tuple(dict.fromkeys(cast("str", name).strip().lower() for name in names))
    if not set(chosen) <= set(TOOLSETS):
        raise given.refuse(f"one or several of {', '.join(TOOLSETS)}, separated by commas")
    if {"compat", "router"} <= set(chosen):
        raise InvalidSetting(
            f"{given.name} asks for compat and router, and both have a tool named codex, with different parameters. "
            "Choose one of the two.",
        )
    return chosen


def remote_engine(given: Given) -> str:
    if not isinstance(given.value, str):
        raise given.refuse("the address of an engine")
    return engine_address(given.value.strip()).geturl()


# --- rights of a project's file ------------------------------------------------------------------------------------


def only_yours(own: Any, _asked: Any) -> Any:
    """Ignore the project's value: a repository must not choose programs, the place of the state, or what is visible of
    it.
    """
    return own


def smaller(own: float, asked: float) -> float:
    return min(own, asked)


def denied_sooner(own: float | None, asked: float) -> float | None:
    """Return the smaller of two times after which a question is denied; None is the default."""
    # None means the usual time, so a project's value must be below that.
    return asked if asked < (MCP_ANSWER_SECONDS if own is None else own) else own


def sooner(own: float, asked: float) -> float:
    """Return the earlier of two deadlines, where 0 means never."""
    return min(own or asked, asked or own)


def fewer(own: tuple[str, ...], asked: tuple[str, ...]) -> tuple[str, ...]:
    """Return the intersection, or the user's own value if it would be empty."""
    return tuple(name for name in asked if name in own) or own


def off(own: bool, asked: bool) -> bool:
    return own and asked


def sooner_over(own: str, asked: str) -> str:
    """Return the value that stops earlier."""
    return min(own, asked, key=("fail", "ask", "wait").index)


Narrowing = Callable[[Any, Any], Any]
"""Combines the user's value with a project's. The result never allows more than the user's value."""

PROJECT_CAN: Final[Mapping[Narrowing, str]] = {
    only_yours: "nothing",
    smaller: "make it smaller",
    denied_sooner: "make it smaller",
    sooner: "make it smaller, or set it where it is 0",
    fewer: "take some away",
    off: "switch it off",
    max: "switch it on",
    sooner_over: "have it ask where it waits, or fail",
}


class SettingSource(Value, frozen=True):
    """How a field of `Settings` is set: by which variable, and what a project's file may do with it."""

    variable: str
    read: Callable[[Given], Any]
    project: Narrowing = only_yours
    other_names: tuple[str, ...] = ()
    """Variables that mean the same."""


# --- the settings ----------------------------------------------------------------------------------------------------


class ConfigFile(Value, frozen=True):
    """Parsed `helmsman.toml`. `trusted` is False for a project's file: it came with the repository."""

    path: Path
    content: Mapping[str, Any]
    trusted: bool


class Settings(SecretValue, frozen=True, kw_only=True):
    """All settings. A field with a `SettingSource` can be set; its docstring is also its documentation for users.

    `files` are the configuration files read, highest precedence first. `ignored` lists, in sentences, the values of a
    project's file without effect.
    """

    secrets: ClassVar[tuple[str, ...]] = ("default_config", "codex_remote_token", "fleet_url", "store")
    default_agent: Annotated[str, SettingSource("HELMSMAN_DEFAULT_AGENT", agent_name)] = "codex"
    """Who runs a session that names no agent."""
    default_model: Annotated[str | None, SettingSource("HELMSMAN_DEFAULT_MODEL", plain_name)] = None
    """The model of a Codex session that names none."""
    default_profile: Annotated[str | None, SettingSource("HELMSMAN_DEFAULT_PROFILE", plain_name)] = None
    """The profile of Codex's configuration for a session that names none."""
    default_config: Annotated[Mapping[str, Any], SettingSource("HELMSMAN_DEFAULT_CONFIG", config_table)] = field(
        default_factory=dict
    )
    """Keys of Codex's configuration for every session, under those that it names itself (in the file: a table)."""
    codex_path: Annotated[Path | None, SettingSource("CODEX_CLI_PATH", program)] = None
    """The Codex binary."""
    codex_remote: Annotated[str | None, SettingSource("HELMSMAN_CODEX_REMOTE", remote_engine)] = None
    """A `codex app-server` to connect to instead of starting one: ws://127.0.0.1:PORT or wss://HOST:PORT; its token is
    in HELMSMAN_CODEX_REMOTE_TOKEN.
    """
    fleet_url: Annotated[str | None, SettingSource(FLEET_URL, database_address)] = None
    """The fleet that new work is given to: postgresql://USER@HOST/DATABASE, as `helmsman fleet init` has set it up.

    It may contain a password.
    """
    store: Annotated[str | None, SettingSource(STORE, database_address)] = None
    """The Postgres that holds transcripts, tasks, schedules and notices: postgresql://USER@HOST/DATABASE; without it, a
    file in the state directory does.

    It may contain a password.
    """
    codex_home: Annotated[Path, SettingSource("CODEX_HOME", existing_directory)]
    """Codex's home."""
    claude_path: Annotated[Path | None, SettingSource("CLAUDE_CLI_PATH", program)] = None
    """The Claude Code binary."""
    claude_home: Annotated[Path, SettingSource("CLAUDE_CONFIG_DIR", any_path)] = Path()
    """Where Claude Code keeps its settings and sessions."""
    approval_timeout: Annotated[float | None, SettingSource("APPROVAL_TIMEOUT_MS", milliseconds(1), denied_sooner)] = (
        None
    )
    """A question without an answer is denied after this; if it is not set, after 300000 in sessions that an MCP client
    opened, and never in sessions that a person opened.

    Seconds; None where it is not configured. Then `MCP_ANSWER_SECONDS` holds for sessions of MCP clients.
    """
    max_sessions: Annotated[int, SettingSource("MAX_SESSIONS", whole_number(1, 1000), smaller)] = 10
    """Turns running at once."""
    event_buffer_size: Annotated[int, SettingSource("EVENT_BUFFER_SIZE", whole_number(1, 1_000_000), smaller)] = 500
    """Events kept for each session."""
    log_level: Annotated[LogLevel, SettingSource("LOG_LEVEL", level_of_log)] = "info"
    """What is logged; logs go to stderr."""
    engine: Annotated[EngineChoice, SettingSource("HELMSMAN_ENGINE", one_of(*get_args(EngineChoice)))] = "auto"
    """What runs Codex; auto is the app-server where Codex has one."""
    tools: Annotated[tuple[str, ...], SettingSource("HELMSMAN_TOOLS", toolsets, fewer)] = ("sessions",)
    """Toolsets that `helmsman serve` offers."""
    state_dir: Annotated[Path, SettingSource("HELMSMAN_STATE_DIR", any_path)]
    """Tasks, rules given at a prompt, audit log, worktrees, engines, HTTP token."""
    allowed_roots: Annotated[tuple[Path, ...], SettingSource("HELMSMAN_ALLOWED_ROOTS", directories)] = ()
    """Directories that sessions may work and write in and take images from, as PATH lists them (in the file: a list);
    what could write elsewhere is then refused.
    """
    sandbox_readable: Annotated[tuple[Path, ...], SettingSource("HELMSMAN_SANDBOX_READABLE", paths)] = ()
    """Further files and directories that agents in Codex's sandbox may read, as PATH lists them (in the file: a
    list).
    """
    sandbox_variables: Annotated[tuple[str, ...], SettingSource("HELMSMAN_SANDBOX_VARIABLES", variable_names)] = ()
    """Variables with secrets that agents in Codex's sandbox get, separated by commas, such as GH_TOKEN or NPM_* (in the
    file: a list).
    """
    channel: Annotated[bool, SettingSource("HELMSMAN_CHANNEL", switch)] = False
    """Finished turns and open questions are pushed into the Claude Code session that started them (a preview of it)."""
    oauth: Annotated[bool, SettingSource("HELMSMAN_OAUTH", switch)] = False
    """MCP clients over HTTP may ask the user for access by OAuth, on a page behind the dashboard's login."""
    otel: Annotated[bool, SettingSource("HELMSMAN_OTEL", switch)] = False
    """The hub sends traces and metrics of sessions by OpenTelemetry, without prompts and commands (extra `otel`)."""
    detach: Annotated[bool, SettingSource("HELMSMAN_DETACH", switch, off)] = True
    """Engines outlive the process that started them."""
    engine_idle: Annotated[float, SettingSource("HELMSMAN_ENGINE_IDLE_MS", milliseconds(1000), smaller)] = 900.0
    """How long an idle engine without clients keeps running."""
    hub_idle: Annotated[float, SettingSource("HELMSMAN_HUB_IDLE_MS", milliseconds(0))] = 60.0
    """How long the hub stays when no client is connected and nothing runs."""
    first_event_timeout: Annotated[float, SettingSource("HELMSMAN_FIRST_EVENT_TIMEOUT_MS", milliseconds(0), sooner)] = (
        0.0
    )
    """A turn whose model shows no sign of life within this is ended; 0 is never, and steps and tasks then have
    60000.
    """
    inactivity_timeout: Annotated[
        float, SettingSource("HELMSMAN_INACTIVITY_TIMEOUT_MS", milliseconds(0), sooner, ("CODEX_OUTPUT_TIMEOUT_MS",))
    ] = 0.0
    """The same between two signs of life, never while a question waits; 0 is never, and steps and tasks then have
    600000.
    """
    on_limit: Annotated[OnLimit, SettingSource("HELMSMAN_ON_LIMIT", one_of(*get_args(OnLimit)), sooner_over)] = "ask"
    """What to do with a turn when the account's usage limit is reached: ask, wait for its reset and resume, or fail."""
    shell_snapshots: Annotated[
        SnapshotChoice, SettingSource("HELMSMAN_SHELL_SNAPSHOTS", one_of(*get_args(SnapshotChoice)))
    ] = "auto"
    """Whether Codex keeps a snapshot of the login shell for its commands; auto is off unless Codex is configured so."""
    snapshots: Annotated[bool, SettingSource("HELMSMAN_SNAPSHOTS", switch)] = True
    """Files are kept as they are before each turn, for `helmsman session rewind`."""
    retention_days: Annotated[
        int, SettingSource("HELMSMAN_RETENTION_DAYS", whole_number(1, LONGEST_RETENTION_DAYS))
    ] = RETENTION_DAYS
    """How long transcripts and results are kept after the last use of their session."""
    workspace_limit_mb: Annotated[
        int, SettingSource("HELMSMAN_WORKSPACE_LIMIT_MB", whole_number(1, 100_000), smaller)
    ] = 512
    """So much of a working tree travels to another machine or back, in megabytes."""
    workspace_file_limit_mb: Annotated[
        int, SettingSource("HELMSMAN_WORKSPACE_FILE_LIMIT_MB", whole_number(1, 100_000), smaller)
    ] = 64
    """The same for a new or changed file."""
    workspace_from_remote: Annotated[bool, SettingSource("HELMSMAN_WORKSPACE_FROM_REMOTE", switch)] = True
    """Machines of a fleet fetch what was pushed."""
    expose_primitives: Annotated[
        bool, SettingSource("HELMSMAN_EXPOSE_PRIMITIVES", switch, off, ("HELMSMAN_ALLOW_INTERNAL_TOOLS",))
    ] = False
    """The toolset router also lists its `_codex_…` tools, and those of other agents."""
    require_confirmation: Annotated[bool, SettingSource("HELMSMAN_REQUIRE_CONFIRMATION", switch, max)] = False
    """The router asks back before it undoes or overwrites work."""
    codex_remote_token: str | None = None
    files: tuple[ConfigFile, ...] = ()
    user_file: Path | None = None
    """Path of the user's own file, which may not exist."""
    agents_answer_first: bool = False
    """True if a model may answer a question that a user sees in a form."""
    clients_share_sessions: bool = False
    """True if a model may act on sessions that its client did not open."""
    ignored: tuple[str, ...] = ()

    @property
    def session_roots(self) -> tuple[Path, ...]:
        """Directories where sessions may work and write: the allowed roots, their worktrees, and trees from other
        machines.
        """
        # The roots have their links resolved, so the state directory needs the same.
        state_dir = self.state_dir.resolve()
        return (*self.allowed_roots, state_dir / WORKTREES, state_dir / WORKSPACES) if self.allowed_roots else ()


def _settings() -> dict[str, SettingSource]:
    hints = get_type_hints(Settings, include_extras=True)
    found = {name: setting for name, kind in hints.items() for setting in getattr(kind, "__metadata__", ())}
    return {name + _MS if setting.variable.endswith(_MS.upper()) else name: setting for name, setting in found.items()}


SETTINGS: Final[Mapping[str, SettingSource]] = _settings()
"""Settings by their keys in `helmsman.toml`."""


def load_settings(
    flags: Mapping[str, object] | None = None,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    *,
    user_file: Path | None = None,
) -> Settings:
    """Read all sources and check every value.

    Args:
        flags: Values from the command line, by the keys of `helmsman.toml`. None is a flag that was not given.
        env: The environment; the process's own by default. An empty value is one that is not set.
        cwd: Where to look for a project's file, and what relative paths of flags and environment start from.
        user_file: The user's file, when it is not in the platform's configuration directory.

    Raises:
        InvalidSetting: A value is invalid, or a key is unknown, or a file cannot be read.
    """
    here = current()
    env = here.environment if env is None else env
    cwd = (cwd or here.directory).absolute()
    home = _home(env)
    user_file = user_file or own_file(env)
    user = _read_file(user_file, trusted=True)
    projects = _project_files(cwd, home, user)
    files = (*projects, *(() if user is None else (user,)))

    usual = Settings(
        codex_home=home / ".codex",
        claude_home=home / ".claude",
        state_dir=Path(usual_state_directory(env)),
        codex_remote_token=env.get(REMOTE_TOKEN) or None,
        files=files,
        user_file=user_file,
    )
    values = asdict(usual)
    # First the user's own file, because the values of projects are held against it.
    for given in _from_file(user, home) if user is not None else ():
        values[given.field] = given.setting.read(given)
    ignored: list[str] = []
    own_budget = budget_of(user)
    values |= {name: _own_switch(name, user) for name in _OWN_SWITCHES}
    # From the outermost file to the nearest, because each may narrow those before.
    for project in reversed(projects):
        for given in _from_file(project, home):
            ignored += _narrow(values, given)
        ignored += own_budget.ignored(project.content.get("budget", {}), project.path)
        ignored += _tried_in_vain(project)
    for given in (*_from_environment(env, cwd, home), *_from_flags(flags or {}, cwd, home)):
        values[given.field] = given.setting.read(given)
    return Settings(**{**values, "ignored": tuple(ignored)})


def own_file(env: Mapping[str, str] | None = None) -> Path:
    """Return the path of the user's own `helmsman.toml`, which may not exist."""
    env = current().environment if env is None else env
    return Path(config_directory(env), CONFIG_NAME)


def _narrow(values: dict[str, Any], given: Given) -> Iterable[str]:
    """Restrict a setting by a project's value. Yield a sentence for a value without effect."""
    setting, own = given.setting, values[given.field]
    if setting.project is only_yours:
        yield f"{given.name} is ignored: only your own file, {setting.variable} or a flag can set it."
        return
    asked = setting.read(given)
    values[given.field] = setting.project(own, asked)
    if values[given.field] != asked:
        yours = round(own * 1000) if own is not None and given.key.endswith(_MS) else own
        yield (
            f"{given.name} is {given.value!r}, which is more than you have ({_shown(yours)}), and is ignored: a project's "
            f"file may only narrow. Set {setting.variable} or the same key in your own file if you want it."
        )


def _tried_in_vain(project: ConfigFile) -> Iterable[str]:
    """Yield a sentence for each table of a project's file that only counts in the user's own file."""
    if "notify" in project.content:
        yield f"notify in {project.path} is ignored: only your own file says who is notified."
    if "agents" in project.content:
        yield f"agents in {project.path} is ignored: only your own file says which programs are agents."
    for name in _OWN_SWITCHES:
        if name in project.content:
            yield f"{name} in {project.path} is ignored: only your own file can set it."


def budget_of(file: ConfigFile | None) -> Budget:
    """Return the `[budget]` of a file.

    Raises:
        InvalidSetting: It is invalid.
    """
    return Budget() if file is None else Budget.read(file.content.get("budget", {}), file.path)


def _own_switch(name: str, user: ConfigFile | None) -> bool:
    value = False if user is None else user.content.get(name, False)
    if user is not None and not isinstance(value, bool):
        raise InvalidSetting(f"{name} in {user.path} is {value!r:.100}. Use true or false.")
    return bool(value)


def _shown(value: Any) -> str:
    return ", ".join(value) if isinstance(value, tuple) else str(value)


def ensure_state_dir(path: Path) -> Path:
    """Make the state directory, for this user alone, when it is first needed.

    Raises:
        InvalidSetting: It cannot be made, or others could write into one that exists (it holds engine sockets).
    """
    advice = "Set HELMSMAN_STATE_DIR to a directory that only you can write to."
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = path.stat()
    except OSError as error:
        raise InvalidSetting(f"The state directory {path} cannot be made: {error.strerror}. {advice}") from error
    if os.name == "posix" and (status.st_mode & 0o022 or status.st_uid != os.geteuid()):
        raise InvalidSetting(f"Other users can write to the state directory {path}. {advice}")
    return path


# --- where values come from ------------------------------------------------------------------------------------------


_FLAGS: Final = {"default_model": "model", "default_profile": "profile", "default_config": "config"}
"""Flags with other names than their settings."""


def _from_flags(flags: Mapping[str, object], cwd: Path, home: Path) -> Iterable[Given]:
    for key, value in flags.items():
        if key not in SETTINGS:
            raise InvalidSetting(f"There is no setting {key!r}. {_nearest(key)}")
        if value is not None:
            yield Given(key, "--" + _FLAGS.get(key, key).replace("_", "-"), value, cwd, home)


def _from_environment(env: Mapping[str, str], cwd: Path, home: Path) -> Iterable[Given]:
    for key, setting in SETTINGS.items():
        for variable in reversed((setting.variable, *setting.other_names)):  # the first is the one that counts
            if value := env.get(variable):
                yield Given(key, variable, value, cwd, home)


def _from_file(file: ConfigFile, home: Path) -> Iterable[Given]:
    for key, value in file.content.items():
        if key in OTHER_TABLES:
            continue
        if key not in SETTINGS:
            raise InvalidSetting(f"{file.path} has an unknown key {key!r}. {_nearest(key)}")
        yield Given(key, f"{key} in {file.path}", value, file.path.parent, home)


def _nearest(key: str) -> str:
    known = sorted({*SETTINGS, *OTHER_TABLES})
    close = nearest(key, known)
    return f"Did you mean {close}?" if close else f"Use one of: {', '.join(known)}."


def _project_files(cwd: Path, home: Path, user: ConfigFile | None) -> list[ConfigFile]:
    """Return the files of the project around `cwd`, the nearest first."""
    # Also above an inner repository, which an agent could create to hide a setting.
    paths = (Path(place, CONFIG_NAME) for place in project_places(str(cwd), str(home)))
    return [
        ConfigFile(path, read_toml(path), trusted=False)
        for path in paths
        # The user's own file may lie in a directory around the project.
        if exists(path) and (user is None or not path.samefile(user.path))
    ]


def _read_file(path: Path, *, trusted: bool) -> ConfigFile | None:
    return ConfigFile(path, read_toml(path), trusted) if exists(path) else None


def read_toml(path: Path) -> dict[str, Any]:
    """Read a configuration file.

    Raises:
        InvalidSetting: It cannot be read, or is not TOML.
    """
    try:
        if not path.is_file():
            raise InvalidSetting(f"{path} is not a file. Remove it, or put your settings there.")
        with path.open("rb") as file:
            # One byte more than allowed shows that the file is too large.
            data = file.read(_CONFIG_LIMIT + 1)
        if len(data) > _CONFIG_LIMIT:
            raise InvalidSetting(f"{path} is larger than {_CONFIG_LIMIT} bytes. Remove unneeded content.")
        return tomllib.loads(data.decode("utf-8"))
    except OSError as error:
        raise InvalidSetting(f"{path} cannot be read: {error.strerror}. Check its permissions.") from error
    except (ValueError, RecursionError) as error:
        raise InvalidSetting(f"{path} is not valid TOML: {error}. Correct or remove it.") from error


def _home(env: Mapping[str, str]) -> Path:
    if (home := home_directory(env)) == NOBODY_KNOWS:
        raise InvalidSetting("This user has no home directory. Set HOME.")
    return Path(home)
