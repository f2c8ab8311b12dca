"""Table of docs/appendix/permissions.md: outcome of each action of an agent, by sandbox and approval policy."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest

from helmsman import Helmsman, Session, Settings, load_settings
from helmsman.agents.acp.agent import KNOWN
from helmsman.agents.acp.profile import OwnAgent
from helmsman.agents.claude.access import access_of
from helmsman.model.events import CommandExecution
from helmsman.model.options import ASKS, WRITES, ApprovalPolicy, SandboxMode, SessionOptions
from helmsman.testing import ModelRequest, ScriptedModel, add, patch, run, say
from helmsman.testing.script import Step
from helmsman.testing.tools import SHELLS, WRITERS
from tests.claude import claude_binary, claude_environment
from tests.permission_table import AGENTS, ATTEMPTS, PAGE, POLICIES, SANDBOXES, Outcome, expected, page_with_drawing
from tests.real_agents import real_agent

SECONDS = 120
PROFILES = {
    profile.name: profile for profile in (*KNOWN, OwnAgent("own", "Own", mode=None, runs_repository_files=True))
}
HARMLESS, COMMAND, INSIDE, OUTSIDE = ATTEMPTS


def test_the_page_has_the_table() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == page_with_drawing(page), "Draw it anew: python -m tests.permission_table"


@pytest.mark.parametrize("sandbox", SANDBOXES)
@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_is_answered_as_the_table_says(sandbox: str, policy: str) -> None:
    for name in (*AGENTS, "own"):
        for unenforced in (False, True):
            options = SessionOptions(agent=name, writes=WRITES[sandbox], asks=ASKS[policy], unenforced=unenforced)
            enforced = sandbox != "danger-full-access" and not unenforced
            if name == "claude":
                access = access_of(options, enforced=enforced)
                answers, notes = {"ask": None, "refuse": "no", "allow": "yes"}[access.answers], access.notes
                assert access.enforced is enforced
            else:
                answers, notes = PROFILES[name].access(options).answers, PROFILES[name].access(options).notes
            told = set() if name == "own" else set(expected(name, sandbox, policy).values())
            assert ("asked" in told) <= (answers is None)
            assert answers != "yes" or (sandbox, policy) == ("danger-full-access", "never")
            if policy == "never":
                assert answers == ("yes" if sandbox == "danger-full-access" else "no")
            assert any("network is open" in note for note in notes) is enforced
            assert any("can write anywhere" in note for note in notes) is (
                sandbox != "danger-full-access" and unenforced
            )


@pytest.mark.anyio
@pytest.mark.matrix
@pytest.mark.rare
@pytest.mark.timeout(400)
@pytest.mark.parametrize("sandbox", SANDBOXES)
@pytest.mark.parametrize("policy", ["untrusted", "on-request", "never"])
@pytest.mark.parametrize("agent", AGENTS)
async def test_the_agents_do_what_the_table_says(
    agent: str,
    policy: ApprovalPolicy,
    sandbox: SandboxMode,
    model: ScriptedModel,
    git_repo: Path,
    tmp_path: Path,
) -> None:
    beyond = git_repo.parent  # a sandbox has the directories above, though not what else is there
    made = {HARMLESS: None, COMMAND: git_repo / "made", INSIDE: git_repo / "in.txt", OUTSIDE: beyond / "out.txt"}
    model.on(HARMLESS, _where_there_is(SHELLS, run("ls")), say("done"))
    model.on(COMMAND, _where_there_is(SHELLS, run("touch made")), say("done"))
    for attempt in (INSIDE, OUTSIDE):
        model.on(attempt, _where_there_is(WRITERS, patch(add(str(made[attempt]), "x\n"))), say("done"))
    settings, env = real_settings(agent, model, tmp_path)
    seen: dict[str, Outcome] = {}
    async with Helmsman(settings, env=env, inside=True) as helm:
        for attempt in ATTEMPTS:
            session = await helm.start(attempt, cwd=git_repo, agent=agent, sandbox=sandbox, approval_policy=policy)
            asked = await _answered_no(session)
            path = made[attempt]
            commands = [item for item in session.items if isinstance(item, CommandExecution)]
            ran = (
                any(one.status == "completed" and not one.declined for one in commands)
                if path is None
                else path.exists()
            )
            assert not (asked and ran)
            seen[attempt] = "asked" if asked else "runs" if ran else "refused"
    assert seen == expected(agent, sandbox, policy)


def real_settings(agent: str, model: ScriptedModel, tmp_path: Path) -> tuple[Settings, dict[str, str]]:
    """Settings and environment in which this agent is the real one, on the scripted model."""
    file = tmp_path / "helmsman.toml"
    if agent == "claude":
        env = claude_environment(model, tmp_path / "claude")
        file.write_text(f'claude_path = "{claude_binary()}"\n')
    else:
        real = real_agent(agent, tmp_path / "home", model)
        env = real.env
        file.write_text(f"[agents.{agent}]\ncommand = {list(real.command)}\n")
    env = {**os.environ, **env, "HELMSMAN_STATE_DIR": str(tmp_path / "state")}
    return load_settings({"detach": False}, env, tmp_path, user_file=file), env


async def _answered_no(session: Session) -> bool:
    """Return whether the turn asked a question. Questions are refused."""
    asked = False
    with anyio.fail_after(SECONDS):
        while session.state.is_running:
            if session.questions:
                asked = True
                await session.respond(session.questions[0].id, "abort")
            else:
                await session.feed.changed()
    return asked


def _where_there_is(tools: tuple[str, ...], step: Step) -> Callable[[ModelRequest], Step]:
    def choose(request: ModelRequest) -> Step:
        return step if set(tools) & set(request.tool_names) else say("There is no such tool.")

    return choose
