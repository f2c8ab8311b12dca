"""Notices of a real hub, to a receiver that counts: what was told arrives, however often the hub is killed."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Any

import anyio
import pytest

from helmsman import Helmsman, load_settings
from helmsman.testing import ScriptedModel, run, say
from helmsman.testing.hubs import hub_pid
from tests.hub.commands import begun, done, whole
from tests.hub.conftest import Place
from tests.hub.test_schedules import ended
from tests.notices.receivers import NtfyServer, Received, Receiver, press

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")]

SECONDS = 60
_KILLS = 6


def configure(place: Place, text: str) -> None:
    path = Path(place.env["HOME"]) / ".config" / "helmsman" / "helmsman.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


async def told(place: Place, *words: str, code: int = 0) -> dict[str, Any]:
    """What a command says to a program."""
    finished = await done(whole(*words, "--json"), place)
    assert finished.code == code, finished.stderr
    answer: dict[str, Any] = json.loads(finished.stdout)
    return answer


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as receiver:
        yield receiver


async def test_configured_channels_are_listed_tried_recorded_and_examined(
    bare_place: Place, receiver: Receiver
) -> None:
    place = bare_place
    configure(place, "")
    assert await told(place, "config", "notify") == {"ways": []}
    hook = f'[[notify.to]]\nway = "webhook"\nurl = "{receiver.url}/as-good-as-a-password"\nsecret = "verysecret"\n'
    dead = '[[notify.to]]\nway = "command"\nname = "dead"\ncommand = ["/nowhere/program"]\n'
    configure(place, hook + dead)
    first, _ = (await told(place, "config", "notify"))["ways"]
    assert (first["name"], first["way"], first["status"], first["detail"]) == ("webhook", "webhook", "untried", "short")
    assert (await told(place, "config", "notify", "test", "webhook"))["notices"][0]["status"] == "sent"
    assert receiver.received[0].json["title"] == "This is a test of Helmsman's notices"
    failed = (await told(place, "config", "notify", "test", code=1))["notices"]
    assert {one["to"]: one["status"] for one in failed} == {"webhook": "sent", "dead": "failed"}
    assert [one["to"] for one in (await told(place, "config", "notify", "log"))["notices"]] == [
        "dead",
        "webhook",
        "webhook",
    ]
    elsewhere = await done(
        whole("config", "notify", "--json"), place, {"TZ": "Asia/Tokyo"}
    )  # in its own process, as programs are
    ways = {one["name"]: one for one in json.loads(elsewhere.stdout)["ways"]}
    assert ways == {one["name"]: one for one in (await told(place, "config", "notify"))["ways"]}
    assert (ways["webhook"]["status"], ways["dead"]["status"]) == ("ok", "failing")
    doctor = await done(whole("doctor", "--json"), place)
    found = [one for one in json.loads(doctor.stdout)["checks"] if one["name"] == "Notices"]
    assert [(one["status"], "dead does not work" in one["detail"]) for one in found] == [("warning", True)]
    configure(place, hook + '[notify]\nevents = ["everything"]\n')
    wrong = await told(place, "config", "notify", code=2)
    assert "notify.events" in wrong["error"]["message"]
    everything = b"".join(file.read_bytes() for file in place.state_dir.rglob("*") if file.is_file())
    assert b"verysecret" not in everything, "secrets reach neither log nor store"
    assert b"as-good-as-a-password" not in everything


async def test_a_way_is_added_tried_and_explained(bare_place: Place, receiver: Receiver) -> None:
    place, words = bare_place, ("config", "notify", "add", "webhook", receiver.url)
    configure(place, "max_sessions = 3\n")
    refused = await done(whole(*words), place)
    assert (refused.code, "No one can answer through them." in refused.stderr) == (2, True)
    assert (await told(place, "config", "notify")) == {"ways": []}
    added = await done(whole(*words, "--yes"), place)
    assert added.code == 0, added.stderr
    assert "The server at this address reads them" in added.stderr
    assert receiver.received[0].json["kind"] == "test"
    (way,) = (await told(place, "config", "notify"))["ways"]
    assert (way["way"], way["status"]) == ("webhook", "ok")
    again = await done(whole(*words, "--yes"), place)
    assert (again.code, "Give it another name" in again.stderr) == (2, True)


async def test_a_hub_that_was_killed_is_reported_by_the_next_and_one_that_was_stopped_is_not(
    bare_place: Place, receiver: Receiver
) -> None:
    configure(bare_place, f'[[notify.to]]\nway = "webhook"\nurl = "{receiver.url}"\n')
    await told(bare_place, "config", "notify")
    assert (await done(whole("hub", "stop", "--yes"), bare_place)).code == 0
    await told(bare_place, "config", "notify")
    await bare_place.kill_hub()
    await told(bare_place, "config", "notify")
    (died,) = await receiver.until(1)
    assert died.json["kind"] == "hub"
    assert died.json["title"] == "The hub had ended without a word, and another has begun"


@pytest.mark.rare
async def test_each_notice_arrives_at_least_once_and_at_most_twice_however_the_hub_is_killed(
    place: Place, model: ScriptedModel, receiver: Receiver
) -> None:
    configure(place, f'[notify]\nevents = ["done"]\n[[notify.to]]\nway = "webhook"\nurl = "{receiver.url}"\n')
    model.on("work", say("done"))
    await told(place, "schedule", "add", "--cron", "0 7 * * *", "later")
    is_to_be_killed = threading.Event()

    def on_received(_: Received) -> None:
        """Kill the hub while it waits for our answer, where that is wanted."""
        if is_to_be_killed.is_set() and (pid := hub_pid(place.state_dir)) is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            is_to_be_killed.clear()

    receiver.before_answer = on_received
    for number in range(_KILLS):
        await told(place, "schedule", "add", "--at", "in 1s", f"work {number}", "-s", "read-only", "-a", "never")
        if number % 2 == 0:
            is_to_be_killed.set()
            with anyio.fail_after(SECONDS):
                while is_to_be_killed.is_set():
                    await anyio.sleep(0.01)
        else:  # around the end of the turn, which comes before its notice
            with anyio.fail_after(SECONDS):
                while len(model.requests) <= number:
                    await anyio.sleep(0.002)
            with anyio.move_on_after(number * 0.05):
                await anyio.sleep_forever()
            if hub_pid(place.state_dir) is not None:
                await place.kill_hub()
        await told(place, "schedule", "list")
    tasks = await ended(place, _KILLS)
    wanted = {task.id for task in tasks}
    with anyio.fail_after(SECONDS):
        while {one.json["taskId"] for one in receiver.received} != wanted:
            await anyio.sleep(0.05)
        while any(
            one["status"] in ("pending", "sending") for one in (await told(place, "config", "notify", "log"))["notices"]
        ):
            await anyio.sleep(0.05)
    counts = Counter(one.json["taskId"] for one in receiver.received)
    assert set(counts.values()) <= {1, 2}, counts
    known = {one["taskId"]: one for one in (await told(place, "config", "notify", "log"))["notices"]}
    twice = {task_id for task_id, count in counts.items() if count == 2}
    assert twice, "it was killed while it sent"
    assert twice <= {task_id for task_id, one in known.items() if one.get("doubtful")}


async def test_only_a_program_that_waits_for_a_turn_keeps_its_end_from_others(
    place: Place, model: ScriptedModel, receiver: Receiver
) -> None:
    configure(place, f'[notify]\nevents = ["done"]\n[[notify.to]]\nway = "webhook"\nurl = "{receiver.url}"\n')
    begins = model.gate()
    model.on("touch", run("touch made.txt", escalate="it is needed"), say(begins, "All said."))
    model.on("more", say("More said."))
    await told(place, "schedule", "add", "--at", "in 1s", "touch it", "--full-auto")
    settings = load_settings(env=place.env, cwd=place.directory)
    async with Helmsman(settings, env=place.env) as helm:
        with anyio.fail_after(SECONDS):
            while not (asking := [task for task in (await helm.tasks.list())[0] if task.input_required]):
                await anyio.sleep(0.05)
        session = await helm.session(str(asking[0].session_id))
        (question,) = session.questions
        await session.respond(question.id, "approve")
        begins.release()
        (ended_turn,) = await receiver.until(1)
        assert (ended_turn.json["kind"], ended_turn.json["sessionId"]) == ("done", session.id)
        session = await helm.start("more", cwd=place.directory)
        await session.wait()
        gate = model.gate()
        model.on("last", say(gate, "Last said."))
        async with Helmsman(settings, env=place.env) as other:
            await other.say(session.id, "last")
        with anyio.fail_after(SECONDS):
            while not session.state.is_running:
                await session.feed.changed()
        async with aclosing(session.events(since=session.turn_cursor)) as events:
            await anext(events)
            await told(place, "config", "notify")  # by now the hub knows that it follows
            gate.release()
            assert [event async for event in events]
    for _ in range(2):  # what has ended by now has been looked at
        await told(place, "config", "notify")
    assert len(receiver.received) == 1


async def test_a_question_is_answered_from_the_phone_with_a_hub_killed_in_between(
    place: Place, model: ScriptedModel
) -> None:
    model.on("touch", run("touch made.txt", escalate="it is needed"), say("All said."))
    with NtfyServer() as ntfy:
        kept = Path(place.env["HOME"]) / "ntfy-token"
        kept.write_text(ntfy.token, encoding="utf-8")
        kept.chmod(0o600)
        configure(
            place,
            "[notify]\nunanswered_sec = 0\n"
            f'[[notify.to]]\nway = "ntfy"\nserver = "{ntfy.url}"\ntopic = "mine"\ntoken_file = "{kept}"\n'
            'detail = "full"\nanswers = true\nevents = ["question", "done"]\n',
        )
        await told(place, "schedule", "add", "--at", "in 1s", "touch it", "--full-auto")
        (asked,) = await ntfy.until_published(1)
        assert "touch made.txt" in asked["message"]
        with anyio.fail_after(SECONDS):
            while (await told(place, "config", "notify", "log"))["notices"][0]["status"] != "sent":
                await anyio.sleep(0.05)
        approve = next(one for one in asked["actions"] if one["label"] == "Approve")
        await place.kill_hub()
        await press(approve)
        await told(place, "schedule", "list")
        (task,) = await ended(place, 1)
        assert (task.status, (place.directory / "made.txt").exists()) == ("completed", True)
        assert (await ntfy.until_published(2))[-1]["title"].endswith("Codex is done")
        gate = model.gate()
        model.on("rest", say(gate, "Rested."))
        async with begun(whole("run", "rest", "-s", "read-only"), place) as followed:
            assert followed.stderr is not None
            with anyio.fail_after(SECONDS):
                await followed.stderr.receive()  # it says which session, and follows it
                gate.release()
                assert await followed.wait() == 0
        for _ in range(2):  # what has ended by now has been looked at
            await told(place, "config", "notify")
        assert len(ntfy.published) == 2, "who follows a session is not told of its end"
        audit = (place.state_dir / "audit.jsonl").read_text("utf-8")
        assert '"via": "ntfy"' in audit or '"via":"ntfy"' in audit
