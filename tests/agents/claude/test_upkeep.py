"""Tests of the real Claude Code on a scripted model: fork, rename, compact, plan, and shared sessions."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import struct
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from helmsman.agents.claude.storage import ClaudeSessions
from helmsman.errors import SessionLocked
from helmsman.model.events import ContextCompaction, ProposedPlan
from helmsman.shapes.listed_sessions import listed_sessions
from helmsman.testing import ModelRequest, ScriptedModel, always, ask_user, call, patch, question, run, say, update
from helmsman.testing.script import Step
from tests.agents.claude.test_story import SECONDS, Place, ended, next_question, opened, place
from tests.claude import claude_binary

__all__ = ["place"]

pytestmark = [pytest.mark.anyio, pytest.mark.rare]

SCHEMA = {
    "type": "object",
    "properties": {"answer": {"type": "integer"}},
    "required": ["answer"],
    "additionalProperties": False,
}
PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010802000000907753de0000000c49444154789c63f8cfc000000301010018dd8db00000"
    "000049454e44ae426082"
)


@pytest.mark.long
async def test_sessions_stand_by_what_was_said_last_whatever_their_files_say(tmp_path: Path) -> None:
    project = tmp_path / "projects" / "-repo"
    project.mkdir(parents=True)
    ids = [f"00000000-0000-4000-8000-00000000000{number}" for number in range(3)]
    for number, session_id in enumerate(ids):
        message = {"role": "user", "content": "Hello"}
        line = {"type": "user", "message": message, "timestamp": f"2026-01-0{number + 1}T00:00:00.000Z", "cwd": "/repo"}
        lines = [line, {"type": "cost-state", "totalCostUSD": 1}]
        (project / f"{session_id}.jsonl").write_text(
            "".join(json.dumps(one, separators=(",", ":")) + "\n" for one in lines), encoding="utf-8"
        )
    os.utime(project / f"{ids[1]}.jsonl", (2_000_000_000, 2_000_000_000))
    found, _ = ClaudeSessions(tmp_path).list()
    assert [info.session_id for info in found] == ids[::-1]


async def test_a_session_is_forked_named_and_compacted(place: Place, model: ScriptedModel) -> None:
    for word in ("one", "two", "three", "four", "five"):
        model.on(word, say(f"said {word}"))
    model.on("Respond with TEXT ONLY", say("<summary>They counted.</summary>"))
    async with opened(place) as helm:
        session = await helm.start("one", cwd=place.repo, agent="claude", sandbox="workspace-write")
        await ended(session)
        await session.say("two")
        await ended(session)

        fork = await helm.fork(session.id, "three")
        await ended(fork)
        assert list(model.requests[-1].user_texts) == ["one", "two", "three"]
        waiting = await helm.fork(session.id, from_turn=1)
        assert [turn.id for turn in await helm.history(waiting.id)] == [(await helm.history(session.id))[0].id]
        await waiting.say("four")
        await ended(waiting)
        assert list(model.requests[-1].user_texts) == ["one", "four"]
        assert len({session.id, fork.id, waiting.id}) == 3
        assert [len(await helm.history(one.id)) for one in (session, fork, waiting)] == [2, 3, 2]
        spent = await helm.extras.usage.report()
        assert (spent.total.turns, spent.total.usage.input_tokens) == (
            4,
            4 * 100,
        )  # turns that a fork copies count once

        await helm.extras.upkeep.rename(session.id, "Counting")  # its process runs
        await helm.extras.upkeep.compact(session.id)
        await ended(session)
        assert session.error is None
        assert any(isinstance(item, ContextCompaction) for item in session.items)
        await session.say("five")
        await ended(session)
        assert "They counted." in " ".join(model.requests[-1].user_texts)
        turns = await helm.history(session.id)
        assert [any(isinstance(item, ContextCompaction) for item in turn.items) for turn in turns] == [
            False,
            False,
            True,
            False,
        ]
        assert await helm.extras.account.models()
    async with opened(place) as helm:
        await helm.extras.upkeep.rename(fork.id, "Branch")  # none runs
        infos, _ = await helm.list(agent="claude")
        names = {info.session_id: info.name for info in infos}
        assert (names[session.id], names[fork.id]) == ("Counting", "Branch")


@pytest.mark.long
async def test_it_plans_first_and_works_when_the_plan_is_approved(place: Place, model: ScriptedModel) -> None:
    (place.repo / "a.txt").write_text("hello\n", encoding="utf-8")

    def write_plan(request: ModelRequest) -> Step:
        path = re.search(r"/[^\s\"\\]*/plans/[^\s\"\\]*\.md", json.dumps(request.input))
        assert path is not None
        return call("Write", {"file_path": path[0], "content": "# Plan\n\nSay bye.\n"})

    change = patch(update("a.txt", "hello", "bye"))
    model.on(
        "be polite",
        ask_user(question("In which tone?", "warm", "cool")),
        call("Write", {"file_path": str(place.repo / "b.txt"), "content": "x"}),
        run("touch c.txt"),
        call("ToolSearch", {"query": "select:ExitPlanMode"}),
        write_plan,
        call("ExitPlanMode", {}),
        say("never said"),
    )
    model.on("Carry it out", change, say("done"))
    async with opened(place) as helm:
        session = await helm.extras.plans.start("be polite", cwd=place.repo, agent="claude", sandbox="workspace-write")
        asked = await next_question(session)
        assert asked.prompts[0].text == "In which tone?"
        await session.respond(asked.id, "warm")
        asked = await next_question(session)
        assert (asked.prompts[0].key, asked.details["plan"]) == ("plan", "# Plan\n\nSay bye.")
        assert [item.status for item in session.items if isinstance(item, ProposedPlan)] == ["completed"]
        assert not (place.repo / "b.txt").exists()
        assert not (place.repo / "c.txt").exists()
        assert [turn.status for turn in await helm.history(session.id)] == ["inProgress"]  # it waits for the answer
        await session.respond(asked.id, "approve")
        asked = await next_question(session)
        assert asked.type == "patch_approval"
        await session.respond(asked.id, "approve")
        await ended(session)
        assert session.result == "done"
        assert [turn.status for turn in await helm.history(session.id)] == ["completed", "completed"]
    assert (place.repo / "a.txt").read_text(encoding="utf-8") == "bye\n"


async def test_an_answer_keeps_to_a_schema_and_an_image_is_seen(place: Place, model: ScriptedModel) -> None:
    image = place.repo / "dot.png"
    image.write_bytes(PNG)
    model.on("how many", say("two"), call("StructuredOutput", {"answer": "2"}), call("StructuredOutput", {"answer": 2}))
    model.on("in words", say("two"))
    async with opened(place) as helm:
        session = await helm.start(
            "how many", cwd=place.repo, agent="claude", sandbox="workspace-write", output_schema=SCHEMA, images=[image]
        )
        await ended(session)
        assert json.loads(session.result or "") == {"answer": 2}
        sent = json.dumps(model.requests[0].input)
        assert "image" in sent
        (turn,) = await helm.history(session.id)
        assert turn.status == "completed"
        await session.say("in words")
        await ended(session)
        assert session.result == "two"


async def test_a_trusted_repository_is_heeded_and_the_users_servers_always(place: Place, model: ScriptedModel) -> None:
    ran = place.repo / "ran"
    server = {"command": "sh", "args": ["-c", f"touch {ran}; cat > /dev/null"]}
    (place.repo / "CLAUDE.md").write_text("Always speak of tulips.\n", encoding="utf-8")
    place.home.mkdir(exist_ok=True)
    (place.home / ".claude.json").write_text(json.dumps({"mcpServers": {"mine": server}}), encoding="utf-8")
    model.on("look", always(say("looked")))
    async with opened(place) as helm:
        for trusted in (True, False):
            session = await helm.start(
                "look", cwd=place.repo, agent="claude", sandbox="workspace-write", trust_repository=trusted
            )
            await ended(session)
            (stored,) = place.home.glob(f"projects/*/{session.id}.jsonl")  # with what the model was sent
            assert ("tulips" in stored.read_text(encoding="utf-8")) is trusted
            assert ran.exists()
            ran.unlink()


@pytest.mark.long
async def test_a_session_that_a_person_has_open_is_left_alone(place: Place, model: ScriptedModel) -> None:
    model.on("hello", always(say("hello to you")))
    session_id = str(uuid.uuid4())
    async with opened(place) as helm:
        async with in_a_terminal(place, session_id, "hello"):
            with anyio.fail_after(SECONDS):
                while not (found := (await helm.list(agent="claude"))[0]):
                    await anyio.sleep(0.1)
            (listed,) = await listed_sessions(helm, found)
            assert (listed["sessionId"], listed["isActive"], listed["source"]) == (session_id, True, "cli")
            with pytest.raises(SessionLocked, match="Close it there"):
                await helm.say(session_id, "hello again")
            fork = await helm.fork(session_id, "hello there")
            await ended(fork)
            assert fork.result == "hello to you"
        before = await helm.history(session_id)
        session = await helm.say(session_id, "hello again")
        await ended(session)
        assert (await helm.history(session_id))[:-1] == before


@asynccontextmanager
async def in_a_terminal(place: Place, session_id: str, words: str) -> AsyncIterator[None]:
    """Yield a session that a user has open in Claude Code's terminal."""
    import fcntl
    import termios

    place.home.mkdir(exist_ok=True)
    known = {
        "hasCompletedOnboarding": True,
        "customApiKeyResponses": {"approved": ["dummy"], "rejected": []},
        "projects": {str(place.repo): {"hasTrustDialogAccepted": True}},
    }
    (place.home / ".claude.json").write_text(json.dumps(known), encoding="utf-8")
    binary, env = str(claude_binary()), {**place.env, "TERM": "xterm", "DISABLE_AUTOUPDATER": "1"}
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(place.repo)
        os.execve(binary, [binary, "--session-id", session_id], env)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
    os.set_blocking(terminal, False)
    try:
        with anyio.fail_after(SECONDS):
            while not list(place.home.glob(f"projects/*/{session_id}.jsonl")):
                with suppress(BlockingIOError):
                    os.read(terminal, 1024 * 1024)
                os.write(terminal, words.encode())
                await anyio.sleep(0.7)  # a person's pace: faster, it takes the return for part of a paste
                os.write(terminal, b"\r")
                await anyio.sleep(0.7)
        yield
    finally:
        os.kill(pid, signal.SIGTERM)
        await anyio.to_thread.run_sync(os.waitpid, pid, 0)
        os.close(terminal)
