"""`helmsman run` on a terminal: live output, questions at the prompt, Ctrl-C."""

from __future__ import annotations

import json
import os
from pathlib import Path

import anyio
import pytest

from helmsman.testing import ScriptedModel, add, patch, plan, run, say
from tests.cli.conftest import Cli

pytestmark = pytest.mark.anyio

WRITABLE = ("-s", "workspace-write", "-a", "on-request")


async def test_an_approval_is_given_at_the_prompt(cli: Cli, model: ScriptedModel, tmp_path: Path) -> None:
    place = tmp_path / "published"
    gate = model.gate()
    model.on("Publish", run(f"touch {place}", escalate="It must leave the sandbox"), say("Published.", gate))
    async with cli.on_terminal("run", *WRITABLE, "Publish") as program:
        await program.shows("? Codex asks to run a command")
        await program.shows("Reason given: It must leave the sandbox")
        await program.shows("deny and stop the turn")
        program.press("y")
        await program.shows("→ approve")
        await program.shows("✓ exit 0")
        await program.shows("• Published.")
        await program.shows("• Published.")  # drawn again while it is being written, and as a line when it is whole
        gate.release()
        await program.shows("✓ Done in")
        assert await program.exit_code() == 0
    assert place.exists()
    assert program.terminal.standing.count("Published.") == 1


async def test_the_reason_of_a_denial_reaches_the_model(cli: Cli, model: ScriptedModel) -> None:
    model.on("Publish", run("touch /published", escalate="Why not"), say("Then not."))
    async with cli.on_terminal("run", *WRITABLE, "Publish") as program:
        await program.shows("deny and stop the turn")
        program.press("n")
        await program.shows("Why?")
        program.press("not on a Friday\n")
        await program.shows("• Then not.")
        assert await program.exit_code() == 0
    assert "not on a Friday" in json.dumps(model.requests[-1].body["input"])


async def test_stopping_the_turn_at_the_prompt_interrupts_it(cli: Cli, model: ScriptedModel) -> None:
    model.on("Publish", run("touch /published", escalate="Why not"), say("Never."))
    async with cli.on_terminal("run", *WRITABLE, "Publish") as program:
        await program.shows("deny and stop the turn")
        program.press("x")
        await program.shows("■ Interrupted")
        assert await program.exit_code() == 130


async def test_a_patch_is_judged_by_its_diff_and_not_shown_twice(cli: Cli, model: ScriptedModel) -> None:
    model.on("Write", patch(add("new.txt", "hello\n")), say("Written."))
    async with cli.on_terminal("run", "-s", "read-only", "-a", "on-request", "Write") as program:
        await program.shows("? Codex asks to change files")
        await program.shows("add new.txt  +1 -0\n    │ @@ -0,0 +1 @@\n    │ +hello\n")
        await program.shows("deny and stop the turn")
        program.press("y")
        await program.shows("± add new.txt  +1 -0")
        await program.shows("• Written.")
        assert await program.exit_code() == 0
    assert program.screen.count("+hello") == 1
    assert (cli.directory / "new.txt").exists()


async def test_an_always_allowed_command_is_not_asked_again(cli: Cli, model: ScriptedModel) -> None:
    model.on("Publish", run("git tag v1", escalate="Writes to .git"), say("Tagged."))
    model.on("Again", run("git tag v1", escalate="Writes to .git"), say("Tagged again."))
    async with cli.on_terminal("run", *WRITABLE, "Publish") as program:
        await program.shows("a  always allow it")
        await program.shows("deny and stop the turn")
        program.press("a")
        await program.shows("This rule would be kept")
        await program.shows("git tag v1")
        await program.shows("[y/N]")
        program.press("y")
        await program.shows("• Tagged.")
        assert await program.exit_code() == 0
    assert program.terminal.raw.count("\a") == 1
    async with cli.on_terminal("run", *WRITABLE, "Again") as program:
        await program.shows("→ approved by rule: ")
        await program.shows("• Tagged again.")
        assert await program.exit_code() == 0
    assert "\a" not in program.terminal.raw
    assert "deny and stop the turn" not in program.screen


async def test_messages_appear_while_they_are_written(cli: Cli, model: ScriptedModel) -> None:
    gate = model.gate()
    model.on("Talk", say("The first half", gate, " and the second half."))
    async with cli.on_terminal("run", "Talk") as program:
        with anyio.fail_after(30):
            await gate.reached()
        await program.shows("• The first half")
        gate.release()
        await program.shows("The first half and the second half.")
        assert await program.exit_code() == 0


async def test_markdown_is_rendered_for_a_person_and_raw_in_a_pipe(cli: Cli, model: ScriptedModel) -> None:
    gate = model.gate()
    answer = "## The *answer*\n\n- one\n- two\n\n```python\nreturn 1\n```\n"
    model.on("Explain", say(answer[:20], gate, answer[20:]))
    async with cli.on_terminal("run", "Explain") as program:
        await program.shows("• The answer")
        gate.release()
        await program.shows("✓ Done in")
        assert await program.exit_code() == 0
    assert "• The answer\n\n  - one\n  - two\n\n    return 1\n\n✓ Done in" in program.terminal.standing
    (line,) = {line for line in program.terminal.raw.split("\n") if line.endswith("two\r")}
    assert "\x1b[1m" not in line  # the mark of a message is bold, the message is not
    (listed,) = (await cli.run("list", "--json")).json
    session = listed["sessions"][0]["sessionId"]
    async with cli.on_terminal("status", session) as program:
        await program.shows("\nThe answer\n\n- one\n- two\n\n  return 1\n")
        assert await program.exit_code() == 0
    async with cli.on_terminal("watch", session) as program:
        await program.shows("• The answer\n\n  - one")
        assert await program.exit_code() == 0
    done = await cli.run("run", "Explain")
    assert done.stdout == f"{answer}\n"


async def test_a_progress_line_follows_a_test_run(cli: Cli, model: ScriptedModel, tmp_path: Path) -> None:
    go_on = tmp_path / "go-on"
    # Codex does not always pass on the first piece of a command's output, so it says the same again and again.
    script = f"while [ ! -e {go_on} ]; do echo 1/3 tests passed; sleep 0.05; done; echo 3/3 tests passed"
    model.on("Test", run(script), say("Tested."))
    async with cli.on_terminal("run", "-s", "read-only", "Test", columns=140) as program:
        await program.shows("1 of 3 tests, about ")
        await program.shows(" left  running while [ ! -e")
        go_on.touch()
        await program.shows("• Tested.")
        assert await program.exit_code() == 0


async def test_ctrl_c_stops_the_turn_first(cli: Cli, model: ScriptedModel) -> None:
    model.on("Sleep", run("sleep 300"), say("Never."))
    async with cli.on_terminal("run", "-s", "read-only", "Sleep") as program:
        await program.shows("running sleep 300")
        program.press("\x03")
        await program.shows("Interrupting the turn. Ctrl-C now leaves at once.")
        await program.shows("$ sleep 300  ✗ did not finish\n")
        await program.shows("■ Interrupted")
        await program.shows("continue with helmsman run --session")
        assert await program.exit_code() == 130


async def test_ctrl_c_at_the_prompt_withdraws_the_question(cli: Cli, model: ScriptedModel) -> None:
    model.on("Publish", run("touch /published", escalate="Why not"), say("Never."))
    async with cli.on_terminal("run", *WRITABLE, "Publish") as program:
        before = program.terminal.modes
        await program.shows("deny and stop the turn")
        program.press("\x03")
        await program.shows("■ Interrupted")
        assert await program.exit_code() == 130
        assert program.terminal.modes == before


async def test_a_piped_result_is_not_repeated_on_the_terminal(cli: Cli, model: ScriptedModel) -> None:
    model.on("Look", [say("I look.", phase="commentary"), run("echo hi")], say("The answer."))
    read, write = os.pipe()
    async with cli.on_terminal("run", "Look", stdout=write) as program:
        os.close(write)
        await program.shows("• I look.")
        await program.shows("✓ Done in")
        assert await program.exit_code() == 0
    with os.fdopen(read, encoding="utf-8") as result:
        assert result.read() == "The answer.\n"
    assert "The answer." not in program.screen


async def test_there_are_colours_on_a_terminal_unless_unwanted(cli: Cli, model: ScriptedModel) -> None:
    model.on("Look", run("exit 1"), say("Done."))
    async with cli.on_terminal("run", "-s", "read-only", "Look") as program:
        await program.shows("✓ Done in")
        await program.exit_code()
    assert "\x1b[31m✗ exit 1" in program.terminal.raw
    async with cli.on_terminal("run", "-s", "read-only", "Look", NO_COLOR="1") as program:
        await program.shows("✓ Done in")
        await program.exit_code()
    assert "✗ exit 1" in program.terminal.raw
    assert "\x1b[31m" not in program.terminal.raw


async def test_a_dumb_terminal_gets_plain_lines(cli: Cli, model: ScriptedModel) -> None:
    model.on("Look", run("echo hi"), say("Done."))
    async with cli.on_terminal("run", "Look", TERM="dumb") as program:
        await program.shows("✓ exit 0")
        assert await program.exit_code() == 0
    assert "\x1b" not in program.terminal.raw


async def test_a_plan_is_followed_step_by_step(
    cli: Cli, model: ScriptedModel, codex_version: tuple[int, int, int]
) -> None:
    if codex_version >= (0, 155, 0):
        pytest.skip("Codex from 0.155 on has no tool for plans.")
    model.on("Plan", plan(("Look", "completed"), ("Mend", "in_progress")), say("Planned."))
    async with cli.on_terminal("run", "Plan") as program:
        await program.shows("Plan  1 of 2 steps\n  ✓ Look\n  ▸ Mend\n")
        assert await program.exit_code() == 0


async def test_an_agent_that_cannot_be_steered_says_so_and_the_message_can_be_queued(
    cli: Cli, model: ScriptedModel
) -> None:
    gate = model.gate()
    model.on("Work", say(gate, "Worked."))
    model.on("Then rest", say("Rested."))
    async with cli.on_terminal("run", "--engine", "exec", "-a", "never", "Work") as program:
        with anyio.fail_after(30):
            await gate.reached()
        program.press("Then rest\r")
        await program.shows("Tab queues it, for it cannot be steered")
        await program.shows("› Then rest")
        program.press("\t")
        await program.shows("1 Then rest")
        gate.release()
        await program.shows("• Worked.")
        await program.shows("• Rested.")
        await program.shows("› your message")
        program.press("\x04")
        assert await program.exit_code() == 0
