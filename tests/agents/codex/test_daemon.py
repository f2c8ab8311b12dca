"""Tests of Codex's own daemon: trust in its socket, and wider permissions of its sessions."""

from __future__ import annotations

import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from helmsman.agents.codex.access import is_wider_approval, is_wider_sandbox
from helmsman.agents.codex.app_servers import daemon_socket

READ_ONLY = {"type": "readOnly"}
FULL = {"type": "dangerFullAccess"}


def workspace(*roots: str, **more: bool) -> dict[str, Any]:
    return {"type": "workspaceWrite", "writableRoots": list(roots), "networkAccess": False, **more}


@pytest.fixture
def codex_home() -> Iterator[Path]:
    """With a daemon that listens, as Codex makes it: a link to a socket, both in directories of the user alone."""
    with tempfile.TemporaryDirectory(prefix="d") as folder, socket.socket(socket.AF_UNIX) as listening:
        home = Path(folder)
        for name in ("app-server-control", "sockets"):
            (home / name).mkdir(mode=0o700)
        listening.bind(str(home / "sockets" / "one"))
        (home / "app-server-control" / "app-server-control.sock").symlink_to(home / "sockets" / "one")
        yield home


def test_a_socket_counts_where_only_this_user_can_have_put_it(codex_home: Path) -> None:
    assert daemon_socket(codex_home) == (codex_home / "sockets" / "one").resolve()
    for name in ("app-server-control", "sockets"):
        (codex_home / name).chmod(0o770)
        assert daemon_socket(codex_home) is None
        (codex_home / name).chmod(0o700)
    (codex_home / "sockets" / "one").unlink()
    assert daemon_socket(codex_home) is None
    (codex_home / "sockets" / "one").write_text("no socket", encoding="utf-8")
    assert daemon_socket(codex_home) is None


@pytest.mark.parametrize(
    ("asked", "than", "wider"),
    [
        (READ_ONLY, READ_ONLY, False),
        (READ_ONLY, FULL, False),
        (workspace(), READ_ONLY, True),
        (FULL, workspace("/a"), True),
        (workspace("/a"), workspace("/a", "/b"), False),
        (workspace("/a", "/b"), workspace("/a"), True),
        (workspace(networkAccess=True), workspace(), True),
        (workspace(), workspace(networkAccess=True), False),
        (workspace(excludeSlashTmp=False), workspace(excludeSlashTmp=True), True),
        (workspace(excludeSlashTmp=True), workspace(), False),
        (READ_ONLY, {"type": "something new"}, True),
        (READ_ONLY, None, True),
        ({"type": "something new"}, FULL, True),
    ],
)
def test_more_than_a_sandbox_allows(asked: dict[str, Any], than: Any, wider: bool) -> None:
    assert is_wider_sandbox(asked, than) is wider


@pytest.mark.parametrize(
    ("asked", "than", "wider"),
    [
        ("on-request", "on-request", False),
        ("untrusted", "on-request", False),
        ("never", "on-request", True),
        ("on-request", "never", False),
        ("untrusted", "granular", True),
        (None, "untrusted", False),
    ],
)
def test_fewer_questions_than_a_policy_asks(asked: str | None, than: str | None, wider: bool) -> None:
    assert is_wider_approval(asked, than) is wider
