"""When the keeper of an engine ends it, and what it keeps of what Codex says."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread
import pytest
from msgspec import structs

from helmsman.agents.codex.binary import find_codex
from helmsman.agents.codex.detached.activity import read_activity
from helmsman.agents.codex.detached.engines import drain_engine, is_shared, open_detached
from helmsman.agents.codex.detached.records import BinaryIdentity, EngineRecord, read_records
from helmsman.agents.codex.detached.watching import ListeningCodex
from helmsman.agents.keeper import process as engine_keeper
from helmsman.agents.keeper.log import LOG_BYTES, Log
from helmsman.agents.keeper.places import mark_draining, write_content
from helmsman.agents.keeper.process import Idleness
from helmsman.base.processes import Process
from helmsman.errors import EngineLost
from helmsman.model.options import SessionOptions, TurnInput
from helmsman.testing import run, say
from tests.engines import start_turn

if TYPE_CHECKING:
    from pathlib import Path

    from helmsman.testing import CodexHome, ScriptedModel

pytestmark = pytest.mark.skipif(os.name != "posix", reason="There are no detached engines here.")


@pytest.fixture
async def with_a_question(
    codex_binary: Path, codex_home: CodexHome, detached_engines: Path, model: ScriptedModel, git_repo: Path
) -> EngineRecord:
    """An engine that nobody is attached to any more, with a question open in it."""
    binary = await find_codex(explicit=codex_binary, env=codex_home.env)
    if not is_shared(binary):
        pytest.skip("This Codex does not listen.")
    model.on("touch", run("touch made.txt", escalate="please"), say("done"))
    async with open_detached(
        binary, codex_home=codex_home.path, state_dir=detached_engines, env=codex_home.env
    ) as engine:
        options = SessionOptions(cwd=git_repo, writes="workspace", asks="when_needed")
        opened = await start_turn(engine, options, TurnInput(text="touch"))
        (record,) = read_records(detached_engines)
        with anyio.fail_after(30):
            while (await anyio.to_thread.run_sync(read_activity, record.socket)).waiting != (opened.session_id,):
                await anyio.sleep(0.02)
    return record


def idleness(directory: Path, socket: Path | None = None, idle: float = 0) -> Idleness:
    """Of an engine that may end as soon as it is of no use."""
    return Idleness(directory, ListeningCodex(socket or directory / "none.sock"), idle, Log(directory / "stderr.log"))


@pytest.mark.anyio
async def test_an_open_question_keeps_an_engine(with_a_question: EngineRecord) -> None:
    assert not idleness(with_a_question.directory, with_a_question.socket).may_end(nobody_attached=True)


@pytest.mark.anyio
async def test_an_open_question_does_not_keep_an_engine_for_ever(
    with_a_question: EngineRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = idleness(with_a_question.directory, with_a_question.socket)
    assert not found.may_end(nobody_attached=True)
    monkeypatch.setattr(engine_keeper, "_UNANSWERED_SECONDS", 0)
    assert found.may_end(nobody_attached=True)


@pytest.mark.anyio
async def test_an_engine_that_somebody_uses_is_not_even_asked(
    with_a_question: EngineRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_keeper, "_UNANSWERED_SECONDS", 0)
    found = idleness(with_a_question.directory, with_a_question.socket)
    assert not found.may_end(nobody_attached=False)


@pytest.mark.anyio
async def test_a_drained_engine_stays_for_its_open_question(with_a_question: EngineRecord) -> None:
    drain_engine(with_a_question)
    assert not idleness(with_a_question.directory, with_a_question.socket).may_end(nobody_attached=True)


def test_an_engine_that_gives_no_answer_is_given_time(tmp_path: Path) -> None:
    found = idleness(tmp_path)
    assert not found.may_end(nobody_attached=True)
    assert "No Codex engine answers" in (tmp_path / "stderr.log").read_text(encoding="utf-8")


def test_an_engine_within_its_idle_time_is_not_asked_unless_it_is_drained(tmp_path: Path) -> None:
    record = EngineRecord(
        id="e1",
        directory=tmp_path,
        socket=tmp_path / "none.sock",
        keeper=Process(1, "1"),
        codex=Process(1, "1"),
        binary=BinaryIdentity(path="/usr/bin/codex", size=1, changed_ns=2, version="0.166.0"),
        codex_home="/home/u/.codex",
        env_digest="d",
        idle=1000,
        started_at=0,
    )
    write_content(record.directory, structs.asdict(record) | {"binary": structs.asdict(record.binary)})
    assert not idleness(tmp_path, idle=1000).may_end(nobody_attached=True)
    assert not (tmp_path / "stderr.log").exists()  # where the failure to reach it would stand
    mark_draining(record.directory)
    idleness(tmp_path, idle=1000).may_end(nobody_attached=True)
    assert (tmp_path / "stderr.log").exists()


def test_nobody_listening_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(EngineLost, match="No Codex engine answers"):
        read_activity(tmp_path / "none.sock")


def test_the_log_keeps_the_end_and_no_secrets(tmp_path: Path) -> None:
    log = Log(tmp_path / "stderr.log")
    log.write(b"\x1b[31mERROR\x1b[0m Authorization: Bearer sk-abcdefghijklmnopqrstuvwxyz0123456789\nhalf a ")
    assert log.tail.startswith("ERROR Authorization:")
    assert "abcdefghijklmnop" not in log.tail
    assert "half" not in log.tail
    log.write(b"line\n")
    assert log.tail.endswith("half a line\n")
    assert (tmp_path / "stderr.log").stat().st_mode & 0o777 == 0o600


def test_the_log_does_not_grow_for_ever(tmp_path: Path) -> None:
    log = Log(tmp_path / "stderr.log")
    for number in range(5000):
        log.write(f"{number} {'x' * 200}\n".encode())
    log.write(b"y" * (2 * LOG_BYTES))
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) <= 2 * LOG_BYTES
    assert len(list(tmp_path.iterdir())) == 2
