"""What every client meets: `helmsman serve` on a real Codex, and a model with the whole story in its script."""

from __future__ import annotations

from pathlib import Path

import pytest

from helmsman.testing import CodexHome, ScriptedModel, hang, run, say
from tests.clients.node import NodeClients, node_binary, why_not
from tests.clients.server_process import Serving


@pytest.fixture
def serving(codex_home: CodexHome, codex_binary: Path, folder: Path, model: ScriptedModel) -> Serving:
    model.on("make it", run("touch made.txt", escalate="please"), say("It is made"))
    model.on("go on", say("As you say"))
    model.on("hang", hang())
    return Serving.on(codex_home, codex_binary, folder)


@pytest.fixture
def node_clients(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, codex_home: CodexHome) -> NodeClients:
    """Install the JavaScript clients in a separate home."""
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    node = node_binary()
    assert node is not None
    place = tmp_path / "client"
    place.mkdir()
    compiled = {"NODE_COMPILE_CACHE": str(tmp_path_factory.getbasetemp() / "compiled")}  # once, not in every process
    return NodeClients(node, codex_home.env | compiled, place)
