"""Commands at the prompt, and messages that the agent does not have yet: they are seen, and can be changed."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from helmsman.capabilities.saved_prompts import SavedPrompt, saved_prompts
from helmsman.testing import ScriptedModel, run, say
from tests.cli.conftest import Cli
from tests.tmux import Tmux


@pytest.mark.long
@pytest.mark.anyio
@pytest.mark.timeout(120)
async def test_commands_act_here_and_messages_are_seen_until_they_are_read(
    cli: Cli, model: ScriptedModel, tmp_path: Path
) -> None:
    go_on = tmp_path / "go-on"
    wait = f"while [ ! -e {go_on} ]; do sleep 0.05; done"
    model.on("Build", run(wait, yield_ms=30_000), say("Built."))
    model.otherwise(say("Fine."))
    prompts = Path(cli.env["HOME"], ".config", "helmsman", "prompts")
    prompts.mkdir(parents=True)
    (prompts / "tidy.md").write_text("# Tidy up\n\nTidy $ARGUMENTS, and nothing else.\n", encoding="utf-8")
    (cli.directory / "notes.txt").write_text("x\n", encoding="utf-8")
    with Tmux(columns=100, lines=40) as terminal:
        command = [sys.executable, "-m", "helmsman", "run"]
        terminal.start(command, env=cli.env | {"TERM": "tmux-256color"}, directory=cli.directory)
        await terminal.shows("› your message")
        terminal.type("/help")
        terminal.press("Enter")
        await terminal.shows("/diff    what the session changed", "/tidy    Tidy up")
        terminal.type("/nothing")
        terminal.press("Enter")
        await terminal.shows("There is no /nothing.")
        terminal.type("Build @no")
        await terminal.shows("@notes.txt")
        terminal.press("Tab", "Enter")
        await terminal.shows("running while", "› Enter steers")

        terminal.type("Use tabs")
        terminal.press("Enter")
        await terminal.shows("› Use tabs  not read yet")
        for number, later in enumerate(("First thing", "Second thing", "Third thing"), 1):
            terminal.type(later)
            terminal.press("Tab")
            await terminal.shows(f"{number} {later}")
        terminal.type("/queue first 3")
        terminal.press("Enter")
        await terminal.shows("1 Third thing", "2 First thing", "3 Second thing")
        terminal.type("/queue drop 2")
        terminal.press("Enter")
        await terminal.shows("1 Third thing", "2 Second thing")
        await terminal.shows_no("First thing")
        terminal.type("/queue edit 2")
        terminal.press("Enter")
        await terminal.shows("› Second thing")
        terminal.press("C-c")
        terminal.type("/status")
        terminal.press("Enter")
        await terminal.shows("status     running")
        go_on.touch()
        await terminal.shows("Built.", "› Third thing", "Fine.", "› your message")
        assert "not read yet" not in terminal.screen
        terminal.type("/tidy the tests")
        terminal.press("Enter")
        await terminal.shows("Tidy the tests, and nothing else.")
        await terminal.until(lambda shown: shown.count("Fine.") == 2, "The saved prompt was not answered")
        await terminal.shows("› your message")
        terminal.type("exit")
        terminal.press("Enter")
        assert await terminal.exit_code() == 0
    sent = json.dumps([request.body["input"] for request in model.requests])
    assert "Build @notes.txt" in sent
    assert "Use tabs" in sent
    for typed in ("/help", "/queue", "/status", "exit", "First thing", "Second thing", "/tidy"):
        assert f'"text": "{typed}' not in sent


def test_saved_prompts_are_files_with_a_plain_name(tmp_path: Path) -> None:
    folder = tmp_path / "helmsman" / "prompts"
    folder.mkdir(parents=True)
    (folder / "tidy.md").write_text("# Tidy up\n\nAll of it.\n", encoding="utf-8")
    (folder / "empty.md").write_text("\n", encoding="utf-8")
    (folder / "not a name.md").write_text("x", encoding="utf-8")
    (folder / "other.txt").write_text("x", encoding="utf-8")
    (folder / "broken.md").write_bytes(b"\xff\xfe")
    assert list(saved_prompts({"XDG_CONFIG_HOME": str(tmp_path)})) == ["tidy"]
    assert saved_prompts({"XDG_CONFIG_HOME": str(tmp_path / "nowhere")}) == {}


def test_arguments_of_a_saved_prompt_are_put_into_its_text_or_after_it() -> None:
    tidy = SavedPrompt("tidy", "# Tidy\n\nTidy $ARGUMENTS.")
    assert (tidy.title, tidy.with_arguments("tests")) == ("Tidy", "# Tidy\n\nTidy tests.")
    plain = SavedPrompt("plain", "Explain it.")
    assert (plain.with_arguments(""), plain.with_arguments("The parser")) == (
        "Explain it.",
        "Explain it.\n\nThe parser",
    )
