"""Tests of `helmsman status` for sessions of any process."""

from __future__ import annotations

import anyio
import pytest

from helmsman.service import HelmsmanService
from helmsman.testing import Gate, ScriptedModel, response_failed, say
from tests.cli.conftest import Cli, LeaveBehind

pytestmark = pytest.mark.anyio


async def test_a_session_that_has_ended_shows_its_answer(cli: Cli, model: ScriptedModel) -> None:
    model.on("alpha", say("The first\nanswer."))
    session_id = (await cli.run("run", "--json", "alpha")).json[-1]["sessionId"]
    for reference in (session_id[-8:], session_id[-8:-4], session_id[:25]):
        done = await cli.run("status", reference)
        assert done.exit_code == 0, done.stderr
        lines = done.stdout.splitlines()
        assert lines[:3] == [f"session    {session_id}", "status     done", f"directory  {cli.directory}"]
        assert "\n\nThe first\nanswer.\n" in done.stdout
    (said,) = (await cli.run("status", session_id, "--json")).json
    assert (said["status"], said["result"]) == ("done", "The first\nanswer.")
    assert "first" not in (await cli.run("status", session_id, "--lines", "0")).stdout


async def test_a_session_that_failed_says_why_and_exits_with_1(cli: Cli, model: ScriptedModel) -> None:
    model.otherwise(response_failed("insufficient_quota", "No quota left."))
    session_id = (await cli.run("run", "--json", "--attempts", "1", "alpha")).json[-1]["sessionId"]
    done = await cli.run("status", session_id)
    assert done.exit_code == 1
    assert "\nstatus     failed\nerror      usage_limit_exceeded: " in done.stdout
    (said,) = (await cli.run("status", session_id, "--json")).json
    assert said["error"]["message"] in done.stdout


async def test_a_session_of_a_process_that_has_gone_is_looked_at_live(cli: Cli, left_behind: LeaveBehind) -> None:
    gate = Gate()
    session_id = await left_behind.working(gate)
    try:
        done = await cli.run("status", session_id)
        assert (done.exit_code, done.stdout.splitlines()[1]) == (0, "status     running: nothing finished yet")
        (said,) = (await cli.run("status", session_id, "--json")).json
        assert (said["status"], "note" in said) == ("active", False)
    finally:
        gate.release()


async def test_an_open_question_is_shown_with_the_command_that_answers_it(cli: Cli, left_behind: LeaveBehind) -> None:
    session_id = await left_behind.asking()
    done = await cli.run("status", session_id)
    assert done.exit_code == 5
    assert "\nstatus     waiting for you" in done.stdout
    assert "nothing finished yet" not in done.stdout
    assert "? Codex asks to run a command outside the sandbox\n  Command: touch made.txt\n" in done.stdout
    assert "\n    approve\n    approve_session\n" in done.stdout
    (said,) = (await cli.run("status", session_id, "--json")).json
    question = said["pendingQuestion"]["id"]
    assert f"helmsman respond {session_id[-8:]} {question} approve\n" in done.stdout


async def test_a_session_bound_to_another_process_says_so(cli: Cli, bound_elsewhere: tuple[str, Gate]) -> None:
    session_id, _ = bound_elsewhere
    done = await cli.run("status", session_id)
    assert (done.exit_code, done.stdout.splitlines()[1]) == (0, "status     running: nothing finished yet")
    assert "only it can steer, stop and answer it" in done.stdout


async def test_an_ambiguous_session_is_a_usage_error(cli: Cli, helm: HelmsmanService, model: ScriptedModel) -> None:
    model.otherwise(say("Done."))
    first, second = [await helm.start("alpha", cwd=cli.directory) for _ in range(2)]
    with anyio.fail_after(30):
        await first.wait(until="end")
        await second.wait(until="end")
    for reference, problem in (
        (first.id[: _shared(first.id, second.id)], "may be any of these"),
        ("ab", "is too short for a session"),
        ("00000000-0000-7000-8000-000000000000", "There is no session 00000000-0000-7000-8000-000000000000"),
    ):
        done = await cli.run("status", reference)
        assert (done.exit_code, done.stdout) == (2, "")
        assert problem in done.stderr
    unknown = await cli.run("status", "abcd1234", "--json")
    assert (unknown.exit_code, unknown.json[0]["error"]["code"]) == (2, "session_not_found")


async def test_the_tokens_of_all_turns_survive_hub_and_engine(detached_cli: Cli, model: ScriptedModel) -> None:
    cli = detached_cli
    model.otherwise(say("Done."))
    session_id = (await cli.run("run", "--json", "alpha")).json[-1]["sessionId"]
    await cli.run("run", "--json", "--session", session_id, "beta")
    before = (await cli.run("status", session_id, "--json")).json[0]["usage"]
    assert before["inputTokens"] > 0
    await cli.run("hub", "stop", "--yes")
    await cli.run("engines", "stop", "--all", "--yes")
    assert (await cli.run("status", session_id, "--json")).json[0]["usage"] == before


def _shared(one: str, other: str) -> int:
    """How many characters two texts begin with in common."""
    return next(place for place, (a, b) in enumerate(zip(one, other, strict=True)) if a != b)
