from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from helmsman import __version__, errors
from helmsman.cli.command import reports_errors
from helmsman.cli.consoles import configure_logs
from helmsman.cli.exit_codes import _FLAGS, ExitCode, exit_code_of
from helmsman.settings import load_settings
from tests.cli.conftest import Cli

HEAVY = ("rich", "starlette", "uvicorn", "websockets", "jsonschema", "helmsman.service", "helmsman.agents.codex")


@pytest.mark.anyio
async def test_version(bare_cli: Cli) -> None:
    done = await bare_cli.run("--version")
    assert (done.exit_code, done.stdout) == (0, f"helmsman {__version__}\n")


@pytest.mark.parametrize("arguments", [["--version"], ["--help"], ["run", "--help"], ["doctor", "--help"]])
def test_commands_without_codex_import_nothing_heavy(arguments: list[str], tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "helmsman", *arguments],
        capture_output=True,
        encoding="utf-8",
        cwd=tmp_path,
        env={"PATH": os.defpath, "HOME": str(tmp_path)},
        timeout=60,
        check=True,
    )
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "click" in imported
    assert imported & set(HEAVY) == set()


@pytest.mark.anyio
async def test_help_names_every_command_with_its_purpose_and_the_exit_codes(bare_cli: Cli) -> None:
    done = await bare_cli.run("--help")
    assert done.exit_code == 0
    for name in ("run", "list", "doctor", "demo"):
        assert f"\n  {name} " in done.stdout
        assert "Example" in (await bare_cli.run(name, "-h")).stdout
    for code in ExitCode:
        assert f"{code.value:<4} {code.text}\n" in done.stdout


@pytest.mark.anyio
async def test_messages_wrap_at_words_and_keep_addresses_whole(bare_cli: Cli) -> None:
    folder = f"/{'very' * 12}/{'long' * 12}"
    async with bare_cli.on_terminal("list", columns=60, CODEX_HOME=folder) as program:
        await program.shows(f"Error: CODEX_HOME is\n'{folder}',\nwhich is not valid.")


@pytest.mark.anyio
async def test_an_unknown_command_exits_with_2(bare_cli: Cli) -> None:
    done = await bare_cli.run("fly")
    assert done.exit_code == 2
    assert "No such command 'fly'" in done.stderr
    commands = {"staus": "status", "comit": "commit", "resum": "resume", "tasks lst": "list"}
    same_meaning = {"tasks stop": "cancel", "schedule delete": "remove", "tasks ls": "list"}
    guessed = commands | same_meaning | {"run --sandbx": "--sandbox", "run --yolo": "--full-auto"}
    for arguments, meant in guessed.items():
        misspelt = await bare_cli.run(*arguments.split())
        assert misspelt.exit_code == 2
        assert f"Did you mean '{meant}'?" in misspelt.stderr


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.StepFailed("x"), 1),
        (errors.StepOutputInvalid("x"), 1),
        (errors.SessionBusy("x"), 1),
        (errors.StepFailed("x", cause_code="engine_lost", session_id="s"), 1),
        (errors.InvalidInput("x"), 2),
        (errors.InvalidSetting("x"), 2),
        (errors.SessionNotFound("x"), 2),
        (errors.CodexNotFound("x"), 3),
        (errors.AgentNotFound("x"), 3),
        (errors.Unsupported("x"), 3),
        (errors.EngineStartFailed("x"), 3),
        (errors.StepFailed("x", cause_code="engine_start_failed"), 3),
        (errors.StepTimedOut("x"), 4),
        (errors.EngineTimeout("x"), 4),
        (errors.StepInterrupted("x"), 130),
    ],
)
def test_every_error_has_its_exit_code(error: errors.HelmsmanError, code: int) -> None:
    assert exit_code_of(error) == code


@pytest.mark.anyio
async def test_errors_name_the_commands_of_the_shell(bare_cli: Cli) -> None:
    done = await bare_cli.run("tasks", "show", "nope")
    assert done.stderr == "Error: There is no task nope. `helmsman tasks` lists them.\n"


@pytest.mark.parametrize("said", [*_FLAGS])
def test_error_texts_replaced_in_the_shell_exist_elsewhere(said: str) -> None:
    package = Path(errors.__file__).parent
    others = (path for path in package.rglob("*.py") if path.parent.name != "cli")
    assert any(said in path.read_text(encoding="utf-8") for path in others)


def test_an_error_reaches_the_terminal_with_nothing_in_it_that_a_terminal_obeys(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that quoted directories and files, whose names a model can choose, are sanitized."""

    @reports_errors
    def command() -> None:
        raise errors.InvalidInput("/repo/\x1b]52;c;cm0=\x07\u202e is no directory.\nGive another.")

    monkeypatch.setattr("click.utils.should_strip_ansi", lambda *_: False)  # as on a terminal
    assert command() == ExitCode.USAGE
    assert capsys.readouterr().err == "Error: /repo/\\x1b]52;c;cm0=\\x07\\u202e is no directory.\nGive another.\n"


def test_a_log_line_on_the_terminal_obeys_nothing_either(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [])
    level = root.level
    try:
        configure_logs(load_settings({}, {"HOME": str(tmp_path)}, tmp_path))
        logging.getLogger("helmsman").error("Codex wrote %s", "\x1b]52;c;cm0=\x07")
    finally:
        root.setLevel(level)
    assert capsys.readouterr().err == "ERROR helmsman: Codex wrote \\x1b]52;c;cm0=\\x07\n"
