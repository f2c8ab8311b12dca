"""Files that agents make, and changes that are applied, have the modes of whoever asked, not those of the hub."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from helmsman.base.caller_context import UMASK
from helmsman.base.structs import replace
from helmsman.hub.launch import client_environment
from helmsman.testing import ScriptedModel, add, patch, run, say
from mcp import Client
from tests.hub.conftest import Place
from tests.mcp.caller import Caller

pytestmark = [
    pytest.mark.long,
    pytest.mark.anyio,
    pytest.mark.skipif(sys.platform == "win32", reason="There are no hubs here."),
]


@pytest.fixture(params=[pytest.param(0o022, marks=pytest.mark.rare), 0o007], ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_client_tells_its_umask(umask: int) -> None:
    assert int(client_environment({})[UMASK], 8) == umask


async def test_files_have_the_modes_of_the_client(
    place: Place, model: ScriptedModel, git_repo: Path, umask: int
) -> None:
    model.on("make", run("touch by-command.txt"), patch(add("by-patch.txt", "made\n")), say("done"))
    place = replace(place, directory=git_repo, warm=False)
    async with Client(place.on_stdio("--tools", "sessions,extras")) as client:
        agent = Caller(client)
        for worktree in (False, True):
            started = await agent("codex_start", prompt="make", fullAuto=True, worktree=worktree)
            ended = await agent.until_settled(started["sessionId"])
            assert ended["status"] == "done"
            if worktree:
                shown = await agent("codex_diff", sessionId=started["sessionId"])
                await agent("codex_apply", sessionId=started["sessionId"], digest=shown["digest"])
            for name in ("by-command.txt", "by-patch.txt"):
                assert mode(place.directory / name) == 0o666 & ~umask, name
                (place.directory / name).unlink()
