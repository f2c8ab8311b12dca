from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import anyio
import pytest

from helmsman.testing import CodexHome, HomeTemplates, ScriptedModel, say
from helmsman.testing.home import classic_model, first_start, mcp_server
from helmsman.testing.leaks import MARKER_VARIABLE


def test_a_home_has_its_own_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    home = CodexHome(tmp_path / "home")

    assert home.path.is_dir()
    assert home.env["HOME"] == str(tmp_path / "home")
    assert home.env["CODEX_HOME"] == str(home.path)
    assert home.env["HELMSMAN_STATE_DIR"].startswith(str(tmp_path))
    assert MARKER_VARIABLE in home.env
    assert "OPENAI_API_KEY" not in home.env


def test_settings_are_merged_into_the_configuration(tmp_path: Path) -> None:
    home = CodexHome(tmp_path)
    home.configure(model="m", features={"goals": False})
    home.configure(features={"apps": True}, model="n")

    assert home.config == {"model": "n", "features": {"goals": False, "apps": True}}


def test_changes_by_codex_to_the_configuration_are_kept(tmp_path: Path) -> None:
    home = CodexHome(tmp_path)
    home.config_path.write_text('[projects."/src/my repo"]\ntrust_level = "trusted"\n', encoding="utf-8")
    home.configure(model="m")

    assert home.config == {"model": "m", "projects": {"/src/my repo": {"trust_level": "trusted"}}}


@pytest.mark.parametrize(
    ("version", "name"),
    [((0, 93, 0), "gpt-5.2-codex"), ((0, 115, 0), "gpt-5.4"), ((0, 130, 0), "gpt-5.5"), ((0, 166, 0), "gpt-5.5")],
)
def test_each_version_has_a_model_with_classic_tools(version: tuple[int, int, int], name: str) -> None:
    assert classic_model(version) == name


def test_homes_are_copies_that_do_not_touch_each_other(
    tmp_path: Path, codex_binary: Path, codex_home_templates: HomeTemplates
) -> None:
    one = codex_home_templates.new_home(codex_binary, tmp_path / "one")
    two = codex_home_templates.new_home(codex_binary, tmp_path / "two")
    one.configure(model="m")

    assert (one.path / "skills").is_dir()  # Codex has been here
    assert {file.name for file in one.path.iterdir()} - {"config.toml"} == {file.name for file in two.path.iterdir()}
    assert two.config == {}


def test_a_program_that_is_no_codex_is_named(tmp_path: Path) -> None:
    program = tmp_path / "codex"
    program.write_text("#!/bin/sh\necho broken >&2\nexit 3\n", encoding="utf-8")
    program.chmod(0o755)

    with pytest.raises(RuntimeError, match="does not start: broken"):
        first_start(program, CodexHome(tmp_path / "home"))


@pytest.mark.matrix
@pytest.mark.anyio
async def test_a_copied_home_works_on_every_version(
    codex_binary: Path, codex_home: CodexHome, model: ScriptedModel, git_repo: Path
) -> None:
    model.on("Hi", say("Hello"))

    with anyio.fail_after(60):
        done = await anyio.run_process(
            [codex_binary, "exec", "--json", "Hi"],
            cwd=git_repo,
            env=codex_home.env,
            stdin=subprocess.DEVNULL,
            check=False,
        )

    events = [json.loads(line) for line in done.stdout.decode().splitlines()]
    messages = [event["item"]["text"] for event in events if event.get("item", {}).get("type") == "agent_message"]
    assert messages == ["Hello"], done.stderr.decode()
    assert model.requests[0].model == codex_home.config["model"]
    assert "apply_patch" in model.requests[0].tool_names


@pytest.mark.anyio
async def test_the_mcp_server_answers_as_its_protocol_says(tmp_path: Path) -> None:
    config = mcp_server(tmp_path / "notes.json")
    calls: list[dict[str, Any]] = [
        {"id": 1, "method": "initialize", "params": {"protocolVersion": "2025-06-18"}},
        {"method": "notifications/initialized"},
        {"id": 2, "method": "tools/list"},
        {"id": 3, "method": "tools/call", "params": {"name": "write", "arguments": {"key": "k", "text": "t"}}},
        {"id": 4, "method": "tools/call", "params": {"name": "read", "arguments": {"key": "k"}}},
        {"id": 5, "method": "tools/call", "params": {"name": "ask"}},
        {"id": "ask-1", "result": {"action": "decline"}},
        {"id": 6, "method": "ping"},
        {"id": 7, "method": "tools/call", "params": {"name": "ask"}},
    ]

    with anyio.fail_after(20):
        done = await anyio.run_process(
            [config["command"], *config["args"]],
            input="".join(json.dumps(call) + "\n" for call in calls).encode(),
            env=os.environ | config["env"],
        )

    answers = [json.loads(line) for line in done.stdout.splitlines()]
    results = {answer["id"]: answer["result"] for answer in answers if "result" in answer}
    assert results[1]["protocolVersion"] == "2025-06-18"
    assert [tool["name"] for tool in results[2]["tools"]] == ["read", "write", "ask"]
    assert [results[number]["content"][0]["text"] for number in (3, 4, 5, 7)] == [
        "written",
        "t",
        "decline",
        "nobody answered",
    ]
    assert results[6] == {}
    assert config["env"][MARKER_VARIABLE]
