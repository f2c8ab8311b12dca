"""Select agents for a job: the requested ones, or those that are available and capable, each with a reason.

Without a request or a preference, agents are ranked by what they achieved on this machine: jobs of the kind, in the
language of the repository, that were verified without an objection of a judge. Published results count as a few jobs, so
that a fresh installation has an order.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path, PurePosixPath
from statistics import fmean
from typing import TYPE_CHECKING, Any, Final

import anyio.to_thread

from helmsman.agents.protocol import Capability
from helmsman.base.truncate import counted
from helmsman.errors import AgentNotFound, HelmsmanError, InvalidSetting
from helmsman.git.command import find_git
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
    "loop": _WORKS,
}
"""Required capabilities: a sandbox and, for kinds that change files, questions."""


_PRIORS: Final[Mapping[str, float]] = {"codex": 0.83, "claude": 0.84}
"""Shares of solved tasks on Terminal-Bench 2.1 of the agents with their own models, GPT-5.5 and Fable 5.

As third parties reported them: codex.danielvaughan.com on 2026-06-11 (Codex 83.4 %), release 1.3.0 of
github.com/agentforce314/clawcodex on 2026-07-29 (Claude Code 83.8 %, Codex 83.1 %). They were not repeated. Of other
agents, results were found only for their models in other programs.
"""
_PRIOR_SOURCE: Final = "published results rank it (Terminal-Bench 2.1, July 2026, as reported, unchecked)"
_OTHER_PRIOR: Final = 0.6
_PRIOR_JOBS: Final = 4
"""Number of jobs that a published result counts as."""
_STEP: Final = 0.05
"""Shares that differ by less than this are alike; then cost, the default agent and time decide."""
_MOST_REPORTS: Final = 200
_EXPLORE_EVERY: Final = 10
_FEW_JOBS: Final = 3
"""Once in ten jobs, an agent with fewer jobs than this goes first."""
_LANGUAGES: Final[Mapping[str, str]] = {
    **dict.fromkeys((".js", ".mjs", ".cjs", ".jsx", ".ts", ".tsx", ".mts", ".vue"), "JavaScript"),
    **dict.fromkeys((".c", ".h", ".cc", ".cpp", ".hpp", ".cxx"), "C"),
    **dict.fromkeys((".java", ".kt", ".scala"), "Java"),
    ".py": "Python",
    ".go": "Go",
    ".rs": "Rust",
    ".rb": "Ruby",
    ".php": "PHP",
    ".cs": "C#",
    ".swift": "Swift",
}


@dataclass(slots=True)
class AgentRecord:
    """Results of an agent in jobs of one kind and language."""

    jobs: int = 0
    verified: int = 0
    costs: list[float] = field(default_factory=list[float])
    seconds: list[float] = field(default_factory=list[float])

    def add(self, candidate: Mapping[str, Any], report: Mapping[str, Any], among: int) -> None:
        """Count a candidate of a job; `among` is the number of its candidates."""
        self.jobs += 1
        self.verified += bool(candidate["verified"])
        self.seconds.append(float(report["seconds"]))
        if (cost := report.get("costUsd")) is not None:
            self.costs.append(cost / among)

    def share(self, agent: str, *, is_default: bool) -> float:
        """Return the share of jobs that the agent is expected to do, with the published result."""
        prior = _PRIORS.get(agent, _OTHER_PRIOR) + _STEP * is_default
        return (prior * _PRIOR_JOBS + self.verified) / (_PRIOR_JOBS + self.jobs)

    def in_words(self, kind: str, language: str | None) -> str:
        where = f" in {language}" if language else ""
        cost = f"{fmean(self.costs):.2f} USD and " if self.costs else ""
        done = f"{self.verified} of {self.jobs} {kind} jobs{where} were verified here"
        return f"{done}, with {cost}{fmean(self.seconds):.0f} s each"


def records_of(reports: Iterable[Mapping[str, Any]], language: str | None) -> dict[str, AgentRecord]:
    """Return the records of agents, from the reports of jobs. A job that was never begun does not count."""
    found: dict[str, AgentRecord] = {}
    for report in reports:
        if report.get("language") == language and report.get("attempts"):
            candidates = report.get("candidates") or [report]
            for one in candidates:
                if one.get("agent") and one.get("attempts"):
                    found.setdefault(one["agent"], AgentRecord()).add(one, report, len(candidates))
    return found


def by_record(
    names: Sequence[str], default: str, records: Mapping[str, AgentRecord], kind: str, language: str | None
) -> list[Chosen]:
    """Rank agents by their records, best first, with the reasons."""
    seen = {name: records.get(name, AgentRecord()) for name in names}
    # Costs count only if all are known: an agent without one would look free.
    has_costs = all(record.costs for record in seen.values())

    shares = {name: record.share(name, is_default=name == default) for name, record in seen.items()}
    best = max(shares.values())

    def rank(name: str) -> tuple[float, ...]:
        record = seen[name]
        cost = fmean(record.costs) if has_costs else 0.0
        return (
            int((best - shares[name]) / _STEP),
            cost,
            name != default,
            fmean(record.seconds or [0.0]),
        )

    ranked = sorted(names, key=rank)
    reasons = {name: one.in_words(kind, language) for name, one in seen.items() if one.jobs}
    few = sorted((name for name in ranked[1:] if seen[name].jobs < _FEW_JOBS), key=lambda name: seen[name].jobs)
    if few and sum(one.jobs for one in records.values()) % _EXPLORE_EVERY == _EXPLORE_EVERY - 1:
        reasons[few[0]] = (
            f"it is tried once in {_EXPLORE_EVERY} jobs, since it has done {seen[few[0]].jobs} of this kind"
        )
        ranked = [few[0], *(name for name in ranked if name != few[0])]
    plain = {name: "it is the default agent" if name == default else "it is installed" for name in names}
    return [Chosen(name, reasons.get(name, plain[name])) for name in ranked]


def language_of(directory: Path, state_dir: Path) -> str | None:
    """Return the language of most files of a repository; None if none is known. Blocks."""
    git = find_git(directory, state_dir)
    files = () if git is None else git.names("ls-files", "-z")
    found = Counter(filter(None, (_LANGUAGES.get(PurePosixPath(path).suffix) for path in files)))
    return found.most_common(1)[0][0] if found else None


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
    unknown: set[str] = set()
    given = wanted.agents or preferred_agents(helm.settings.files, wanted.kind)
    await helm.task_writer.write()  # turns that have just ended tell whether a limit is over
    if given:
        reason = "it was asked for" if wanted.agents else f"[{TABLE}.{wanted.kind}] names it"
        ranked = [Chosen(name, reason) for name in given]
    else:
        reports = await helm.task_writer.registry(lambda registry: registry.job_reports(wanted.kind, _MOST_REPORTS))
        look = partial(language_of, Path(wanted.directory), helm.settings.state_dir)
        language = await anyio.to_thread.run_sync(look)
        default = helm.settings.default_agent
        names = [*dict.fromkeys((default, *(agent.name for agent in helm.agents)))]
        records = records_of(reports, language)
        ranked = by_record(names, default, records, wanted.kind, language)
        unknown = {name for name in names if name not in records}
    limited = await helm.task_writer.registry(lambda registry: registry.limited_accounts())
    busy, most = helm.turns_at_work(), helm.settings.max_sessions
    running = f"{counted(busy, 'turn')} {'runs' if busy == 1 else 'run'}"
    when = "" if busy < most else f"; it begins when a turn has ended: {running}, and MAX_SESSIONS is {most}"
    # Only an agent that reports its usage can be held to a budget.
    needed = (*_NEEDED[wanted.kind], *((Capability.USAGE,) if wanted.budget_usd is not None else ()))
    chosen: list[Chosen] = []
    passed_over: list[str] = []
    before_first = 0
    for name, because in {one.agent: one.why for one in ranked}.items():
        # An agent that is missing, too old, or lacks a capability is passed over with its reason.
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
        # The agents that were passed over after the first able one would not have been used.
        before_first = before_first if chosen else len(passed_over)
        chosen.append(Chosen(name, f"{because}{version}{when}"))
    if not chosen or (wanted.agents and passed_over):
        raise AgentNotFound(_unavailable(passed_over, is_all=not chosen), agent=ranked[0].agent if ranked else "")
    if len(chosen) > 1 and chosen[0].agent in unknown:
        why = f"{chosen[0].why}; no {wanted.kind} job of it ended here yet, so {_PRIOR_SOURCE}"
        chosen[0] = Chosen(chosen[0].agent, why)
    if before_first:  # agents after the first would not have been used anyway
        # The first sentence is the reason. Advice follows in the others.
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
