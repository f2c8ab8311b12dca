"""Tests of `helmsman say`: it sends the next message, and returns immediately if the turn can run without it."""

from __future__ import annotations

import anyio
import pytest

from helmsman.testing import Gate, ScriptedModel, say
from tests.cli.conftest import Cli, LeaveBehind

pytestmark = pytest.mark.anyio


@pytest.fixture
async def session_id(cli: Cli, model: ScriptedModel) -> str:
    """Session with one turn, whose process is gone."""
    model.on("alpha", say("First."))
    ended: str = (await cli.run("run", "--json", "alpha")).json[-1]["sessionId"]
    return ended


async def test_a_message_is_sent_and_the_turn_continues_alone(
    detached_cli: Cli, model: ScriptedModel, session_id: str
) -> None:
    cli = detached_cli
    gate = Gate()
    model.on("beta", say(gate, "Second."))
    done = await cli.run("say", session_id[-8:], "beta", "--json")
    assert done.exit_code == 0, done.stderr
    (said,) = done.json
    assert (said["sessionId"], said["status"]) == (session_id, "active")
    refused = await cli.run("say", session_id, "gamma")
    assert refused.exit_code == 1
    gate.release()
    ended = await cli.run("tasks", "wait", said["taskId"], "--timeout", "30", "--json")
    assert (ended.exit_code, ended.json[0]["result"]) == (0, "Second.")

    model.on("delta", say(Gate(), "Never."))
    await cli.run("say", session_id, "delta")
    async with anyio.create_task_group() as tasks:

        async def interrupt() -> None:
            while "epsilon" not in (await cli.run("tasks", "--status", "pending")).stdout:
                pass
            stopped = await cli.run("interrupt", session_id)
            assert "is interrupted. 1 queued message dropped." in stopped.stderr

        tasks.start_soon(interrupt)
        taken_back = await cli.run("say", session_id, "epsilon", "--queue")
    assert (taken_back.exit_code, taken_back.stdout) == (130, "")
    assert "Not sent." in taken_back.stderr


async def test_a_message_is_followed_to_the_end_of_its_turn(
    detached_cli: Cli, model: ScriptedModel, session_id: str
) -> None:
    cli = detached_cli
    model.on("from stdin", say("Second."))
    done = await cli.run("say", session_id, "-", "--wait", stdin=b"from stdin")
    assert (done.exit_code, done.stdout) == (0, "Second.\n")
    assert "First." not in done.stderr
    model.on("gamma", say("Third."))
    run = await cli.run("run", "--session", session_id, "gamma")  # in the same engine: it has the session open
    assert (run.exit_code, run.stdout) == (0, "Third.\n")
    assert model.requests[-1].user_texts[-3:] == ("alpha", "from stdin", "gamma")


async def test_a_turn_that_would_end_with_the_command_is_followed(
    cli: Cli, model: ScriptedModel, session_id: str
) -> None:
    model.on("beta", say("Second."))
    done = await cli.run("say", session_id, "beta", HELMSMAN_DETACH="0")
    assert (done.exit_code, done.stdout) == (0, "Second.\n")


async def test_a_queued_message_waits_for_the_running_turn(
    cli: Cli, model: ScriptedModel, left_behind: LeaveBehind
) -> None:
    gate = Gate()
    busy = await left_behind.working(gate)
    model.on("beta", say("Second."))
    async with anyio.create_task_group() as tasks:

        async def release() -> None:
            while "beta" not in (await cli.run("tasks", "--status", "pending")).stdout:
                pass
            await cli.run("status", busy)  # `say` follows by now, or waits for its own turn
            gate.release()

        tasks.start_soon(release)
        done = await cli.run("say", busy, "beta", "--queue", "--wait")
    assert (done.exit_code, done.stdout) == (0, "Second.\n")
    assert model.requests[-1].user_texts[-2:] == ("A slow job", "beta")


async def test_a_steered_message_goes_into_the_running_turn(
    cli: Cli, model: ScriptedModel, left_behind: LeaveBehind
) -> None:
    gate = Gate()
    busy = await left_behind.working(gate)
    model.on("parser", say("Only the parser."))
    for arguments in (["say", busy], ["run", "--session", busy], ["run", "--detach", "--session", busy]):
        refused = await cli.run(*arguments, "only the parser")
        assert refused.exit_code == 1
        assert f'`helmsman say {busy[-8:]} "…" --steer` puts your message into it, --queue' in refused.stderr
    done = await cli.run("say", busy, "only the parser", "--steer")
    assert done.exit_code == 0, done.stderr
    assert f"helmsman watch {busy[-8:]}" in done.stderr
    gate.release()
    assert (await cli.run("watch", busy)).stdout == "Only the parser.\n"


async def test_nothing_is_put_into_a_turn_that_another_process_runs(
    cli: Cli, bound_elsewhere: tuple[str, Gate]
) -> None:
    session_id, _ = bound_elsewhere
    for arguments in (
        ["say", session_id, "x", "--steer"],
        ["say", session_id, "x", "--queue"],
        ["steer", session_id, "x"],
    ):
        done = await cli.run(*arguments)
        assert done.exit_code == 1
        assert "runs this turn, and only it can" in done.stderr
    assert (await cli.run("respond", session_id, "q_1", "approve", "--json")).json[0]["error"][
        "code"
    ] == "task_not_ours"
    stopped = await cli.run("interrupt", session_id)
    assert stopped.exit_code == 1
    assert "Do that there" in stopped.stderr
