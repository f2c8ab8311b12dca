"""`helmsman session rewind` on a real Codex with a real hub: shown, done, taken back, refused."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from helmsman.cli.exit_codes import ExitCode
from helmsman.git.turn_snapshots import read_snapshots
from helmsman.testing import ScriptedModel, run, say
from helmsman.testing.repository import git
from tests.cli.conftest import Cli

pytestmark = [pytest.mark.anyio, pytest.mark.needs_git, pytest.mark.usefixtures("snapshots")]

SECONDS = 30
WRITES = ("--sandbox", "workspace-write", "--approval-policy", "never")


async def turn(cli: Cli, *arguments: str) -> str:
    """Run a turn, wait until its snapshot is stored, and return the session's id."""
    session_id: str = (await cli.run("run", "--json", *WRITES, *arguments)).json[-1]["sessionId"]
    with anyio.fail_after(SECONDS):
        while (known := read_snapshots(Path(cli.env["HELMSMAN_STATE_DIR"]), session_id)) is None or known.turns[
            -1
        ].after is None:
            await anyio.sleep(0.02)
    return session_id


@pytest.mark.long
async def test_a_session_is_taken_back_shown_first_and_brought_back(
    detached_cli: Cli, model: ScriptedModel, git_repo: Path
) -> None:
    model.on("alpha", run("echo one > a.txt"), say("first"))
    model.on("beta", run("echo two > a.txt; echo new > b.txt"), say("second"))
    cli = detached_cli
    session_id = await turn(cli, "alpha")
    await turn(cli, "--session", session_id, "beta")
    (git_repo / "mine.txt").write_text("by hand\n", encoding="utf-8")
    refused = await cli.run("session", "rewind", session_id)
    assert refused.exit_code == ExitCode.USAGE
    assert "--yes" in refused.stderr
    shown = (await cli.run("session", "rewind", session_id, "--show", "--json")).json[-1]
    assert (shown["done"], shown["part"], shown["turn"]) == (False, "both", 2)
    assert [(turn["number"], turn["prompt"]) for turn in shown["forgotten"]] == [(2, "beta")]
    assert {file["path"] for file in shown["files"]} == {"a.txt", "b.txt", "mine.txt"}
    assert shown["changedSince"] == ["mine.txt"]
    (git_repo / "mine.txt").write_text("by hand, again\n", encoding="utf-8")
    changed = await cli.run("session", "rewind", session_id, "--digest", shown["digest"], "--json")
    assert changed.json[-1]["error"]["code"] == "diff_changed"
    assert (git_repo / "b.txt").exists()
    async with cli.on_terminal("session", "rewind", session_id, columns=60) as program:
        await program.shows("Do it? [y/N]")
        assert all(len(line) <= 60 for line in program.screen.splitlines()), "no word is broken by the terminal"
        words = " ".join(program.screen.split())
        assert "back to before turn 2 (beta). You would lose: turn 2: beta" in words
        assert "not by this session" in words
        program.press("y")
        assert await program.exit_code() == ExitCode.OK
    assert git(git_repo, "status", "--porcelain") == "?? a.txt\n"
    assert (git_repo / "a.txt").read_text(encoding="utf-8") == "one\n"
    model.on("gamma", say("third"))
    await cli.run("run", "--session", session_id, "gamma")
    assert "beta" not in model.requests[-1].user_texts
    undone = (await cli.run("session", "rewind", session_id, "--undo", "--yes", "--json")).json[-1]
    assert (git_repo / "a.txt").read_text(encoding="utf-8") == "two\n"
    assert (git_repo / "mine.txt").read_text(encoding="utf-8") == "by hand, again\n"
    model.on("delta", say("fourth"))
    assert undone["conversation"] != session_id
    listed = (await cli.run("list", "--json")).json[-1]["sessions"]
    assert {one["sessionId"]: one["summary"] for one in listed}[undone["conversation"]] == "alpha"
    await cli.run("run", "--session", undone["conversation"], "delta")
    assert model.requests[-1].user_texts[-3:] == ("alpha", "beta", "delta")
    model.on("gamma again", run("echo three > a.txt"), say("fifth"))
    await cli.run("run", "--session", session_id, "gamma again")
    back = await cli.run("session", "rewind", undone["conversation"], "--to", "1", "--files", "--yes", "--json")
    assert back.json[-1]["error"]["reason"] == "shared_tree"
    assert session_id in back.stdout
    assert git(git_repo, "status", "--porcelain").count("\n") == 3
