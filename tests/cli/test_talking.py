"""Tests of a user at a real terminal during a turn: live output, and typed messages."""

from __future__ import annotations

import json
import stat
import sys
from pathlib import Path

import anyio
import pytest

from helmsman.testing import Gate, ScriptedModel, run, say
from tests.cli.conftest import Cli
from tests.tmux import Tmux

pytestmark = pytest.mark.anyio

SIZES = {(40, 15): "Esc stops,…", (200, 50): "? for keys", (80, 24): "? for keys"}
"""Each with how the line ends at that width."""
WRITABLE = ("-s", "workspace-write", "-a", "on-request")


@pytest.mark.rare
@pytest.mark.timeout(120)
async def test_messages_of_any_size_arrive_during_a_turn(cli: Cli, model: ScriptedModel, tmp_path: Path) -> None:
    go_on = tmp_path / "go-on"
    output = r"printf '\033[2J\033[31mred\033[0m 漢字 🚢 e\314\201 %s\n' $n"
    script = f"n=0; while [ ! -e {go_on} ]; do n=$((n + 1)); {output}; sleep 0.05; done"
    gate = model.gate()
    model.on("Build", run(script, yield_ms=30_000), say("Built."))
    model.on("Document", say("Documented."))
    model.on("Publish", [say("I wait.", gate), run("touch /published", escalate="It must")], say("Not published."))
    model.on("Sleep", run("sleep 300"), say("Never."))
    with Tmux() as terminal:
        command = [sys.executable, "-m", "helmsman", "run", *WRITABLE]
        terminal.start(command, env=cli.env | {"TERM": "tmux-256color"}, directory=cli.directory)
        await terminal.shows("› your message")
        terminal.type("Build")
        terminal.press("Enter")
        # What runs is seen, and nothing of it obeyed.
        await terminal.shows("red 漢字 🚢 e\u0301", "$ n=0; while", "› Enter steers, Tab queues, Esc stops, ? for keys")
        # Nothing stale is left at any size.
        for (columns, lines), end in SIZES.items():
            terminal.resize(columns, lines)

            def is_clean(screen: str, end: str = end) -> bool:
                once = ("› Build", "$ n=0;", " running ", "› Enter steers")
                return end in screen and all(screen.count(text) == 1 for text in once)

            await terminal.until(is_clean, f"At {columns}x{lines} the screen is not clean")
        # The keys are told; a line is edited, and goes into the turn or into the queue.
        terminal.press("?")
        await terminal.shows("Esc Esc", "stop the turn", "earlier messages")
        terminal.type("Use tacs")
        await terminal.shows_no("Esc Esc")
        terminal.press("Left", "BSpace")
        terminal.type("b")
        await terminal.shows("› Use tabs")
        terminal.press("Enter")
        await terminal.shows("› Enter steers")
        terminal.type("Document it")
        terminal.press("Tab")
        await terminal.shows("1 Document it", "sent after this turn")
        go_on.touch()
        # The command folds, and what was queued is done next.
        shown = await terminal.shows("✓ exit 0", " lines", "› Use tabs", "Built.", "Documented.", "› your message")
        assert "red" not in shown
        assert "Use tabs" in json.dumps(model.requests[1].body["input"])
        # The next message can be typed at once. What is typed before a question appears does not answer it, and stays.
        terminal.type("Publish it")
        terminal.press("Enter")
        with anyio.fail_after(30):
            await gate.reached()
        terminal.type("yyyy")
        await terminal.shows("› yyyy")
        gate.release()
        await terminal.shows("? Codex asks to run a command", "deny and stop the turn")
        assert "→" not in terminal.screen
        terminal.press("n")
        await terminal.shows("Why?")
        terminal.type("not today")
        terminal.press("Enter")
        await terminal.shows("→ deny: not today", "Not published.", "› yyyy")
        terminal.press("C-c")
        await terminal.shows("› your message")
        # An earlier message is found again; Esc stops a turn, but not by itself.
        terminal.type("Sleep")
        terminal.press("Enter")
        await terminal.shows("running sleep 300", "› Enter steers")
        for number, later in enumerate(("Then this", "Then that"), 1):
            terminal.type(later)
            terminal.press("Tab")
            await terminal.shows(f"{number} {later}")
        terminal.press("Escape")
        await terminal.shows("Esc again stops the turn.")
        terminal.press("Escape")
        # What was queued behind it comes back into the line.
        shown = await terminal.shows("$ sleep 300  ✗ did not finish", "■ Interrupted", "› Then this\n  Then that")
        assert shown.count("$ sleep 300") == shown.count("Not sent: Then this") == 1
        assert "The turn was interrupted" not in shown
        terminal.press("C-c")
        await terminal.shows("› your message")
        terminal.press("Up")
        await terminal.shows("› Then this\n  Then that")
        terminal.press("Up", "Up", "Up", "Up")
        await terminal.until(lambda screen: screen.count("› Sleep\n") == 2, "The last message did not come back")
        terminal.press("C-u", "C-d")
        assert await terminal.exit_code() == 130
        assert "› the next" not in terminal.screen
    typed = Path(cli.env["HELMSMAN_STATE_DIR"]) / "typed"
    kept = [json.loads(line) for line in typed.read_text(encoding="utf-8").splitlines()]
    assert kept == [
        "Build",
        "Use tabs",
        "Document it",
        "Publish it",
        "yyyy",
        "Sleep",
        "Then this",
        "Then that",
        "Then this\nThen that",
    ]
    assert stat.S_IMODE(typed.stat().st_mode) == 0o600


async def test_two_queued_messages_are_done_and_shown_once_each(detached_cli: Cli, model: ScriptedModel) -> None:
    gate = Gate()
    model.on("First", say(gate, "That was one."))
    model.on("Second", say("That was two."))
    model.on("Third", say("That was three."))
    with Tmux(columns=80, lines=40) as terminal:
        command = [sys.executable, "-m", "helmsman", "run", "First"]
        terminal.start(command, env=detached_cli.env | {"TERM": "xterm-256color"}, directory=detached_cli.directory)
        await terminal.shows("› Enter steers")
        for number, text in enumerate(("Second", "Third"), 1):
            terminal.type(text)
            terminal.press("Tab")
            await terminal.shows(f"{number} {text}")
        gate.release()
        shown = await terminal.shows("• That was three.", "› your message")
        for text in ("That was one.", "› Second", "That was two.", "› Third", "That was three."):
            assert shown.count(text) == 1, shown
