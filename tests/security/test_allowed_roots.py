"""Allowed roots hold against the policy in force, whichever way it came about, on every Codex.

What counts is what a command can do, so each story ends with Codex trying to write a file outside the roots.
"""

from __future__ import annotations

import json
import subprocess
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from helmsman.agents.codex.agent import agent_in_use
from helmsman.agents.codex.features import Feature, Version
from helmsman.base.structs import replace
from helmsman.errors import InvalidInput
from helmsman.mcp.server import build_server
from helmsman.model.options import ReviewTarget
from helmsman.service import HelmsmanService
from helmsman.settings import Settings
from helmsman.testing import CodexHome, ScriptedModel, run, say, spawn_agent, wait_agents
from mcp import Client
from tests.hub_service import hub_service
from tests.security.roots import SECONDS, finished, is_refused


@dataclass(frozen=True)
class HubConnector:
    """A way for commands to write outside: by Codex's configuration, by the caller's options, or by a file.

    `{outside}` stands for the place, `{home}` for Codex's home. `refused` is False where the session runs, and stays inside;
    None where that depends on the engine.
    """

    configured: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    refused: bool | None = True

    def at(self, **places: Path) -> HubConnector:
        text = json.dumps([self.configured, self.options, self.files])
        for name, place in places.items():
            text = text.replace("{" + name + "}", str(place))
        configured, options, files = json.loads(text)
        return HubConnector(configured, options, files, self.refused)

    def prepare(self, home: CodexHome) -> None:
        home.configure(**self.configured)
        for name, text in self.files.items():
            Path(name).parent.mkdir(parents=True, exist_ok=True)
            Path(name).write_text(text, encoding="utf-8")

    def clean_up(self) -> None:
        for name in self.files:
            Path(name).unlink()
            with suppress(OSError):
                Path(name).parent.rmdir()  # an older Codex minds an empty directory of rules, too


TRUSTED = {"projects": {"{repository}": {"trust_level": "trusted"}}}


WRITES_THERE = {"sandbox_mode": "workspace-write", "sandbox_workspace_write": {"writable_roots": ["{outside}"]}}


PERMISSIONS = {"mine": {"filesystem": {":root": "read", "{outside}": "write"}}}


WAYS = {
    "full access, asked for": HubConnector(options={"sandbox": "danger-full-access"}),
    "no sandbox and no questions": HubConnector(options={"dangerously_bypass_approvals_and_sandbox": True}),
    "full access in config": HubConnector(options={"config": {"sandbox_mode": "danger-full-access"}}),
    "full access as a permission profile": HubConnector(
        options={"config": {"default_permissions": ":danger-full-access"}}
    ),
    "a permission profile inline": HubConnector(
        options={"config": {"default_permissions": "mine", "permissions": PERMISSIONS}},
    ),
    "a permission profile inline, by dotted keys": HubConnector(
        options={"config": {"default_permissions": "mine", "permissions.mine": PERMISSIONS["mine"]}},
    ),
    "a permission profile of the user's, chosen in config": HubConnector(
        configured={"default_permissions": ":workspace", "permissions": PERMISSIONS},
        options={"config": {"default_permissions": "mine"}},
    ),
    "a permission profile that is none": HubConnector(
        options={"config": {"default_permissions": {"filesystem": "write"}}}
    ),
    "writable roots in config": HubConnector(options={"config": WRITES_THERE}),
    "writable roots in config, by a dotted key": HubConnector(
        options={"sandbox": "workspace-write", "config": {"sandbox_workspace_write.writable_roots": ["{outside}"]}},
    ),
    "writable roots in config, through a link": HubConnector(
        options={
            "sandbox": "workspace-write",
            "config": {"sandbox_workspace_write.writable_roots": ["{repository}/link"]},
        },
    ),
    "writable roots in config, upwards": HubConnector(
        options={
            "sandbox": "workspace-write",
            "config": {"sandbox_workspace_write.writable_roots": ["{repository}/../outside"]},
        },
    ),
    "the user's own full access": HubConnector(configured={"sandbox_mode": "danger-full-access"}),
    "the user's own writable roots": HubConnector(configured=WRITES_THERE),
    "the user's own writable roots, with the sandbox asked for": HubConnector(
        configured=WRITES_THERE, options={"sandbox": "workspace-write"}
    ),
    "the user's own permission profile": HubConnector(
        configured={"default_permissions": "mine", "permissions": PERMISSIONS}
    ),
    "the user's own full access as a permission profile": HubConnector(
        configured={"default_permissions": ":danger-full-access"}
    ),
    "temporary directories": HubConnector(options={"sandbox": "workspace-write"}, refused=False),
    "temporary directories, included by config": HubConnector(
        options={
            "sandbox": "workspace-write",
            "config": {"sandbox_workspace_write": {"exclude_slash_tmp": False, "exclude_tmpdir_env_var": False}},
        },
        refused=False,
    ),
    "writable roots of the user that the caller takes away": HubConnector(
        configured=WRITES_THERE,
        options={"config": {"sandbox_workspace_write": {"writable_roots": []}}},
        refused=False,
    ),
    "Codex's own rules": HubConnector(
        files={"{home}/rules/default.rules": 'prefix_rule(pattern=["touch"], decision="allow")\n'},
        options={"sandbox": "workspace-write"},
    ),
    "Codex's own rules, by default": HubConnector(
        files={"{home}/rules/more.rules": 'x = ["touch"]\nprefix_rule(pattern=x)\n'},
        options={"sandbox": "read-only"},
    ),
    "the configuration of a repository that the user trusts": HubConnector(
        configured=TRUSTED,
        files={"{repository}/.codex/config.toml": 'sandbox_mode = "danger-full-access"\n'},
        refused=None,  # exec is told all of it, whatever the repository says
    ),
    "writable roots of a repository that the user trusts": HubConnector(
        configured=TRUSTED,
        files={"{repository}/.codex/config.toml": '[sandbox_workspace_write]\nwritable_roots = ["{outside}"]\n'},
        options={"sandbox": "workspace-write"},
        refused=None,
    ),
    "rules of a repository that the user trusts": HubConnector(
        configured=TRUSTED,
        files={"{repository}/.codex/rules/its.rules": 'prefix_rule(pattern=["touch"], decision="allow")\n'},
    ),
    "an MCP server in config": HubConnector(
        options={"config": {"mcp_servers": {"x": {"command": "touch", "args": ["{outside}/made.txt"]}}}}
    ),
    "a notification program in config": HubConnector(options={"config": {"notify": ["touch", "{outside}/made.txt"]}}),
    "a repository's configuration, trusted by the caller": HubConnector(options={"trust_repository": True}),
    "a model provider's own program": HubConnector(options={"config": {"model_providers.x.auth.command": "touch"}}),
}


@pytest.mark.matrix(changed_in=["0.145.0"])
@pytest.mark.parametrize("engine", ["app-server", "exec"])
@pytest.mark.anyio
async def test_no_way_leads_outside(
    engine: Any, narrow: Settings, codex_home: CodexHome, git_repo: Path, outside: Path, made: Path
) -> None:
    (git_repo / "link").symlink_to(outside)
    plain = codex_home.config_path.read_bytes()
    inside = git_repo / "inside.txt"
    wrong: dict[str, tuple[bool, bool, bool]] = {}
    async with HelmsmanService(replace(narrow, engine=engine), env=codex_home.env) as helm:
        for name, general in WAYS.items():
            way = general.at(outside=outside, repository=git_repo, home=codex_home.path)
            way.prepare(codex_home)
            refused = await is_refused(helm.start("touch", cwd=git_repo, **way.options))
            seen = (refused, inside.exists(), made.exists())
            if made.exists() or inside.exists() == refused or way.refused not in (refused, None):
                wrong[name] = seen
            codex_home.config_path.write_bytes(plain)
            way.clean_up()
            for file in (inside, made):
                file.unlink(missing_ok=True)
    assert wrong == {}


@pytest.mark.matrix(changed_in=["0.145.0"])
@pytest.mark.anyio
@pytest.mark.parametrize("engine", ["app-server", "exec"])
async def test_a_profile_leads_nowhere_else(
    engine: Any,
    narrow: Settings,
    codex_home: CodexHome,
    codex_version: tuple[int, int, int],
    git_repo: Path,
    made: Path,
) -> None:
    if Feature.PROFILE_IN_CONFIG.is_in(Version(*codex_version)):
        codex_home.configure(profiles={"wide": {"sandbox_mode": "danger-full-access"}})
    else:
        wide = codex_home.path / "wide.config.toml"
        wide.write_text('sandbox_mode = "danger-full-access"\n', encoding="utf-8")
    async with HelmsmanService(replace(narrow, engine=engine), env=codex_home.env) as helm:
        await is_refused(helm.start("touch", cwd=git_repo, profile="wide"))
        assert not made.exists()
        await finished(await helm.start("touch", cwd=git_repo, profile="wide", sandbox="workspace-write"))
    assert (git_repo / "inside.txt").exists()
    assert not made.exists()


@pytest.mark.anyio
async def test_defaults_for_all_sessions_lead_nowhere_else(
    narrow: Settings, codex_home: CodexHome, git_repo: Path, outside: Path, made: Path
) -> None:
    for config in (
        {"sandbox_mode": "danger-full-access"},
        {"sandbox_mode": "workspace-write", "sandbox_workspace_write.writable_roots": [str(outside)]},
        {"notify": ["touch", str(made)]},
        {"mcp_servers.x.command": "touch"},
    ):
        async with HelmsmanService(replace(narrow, default_config=config), env=codex_home.env) as helm:
            assert await is_refused(helm.start("touch", cwd=git_repo)), config
    texts = {"sandbox_mode": '"danger-full-access"', "notify": f'["touch", "{made}"]'}
    async with HelmsmanService(narrow, env=codex_home.env) as helm:
        for key, text in texts.items():
            assert await is_refused(helm.start("touch", cwd=git_repo, config={key: text})), key
    assert not made.exists()


@pytest.mark.anyio
async def test_only_the_user_reviews_commands_that_leave_the_sandbox(
    narrow: Settings, codex_home: CodexHome, model: ScriptedModel, git_repo: Path
) -> None:
    codex_home.configure(approvals_reviewer="auto_review")
    async with HelmsmanService(narrow, env=codex_home.env) as helm:
        with pytest.raises(InvalidInput, match="approvals_reviewer"):
            await helm.start("touch", cwd=git_repo)
    assert model.requests == []


@pytest.mark.anyio
async def test_sub_agents_stay_inside(
    narrow: Settings, codex_home: CodexHome, model: ScriptedModel, git_repo: Path, made: Path
) -> None:
    model.on("parent", spawn_agent("touch"), wait_agents(), say("done"))
    async with HelmsmanService(narrow, env=codex_home.env) as helm:
        await finished(await helm.start("parent", cwd=git_repo, sandbox="workspace-write", approval_policy="never"))
        with anyio.fail_after(SECONDS):
            await model.wait_for_request(lambda request: bool(request.tool_outputs) and "touch" in request.user_texts)
    assert not made.exists()


@pytest.mark.needs_git
@pytest.mark.anyio
async def test_a_worktree_can_be_worked_in_and_nothing_beside_it(
    narrow: Settings, codex_home: CodexHome, model: ScriptedModel, git_repo: Path, outside: Path
) -> None:
    model.on("touch", run(f"touch here.txt; touch {outside}/made.txt"), say("tried"))
    async with HelmsmanService(narrow, env=codex_home.env) as helm:
        session = await finished(await helm.start("touch", cwd=git_repo, worktree=True, sandbox="workspace-write"))
        assert session.worktree is not None
        assert (session.worktree.directory / "here.txt").exists()
    assert not (outside / "made.txt").exists()


@pytest.mark.anyio
async def test_a_directory_that_became_a_link_is_looked_at_again_before_each_turn(
    narrow: Settings, codex_home: CodexHome, model: ScriptedModel, git_repo: Path, outside: Path
) -> None:
    model.on("touch", run("touch made.txt"), say("tried"))
    model.otherwise(say("ok"))
    place = git_repo / "sub"
    place.mkdir()
    async with HelmsmanService(narrow, env=codex_home.env) as helm:
        session = await finished(await helm.start("hello", cwd=place, sandbox="workspace-write"))
        place.rmdir()
        place.symlink_to(outside)
        with pytest.raises(InvalidInput, match="outside the allowed roots"):
            await helm.say(session.id, "touch")
    assert not (outside / "made.txt").exists()


@pytest.mark.anyio
async def test_a_refused_message_does_not_block_the_next_one(
    narrow: Settings, codex_home: CodexHome, git_repo: Path, outside: Path, made: Path
) -> None:
    async with HelmsmanService(narrow, env=codex_home.env) as helm:
        session = await finished(await helm.start("hello", cwd=git_repo))
        codex_home.configure(sandbox_workspace_write={"writable_roots": [str(outside)]})
        with pytest.raises(InvalidInput, match="outside the allowed roots"):
            await helm.say(session.id, "touch", sandbox="workspace-write")
        assert (await finished(await helm.say(session.id, "hello"))).result == "ok"
        assert (await finished(await helm.say(session.id, "touch"))).result == "tried"
    assert not (git_repo / "inside.txt").exists()  # it is read-only, as it was
    assert not made.exists()


@pytest.mark.matrix
@pytest.mark.anyio
async def test_temporary_directories_are_writable_where_they_are_allowed(
    narrow: Settings, codex_home: CodexHome, git_repo: Path, made: Path
) -> None:
    wider = replace(narrow, allowed_roots=(git_repo.resolve(), Path("/tmp").resolve()))
    async with HelmsmanService(wider, env=codex_home.env) as helm:
        await finished(await helm.start("touch", cwd=git_repo, sandbox="workspace-write"))
    assert made.exists()


# --- sessions of others ----------------------------------------------------------------------------------------------


@pytest.mark.matrix
@pytest.mark.anyio
async def test_a_session_started_with_full_access_continues_inside_the_roots(
    codex_binary: Path, narrow: Settings, codex_home: CodexHome, git_repo: Path, outside: Path, made: Path
) -> None:
    command = [str(codex_binary), "exec", "--json", "--sandbox=workspace-write", f"--add-dir={outside}", "touch"]
    told = await anyio.to_thread.run_sync(
        lambda: subprocess.run(
            command,
            cwd=git_repo,
            env=codex_home.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            encoding="utf-8",
            timeout=SECONDS,
            check=True,
        )
    )
    assert made.exists()
    made.unlink()
    session_id = next(json.loads(line)["thread_id"] for line in told.stdout.splitlines() if "thread.started" in line)
    async with HelmsmanService(narrow, env=codex_home.env) as helm:
        for going_on in (helm.say(session_id, "touch"), helm.fork(session_id, "touch")):
            assert (await finished(await going_on)).result == "tried"
    assert not made.exists()


@pytest.fixture
def detached(settings: Settings, detached_engines: Path) -> Settings:
    assert detached_engines == settings.state_dir
    return replace(settings, detach=True)


@pytest.mark.matrix
@pytest.mark.anyio
async def test_a_session_that_another_client_opened_wider_continues_inside(
    detached: Settings, narrow: Settings, codex_home: CodexHome, git_repo: Path, outside: Path, made: Path
) -> None:
    """Codex (0.105 and newer) keeps the roots of a loaded thread, and ignores those of a client that resumes it."""
    codex_home.configure(sandbox_workspace_write={"writable_roots": [str(outside)]})
    async with hub_service(detached, codex_home.env) as wide:
        session = await finished(await wide.start("touch", cwd=git_repo, sandbox="workspace-write"))
        assert made.exists()
        made.unlink()
        codex_home.configure(sandbox_workspace_write={"writable_roots": []})
        async with HelmsmanService(replace(narrow, detach=True), env=codex_home.env, shared=wide._shared) as helm:
            binary, target = (
                await agent_in_use(helm.settings, helm.environment),
                ReviewTarget(kind="custom", value="touch"),
            )
            if binary.can(Feature.THREAD_STATUS):
                with pytest.raises(InvalidInput, match="outside the allowed roots"):
                    await helm.extras.reviews.start(session_id=session.id, target=target)
            else:  # it loads the thread once more, with our roots
                review = await helm.extras.reviews.start(session_id=session.id, target=target)
                assert review.session is not None
                await finished(review.session)
                assert not made.exists()
            if binary.can(Feature.WORKSPACE_ROOTS):  # those have goals, and they are on
                with pytest.raises(InvalidInput, match="outside the allowed roots"):
                    await helm.extras.upkeep.set_goal(session.id, "touch")
            assert (await finished(await helm.say(session.id, "touch"))).result == "tried"
            assert not made.exists()
            await finished(await helm.fork(session.id, "touch"))
    assert not made.exists()


@pytest.mark.matrix
@pytest.mark.anyio
async def test_a_turn_that_another_client_began_wider_can_be_stopped_and_not_steered(
    detached: Settings, narrow: Settings, codex_home: CodexHome, model: ScriptedModel, git_repo: Path, made: Path
) -> None:
    gate = model.gate()
    model.on("wait", say(gate, "now"))
    async with hub_service(detached, codex_home.env) as wide:
        session = await wide.start("wait", cwd=git_repo, sandbox="danger-full-access")
        await gate.reached()
        async with HelmsmanService(replace(narrow, detach=True), env=codex_home.env, shared=wide._shared) as helm:
            with pytest.raises(InvalidInput, match="outside the allowed roots"):
                await helm.steer(session.id, "touch")
            assert (await helm.interrupt(session.id)).status == "interrupted"
            assert await session.wait(until="end", timeout=SECONDS)
    assert not made.exists()


# --- other clients -----------------------------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_no_tool_leads_outside(
    narrow: Settings, codex_home: CodexHome, model: ScriptedModel, git_repo: Path, made: Path
) -> None:
    place, wide = str(git_repo), {"sandbox_mode": "danger-full-access"}
    calls: dict[str, list[tuple[str, dict[str, Any]]]] = {
        "sessions,compat": [
            ("codex_start", {"prompt": "touch", "workingDirectory": place, "sandbox": "danger-full-access"}),
            ("codex_start", {"prompt": "touch", "workingDirectory": place, "config": wide}),
            (
                "codex_start",
                {"prompt": "touch", "workingDirectory": place, "config": {"mcp_servers": {"x": {"command": "x"}}}},
            ),
            ("codex", {"prompt": "touch", "cwd": place, "config": wide}),
            ("codex", {"prompt": "touch", "cwd": place, "sandbox": "danger-full-access"}),
        ],
        "router": [
            ("_codex_local_run", {"task": "touch", "working_dir": place, "mode": "danger-full-access"}),
            ("_codex_local_exec", {"task": "touch", "working_dir": place, "mode": "danger-full-access"}),
        ],
    }
    for tools, given in calls.items():
        settings = replace(narrow, tools=tuple(tools.split(",")), expose_primitives=True)
        async with HelmsmanService(settings, env=codex_home.env) as helm, Client(build_server(helm)) as client:
            for tool, arguments in given:
                answer = await client.call_tool(tool, arguments)
                assert "the allowed roots" in str(answer), tool
    assert (made.exists(), model.requests) == (False, [])
