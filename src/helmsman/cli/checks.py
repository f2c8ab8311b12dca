"""Checks of the doctor: everything that Helmsman depends on, each with what to do."""

from __future__ import annotations

import json
import os
import re
import shlex
import sqlite3
import subprocess
import urllib.request
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import anyio

from helmsman._version import __version__
from helmsman.agents.codex.agent import agent_in_use
from helmsman.agents.codex.app_servers import can_detach, why_bound
from helmsman.agents.codex.binary import app_server_capabilities
from helmsman.agents.codex.engine import AppServerEngine
from helmsman.agents.codex.features import OLDEST
from helmsman.agents.codex.sandbox import check_sandbox
from helmsman.agents.registry import engine_overviews
from helmsman.approvals.rule_book import RuleBook
from helmsman.base.json_values import mapping
from helmsman.base.peers import can_tell_sandboxed
from helmsman.base.programs import available, environment_for, find_program, installation_places, reason_of_sessions
from helmsman.base.structs import replace
from helmsman.base.truncate import counted
from helmsman.base.unknown_names import nearest
from helmsman.capabilities.notices import channel_statuses
from helmsman.cli.hub import DAMAGED, service_of
from helmsman.cli.installing import client_platform
from helmsman.cli.output import local
from helmsman.clients.configuration import inspect_clients
from helmsman.clients.launch import Running, launch_words
from helmsman.errors import AgentNotFound, HelmsmanError, InvalidSetting, ProgramRefused, RegistryUnavailable
from helmsman.hub.control import ask_hub
from helmsman.model.options import DEFAULT_AGENT
from helmsman.notices.config import NotifySettings
from helmsman.notices.store import NoticeStore
from helmsman.schedules.store import ScheduleStore
from helmsman.service import HelmsmanService
from helmsman.settings import Settings, budget_of, ensure_state_dir, own_file
from helmsman.store import open_store
from helmsman.tasks.prices import Prices
from helmsman.tasks.registry import REGISTRY_NAME, Registry

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from helmsman.agents.codex.binary import CodexBinary
    from helmsman.agents.codex.connection import McpServer
    from helmsman.agents.protocol import Capabilities
    from helmsman.settings import Settings


CheckStatus = Literal["ok", "absent", "warning", "failed"]
"""`absent`: something optional that is not installed."""


@dataclass(frozen=True, slots=True)
class Check:
    """One check: its subject, its status, and a fix unless the status is ok.

    The fix can also be the last sentence of `detail`, if that is the message of a Helmsman error.
    """

    name: str
    status: CheckStatus
    detail: str
    fix: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    binary: CodexBinary | None
    checks: tuple[Check, ...]
    capabilities: Capabilities | None = None

    @property
    def ok(self) -> bool:
        return all(check.status != "failed" for check in self.checks)


_ACCOUNTS: Final = {"chatgpt": "ChatGPT", "apiKey": "an API key"}


_HANDSHAKE_SECONDS: Final = 60


_SERVERS_SECONDS: Final = 60.0
"""Codex starts all MCP servers in parallel and waits for each up to that server's limit, usually 10 to 30 seconds."""


_ERROR_LENGTH: Final = 160


_TYPE_NAMES: Final = re.compile(r"Send message error Transport \[[^\]]*\] error: ")
"""Internal type names that Codex repeats in its errors about MCP servers."""


_INDEX: Final = "https://pypi.org/simple"
_PACKAGE: Final = "codex-helmsman"
_INDEX_SECONDS: Final = 10
_RELEASE: Final = re.compile(r"(\d+)\.(\d+)\.(\d+)")


def check_release() -> Check:
    """Ask the package index, by default PyPI, for a newer release. Only users ask for this. Blocks."""
    name, index = "Release", os.environ.get("PIP_INDEX_URL") or _INDEX
    # The JSON form of an index has the list of all versions (PEP 700).
    request = urllib.request.Request(  # noqa: S310 - the scheme is checked
        f"{index.rstrip('/')}/{_PACKAGE}/", headers={"Accept": "application/vnd.pypi.simple.v1+json"}
    )
    # `urlopen` also opens files.
    if request.type not in ("https", "http"):
        return Check(
            name, "warning", f"PIP_INDEX_URL is {index}, which is no address of the web.", "Look there yourself."
        )
    try:
        with urllib.request.urlopen(request, timeout=_INDEX_SECONDS) as answer:  # noqa: S310 - as above
            versions = json.load(answer)["versions"]
        found = (_RELEASE.fullmatch(version) for version in versions)
        # Versions with a suffix are no releases.
        newest = max((tuple(map(int, one.groups())) for one in found if one is not None), default=None)
    except (OSError, ValueError, LookupError, TypeError) as error:
        return Check(
            name, "warning", f"{index} does not say which releases there are: {error}.", "Look there yourself."
        )
    # What follows the three numbers marks an unfinished version, which is older than the release.
    here = _RELEASE.match(__version__)
    known = (0, 0, 0) if here is None else tuple(map(int, here.groups()))
    is_final = here is not None and here.end() == len(__version__)
    if newest is None or newest < known or (newest == known and is_final):
        return Check(name, "ok", f"{__version__} is the newest one.")
    said = f"{'.'.join(map(str, newest))} is newer than {__version__}."
    # A running hub keeps the old code until it is restarted.
    return Check(name, "warning", said, f"Upgrade: pip install --upgrade {_PACKAGE}, and helmsman hub restart.")


async def check_codex(helm: HelmsmanService, binary: CodexBinary, settings: Settings) -> list[Check]:
    """Run all checks for an installed Codex."""
    # A wrong version is a warning: the checks go on, to show what else is wrong.
    checks = [check_version(binary, settings.codex_remote)]
    engine = await _open_engine(helm)
    if isinstance(engine, HelmsmanError):
        checks.append(no_handshake(engine))
    else:
        checks.append(_handshake(binary, engine))
        # One unreadable file would otherwise appear as three failures.
        unread = await _unread_configuration(engine)
        if unread is not None:  # account, servers and model cannot be read either
            checks.append(unread)
        else:
            checks += [await _account(engine), *await _mcp_servers(engine)]
            # A budget counts in dollars only if the model's price is known.
            checks += check_budget(settings, settings.default_model or await _usual_model(engine))
    if binary.remote is not None:  # its sandbox and lifetime belong to the process that started it
        return checks
    return [*checks, await _sandbox(binary), check_detaching(binary, settings)]


def check_version(binary: CodexBinary, remote: str | None = None) -> Check:
    detail = f"{binary.version} at {remote or binary.path}"
    if binary.version < OLDEST:
        detail += ", older than any that Helmsman is tested with."
        fix = f"Update it to {OLDEST} or newer."
        return Check("Codex", "warning", detail, fix)
    return Check("Codex", "ok", detail)


def to_type(binary: CodexBinary) -> str:
    """Return the command a user types to run Codex. The Codex of the PyPI wheel is not on PATH."""
    return "codex" if available("codex") else shlex.quote(str(binary.path))


async def _open_engine(helm: HelmsmanService) -> AppServerEngine | HelmsmanError:
    """Return the engine, or the error that prevents its start."""
    try:
        # An engine that hangs must not hang the doctor, which is for finding that.
        with anyio.fail_after(_HANDSHAKE_SECONDS):
            engine = await helm.engine(agent="codex")
    except HelmsmanError as error:
        return error
    except TimeoutError:
        return HelmsmanError(f"no answer within {_HANDSHAKE_SECONDS} s. Run `codex app-server` by hand to see why.")
    assert isinstance(engine, AppServerEngine)
    return engine


def no_handshake(error: HelmsmanError) -> Check:
    lines = str(error.details.get("stderr") or "").splitlines()
    said = next((line for line in lines if line.startswith("Error")), None)  # a backtrace may follow
    if said is None:
        return Check("Handshake", "failed", error.message)
    detail = f"the app-server does not start: {said.rstrip('.')}."
    fix = "Fix that, then run `codex app-server` by hand to see that it stays up."
    return Check("Handshake", "failed", detail, fix)


def _handshake(binary: CodexBinary, engine: AppServerEngine) -> Check:
    said = engine.version or binary.version
    # CODEX_CLI_PATH may name a wrapper.
    if said != binary.version:
        detail = f"the app-server says it is {said}, the binary {binary.version}."
        fix = "Check that CODEX_CLI_PATH does not name a wrapper of another Codex."
        return Check("Handshake", "warning", detail, fix)
    return Check("Handshake", "ok", "the app-server answers")


async def _unread_configuration(engine: AppServerEngine) -> Check | None:
    """Return a failed check if Codex cannot read its configuration."""
    try:
        await engine.api.config()
    except InvalidSetting as error:
        return Check("Configuration", "failed", error.message)
    except HelmsmanError:
        return None  # later checks report this error
    return None


async def _account(engine: AppServerEngine) -> Check:
    try:
        account = await engine.api.account()
    except HelmsmanError as error:
        return Check("Account", "warning", error.message)
    if account.kind is not None:
        plan = f", plan {account.plan}" if account.plan else ""
        who = f" as {account.email}" if account.email else ""
        how = _ACCOUNTS.get(account.kind, account.kind)
        return Check("Account", "ok", f"logged in with {how}{who}{plan}")
    # Another provider needs no login of Codex.
    if account.requires_login:
        return Check("Account", "failed", "not logged in.", "Run `helmsman agents login`.")
    return Check("Account", "ok", "no login needed: Codex is configured for another provider")


async def _usual_model(engine: AppServerEngine) -> str | None:
    """Return the default model, if Codex reports one."""
    try:
        # The configuration wins over the default of the list.
        if isinstance(model := (await engine.api.config()).values.get("model"), str):
            return model
        return next((model.id for model in await engine.models() if model.is_default), None)
    except HelmsmanError:
        return None


def check_budget(settings: Settings, model: str | None) -> list[Check]:
    """Check that spending can be counted against the configured budgets."""
    # A budget is read from the user's own file: a repository's file cannot widen it.
    amounts = budget_of(next((file for file in settings.files if file.trusted), None)).amounts()
    if not amounts:
        return []
    shown = ", ".join(f"{key} {amount:g}" for key, amount in amounts.items())
    in_usd = any(key.endswith("_usd") for key in amounts)
    if not in_usd or model is None or model in Prices.load(settings.files).by_model:
        return [Check("Budget", "ok", shown)]
    return [
        Check(
            "Budget",
            "warning",
            f"{shown}. No price is known for {model}, so what it spends does not count in USD.",
            f'Add its price to your own helmsman.toml ([prices."{model}"]), or set a budget in tokens.',
        )
    ]


# --- the MCP servers Codex uses --------------------------------------------------------------------------------------


async def _mcp_servers(engine: AppServerEngine) -> list[Check]:
    try:
        configured = mapping((await engine.api.config()).values.get("mcp_servers"))
        servers = await engine.api.mcp_servers(timeout=_SERVERS_SECONDS)
    except HelmsmanError as error:
        return [Check("MCP servers", "warning", error.message)]
    return check_mcp_servers(servers, configured, to_type(engine.binary))


def check_mcp_servers(servers: tuple[McpServer, ...], configured: Mapping[str, Any], codex: str) -> list[Check]:
    """Return one line for all working servers, and one for each failing server. `codex` is the command to type."""
    entries = {server.name: configured.get(server.name) for server in servers}
    # A server that is switched off is not asked.
    on = [server for server in servers if not _is(entries[server.name], "enabled", False)]
    well = [
        f"{server.name} ({counted(server.tools, 'tool')})" for server in on if server.answers and not server.needs_login
    ]
    checks = [_unwell(server, codex, required=_is(entries[server.name], "required", True)) for server in on]
    if well:
        # All working servers in one line: what fails is what a reader looks for.
        checks.insert(0, Check("MCP servers", "ok", ", ".join(well)))
    if not on:
        return [Check("MCP servers", "ok", "Codex uses none")]
    return [check for check in checks if check is not None]


def _unwell(server: McpServer, codex: str, *, required: bool) -> Check | None:
    name = f"MCP server {server.name}"
    if server.needs_login:
        fix = f"Run `{codex} mcp login {server.name}`."
        return Check(name, "failed" if required else "warning", "needs a login.", fix)
    if server.answers:
        return None
    fix = f"See `{codex} mcp get {server.name}` and run its command by hand, or switch it off (`enabled = false`)."
    # Older versions do not say why a server has no tools.
    if server.answers is None:
        detail = "shows no tools; this Codex does not say whether it has none or does not start."
        return Check(name, "warning", detail, fix)
    detail = f"does not start: {_short(server.error)}." if server.error else "does not start."
    # Codex refuses to start sessions without a required server.
    if required:
        detail += " It is required, so no session starts either."
    return Check(name, "failed" if required else "warning", detail, fix)


def _is(entry: object, key: str, value: bool) -> bool:
    return isinstance(entry, dict) and entry.get(key) is value


def _short(error: str) -> str:
    said = _TYPE_NAMES.sub("", error.removeprefix("MCP startup failed: ")).partition(", when send")[0]
    said = " ".join(said.split()).rstrip(".")
    return said if len(said) <= _ERROR_LENGTH else f"{said[:_ERROR_LENGTH]}…"


# --- where it runs ---------------------------------------------------------------------------------------------------


async def _sandbox(binary: CodexBinary) -> Check:
    sandbox = await check_sandbox(binary)
    if sandbox.works is None:
        fix = sandbox.fix or "Try a command in Codex itself before you rely on it."
        # Unknown is no failure.
        return Check("Sandbox", "warning", f"{sandbox.detail}.", fix)
    detail = sandbox.detail if sandbox.works else f"{sandbox.detail.rstrip('.')}."
    return Check("Sandbox", "ok" if sandbox.works else "failed", detail, sandbox.fix)


def check_detaching(binary: CodexBinary, settings: Settings) -> Check:
    """Check whether work continues after the process that started it exits."""
    if not settings.detach:
        detail = "switched off (HELMSMAN_DETACH): work ends with the process that started it"
        return Check("Detaching", "ok", detail)
    if not can_detach(binary):
        fix = "Get a newer Codex, or set HELMSMAN_DETACH=0 if that is acceptable."
        return Check("Detaching", "warning", why_bound(binary) or "", fix)
    survives = "work and open questions survive the process that started them"
    if not can_tell_sandboxed():
        detail = (
            "work continues without you, but not in a sandbox with network access: this system does not tell sandboxed "
            "commands apart, so they could reach the engine."
        )
        return Check("Detaching", "warning", detail, "Set HELMSMAN_DETACH=0 for such sessions.")
    return Check("Detaching", "ok", survives)


_GIT_SECONDS: Final = 10


_STALE: Final = {
    "orphaned": "has lost its supervisor, so nothing would end it",
    "not answering": "does not answer",
}


def check_settings(settings: Settings) -> list[Check]:
    files = ", ".join(str(file.path) for file in settings.files)
    detail = files or f"defaults and environment (there is no {own_file()})"
    remove = "It does no harm; remove it from the project's file to get rid of this line."
    return [
        Check("Settings", "ok", detail),
        # Settings of a project that only a user may set are ignored, and that is said.
        *(Check("Settings", "warning", note, remove) for note in settings.ignored),
    ]


def check_rules(settings: Settings, directory: Path) -> Check:
    """Check that the rules files are valid."""
    # Rules are loaded whole: one that cannot be read means that no rule allows anything.
    book = RuleBook(settings.files, settings.state_dir)
    try:
        book.check(directory)
    except InvalidSetting as error:
        return Check("Rules", "failed", error.message)
    listed = book.listed(directory)
    return Check("Rules", "ok", f"{len(listed)} in force here" if listed else "none")


def check_codex_home(settings: Settings) -> Check:
    home = settings.codex_home
    # Codex makes its default directory, and refuses to start if one that CODEX_HOME names is missing.
    if not home.exists() and home.name == ".codex" and home.parent.is_dir():
        return Check("Codex home", "ok", f"{home} (Codex makes it when it first starts)")
    if not home.exists():
        detail = f"{home} does not exist."
        fix = f"Make it (`mkdir {home}`), or run `codex` once, or set CODEX_HOME."
        return Check("Codex home", "failed", detail, fix)
    if not os.access(home, os.R_OK | os.W_OK | os.X_OK):
        detail = f"{home} cannot be written to."
        fix = "Fix its permissions, or set CODEX_HOME to a directory of your own."
        return Check("Codex home", "failed", detail, fix)
    return Check("Codex home", "ok", str(home))


def check_state(settings: Settings) -> list[Check]:
    """Check the state directory and, if it is usable, its contents."""
    try:
        path = ensure_state_dir(settings.state_dir)
    except InvalidSetting as error:
        return [Check("State", "failed", error.message)]
    # The remaining checks need the directory.
    if not os.access(path, os.W_OK | os.X_OK):
        fix = "Fix its permissions, or set HELMSMAN_STATE_DIR to another directory."
        return [Check("State", "failed", f"{path} cannot be written to.", fix)]
    return [
        Check("State", "ok", str(path)),
        check_tasks(settings),
        *check_schedules(settings),
        *check_notices(settings),
        *check_engines(engine_overviews(path)),
    ]


def check_tasks(settings: Settings) -> Check:
    """Check the registry read-only. Opening a damaged one normally would move it aside."""
    path = settings.state_dir / REGISTRY_NAME
    # A store on Postgres has no file.
    if settings.store is None:
        if not path.exists():
            return Check("Tasks", "ok", "none yet")
        try:
            # `mode=ro` does not create the file; the quick check reads it without locking others out.
            with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as connection:
                (said,) = connection.execute("PRAGMA quick_check(1)").fetchone()
        except sqlite3.Error as error:
            said = str(error)
        if said != "ok":
            detail = f"the task registry {path} is damaged ({said})."
            return Check("Tasks", "failed", detail, DAMAGED)
    try:
        with closing(Registry(path, address=settings.store)) as registry:
            running = len(registry.running())
    except RegistryUnavailable as error:
        return Check("Tasks", "failed", error.message)
    return Check("Tasks", "ok", f"the registry is whole; {running or 'none'} running")


def check_schedules(settings: Settings) -> list[Check]:
    """Check that schedules will run."""
    state_dir = settings.state_dir
    path = state_dir / REGISTRY_NAME
    if settings.store is None and not path.exists():
        return []
    try:
        with closing(open_store(path, settings.store)) as database:
            due = [one.next_at for one in ScheduleStore(database).read() if one.next_at is not None]
    except RegistryUnavailable:
        return []  # reported by the check of tasks
    # Without due times there is nothing that could be missed.
    if not due:
        return []
    ahead = f"{len(due)}, the next at {local(min(due))}"
    # A hub that starts with the machine keeps schedules after a restart.
    if service_of(state_dir).is_installed:
        return [Check("Schedules", "ok", ahead)]
    stays = "Start the hub with the machine: helmsman hub install."
    if ask_hub(state_dir, "status") is None:
        return [Check("Schedules", "warning", f"{ahead}. No hub is running, so none would begin.", stays)]
    return [Check("Schedules", "warning", f"{ahead}. After a restart none begins before a client connects.", stays)]


def check_notices(settings: Settings) -> list[Check]:
    """Check that notifications can be delivered, according to the latest attempts."""
    try:
        notify = NotifySettings.load(settings.files)
        with closing(open_store(settings.state_dir / REGISTRY_NAME, settings.store)) as database:
            ways = channel_statuses(notify, NoticeStore(database).newest() if notify.to else {})
    except InvalidSetting as error:
        return [Check("Notices", "failed", error.message)]
    except RegistryUnavailable:
        return []  # reported by the check of tasks
    checks = []
    for way in ways:
        if way.status == "failing" and way.last_at is not None:
            detail = f"{way.name} does not work, last tried {local(way.last_at)}: {way.note}"
            checks.append(Check("Notices", "warning", detail, f"Try it: helmsman config notify test {way.name}."))
        elif way.note is not None:
            checks.append(Check("Notices", "warning", f"{way.name}: {way.note}"))
    if ways and not checks:
        checks.append(Check("Notices", "ok", ", ".join(f"{way.name} ({way.status})" for way in ways)))
    return checks


def check_engines(engines: list[dict[str, Any]]) -> list[Check]:
    """Check detached engines for stale ones."""
    well, checks = [], []
    for engine in engines:
        if engine["status"] in _STALE:
            detail = f"{engine['id']} (pid {engine['pid']}) {_STALE[engine['status']]}."
            checks.append(Check("Engines", "warning", detail, f"Run `helmsman hub engines stop {engine['id']}`."))
        else:
            agent = " ".join(filter(None, (engine["agent"], engine["version"])))
            well.append(f"{engine['id']} ({agent}, {engine['status']})")
    if well or not checks:
        # One line for all engines that work.
        checks.insert(0, Check("Engines", "ok", ", ".join(well) or "none running"))
    return checks


def check_clients(settings: Settings) -> list[Check]:
    running = Running.now()
    here = {launch_words(running, shared=False), launch_words(running, shared=True)}
    found = inspect_clients(client_platform(settings), here)
    if not found:
        return [Check("Clients", "ok", "none runs Helmsman yet (`helmsman install CLIENT` adds it)")]
    return [
        Check(f"Client {finding.client.title}", "warning" if finding.fix else "ok", finding.detail, finding.fix)
        for finding in found
    ]


def check_installation() -> list[Check]:
    """Warn if sessions can write Helmsman's code or its Python, which run outside any sandbox."""
    found = ((place, reason_of_sessions(place)) for place in installation_places())
    place, reason = next(((place, reason) for place, reason in found if reason is not None), ("", None))
    if reason is None:
        return []
    detail = f"Helmsman runs code in {place}, and {reason}: such a session could change the code that runs here."
    return [Check("Installation", "warning", detail, "Install it elsewhere: pipx install codex-helmsman")]


def check_user() -> list[Check]:
    """Warn if agents run as root: sandboxes are weaker for root."""
    # No user ids on Windows.
    if os.name != "posix" or os.geteuid() != 0:
        return []
    detail = (
        "Helmsman runs as root, and so do all agents: what leaves a sandbox, or is approved, can change the system."
    )
    return [Check("User", "warning", detail, "Use an account of your own, or a container for this alone.")]


def check_git() -> Check:
    try:
        # git is found on a PATH that sessions cannot write to.
        git = find_program("git")
    except ProgramRefused as error:
        return Check("Git", "failed", error.message)
    if git is None:
        detail = "not found; Codex works without it, but worktrees and the exec engine's check of a repository do not."
        fix = "Install git."
        return Check("Git", "warning", detail, fix)
    try:
        shown = subprocess.run(
            [git, "--version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=_GIT_SECONDS,
            env=environment_for(),
            # A directory without a repository, whose configuration git would read.
            cwd="/",
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Check("Git", "warning", f"{git} does not run: {error}.", "Install git again.")
    return Check("Git", "ok", shown.stdout.strip() or git)


async def check_other_agents(helm: HelmsmanService, settings: Settings) -> list[Check]:
    """Check the version, login and sandbox of each other agent."""
    checks: list[Check] = []
    # A misspelt default would otherwise appear only at the next start.
    if settings.default_agent not in {agent.name for agent in helm.agents}:
        names = [agent.name for agent in helm.agents]
        meant = nearest(settings.default_agent, names) or DEFAULT_AGENT
        detail = f"default_agent is {settings.default_agent!r:.80}, and there is no such agent."
        checks.append(Check("Agent", "failed", detail, f"Set it to {meant}, or to one of: {', '.join(sorted(names))}."))
    for agent in helm.agents:
        # Codex has checks of its own above.
        if agent.name == DEFAULT_AGENT:
            continue
        is_default = agent.name == settings.default_agent
        try:
            installed = await helm.installed(agent.name)
        except AgentNotFound as error:  # other agents are optional
            if is_default:
                checks.append(Check(agent.title, "failed", error.message))
            else:
                # The first sentence says what is missing, the rest how to get it.
                what, _, how = error.message.partition(". ")
                checks.append(Check(agent.title, "absent", f"{what.rstrip('.')}.", how))
            continue
        except ProgramRefused as error:
            checks.append(Check(agent.title, "failed" if is_default else "warning", error.message))
            continue
        if installed is None:
            continue
        login = f", login in {installed.login}" if installed.login else ""
        found = f"{installed.version or 'unknown version'} at {installed.path}{login}"
        try:
            held = await agent.try_sandbox(settings, None)
        except HelmsmanError as error:
            checks.append(Check(agent.title, "warning", f"{found}. {error.message}"))
        else:
            checks.append(Check(agent.title, "ok", f"{found}; it is confined by {held}"))
    return checks


async def examine(settings: Settings) -> Report:
    """Run all checks."""
    checks = [
        *check_settings(settings),
        check_rules(settings, Path.cwd()),
        check_codex_home(settings),
    ]
    binary: CodexBinary | None = None
    capabilities: Capabilities | None = None
    # Disable shell snapshots: this Codex exits before a snapshot of the login shell would finish.
    async with HelmsmanService(replace(settings, engine="app-server", detach=False, shell_snapshots="off")) as helm:
        try:
            binary = await agent_in_use(settings, None)
        except HelmsmanError as error:
            checks.append(Check("Codex", "failed", error.message))
        else:
            checks += await check_codex(helm, binary, settings)
            # Report on the engines that sessions use. The Codex started for these checks is never detached.
            detached = binary.remote is not None or (settings.detach and can_detach(binary))
            capabilities = helm.agents.explained(app_server_capabilities(binary, detached=detached))
        checks += await check_other_agents(helm, settings)
    # No other task is running, so these checks may block.
    checks += check_state(settings)
    checks += [*check_user(), check_git(), *check_installation()]
    checks += check_clients(settings)
    return Report(binary=binary, checks=tuple(checks), capabilities=capabilities)
