"""The plugin for Claude Code, Codex and Agent Plugins 1.0: one folder, three manifests, one set of skills."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from helmsman._version import __version__
from helmsman.clients.plugin import PluginOf
from helmsman.errors import ConfigurationUnusable, InvalidInput
from helmsman.mcp.server import toolset_tools
from helmsman.mcp.skills import SKILLS, skills

ROOT = Path(__file__).parents[2]
MARKET = ROOT / "src" / "helmsman" / "plugin"
PLUGIN = MARKET / "helmsman"
MANIFESTS = [PLUGIN / place for place in (".claude-plugin/plugin.json", ".codex-plugin/plugin.json", "plugin.json")]
COMMANDS = sorted((PLUGIN / "commands").glob("*.md"))
AGENT_PLUGINS_1_0 = {
    "$schema", "name", "version", "description", "author", "homepage", "repository", "license", "keywords", "extensions",
}  # fmt: skip


def load(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def test_all_manifests_have_the_name_and_version_of_the_code() -> None:
    semantic = re.sub(r"(?<=\d)rc", "-rc", __version__)
    for manifest in map(load, MANIFESTS):
        assert (manifest["name"], manifest["version"]) == ("helmsman", semantic)


def test_the_manifest_of_agent_plugins_has_only_fields_of_its_specification() -> None:
    manifest, servers = load(PLUGIN / "plugin.json"), load(PLUGIN / "mcp.json")
    assert set(manifest) <= AGENT_PLUGINS_1_0
    assert set(servers) == {"$schema", "mcpServers"}
    (entry,) = servers["mcpServers"].values()
    assert set(entry) <= {"type", "command", "args", "env", "cwd"}
    assert entry["type"] == "stdio"
    assert {one["$schema"].split("/")[4] for one in (manifest, servers)} == {"1.0.0"}


def test_all_server_files_start_the_same_server() -> None:
    (claude,) = load(PLUGIN / ".mcp.json")["mcpServers"].values()
    (agent_plugins,) = load(PLUGIN / "mcp.json")["mcpServers"].values()
    assert claude == {key: agent_plugins[key] for key in ("command", "args")}
    assert claude["args"] == ["serve", "--tools", "agents"]


@pytest.mark.parametrize("market", [ROOT, MARKET], ids=["repository", "package"])
def test_marketplaces_lead_to_the_plugin(market: Path) -> None:
    claude = load(market / ".claude-plugin" / "marketplace.json")
    codex = load(market / ".agents" / "plugins" / "marketplace.json")
    assert claude["name"] == codex["name"] == "helmsman"
    for path in (claude["plugins"][0]["source"], codex["plugins"][0]["source"]["path"]):
        assert (market / path).resolve() == PLUGIN


@pytest.mark.parametrize("skill", skills().values(), ids=lambda skill: skill.name)
def test_a_skill_keeps_the_specification_and_names_tools_that_exist(skill: Any) -> None:
    assert set(skill.front_matter) <= {"name", "description", "license", "compatibility", "metadata", "allowed-tools"}
    assert skill.front_matter["name"] == skill.name
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", skill.name)
    assert 0 < len(skill.front_matter["description"]) <= 1024
    assert {path.name for path in (SKILLS / skill.name).iterdir()} == {"SKILL.md"}  # the only file that is listed
    tools = {tool.name for tool in toolset_tools("agents", ("agents",))}
    named = set(re.findall(r"`(agent_\w+)`", skill.text))
    assert named
    assert named <= tools
    for other in re.findall(r"skill ([a-z]+-[a-z-]+)", skill.text):
        assert (SKILLS / other).is_dir()


@pytest.mark.parametrize("command", COMMANDS, ids=lambda path: path.stem)
def test_a_slash_command_describes_itself_and_names_skills_and_tools_that_exist(command: Path) -> None:
    text = command.read_text(encoding="utf-8")
    assert re.search(r"^description: .+$", text, re.MULTILINE)
    assert "$ARGUMENTS" in text
    tools = {tool.name for tool in toolset_tools("agents", ("agents",))}
    assert {name.removeprefix("mcp__plugin_helmsman_helmsman__") for name in re.findall(r"\w*agent_\w+", text)} <= tools
    for skill in re.findall(r"helmsman:([a-z-]+)", text):
        assert (SKILLS / skill).is_dir()


def test_the_five_commands_are_there() -> None:
    assert {path.stem for path in COMMANDS} == {"delegate", "status", "answer", "review", "result"}


def test_the_wheel_takes_the_whole_package_folder() -> None:
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["hatch"]["build"]["targets"][
        "wheel"
    ]
    assert wheel == {"packages": ["src/helmsman"]}


def test_clients_without_plugins_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="claude, codex"):
        PluginOf.of("cursor", tmp_path)


def program(folder: Path, body: str) -> None:
    folder.mkdir()
    (folder / "claude").write_text(f"#!/bin/sh\n{body}\n", encoding="utf-8")
    (folder / "claude").chmod(0o755)


def test_the_copy_starts_this_helmsman_and_the_clients_refusal_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(
        tmp_path / "bin",
        'echo "$*" >> "$0.log"; [ "$3" != add ] || [ ! -e "$0.no" ] || { echo "bad market" >&2; exit 1; }',
    )
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    plugin = PluginOf.of("claude", tmp_path)
    plugin.install(["/opt/x/helmsman"], None)
    (entry,) = load(plugin.folder / "helmsman" / ".mcp.json")["mcpServers"].values()
    assert entry == {"command": "/opt/x/helmsman", "args": ["serve", "--tools", "agents"]}
    said = (tmp_path / "bin" / "claude.log").read_text(encoding="utf-8").splitlines()
    assert said[-2:] == [f"plugin marketplace add {plugin.folder}", "plugin install helmsman@helmsman"]
    (tmp_path / "bin" / "claude.no").touch()
    with pytest.raises(ConfigurationUnusable, match="bad market"):
        plugin.install(["/opt/x/helmsman"], "sessions")


def test_a_client_that_is_not_installed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigurationUnusable, match="not on your PATH"):
        PluginOf.of("codex", tmp_path).remove()
