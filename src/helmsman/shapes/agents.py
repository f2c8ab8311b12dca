"""Agents as front ends show them: installed version, login and capabilities."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from helmsman.base.json_values import present
from helmsman.errors import HelmsmanError

if TYPE_CHECKING:
    from helmsman.capabilities.service import AgentService


async def about_agent(helm: AgentService, name: str) -> dict[str, Any]:
    """Describe an agent's installation and capabilities, or the problem that prevents its use."""
    about: dict[str, Any] = {"agent": name, "title": helm.agents.title(name)}
    if name == helm.settings.default_agent:
        about["isDefault"] = True
    try:
        installed = await helm.installed(name)
        can = await helm.capabilities(name)
    except HelmsmanError as error:
        # One broken agent must not hide the others.
        return about | {"installed": False, "problem": error.message}
    program = (
        {}
        if installed is None
        else present({"version": installed.version, "path": installed.path, "login": installed.login})
    )
    shown = can.as_dict()
    lacks = {capability.word: capability.text for capability in can.lacking}
    return about | {"installed": True, **program, "can": shown["can"], "cannot": shown["cannot"], "lacks": lacks}


async def all_agents(helm: AgentService) -> list[dict[str, Any]]:
    """Describe all agents: the default agent first, then the installed ones."""
    found = [await about_agent(helm, agent.name) for agent in helm.agents]
    # Sorting is stable: within each group the order of the configuration stays.
    return sorted(found, key=lambda one: (not one.get("isDefault"), not one["installed"]))
