"""`helmsman run` as people have it: a session in the hub, which can be left, found again, and answered elsewhere."""

from __future__ import annotations

import os
import signal

import anyio
import pytest

from helmsman import Helmsman
from helmsman.cli.list import cells
from helmsman.settings import Settings
from helmsman.testing import CodexHome, Gate, ScriptedModel, add, patch, run, say
from helmsman.testing.repository import git, make_repository
from tests.cli.conftest import Cli

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(os.name != "posix", reason="There are no hubs here.")]


async def test_a_turn_is_left_with_a_key_and_found_again(detached_cli: Cli, model: ScriptedModel) -> None:
    gate, second = Gate(), Gate()
    model.on("A long job", say(gate, "At last."))
    model.on("Then more", say(second, "More."))
    async with detached_cli.on_terminal("run", "A long job") as program:
        await program.shows("› Enter steers")
        await gate.reached()
        program.press("Then more\t")
        await program.shows("1 Then more")
        program.press("\x04")
        await program.shows("It keeps running without you. Come back with helmsman watch")
        assert await program.exit_code() == 0
    (session,) = (await detached_cli.run("list", "--json")).json[0]["sessions"]
    status = (await detached_cli.run("status", session["sessionId"], "--json")).json[0]
    assert status["status"] == "active"
    gate.release()
    await second.reached()  # a queued message is sent without its client
    async with detached_cli.on_terminal("watch", session["sessionId"]) as program:
        await program.shows("› Then more")
        second.release()
        await program.shows("• More.")
        assert await program.exit_code() == 0


async def test_a_question_that_is_left_stays_open(detached_cli: Cli, model: ScriptedModel) -> None:
    model.on("Publish", run("touch made.txt", escalate="It must leave the sandbox"), say("Published."))
    async with detached_cli.on_terminal("run", "--full-auto", "Publish") as program:
        await program.shows("stop the turn")
        program.press("\x1c")
        await program.shows("Left unanswered.")
        await program.shows("It keeps running without you. Come back with helmsman watch")
        assert await program.exit_code() == 0
    (session,) = (await detached_cli.run("list", "--json")).json[0]["sessions"]
    assert (await detached_cli.run("status", session["sessionId"])).exit_code == 5
    async with detached_cli.on_terminal("watch", session["sessionId"]) as program:
        await program.shows("stop the turn")
        program.press("y")
        await program.shows("• Published.")
        assert await program.exit_code() == 0


async def test_a_closed_terminal_leaves_the_turn_running(detached_cli: Cli, model: ScriptedModel) -> None:
    gate = Gate()
    model.on("A long job", say(gate, "At last."))
    async with detached_cli.on_terminal("run", "A long job") as program:
        await gate.reached()
        os.kill(program.process.pid, signal.SIGHUP)
        await program.exit_code()
    gate.release()
    (session,) = (await detached_cli.run("list", "--json")).json[0]["sessions"]
    assert (await detached_cli.run("watch", session["sessionId"])).stdout == "At last.\n"


async def test_ctrl_c_stops_the_turn(detached_cli: Cli, model: ScriptedModel) -> None:
    gate = Gate()
    model.on("A long job", say(gate, "Never."))
    async with detached_cli.on_terminal("run", "A long job") as program:
        await program.shows("nothing finished yet")
        await gate.reached()
        program.press("\x03")
        await program.shows("■ Interrupted")
        assert await program.exit_code() == 130


async def test_its_question_is_answered_by_another_client(
    detached_cli: Cli, model: ScriptedModel, settings: Settings, codex_home: CodexHome
) -> None:
    model.on("Publish", run("touch made.txt", escalate="It must leave the sandbox"), say("Published."))
    async with detached_cli.on_terminal("run", "--full-auto", "Publish") as program:
        await program.shows("? Codex asks to run a command")
        (session,) = (await detached_cli.run("list", "--json")).json[0]["sessions"]
        status = (await detached_cli.run("status", session["sessionId"], "--json")).json[0]
        question = status["pendingQuestion"]
        answered = await detached_cli.run("respond", session["sessionId"], question["id"], "approve")
        assert answered.exit_code == 0
        await program.shows("• Published.")
        assert await program.exit_code() == 0
        assert program.screen.count("? Codex asks to run a command") == 1
        assert "→ approved at the command line" in program.screen
    assert (detached_cli.directory / "made.txt").exists()


@pytest.mark.parametrize("how", ["left", "hung up", "killed"])
async def test_leaving_while_a_question_is_shown_answers_nothing(
    detached_cli: Cli, model: ScriptedModel, how: str
) -> None:
    model.on("Publish", run("touch made.txt", escalate="It must leave the sandbox"), say("Published."))
    async with detached_cli.on_terminal("run", "--full-auto", "Publish") as program:
        await program.shows("? Codex asks to run a command")
        if how == "left":
            program.press("\x1c")
            await program.shows("It keeps running without you")
        else:
            os.kill(program.process.pid, signal.SIGHUP if how == "hung up" else signal.SIGKILL)
        await program.exit_code()
    (session,) = (await detached_cli.run("list", "--json")).json[0]["sessions"]
    status = (await detached_cli.run("status", session["sessionId"], "--json")).json[0]
    assert status["status"] == "awaiting_approval"
    question = status["pendingQuestion"]
    assert (await detached_cli.run("respond", session["sessionId"], question["id"], "approve")).exit_code == 0
    assert (await detached_cli.run("watch", session["sessionId"])).stdout == "Published.\n"
    assert (detached_cli.directory / "made.txt").exists()


async def test_detached_it_returns_at_once_and_its_question_waits(detached_cli: Cli, model: ScriptedModel) -> None:
    model.on("Publish", run("touch made.txt", escalate="It must leave the sandbox"), say("Published."))
    begun = (await detached_cli.run("run", "--detach", "--full-auto", "--json", "Publish")).json[0]
    assert begun["status"] in ("active", "awaiting_approval")
    with anyio.fail_after(60):
        while True:
            status = (await detached_cli.run("status", begun["sessionId"], "--json")).json[0]
            if status["status"] != "active":
                break
            await anyio.sleep(0.05)
    question = status["pendingQuestion"]
    assert (await detached_cli.run("respond", begun["sessionId"], question["id"], "deny")).exit_code == 0
    assert (await detached_cli.run("watch", begun["sessionId"])).stdout == "Published.\n"
    assert not (detached_cli.directory / "made.txt").exists()


async def test_the_newest_session_of_the_directory_continues(detached_cli: Cli, model: ScriptedModel) -> None:
    model.on("First", say("One."))
    model.on("Second", say("Two."))
    refused = await detached_cli.run("run", "--continue", "Second")
    assert "no session in" in refused.stderr
    assert (await detached_cli.run("run", "First")).stdout == "One.\n"
    assert (await detached_cli.run("run", "--last", "Second")).stdout == "Two.\n"
    assert len((await detached_cli.run("list", "--json")).json[0]["sessions"]) == 1
    assert "First" in str(model.requests[-1].body["input"])
    model.on("In a worktree", say("Three."))
    model.on("Go on", say("Four."))
    await detached_cli.run("run", "--worktree", "In a worktree")
    listed = (await detached_cli.run("list", "--json")).json[0]["sessions"]
    (in_worktree,) = [one for one in listed if "repository" in one]
    assert in_worktree["directory"] != in_worktree["repository"] == str(detached_cli.directory)
    assert cells(in_worktree, 800)[4] == in_worktree["repository"]
    assert len((await detached_cli.run("list", "--directory", ".", "--json")).json[0]["sessions"]) == 2
    await detached_cli.run("run", "--continue", "Go on")
    assert "In a worktree" in str(model.requests[-1].body["input"])
    newest = (await detached_cli.run("list", "--json")).json[0]["sessions"][0]["sessionId"]
    await detached_cli.run("session", "discard", newest, "--yes")
    model.on("Back here", say("Five."))
    await detached_cli.run("run", "--continue", "Back here")
    assert "Second" in str(model.requests[-1].body["input"]), "the worktree is gone"


async def test_in_a_worktree_it_changes_nothing_here_until_it_is_applied(
    detached_cli: Cli, model: ScriptedModel
) -> None:
    model.on("Make", patch(add("made.txt", "made\n")), say("Made."))
    begun = await detached_cli.run("run", "--detach", "--full-auto", "--worktree", "--json", "Make it")
    done = await detached_cli.run(
        "watch", begun.json[0]["sessionId"]
    )  # it continues without the command that started it
    assert (done.exit_code, done.stdout) == (0, "Made.\n")
    assert not (detached_cli.directory / "made.txt").exists()
    lib = make_repository(detached_cli.directory.parent / "lib")
    (detached_cli.directory / "mine.txt").write_text("mine\n", encoding="utf-8")
    told = await detached_cli.run("run", "--full-auto", "--from", "dirty", "--add-dir", "../lib", "Make it")
    name = told.stderr.rpartition("helmsman apply ")[2].split()[0]
    changed = (await detached_cli.run("diff", name, "--json")).json[0]
    assert [file["path"] for file in changed["files"]] == [f"{detached_cli.directory.name}/made.txt"]
    applied = await detached_cli.run("apply", name, "--yes")
    assert applied.exit_code == 0, applied.stderr
    assert str(lib) in applied.stderr
    assert (detached_cli.directory / "made.txt").exists()
    gone = (await detached_cli.run("session", "discard", name, "--yes", "--json")).json[0]
    assert len(gone["discarded"]) == 1
    assert git(lib, "branch", "--list", "helmsman/*") == ""


async def test_bound_it_ends_with_its_process(
    detached_cli: Cli, model: ScriptedModel, settings: Settings, codex_home: CodexHome
) -> None:
    gate = Gate()
    model.on("A long job", say(gate, "Never."))
    async with detached_cli.on_terminal("run", "--bound", "A long job") as program:
        await gate.reached()
        os.kill(program.process.pid, signal.SIGHUP)
        await program.exit_code()
    async with Helmsman(settings, env=codex_home.env) as helm:
        ((found,), _) = await helm.list()
        assert not (await helm.session(found.session_id)).state.is_running


async def test_contradictory_options_are_refused(detached_cli: Cli) -> None:
    for words in (("--detach", "--bound"), ("--worktree", "--continue"), ("--session", "x", "--continue")):
        refused = await detached_cli.run("run", *words, "Work")
        assert refused.exit_code == 2, refused.stderr
    detached_cli.env["HELMSMAN_DETACH"] = "0"
    refused = await detached_cli.run("run", "--detach", "Work")
    assert "nothing to leave running" in refused.stderr
