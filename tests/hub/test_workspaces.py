"""A tree of this machine is brought to another, an agent works on it there, and what it did is applied here."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from helmsman import Helmsman
from helmsman.errors import DiffChanged, InvalidInput
from helmsman.git.remote_trees import all_remote_trees
from helmsman.testing import ScriptedModel, add, make_repository, patch, run, say
from tests.hub.commands import SECONDS, done, whole
from tests.hub.conftest import Place
from tests.hub.other_machine import NAME
from tests.hub.test_hosts import break_line, here, known
from tests.hub_service import hub_of

__all__ = ["here", "known"]

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(sys.platform == "win32", reason="there are no hubs")]


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    root = make_repository(tmp_path / "shop")
    (root / "unfinished.txt").write_text("not committed\n", encoding="utf-8")
    return root


@pytest.mark.long
async def test_a_run_on_another_machine_is_shown_and_applied_here(
    known: Place, place: Place, model: ScriptedModel, repository: Path
) -> None:
    model.on("Fix it", run("cat unfinished.txt"), patch(add("fixed.txt", "fixed\n")), say("Done."))
    command = ("run", "--bring-to", NAME, "-C", str(repository), "--full-auto", "--json", "Fix it")
    ran = await done(whole(*command), known)
    assert ran.code == 0, ran.stderr
    assert "not committed" in json.dumps([request.input for request in model.requests])
    (away,) = all_remote_trees(known.state_dir)
    assert away.session_id is not None
    assert not (repository / "fixed.txt").exists()

    shown = await done(whole("diff", away.session_id), known)
    assert shown.code == 0, shown.stderr
    assert "+fixed" in shown.stdout
    assert "not committed" not in shown.stdout
    there = await done(whole("--host", NAME, "diff", away.session_id), known)
    assert there.stdout == shown.stdout
    refused = await done(whole("apply", "--yes", f"{NAME}:{away.session_id}"), known)
    assert "Bring it in here" in refused.stderr
    applied = await done(whole("apply", "--yes", "--json", away.session_id[-12:]), known)
    assert applied.code == 0, applied.stderr
    assert [file["path"] for file in json.loads(applied.stdout)["files"]] == ["fixed.txt"]
    assert (repository / "fixed.txt").read_text(encoding="utf-8") == "fixed\n"
    gone = await done(whole("session", "discard", "--yes", away.session_id), known)
    assert gone.code == 0, gone.stderr
    assert not list(all_remote_trees(known.state_dir))
    references = await anyio.run_process(["git", "for-each-ref"], cwd=repository)
    assert b"helmsman" not in references.stdout
    both = await done(whole("--host", NAME, *command), known)
    assert both.code == 2


@pytest.mark.long
async def test_nothing_is_done_twice_when_the_line_breaks_on_the_way(
    known: Place, place: Place, model: ScriptedModel, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("helmsman.hub.remote_trees.PIECE", 64)
    model.on("once", patch(add("new.txt", "1\n")), say("Done."))
    async with Helmsman(host=NAME) as helm:
        hub = hub_of(helm)
        asked: list[str] = []
        call = hub._ask

        async def broken(peer: object, number: int, verb: str, *rest: object) -> object:
            """Every kind of call loses its line once, after it was asked and before its answer is there."""
            asked.append(verb)
            if asked.count(verb) > 1:
                return await call(peer, number, verb, *rest)  # type: ignore[arg-type]
            asyncio.get_running_loop().call_soon(break_line, hub._connector)
            return await call(peer, number, verb, *rest)  # type: ignore[arg-type]

        monkeypatch.setattr(hub, "_ask", broken)
        with anyio.fail_after(3 * SECONDS):
            session = await helm.start("once", bring=repository, sandbox="workspace-write", approval_policy="never")
            await session.wait(until="end")
            seen = await helm.workspaces.diff(session.id)
            assert [file.path for file in seen.diff.files] == ["new.txt"]
            with pytest.raises(DiffChanged):
                await helm.workspaces.apply(session.id, digest="0" * 64)
            with pytest.raises(InvalidInput, match="another machine"):
                await helm.extras.changes.apply(session.id)
            await helm.workspaces.apply(session.id, digest=seen.diff.digest)
        assert (repository / "new.txt").read_text(encoding="utf-8") == "1\n"
        assert len((await helm.list())[0]) == 1
    assert {verb.rpartition(".")[2] for verb in asked} >= {
        "known",
        "put",
        "place",
        "start",
        "result",
        "read",
        "stop_work",
    }
    assert len([request for request in model.requests if "once" in json.dumps(request.input[-1:])]) == 1
    with pytest.raises(InvalidInput, match="another machine"):
        async with Helmsman(inside=True) as local:
            await local.start("no", bring=repository)
