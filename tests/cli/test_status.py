"""`helmsman status`: what a session is doing, whichever process runs it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from helmsman.testing import Gate, response_failed, say

if TYPE_CHECKING:
    from helmsman.testing import ScriptedModel
    from tests.cli.conftest import Cli, LeaveBehind

pytestmark = pytest.mark.anyio


async def test_a_session_that_has_ended_shows_its_answer(cli: Cli, model: ScriptedModel) -> None:
    model.on("alpha", say("The first\nanswer."))
    session_id = (await cli.run("run", "--json", "alpha")).json[-1]["sessionId"]
    for reference in (session_id, session_id[-8:], session_id[:25]):
        done = await cli.run("status", reference)
        assert done.exit_code == 0, done.stderr
        lines = done.stdout.splitlines()
        assert lines[0] == f"{session_id}  done"
        assert str(cli.directory) in lines[1]
        assert "The first\nanswer." in done.stdout
    (said,) = (await cli.run("status", session_id, "--json")).json
    assert (said["status"], said["result"]) == ("done", "The first\nanswer.")
    assert "first" not in (await cli.run("status", session_id, "--lines", "0")).stdout


async def test_a_session_that_failed_says_why_and_exits_with_1(cli: Cli, model: ScriptedModel) -> None:
    model.otherwise(response_failed("insufficient_quota", "No quota left."))
    session_id = (await cli.run("run", "--json", "--attempts", "1", "alpha")).json[-1]["sessionId"]
    done = await cli.run("status", session_id)
    print(done)
    assert done.exit_code == 1
    assert done.stdout.startswith(f"{session_id}  error\n")
    (said,) = (await cli.run("status", session_id, "--json")).json
    assert said["error"]["message"] in done.stdout


async def test_a_session_of_a_process_that_has_gone_is_looked_at_live(cli: Cli, left_behind: LeaveBehind) -> None:
    gate = Gate()
    session_id = await left_behind.working(gate)
    try:
        done = await cli.run("status", session_id)
        print(done)
        assert (done.exit_code, done.stdout.splitlines()[0]) == (0, f"{session_id}  active")
        (said,) = (await cli.run("status", session_id, "--json")).json
        assert (said["status"], "note" in said) == ("active", False)
    finally:
        gate.release()


async def test_an_open_question_is_shown_with_the_command_that_answers_it(cli: Cli, left_behind: LeaveBehind) -> None:
    session_id = await left_behind.asking()
    done = await cli.run("status", session_id)
    print(done)
    assert done.exit_code == 5
    assert done.stdout.startswith(f"{session_id}  awaiting_approval\n")
    assert "touch made.txt" in done.stdout
    (said,) = (await cli.run("status", session_id, "--json")).json
    question = said["pendingQuestion"]["id"]
    assert f"helmsman respond {session_id[-8:]} {question} approve\n" in done.stdout


async def test_a_session_bound_to_another_process_says_so(cli: Cli, bound_elsewhere: tuple[str, Gate]) -> None:
    session_id, _ = bound_elsewhere
    done = await cli.run("status", session_id)
    print(done)
    assert (done.exit_code, done.stdout.splitlines()[0]) == (0, f"{session_id}  active")
    assert "only it can follow and stop it" in done.stdout


async def test_what_does_not_name_one_session_is_a_usage_error(cli: Cli, model: ScriptedModel) -> None:
    model.otherwise(say("Done."))
    ids = [(await cli.run("run", "--json", "alpha")).json[-1]["sessionId"] for _ in range(2)]
    common = next(n for n in range(8, 36) if ids[0][:n] != ids[1][:n]) - 1
    for reference, problem in (
        (ids[0][: min(common, 35)], "may be any of"),
        ("ab", "is too short for a session"),
        ("abcd1234", "There is no session abcd1234"),
        ("00000000-0000-7000-8000-000000000000", "There is no session 00000000-0000-7000-8000-000000000000"),
    ):
        done = await cli.run("status", reference)
        assert (done.exit_code, done.stdout) == (2, "")
        assert problem in done.stderr
    assert (await cli.run("status", "abcd1234", "--json")).json[0]["error"]["code"] == "session_not_found"
