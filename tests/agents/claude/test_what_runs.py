"""Tests that Claude Code runs what it shows: where commands run, what else they request, and what no command may plant."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterable
from pathlib import Path

import anyio
import pytest

from helmsman import Session
from helmsman.agents.claude.normalise import read_question
from helmsman.agents.claude.storage import ClaudeSessions
from helmsman.agents.sandbox import remove_scratch, scratch_of
from helmsman.approvals.policy import RuleSet, Workspace, decide
from helmsman.base.mount_points import MountPoints
from helmsman.base.process_ending import signal_all
from helmsman.base.processes import KILL, with_variable
from helmsman.base.structs import replace
from helmsman.errors import InvalidInput
from helmsman.model.questions import Question
from helmsman.model.rules import Rule
from helmsman.testing import ModelRequest, ScriptedModel, always, call, run, say
from helmsman.testing.script import Step
from tests.agents.claude.test_story import SECONDS, Place, ended, next_question, opened, place

__all__ = ["place"]


async def answered(session: Session, answer: str) -> list[Question]:
    """Answer every question of the running turn in this way."""
    asked: list[Question] = []
    with anyio.fail_after(SECONDS):
        while session.state.is_running:
            if session.questions:
                asked.append(session.questions[0])
                await session.respond(asked[-1].id, answer)
            else:
                await session.feed.changed()
    return asked


@pytest.mark.anyio
async def test_a_command_runs_where_it_was_shown_and_a_rule_holds_there_and_for_nothing_more(
    place: Place, model: ScriptedModel
) -> None:
    (place.repo / "sub").mkdir()
    make = "echo made >> made.txt"
    more = {"command": make, "description": "the same again", "dangerouslyDisableSandbox": True}
    model.on("first", run(make), say("done"))
    model.on("then", run("cd sub"), run(make), call("Bash", more), say("done"))
    async with opened(place) as helm:
        session = await helm.start("first", cwd=place.repo, agent="claude", sandbox="workspace-write")
        assert len(await answered(session, "approve_session")) == 1
        await session.say("then")
        (asked,) = await answered(session, "deny")
        assert asked.details["more"] == {"dangerouslyDisableSandbox": True}
        assert "approve_session" not in asked.prompts[0].options  # a rule would not say that
    assert (place.repo / "made.txt").read_text(encoding="utf-8") == "made\nmade\n"
    assert not (place.repo / "sub" / "made.txt").exists()


@pytest.mark.anyio
async def test_nothing_can_be_planted_that_another_claude_begins_its_commands_with(
    place: Place, model: ScriptedModel
) -> None:
    others = ("shell-snapshots", "session-env", "jobs", "backups", "projects/-another")
    planted = [*(place.home / name / "x" for name in others), scratch_of(place.settings.state_dir, "another") / "x"]
    for file in planted:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    model.on("plant", run("; ".join(f"echo id > {file}" for file in planted)), say("done"))
    async with opened(place) as helm:
        session = await helm.start("plant", cwd=place.repo, agent="claude", sandbox="workspace-write")
        await answered(session, "approve")
        assert ClaudeSessions(place.home).find(session.id) is not None
    assert not [file for file in planted if file.exists()]
    remove_scratch(place.settings.state_dir, "another")


@pytest.mark.rare
@pytest.mark.anyio
async def test_of_a_sandbox_that_is_killed_with_its_claude_nothing_is_left_in_the_repository(
    place: Place, model: ScriptedModel
) -> None:
    model.on("first", run("touch first.txt"), say("never said"))
    model.on("then", say("here I am"))
    async with opened(place) as helm:
        session = await helm.start("first", cwd=place.repo, agent="claude", sandbox="workspace-write")
        await next_question(session)
        signal_all(with_variable("TMPDIR", str(scratch_of(place.settings.state_dir, session.id))), KILL)
        await ended(session)
        assert session.error is not None
        await session.say("then")  # its next process waits until the last one has left nothing
        await ended(session)
    assert [path.name for path in place.repo.iterdir() if path.is_dir()] == [".git"]
    assert not [*place.home.rglob(".codex")]


@pytest.mark.long
@pytest.mark.anyio
async def test_the_next_process_of_a_session_is_started_when_the_last_one_has_been_cleared_up_after(
    place: Place, model: ScriptedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    expect, clear = MountPoints.expect, MountPoints.clear

    def expect_and_tell(points: MountPoints, name: str, paths: Iterable[Path]) -> None:
        order.append("started")
        expect(points, name, paths)

    def clear_slowly(points: MountPoints, *ended: str) -> None:
        if ended:
            time.sleep(3)
        clear(points, *ended)
        order.extend("cleared" for _ in ended)

    monkeypatch.setattr(MountPoints, "expect", expect_and_tell)
    monkeypatch.setattr(MountPoints, "clear", clear_slowly)
    model.on("first", run("touch first.txt"), say("never said"))
    model.on("then", say("here I am"))
    async with opened(place) as helm:
        session = await helm.start("first", cwd=place.repo, agent="claude", sandbox="workspace-write")
        await next_question(session)
        signal_all(with_variable("TMPDIR", str(scratch_of(place.settings.state_dir, session.id))), KILL)
        await ended(session)
        await session.say("then")
        await ended(session)
        assert order == ["started", "cleared", "started"]


@pytest.mark.anyio
@pytest.mark.rare
async def test_a_sandboxed_command_cannot_reach_sockets_of_the_users_session(
    place: Place, model: ScriptedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = tmp_path / "run"
    runtime.mkdir(mode=0o700)
    monkeypatch.chdir(runtime)  # its address may be too long
    place.env["XDG_RUNTIME_DIR"] = str(runtime)
    connect = "import socket; socket.socket(socket.AF_UNIX).connect('../run/bus')"
    model.on("reach", run(f'python3 -c "{connect}" && touch reached.txt'), run("touch ran.txt"), say("done"))
    with socket.socket(socket.AF_UNIX) as bus:
        bus.bind("bus")
        bus.listen()
        async with opened(place) as helm:
            session = await helm.start("reach", cwd=place.repo, agent="claude", sandbox="workspace-write")
            assert len(await answered(session, "approve")) == 2
    assert (place.repo / "ran.txt").exists()
    assert not (place.repo / "reached.txt").exists()


@pytest.mark.anyio
@pytest.mark.rare
async def test_a_sandboxed_claude_cannot_message_another_and_no_turn_starts_by_itself(
    place: Place, model: ScriptedModel
) -> None:
    sockets = Path("/tmp") / "cc-socks"
    place.env.pop("XDG_RUNTIME_DIR", None)
    sub = {"description": "a task", "prompt": "sub task", "subagent_type": "general-purpose", "run_in_background": True}
    steps = iter((run(f"ls {sockets} > seen.txt; touch ran.txt"), call("Agent", sub), say("done")))
    offered: set[str] = set()

    def look(request: ModelRequest) -> Step:  # other settings on the way
        offered.update(request.tool_names)
        return next(steps)

    model.on("other", say("done"))
    model.on("sub task", run("touch sub.txt"), say("sub done"))
    model.on("look", always(look))
    async with opened(place) as helm:
        other = await helm.start("other", cwd=place.repo, agent="claude", unenforced=True)
        await answered(other, "deny")
        session = await helm.start("look", cwd=place.repo, agent="claude", sandbox="workspace-write")
        commands = [question.details["command"] for question in await answered(session, "approve")]
    assert commands == [f"ls {sockets} > seen.txt; touch ran.txt", "touch sub.txt"]  # before the turn has ended
    assert (place.repo / "ran.txt").exists()
    assert (place.repo / "seen.txt").read_text(encoding="utf-8") == ""
    assert not offered & {"SendMessage", "ListAgents", "Workflow", "Monitor", "ScheduleWakeup"}


@pytest.mark.anyio
@pytest.mark.rare
async def test_with_allowed_roots_the_sandbox_is_required(place: Place, model: ScriptedModel, tmp_path: Path) -> None:
    escape = tmp_path / "escaped.txt"
    model.on("begin", say("begun"))
    model.on("leave", run(f"touch {escape}"), say("done"))
    async with opened(place) as wide:
        session = await wide.start("begin", cwd=place.repo, agent="claude", unenforced=True)
        await answered(session, "deny")
    narrow = replace(place, settings=replace(place.settings, allowed_roots=(place.repo.resolve(),)))
    async with opened(narrow) as helm:
        with pytest.raises(InvalidInput, match="allowed roots"):
            await helm.start("leave", cwd=place.repo, agent="claude", unenforced=True)
        session = await helm.say(session.id, "leave")
        assert not session.options.unenforced
        await answered(session, "approve")
    assert not escape.exists()


@pytest.mark.anyio
@pytest.mark.rare
@pytest.mark.parametrize("encoding", ["utf-16", "utf-8", "utf-8-sig", "crlf"])
async def test_the_shown_edit_is_the_one_that_is_made(place: Place, model: ScriptedModel, encoding: str) -> None:
    before = "one\ntwo one\none\nthree\none\n"
    file, end = place.repo / "wide.txt", "\r\n" if encoding == "crlf" else "\n"
    used = "utf-8" if encoding == "crlf" else encoding
    file.write_bytes(before.replace("\n", end).encode(used))
    edit = {"file_path": str(file), "old_string": "one", "new_string": "ONE", "replace_all": True}
    model.on("change", call("Read", {"file_path": str(file)}), call("Edit", edit), say("done"))
    async with opened(place) as helm:
        session = await helm.start("change", cwd=place.repo, agent="claude", sandbox="workspace-write")
        (shown,) = await answered(session, "approve")
    assert shown.details["changes"][0]["added"] == 4
    assert file.read_bytes().decode(used) == before.replace("one", "ONE").replace("\n", end)


@pytest.mark.anyio
@pytest.mark.rare
async def test_a_change_says_all_that_it_does(place: Place, model: ScriptedModel) -> None:
    cell: dict[str, object] = {"cell_type": "code", "id": "c1", "source": "1", "metadata": {}, "outputs": []}
    notebook = {"cells": [{**cell, "execution_count": None}], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    (place.repo / "n.ipynb").write_text(json.dumps(notebook), encoding="utf-8")
    (place.repo / "old.txt").write_bytes(b"caf\xe9\n")
    given = {"notebook_path": str(place.repo / "n.ipynb"), "cell_id": "c1", "new_source": "", "edit_mode": "delete"}
    model.on(
        "change",
        call("Read", {"file_path": given["notebook_path"]}),
        call("NotebookEdit", given),
        call("Read", {"file_path": str(place.repo / "old.txt")}),
        call("Write", {"file_path": str(place.repo / "old.txt"), "content": "one\rtwo\u2028three\n"}),
        say("done"),
    )
    async with opened(place) as helm:
        session = await helm.start("change", cwd=place.repo, agent="claude", sandbox="workspace-write")
        deleted, written = await answered(session, "deny")
    assert deleted.details["more"] == {"cell_id": "c1", "edit_mode": "delete"}
    assert deleted.details["changes"] == [{"path": given["notebook_path"], "kind": "update"}]
    assert written.details["changes"] == [{"path": str(place.repo / "old.txt"), "kind": "update"}]
    assert "\n+one\rtwo\u2028three\n" in written.details["diff"]


@pytest.mark.parametrize(
    ("tool", "effect"), [("mcp__lab__write", "allow"), ("mcp__lab__other__write", "ask"), ("mcp__lab___write", "ask")]
)
def test_a_rule_for_a_server_covers_no_tool_that_may_be_anothers(tool: str, effect: str) -> None:
    request = {"subtype": "can_use_tool", "tool_name": tool, "input": {}}
    asked = read_question({"request_id": "1", "request": request}, "s", "t", "/repo", "inside")
    assert asked is not None
    rules = RuleSet(rules=(Rule(effect="allow", mcp=("lab", None), outside=True),))
    assert decide(asked.question, rules, Workspace()).effect == effect
