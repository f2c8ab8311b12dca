"""`helmsman install` and `uninstall` as commands: the change is shown, agreed to, made, tried out and undone."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Cli

pytestmark = pytest.mark.anyio

CURSOR = '{\n  // mine\n  "mcpServers": {\n    "x": { "env": { "API_KEY": "sk-secret-of-mine" } }\n  }\n}\n'


def cursor_file(cli: Cli, text: str | None = None) -> Path:
    path = Path(cli.env["HOME"], ".cursor", "mcp.json")
    if text is not None:
        path.parent.mkdir()
        path.write_text(text, encoding="utf-8")
    return path


async def test_without_yes_and_terminal_the_change_is_only_shown(bare_cli: Cli) -> None:
    path = cursor_file(bare_cli, CURSOR)
    done = await bare_cli.run("install", "cursor")
    assert done.exit_code == 2
    assert f"Cursor, {path}: helmsman (user scope) is added\n@@ -1,6 +1,10 @@\n" in done.stdout
    assert '+    "helmsman": {\n' in done.stdout
    assert "\x1b" not in done.stdout
    assert "sk-secret" not in done.stdout
    assert "Add --yes" in done.stderr
    assert path.read_text(encoding="utf-8") == CURSOR


async def test_with_yes_it_is_made_and_tried_out_and_undone_to_the_letter(bare_cli: Cli) -> None:
    path = cursor_file(bare_cli, CURSOR)
    done = await bare_cli.run("install", "cursor", "--yes")
    assert (done.exit_code, done.stderr) == (0, "")
    assert "✓ helmsman (user scope) answers with 11 tools" in done.stdout
    assert "time limit is unknown" in done.stdout
    assert "// mine" in path.read_text(encoding="utf-8")

    again = await bare_cli.run("install", "cursor")
    assert again.exit_code == 0
    assert "Cursor runs Helmsman already; nothing to change.\n✓ helmsman (user scope) answers" in again.stdout

    gone = await bare_cli.run("install", "cursor", "--yes", "--remove")
    assert gone.exit_code == 0
    assert "helmsman (user scope) is removed" in gone.stdout
    assert path.read_text(encoding="utf-8") == CURSOR
    nothing = await bare_cli.run("install", "cursor", "--yes", "--remove")
    assert (nothing.exit_code, nothing.stdout) == (0, f"Nothing in {path} runs Helmsman; nothing to change.\n")


async def test_json_tells_change_and_check(bare_cli: Cli) -> None:
    done = await bare_cli.run("install", "claude", "--yes", "--json", "--tools", "sessions", "--env", "TOKEN=t0ps3cret")
    assert done.exit_code == 0
    (told,) = done.json
    assert (told["client"], told["applied"]) == ("claude", True)
    ((entry,), (check,)) = (told["changes"][0]["entries"], told["checks"])
    assert (entry["name"], entry["scope"], entry["action"]) == ("helmsman", "user", "added")
    assert entry["entry"]["command"].startswith(str(Path(sys.executable).parent))
    assert entry["entry"]["args"] == ["serve", "--tools", "sessions"]
    assert (check["ok"], check["server"], len(check["tools"])) == (True, "helmsman", 11)
    assert "t0ps3cret" not in done.stdout

    shown = await bare_cli.run("install", "claude", "--json", "--remove")
    assert (shown.exit_code, shown.json[0]["applied"]) == (2, False)
    gone = await bare_cli.run("install", "claude", "--json", "--yes", "--remove")
    assert (gone.exit_code, gone.json[0]["changes"][0]["entries"][0]["action"]) == (0, "removed")
    assert not Path(bare_cli.env["HOME"], ".claude.json").exists()


async def test_an_entry_that_does_not_answer_fails_with_its_reason(bare_cli: Cli) -> None:
    done = await bare_cli.run("install", "cursor", "--yes", "--env", "HELMSMAN_TOOLS=nonsense")
    assert done.exit_code == 1
    assert "✗ helmsman (user scope): " in done.stdout
    assert "nonsense" in done.stdout
    told = (await bare_cli.run("install", "cursor", "--json")).json[0]
    assert told["checks"][0]["error"]["code"] == "handshake_failed"


async def test_on_a_terminal_one_is_asked(bare_cli: Cli) -> None:
    async with bare_cli.on_terminal("install", "cursor") as shown:
        await shown.shows("Make this change? [y/N]")
        assert "\x1b[32m" in shown.terminal.raw  # additions are green
        shown.press("n")
        assert await shown.exit_code() == 1
    assert not cursor_file(bare_cli).exists()
    async with bare_cli.on_terminal("install", "cursor") as shown:
        await shown.shows("Make this change? [y/N]")
        shown.press("y")
        await shown.shows("answers with 11 tools")
        assert await shown.exit_code() == 0
    assert cursor_file(bare_cli).exists()


async def test_an_old_entry_of_the_project_is_pointed_out_and_rewritten_when_asked_for(bare_cli: Cli) -> None:
    path = bare_cli.directory / ".mcp.json"
    text = json.dumps({"mcpServers": {"codex": {"command": "codex", "args": ["mcp-server"]}}})
    path.write_text(text, encoding="utf-8")
    done = await bare_cli.run("install", "claude", "--json")
    assert "`helmsman install claude --scope project` changes it for the whole project" in done.json[0]["notes"][0]
    shown = await bare_cli.run("install", "claude", "--scope", "project", "--json")
    (entry,) = shown.json[0]["changes"][0]["entries"]
    assert (entry["name"], entry["action"]) == ("codex", "rewritten")
    assert entry["entry"]["args"][-3:] == ["serve", "--tools", "compat"]
    assert entry["entry"]["command"] in ("helmsman", "uvx")
    assert path.read_text(encoding="utf-8") == text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("install", "emacs"), "'emacs' is not one of"),
        (("install", "claude-desktop", "--scope", "project"), "Claude Desktop has no scope project"),
        (("install", "claude", "--tools", "nonsense"), "--tools"),
        (("install", "claude", "--env", "NAME"), "NAME=VALUE"),
        (("install", "claude", "--name", " "), "--name is empty"),
    ],
)
async def test_invalid_input_is_refused(bare_cli: Cli, arguments: tuple[str, ...], said: str) -> None:
    done = await bare_cli.run(*arguments)
    assert done.exit_code == 2
    assert said in done.stderr


async def test_a_broken_file_is_refused_with_its_place(bare_cli: Cli) -> None:
    path = cursor_file(bare_cli, "{,}")
    done = await bare_cli.run("install", "cursor", "--yes")
    assert done.exit_code == 1
    assert f"{path} is not valid JSON, line 1, column 2" in done.stderr


async def test_the_doctor_sees_what_was_installed(bare_cli: Cli) -> None:
    before = {check["name"]: check for check in (await bare_cli.run("doctor", "--json")).json[0]["checks"]}
    assert before["Clients"]["status"] == "ok"
    await bare_cli.run("install", "cursor", "--yes")
    after = {check["name"]: check for check in (await bare_cli.run("doctor", "--json")).json[0]["checks"]}
    assert after["Client Cursor"]["status"] == "ok"
    assert "helmsman (user scope) points here" in after["Client Cursor"]["detail"]
    assert "Clients" not in after


async def test_nothing_that_a_repository_names_is_started_to_try_an_entry_out(bare_cli: Cli) -> None:
    """Neither its command, nor code that its variables or the directory would have imported."""
    ran = bare_cli.directory / "ran"
    for name in ("sitecustomize.py", "helmsman.py", "planted.sh"):
        (bare_cli.directory / name).write_text(f"open({str(ran)!r}, 'w')\n")
    (bare_cli.directory / "planted.sh").write_text(f"#!/bin/sh\ntouch {ran}\n")
    (bare_cli.directory / "planted.sh").chmod(0o755)
    planted = str(bare_cli.directory)
    for entry in (
        {"command": "helmsman", "args": ["serve"], "env": {"PYTHONPATH": planted}},
        {"command": "./planted.sh", "args": ["helmsman", "serve"], "cwd": planted},
        {"command": "codex", "args": ["mcp-server"], "env": {"PYTHONPATH": planted}},
    ):
        (bare_cli.directory / ".mcp.json").write_text(json.dumps({"mcpServers": {"helmsman": entry}}))
        done = await bare_cli.run("install", "claude", "--scope", "project", "--yes")
        assert "this Helmsman answers with" in done.stdout
        assert not ran.exists()
        named = "sets variables for what clients start: PYTHONPATH" in " ".join(done.stdout.split())
        assert named is ("env" in entry)


async def test_a_link_of_a_project_is_named_and_not_followed_out_of_it_without_being_asked(bare_cli: Cli) -> None:
    outside = bare_cli.directory.parent / f"{bare_cli.directory.name}.json"
    outside.write_text("{}\n")
    (bare_cli.directory / ".mcp.json").symlink_to(outside)
    for command in (("install", "claude"), ("install", "claude", "--json")):
        done = await bare_cli.run(*command, "--scope", "project", "--yes")
        assert done.exit_code == 1
        assert str(outside) in done.stdout + done.stderr
        assert outside.read_text() == "{}\n"
    async with bare_cli.on_terminal("install", "claude", "--scope", "project") as program:
        await program.shows(f"which is {outside}")
        await program.shows("Make this change?")
        program.press("n")
        assert await program.exit_code() == 1
    assert outside.read_text() == "{}\n"
