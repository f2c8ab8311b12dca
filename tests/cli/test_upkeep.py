"""`helmsman fork`, `rollback`, `compact`, `rename`, `archive`, `unarchive`: the upkeep of a session at the command line."""

from __future__ import annotations

import pytest

from helmsman.cli.exit_codes import ExitCode
from helmsman.testing import ScriptedModel, response_failed, say
from tests.cli.conftest import Cli

pytestmark = pytest.mark.anyio


@pytest.fixture
async def session_id(cli: Cli, model: ScriptedModel) -> str:
    """A session with two turns."""
    model.on("alpha", say("first"))
    model.on("beta", say("second"))
    session_id: str = (await cli.run("run", "--json", "alpha")).json[-1]["sessionId"]
    await cli.run("run", "--session", session_id, "beta")
    return session_id


async def test_a_fork_without_a_message_prints_its_id_and_can_continue(
    cli: Cli, model: ScriptedModel, session_id: str
) -> None:
    forked = await cli.run("fork", session_id[-8:])
    assert forked.exit_code == ExitCode.OK
    fork = forked.stdout.strip()
    assert fork != session_id
    model.on("gamma", say("third"))
    gone_on = await cli.run("run", "--session", fork, "gamma")
    assert gone_on.stdout == "third\n"
    assert model.requests[-1].user_texts[-3:] == ("alpha", "beta", "gamma")


async def test_a_fork_with_a_message_runs_it(cli: Cli, model: ScriptedModel, session_id: str) -> None:
    model.on("other", say("another way"))
    forked = await cli.run("fork", session_id, "other", "--from-turn", "1")
    assert (forked.exit_code, forked.stdout) == (ExitCode.OK, "another way\n")
    assert model.requests[-1].user_texts[-2:] == ("alpha", "other")
    refused = await cli.run("fork", session_id, "--from-turn", "9", "--json")
    assert refused.exit_code == ExitCode.USAGE
    assert "number from 1 to 2" in refused.json[-1]["error"]["message"]


async def test_the_last_turns_are_rolled_back(cli: Cli, model: ScriptedModel, session_id: str) -> None:
    refused = await cli.run("session", "rollback", session_id)
    assert refused.exit_code == 2
    assert "--yes" in refused.stderr
    async with cli.on_terminal("session", "rollback", session_id) as program:
        await program.shows("Continue? [y/N]")
        program.press("n")
        assert await program.exit_code() == 1
    done = await cli.run("session", "rollback", session_id, "--yes")
    assert (done.exit_code, done.stdout) == (ExitCode.OK, "")
    assert "forgotten its last turn" in done.stderr
    model.on("gamma", say("third"))
    await cli.run("run", "--session", session_id, "gamma")
    assert "beta" not in model.requests[-1].user_texts
    assert (await cli.run("session", "rollback", session_id, "--turns", "2", "--json", "--yes")).json == [
        {"sessionId": session_id, "turns": 2}
    ]
    too_many = await cli.run("session", "rollback", session_id, "--turns", "1", "--yes")
    assert too_many.exit_code == ExitCode.USAGE
    assert "has 0 turns" in too_many.stderr


async def test_a_session_is_compacted(cli: Cli, model: ScriptedModel, session_id: str) -> None:
    model.otherwise(say("a summary"))
    done = await cli.run("session", "compact", session_id, "--json")
    assert done.exit_code == ExitCode.OK
    assert done.json == [{"sessionId": session_id, "status": "done"}]


async def test_a_compaction_that_fails_says_why(cli: Cli, model: ScriptedModel, session_id: str) -> None:
    model.otherwise(response_failed("insufficient_quota", "No quota left."))
    done = await cli.run("session", "compact", session_id)
    assert done.exit_code == ExitCode.FAILED
    assert "Error: " in done.stderr


async def test_a_session_is_named_put_away_and_brought_back(cli: Cli, session_id: str) -> None:
    assert "now called 'Parser'" in (await cli.run("session", "rename", session_id, "Parser")).stderr
    assert (await cli.run("list", "--json")).json[0]["sessions"][0]["name"] == "Parser"
    assert (await cli.run("session", "archive", session_id)).exit_code == ExitCode.OK
    assert (await cli.run("list", "--json")).json[0]["sessions"] == []
    again = await cli.run("session", "archive", session_id[-8:])
    assert again.exit_code == ExitCode.USAGE
    assert "is archived" in again.stderr
    back = await cli.run("session", "unarchive", session_id[-8:], "--json")
    assert back.json == [{"sessionId": session_id, "archived": False}]
    assert len((await cli.run("list", "--json")).json[0]["sessions"]) == 1
