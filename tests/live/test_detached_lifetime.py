"""When detached engines start, are shared, end and are replaced."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from helmsman.agents.codex import connection
from helmsman.agents.codex.agent import CodexAgent
from helmsman.agents.codex.app_servers import EngineRequest, open_detached, open_recorded
from helmsman.agents.supervisor import process as descendants
from helmsman.agents.supervisor.client import Owner
from helmsman.agents.supervisor.process import surviving_descendants
from helmsman.agents.supervisor.records import read_record, read_records
from helmsman.base.structs import replace
from helmsman.errors import EngineLost, EngineStartFailed
from helmsman.model.events import CommandExecution
from helmsman.model.questions import Choice
from helmsman.settings import Settings
from helmsman.testing import CodexHome, ScriptedModel, run, say
from tests.live.detached import Place, adopt, begin, is_stopped, until, where_it_changed

pytestmark = [
    pytest.mark.long,
    pytest.mark.anyio,
    pytest.mark.skipif(os.name != "posix", reason="There are no detached engines here."),
]


@where_it_changed
async def test_processes_of_a_killed_supervisor_are_ended_by_the_next_reader(
    place: Place, model: ScriptedModel
) -> None:
    model.on("slow", run("sleep 1000"), say("done"))
    async with place.open() as engine:
        follower = await begin(engine, place, "slow")
        await follower.until(lambda: any(isinstance(item, CommandExecution) for item in follower.state.items))
        (record,) = place.records
        os.kill(record.supervisor.pid, signal.SIGKILL)
        await until(lambda: not record.is_supervised)
    async with place.open() as engine:
        assert engine.id != record.id
    assert not record.is_running
    assert surviving_descendants(record.directory) == frozenset()


# --- which engine ----------------------------------------------------------------------------------------------------


async def test_processes_that_start_at_once_have_an_engine_each(place: Place) -> None:
    async with (
        place.used_by_a_process() as one,
        place.used_by_a_process() as two,
        place.used_by_a_process() as three,
    ):
        names = {await user.says("engine") for user in (one, two, three)}
    assert len(names) == 3
    assert {record.id for record in place.records} == names


async def test_another_environment_gets_another_engine(place: Place) -> None:
    async with place.open() as one:
        env = place.codex_home.env | {"OPENAI_BASE_URL": "http://127.0.0.1:1/"}
        wanted = await EngineRequest.of(place.binary, place.codex_home.path, place.state_dir, env)
        async with open_detached(wanted) as other:
            assert one.id != other.id
    assert [record.is_draining for record in place.records] == [False, False]


async def test_only_a_hub_whose_settings_say_so_has_detached_engines(
    place: Place, settings: Settings, codex_home: CodexHome, detached_engines: Path
) -> None:
    detached = replace(settings, detach=True, engine_idle=77)
    for agent, chosen in ((CodexAgent(Owner(1)), settings), (CodexAgent(), detached)):
        async with agent.open_engine(chosen, codex_home.env):
            assert place.records == []
    async with CodexAgent(Owner(1)).open_engine(detached, codex_home.env):
        pass
    (record,) = read_records(settings.state_dir)
    assert settings.state_dir == detached_engines
    assert record.idle == 77


# --- the end ---------------------------------------------------------------------------------------------------------


async def test_an_unused_engine_ends(place: Place) -> None:
    async with place.open(idle=0.2):
        (record,) = place.records
    await until(lambda: not record.is_supervised)
    assert not record.child.is_alive()
    assert not record.directory.exists()
    assert not record.socket.exists()


async def test_an_engine_in_use_does_not_end(place: Place, model: ScriptedModel) -> None:
    model.on("hello", run("sleep 1.5"), say("hi"))
    async with place.open(idle=1) as engine:  # as long as a busy machine may take to connect
        await (await begin(engine, place, "hello")).end()
        assert engine.lost is None


@where_it_changed
async def test_stopping_ends_all_that_runs_in_it(place: Place, model: ScriptedModel) -> None:
    model.on("slow", run("sleep 1000"), say("done"))
    for _ in range(2):  # Codex may or may not have started the command when it is told to end
        await stop_a_command(place)


async def stop_a_command(place: Place) -> None:
    async with place.open() as engine:
        follower = await begin(engine, place, "slow")
        await follower.until(lambda: any(isinstance(item, CommandExecution) for item in follower.state.items))
        (record,) = place.records
        await anyio.to_thread.run_sync(record.stop)
        await follower.until(lambda: not follower.state.is_running)
    assert place.records == []
    assert not record.directory.exists()
    assert surviving_descendants(record.directory) == frozenset()


async def test_a_hanging_engine_is_replaced(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    async with place.open():
        (record,) = place.records
    os.kill(record.child.pid, signal.SIGSTOP)
    await until(lambda: is_stopped(record.child.pid))
    monkeypatch.setattr(connection, "HANDSHAKE_TIMEOUT", 0.3)
    monkeypatch.setitem(connection._OPTIONS, "open_timeout", 0.3)
    monkeypatch.setattr(descendants, "STOP_TIMEOUT", 0.4)
    async with place.open() as engine:
        assert engine.id != record.id
    assert not record.is_supervised
    assert not record.child.is_alive()


async def test_an_engine_whose_directory_was_removed_ends(place: Place) -> None:
    async with place.open(idle=0.4):
        (record,) = place.records

        def is_removed() -> bool:  # its supervisor may just be writing
            shutil.rmtree(record.directory, ignore_errors=True)
            return not record.directory.exists()

        await until(is_removed)
        await until(lambda: not record.is_supervised)
    assert not record.is_running


async def test_an_ended_engine_cannot_be_opened(place: Place) -> None:
    async with place.open():
        (record,) = place.records
    await anyio.to_thread.run_sync(record.stop)
    with pytest.raises(EngineLost, match="has ended"):
        async with open_recorded(record, (), epoch=0):
            pass


# --- another Codex ---------------------------------------------------------------------------------------------------


async def test_an_upgraded_codex_drains_the_engine_of_the_old_one(
    place: Place, model: ScriptedModel, tmp_path: Path
) -> None:
    model.on("touch", run("touch made.txt", escalate="please"), say("done"))
    async with place.open() as old:
        follower = await begin(old, place, "touch")
        await follower.question()
    (record,) = place.records
    upgraded = replace(place.binary, path=tmp_path / "codex-next")
    upgraded.path.symlink_to(place.binary.path)
    async with place.open(upgraded) as new:
        assert new.id != record.id
        assert record.is_draining
        assert record.is_running  # a question is still open in it
    async with open_recorded(record, (), epoch=0) as old:
        follower = await adopt(old, place, follower.opened.session_id)
        await old.answer(await follower.question(), (Choice("approve"),))
        await follower.end()
    assert (place.repo / "made.txt").exists()
    await until(lambda: not record.is_supervised)
    assert [left.id for left in place.records] == [new.id]


# --- when it does not start ------------------------------------------------------------------------------------------


def script(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    path.chmod(0o755)
    return path


async def test_a_codex_that_does_not_come_up_is_an_error_with_its_last_words(place: Place, tmp_path: Path) -> None:
    broken = replace(place.binary, path=script(tmp_path / "codex-broken", "echo 'Error: no luck' >&2; exit 3"))
    with pytest.raises(EngineStartFailed, match=r"It exited \(3\). It said: Error: no luck") as failed:
        async with place.open(broken):
            pass
    assert failed.value.details["exit_code"] == 3
    assert place.records == []
    assert [entry.name for entry in (place.state_dir / "engines").iterdir() if entry.is_dir()] == []


async def test_a_program_that_cannot_be_run_is_an_error(place: Place, tmp_path: Path) -> None:
    (tmp_path / "codex-text").write_text("not a program", encoding="utf-8")
    with pytest.raises(EngineStartFailed, match=r"It said: Error: .*codex-text"):
        async with place.open(replace(place.binary, path=tmp_path / "codex-text")):
            pass


async def test_a_lost_race_of_starts_is_tried_again(place: Place, tmp_path: Path) -> None:
    raced = script(
        tmp_path / "codex-raced",
        f"""mkdir '{tmp_path}/tried' 2>/dev/null || exec '{place.binary.path}' "$@"
        echo 'Error: failed to initialize sqlite state runtime under /home' >&2; exit 1""",
    )
    async with place.open(replace(place.binary, path=raced)) as engine:
        assert engine.version is not None


async def test_files_of_an_ended_engine_are_removed_and_other_processes_are_not_touched(place: Place) -> None:
    async with place.open():
        (record,) = place.records
    written = (record.directory / "process.json").read_text(encoding="utf-8")
    await anyio.to_thread.run_sync(record.stop)
    async with await anyio.open_process(["sleep", "1000"]) as innocent:
        record.directory.mkdir()
        content = json.loads(written) | {"supervisor": [innocent.pid, "1"], "child": [innocent.pid, "1"]}
        (record.directory / "process.json").write_text(json.dumps(content), encoding="utf-8")
        half_written = record.directory.with_name("half")
        half_written.mkdir()
        (half_written / "process.json").write_text("{", encoding="utf-8")
        os.utime(half_written, (0, 0))
        starting = record.directory.with_name("starting")
        starting.mkdir()
        assert read_record(record.directory) is not None
        assert place.records == []
        async with place.open() as engine:
            assert engine.id != record.id
        assert not record.directory.exists()
        assert not half_written.exists()
        assert starting.exists()
        assert innocent.returncode is None
        innocent.kill()
