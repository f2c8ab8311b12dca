"""Select agents for a job: the requested ones, or those that are available and capable, each with a reason."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from helmsman.agents.protocol import Capability
from helmsman.errors import AgentNotFound, HelmsmanError, InvalidSetting
from helmsman.tasks.model import account

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from helmsman.capabilities.budgets import BudgetState
    from helmsman.capabilities.outcomes.request import Kind, Wanted
    from helmsman.settings import ConfigFile
    from helmsman.steering.core import Steering
    from helmsman.tasks.model import Task

TABLE: Final = "capabilities"
"""Table of `helmsman.toml` with preferred agents: `[capabilities.debug] agents = ["claude", "codex"]`."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """Agent and the reason for its selection."""

    agent: str
    why: str


_WORKS: Final = (Capability.ASK, Capability.SANDBOX)
_NEEDED: Final[Mapping[Kind, tuple[Capability, ...]]] = {
    "debug": _WORKS,
    "review": (Capability.SANDBOX,),
    "plan": _WORKS,
    "refactor": _WORKS,
    "test": _WORKS,
}
"""Required capabilities: a sandbox and, for kinds that change files, questions."""


def selected_agents(task: Task) -> list[Chosen]:
    """Return the agents stored in a job's task, best first."""
    return [Chosen(agent, why) for agent, why in task.chosen]


async def choose(helm: Steering, wanted: Wanted, used_up: Sequence[BudgetState] = ()) -> list[Chosen]:
    """Select the available agents, best first; later ones replace the first if it cannot begin.

    The reason mentions a turn limit that is reached and budgets that are `used_up`.

    Raises:
        AgentNotFound: No agent, or not every requested agent, is available; the message has a reason for each.
        InvalidSetting: `[capabilities]` is invalid.
    """
    if wanted.agents:
        names, reason = wanted.agents, "it was asked for"
    elif preferred := preferred_agents(helm.settings.files, wanted.kind):
        names, reason = preferred, f"[{TABLE}.{wanted.kind}] names it"
    else:
        default = helm.settings.default_agent
        names = (default, *(agent.name for agent in helm.agents if agent.name != default))
        reason = "it is installed"
    await helm.task_writer.write()  # turns that have just ended tell whether a limit is over
    limited = await helm.task_writer.registry(lambda registry: registry.limited_accounts())
    busy, most = helm.turns_at_work(), helm.settings.max_sessions
    when = "" if busy < most else f"; it begins when a turn has ended: {busy} turns run, and MAX_SESSIONS is {most}"
    needed = (*_NEEDED[wanted.kind], *((Capability.USAGE,) if wanted.budget_usd is not None else ()))
    chosen: list[Chosen] = []
    passed_over: list[str] = []
    before_first = 0
    for name in dict.fromkeys(names):
        try:
            agent = helm.agents[name]
            installed = await helm.installed(name)
            (await helm.capabilities(name)).require(*needed)
        except HelmsmanError as error:
            passed_over.append(f"{name}: {error.message}")
            continue
        waiting = limited.get(account(name, helm.settings.codex_home, helm.settings.claude_home))
        if waiting is not None:
            until = "" if waiting.resumes_at is None else f" until {waiting.resumes_at.astimezone():%Y-%m-%d %H:%M}"
            passed_over.append(f"{name}: its usage limit is reached{until}")
            continue
        version = f", {agent.title} {installed.version}" if installed is not None else ""
        is_default = not wanted.agents and name == helm.settings.default_agent
        because = "it is the default agent" if is_default and reason == "it is installed" else reason
        before_first = before_first if chosen else len(passed_over)
        chosen.append(Chosen(name, f"{because}{version}{when}"))
    if not chosen or (wanted.agents and passed_over):
        raise AgentNotFound(_unavailable(passed_over, is_all=not chosen), agent=next(iter(names), ""))
    if before_first:  # agents after the first would not have been used anyway
        reasons = "; ".join(one.partition(". ")[0].rstrip(".") for one in passed_over[:before_first])
        chosen[0] = Chosen(chosen[0].agent, f"{chosen[0].why}; passed over: {reasons}")
    if used_up:
        spent = ", ".join(f"{state.key} ({state.used:g} of {state.budget:g})" for state in used_up)
        chosen[0] = Chosen(
            chosen[0].agent, f"{chosen[0].why}; a question comes first, because budgets are used up: {spent}"
        )
    return chosen


def _unavailable(passed_over: Sequence[str], *, is_all: bool) -> str:
    """Return why agents are unavailable, one line each; a single agent gets its whole reason."""
    who = "No agent is available" if is_all else "Not every agent that was asked for is available"
    if len(passed_over) == 1:
        return f"{who}: {passed_over[0]}"
    lines = (one.partition(". ")[0].rstrip(".") for one in passed_over)
    return "\n  ".join([f"{who}:", *lines, "Run `helmsman doctor` to see how to set them up."])


def preferred_agents(files: Iterable[ConfigFile], kind: Kind) -> tuple[str, ...]:
    """Return the agents that the user's file prefers for a kind. Project files are ignored: they could select what
    runs.

    Raises:
        InvalidSetting: The file is invalid.
    """
    for file in files:
        if not file.trusted or TABLE not in file.content:
            continue
        table: Any = file.content[TABLE]
        told = table.get(kind, {}) if isinstance(table, dict) else None
        agents = told.get("agents", []) if isinstance(told, dict) else None
        if not isinstance(agents, list) or not all(isinstance(name, str) for name in agents):
            raise InvalidSetting(f'[{TABLE}.{kind}] in {file.path} can say `agents = ["codex", …]`. Correct it.')
        return tuple(agents)
    return ()
