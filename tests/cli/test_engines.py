from __future__ import annotations

import os
from pathlib import Path

import anyio
import pytest

from helmsman import load_settings
from helmsman.agents.acp.agent import AcpAgent
from helmsman.agents.acp.profile import OwnAgent
from helmsman.agents.codex.app_servers import EngineRequest, open_detached
from helmsman.agents.codex.binary import find_codex
from helmsman.agents.supervisor.client import Owner
from helmsman.agents.supervisor.records import ProcessRecord, ask_supervisor, read_records
from helmsman.agents.supervisor.records import read_records as read_kept_records
from helmsman.base.processes import with_variable
from helmsman.model.events import QuestionAsked
from helmsman.model.options import SessionOptions, TurnInput
from helmsman.testing import CodexHome
from helmsman.testing.fake_acp_agent import FakeAcpAgent, asks, runs
from tests.cli.conftest import Cli, LeaveBehind

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(os.name != "posix", reason="There are no detached engines here.")]

SECONDS = 30


@pytest.fixture
async def engine(codex_binary: Path, codex_home: CodexHome, detached_engines: Path) -> ProcessRecord:
    """Engine without clients."""
    binary = await find_codex(explicit=codex_binary, env=codex_home.env)
    wanted = await EngineRequest.of(binary, codex_home.path, detached_engines, codex_home.env)
    async with open_detached(wanted):
        pass
    (record,) = read_records(detached_engines)
    return record


async def test_engines_are_listed_in_columns_for_programs(cli: Cli, engine: ProcessRecord) -> None:
    for arguments in (["engines"], ["engines", "list"]):
        done = await cli.run(*arguments)
        (row,) = [line.split("\t") for line in done.stdout.splitlines()]
        assert row[:6] == [engine.id, engine.about["version"], "unattended", "0", "0", str(engine.child.pid)]
        assert row[7:] == [engine.place, "codex"]


async def test_json_says_which_processes_and_files_an_engine_is(cli: Cli, engine: ProcessRecord) -> None:
    for arguments in (["engines", "--json"], ["engines", "list", "--json"]):
        (said,) = (await cli.run(*arguments)).json
        (shown,) = said["engines"]
        assert (shown["id"], shown["pid"], shown["supervisorPid"]) == (
            engine.id,
            engine.child.pid,
            engine.supervisor.pid,
        )
        assert (shown["path"], shown["sessions"]) == (engine.about["path"], [])


async def test_a_terminal_gets_a_table(cli: Cli, engine: ProcessRecord) -> None:
    async with cli.on_terminal("engines") as program:
        assert await program.exit_code() == 0
        await program.shows(engine.id)
    lines = [line.rstrip() for line in program.screen.splitlines()]
    assert lines[0].split() == ["ID", "AGENT", "VERSION", "STATUS", "TURNS", "STARTED", "PLACE"]
    assert "unattended" in lines[1]


async def test_a_stopped_engine_leaves_nothing_running(cli: Cli, engine: ProcessRecord) -> None:
    done = await cli.run("engines", "stop", engine.id[:5])
    assert (done.exit_code, done.stderr) == (0, f"Stopped engine {engine.id}.\n")
    assert not engine.is_supervised
    assert not engine.is_running
    assert not engine.directory.exists()
    assert "No engine is running" in (await cli.run("engines")).stderr


async def test_a_person_is_asked_before_turns_under_way_are_stopped(cli: Cli, left_behind: LeaveBehind) -> None:
    session_id = await left_behind.asking()
    async with cli.on_terminal("engines", "stop", "--all") as program:
        await program.shows("1 turn under way is interrupted. Stop? [y/N]")
        program.press("\n")
        assert await program.exit_code() == 1
    assert (await cli.run("respond", session_id)).exit_code == 5
    async with cli.on_terminal("engines", "stop", "--all", "--yes") as program:
        assert await program.exit_code() == 0
        await program.shows("Stopped engine")


async def test_those_of_other_agents_are_listed_counted_and_stopped_like_codexs(
    cli: Cli, codex_home: CodexHome, detached_engines: Path, git_repo: Path, tmp_path: Path
) -> None:
    mark = f"stopped-{os.getpid()}"
    fake = FakeAcpAgent(tmp_path / "fake")
    fake.on("run", runs(f"MARKED={mark} setsid sleep 300"), asks("execute", "rm x"))
    mine = OwnAgent("mine", "Mine", mode="ask", runs_repository_files=False)
    settings = load_settings({"detach": True}, codex_home.env, tmp_path)
    options = SessionOptions(agent="mine", cwd=git_repo, unenforced=True)
    async with AcpAgent(mine, tuple(fake.command), Owner(1)).open_engine(settings, codex_home.env) as engine:
        session = await engine.open(options)
        asked = anyio.Event()
        engine.attach(session.session_id, lambda event: asked.set() if isinstance(event, QuestionAsked) else None)
        await engine.run_turn(session.session_id, options, TurnInput(text="run it"))
        with anyio.fail_after(SECONDS):
            await asked.wait()  # it says nothing more while it is left
    (record,) = read_kept_records(detached_engines)
    with anyio.fail_after(SECONDS):
        while not ask_supervisor(record.socket).waiting or not with_variable("MARKED", mark):
            await anyio.sleep(0.05)

    (row,) = [line.split("\t") for line in (await cli.run("engines")).stdout.splitlines()]
    assert row[:6] == [record.id, "1.0.0", "unattended", "0", "1", str(record.child.pid)]
    assert row[7:] == [str(git_repo), "mine"]
    (said,) = (await cli.run("hub", "--json")).json
    assert [(one["id"], one["sessions"]) for one in said["engines"]] == [(record.id, [session.session_id])]
    assert (await cli.run("engines", "stop", record.id[:6], "--yes")).exit_code == 0
    assert not with_variable("MARKED", mark)
    assert not record.is_supervised
    assert not record.is_running
    assert fake.asked_for("session/cancel") == [{"sessionId": session.session_id}]
    assert (await cli.run("engines", "--json")).json == [{"engines": []}]


async def test_all_engines_are_stopped_at_once(cli: Cli, engine: ProcessRecord) -> None:
    (said,) = (await cli.run("engines", "stop", "--all", "--json")).json
    assert said == {"stopped": [engine.id]}
    assert not engine.is_running
    assert (await cli.run("engines", "stop", "--all")).exit_code == 0


async def test_bad_input_exits_with_2(bare_cli: Cli) -> None:
    assert (await bare_cli.run("engines", "stop")).exit_code == 2
    assert (await bare_cli.run("engines", "stop", "x", "--all")).exit_code == 2
    done = await bare_cli.run("engines", "stop", "nobody")
    assert done.exit_code == 2
    assert "There is no engine nobody" in done.stderr
    assert (await bare_cli.run("engines", "--json")).json == [{"engines": []}]
