"""An entry is tried out as a client would: started, greeted, asked for its tools, and ended."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from helmsman.clients.launch import shake_hands
from helmsman.errors import HandshakeFailed

pytestmark = pytest.mark.anyio


def helmsman_at(home: Path, *options: str) -> dict[str, Any]:
    """An entry that leaves nothing in the person's own home, and no hub."""
    env = {"HOME": str(home), "HELMSMAN_DETACH": "0"}
    return {"command": sys.executable, "args": ["-m", "helmsman", "serve", *options], "env": env}


async def test_helmsman_answers_with_its_tools(tmp_path: Path) -> None:
    answer = await shake_hands(helmsman_at(tmp_path), tmp_path)
    assert answer.server == "helmsman"
    assert "codex_start" in answer.tools


async def test_a_program_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(HandshakeFailed, match=r"`/no/helmsman` was not found\. Install Helmsman"):
        await shake_hands({"command": "/no/helmsman", "args": ["serve"]}, tmp_path)


async def test_the_last_words_of_a_program_that_ends_are_reported(tmp_path: Path) -> None:
    with pytest.raises(HandshakeFailed, match=r"does not answer as an MCP server\. It said: .*nonsense"):
        await shake_hands(helmsman_at(tmp_path, "--tools", "nonsense"), tmp_path)


async def test_the_environment_and_directory_of_the_entry_are_used(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    script = "import os, sys; sys.exit(os.environ['GREETING'] + ' from ' + os.path.basename(os.getcwd()))"
    entry = {"command": sys.executable, "args": ["-c", script], "env": {"GREETING": "hello"}}
    with pytest.raises(HandshakeFailed, match="hello from here"):
        await shake_hands({**entry, "cwd": str(tmp_path / "here")}, tmp_path)


async def test_a_silent_program_is_given_up_and_ended(tmp_path: Path) -> None:
    entry = {"command": sys.executable, "args": ["-c", "import sys; sys.stdin.read()"]}
    with pytest.raises(HandshakeFailed, match=r"did not answer within 0\.5 s\."):
        await shake_hands(entry, tmp_path, timeout=0.5)
