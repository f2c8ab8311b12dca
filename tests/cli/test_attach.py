"""`helmsman session attach`, and sessions that a person has open in Codex's own daemon: the same session in two programs."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from helmsman import Helmsman
from helmsman.agents.codex.app_servers import daemon_socket
from helmsman.base.structs import replace
from helmsman.errors import AnswerInvalid
from helmsman.model.answered_by import AnsweredBy
from helmsman.settings import Settings
from helmsman.testing import CodexHome, Gate, ScriptedModel, codex_versions, installed_codex, run, say
from helmsman.testing.hubs import hub_pid
from tests.cli.conftest import Cli, LeaveBehind
from tests.tmux import on_tmux

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.long,
    pytest.mark.skipif(shutil.which("tmux") is None, reason="there is no tmux"),
]

TITLE = "task title of at most", say("A title")
"""Codex's own terminal program has the model name its sessions."""
ASKS = "Would you like to run the following command?"


@pytest.fixture(scope="session")
def codex_binary() -> Path:
    """The newest there is: only that can be joined, and has a daemon."""
    newest = next(reversed(codex_versions().values()), None) or installed_codex()
    if newest is None:
        pytest.skip("There is no Codex.")
    return newest


async def test_a_session_is_joined_in_codex_and_either_side_answers(
    cli: Cli, left_behind: LeaveBehind, model: ScriptedModel
) -> None:
    gate = Gate()
    model.on("A slow job", say(gate, "At last."))
    session_id = await left_behind.asking()
    model.on(*TITLE)
    command = (str(Path(sys.executable).with_name("helmsman")), "attach", session_id[-8:])
    with on_tmux(command, cli.env, cli.directory) as terminal:
        await terminal.has_shown(ASKS)  # immediately: no page before it, whose answer would change the session's model
        await terminal.answer("y", ASKS)
        await terminal.has_shown("• Made.")
        watched = await cli.run("watch", session_id, "--json")
        assert (watched.json[-1]["result"], watched.exit_code) == ("Made.", 0)
        (listed,) = (await cli.run("tasks", "list", "--json")).json
        assert [task["status"] for task in listed["tasks"]] == ["completed"]

        terminal.press("touch a file once more")
        await terminal.has_shown("› touch a file once more")  # or the Enter counts as part of something pasted
        terminal.press("Enter")  # a task like any other, though it was asked for in Codex
        await terminal.has_shown(ASKS)
        with anyio.fail_after(30):  # the terminal may show it a moment before the hub
            while not (inbox := (await cli.run("respond", "--json")).json[0])["sessions"]:
                pass
        (asked,) = inbox["sessions"]
        assert asked["sessionId"] == session_id
        answered = await cli.run("respond", session_id, asked["questions"][0]["id"], "approve")
        assert answered.exit_code == 0, answered.stderr
        await terminal.has_shown("• Made.", times=2)

        assert (await cli.run("say", session_id, "A slow job")).exit_code == 0
        with anyio.fail_after(30):
            await gate.reached()
        await terminal.has_shown("› A slow job")
        terminal.press("C-d")
        await terminal.has_shown(f"Left. Session {session_id[-8:]} is still there")
        assert await terminal.exit_code() == 0
    gate.release()
    assert (await cli.run("watch", session_id, "--json")).json[-1]["result"] == "At last."


async def test_a_refused_attach_says_why_and_what_to_do_instead(cli: Cli, bound_elsewhere: tuple[str, Gate]) -> None:
    session_id, _gate = bound_elsewhere
    refused = await cli.run("session", "attach", session_id)
    assert (refused.exit_code, refused.stderr) == (
        2,
        "Error: This needs a terminal. `helmsman session attach --json` shows what to run in one.\n",
    )
    (said,) = (await cli.run("session", "attach", session_id, "--json")).json
    assert said["error"]["code"] == "session_locked"
    assert f"`helmsman watch {session_id[-8:]}` follows it" in said["error"]["message"]


@asynccontextmanager
async def _daemon(codex_binary: Path, codex_home: CodexHome) -> AsyncIterator[None]:
    """The program of Codex's own daemon, where that listens. (Codex would copy itself into the home first, all of it.)"""
    async with await anyio.open_process(
        [str(codex_binary), "app-server", "--listen", "unix://"],
        env=codex_home.env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            with anyio.fail_after(30):
                while daemon_socket(codex_home.path) is None:
                    await anyio.sleep(0.05)
            yield
        finally:
            process.terminate()
            await process.wait()


async def test_a_session_open_in_codex_own_daemon_continues_through_it(
    cli: Cli,
    detached_cli: Cli,
    detached_engines: Path,
    codex_binary: Path,
    codex_home: CodexHome,
    model: ScriptedModel,
    settings: Settings,
) -> None:
    codex_home.configure(
        projects={str(cli.directory): {"trust_level": "trusted"}},
        notice={"model_migrations": {"gpt-5.5": "gpt-6-sol"}},
        check_for_update_on_startup=False,
    )
    model.on("touch a file", run("touch made.txt", escalate="It must leave the sandbox"), say("Made."))
    model.on("and now?", say("Heard."))
    model.on(*TITLE)
    async with _daemon(codex_binary, codex_home):
        with on_tmux((str(codex_binary), "--remote", "unix://", "touch a file"), cli.env, cli.directory) as terminal:
            await terminal.has_shown(ASKS)
            (listed,) = (await cli.run("list", "--json")).json
            session_id = listed["sessions"][0]["sessionId"]

            # The person's turn: it is followed, and its question answered by whoever is first. No deadline of ours.
            busy = await cli.run("say", session_id, "hello")
            assert "A turn is running" in busy.stderr
            steered = await cli.run("say", session_id, "do more", "--steer", "--json")
            assert steered.json[-1]["error"]["code"] == "session_locked"
            (asked,) = (await cli.run("respond", session_id, "--json")).json
            question_id = asked["questions"][0]["id"]
            assert "Denied in" not in (await cli.run("respond", session_id)).stdout
            async with Helmsman(replace(settings, detach=True), env=codex_home.env) as helm:
                with pytest.raises(AnswerInvalid, match="only a person"):
                    await helm.respond(session_id, question_id, ["approve"], by=AnsweredBy("agent", "a client"))
            answered = await cli.run("respond", session_id, question_id, "approve")
            assert answered.exit_code == 0, answered.stderr
            await terminal.has_shown("• Made.")
            assert (await cli.run("watch", session_id)).exit_code == 0  # until its turn has ended here too

            # Ours: never under more than the person's session may do.
            wider = await cli.run("say", session_id, "touch a file", "-s", "danger-full-access", "--json")
            assert wider.json[-1]["error"]["code"] == "policy_widened"
            assert (await cli.run("say", session_id, "touch a file for me")).exit_code == 0
            await terminal.has_shown("› touch a file for me")
            await terminal.has_shown(ASKS)
            hub = hub_pid(detached_engines)
            assert hub is not None
            os.kill(hub, signal.SIGKILL)  # the next one follows it there
            assert (await cli.run("status", session_id)).exit_code == 5
            await terminal.answer("y", ASKS)
            assert (await cli.run("watch", session_id, "--json")).json[-1]["result"] == "Made."
            await terminal.has_shown("• Made.", times=2)
    # Without the daemon it continues like any other.
    said = await cli.run("say", session_id, "and now?", "--wait", "--json")
    assert said.json[-1]["result"] == "Heard.", said.stdout
