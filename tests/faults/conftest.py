"""Checks after every fault: no file handle is left open (processes are checked for all tests), and work continues."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from helmsman.base.structs import replace
from helmsman.settings import Settings
from helmsman.testing import CodexHome, ScriptedModel
from tests.clients.server_process import Serving
from tests.faults.scene import Scene


def _handles() -> dict[str, str]:
    """Our open files, sockets and pipes, by number."""
    found: dict[str, str] = {}
    for entry in Path("/proc/self/fd").iterdir() if sys.platform == "linux" else ():
        try:
            found[entry.name] = str(entry.readlink())
        except OSError:
            continue  # the handle by which we look
    return found


@pytest.fixture(autouse=True)
def _no_handle_left_open(_nothing_left_behind: None) -> Iterator[None]:
    gc.collect()
    before = _handles()
    yield
    gc.collect()
    left = [where for number, where in _handles().items() if number not in before]
    if left:
        pytest.fail("The test left open:\n" + "\n".join(sorted(left)), pytrace=False)


@pytest.fixture(params=[pytest.param("bound", marks=pytest.mark.rare), "detached"])
def scene(
    request: pytest.FixtureRequest,
    settings: Settings,
    codex_home: CodexHome,
    model: ScriptedModel,
    git_repo: Path,
    detached_engines: Path,
) -> Scene:
    """A place to work in, with an engine that ends with its Helmsman, and with one that does not."""
    detach = request.param == "detached"
    if detach and os.name != "posix":
        pytest.skip("There are no detached engines here.")
    return Scene(replace(settings, detach=detach, state_dir=detached_engines), codex_home, model, git_repo)


@pytest.fixture
def serving(codex_home: CodexHome, codex_binary: Path, git_repo: Path) -> Serving:
    return Serving.on(codex_home, codex_binary, git_repo)
