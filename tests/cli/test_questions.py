"""`helmsman respond`, the inbox of all sessions, and `helmsman` alone, which says that there is something in it."""

from __future__ import annotations

import anyio
import pytest

from tests.cli.conftest import Cli, LeaveBehind

pytestmark = pytest.mark.anyio


async def test_questions_of_all_sessions_are_answered_one_by_one(cli: Cli, left_behind: LeaveBehind) -> None:
    first = await left_behind.asking("touch the first")
    second = await left_behind.asking("touch the second")
    overview = await cli.run()
    for text in ("Waits for you", "waiting for you", "helmsman respond"):
        assert text in overview.stdout
    async with cli.on_terminal("respond") as program:
        await program.shows(f"{first[-8:]}  touch the first")
        await program.shows("deny and stop the turn")
        program.press("\x04")
        await program.shows("Left unanswered.")
        await program.shows(f"{second[-8:]}  touch the second")
        await program.shows("deny and stop the turn")
        program.press("y")
        await program.shows("→ approve")
        await program.shows("1 question is still open.")
        assert await program.exit_code() == 5
    assert (await cli.run("watch", second)).stdout == "Made.\n"
    shown = await cli.run("respond")
    assert shown.exit_code == 5
    assert f"helmsman respond {first[-8:]} " in shown.stdout
    (listed,) = (await cli.run("respond", "--json")).json
    assert [one["sessionId"] for one in listed["sessions"]] == [first]


async def test_a_question_that_another_client_answers_is_withdrawn(cli: Cli, left_behind: LeaveBehind) -> None:
    session_id = await left_behind.asking()
    (shown,) = (await cli.run("respond", session_id, "--json")).json
    async with cli.on_terminal("respond") as program:
        await program.shows("deny and stop the turn")
        done = await cli.run("respond", session_id, shown["questions"][0]["id"], "deny")
        assert done.exit_code == 0, done.stderr
        await program.shows("No answer is needed now.")
        assert await program.exit_code() == 0
    with anyio.fail_after(60):
        assert (await cli.run("watch", session_id)).exit_code == 0


async def test_helmsman_alone_says_what_to_do_in_a_pipe_and_at_a_terminal(bare_cli: Cli) -> None:
    piped = await bare_cli.run()
    assert piped.exit_code == 0
    assert "No agent has a session here yet." in piped.stdout
    assert "helmsman demo" in piped.stdout
    async with bare_cli.on_terminal() as program:
        await program.shows("No agent has a session here yet.")
        program.press("q")
        assert await program.exit_code() == 0
