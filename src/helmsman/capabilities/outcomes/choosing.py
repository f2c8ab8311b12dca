"""Who does it: the agents that were asked for, else those that are here and can do it; each with the reason."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from helmsman.agents.protocol import Capability
from helmsman.errors import AgentNotFound, HelmsmanError, InvalidSetting
from helmsman.tasks.model import CHOSEN, account

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from helmsman.capabilities.budgets import BudgetState
    from helmsman.capabilities.outcomes.wanted import Kind, Wanted
    from helmsman.settings import ConfigFile
    from helmsman.steering.core import Steering
    from helmsman.tasks.model import Task

TABLE: Final = "capabilities"
"""The table of `helmsman.toml` that says who does what: `[capabilities.debug] agents = ["claude", "codex"]`."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """An agent, and in words why it is this one."""

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
"""What an agent must be able to do: to be held to a sandbox and, where it changes something, to ask."""


def chosen_of(task: Task) -> list[Chosen]:
    """Who does a job, best first, as its task has it."""
    return [Chosen(agent, why) for agent, why in task.metadata.get(CHOSEN, ())]


async def choose(helm: Steering, wanted: Wanted, used_up: Sequence[BudgetState] = ()) -> list[Chosen]:
    """Whoever can do it now, best first: those after the first take its place if it cannot begin.

    Where as many turns run as there may be, or budgets are `used_up`, the reason says so.

    Raises:
        AgentNotFound: Nobody can, or not all that were asked for; the message says why each cannot.
        InvalidSetting: `[capabilities]` makes no sense.
    """
    if wanted.agents:
        names, reason = wanted.agents, "it was asked for"
    elif preferred := preferred_agents(helm.settings.files, wanted.kind):
        names, reason = preferred, f"[{TABLE}.{wanted.kind}] names it"
    else:
        default = helm.settings.default_agent
        names = (default, *(agent.name for agent in helm.agents if agent.name != default))
        reason = "it is installed"
    await helm.ledger.write()  # turns that have just ended tell whether a limit is over
    limited = await helm.ledger.registry(lambda registry: registry.limited_accounts())
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
    if before_first:  # those that come after it would not have done it anyway
        reasons = "; ".join(one.partition(". ")[0].rstrip(".") for one in passed_over[:before_first])
        chosen[0] = Chosen(chosen[0].agent, f"{chosen[0].why}; passed over: {reasons}")
    if used_up:
        spent = ", ".join(f"{state.key} ({state.used:g} of {state.budget:g})" for state in used_up)
        chosen[0] = Chosen(
            chosen[0].agent, f"{chosen[0].why}; somebody is asked first, for budgets are used up: {spent}"
        )
    return chosen


def _unavailable(passed_over: Sequence[str], *, is_all: bool) -> str:
    """Return why agents cannot do it, one line for each. Only a single agent has room for the whole reason."""
    who = "No agent is available" if is_all else "Not every agent that was asked for is available"
    if len(passed_over) == 1:
        return f"{who}: {passed_over[0]}"
    lines = (one.partition(". ")[0].rstrip(".") for one in passed_over)
    return "\n  ".join([f"{who}:", *lines, "Run `helmsman doctor` to see how to set them up."])


def preferred_agents(files: Iterable[ConfigFile], kind: Kind) -> tuple[str, ...]:
    """Whom the user's own file names for a kind of outcome. A project's counts for nothing: it would say what is run.

    Raises:
        InvalidSetting: The file makes no sense.
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
