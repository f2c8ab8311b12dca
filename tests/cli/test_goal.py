"""`helmsman session goal`."""

from __future__ import annotations

from pathlib import Path

import pytest

from helmsman.cli.exit_codes import ExitCode
from helmsman.testing import ScriptedModel, always, hang, say
from tests.cli.conftest import Cli

pytestmark = pytest.mark.anyio


@pytest.fixture
async def session_id(cli: Cli, model: ScriptedModel) -> str:
    model.on("alpha", say("first"), always(hang()))
    session_id: str = (await cli.run("run", "--json", "alpha")).json[-1]["sessionId"]
    return session_id


async def test_a_goal_is_worked_on_in_the_background(cli: Cli, session_id: str, detached_engines: Path) -> None:
    cli.env["HELMSMAN_DETACH"] = "1"
    given = await cli.run("session", "goal", session_id, "All tests pass")
    assert given.exit_code == ExitCode.OK
    assert "active: All tests pass" in given.stderr
    shown = (await cli.run("session", "goal", session_id, "--json")).json
    assert (shown[0]["goal"], shown[0]["goalStatus"]) == ("All tests pass", "active")
    assert (await cli.run("session", "goal", session_id, "Another")).exit_code == ExitCode.FAILED
    assert "has no goal" in (await cli.run("session", "goal", session_id, "--clear")).stderr
    assert (await cli.run("session", "goal", session_id, "--json")).json == [{"sessionId": session_id, "goal": None}]
    assert detached_engines.exists()


async def test_without_an_engine_that_outlives_the_command_there_is_no_goal(cli: Cli, session_id: str) -> None:
    refused = await cli.run("session", "goal", session_id, "All tests pass")
    assert refused.exit_code == ExitCode.USAGE
    assert "HELMSMAN_DETACH" in refused.stderr
    assert "has no goal" in (await cli.run("session", "goal", session_id)).stderr


async def test_a_goal_and_clear_cannot_go_together(cli: Cli) -> None:
    assert (await cli.run("session", "goal", "abcd1234", "x", "--clear")).exit_code == ExitCode.USAGE
