from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from helmsman.cli.output import ago
from helmsman.testing import ScriptedModel, say
from tests.cli.conftest import Cli, LeaveBehind


@pytest.fixture
async def sessions(cli: Cli, model: ScriptedModel, tmp_path: Path) -> list[str]:
    """Two sessions, oldest first: one here, one elsewhere."""
    model.otherwise(say("Done."))
    (tmp_path / "elsewhere").mkdir()
    here = await cli.run("run", "--json", "Mend the parser")
    there = await cli.run("run", "--json", "-C", str(tmp_path / "elsewhere"), "Write a \x1b[2Jpoem")
    return [here.json[-1]["sessionId"], there.json[-1]["sessionId"]]


@pytest.mark.anyio
async def test_sessions_are_listed_newest_first_in_columns_for_programs(cli: Cli, sessions: list[str]) -> None:
    done = await cli.run("list")
    rows = [line.split("\t") for line in done.stdout.splitlines()]
    assert [row[0] for row in rows] == sessions[::-1]
    assert [row[2] for row in rows] == [str(cli.directory.parent / "elsewhere"), str(cli.directory)]
    assert [row[3] for row in rows] == ["helmsman", "helmsman"]
    assert [row[4:] for row in rows] == [
        ["Write a \\x1b[2Jpoem", "done", "codex"],
        ["Mend the parser", "done", "codex"],
    ]


@pytest.mark.anyio
async def test_a_terminal_gets_a_table(cli: Cli, sessions: list[str]) -> None:
    async with cli.on_terminal("list") as program:
        assert await program.exit_code() == 0
        await program.shows("Mend the parser")
    lines = [line.rstrip() for line in program.screen.splitlines()]
    assert lines[0].split() == ["ID", "WHEN", "STATUS", "DIRECTORY", "WHAT"]
    assert lines[1].startswith(f"{sessions[1][-8:]}  just now  done    …")
    assert all(len(line) <= 80 for line in lines)
    async with cli.on_terminal("list", columns=160) as program:
        assert await program.exit_code() == 0
        await program.shows(sessions[0])


@pytest.mark.anyio
async def test_a_list_longer_than_the_screen_goes_through_the_pager(cli: Cli, sessions: list[str]) -> None:
    pager = "sed s/^/paged:/"
    async with cli.on_terminal("list", PAGER=pager, LINES="3") as program:
        await program.shows("paged:ID ")
        assert await program.exit_code() == 0
    assert program.screen.count("paged:") == 3
    async with cli.on_terminal("list", PAGER=pager, LINES="4") as program:
        await program.shows("Mend the parser")
        assert await program.exit_code() == 0
    assert "paged:" not in program.screen
    assert "\x1b[1mID" in program.terminal.raw


@pytest.mark.anyio
async def test_sessions_can_be_narrowed_down(cli: Cli, sessions: list[str]) -> None:
    for arguments in (["--directory", "."], ["--query", "parser"]):
        assert [line.split("\t")[0] for line in (await cli.run("list", *arguments)).stdout.splitlines()] == sessions[:1]
    assert (await cli.run("list", "--limit", "1")).stdout.startswith(sessions[1])
    since = await cli.run("list", "--since", "1h", "--json")
    assert len(since.json[0]["sessions"]) == 2
    assert "--since" in (await cli.run("list", "--since", "2099-01-01")).stderr


@pytest.mark.anyio
async def test_json_has_the_sessions_and_the_next_page(cli: Cli, sessions: list[str]) -> None:
    (page,) = (await cli.run("list", "--json", "--limit", "1")).json
    assert [entry["sessionId"] for entry in page["sessions"]] == sessions[1:]
    assert page["nextCursor"]
    (all_of_them,) = (await cli.run("list", "--json", "--all")).json
    assert [entry["summary"] for entry in all_of_them["sessions"]] == ["Write a \x1b[2Jpoem", "Mend the parser"]
    assert "nextCursor" not in all_of_them


@pytest.mark.anyio
async def test_an_empty_list_says_what_to_do(bare_cli: Cli) -> None:
    done = await bare_cli.run("list")
    assert (done.exit_code, done.stdout) == (0, "")
    assert "helmsman demo" in done.stderr
    assert "Leave out --query to see more." in (await bare_cli.run("list", "--query", "x")).stderr
    assert "No session is running." in (await bare_cli.run("ps")).stderr
    assert (await bare_cli.run("list", "--json")).json == [{"sessions": []}]


@pytest.mark.anyio
async def test_bad_input_exits_with_2(bare_cli: Cli) -> None:
    assert (await bare_cli.run("list", "--limit", "0")).exit_code == 2
    assert (await bare_cli.run("list", CODEX_HOME="/nowhere")).exit_code == 2
    assert (await bare_cli.run("list", "--json", CODEX_HOME="/nowhere")).json[0]["error"]["code"] == "invalid_setting"


@pytest.mark.parametrize(
    ("age", "text"),
    [
        (timedelta(seconds=-5), "just now"),
        (timedelta(seconds=59), "just now"),
        (timedelta(minutes=5), "5 min ago"),
        (timedelta(hours=23, minutes=59), "23 h ago"),
        (timedelta(days=1), "1 day ago"),
        (timedelta(days=400), "400 days ago"),
    ],
)
def test_ages_are_said_as_people_say_them(age: timedelta, text: str) -> None:
    assert ago(datetime.now(UTC) - age) == text


@pytest.mark.anyio
async def test_one_line_for_a_status_line_counts_what_runs_and_what_asks(cli: Cli, left_behind: LeaveBehind) -> None:
    assert (await cli.run("list", "--line")).stdout == "helmsman: idle\n"
    await left_behind.asking()
    assert (await cli.run("list", "--line")).stdout == "helmsman: 1 waiting for you\n"
