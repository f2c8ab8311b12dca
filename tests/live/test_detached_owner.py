"""Engines of a Codex on a pipe in its supervisor, which has one owner at a time."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from helmsman.agents.codex.app_servers import open_recorded
from helmsman.agents.supervisor.client import Owner, Taken
from helmsman.agents.supervisor.records import ProcessRecord
from helmsman.agents.supervisor.relay import Activity, OutputLine, OutputReader
from helmsman.errors import EngineLost
from helmsman.model.events import ItemStarted, QuestionAsked, Source
from helmsman.model.questions import Choice
from helmsman.testing import Gate, ScriptedModel, run, say
from tests.live.detached import Place, adopt, begin, until, where_it_changed

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(os.name != "posix", reason="There are no detached engines here.")]


class RawOwner:
    """Owns an engine on a pipe frame by frame, to leave it at the worst moment."""

    def __init__(self, record: ProcessRecord) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(30)
        self._socket.connect(str(record.socket))
        self._socket.sendall(b"e0\n")
        with self._socket.makefile("rb") as frames:
            hello = json.loads(frames.readline())
        self.inputs: int = hello["inputs"]
        reader = OutputReader(Path(hello["output"]))
        try:
            self._lines: list[OutputLine] = []
            offset = hello["from"]
            while lines := reader.read(offset, hello["size"]):
                self._lines += lines
                offset = lines[-1].end
        finally:
            reader.close()

    def asked(self) -> tuple[int, dict[str, Any]]:
        """Return the offset of the line with the one question, and the question."""
        ((offset, line),) = [one for one in self._lines if b"requestApproval" in one.line]
        return offset, json.loads(line)

    def send_and_die(self, frame: str) -> None:
        self._socket.sendall(frame.encode())
        self._socket.close()


@where_it_changed
async def test_half_an_answer_is_none_and_a_whole_one_is_given_once(place: Place, model: ScriptedModel) -> None:
    gate = Gate()
    model.on("touch", run("touch made.txt", escalate="please"), say(gate, "All done."))
    async with place.open() as engine:
        follower = await begin(engine, place, "touch")
        await follower.question()
    (record,) = place.records
    owner = RawOwner(record)
    number, question = owner.asked()
    answer = json.dumps({"id": question["id"], "result": {"decision": "accept"}})
    owner.send_and_die(f"i{owner.inputs + 1} {answer[:-5]}")
    owner = RawOwner(record)
    assert owner.asked() == (number, question)
    owner.send_and_die(f"i{owner.inputs + 1} {answer}\n")
    await until((place.repo / "made.txt").exists)  # the next owner may come before the supervisor has read the answer
    async with place.open() as engine:
        follower = await adopt(engine, place, follower.opened.session_id)
        gate.release()
        assert (await follower.end()).outcome == "completed"
        assert not any(isinstance(event, QuestionAsked) for event in follower.events)


@where_it_changed
async def test_an_event_comes_from_the_same_line_for_every_reader(place: Place, model: ScriptedModel) -> None:
    model.on("touch", run("touch made.txt", escalate="please"), say("All done."))
    sources: list[dict[str, Source | None]] = []
    async with place.open() as engine:
        follower = await begin(engine, place, "touch")
        await follower.question()
        sources.append({one.item.id: one.source for one in follower.events if isinstance(one, ItemStarted)})
    async with place.open() as engine:
        follower = await adopt(engine, place, follower.opened.session_id)
        await follower.question()
        sources.append({one.item.id: one.source for one in follower.events if isinstance(one, ItemStarted)})
    before, again = sources
    assert again
    assert None not in again.values()
    assert again.items() <= before.items()


@where_it_changed
async def test_a_turn_that_was_only_just_asked_for_runs_and_is_found(place: Place, model: ScriptedModel) -> None:
    model.on("hello", say("Here I am."))
    async with place.open() as engine:
        opened = await engine.open(place.options)
    (record,) = place.records
    owner = RawOwner(record)
    params = {"threadId": opened.session_id, "input": [{"type": "text", "text": "hello"}]}
    request = json.dumps({"id": "0.1", "method": "turn/start", "params": params})
    owner.send_and_die(f"i{owner.inputs + 1} {request}\n")
    await until(lambda: model.requests and record.activity() == Activity())
    async with place.open() as engine:
        follower = await adopt(engine, place, opened.session_id)
        assert (follower.state.status, follower.state.result) == ("done", "Here I am.")
        await begin(engine, place, "hello")  # and the next owner's requests are not mixed up with that one's


@where_it_changed
async def test_an_engine_on_a_pipe_has_one_owner_and_others_get_their_own(place: Place) -> None:
    async with place.open() as one:
        async with place.open() as other:
            assert one.id != other.id
            (taken,) = [record for record in place.records if record.id == one.id]
            with pytest.raises(EngineLost, match="in use by another"):
                async with open_recorded(taken, (), epoch=0):
                    pass
        async with place.open() as again:
            assert again.id == other.id


@where_it_changed
async def test_a_later_epoch_takes_an_engine_over_and_an_earlier_one_does_not(
    place: Place, model: ScriptedModel
) -> None:
    model.on("touch", run("touch made.txt", escalate="please"), say("done"))
    async with place.open(owner=Owner(epoch=5)) as one:
        follower = await begin(one, place, "touch")
        await follower.question()
        (record,) = place.records
        with pytest.raises(Taken):
            async with open_recorded(record, (), epoch=0):  # one that is no hub
                pass
        async with open_recorded(record, (), epoch=7) as engine:
            await one.until_lost()
            assert "taken Codex over" in str(one.lost)
            with pytest.raises(Taken):
                async with open_recorded(record, (), epoch=5):  # it is stopped for a while, and goes on
                    pass
            with pytest.raises(EngineLost, match="started later"):
                async with open_recorded(record, (), epoch=6):
                    pass
            again = await adopt(engine, place, follower.opened.session_id)
            await engine.answer(await again.question(), (Choice("approve"),))
            assert (await again.end()).outcome == "completed"
