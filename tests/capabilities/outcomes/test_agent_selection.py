"""Tests of the choice of agents: by what they achieved, and without those whose usage limit is reached."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest

from helmsman.base.structs import replace
from helmsman.capabilities.outcomes.agent_selection import by_record, choose, language_of, records_of
from helmsman.capabilities.outcomes.request import Wanted
from helmsman.errors import AgentNotFound
from helmsman.service import HelmsmanService
from helmsman.sessions.session import Session
from helmsman.settings import Settings
from helmsman.testing import CodexHome, ScriptedModel, fail, git, say

SECONDS = 60


def wanted(directory: Path) -> Wanted:
    return Wanted(kind="debug", request="it does not work", directory=str(directory), more={})


def job(agent: str, *, verified: bool = True, language: str = "Python", cost: float | None = None) -> dict[str, Any]:
    candidate = {"agent": agent, "verified": verified, "attempts": 1}
    return {**candidate, "language": language, "seconds": 60.0, "costUsd": cost, "candidates": [candidate]}


def order(reports: list[dict[str, Any]], names: Sequence[str] = ("codex", "claude", "qwen")) -> list[tuple[str, str]]:
    ranked = by_record(names, "codex", records_of(reports, "Python"), "debug", "Python")
    return [(one.agent, one.why) for one in ranked]


def test_without_a_record_the_default_agent_comes_first_and_published_results_rank_the_others() -> None:
    assert order([], ("qwen", "claude", "codex")) == [
        ("codex", "it is the default agent"),
        ("claude", "it is installed"),
        ("qwen", "it is installed"),
    ]


def test_an_agent_that_achieved_more_in_the_language_comes_first_with_the_reason() -> None:
    reports = [job("codex", verified=False)] * 4 + [job("claude", cost=0.5)] * 6
    assert order(reports)[0] == (
        "claude",
        "6 of 6 debug jobs in Python were verified here, with 0.50 USD and 60 s each",
    )
    elsewhere = [{**one, "language": "Go"} for one in reports]
    assert order(elsewhere)[0][0] == "codex", "another language says nothing"


def test_of_agents_that_are_alike_the_cheaper_one_comes_first() -> None:
    reports = [job("codex", cost=0.9)] * 20 + [job("claude", cost=0.2)] * 20
    assert [agent for agent, _ in order(reports, ("codex", "claude"))] == ["claude", "codex"]


def test_an_agent_with_few_jobs_is_tried_once_in_ten() -> None:
    reports = [job("codex")] * 9
    assert order(reports)[0] == ("claude", "it is tried once in 10 jobs, since it has done 0 of this kind")
    assert all(order([job("codex")] * count)[0][0] == "codex" for count in (1, 5, 8, 10, 11, 18))


def test_candidates_count_each_and_jobs_that_never_began_do_not() -> None:
    two = {**job("codex", cost=1.0), "candidates": [job("codex"), job("claude", verified=False)]}
    found = records_of([two, {**job("codex"), "attempts": 0}], "Python")
    assert {name: (one.jobs, one.verified, one.costs) for name, one in found.items()} == {
        "codex": (1, 1, [0.5]),
        "claude": (1, 0, [0.5]),
    }


@pytest.mark.needs_git
def test_the_language_is_that_of_most_files(git_repo: Path, tmp_path: Path) -> None:
    assert language_of(git_repo, tmp_path) is None
    for name in ("a.js", "b.ts", "c.py"):
        (git_repo / name).touch()
    git(git_repo, "add", "--all")
    assert language_of(git_repo, tmp_path) == "JavaScript"
    assert language_of(tmp_path, tmp_path) is None


async def waiting(helm: HelmsmanService, directory: Path) -> Session:
    session = await helm.start("too much", cwd=directory, on_limit="wait")
    with anyio.fail_after(SECONDS):
        while session.resumes_at is None:
            await anyio.sleep(0.02)
    return session


@pytest.mark.anyio
async def test_a_turn_that_succeeds_shows_that_the_usage_limit_is_over(
    settings: Settings, codex_home: CodexHome, model: ScriptedModel, git_repo: Path, tmp_path: Path
) -> None:
    model.on("too much", fail(429, error_type="usage_limit_reached", resets_at=4_000_000_000))
    model.on("hello", say("Hello."))
    async with HelmsmanService(settings, env=codex_home.env) as helm:
        done = await helm.start("hello", cwd=git_repo)
        await done.wait(timeout=SECONDS)
        await waiting(helm, git_repo)
        with pytest.raises(AgentNotFound) as refused:
            await choose(helm, wanted(git_repo))
        first, *lines = str(refused.value.message).splitlines()
        assert first == "No agent is available:"
        assert lines[0].startswith("  codex: its usage limit is reached until 2096-")
        assert len(lines) == len(list(helm.agents)) + 1, "one line for each, and what to do"
        assert max(map(len, lines)) <= 120
        other = tmp_path / "other home"
        other.mkdir()
        async with HelmsmanService(replace(settings, codex_home=other), env=codex_home.env) as another_account:
            assert [one.agent for one in await choose(another_account, wanted(git_repo))] == ["codex"]
        again = await helm.start("hello", cwd=git_repo)
        await again.wait(timeout=SECONDS)
        assert [one.agent for one in await choose(helm, wanted(git_repo))] == ["codex"]
        await waiting(helm, git_repo)
        with pytest.raises(AgentNotFound, match="usage limit is reached"):
            await choose(helm, wanted(git_repo))
