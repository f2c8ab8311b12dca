"""The clock of a question at a terminal, and who is said to have answered."""

from __future__ import annotations

import json
import os
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import anyio
import pytest

from helmsman import Helmsman
from helmsman.base.structs import replace
from helmsman.settings import Settings
from helmsman.testing import CodexHome, ScriptedModel, run, say
from tests import warm
from tests.cli.conftest import SECONDS, Cli, LeaveBehind
from tests.pseudo_terminal import PseudoTerminal

pytestmark = pytest.mark.anyio

WRITABLE = ("-s", "workspace-write", "-a", "on-request")


def audit(cli: Cli) -> list[tuple[str, str | None]]:
    file = os.path.join(cli.env["HELMSMAN_STATE_DIR"], "audit.jsonl")  # noqa: PTH118
    with open(file, encoding="utf-8") as lines:  # noqa: PTH123
        return [(entry["by"], entry.get("via")) for entry in map(json.loads, lines)]


async def test_a_prompt_in_the_foreground_stops_the_clock(cli: Cli, model: ScriptedModel, git_repo: Path) -> None:
    model.on("Touch", run("touch made.txt", escalate="why not"), say("Made."))
    async with cli.on_terminal("run", *WRITABLE, "Touch it", APPROVAL_TIMEOUT_MS="2000") as program:
        await program.shows("left to answer, paused while it is on screen.")
        await program.shows("deny and stop the turn")
        with anyio.move_on_after(3):  # longer than it would have had
            await program.process.wait()
        program.press("y")
        await program.shows("• Made.")
        assert await program.exit_code() == 0
    assert (git_repo / "made.txt").exists()
    assert audit(cli) == [("person", "terminal")]


IN_BACKGROUND = """
import os, signal, sys
from helmsman.terminal.keyboard import open_keyboard
signal.signal(signal.SIGTTOU, signal.SIG_IGN)
with open_keyboard() as keyboard:
    print("foreground", keyboard.is_in_foreground())
    child = os.fork()
    if child == 0:
        signal.pause()
    os.setpgid(child, child)
    os.tcsetpgrp(0, child)
    print("background", keyboard.is_in_foreground())
    os.tcsetpgrp(0, os.getpgrp())
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    print("again", keyboard.is_in_foreground())
"""


async def test_a_process_in_the_background_shows_nothing(bare_cli: Cli) -> None:
    terminal = PseudoTerminal()
    try:
        process = await anyio.open_process(
            [sys.executable, "-c", warm.ON_ITS_TERMINAL, sys.executable, "-c", IN_BACKGROUND],
            stdin=terminal.program_side,
            stdout=terminal.program_side,
            stderr=terminal.program_side,
            env=bare_cli.env,
            start_new_session=True,
        )
        async with process:
            for line in ("foreground True", "background False", "again True"):
                await terminal.shows(line)
    finally:
        terminal.close()


@pytest.mark.rare
async def test_a_prompt_that_was_suspended_does_not_stop_the_clock(
    detached_cli: Cli, settings: Settings, codex_home: CodexHome, left_behind: LeaveBehind, git_repo: Path
) -> None:
    """In a real shell: Ctrl-Z at the prompt, and another process that has the session open denies it."""
    session_id = await left_behind.asking(approval_timeout=12.0)
    terminal = PseudoTerminal(columns=200)
    shell = ["/bin/bash", "--norc", "--noprofile", "-i"]
    try:
        process = await anyio.open_process(
            [sys.executable, "-c", warm.ON_ITS_TERMINAL, *shell],
            stdin=terminal.program_side,
            stdout=terminal.program_side,
            stderr=terminal.program_side,
            env=detached_cli.env | {"PS1": "READY> "},
            cwd=git_repo,
            start_new_session=True,
        )
        async with process, AsyncExitStack() as stack:
            stack.callback(process.kill)  # its descendants end with its terminal
            await terminal.shows("READY>")
            terminal.press(f"{sys.executable} -m helmsman watch {session_id}\n")
            await terminal.shows("deny and stop the turn")
            async with Helmsman(replace(settings, detach=True), env=codex_home.env) as helm:
                session = await helm.session(session_id)
                (deadline,) = session.deadlines.values()
                with anyio.fail_after(SECONDS):
                    while not deadline.is_paused:
                        await anyio.sleep(0.02)
                terminal.press("\x1a")
                await terminal.shows("Stopped")
                assert await session.wait(until="end", timeout=SECONDS)
                assert session.state.timed_out
            terminal.press("fg\n")
            await terminal.shows("denied: no answer")
            await terminal.shows("READY>")
    finally:
        terminal.close()
    assert audit(detached_cli) == [("deadline", None)]


async def test_status_counts_down_and_an_answer_in_a_shell_is_said_to_be_just_that(
    detached_cli: Cli, left_behind: LeaveBehind
) -> None:
    session_id = await left_behind.asking(approval_timeout=300.0)
    status = await detached_cli.run("status", session_id)
    assert "Denied in 5 min unless answered." in status.stdout or "Denied in 4 min" in status.stdout
    shown: dict[str, Any] = (await detached_cli.run("status", session_id, "--json")).json[0]
    assert shown["pendingQuestion"]["deadline"]["paused"] is False
    question_id = shown["pendingQuestion"]["id"]
    await detached_cli.run("respond", session_id, question_id, "deny")
    assert audit(detached_cli) == [("command line", None)]


@pytest.mark.long
async def test_unanswered_questions_are_shown_in_watch_status_and_lists(
    detached_cli: Cli, left_behind: LeaveBehind
) -> None:
    session_id = await left_behind.asking(approval_timeout=3.0)
    watched = await detached_cli.run("watch", session_id)
    assert "denied: no answer" in watched.stderr
    assert "! Done, but not everything was answered" in watched.stderr
    assert "A question timed out and was denied" in watched.stderr
    status = await detached_cli.run("status", session_id)
    assert "done, but not everything was answered" in status.stdout
    assert "A question timed out and was denied" in status.stdout
    (listed,) = (await detached_cli.run("list", "--json")).json
    assert len(listed["sessions"][0]["timedOut"]) == 1
    async with detached_cli.on_terminal("list", columns=140) as program:
        await program.shows("unanswered")
        await program.exit_code()
    assert (await detached_cli.run("tasks")).stdout.split("\t")[2] == "completed (a question timed out)"
    async with detached_cli.on_terminal("tasks", columns=140) as program:
        await program.shows("(a question timed out) ")
        await program.exit_code()
