"""`helmsman usage`: a table for people, columns and JSON for programs, and sums that add up in each."""

from __future__ import annotations

from pathlib import Path

import pytest

from helmsman.testing import ScriptedModel, say, usage
from tests.cli.conftest import Cli

pytestmark = pytest.mark.anyio


@pytest.fixture
async def spent(cli: Cli, model: ScriptedModel) -> list[str]:
    """Two sessions, the one that spent less first."""
    model.on("little", [say("1"), usage(1_500, 500, 100, 10)])
    model.on("much", [say("2"), usage(2_000_000, 0, 1_000, 0)])
    return [(await cli.run("run", "--json", prompt)).json[-1]["sessionId"] for prompt in ("little", "much")]


async def test_programs_get_columns(cli: Cli, spent: list[str]) -> None:
    done = await cli.run("usage", "--by", "session")
    rows = [line.split("\t") for line in done.stdout.splitlines()]
    assert [row[0] for row in rows] == spent[::-1]
    assert rows[1][1:7] == ["1", "1", "1500", "500", "100", "10"]
    assert float(rows[1][7]) > 0
    assert [row[8] for row in rows] == ["much", "little"]


async def test_json_has_groups_and_a_total_that_is_their_sum(cli: Cli, spent: list[str]) -> None:
    for by in ("day", "model", "directory", "session"):
        (told,) = (await cli.run("usage", "--by", by, "--since", "7d", "--json")).json
        assert told["groupBy"] == by
        assert told["total"]["inputTokens"] == 2_001_500
        assert sum(group["inputTokens"] for group in told["groups"]) == 2_001_500
    (cut,) = (await cli.run("usage", "--by", "session", "--limit", "1", "--json")).json
    assert [(group["key"], group["title"]) for group in cut["groups"]] == [(spent[1], "much")]
    assert cut["others"]["inputTokens"] == 1_500
    assert "budgets" not in cut
    own = Path(cli.env["HOME"]) / ".config" / "helmsman" / "helmsman.toml"
    own.parent.mkdir(parents=True)
    own.write_text("[budget]\nday_tokens = 2_000_000\nproject_day_usd = 1000\n")
    (told,) = (await cli.run("usage", "--json")).json
    assert [(one["key"], one["used"], one["isUsedUp"]) for one in told["budgets"][:1]] == [
        ("day_tokens", 2_002_600, True)
    ]
    assert [(one["key"], one["unit"]) for one in told["budgets"][1:]] == [("project_day_usd", "USD")]
    async with cli.on_terminal("usage", "--limit", "1") as program:
        assert await program.exit_code() == 0
        await program.shows("all work has used 2,002,600 of 2,000,000 tokens today")


async def test_a_terminal_gets_a_table(cli: Cli, spent: list[str]) -> None:
    async with cli.on_terminal("usage", "--by", "session", "--limit", "1") as program:
        assert await program.exit_code() == 0
        await program.shows("total")
    lines = [line.rstrip() for line in program.screen.splitlines()]
    assert lines[0].split() == ["SESSION", "WHAT", "TURNS", "INPUT", "CACHED", "OUTPUT", "COST"]
    assert lines[1].split()[:4] == [spent[1][-8:], "much", "1", "2.00M"]
    assert lines[2].split()[:5] == ["1", "others", "1", "1", "1.5k"]
    assert lines[3].split()[:4] == ["total", "2", "2", "2.00M"]
    assert all(len(line) <= 80 for line in lines)
    async with cli.on_terminal("usage", "--by", "directory") as program:
        assert await program.exit_code() == 0
        await program.shows("total")
    lines = [line.rstrip() for line in program.screen.splitlines()]
    assert lines[1].startswith("…")
    assert lines[1].split()[1:3] == ["2", "2"]


async def test_nothing_spent_and_bad_input(bare_cli: Cli) -> None:
    done = await bare_cli.run("usage")
    assert (done.exit_code, done.stdout) == (0, "")
    assert "Nothing was spent yet" in done.stderr
    assert (await bare_cli.run("usage", "--since", "lately")).exit_code == 2
    assert (await bare_cli.run("usage", "--by", "colour")).exit_code == 2
    (told,) = (await bare_cli.run("usage", "--json")).json
    assert (told["groups"], told["total"]["turns"]) == ([], 0)


async def test_a_cost_below_a_cent_is_not_shown_as_nothing(cli: Cli, model: ScriptedModel) -> None:
    model.on("tiny", [say("1"), usage(100, 0, 1, 0)])
    await cli.run("run", "--json", "tiny")
    async with cli.on_terminal("usage", "--by", "agent") as program:
        assert await program.exit_code() == 0
        await program.shows("< $0.01")
