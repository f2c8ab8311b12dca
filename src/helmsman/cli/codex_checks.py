"""Checks of Codex for `helmsman doctor`: version, handshake, account, MCP servers, sandbox, detaching."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING, Final

import anyio

from helmsman.agents.codex.access.sandbox_check import check_sandbox
from helmsman.agents.codex.detached.engines import can_detach, is_shared, why_bound
from helmsman.agents.codex.engine.app_server_engine import AppServerEngine
from helmsman.agents.codex.features import Feature, Version
from helmsman.base.json_values import mapping
from helmsman.base.peers import can_tell_sandboxed
from helmsman.base.programs import available
from helmsman.cli.check_report import Check
from helmsman.cli.output import counted
from helmsman.errors import HelmsmanError, InvalidSetting
from helmsman.settings import budget_of
from helmsman.tasks.prices import Prices

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from helmsman.agents.codex.binary import CodexBinary
    from helmsman.agents.codex.wire.mcp_servers import McpServer
    from helmsman.service import Helmsman
    from helmsman.settings import Settings

_OLDEST: Final = Version.parse("0.93.0")
_ACCOUNTS: Final = {"chatgpt": "ChatGPT", "apiKey": "an API key"}
_HANDSHAKE_SECONDS: Final = 60

_SERVERS_SECONDS: Final = 60.0
"""Codex starts all MCP servers in parallel and waits for each up to that server's limit, usually 10 to 30 seconds."""

_ERROR_LENGTH: Final = 160
_TYPE_NAMES: Final = re.compile(r"Send message error Transport \[[^\]]*\] error: ")
"""Internal type names that Codex repeats in its errors about MCP servers."""


async def check_codex(helm: Helmsman, binary: CodexBinary, settings: Settings) -> list[Check]:
    """Run all checks for an installed Codex."""
    checks = [check_version(binary, settings.codex_remote)]
    engine = await _open_engine(helm)
    if isinstance(engine, HelmsmanError):
        checks.append(no_handshake(engine))
    else:
        checks.append(_handshake(binary, engine))
        unread = await _unread_configuration(engine)
        if unread is not None:  # account, servers and model cannot be read either
            checks.append(unread)
        else:
            checks += [await _account(engine), *await _mcp_servers(engine)]
            checks += check_budget(settings, settings.default_model or await _usual_model(engine))
    if binary.remote is not None:  # its sandbox and lifetime belong to the process that started it
        return checks
    return [*checks, await _sandbox(binary), check_detaching(binary, settings)]


def check_version(binary: CodexBinary, remote: str | None = None) -> Check:
    detail = f"{binary.version} at {remote or binary.path}"
    if binary.version < _OLDEST:
        detail += ", older than any that Helmsman is tested with."
        fix = f"Update it to {_OLDEST} or newer."
        return Check("Codex", "warning", detail, fix)
    return Check("Codex", "ok", detail)


def to_type(binary: CodexBinary) -> str:
    """Return the command a user types to run Codex. The Codex of the PyPI wheel is not on PATH."""
    return "codex" if available("codex") else shlex.quote(str(binary.path))


async def _open_engine(helm: Helmsman) -> AppServerEngine | HelmsmanError:
    """Return the engine, or the error that prevents its start."""
    try:
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
    if account.requires_login:
        return Check("Account", "failed", "not logged in.", "Run `helmsman login`.")
    return Check("Account", "ok", "no login needed: Codex is configured for a provider of its own")


async def _usual_model(engine: AppServerEngine) -> str | None:
    """Return the default model, if Codex reports one."""
    try:
        if isinstance(model := (await engine.api.config()).values.get("model"), str):
            return model
        return next((model.id for model in await engine.models() if model.is_default), None)
    except HelmsmanError:
        return None


def check_budget(settings: Settings, model: str | None) -> list[Check]:
    """Check that spending can be counted against the configured budgets."""
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
    on = [server for server in servers if not _is(entries[server.name], "enabled", False)]
    well = [
        f"{server.name} ({counted(server.tools, 'tool')})" for server in on if server.answers and not server.needs_login
    ]
    checks = [_unwell(server, codex, required=_is(entries[server.name], "required", True)) for server in on]
    if well:
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
    if server.answers is None:
        detail = "shows no tools; this Codex does not say whether it has none or does not start."
        return Check(name, "warning", detail, fix)
    detail = f"does not start: {_short(server.error)}." if server.error else "does not start."
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
        return Check("Sandbox", "warning", f"{sandbox.detail}.", fix)
    detail = sandbox.detail if sandbox.works else f"{sandbox.detail.rstrip('.')}."
    return Check("Sandbox", "ok" if sandbox.works else "failed", detail, sandbox.fix)


def check_detaching(binary: CodexBinary, settings: Settings) -> Check:
    """Check whether work continues after the process that started it exits."""
    if not settings.detach:
        detail = "switched off (HELMSMAN_DETACH): work ends with the process that started it"
        return Check("Detaching", "ok", detail)
    if not can_detach(binary):
        fix = "Get a newer Codex, or set HELMSMAN_DETACH=0 if that is all right."
        return Check("Detaching", "warning", why_bound(binary) or "", fix)
    survives = "work and open questions survive the process that started them"
    if is_shared(binary):
        return Check("Detaching", "ok", survives)
    if not can_tell_sandboxed():
        detail = (
            f"work continues without you, but not in a sandbox with network access: commands of Codex {binary.version} "
            "could reach the engine, as this system does not tell them apart."
        )
        fix = f"Get Codex {Feature.GUARDED_SOCKET.since} or newer, or set HELMSMAN_DETACH=0 for such sessions."
        return Check("Detaching", "warning", detail, fix)
    shared = f"{Feature.GUARDED_SOCKET.versions} can share one"
    return Check("Detaching", "ok", f"{survives}; each process has an engine of its own ({shared})")
