"""All checks of `helmsman doctor`, in display order. A failed check does not stop the others."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from helmsman.agents.codex.agent import agent_in_use
from helmsman.agents.codex.binary import app_server_capabilities
from helmsman.agents.codex.detached.engines import can_detach
from helmsman.base.structs import replace
from helmsman.base.unknown_names import nearest
from helmsman.cli import place_checks
from helmsman.cli.check_report import Check, Report
from helmsman.cli.codex_checks import check_codex
from helmsman.errors import AgentNotFound, HelmsmanError, ProgramRefused
from helmsman.model.options import DEFAULT_AGENT
from helmsman.service import Helmsman

if TYPE_CHECKING:
    from helmsman.agents.codex.binary import CodexBinary
    from helmsman.agents.protocol import Capabilities
    from helmsman.settings import Settings


async def check_other_agents(helm: Helmsman, settings: Settings) -> list[Check]:
    """Check the version, login and sandbox of each other agent."""
    checks: list[Check] = []
    if settings.default_agent not in {agent.name for agent in helm.agents}:
        names = [agent.name for agent in helm.agents]
        meant = nearest(settings.default_agent, names) or DEFAULT_AGENT
        detail = f"default_agent is {settings.default_agent!r:.80}, and there is no such agent."
        checks.append(Check("Agent", "failed", detail, f"Set it to {meant}, or to one of: {', '.join(sorted(names))}."))
    for agent in helm.agents:
        if agent.name == DEFAULT_AGENT:
            continue
        is_default = agent.name == settings.default_agent
        try:
            installed = await helm.installed(agent.name)
        except AgentNotFound as error:  # other agents are optional
            checks.append(Check(agent.title, "failed" if is_default else "ok", error.message))
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
        *place_checks.check_settings(settings),
        place_checks.check_rules(settings, Path.cwd()),
        place_checks.check_codex_home(settings),
    ]
    binary: CodexBinary | None = None
    capabilities: Capabilities | None = None
    # Disable shell snapshots: this Codex exits before a snapshot of the login shell would finish.
    async with Helmsman(replace(settings, engine="app-server", detach=False, shell_snapshots="off")) as helm:
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
    checks += place_checks.check_state(settings)
    if (shell := place_checks.check_login_shell(settings, binary, os.environ)) is not None:
        checks.append(shell)
    checks += [*place_checks.check_user(), place_checks.check_git(), *place_checks.check_installation()]
    checks += place_checks.check_clients(settings)
    return Report(binary=binary, checks=tuple(checks), capabilities=capabilities)
