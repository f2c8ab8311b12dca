"""Tests of `helmsman watch`: a turn of another process, live, with its questions at the prompt, and Ctrl-C."""

from __future__ import annotations

import os
import pty
import signal
from pathlib import Path

import anyio
import pytest

from helmsman.agents.supervisor.records import read_records
from helmsman.testing import Gate, ScriptedModel, response_failed, say
from tests import warm
from tests.cli.conftest import Cli, LeaveBehind

pytestmark = pytest.mark.anyio


async def test_a_turn_in_a_detached_engine_is_followed_to_its_end(cli: Cli, left_behind: LeaveBehind) -> None:
    gate = Gate()
    session_id = await left_behind.working(gate, begin="It took long. ")
    async with cli.on_terminal("watch", session_id[-8:]) as program:
        await program.shows("• It took long.")
        gate.release()
        await program.shows("• It took long. At last.")
        await program.shows("✓ Done\n")
        assert await program.exit_code() == 0


async def test_a_question_is_answered_at_the_prompt(cli: Cli, left_behind: LeaveBehind) -> None:
    session_id = await left_behind.asking()
    async with cli.on_terminal("watch", session_id) as program:
        await program.shows("? Codex asks to run a command")
        await program.shows("Command: touch made.txt")
        await program.shows("deny and stop the turn")
        program.press("y")
        await program.shows("→ approve")
        await program.shows("• Made.")
        assert await program.exit_code() == 0
    assert (cli.directory / "made.txt").exists()
    assert program.screen.count("Codex asks to run a command") == 1
    assert program.terminal.raw.count("\a") == 1


async def test_a_terminal_that_is_closed_over_a_question_answers_nothing(cli: Cli, left_behind: LeaveBehind) -> None:
    session_id = await left_behind.asking()
    person, program_side = pty.openpty()
    process = await anyio.open_process(
        warm.command("watch", session_id, on_terminal=True),
        stdin=program_side,
        stdout=program_side,
        stderr=program_side,
        env=cli.env,
        start_new_session=True,
    )
    os.close(program_side)
    async with process:
        with anyio.fail_after(30):
            shown = b""
            while b"deny and stop the turn" not in shown:
                await anyio.wait_readable(person)
                shown += os.read(person, 4096)
            os.close(person)
            await process.wait()
    assert (await cli.run("respond", session_id)).exit_code == 5


async def test_without_a_terminal_a_question_is_left_to_others(cli: Cli, left_behind: LeaveBehind) -> None:
    session_id = await left_behind.asking()
    async with anyio.create_task_group() as tasks:

        async def answer() -> None:
            (shown,) = (await cli.run("respond", session_id, "--json")).json
            done = await cli.run("respond", session_id, shown["questions"][0]["id"], "approve")
            assert done.exit_code == 0, done.stderr

        tasks.start_soon(answer)
        watched = await cli.run("watch", session_id, "--json")
    assert watched.exit_code == 0
    closed = [event for event in watched.json if event["type"] == "question_closed"]
    assert [event.get("by") for event in closed] != ["handler"]
    assert watched.json[-1]["result"] == "Made."


async def test_q_and_ctrl_c_leave_and_stop_nothing_and_esc_twice_stops(cli: Cli, left_behind: LeaveBehind) -> None:
    gate = Gate()
    session_id = await left_behind.working(gate)
    for key, code in (("q", 0), ("\x03", 130)):
        async with cli.on_terminal("watch", session_id) as program:
            await program.shows("› Enter steers, Tab queues, q leaves")
            program.press(key)
            await program.shows("It keeps running without you. Come back with helmsman watch")
            assert await program.exit_code() == code
    async with cli.on_terminal("watch", session_id) as program:
        await program.shows("q leaves")
        program.press("quick")  # is a word, and leaves nothing
        await program.shows("› quick")
        program.press("\x03")
        await program.shows("q leaves")
        program.press("\x1b")
        await program.shows("Esc again stops the turn.")
        program.press("\x1b")
        await program.shows("■ Interrupted")
        assert await program.exit_code() == 130
    gate.release()
    assert "status     interrupted\n" in (await cli.run("status", session_id)).stdout


async def test_a_second_ctrl_c_leaves_at_once(detached_cli: Cli, model: ScriptedModel, detached_engines: Path) -> None:
    gate = model.gate()
    model.on("A slow job", say(gate, "Never."))
    async with detached_cli.on_terminal("run", "A slow job") as program:
        await program.shows("nothing finished yet")
        with anyio.fail_after(30):
            await gate.reached()
        (engine,) = read_records(detached_engines)
        os.kill(engine.child.pid, signal.SIGSTOP)  # so that the turn cannot end
        typing = program.terminal.modes
        try:
            program.press("\x03")
            await program.shows("Interrupting the turn. Ctrl-C now leaves at once.")
            program.press("\x03")
            await program.shows("Stopped before the turn had ended.")
            assert await program.exit_code() == 130
            assert program.terminal.modes != typing  # the shell gets the terminal as it was
        finally:
            os.kill(engine.child.pid, signal.SIGCONT)
    gate.release()


async def test_a_turn_of_another_process_is_waited_for_and_cannot_be_steered_or_stopped(
    cli: Cli, bound_elsewhere: tuple[str, Gate]
) -> None:
    session_id, gate = bound_elsewhere
    async with cli.on_terminal("watch", session_id) as program:
        await program.shows("runs this turn")
        program.press("Stop it\r")
        await program.shows("\nProcess")
        await program.shows("› Stop it")  # it comes back, below why
        program.press("\x03")
        await program.shows("› Enter steers")
        program.press("\x1b")
        await program.shows("Esc again")
        program.press("\x1b")
        await program.shows("runs this turn")
        assert await program.exit_code() == 130
    async with cli.on_terminal("watch", session_id) as program:
        await program.shows("runs this turn")
        gate.release()
        await program.shows("Bound and done.")
        await program.shows("✓ Done\n")
        assert await program.exit_code() == 0


async def test_a_turn_whose_process_is_killed_is_over(cli: Cli, model: ScriptedModel) -> None:
    gate = Gate()
    model.on("slow", say(gate, "never"))
    async with cli.started("run", "A slow job") as process:
        with anyio.fail_after(30):
            await gate.reached()
        (listed,) = (await cli.run("list", "--json")).json
        async with cli.on_terminal("watch", listed["sessions"][0]["sessionId"]) as program:
            await program.shows("runs this turn")
            process.kill()
            await process.wait()
            await program.shows("■ Interrupted")
            assert await program.exit_code() == 130
    gate.release()


async def test_an_ended_session_is_shown_with_its_exit_code(cli: Cli, model: ScriptedModel) -> None:
    model.on("alpha", say("First."))
    model.on("beta", response_failed("insufficient_quota", "No quota left."))
    session_id = (await cli.run("run", "--json", "alpha")).json[-1]["sessionId"]
    done = await cli.run("watch", session_id)
    assert (done.exit_code, done.stdout) == (0, "First.\n")
    await cli.run("run", "--session", session_id, "--attempts", "1", "beta")
    failed = await cli.run("watch", session_id, "--json")
    assert failed.exit_code == 1
    assert failed.json[-1]["error"]["code"] == "step_failed"
