"""What `helmsman install` writes, read by the clients themselves: the real `claude` and the real `codex`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import pytest

from helmsman.clients.locations import BLOCKING_CALL_SECONDS
from helmsman.testing import CodexHome, ScriptedModel, say
from helmsman.testing.hubs import end_hub
from tests.cli.conftest import Cli
from tests.clients.claude_model import Story, claude_model
from tests.clients.node import CACHE

pytestmark = [pytest.mark.anyio, pytest.mark.rare]

SECONDS = 60
PLUGIN = Path(__file__).parents[2] / "src" / "helmsman" / "plugin" / "helmsman"


@dataclass(frozen=True)
class Program:
    """A client's command line, with the home of the test."""

    path: Path
    cli: Cli

    async def run(self, *arguments: str) -> str:
        quiet = {"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "DISABLE_AUTOUPDATER": "1"}
        with anyio.fail_after(SECONDS):
            done = await anyio.run_process(
                [self.path, *arguments],
                env=self.cli.env | quiet,
                cwd=self.cli.directory,
                stdin=subprocess.DEVNULL,
                check=False,
            )
        assert done.returncode == 0, done.stdout.decode() + done.stderr.decode()
        return done.stdout.decode()


@pytest.fixture
def claude(bare_cli: Cli) -> Program:
    found = sorted((CACHE / "node_modules" / "@anthropic-ai").glob("claude-code-*/claude*"))
    if not found:
        pytest.skip("Claude Code is not there: run scripts/fetch_clients.py, which needs the npm registry.")
    return Program(found[0], bare_cli)


@pytest.fixture
def codex(cli: Cli, codex_binary: Path) -> Program:
    return Program(codex_binary, cli)


async def installed(cli: Cli, *arguments: str) -> None:
    done = await cli.run("install", *arguments, "--yes")
    assert done.exit_code == 0, done.stdout + done.stderr


async def removed(cli: Cli, *arguments: str) -> None:
    done = await cli.run("install", *arguments, "--yes", "--remove")
    assert done.exit_code == 0, done.stdout + done.stderr


async def test_claude_connects_to_what_was_installed(claude: Program) -> None:
    await claude.run("mcp", "add", "-s", "user", "other", "--", "true")
    scopes = {"user": "User config", "local": "Local config"}
    for scope in scopes:
        await installed(claude.cli, "claude", "--scope", scope)
    for scope in ("local", "user"):  # the nearer one counts, until it is removed
        told = await claude.run("mcp", "get", "helmsman")
        assert scopes[scope] in told
        assert "Connected" in told
        await removed(claude.cli, "claude", "--scope", scope)
    listed = await claude.run("mcp", "list")
    assert "other" in listed
    assert "helmsman" not in listed


@pytest.mark.needs_git
async def test_claude_finds_from_a_worktree_what_was_installed_there(claude: Program, git_repo: Path) -> None:
    tree = claude.cli.directory / "tree"
    await anyio.run_process(["git", "-C", git_repo, "worktree", "add", tree])
    claude.cli.directory = tree
    await installed(claude.cli, "claude", "--scope", "local")
    told = await claude.run("mcp", "get", "helmsman")
    assert "Local config" in told
    assert "Connected" in told


async def test_an_entry_made_with_claude_is_rewritten_and_put_back(claude: Program) -> None:
    await claude.run("mcp", "add", "-s", "user", "codex", "-e", "A=1", "--", "codex", "mcp-server")
    file = Path(claude.cli.env["HOME"], ".claude.json")
    before = json.loads(file.read_text(encoding="utf-8"))["mcpServers"]
    await installed(claude.cli, "claude")
    told = await claude.run("mcp", "get", "codex")
    assert "Connected" in told
    assert "A=1" in told
    await removed(claude.cli, "claude")
    assert json.loads(file.read_text(encoding="utf-8"))["mcpServers"] == before


async def test_claude_sees_the_file_of_a_project(claude: Program) -> None:
    bin_dir = claude.cli.directory / "bin"
    bin_dir.mkdir()
    claude.cli.env["PATH"] = f"{bin_dir}{os.pathsep}{claude.cli.env['PATH']}"
    script = bin_dir / "helmsman"
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m helmsman "$@"\n', encoding="utf-8")
    script.chmod(0o755)
    await installed(claude.cli, "claude", "--scope", "project")
    assert "helmsman: helmsman serve" in await claude.run("mcp", "list")


def on_path(program: Program, name: str) -> None:
    """Put the client on the PATH of the command, outside of every repository."""
    bin_dir = Path(program.cli.env["HOME"]) / "bin"
    bin_dir.mkdir()
    shutil.copy2(program.path.resolve(), bin_dir / name)
    program.cli.env["PATH"] = f"{bin_dir}{os.pathsep}{program.cli.env['PATH']}"


async def test_claude_installs_the_plugin_and_gets_its_skills_commands_and_server(claude: Program) -> None:
    on_path(claude, "claude")
    await claude.run("plugin", "validate", str(PLUGIN))
    for _ in range(2):  # the second time it replaces the first
        await installed(claude.cli, "claude", "--plugin")
    (plugin,) = json.loads(await claude.run("plugin", "list", "--json"))
    assert (plugin["id"], plugin["enabled"]) == ("helmsman@helmsman", True)
    assert Path(plugin["mcpServers"]["helmsman"]["command"]).is_absolute()
    with_model = {"ANTHROPIC_API_KEY": "none"}
    async with claude_model(one_call("mcp__plugin_helmsman_helmsman__agent_agents")) as address:
        claude.cli.env |= with_model | {"ANTHROPIC_BASE_URL": address}
        said = await claude.run(
            *("-p", "go", "--output-format", "stream-json", "--verbose"),
            *("--allowedTools", "mcp__plugin_helmsman_helmsman__agent_agents"),
        )
    messages = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    init = next(one for one in messages if one.get("subtype") == "init")
    names = {f"helmsman:{path.name}" for path in (PLUGIN / "skills").iterdir()}
    names |= {f"helmsman:{path.stem}" for path in (PLUGIN / "commands").iterdir()}
    assert names <= {*init["skills"], *init["slash_commands"]}
    assert {"name": "plugin:helmsman:helmsman", "status": "connected"} in [
        {key: one[key] for key in ("name", "status")} for one in init["mcp_servers"]
    ]
    assert any("isDefault" in json.dumps(one) for one in messages if one["type"] == "user")  # what the tool gave
    await removed(claude.cli, "claude", "--plugin")
    assert json.loads(await claude.run("plugin", "list", "--json")) == []
    end_hub(Path(claude.cli.env["HELMSMAN_STATE_DIR"]))


def one_call(tool: str) -> Story:
    """Call one tool."""
    yield tool, {}
    return "done"


async def test_codex_installs_the_plugin_and_tells_its_model_of_skills_and_tools(
    codex: Program, codex_home: CodexHome, model: ScriptedModel
) -> None:
    codex_home.configure(features={"plugins": True})
    on_path(codex, "codex")
    await installed(codex.cli, "codex", "--plugin")
    (plugin,) = json.loads(await codex.run("plugin", "list", "--json"))["installed"]
    assert (plugin["pluginId"], plugin["enabled"]) == ("helmsman@helmsman", True)
    model.otherwise(say("done"))
    await codex.run("exec", "--skip-git-repo-check", "go")
    told = json.dumps(model.requests[-1].body)
    for skill in (PLUGIN / "skills").iterdir():
        assert f"helmsman:{skill.name}" in told
    assert "mcp__helmsman" in told
    await removed(codex.cli, "codex", "--plugin")
    end_hub(Path(codex.cli.env["HELMSMAN_STATE_DIR"]))


async def test_codex_takes_the_package_of_agent_plugins(
    codex: Program, codex_home: CodexHome, model: ScriptedModel, tmp_path: Path
) -> None:
    """With the manifest and the servers of Agent Plugins 1.0 alone."""
    codex_home.configure(features={"plugins": True})
    on_path(codex, "codex")
    script, started_in = Path(codex.cli.env["HOME"], "bin", "helmsman"), tmp_path / "started-in"
    server = f'HELMSMAN_DETACH=0 exec "{sys.executable}" -m helmsman "$@"'
    script.write_text(f'#!/bin/sh\necho "$PLUGIN_ROOT" > "{started_in}"\n{server}\n', encoding="utf-8")
    script.chmod(0o755)
    market = tmp_path / "market"
    shutil.copytree(
        PLUGIN.parent, market, ignore=shutil.ignore_patterns(".claude-plugin", ".codex-plugin", ".mcp.json")
    )
    await codex.run("plugin", "marketplace", "add", str(market))
    await codex.run("plugin", "add", "helmsman@helmsman")
    model.otherwise(say("done"))
    await codex.run("exec", "--skip-git-repo-check", "go")
    told = json.dumps(model.requests[-1].body)
    assert all(f"helmsman:{skill.name}" in told for skill in (PLUGIN / "skills").iterdir())
    assert Path(started_in.read_text(encoding="utf-8").strip(), "mcp.json").exists()


async def test_codex_lists_what_was_installed(codex: Program) -> None:
    config = Path(codex.cli.env["CODEX_HOME"], "config.toml")
    before = config.read_text(encoding="utf-8")
    await installed(codex.cli, "codex", "--env", f"HELMSMAN_STATE_DIR={codex.cli.env['HELMSMAN_STATE_DIR']}")
    entry: dict[str, Any] = json.loads(await codex.run("mcp", "get", "helmsman", "--json"))
    assert entry["enabled"]
    assert entry["transport"]["args"] == ["serve"]
    assert Path(entry["transport"]["command"]).name == "helmsman"
    await removed(codex.cli, "codex")
    assert config.read_text(encoding="utf-8") == before
    end_hub(Path(codex.cli.env["HELMSMAN_STATE_DIR"]))  # of the server that was tried out


async def test_an_entry_made_with_codex_is_rewritten_and_put_back(codex: Program) -> None:
    await codex.run("mcp", "add", "old", "--env", "A=1", "--", "npx", "-y", "@openai/codex", "mcp-server")
    config = Path(codex.cli.env["CODEX_HOME"], "config.toml")
    before = config.read_text(encoding="utf-8")
    await installed(codex.cli, "codex")
    (entry,) = json.loads(await codex.run("mcp", "list", "--json"))
    assert (entry["name"], entry["transport"]["args"]) == ("old", ["serve", "--tools", "compat"])
    assert entry["tool_timeout_sec"] == BLOCKING_CALL_SECONDS
    assert entry["transport"]["env"] == {"A": "1"}
    await removed(codex.cli, "codex")
    assert config.read_text(encoding="utf-8") == before
