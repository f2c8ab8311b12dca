"""The library in notebooks (opened in one cell, closed in another) and in scripts without an event loop."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import anyio
import anyio.to_thread
import pytest

from helmsman import Helmsman, Question, SyncHelmsman, SyncSession, load_settings
from helmsman.errors import NeedsAsyncio, NotOpen
from helmsman.model.events import TurnEnded
from helmsman.settings import Settings
from helmsman.testing import CodexHome, Gate, ScriptedModel, run, say
from tests.docs.pages import ROOT, blocks

pytestmark = pytest.mark.anyio

SECONDS = 60


async def test_it_is_opened_in_one_task_and_closed_in_another(
    settings: Settings, codex_home: CodexHome, model: ScriptedModel, git_repo: Path
) -> None:
    model.on("work", say("Done."))
    helm = Helmsman(settings, env=codex_home.env)
    with pytest.raises(NotOpen, match=r"await helm\.open\(\)"):
        await helm.start("work", cwd=git_repo)

    async def first_cell() -> None:
        assert await helm.open() is helm
        assert await helm.open() is helm

    async def second_cell() -> None:
        session = await helm.start("work", cwd=git_repo)
        assert await session.wait(until="end", timeout=SECONDS)
        assert session.result == "Done."

    async def last_cell() -> None:
        await helm.close()
        await helm.close()

    for cell in (first_cell, second_cell, last_cell):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(cell)
    with pytest.raises(NotOpen, match="was closed"):
        await helm.open()
    with pytest.raises(NotOpen):
        await helm.start("work", cwd=git_repo)


async def test_a_client_that_is_not_closed_leaves_no_process(
    codex_home: CodexHome, codex_binary: Path, model: ScriptedModel, git_repo: Path
) -> None:
    gate = Gate()
    model.on("work", say(gate, "Too late."))
    program = (
        "import asyncio, helmsman\n"
        "async def main():\n"
        "    helm = await helmsman.Helmsman(inside=True).open()\n"
        "    session = await helm.start('work')\n"
        "    print(session.status)\n"
        "{}"
    )
    for ending in (
        "asyncio.run(main())",
        "asyncio.new_event_loop().run_until_complete(main())",
    ):  # the second closes nothing
        env = codex_home.env | {"CODEX_CLI_PATH": str(codex_binary)}
        with anyio.fail_after(SECONDS):
            command = [sys.executable, "-c", program.format(ending)]
            done = await anyio.run_process(command, env=env, cwd=git_repo, check=False)
        assert done.stdout == b"active\n", done.stderr.decode()
    gate.release()  # that nothing is left is looked at after every test


def test_without_asyncio_it_says_so_at_once(tmp_path: Path) -> None:
    settings = load_settings({"state_dir": tmp_path}, {}, tmp_path)
    for opening in (Helmsman(settings).__aenter__(), Helmsman(settings).open()):
        with pytest.raises(NeedsAsyncio, match="SyncHelmsman"):
            opening.send(None)  # as trio would
    with pytest.raises(TypeError, match="async with"), Helmsman(settings):
        pass
    with pytest.raises(NotOpen):
        SyncHelmsman(settings).list()


async def test_a_script_starts_follows_answers_and_stops(
    settings: Settings, codex_home: CodexHome, model: ScriptedModel, git_repo: Path
) -> None:
    model.on("touch one", run("touch one.txt", escalate="outside"), say("One."))
    model.on("touch two", run("touch two.txt", escalate="outside"), say("Two."))
    gate = Gate()
    model.on("slow", say(gate, "Never."))
    asked, was_asked = list[str](), threading.Event()

    def answer(session: SyncSession, question: Question) -> Sequence[str] | None:
        asked.append(session.id)
        was_asked.set()
        return ["approve"] if "two" in str(question.details) else None

    def script() -> None:
        with SyncHelmsman(settings, env=codex_home.env, on_question=answer) as helm:
            session = helm.start("touch one", cwd=git_repo, full_auto=True)
            assert session.wait(timeout=SECONDS)
            (question,) = session.questions
            assert was_asked.wait(SECONDS)  # the handler has left it to others
            session.respond(question.id, "approve")
            events = list(session.events())
            assert isinstance(events[-1], TurnEnded)
            assert (session.status, session.result) == ("done", "One.")

            assert session.say("touch two").wait(until="end", timeout=SECONDS)
            assert session.result == "Two."
            assert asked == [session.id, session.id]

            session.say("slow")
            for _event in session.events():
                break  # whoever has seen enough lets go of it
            session.interrupt()
            assert session.status == "interrupted"
            of_session = cast("Any", lambda _session, _question: ["approve"])  # an ordinary function here too
            assert helm.say(session.id, "touch one", on_question=of_session).wait(until="end", timeout=SECONDS)
            assert (session.result, len(asked)) == ("One.", 2)
            tasks, _ = helm.run(lambda helm: helm.tasks.list())
            assert [task.status for task in tasks] == ["completed", "canceled", "completed", "completed"]

    await anyio.to_thread.run_sync(script)
    gate.release()


async def test_ctrl_c_ends_a_script_that_waits(
    codex_home: CodexHome, codex_binary: Path, model: ScriptedModel, git_repo: Path
) -> None:
    gate = Gate()
    model.on("slow", say(gate, "Never."))
    program = (
        "import helmsman\n"
        "with helmsman.SyncHelmsman(inside=True) as helm:\n"
        "    try:\n"
        "        for event in helm.start('slow').events(): pass\n"
        "    except KeyboardInterrupt:\n"
        "        print('interrupted', flush=True)\n"
    )
    env = codex_home.env | {"CODEX_CLI_PATH": str(codex_binary)}
    async with await anyio.open_process([sys.executable, "-c", program], env=env, cwd=git_repo) as process:
        with anyio.fail_after(SECONDS):
            await gate.reached()
            process.send_signal(signal.SIGINT)
            assert process.stdout is not None
            assert await process.stdout.receive() == b"interrupted\n"
            assert await process.wait() == 0
    gate.release()


@pytest.mark.needs_git
async def test_the_script_of_the_page_does_what_it_says(
    codex_home: CodexHome, codex_binary: Path, model: ScriptedModel, git_repo: Path
) -> None:
    (program,) = [block for block in blocks(ROOT / "docs" / "library.md", "python") if "SyncHelmsman" in block]
    model.on("Fix the failing test", run("touch fixed.txt", escalate="outside"), say("Fixed."))
    (git_repo / "src" / "project").mkdir(parents=True)
    env = codex_home.env | {"CODEX_CLI_PATH": str(codex_binary)}
    with anyio.fail_after(SECONDS):
        done = await anyio.run_process([sys.executable, "-c", program], env=env, cwd=git_repo, check=False)
    assert done.returncode == 0, done.stderr.decode()
    assert b"turn_ended" in done.stdout
    assert done.stdout.endswith(b"done Fixed.\n"), done.stdout
