"""What `helmsman doctor` looks at. Each check is one function; one that fails does not keep the others from running."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, Literal

import anyio

from helmsman.cli.client_files import surroundings
from helmsman.clients.launch import Running, launch_words
from helmsman.clients.overview import look_at_clients
from helmsman.codex.app_server_engine import AppServerEngine
from helmsman.codex.features import Feature, Version
from helmsman.codex.sandbox_check import check_sandbox
from helmsman.errors import HelmsmanError, InvalidSetting
from helmsman.service import Helmsman
from helmsman.settings import ensure_state_dir

if TYPE_CHECKING:
    from helmsman.codex.binary import CodexBinary
    from helmsman.settings import Settings

CheckStatus = Literal["ok", "warning", "failed"]

_OLDEST: Final = Version.parse("0.93.0")
_ACCOUNTS: Final = {"chatgpt": "ChatGPT", "apiKey": "an API key"}
_GIT_SECONDS: Final = 10
_HANDSHAKE_SECONDS: Final = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """What was looked at, how it is, and (unless it is well) what to do."""

    name: str
    status: CheckStatus
    detail: str
    fix: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    binary: CodexBinary | None
    checks: tuple[Check, ...]
    features: dict[Feature, bool] = field(default_factory=dict[Feature, bool])

    @property
    def ok(self) -> bool:
        return all(check.status != "failed" for check in self.checks)


async def examine(settings: Settings) -> Report:
    """Look at everything."""
    checks = [_settings_files(settings), _codex_home(settings)]
    binary: CodexBinary | None = None
    async with Helmsman(replace(settings, engine="app-server", detach=False)) as helm:
        try:
            binary = await helm.codex()
        except HelmsmanError as error:
            checks.append(Check(name="Codex", status="failed", detail=error.message))
        else:
            checks.append(_version(binary))
            engine = await _open_engine(helm)
            if isinstance(engine, HelmsmanError):
                checks.append(_no_handshake(engine))
            else:
                checks += [_handshake(binary, engine), await _account(engine)]
            checks.append(await _sandbox(binary))
    checks += [_state_directory(settings), _git(), *_clients(settings)]
    features = {} if binary is None else {feature: binary.can(feature) for feature in Feature}
    return Report(binary=binary, checks=tuple(checks), features=features)


def _settings_files(settings: Settings) -> Check:
    files = ", ".join(str(file.path) for file in settings.files)
    return Check(name="Settings", status="ok", detail=files or "defaults and environment (there is no helmsman.toml)")


def _codex_home(settings: Settings) -> Check:
    home = settings.codex_home
    if not home.exists() and home.name == ".codex" and home.parent.is_dir():
        return Check(name="Codex home", status="ok", detail=f"{home} (Codex makes it when it first starts)")
    if not home.exists():
        return Check(
            name="Codex home",
            status="failed",
            detail=f"{home} does not exist.",
            fix=f"Make it (`mkdir {home}`), or run `codex` once, or set CODEX_HOME.",
        )
    if not os.access(home, os.R_OK | os.W_OK | os.X_OK):
        return Check(
            name="Codex home",
            status="failed",
            detail=f"{home} cannot be written to.",
            fix="Mend its permissions, or set CODEX_HOME to a directory of your own.",
        )
    return Check(name="Codex home", status="ok", detail=str(home))


def _version(binary: CodexBinary) -> Check:
    detail = f"{binary.version} at {binary.path}"
    if binary.version < _OLDEST:
        return Check(
            name="Codex",
            status="warning",
            detail=f"{detail}, older than any that Helmsman is tested with.",
            fix=f"Update it to {_OLDEST} or newer.",
        )
    return Check(name="Codex", status="ok", detail=detail)


async def _open_engine(helm: Helmsman) -> AppServerEngine | HelmsmanError:
    """The engine, or why there is none."""
    try:
        with anyio.fail_after(_HANDSHAKE_SECONDS):
            engine = await helm.engine()
    except HelmsmanError as error:
        return error
    except TimeoutError:
        return HelmsmanError(f"no answer within {_HANDSHAKE_SECONDS} s. Run `codex app-server` by hand to see why.")
    assert isinstance(engine, AppServerEngine)
    return engine


def _no_handshake(error: HelmsmanError) -> Check:
    lines = str(error.details.get("stderr") or "").splitlines()
    said = next((line for line in lines if line.startswith("Error")), None)  # what follows it may be a backtrace
    if said is None:
        return Check(name="Handshake", status="failed", detail=error.message)
    return Check(
        name="Handshake",
        status="failed",
        detail=f"the app-server does not start: {said.rstrip('.')}.",
        fix="Mend that, then run `codex app-server` by hand to see that it stays up.",
    )


def _handshake(binary: CodexBinary, engine: AppServerEngine) -> Check:
    info = engine.info
    said = binary.version if info is None else info.version
    if said != binary.version:
        return Check(
            name="Handshake",
            status="warning",
            detail=f"the app-server says it is {said}, the binary {binary.version}.",
            fix="Check that CODEX_CLI_PATH does not name a wrapper of another Codex.",
        )
    return Check(name="Handshake", status="ok", detail="the app-server answers")


async def _account(engine: AppServerEngine) -> Check:
    try:
        account = await engine.api.account()
    except HelmsmanError as error:
        return Check(name="Account", status="warning", detail=error.message)
    if account.kind is not None:
        plan = f", plan {account.plan}" if account.plan else ""
        who = f" as {account.email}" if account.email else ""
        how = _ACCOUNTS.get(account.kind, account.kind)
        return Check(name="Account", status="ok", detail=f"logged in with {how}{who}{plan}")
    if account.requires_login:
        return Check(name="Account", status="failed", detail="not logged in.", fix="Run `codex login`.")
    return Check(name="Account", status="ok", detail="no login needed: Codex is configured for a provider of its own")


async def _sandbox(binary: CodexBinary) -> Check:
    sandbox = await check_sandbox(binary)
    if sandbox.works is None:
        return Check(name="Sandbox", status="warning", detail=sandbox.detail)
    detail = sandbox.detail if sandbox.works else f"{sandbox.detail}."
    return Check(name="Sandbox", status="ok" if sandbox.works else "failed", detail=detail, fix=sandbox.fix)


def _state_directory(settings: Settings) -> Check:
    try:
        path = ensure_state_dir(settings.state_dir)
    except InvalidSetting as error:
        return Check(name="State", status="failed", detail=error.message)
    if not os.access(path, os.W_OK | os.X_OK):
        return Check(
            name="State",
            status="failed",
            detail=f"{path} cannot be written to.",
            fix="Mend its permissions, or set HELMSMAN_STATE_DIR to another directory.",
        )
    return Check(name="State", status="ok", detail=str(path))


def _clients(settings: Settings) -> list[Check]:
    running = Running.now()
    here = {launch_words(running, shared=False), launch_words(running, shared=True)}
    found = look_at_clients(surroundings(settings), here)
    if not found:
        return [Check(name="Clients", status="ok", detail="none runs Helmsman yet (`helmsman install CLIENT` adds it)")]
    return [
        Check(
            name=finding.client.title,
            status="warning" if finding.fix else "ok",
            detail=finding.detail,
            fix=finding.fix,
        )
        for finding in found
    ]


def _git() -> Check:
    git = shutil.which("git")
    if git is None:
        return Check(
            name="Git",
            status="warning",
            detail="not found; Codex works without it, but worktrees and the exec engine's check of a repository do not.",
            fix="Install git.",
        )
    try:
        shown = subprocess.run(
            [git, "--version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=_GIT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Check(name="Git", status="warning", detail=f"{git} does not run: {error}.", fix="Install git again.")
    return Check(name="Git", status="ok", detail=shown.stdout.strip() or git)
