"""Engines that outlive the process that wanted them, on a real Codex."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import pytest
from anyio.streams.buffered import BufferedByteReceiveStream

from helmsman.agents.codex.agent import CodexAgent
from helmsman.agents.codex.binary import find_codex
from helmsman.agents.codex.detached import engines as detached
from helmsman.agents.codex.detached.engines import EngineTaken, is_shared, open_detached, open_recorded, stop_engine
from helmsman.agents.codex.detached.overview import activity_of
from helmsman.agents.codex.detached.records import read_record, read_records
from helmsman.agents.codex.wire import app_server, transports
from helmsman.agents.keeper.below import left_by
from helmsman.agents.keeper.owner import Owner
from helmsman.agents.keeper.watcher import Activity
from helmsman.errors import EngineLost, EngineStartFailed, QuestionNotOpen
from helmsman.model.events import CommandExecution, EngineGone, QuestionAsked, QuestionClosed
from helmsman.model.options import SessionOptions, TurnInput
from helmsman.model.questions import Choice
from helmsman.testing import add, always, hang, patch, run, say, spawn_agent
from tests.engines import resume_turn, start_turn
from tests.live.test_app_server_engine import Follower

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from contextlib import AbstractAsyncContextManager

    from helmsman.agents.codex.binary import CodexBinary
    from helmsman.agents.codex.detached.records import EngineRecord
    from helmsman.agents.codex.engine.app_server_engine import AppServerEngine
    from helmsman.settings import Settings
    from helmsman.testing import CodexHome, ScriptedModel

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(os.name != "posix", reason="There are no detached engines here.")]

where_it_changed = pytest.mark.matrix(changed_in=["0.105.0", "0.163.0"])
"""On the oldest and the newest Codex, and where it began to tell whether a session is active, and to guard its socket."""

USER = Path(__file__).with_name("engine_user.py")


@pytest.fixture
async def binary(codex_binary: Path, codex_home: CodexHome) -> CodexBinary:
    return await find_codex(explicit=codex_binary, env=codex_home.env)


class Place:
    """One CODEX_HOME with the engines of one state directory."""

    def __init__(self, binary: CodexBinary, codex_home: CodexHome, state_dir: Path, repo: Path) -> None:
        self.binary = binary
        self.codex_home = codex_home
        self.state_dir = state_dir
        self.repo = repo
        self.options = SessionOptions(cwd=repo, writes="workspace", asks="when_needed")

    def open(self, binary: CodexBinary | None = None, **options: Any) -> AbstractAsyncContextManager[AppServerEngine]:
        return open_detached(
            binary or self.binary,
            codex_home=self.codex_home.path,
            state_dir=self.state_dir,
            env=self.codex_home.env,
            **options,
        )

    @property
    def records(self) -> list[EngineRecord]:
        return read_records(self.state_dir)

    @asynccontextmanager
    async def used_by_a_process(self, **order: str) -> AsyncIterator[User]:
        order = {
            "codex": str(self.binary.path),
            "codex_home": str(self.codex_home.path),
            "state_dir": str(self.state_dir),
            "cwd": str(self.repo),
            **order,
        }
        async with await anyio.open_process(
            [sys.executable, str(USER), json.dumps(order)],
            env=self.codex_home.env,
            stderr=None,
            stdin=subprocess.DEVNULL,
        ) as process:
            try:
                yield User(process)
            finally:
                with suppress(ProcessLookupError):
                    process.kill()


class User:
    def __init__(self, process: anyio.abc.Process) -> None:
        self._process = process
        assert process.stdout is not None
        self._lines = BufferedByteReceiveStream(process.stdout)

    async def says(self, key: str, value: str | None = None) -> str:
        with anyio.fail_after(60):
            while True:
                message = json.loads(await self._lines.receive_until(b"\n", 65536))
                if key in message and value in (None, message[key]):
                    return str(message[key])

    async def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        await self._process.wait()


@pytest.fixture
def place(binary: CodexBinary, codex_home: CodexHome, detached_engines: Path, git_repo: Path) -> Place:
    return Place(binary, codex_home, detached_engines, git_repo)


def is_stopped(pid: int) -> bool:
    """Whether every thread of a process has been stopped: the signal takes its time."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    return all((thread / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] == "T" for thread in threads)


async def until(condition: Callable[[], object], seconds: float = 30) -> None:
    with anyio.fail_after(seconds):
        while not condition():
            await anyio.sleep(0.02)


async def begin(engine: AppServerEngine, place: Place, prompt: str) -> Follower:
    opened = await start_turn(engine, place.options, TurnInput(text=prompt))
    follower = Follower(opened)
    engine.attach(opened.session_id, follower)
    return follower


async def adopt(engine: AppServerEngine, place: Place, session_id: str) -> Follower:
    opened = await engine.adopt(session_id, place.options)
    follower = Follower(opened)
    engine.attach(session_id, follower)
    return follower


def commands_of(follower: Follower) -> list[CommandExecution]:
    return [item for item in follower.state.items if isinstance(item, CommandExecution)]


# --- work that goes on -----------------------------------------------------------------------------------------------


@pytest.mark.matrix
async def test_a_killed_process_leaves_its_turn_and_its_question_to_the_next(
    place: Place, model: ScriptedModel
) -> None:
    model.on("touch", run("echo first"), run("touch made.txt", escalate="please"), say("All done."))
    async with place.used_by_a_process(prompt="touch") as user:
        engine_id = await user.says("engine")
        session_id = await user.says("session")
        await user.says("event", "QuestionAsked")
        await user.kill()
    async with place.open() as engine:
        assert engine.id == engine_id
        assert await engine.running_sessions() == (session_id,)
        follower = await adopt(engine, place, session_id)
        question = await follower.question()
        assert follower.state.status == "awaiting_approval"
        assert follower.opened.turn_id == question.turn_id
        # Codex may say of a command that it has ended after it has asked about the next one.
        await follower.until(lambda: any(command.status == "completed" for command in commands_of(follower)))
        done = commands_of(follower)[0]
        assert ("echo first" in done.command, done.status) == (True, "completed")
        assert done.output in ("first\n", "")  # of a quick command Codex itself misses the output now and then
        await engine.answer(question, (Choice("approve"),))
        assert (await follower.end()).outcome == "completed"
    assert follower.state.result == "All done."
    assert (place.repo / "made.txt").exists()


@where_it_changed
async def test_the_next_process_sees_what_a_patch_would_change(place: Place, model: ScriptedModel) -> None:
    model.on("write", patch(add("new.txt", "hello\n")), say("written"))
    place.options = replace(place.options, writes="nothing")
    async with place.open() as engine:
        asked = await (follower := await begin(engine, place, "write")).question()
    async with place.open() as engine:
        follower = await adopt(engine, place, follower.opened.session_id)
        again = await follower.question()
        assert again == asked
        assert "+hello" in again.details["diff"]
        await engine.answer(again, (Choice("deny"),))
        await follower.end()


async def test_the_result_of_a_turn_that_ended_meanwhile_is_there(place: Place, model: ScriptedModel) -> None:
    gate = model.gate()
    model.on("slow", say("Here ", gate, "it is."))
    async with place.open() as engine:
        session_id = (await begin(engine, place, "slow")).opened.session_id
        with anyio.fail_after(30):
            await gate.reached()
    (record,) = place.records
    gate.release()
    async with open_recorded(record) as engine:
        with anyio.fail_after(30):
            while await engine.running_sessions():
                await anyio.sleep(0.02)
        follower = await adopt(engine, place, session_id)
    assert follower.opened.turn_id is None
    assert (follower.state.status, follower.state.result) == ("done", "Here it is.")


async def test_leaving_tells_no_session_that_its_work_has_ended(place: Place, model: ScriptedModel) -> None:
    model.on("touch", run("touch made.txt", escalate="please"), say("done"))
    async with place.open() as engine:
        follower = await begin(engine, place, "touch")
        await follower.question()
    assert engine.lost is not None
    assert follower.state.status == "awaiting_approval"
    assert not any(isinstance(event, EngineGone) for event in follower.events)


async def test_the_death_of_the_engine_is_told_and_the_next_is_a_new_one(place: Place, model: ScriptedModel) -> None:
    model.on("touch", run("touch made.txt", escalate="please"), say("done"))
    async with place.open() as engine:
        follower = await begin(engine, place, "touch")
        await follower.question()
        (record,) = place.records
        os.kill(record.codex.pid, signal.SIGKILL)
        await follower.until(lambda: follower.state.status == "error")
    await until(lambda: not record.is_kept)
    async with place.open() as second:
        assert second.id != engine.id
        opened = await second.resume(follower.opened.session_id, place.options)
        assert opened.turn_id is None


@where_it_changed
async def test_two_who_share_a_session_see_one_question_and_the_first_answer_wins(
    place: Place, model: ScriptedModel
) -> None:
    if not is_shared(place.binary):
        pytest.skip("This Codex is on a pipe, and has one owner.")
    model.on("touch", run("touch made.txt", escalate="please"), say("done"))
    async with place.open() as one, place.open() as other:
        assert one.id == other.id
        first = await begin(one, place, "touch")
        asked = await first.question()
        second = await adopt(other, place, first.opened.session_id)
        assert await second.question() == asked
        await other.answer(asked, (Choice("approve"),))
        await first.end()
        await second.end()
        assert [event.by for event in first.events if isinstance(event, QuestionClosed)] == ["codex"]
        with pytest.raises(QuestionNotOpen):
            await one.answer(asked, (Choice("deny"),))
    assert (place.repo / "made.txt").exists()


@where_it_changed
async def test_a_session_left_idle_takes_the_next_message_of_another_process(
    place: Place, model: ScriptedModel
) -> None:
    model.on("one", run("touch one.txt"), say("1"))
    model.on("two", run("touch two.txt"), say("2"))
    async with place.open() as engine:
        follower = await begin(engine, place, "one")
        await follower.end()
    async with place.open() as engine:
        options = replace(place.options, developer_instructions="Be brief.")
        opened = await resume_turn(engine, follower.opened.session_id, options, TurnInput(text="two"))
        assert "did not take developer_instructions" in " ".join(opened.notes)
        follower = Follower(opened)
        engine.attach(opened.session_id, follower)
        assert (await follower.end()).outcome == "completed"
    assert (place.repo / "two.txt").exists()


async def test_a_sub_agents_question_comes_back_with_its_session(place: Place, model: ScriptedModel) -> None:
    model.on("parent", spawn_agent("child work"), always(hang()))
    model.on("child work", run("touch child.txt", escalate="please"), say("child done"))
    async with place.open() as engine:
        follower = await begin(engine, place, "parent")
        asked = await follower.question()
        assert asked.agent_id is not None
    async with place.open() as engine:
        session_id = follower.opened.session_id
        assert await engine.running_sessions() == (session_id,)
        follower = await adopt(engine, place, session_id)
        assert await follower.question() == asked
        await engine.answer(asked, (Choice("approve"),))
        await until((place.repo / "child.txt").exists)
        await engine.interrupt(session_id)


# --- on a pipe -------------------------------------------------------------------------------------------------------


class RawOwner:
    """Owns an engine on a pipe frame by frame, to leave it at the worst moment."""

    def __init__(self, record: EngineRecord) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(30)
        self._socket.connect(str(record.socket))
        self._socket.sendall(b"e0\n")
        self._lines = self._socket.makefile("rb")
        self.inputs: int = json.loads(self._lines.readline())["inputs"]

    def asked(self) -> tuple[int, dict[str, Any]]:
        """The number of the line with a question, and the question."""
        for frame in self._lines:
            number, _, line = frame[1:].partition(b" ")
            if frame.startswith(b"o") and b"requestApproval" in line:
                return int(number), json.loads(line)
        raise AssertionError("nothing was asked")

    def send_and_die(self, frame: str) -> None:
        self._socket.sendall(frame.encode())
        self._lines.close()
        self._socket.close()


@pytest.fixture
async def on_pipe(place: Place) -> Place:
    if is_shared(place.binary):
        pytest.skip("This Codex listens.")
    return place


@where_it_changed
async def test_half_an_answer_is_none_and_a_whole_one_is_given_once(on_pipe: Place, model: ScriptedModel) -> None:
    model.on("touch", run("touch made.txt", escalate="please"), say("All done."))
    async with on_pipe.open() as engine:
        follower = await begin(engine, on_pipe, "touch")
        await follower.question()
    (record,) = on_pipe.records
    owner = RawOwner(record)
    number, question = owner.asked()
    answer = json.dumps({"id": question["id"], "result": {"decision": "accept"}})
    owner.send_and_die(f"i{owner.inputs + 1},{number} {answer[:-5]}")
    owner = RawOwner(record)
    assert owner.asked() == (number, question)
    owner.send_and_die(f"i{owner.inputs + 1},{number} {answer}\n")
    async with on_pipe.open() as engine:
        follower = await adopt(engine, on_pipe, follower.opened.session_id)
        assert (await follower.end()).outcome == "completed"
        assert not any(isinstance(event, QuestionAsked) for event in follower.events)
    assert (on_pipe.repo / "made.txt").exists()


@where_it_changed
async def test_a_turn_that_was_only_just_asked_for_runs_and_is_found(on_pipe: Place, model: ScriptedModel) -> None:
    model.on("hello", say("Here I am."))
    async with on_pipe.open() as engine:
        opened = await engine.open(on_pipe.options)
    (record,) = on_pipe.records
    owner = RawOwner(record)
    params = {"threadId": opened.session_id, "input": [{"type": "text", "text": "hello"}]}
    request = json.dumps({"id": "0.1", "method": "turn/start", "params": params})
    owner.send_and_die(f"i{owner.inputs + 1} {request}\n")
    await until(lambda: model.requests and activity_of(record) == Activity())
    async with on_pipe.open() as engine:
        follower = await adopt(engine, on_pipe, opened.session_id)
        assert (follower.state.status, follower.state.result) == ("done", "Here I am.")
        await begin(engine, on_pipe, "hello")  # and the next owner's requests are not mixed up with that one's


@where_it_changed
async def test_an_engine_on_a_pipe_has_one_owner_and_others_get_their_own(on_pipe: Place) -> None:
    async with on_pipe.open() as one:
        async with on_pipe.open() as other:
            assert one.id != other.id
            (taken,) = [record for record in on_pipe.records if record.id == one.id]
            with pytest.raises(EngineLost, match="in use by another"):
                async with open_recorded(taken):
                    pass
        async with on_pipe.open() as again:
            assert again.id == other.id


@where_it_changed
async def test_a_later_epoch_takes_an_engine_over_and_an_earlier_one_does_not(
    on_pipe: Place, model: ScriptedModel
) -> None:
    model.on("touch", run("touch made.txt", escalate="please"), say("done"))
    async with on_pipe.open(owner=Owner(epoch=5)) as one:
        follower = await begin(one, on_pipe, "touch")
        await follower.question()
        (record,) = on_pipe.records
        with pytest.raises(EngineTaken):
            async with open_recorded(record):  # one that is no hub
                pass
        async with open_recorded(record, epoch=7) as engine:
            await one.until_lost()
            assert "taken the Codex engine over" in str(one.lost)
            with pytest.raises(EngineTaken):
                async with open_recorded(record, epoch=5):  # it is stopped for a while, and goes on
                    pass
            with pytest.raises(EngineLost, match="started later"):
                async with open_recorded(record, epoch=6):
                    pass
            again = await adopt(engine, on_pipe, follower.opened.session_id)
            await engine.answer(await again.question(), (Choice("approve"),))
            assert (await again.end()).outcome == "completed"


@where_it_changed
async def test_a_running_turn_can_be_stopped_by_the_next_owner(place: Place, model: ScriptedModel) -> None:
    model.on("slow", run("sleep 1000"), say("done"))
    async with place.open() as engine:
        follower = await begin(engine, place, "slow")
        await follower.until(lambda: any(isinstance(item, CommandExecution) for item in follower.state.items))
    async with place.open() as engine:
        follower = await adopt(engine, place, follower.opened.session_id)
        await engine.interrupt(follower.opened.session_id)
        assert (await follower.end()).outcome == "interrupted"
        assert await engine.running_sessions() == ()


@where_it_changed
async def test_what_a_killed_keeper_left_is_ended_by_the_next_who_looks(place: Place, model: ScriptedModel) -> None:
    model.on("slow", run("sleep 1000"), say("done"))
    async with place.open() as engine:
        follower = await begin(engine, place, "slow")
        await follower.until(lambda: any(isinstance(item, CommandExecution) for item in follower.state.items))
        (record,) = place.records
        os.kill(record.keeper.pid, signal.SIGKILL)
        await until(lambda: not record.is_kept)
    async with place.open() as engine:
        assert engine.id != record.id
    assert not record.is_running
    assert left_by(record.directory) == frozenset()


# --- one engine for all ----------------------------------------------------------------------------------------------


async def test_processes_that_start_at_once_share_one_engine(place: Place) -> None:
    if not is_shared(place.binary):
        pytest.skip("This Codex is on a pipe, and has one owner.")
    async with (
        place.used_by_a_process() as one,
        place.used_by_a_process() as two,
        place.used_by_a_process() as three,
    ):
        names = {await user.says("engine") for user in (one, two, three)}
    assert len(names) == 1
    assert {record.id for record in place.records} == names


async def test_another_environment_gets_another_engine(place: Place) -> None:
    async with place.open() as one:
        env = place.codex_home.env | {"OPENAI_BASE_URL": "http://127.0.0.1:1/"}
        async with open_detached(
            place.binary, codex_home=place.codex_home.path, state_dir=place.state_dir, env=env
        ) as other:
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


async def test_an_engine_that_nobody_uses_ends_by_itself(place: Place) -> None:
    async with place.open(idle=0.2):
        (record,) = place.records
    await until(lambda: not record.is_kept)
    assert not record.codex.is_alive()
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
        await anyio.to_thread.run_sync(stop_engine, record)
        await follower.until(lambda: not follower.state.is_running)
    assert place.records == []
    assert not record.directory.exists()
    assert left_by(record.directory) == frozenset()


async def test_a_hanging_engine_is_replaced(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    async with place.open():
        (record,) = place.records
    os.kill(record.codex.pid, signal.SIGSTOP)
    await until(lambda: is_stopped(record.codex.pid))
    monkeypatch.setattr(app_server, "HANDSHAKE_TIMEOUT", 0.3)
    monkeypatch.setitem(transports._OPTIONS, "open_timeout", 0.3)
    monkeypatch.setattr(detached, "STOP_TIMEOUT", 0.4)
    async with place.open() as engine:
        assert engine.id != record.id
    assert not record.is_kept
    assert not record.codex.is_alive()


async def test_an_engine_whose_keeper_was_killed_is_ended_and_replaced(place: Place) -> None:
    async with place.open():
        (record,) = place.records
    os.kill(record.keeper.pid, signal.SIGKILL)
    await until(lambda: not record.is_kept)
    async with place.open() as engine:
        assert engine.id != record.id
    assert not record.is_running


async def test_an_engine_whose_directory_was_removed_ends(place: Place) -> None:
    async with place.open(idle=0.4):
        (record,) = place.records

        def is_removed() -> bool:  # its keeper may just be writing
            shutil.rmtree(record.directory, ignore_errors=True)
            return not record.directory.exists()

        await until(is_removed)
        await until(lambda: not record.is_kept)
    assert not record.is_running


async def test_an_ended_engine_cannot_be_opened(place: Place) -> None:
    async with place.open():
        (record,) = place.records
    await anyio.to_thread.run_sync(stop_engine, record)
    with pytest.raises(EngineLost, match="has ended"):
        async with open_recorded(record):
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
    async with open_recorded(record) as old:
        follower = await adopt(old, place, follower.opened.session_id)
        await old.answer(await follower.question(), (Choice("approve"),))
        await follower.end()
    assert (place.repo / "made.txt").exists()
    await until(lambda: not record.is_kept)
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
        assert engine.info is not None


async def test_what_an_ended_engine_left_on_disk_is_cleared_up_and_nobody_else_is_hit(place: Place) -> None:
    async with place.open():
        (record,) = place.records
    written = (record.directory / "engine.json").read_text(encoding="utf-8")
    await anyio.to_thread.run_sync(stop_engine, record)
    async with await anyio.open_process(["sleep", "1000"]) as innocent:
        record.directory.mkdir()
        content = json.loads(written) | {"keeper": [innocent.pid, "1"], "codex": [innocent.pid, "1"]}
        (record.directory / "engine.json").write_text(json.dumps(content), encoding="utf-8")
        half_written = record.directory.with_name("half")
        half_written.mkdir()
        (half_written / "engine.json").write_text("{", encoding="utf-8")
        assert read_record(record.directory) is not None
        assert place.records == []
        async with place.open() as engine:
            assert engine.id != record.id
        assert not record.directory.exists()
        assert not half_written.exists()
        assert innocent.returncode is None
        innocent.kill()
