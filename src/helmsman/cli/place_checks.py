"""Checks of the environment for `helmsman doctor`: settings, directories, tasks, engines, login shell, git, clients."""

from __future__ import annotations

import os
import sqlite3
import subprocess
from contextlib import closing
from typing import TYPE_CHECKING, Final

from helmsman.agents.codex.access.shell_profile import SLOWEST, login_shell, measure_profile
from helmsman.agents.codex.features import Feature
from helmsman.agents.registry import engine_overviews
from helmsman.approvals.rule_book import RuleBook
from helmsman.base.programs import environment_for, find_program, installation_places, reason_of_sessions
from helmsman.capabilities.notices import way_statuses
from helmsman.cli.check_report import Check
from helmsman.cli.client_files import surroundings
from helmsman.cli.hub_service import service_of
from helmsman.cli.store import DAMAGED
from helmsman.clients.launch import Running, launch_words
from helmsman.clients.overview import inspect_clients
from helmsman.errors import InvalidSetting, ProgramRefused, RegistryUnavailable
from helmsman.hub.control import ask_hub
from helmsman.notices.config import NotifySettings
from helmsman.notices.store import NoticeStore
from helmsman.schedules.store import ScheduleStore
from helmsman.settings import Settings, ensure_state_dir, own_file
from helmsman.store.database import Database
from helmsman.tasks.registry import REGISTRY_NAME, Registry

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from typing import Any

    from helmsman.agents.codex.binary import CodexBinary

_GIT_SECONDS: Final = 10

_SLOW: Final = 1.0  # noticeable at every start of a session

_STALE: Final = {
    "orphaned": "has lost its keeper, so nothing would end it",
    "not answering": "does not answer",
}


def check_settings(settings: Settings) -> list[Check]:
    files = ", ".join(str(file.path) for file in settings.files)
    detail = files or f"defaults and environment (there is no {own_file()})"
    remove = "It does no harm; remove it from the project's file to get rid of this line."
    return [
        Check("Settings", "ok", detail),
        *(Check("Settings", "warning", note, remove) for note in settings.ignored),
    ]


def check_rules(settings: Settings, directory: Path) -> Check:
    """Check that the rules files are valid."""
    book = RuleBook(settings.files, settings.state_dir)
    try:
        book.check(directory)
    except InvalidSetting as error:
        return Check("Rules", "failed", error.message)
    listed = book.listed(directory)
    return Check("Rules", "ok", f"{len(listed)} in force here" if listed else "none")


def check_codex_home(settings: Settings) -> Check:
    home = settings.codex_home
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
    if not os.access(path, os.W_OK | os.X_OK):
        fix = "Fix its permissions, or set HELMSMAN_STATE_DIR to another directory."
        return [Check("State", "failed", f"{path} cannot be written to.", fix)]
    return [
        Check("State", "ok", str(path)),
        check_tasks(path),
        *check_schedules(path),
        *check_notices(settings),
        *check_engines(engine_overviews(path)),
    ]


def check_tasks(state_dir: Path) -> Check:
    """Check the registry read-only. Opening a damaged one normally would move it aside."""
    path = state_dir / REGISTRY_NAME
    if not path.exists():
        return Check("Tasks", "ok", "none yet")
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as connection:
            (said,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    except sqlite3.Error as error:
        said = str(error)
    if said != "ok":
        detail = f"the task registry {path} is damaged ({said})."
        return Check("Tasks", "failed", detail, DAMAGED)
    try:
        with closing(Registry(path)) as registry:
            running = len(registry.running())
    except RegistryUnavailable as error:
        return Check("Tasks", "failed", error.message)
    return Check("Tasks", "ok", f"the registry is whole; {running or 'none'} running")


def check_schedules(state_dir: Path) -> list[Check]:
    """Check that schedules will run."""
    if not (state_dir / REGISTRY_NAME).exists():
        return []
    try:
        with closing(Database(state_dir / REGISTRY_NAME)) as database:
            due = [one.next_at for one in ScheduleStore(database).read() if one.next_at is not None]
    except RegistryUnavailable:
        return []  # reported by the check of tasks
    if not due:
        return []
    ahead = f"{len(due)}, the next at {min(due).astimezone():%Y-%m-%d %H:%M}"
    if service_of(state_dir).is_installed:
        return [Check("Schedules", "ok", ahead)]
    stays = "Have the hub start with the machine: helmsman hub install."
    if ask_hub(state_dir, "status") is None:
        return [Check("Schedules", "warning", f"{ahead}. No hub is running, so none would begin.", stays)]
    return [Check("Schedules", "warning", f"{ahead}. After a restart none begins before a client connects.", stays)]


def check_notices(settings: Settings) -> list[Check]:
    """Check that notifications can be delivered, according to the latest attempts."""
    try:
        notify = NotifySettings.load(settings.files)
        with closing(Database(settings.state_dir / REGISTRY_NAME)) as database:
            ways = way_statuses(notify, NoticeStore(database).newest() if notify.to else {})
    except InvalidSetting as error:
        return [Check("Notices", "failed", error.message)]
    except RegistryUnavailable:
        return []  # reported by the check of tasks
    checks = []
    for way in ways:
        if way.status == "failing" and way.last_at is not None:
            detail = f"{way.name} does not work, last tried {way.last_at.astimezone():%Y-%m-%d %H:%M}: {way.note}"
            checks.append(Check("Notices", "warning", detail, f"Try it: helmsman notify test {way.name}."))
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
            checks.append(Check("Engines", "warning", detail, f"Run `helmsman engines stop {engine['id']}`."))
        else:
            agent = " ".join(filter(None, (engine["agent"], engine["version"])))
            well.append(f"{engine['id']} ({agent}, {engine['status']})")
    if well or not checks:
        checks.insert(0, Check("Engines", "ok", ", ".join(well) or "none running"))
    return checks


def check_login_shell(settings: Settings, binary: CodexBinary | None, env: Mapping[str, str]) -> Check | None:
    """Check the startup time of the user's login shell, which Codex runs commands in. None without such a shell."""
    shell = login_shell(env)
    return None if shell is None else login_shell_line(shell, measure_profile(shell, env), settings, binary)


def login_shell_line(shell: str, seconds: float | None, settings: Settings, binary: CodexBinary | None) -> Check:
    name, look = "Login shell", f"See where its time goes: `time {shell} -lc :`."
    if seconds is None:
        detail = f"{shell} cannot be run or does not end within {SLOWEST:g} s, and Codex runs every command in one."
        return Check(name, "warning", detail, look)
    taken = f"{shell} takes {seconds * 1000:.0f} ms"
    if seconds >= _SLOW:
        detail = f'{taken}, and Codex runs it for every command, or with shell_snapshots = "on" for every session.'
        fix = f"{look} What only people need (pyenv, nvm, conda, prompts) belongs into the file for interactive shells."
        return Check(name, "warning", detail, fix)
    return Check(name, "ok", f"{taken}; {_snapshots(settings, binary)}")


def _snapshots(settings: Settings, binary: CodexBinary | None) -> str:
    if binary is not None and not binary.can(Feature.SHELL_SNAPSHOT):
        return "this Codex runs it for every command"
    if settings.shell_snapshots != "auto":
        return f"snapshots of it are {settings.shell_snapshots} (HELMSMAN_SHELL_SNAPSHOTS)"
    return "each command runs it, unless Codex is configured to take snapshots of it"


def check_clients(settings: Settings) -> list[Check]:
    running = Running.now()
    here = {launch_words(running, shared=False), launch_words(running, shared=True)}
    found = inspect_clients(surroundings(settings), here)
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
    if os.name != "posix" or os.geteuid() != 0:
        return []
    detail = (
        "Helmsman runs as root, and so do all agents: what leaves a sandbox, or is approved, can change the system."
    )
    return [Check("User", "warning", detail, "Use an account of your own, or a container for this alone.")]


def check_git() -> Check:
    try:
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
            cwd="/",
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Check("Git", "warning", f"{git} does not run: {error}.", "Install git again.")
    return Check("Git", "ok", shown.stdout.strip() or git)
