"""Tests of `helmsman respond`, `steer` and `interrupt` in a running turn."""

from __future__ import annotations

import json

import pytest

from helmsman.settings import Settings
from helmsman.testing import Gate, ScriptedModel, say
from tests.cli.conftest import Cli, LeaveBehind

pytestmark = pytest.mark.anyio


async def test_a_question_is_shown_and_answered_once(cli: Cli, left_behind: LeaveBehind) -> None:
    gate = Gate()
    session_id = await left_behind.asking(gate=gate)
    shown = await cli.run("respond", session_id[-8:])
    assert shown.exit_code == 5
    assert "Command: touch made.txt" in shown.stdout
    command = shown.stdout.rpartition("Answer it: helmsman ")[2].split()
    assert command[-1] == "approve"
    everywhere = await cli.run("respond")  # without a session id
    assert everywhere.exit_code == 5
    assert shown.stdout.partition("Denied in")[0] in everywhere.stdout  # some of the time has passed
    (task,) = (await cli.run("tasks", "--json")).json[0]["tasks"]
    assert f"helmsman respond {session_id[-8:]}" in (await cli.run("tasks", "show", task["taskId"])).stderr
    assert f"Session {session_id[-8:]}" in (await cli.run("status")).stderr, "the only one here is meant"
    unnamed = await cli.run("respond", session_id, "approve")
    assert (unnamed.exit_code, "id comes before the answer" in unnamed.stderr) == (2, True)
    assert (await cli.run("respond", session_id, command[2], "perhaps")).exit_code == 2
    assert (await cli.run("respond", session_id, "q_other", "approve")).exit_code == 2
    answered = await cli.run(*command)
    assert (answered.exit_code, answered.stdout) == (0, "")
    assert f"Answered. Session {session_id} is active" in answered.stderr
    gate.release()
    assert (await cli.run("watch", session_id)).stdout == "Made.\n"
    assert (cli.directory / "made.txt").exists()
    again = await cli.run(*command, "--json")
    assert (again.exit_code, again.json[0]["error"]["code"]) == (2, "question_not_open")
    assert "answered already: approved at the command line" in again.json[0]["error"]["message"]
    nothing = await cli.run("respond", session_id)
    assert nothing.exit_code == 0
    assert "has no open question" in nothing.stderr
    assert "There are no open questions" in (await cli.run("respond")).stderr


async def test_always_shows_its_rule_and_asks(cli: Cli, left_behind: LeaveBehind, settings: Settings) -> None:
    session_id = await left_behind.asking()
    (shown,) = (await cli.run("respond", session_id, "--json")).json
    answer = ("respond", session_id, shown["questions"][0]["id"], "approve_always")
    refused = await cli.run(*answer)
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert '[[rules]]\neffect = "allow"' in refused.stderr
    assert "touch made.txt" in refused.stderr
    assert "--yes" in refused.stderr
    async with cli.on_terminal(*answer, columns=20) as program:
        await program.shows("touch made.txt")  # as it is, not wrapped at words
        await program.shows("[y/N]")
        program.press("\n")
        assert await program.exit_code() == 1
    rules = settings.state_dir / "rules.toml"
    assert not rules.exists()
    assert not (cli.directory / "made.txt").exists()
    done = await cli.run(*answer, "--yes")
    assert done.exit_code == 0
    assert (await cli.run("watch", session_id)).exit_code == 0
    assert rules.read_text(encoding="utf-8").strip() in refused.stderr


async def test_the_reason_of_a_denial_reaches_the_model(
    cli: Cli, left_behind: LeaveBehind, model: ScriptedModel
) -> None:
    session_id = await left_behind.asking()
    (shown,) = (await cli.run("respond", session_id, "--json")).json
    denied = await cli.run("respond", session_id, shown["questions"][0]["id"], "deny: not on a Friday", "--json")
    assert denied.json[0]["sessionId"] == session_id
    assert (await cli.run("watch", session_id)).exit_code == 0
    assert "not on a Friday" in json.dumps(model.requests[-1].body["input"])
    assert not (cli.directory / "made.txt").exists()


async def test_a_turn_is_steered_and_then_stopped(cli: Cli, left_behind: LeaveBehind, model: ScriptedModel) -> None:
    gate, second = Gate(), Gate()
    session_id = await left_behind.working(gate)
    model.on("parser", say(second, "never"))
    steered = await cli.run("steer", session_id[-8:], "-", "--json", stdin=b"only the parser")
    assert steered.json == [{"sessionId": session_id, "steered": True}]
    gate.release()
    await second.reached()
    stopped = await cli.run("interrupt", session_id)
    assert (stopped.exit_code, stopped.stdout) == (0, "")
    assert f"Session {session_id} is interrupted" in stopped.stderr
    second.release()
    assert (await cli.run("interrupt", session_id, "--json")).json == [
        {"sessionId": session_id, "status": "interrupted"}
    ]
    idle = await cli.run("steer", session_id, "too late", "--json")
    assert (idle.exit_code, idle.json[0]["error"]["code"]) == (1, "session_idle")
