"""Tests of shell completion of sessions and tasks, by prefixes of their names."""

from __future__ import annotations

import pytest

from helmsman.testing import ScriptedModel, say
from tests.cli.conftest import Cli

pytestmark = pytest.mark.anyio


async def offered(cli: Cli, *words: str) -> list[str]:
    """Return fish's completions for these words, the last of which is incomplete."""
    done = await cli.run(
        _HELMSMAN_COMPLETE="fish_complete", COMP_WORDS=" ".join(("helmsman", *words)), COMP_CWORD=words[-1]
    )
    assert (done.exit_code, done.stderr) == (0, "")
    return [line.partition(",")[2] for line in done.stdout.splitlines() if line.startswith("plain,")]


async def test_sessions_and_tasks_are_offered_with_what_they_are_about(cli: Cli, model: ScriptedModel) -> None:
    model.otherwise(say("Done."))
    session_id = (await cli.run("run", "--json", "Mend the parser")).json[-1]["sessionId"]
    (listed,) = (await cli.run("tasks", "--json")).json
    task = listed["tasks"][0]
    short = f"{session_id[-8:]}\tMend the parser"
    assert await offered(cli, "status", "") == [short]
    assert await offered(cli, "run", "--session", session_id[-8:-4]) == [short]
    assert await offered(cli, "watch", session_id[:10]) == [f"{session_id}\tMend the parser"]
    assert await offered(cli, "say", "zzz") == []
    assert await offered(cli, "tasks", "show", "") == [
        f"{task['alias']}\tMend the parser",
        f"{task['taskId']}\tMend the parser",
    ]
    assert await offered(cli, "diff", "T-") == [f"{task['taskId']}\tMend the parser"]


async def test_where_nothing_can_be_read_nothing_is_offered(bare_cli: Cli) -> None:
    assert await offered(bare_cli, "status", "") == []
    assert await offered(bare_cli, "tasks", "show", "") == []
    bare_cli.env["CODEX_HOME"] = "/nowhere"
    assert await offered(bare_cli, "status", "") == []
