"""A user of codex-plugin-cc moves to Helmsman: `helmsman install claude` shows its sessions, which continue by their id."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import anyio
import pytest

from helmsman.testing import ScriptedModel, say
from tests.cli.conftest import Cli

pytestmark = pytest.mark.anyio

SECONDS = 60


async def thread_of_plugin(cli: Cli, codex_binary: Path) -> str:
    """Let Codex work without Helmsman, as the plugin does, and return its thread."""
    with anyio.fail_after(SECONDS):
        done = await anyio.run_process(
            [str(codex_binary), "exec", "--json", "--skip-git-repo-check", "Look around"],
            env=cli.env, cwd=cli.directory, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    started = json.loads(done.stdout.splitlines()[0])
    thread: str = started["thread_id"]
    return thread


def job(number: int, thread: str, **fields: object) -> dict[str, object]:
    made = f"2026-11-0{number}T10:00:00.000Z"
    return {
        "id": f"task-{number}",
        "kind": "task",
        "title": "Codex Task",
        "threadId": thread,
        "updatedAt": made,
    } | fields


async def test_sessions_of_the_plugin_are_shown_and_continue_by_their_id(
    cli: Cli, model: ScriptedModel, codex_binary: Path
) -> None:
    model.on("Look around", say("Seen."))
    model.on("Now fix it", say("Fixed."))
    ended, working = [await thread_of_plugin(cli, codex_binary) for _ in range(2)]
    state = Path(cli.env["HOME"], ".claude/plugins/data/codex-openai-codex/state/shop-0123456789abcdef/state.json")
    state.parent.mkdir(parents=True)
    jobs = [
        job(1, ended, status="completed", summary="Look around", pid=None),
        job(2, working, status="running", summary="Look again", pid=os.getpid()),
        job(3, "01990000-0000-7000-8000-000000000000", status="completed", summary="A review, which left no session"),
        {"id": "task-4", "status": "queued"},
    ]
    written = {"version": 1, "config": {"stopReviewGate": True}, "jobs": jobs}
    state.write_text(json.dumps(written), encoding="utf-8")
    (state.parent.parent / "broken").mkdir()
    (state.parent.parent / "broken" / "state.json").write_text("{", encoding="utf-8")

    (done,) = (await cli.run("install", "claude", "--yes", "--json")).json
    *_, runs, sessions, gate = done["notes"]
    assert runs == (
        "codex-plugin-cc still works on 'Look again'. When it has ended (/codex:status task-2), continue it: "
        f"helmsman say {working}"
    )
    assert sessions == f"Sessions of codex-plugin-cc continue here. 'Look around': helmsman say {ended}"
    assert gate.startswith("The review gate of codex-plugin-cc is on.")

    said = await cli.run("say", ended, "Now fix it", "--wait")
    assert (said.exit_code, "Fixed." in said.stdout) == (0, True), said.stderr
    told = json.dumps(model.requests[-1].body)
    assert "Look around" in told, "the conversation that the plugin began continues"


async def test_nothing_is_said_of_the_plugin_where_it_never_ran(bare_cli: Cli) -> None:
    (done,) = (await bare_cli.run("install", "claude", "--yes", "--json")).json
    assert "codex-plugin-cc" not in json.dumps(done)
