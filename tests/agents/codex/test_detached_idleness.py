"""Tests of when the supervisor of an engine ends it, and of Codex's logged output."""

from __future__ import annotations

import os
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from helmsman.agents.codex.app_servers import EngineRequest, open_detached
from helmsman.agents.codex.binary import find_codex
from helmsman.agents.supervisor import process as supervisor_process
from helmsman.agents.supervisor.directory import mark_draining
from helmsman.agents.supervisor.process import LOG_BYTES, Idleness, Log
from helmsman.agents.supervisor.records import ProcessRecord, read_records
from helmsman.agents.supervisor.relay import Activity
from helmsman.model.options import SessionOptions, TurnInput
from helmsman.testing import CodexHome, ScriptedModel, run, say
from tests.engines import start_turn

pytestmark = pytest.mark.skipif(os.name != "posix", reason="There are no detached engines here.")


@pytest.fixture
async def with_a_question(
    codex_binary: Path, codex_home: CodexHome, detached_engines: Path, model: ScriptedModel, git_repo: Path
) -> ProcessRecord:
    """Engine without clients, with an open question."""
    binary = await find_codex(explicit=codex_binary, env=codex_home.env)
    model.on("touch", run("touch made.txt", escalate="please"), say("done"))
    wanted = await EngineRequest.of(binary, codex_home.path, detached_engines, codex_home.env)
    async with open_detached(wanted) as engine:
        options = SessionOptions(cwd=git_repo, writes="workspace", asks="when_needed")
        opened = await start_turn(engine, options, TurnInput(text="touch"))
        (record,) = read_records(detached_engines)
        with anyio.fail_after(30):
            while (await anyio.to_thread.run_sync(record.activity)).waiting != (opened.session_id,):
                await anyio.sleep(0.02)
    return record


class Asked:
    """Watcher that asks the supervisor of a record, and counts the requests."""

    def __init__(self, record: ProcessRecord | None = None) -> None:
        self._record = record
        self.times = 0
        self.open: dict[int | str, int] = {}

    def activity(self) -> Activity:
        self.times += 1
        return Activity() if self._record is None else self._record.activity()

    def on_output(self, line: bytes, offset: int) -> None: ...

    def on_input(self, line: bytes) -> None: ...

    def interrupt(self) -> list[bytes]:
        return []


def idleness(record: ProcessRecord) -> Idleness:
    """Of an engine that may end as soon as it is unused."""
    return Idleness(record.directory, Asked(record), 0)


@pytest.mark.anyio
async def test_an_open_question_keeps_an_engine(with_a_question: ProcessRecord) -> None:
    assert not idleness(with_a_question).may_end(nobody_attached=True)


@pytest.mark.anyio
async def test_an_open_question_does_not_keep_an_engine_for_ever(
    with_a_question: ProcessRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = idleness(with_a_question)
    assert not found.may_end(nobody_attached=True)
    monkeypatch.setattr(supervisor_process, "_UNANSWERED_SECONDS", 0)
    assert found.may_end(nobody_attached=True)


@pytest.mark.anyio
async def test_an_engine_in_use_is_not_probed(with_a_question: ProcessRecord, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor_process, "_UNANSWERED_SECONDS", 0)
    found = idleness(with_a_question)
    assert not found.may_end(nobody_attached=False)


@pytest.mark.anyio
async def test_a_drained_engine_stays_for_its_open_question(with_a_question: ProcessRecord) -> None:
    with_a_question.drain()
    assert not idleness(with_a_question).may_end(nobody_attached=True)


def test_an_engine_within_its_idle_time_is_not_asked_unless_it_is_drained(tmp_path: Path) -> None:
    asked = Asked()
    found = Idleness(tmp_path, asked, 1000)
    assert not found.may_end(nobody_attached=True)
    assert asked.times == 0
    mark_draining(tmp_path)
    assert found.may_end(nobody_attached=True)
    assert asked.times == 1


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
